//! How the file's bits were chosen, what was measured of it, and where they went: by role and by layer.

mod statements;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::layer::page::{Page, digits, short_count};
use super::text;
use super::widgets::{Pen, bar};
use crate::model::rates::{Group, Rates};
use crate::state::State;

/// Columns before each line, where there is room.
const MARGIN: usize = 1;
/// Columns between two columns of a table.
const GAP: usize = 2;
/// Columns of the bar, and at most so many.
const BAR: (usize, usize) = (8, 30);

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let area = area.intersection(buffer.area);
    let margin = margin(area.width);
    let area = Rect { x: area.x + margin, width: area.width - 2 * margin, ..area };
    let height = usize::from(area.height);
    let rates = state.rates.rates(&state.file);
    let text = statements(state, usize::from(area.width));
    let tables = Tables::new(state, usize::from(area.width), rates);
    let scroll = state.rates.scroll.min((text.lines.len() + tables.rows()).saturating_sub(height));
    for row in 0..height {
        match text.lines.get(scroll + row) {
            Some(line) => {
                buffer.set_line(area.x, area.y + row as u16, line, area.width);
            }
            // Of thousands of layers only those are written that are seen.
            None => tables.draw(Pen::new(buffer, area, row), state, scroll + row - text.lines.len()),
        }
    }
}

fn margin(width: u16) -> u16 {
    if width > 40 { MARGIN as u16 } else { 0 }
}

fn statements(state: &State, width: usize) -> Page {
    let mut page = Page::new(state.look, width);
    statements::draw(&mut page, state, state.rates.rates(&state.file));
    page
}

/// All lines, whether or not there is room for them.
fn lines(state: &State) -> usize {
    let width = state.size.0 - 2 * margin(state.size.0);
    let rates = state.rates.rates(&state.file);
    statements(state, usize::from(width)).lines.len() + rows(rates)
}

/// Lines that can be scrolled out at the top so that the last one is still at the bottom.
pub fn scroll_limit(state: &State) -> usize {
    lines(state).saturating_sub(state.body_height())
}

/// The line above the keys: what part is shown.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let (look, height, lines) = (state.look, state.body_height(), lines(state));
    if lines > height && height > 0 {
        let from = state.rates.scroll.min(lines - height);
        let arrows = match (from > 0, from + height < lines) {
            (true, true) => look.sign("↑↓", "^v"),
            (true, false) => look.sign("↑", "^"),
            _ => look.sign("↓", "v"),
        };
        let at = format!(
            "{arrows} {}-{}/{}",
            text::count(from as u64 + 1),
            text::count((from + height) as u64),
            text::count(lines as u64)
        );
        pen.at_end(&at, look.dim());
    }
    let note = text::cut(look, "bits/w: with scales, tables, offsets; error: as stated", pen.left());
    pen.put(&note, look.dim());
}

/// Lines of the tables: an empty one, a title and their rows each, and the sums.
fn rows(rates: &Rates) -> usize {
    2 + rates.roles.len() + 2 + rates.layers.len() + 1
}

/// A column of the tables, by what it tells: the first one is the last to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Column {
    Tensors,
    Weights,
    Scheme,
    Stored,
    Share,
    Error,
    Bits,
}

const IMPORTANCE: [Column; 7] =
    [Column::Bits, Column::Stored, Column::Share, Column::Error, Column::Tensors, Column::Scheme, Column::Weights];

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Tensors => "count",
            Self::Weights => "weights",
            Self::Scheme => "scheme",
            Self::Stored => "stored",
            Self::Share => "of file",
            Self::Error => "error",
            Self::Bits => "bits/w",
        }
    }

    fn width(self, rates: &Rates) -> usize {
        match self {
            Self::Tensors | Self::Bits => 6,
            Self::Weights | Self::Share => 7,
            Self::Stored => 10,
            Self::Error => 8,
            Self::Scheme => rates.schemes.clamp(6, 14),
        }
    }
}

/// Both tables.
struct Tables<'a> {
    rates: &'a Rates,
    name: usize,
    columns: Vec<Column>,
    bar: usize,
    /// The bars are of this: bits, or shares of the bytes where bits are all alike.
    of: Column,
    /// The figure of the longest bar.
    most: f64,
}

