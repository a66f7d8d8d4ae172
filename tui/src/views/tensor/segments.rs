//! The segments of a tensor in the file, and whether their bytes are those that were written.

use ratatui::style::Style;
use ratatui::text::Span;
use wcodec::container::Segment;

use super::Shown;
use crate::draw::page::Page;
use crate::draw::text;
use crate::stats::verify::segments;
use crate::stats::{Fetch, Verdict};

/// From so many columns on, the state of a hash is said in a word.
const WORDS: usize = 64;

/// Writes the table of segments and the verdict on them.
pub fn draw(page: &mut Page, of: Shown<'_>) {
    let Shown { state, tensor, t, .. } = of;
    let look = page.look;
    let verdict = state.known.get(&tensor).map(|k| &k.verdict);
    let (note, style) = match verdict {
        Some(Fetch::Running(part)) => (format!("verifying: {:.0} %", 100.0 * part.clamp(0.0, 1.0)), look.text()),
        Some(Fetch::Ready(Verdict::Sound)) => (format!("{} verified", look.sign("✓", "ok:")), look.good()),
        Some(Fetch::Ready(Verdict::Damaged(_))) => (format!("{} damaged", look.sign("✗", "!!")), look.bad()),
        Some(Fetch::Failed(_)) => ("could not be verified".to_owned(), look.warn()),
        _ => ("not verified: press v".to_owned(), look.dim()),
    };
    page.heading("In the file", &note, style);
    let all = segments(&state.file, tensor);
    let shared = !t.segments.iter().any(|s| s.role == "table");
    head(page);
    for (role, segment) in &all {
        let (sign, word, style) = hash_state(page, verdict, role, segment);
        let star = if *role == "table" && shared { "*" } else { "" };
        row(page, &format!("{role}{star}"), segment, (sign, word, style));
    }
    map(page, state.file.file_bytes(), &all);
    if shared && all.iter().any(|(role, _)| *role == "table") {
        page.sentence("* shared with a tensor before, and counted there", look.dim());
    }
    match verdict {
        Some(Fetch::Ready(Verdict::Damaged(what))) => {
            // The name is at the top already.
            let what = what.strip_prefix(&format!("{}: ", t.name)).unwrap_or(what);
            let what = text::clean(look, what).into_owned();
            page.sentence(&what, look.bad());
        }
        Some(Fetch::Failed(why)) => {
            let why = text::clean(look, why).into_owned();
            page.sentence(&why, look.warn());
        }
        _ => {}
    }
}

fn head(page: &mut Page) {
    let words = if page.width >= WORDS { "  state" } else { "" };
    let line = format!("{:8}{:>13}{:>12}  {:16}{words}", "segment", "offset", "length", "hash (XXH3-64)");
    let line = text::start(&line, page.width).to_owned();
    page.line(vec![Span::styled(line, page.look.dim())]);
}

fn row(page: &mut Page, role: &str, segment: &Segment, (sign, word, style): (&str, &str, Style)) {
    let place = if segment.length == 0 { "-".to_owned() } else { text::count(segment.offset) };
    let line = format!("{role:8}{place:>13}{:>12}  ", text::size(segment.length));
    let word = if page.width >= WORDS { format!("  {sign} {word}") } else { format!(" {sign}") };
    page.line(vec![
        Span::raw(line),
        Span::styled(segment.hash.to_string(), page.look.dim()),
        Span::styled(word, style),
    ]);
}

/// The state of a segment's hash: a verdict names those that do not match, and all were compared.
fn hash_state(
    page: &Page,
    verdict: Option<&Fetch<Verdict>>,
    role: &str,
    segment: &Segment,
) -> (&'static str, &'static str, Style) {
    let look = page.look;
    match verdict.and_then(Fetch::ready) {
        Some(found) if found.names(role, segment) => (look.sign("✗", "!"), "damaged", look.bad()),
        Some(_) => (look.sign("✓", "+"), "matches", look.good()),
        None => (look.sign("·", "."), "unknown", look.dim()),
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
