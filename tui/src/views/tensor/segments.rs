//! The segments of a tensor in the file, and whether their bytes are those that were written.

use ratatui::text::Span;
use wcodec::container::Segment;

use super::Shown;
use crate::draw::{Column, Page, text};
use crate::stats::verify::segments;
use crate::stats::{Fetch, Verdict};

/// From so many columns on, the state of a hash is said in a word.
const WORDS: usize = 64;

/// Writes the table of segments and the verdict on them.
pub fn draw(page: &mut Page, of: Shown<'_>) {
    let Shown { state, tensor, t, .. } = of;
    let look = page.look;
    let verdict = &state.knows(tensor).verdict;
    let (note, style) = match verdict {
        Fetch::Running(part) => (format!("verifying: {:.0} %", 100.0 * part.clamp(0.0, 1.0)), look.text()),
        Fetch::Ready(Verdict::Sound) => (format!("{} verified", look.sign("✓", "ok:")), look.good()),
        Fetch::Ready(Verdict::Damaged(_)) => (format!("{} damaged", look.sign("✗", "!!")), look.bad()),
        Fetch::Failed(_) => ("could not be verified".to_owned(), look.warn()),
        _ => ("not verified: press v".to_owned(), look.dim()),
    };
    page.heading("In the file", &note, style);
    let all = segments(&state.file, tensor);
    let shared = !t.segments.iter().any(|s| s.role == "table");
    let is_wide = page.width >= WORDS;
    let last = if is_wide { Column::text("state", 9) } else { Column::text("", 1).after(1) };
    let columns = [
        Column::text("segment", 8).after(0),
        Column::number("offset", 13).after(0),
        Column::number("length", 12).after(0),
        Column::text("hash (XXH3-64)", 16),
        last,
    ];
    page.row(columns.map(|column| (column, column.title, look.dim())));
    for (role, segment) in &all {
        let (sign, word, style) = match verdict.ready() {
            // A verdict names those that do not match, and all were compared.
            Some(found) if found.names(role, segment) => (look.sign("✗", "!"), "damaged", look.bad()),
            Some(_) => (look.sign("✓", "+"), "matches", look.good()),
            None => (look.sign("·", "."), "unknown", look.dim()),
        };
        let star = if *role == "table" && shared { "*" } else { "" };
        let place = if segment.length == 0 { "-".to_owned() } else { text::count(segment.offset) };
        let state = if is_wide { format!("{sign} {word}") } else { sign.to_owned() };
        let cells = [format!("{role}{star}"), place, text::size(segment.length), segment.hash.to_string(), state];
        let styles = [look.text(), look.text(), look.text(), look.dim(), style];
        page.row(columns.into_iter().zip(cells).zip(styles).map(|((column, text), style)| (column, text, style)));
    }
    map(page, state.file.file_bytes(), &all);
    if shared && all.iter().any(|(role, _)| *role == "table") {
        page.sentence("* shared with a tensor before, and counted there", look.dim());
    }
    match verdict {
        Fetch::Ready(Verdict::Damaged(what)) => {
            // The name is at the top already.
            let what = what.strip_prefix(&format!("{}: ", t.name)).unwrap_or(what);
            page.sentence(what, look.bad());
        }
        Fetch::Failed(why) => page.sentence(why, look.warn()),
        _ => {}
    }
}

/// A line that stands for the whole file, with the segments on it.
fn map(page: &mut Page, file_bytes: u64, all: &[(&'static str, Segment)]) {
    let look = page.look;
    let end = format!(" {}", text::size(file_bytes));
    let columns = page.width.saturating_sub(8 + text::width(&end));
    if columns < 8 || file_bytes == 0 {
        return;
    }
    let place = |at: u64| (u128::from(at.min(file_bytes)) * columns as u128 / u128::from(file_bytes)) as usize;
    let mut held = vec![false; columns];
    for (_, s) in all.iter().filter(|(_, s)| s.length > 0) {
        let begin = place(s.offset).min(columns - 1);
        let end = place(s.offset.saturating_add(s.length)).clamp(begin + 1, columns);
        held[begin..end].fill(true);
    }
    let mut spans = vec![Span::styled("file    ", look.dim())];
    for run in held.chunk_by(|a, b| a == b) {
        let (sign, style) =
            if run[0] { (look.sign("█", "#"), look.bar()) } else { (look.sign("░", "."), look.dim()) };
        spans.push(Span::styled(sign.repeat(run.len()), style));
    }
    spans.push(Span::styled(end, look.dim()));
    page.line(spans);
}
