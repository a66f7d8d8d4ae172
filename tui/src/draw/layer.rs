//! The view of one tensor: facts and segments, histograms, and how far its values are from those of the reference.

pub mod facts;
pub mod plots;
pub mod segments;
pub mod symbols;
pub mod weights;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use wcodec::TensorInfo;

use super::page::Page;
use super::text;
use super::widgets::{self, Pen};
use crate::state::State;
use crate::stats::Fetch;

/// Rows at the top that are not scrolled.
const HEAD: usize = 2;
/// From so many columns on, facts are beside the histograms.
const TWO_COLUMNS: u16 = 110;
/// Empty columns between them.
const GAP: u16 = 3;
/// Rows of a histogram where all is below each other, and the fewest and most beside the facts.
const ROWS: usize = 6;
const FEWEST_ROWS: usize = 4;
const MOST_ROWS: usize = 18;
/// Rows that a histogram of weights alone leaves: its head and axis, and the largest weights.
const ALONE: usize = 11;

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let area = area.intersection(buffer.area);
    let Some((tensor, t)) = state.current().and_then(|i| Some((i, state.file.tensors.get(i)?))) else {
        Pen::new(buffer, area, 0).skip(1).put("no tensor: the filter leaves none", state.look.dim());
        return;
    };
    let head = HEAD.min(usize::from(area.height));
    let below = Rect { y: area.y + head as u16, height: area.height - head as u16, ..area };
    let (pages, rows) = pages(state, tensor, t, (below.width, usize::from(below.height)));
    let scroll = state.layer.scroll.min(rows.saturating_sub(usize::from(below.height)));
    title(Pen::new(buffer, area, 0), state, t);
    summary(Pen::new(buffer, area, 1), state, tensor, t, (scroll, usize::from(below.height), rows));
    for (x, page) in pages {
        for (y, line) in page.lines.iter().skip(scroll).take(usize::from(below.height)).enumerate() {
            put(buffer, below, x, y as u16, line, page.width);
        }
    }
}

fn put(buffer: &mut Buffer, area: Rect, x: u16, y: u16, line: &ratatui::text::Line<'_>, width: usize) {
    let left = area.width.saturating_sub(x);
    if left > 0 && y < area.height {
        buffer.set_line(area.x + x, area.y + y, line, left.min(width.min(usize::from(u16::MAX)) as u16));
    }
}

/// Lines that can be scrolled out at the top so that the last one is still at the bottom.
pub fn scroll_limit(state: &State) -> usize {
    let Some((tensor, t)) = state.current().and_then(|i| Some((i, state.file.tensors.get(i)?))) else { return 0 };
    let height = page_height(state);
    let (_, rows) = pages(state, tensor, t, (state.size.0, height));
    rows.saturating_sub(height)
}

/// Rows that are scrolled.
pub fn page_height(state: &State) -> usize {
    state.body_height().saturating_sub(HEAD)
}

/// What is written, from which column on, and how many rows it takes.
fn pages(state: &State, tensor: usize, t: &TensorInfo, (columns, rows): (u16, usize)) -> (Vec<(u16, Page)>, usize) {
    let columns = columns.max(1);
    let margin = u16::from(columns > 40);
    let inner = columns - 2 * margin;
    let is_encoded = state.file.original().is_none();
    let index = |page: &mut Page| {
        facts::draw(page, state, tensor, t);
        if !is_encoded {
            facts::would(page, state, tensor);
        }
    };
    let values = |page: &mut Page, height: usize| match is_encoded {
        true => plots::draw(page, state, tensor, t, height),
        false => {
            // There is nothing but the histogram and what is written below it.
            let height =
                if columns < TWO_COLUMNS { height } else { rows.saturating_sub(ALONE).clamp(FEWEST_ROWS, MOST_ROWS) };
            let stats = facts::stats_of(state, tensor).and_then(Fetch::ready).map(AsRef::as_ref);
            weights::draw(page, state, tensor, t, stats, height);
            weights::outliers(page, t, stats);
        }
    };
    let hashes = |page: &mut Page| {
        if is_encoded {
            segments::draw(page, state, tensor, t);
            facts::reference(page, state, tensor, t);
        }
    };
    if columns < TWO_COLUMNS {
        let mut page = Page::new(state.look, usize::from(inner));
        index(&mut page);
        values(&mut page, ROWS);
        hashes(&mut page);
        let rows = page.lines.len();
        return (vec![(margin, page)], rows);
    }
    let first = if inner >= 150 { 66 } else { 54 };
    let mut left = Page::new(state.look, usize::from(first));
    index(&mut left);
    hashes(&mut left);
    let mut right = Page::new(state.look, usize::from(inner - first - GAP));
    let height = (rows.saturating_sub(plots::FIXED) / 2).clamp(FEWEST_ROWS, MOST_ROWS);
    values(&mut right, height);
    let rows = left.lines.len().max(right.lines.len());
    (vec![(margin, left), (margin + first + GAP, right)], rows)
}

/// The name, and which tensor of how many it is.
fn title(mut pen: Pen<'_>, state: &State, t: &TensorInfo) {
    let look = state.look;
    pen.skip(usize::from(pen.left() > 40));
    let all = state.file.tensors.len();
    let place = state.current().and_then(|i| state.file.natural.iter().position(|&n| n == i));
    if let Some(place) = place.filter(|_| pen.left() > 40) {
        pen.at_end(&format!("tensor {} of {} ", text::count(place as u64 + 1), text::count(all as u64)), look.dim());
    }
    let name = text::clean(look, &t.name);
    pen.put(&text::short_name(look, &name, pen.left()), look.title());
}

/// What matters most on one line; how far the work is, or what part is shown.
fn summary(
    mut pen: Pen<'_>,
    state: &State,
    tensor: usize,
    t: &TensorInfo,
    (from, height, rows): (usize, usize, usize),
) {
    let look = state.look;
    pen.skip(usize::from(pen.left() > 40));
    if rows > height && height > 0 {
        let arrows = match (from > 0, from + height < rows) {
            (true, true) => look.sign("↑↓", "^v"),
            (true, false) => look.sign("↑", "^"),
            _ => look.sign("↓", "v"),
        };
        pen.at_end(&format!("{arrows} {}-{}/{rows} ", from + 1, from + height), look.dim());
    }
    let known = state.known.get(&tensor);
    if let Some(Fetch::Running(part)) = known.map(|k| &k.stats) {
        let part = f64::from(*part);
        let bar = widgets::bar(look, part, 10);
        let rest = look.sign("░", ".").repeat(10usize.saturating_sub(text::width(&bar)));
        pen.at_end(&format!("computing {bar}{rest} {:>3.0} %", 100.0 * part.clamp(0.0, 1.0)), look.warn());
    }
    let dot = look.sign(" · ", " | ");
    let mut facts = vec![format!("{} {}", t.dtype.name(), text::shape(&t.shape))];
    match state.file.original() {
        Some(_) => facts.push(text::size(t.original_bytes)),
        None => facts.extend([text::scheme(t), text::coder(t), format!("ratio {:.3}", t.ratio())]),
    }
    facts.push(format!("{:.3} bits/weight", t.bits_per_weight()));
    let line = facts.join(dot);
    let line = text::clean(look, &line).into_owned();
    pen.put(&text::cut(look, &line, pen.left()), look.text());
}
