//! The panel beside the grid: where the bits go, and what the selected tensor is like.

use ratatui::text::Span;

use super::figures::Figures;
use crate::draw::{Canvas, Column, Page, bar, text};
use crate::estimate;
use crate::model::{Heat, HeatCell, Totals, heat::loose};
use crate::state::State;
use crate::views::tensor::{Shown, plots, symbols};

/// From so many columns on, there is a panel.
const WIDE: usize = 110;
/// Its columns at least and at most; two more are the line before it.
const COLUMNS: (usize, usize) = (42, 64);
/// Rows of the roles at least and at most.
const ROLES: (usize, usize) = (4, 10);
/// Rows of a histogram's bars at least and at most, and what it takes besides.
const BARS: (usize, usize) = (2, 7);
const AROUND: usize = 5;

/// Columns of the terminal that are the grid's: all of them where there is no room for a panel.
pub fn grid_columns(all: usize) -> usize {
    if all < WIDE { all } else { all - (all / 5 * 2).clamp(COLUMNS.0, COLUMNS.1) - 2 }
}

/// Whether there is room for a panel.
pub fn is_shown(state: &State) -> bool {
    usize::from(state.size.0) >= WIDE
}

/// Draws it.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    let (look, rows) = (state.look, canvas.height());
    let mut page = Page::new(look, canvas.width().saturating_sub(3));
    roles(&mut page, state, state.file.heat(), (rows / 3).clamp(ROLES.0, ROLES.1));
    if let Some(cell) = state.views.overview.selected(&state.file) {
        selected(&mut page, state, cell, rows);
    }
    if state.file.original().is_some() {
        whole(&mut page, state);
    }
    for row in 0..rows {
        canvas.pen(row).put(look.sign("│", "|"), look.dim());
    }
    canvas.part((2, 0), (page.width, rows)).lines(&page.lines);
}

/// A line for each role, the most bytes first; what is left is one line.
fn roles(page: &mut Page, state: &State, heat: &Heat, most: usize) {
    let look = page.look;
    let figures = Figures::new(state, state.views.overview.measure);
    let of_layers = heat.columns.iter().map(|c| (c.label.as_str(), &c.all));
    let loose = heat.rows[heat.layers..].iter().map(|r| (loose(&r.name), &r.all));
    let (mut all, mut rest): (Vec<_>, Vec<_>) = of_layers.chain(loose).partition(|(_, cell)| figures.is_matrix(cell));
    all.sort_by_key(|(_, cell)| std::cmp::Reverse(cell.totals.stored_bytes));
    // Vectors hold next to nothing.
    if all.len() + usize::from(!rest.is_empty()) > most {
        rest.extend(all.split_off(most - 1));
    }
    let mut all: Vec<(&str, Totals)> = all.into_iter().map(|(name, cell)| (name, cell.totals)).collect();
    if !rest.is_empty() {
        let mut totals = Totals::default();
        rest.iter().for_each(|(_, cell)| totals.merge(&cell.totals));
        all.push(("others", totals));
    }
    let file = state.file.file_bytes().max(1) as f64;
    let largest = all.iter().map(|(_, t)| t.stored_bytes).max().unwrap_or(1).max(1) as f64;
    let label = all.iter().map(|(l, _)| text::width(l)).max().unwrap_or(0).clamp(5, 12);
    let room = page.width.saturating_sub(label + 18);
    let title = if state.file.original().is_some() { "Where the bytes go" } else { "Where the bits go" };
    page.heading(title, "of the file  bits/w", look.dim());
    for (name, totals) in all {
        let stored = totals.stored_bytes as f64;
        let bits = if totals.elements == 0 { String::new() } else { text::figure(totals.bits_per_weight()) };
        page.row([
            (Column::text("", label).after(0), name.to_owned(), look.text()),
            (Column::text("", room).after(1), bar(look, stored / largest, room), look.bar()),
            (Column::number("", 8).after(1), text::percent(stored / file), look.text()),
            (Column::number("", 8).after(0), bits, look.text()),
        ]);
    }
}

/// The tensor of a cell, or the sums over all experts of a layer.
fn selected(page: &mut Page, state: &State, cell: &HeatCell, rows: usize) {
    let look = page.look;
    let between = look.between();
    let size = format!("{}{between}{:.2} bits/w", text::size(cell.totals.stored_bytes), cell.totals.bits_per_weight());
    let &[tensor] = &cell.tensors[..] else {
        page.heading(&text::plural(cell.tensors.len(), "tensor"), "Enter lists them", look.dim());
        page.sentence(&size, look.text());
        return;
    };
    let Some(of) = Shown::new(state, tensor) else { return };
    let t = of.t;
    let name = text::clean(look, &t.name);
    let name = text::short_name(look, name.strip_suffix(".weight").unwrap_or(&name), page.width).into_owned();
    page.heading(&name, "", look.dim());
    page.sentence(&[text::shape(&t.shape), t.dtype.name().to_owned(), size].join(between), look.text());
    let missing = state.file.missing(tensor);
    if missing > 0 {
        page.sentence(&format!("{} bytes of it are missing: the file was cut off", text::count(missing)), look.bad());
        return;
    }
    if let Some(w) = state.would(tensor) {
        for (way, bits, error) in [("int8", w.int8_bits, w.int8_error), ("4 bits", w.rate_bits, w.rate_error)] {
            let words = format!("{way:7}{bits:.2} bits/w, error {}", text::percent(error));
            page.line(vec![Span::styled(words, look.good())]);
        }
    } else if let Some(error) = state.error(tensor).filter(|_| state.file.original().is_none()) {
        let words = if error == 0.0 {
            "exact: every bit is kept".to_owned()
        } else {
            format!("error {} of its weights' RMS", text::percent(error))
        };
        page.sentence(&words, look.text());
    }
    if let Some((rank, all)) = state.file.rates().rank(tensor) {
        let why = match rank {
            1 => ": it matters most",
            r if r == all => ": it matters least, so it has the largest error",
            _ => "",
        };
        let words = format!("rank {} of {} in importance{why}", text::count(rank as u64), text::count(all as u64));
        page.sentence(&words, look.text());
    }
    let charts = 1 + usize::from(t.makes_symbols);
    let below = if state.file.original().is_some() { 9 } else { 0 };
    let left = rows.saturating_sub(page.lines.len() + below);
    let height = (left / charts).saturating_sub(AROUND).min(BARS.1);
    if height >= BARS.0 {
        plots::weights(page, of, height);
        if t.makes_symbols {
            symbols::chart(page, of, height);
        }
    }
    if state.file.original().is_some() {
        plots::outliers(page, of);
    }
}

/// The sizes that encoding a checkpoint would give.
fn whole(page: &mut Page, state: &State) {
    let look = page.look;
    let Some(would) = state.encode.would.ready().filter(|w| !w.is_empty()) else {
        if state.encode.would.is_running() {
            page.blank(1);
            page.sentence(&state.encode.sampling(), look.warn());
        }
        return;
    };
    let (int8, four) = estimate::totals(&state.file, would);
    let between = look.between();
    page.blank(1);
    page.sentence(&format!("E encodes: int8 {}{between}4 bits {}", text::size(int8), text::size(four)), look.good());
}