impl<'a> Tables<'a> {
    fn new(state: &State, width: usize, rates: &'a Rates) -> Self {
        let longest = rates.widest;
        let least = longest.min((width / 3).clamp(8, 48));
        let mut left = width.saturating_sub(least);
        let mut columns: Vec<Column> = Vec::new();
        let mut bar = 0;
        let known = |c: &Column| *c != Column::Error || rates.all.error.is_some();
        for column in IMPORTANCE.into_iter().filter(known) {
            let needed = column.width(rates) + GAP;
            if needed > left {
                break;
            }
            left -= needed;
            columns.push(column);
            // A bar tells more than the columns behind it.
            if column == Column::Share && left > BAR.0 {
                bar = BAR.0;
                left -= bar + 1;
            }
        }
        columns.sort_unstable();
        let more = left.min(longest - least);
        left -= more;
        let longer = if bar > 0 { left.min(BAR.1 - BAR.0) } else { 0 };
        let groups = || rates.roles.iter().chain(&rates.layers).filter(|g| g.totals.elements > 0);
        let bits = || groups().map(|g| g.totals.bits_per_weight());
        let (low, high) = bits().fold((f64::MAX, 0.0f64), |(low, high), b| (low.min(b), high.max(b)));
        let of = if high - low < 0.05 * high { Column::Share } else { Column::Bits };
        // Vectors that are stored as they are would make all others alike.
        let most = match of {
            Column::Bits => high.min(2.0 * state.file.totals.bits_per_weight()),
            _ => groups().map(|g| g.totals.stored_bytes as f64).fold(0.0, f64::max),
        };
        Self { rates, name: least + more, columns, bar: bar + longer, of, most }
    }

    fn rows(&self) -> usize {
        rows(self.rates)
    }

    fn draw(&self, pen: Pen<'_>, state: &State, row: usize) {
        let roles = self.rates.roles.len();
        match row {
            0 => {}
            1 => self.head(pen, state, "by role"),
            _ if row < 2 + roles => self.group(pen, state, &self.rates.roles[row - 2], state.look.text()),
            _ if row == 2 + roles => {}
            _ if row == 3 + roles => self.head(pen, state, "by layer"),
            _ => match self.rates.layers.get(row - 4 - roles) {
                Some(layer) => self.group(pen, state, layer, state.look.text()),
                None if row + 1 == self.rows() => {
                    self.group(pen, state, &self.rates.all, state.look.text().add_modifier(Modifier::BOLD));
                }
                None => {}
            },
        }
    }

    fn head(&self, mut pen: Pen<'_>, state: &State, what: &str) {
        let style = state.look.title();
        pen.cell(what, self.name, style);
        for &column in &self.columns {
            pen.skip(GAP);
            match column {
                Column::Scheme => pen.cell(column.title(), column.width(self.rates), style),
                _ => pen.number(column.title(), column.width(self.rates), style),
            };
        }
        if self.bar > 0 && self.of != Column::Bits {
            pen.skip(1).put(self.of.title(), state.look.dim());
        }
    }

    fn group(&self, mut pen: Pen<'_>, state: &State, group: &Group, style: Style) {
        let (look, totals) = (state.look, &group.totals);
        let name = text::clean(look, &group.name);
        pen.cell(&text::short_name(look, &name, self.name), self.name, style);
        for &column in &self.columns {
            let text = match column {
                Column::Tensors => text::count(totals.tensors as u64),
                Column::Weights => short_count(totals.elements),
                Column::Scheme => text::clean(look, &group.schemes).into_owned(),
                Column::Stored => text::size(totals.stored_bytes),
                Column::Share => text::percent(totals.stored_bytes as f64 / state.file.file_bytes().max(1) as f64),
                Column::Error => group.error.map_or_else(|| look.sign("·", "-").to_owned(), digits),
                Column::Bits if totals.elements == 0 => String::new(),
                Column::Bits => text::figure(totals.bits_per_weight()),
            };
            pen.skip(GAP);
            match column {
                Column::Scheme => {
                    pen.cell(&text::cut(look, &text, column.width(self.rates)), column.width(self.rates), style)
                }
                Column::Error if group.error.is_none() => pen.number(&text, column.width(self.rates), look.dim()),
                _ => pen.number(&text, column.width(self.rates), style),
            };
        }
        if self.bar > 0 && self.most > 0.0 && totals.elements > 0 {
            let bits = self.of == Column::Bits;
            let part = if bits { totals.bits_per_weight() } else { totals.stored_bytes as f64 } / self.most;
            let drawn = match part > 1.0001 {
                true => bar(look, 1.0, self.bar - 1) + look.sign("▶", ">"),
                false => bar(look, part, self.bar),
            };
            pen.skip(1).cell(&drawn, self.bar, look.bar());
        }
    }
}
