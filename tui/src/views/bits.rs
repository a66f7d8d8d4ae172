//! The plan by which bits were chosen, the measured quality, and where the bits went: by role and by layer.

mod statements;

use super::{Facts, View};
use crate::draw::{
    Canvas, Column, Modifier, Moves, Page, Pen, Room, Scrolled, digits, long_bar, short_count, table, text,
};
use crate::model::{Group, Rates};
use crate::plain;
use crate::run::once::Once;
use crate::state::State;

/// Plan, quality, and bits by role and layer.
pub struct Bits;

pub(super) const FACTS: Facts = Facts {
    earlier: "rates",
    words: &[
        ("KL", "how far answers are from the original's, nats a token"),
        ("trellis", "levels chosen together: worth about 0.15 bits a weight"),
    ],
    keys: &[],
    shared: &[],
    is_home: false,
};

impl View for Bits {
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        let (margin, height) = (margin(canvas.width()), canvas.height());
        let width = canvas.width() - 2 * margin;
        let mut canvas = canvas.part((margin, 0), (width, height));
        let (page, rows) = (statements(state, width), rows(state.file.rates()));
        let tables = Tables::new(state, width);
        let mut scroll = state.views.bits;
        scroll.fit(page.lines.len() + rows.len(), height);
        canvas.lines(page.lines.get(scroll.0..).unwrap_or_default());
        // Only lines that are seen are written: there may be thousands of layers.
        let seen = rows.iter().skip(scroll.0.saturating_sub(page.lines.len()));
        for (at, row) in (page.lines.len().saturating_sub(scroll.0)..height).zip(seen) {
            tables.draw(canvas.pen(at), row);
        }
    }

    fn footer(&self, mut pen: Pen<'_>, state: &State) {
        let look = state.look;
        let part = state.views.bits.part(look, lines(state), state.body_height());
        pen.at_end(&part.unwrap_or_default(), look.dim());
        pen.cut("bits/w: with scales, tables, offsets; error: as stated", look.dim());
    }

    fn print(&self, once: &Once<'_>) -> Result<String, String> {
        Ok(plain::rates(once.file, once.look))
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let (lines, height) = (lines(state), state.body_height());
        Some((&mut state.views.bits, lines, height))
    }
}

/// Columns before each line, where there is room.
fn margin(width: usize) -> usize {
    usize::from(width > 40)
}

fn statements(state: &State, width: usize) -> Page {
    let mut page = Page::new(state.look, width);
    statements::draw(&mut page, state);
    page
}

/// All lines, whether or not there is room for them.
fn lines(state: &State) -> usize {
    let width = usize::from(state.size.0);
    statements(state, width - 2 * margin(width)).lines.len() + rows(state.file.rates()).len()
}

/// A row of the tables.
enum Row<'a> {
    Empty,
    Head(&'static str),
    Group(&'a Group),
    All(&'a Group),
}

fn rows(rates: &Rates) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (title, groups) in [("by role", &rates.roles), ("by layer", &rates.layers)] {
        rows.extend([Row::Empty, Row::Head(title)]);
        rows.extend(groups.iter().map(Row::Group));
    }
    rows.push(Row::All(&rates.all));
    rows
}

/// Columns of the bar, and at most so many.
const BAR: (usize, usize) = (8, 30);

/// A column of the tables, and its text for some tensors.
struct Figure {
    column: Column,
    /// The first one is the last to go.
    rank: u8,
    text: fn(&Tables<'_>, &Group) -> String,
}

const ERROR: &str = "error";
const SHARE: &str = "of file";

const FIGURES: [Figure; 7] = [
    Figure { column: Column::number("count", 6), rank: 4, text: |_, g| text::count(g.totals.tensors as u64) },
    Figure { column: Column::number("weights", 7), rank: 6, text: |_, g| short_count(g.totals.elements) },
    Figure { column: Column::text("scheme", 14), rank: 5, text: |_, g| g.schemes.clone() },
    Figure { column: Column::number("stored", 10), rank: 1, text: |_, g| text::size(g.totals.stored_bytes) },
    Figure {
        column: Column::number(SHARE, 7),
        rank: 2,
        text: |t, g| text::percent(g.totals.stored_bytes as f64 / t.state.file.file_bytes().max(1) as f64),
    },
    Figure {
        column: Column::number(ERROR, 8),
        rank: 3,
        text: |t, g| g.error.map_or_else(|| t.state.look.unknown().to_owned(), digits),
    },
    Figure {
        column: Column::number("bits/w", 6),
        rank: 0,
        text: |_, g| if g.totals.elements == 0 { String::new() } else { text::figure(g.totals.bits_per_weight()) },
    },
];

/// Both tables.
struct Tables<'a> {
    state: &'a State,
    name: Column,
    figures: Vec<(Column, &'static Figure)>,
    bar: usize,
    /// Whether bars are of shares of the bytes, because bits are all alike.
    by_share: bool,
    /// The figure of the longest bar.
    most: f64,
}

impl<'a> Tables<'a> {
    fn new(state: &'a State, width: usize) -> Self {
        let rates = state.file.rates();
        let longest = rates.widest;
        let least = longest.min((width / 3).clamp(8, 48));
        let (mut left, mut bar) = (Room(width.saturating_sub(least)), 0);
        let sized = |figure: &'static Figure| {
            let Column { width, is_number, .. } = figure.column;
            (Column { width: if is_number { width } else { rates.schemes.clamp(6, width) }, ..figure.column }, figure)
        };
        let mut ranked: Vec<_> = FIGURES.iter().map(sized).enumerate().collect();
        ranked.retain(|(_, (column, _))| column.title != ERROR || rates.all.error.is_some());
        ranked.sort_by_key(|(_, (_, figure))| figure.rank);
        let fits = |&(_, (column, _)): &(usize, (Column, _))| {
            let fits = left.take(column.needs());
            // A bar tells more than the columns behind it.
            if fits && column.title == SHARE && left.take(BAR.0 + 1) {
                bar = BAR.0;
            }
            fits
        };
        let mut shown: Vec<_> = ranked.into_iter().take_while(fits).collect();
        shown.sort_by_key(|(at, _)| *at);
        let more = left.most(longest - least);
        bar += if bar > 0 { left.most(BAR.1 - BAR.0) } else { 0 };
        let groups = || rates.roles.iter().chain(&rates.layers).filter(|g| g.totals.elements > 0);
        let bits = || groups().map(|g| g.totals.bits_per_weight());
        let (low, high) = bits().fold((f64::MAX, 0.0f64), |(low, high), b| (low.min(b), high.max(b)));
        let by_share = high - low < 0.05 * high;
        let most = match by_share {
            true => groups().map(|g| g.totals.stored_bytes as f64).fold(0.0, f64::max),
            // Vectors that are stored as they are would make all others alike.
            false => high.min(2.0 * state.file.totals.bits_per_weight()),
        };
        let name = Column::text("", least + more).after(0);
        let figures = shown.into_iter().map(|(_, figure)| figure).collect();
        Self { state, name, figures, bar, by_share, most }
    }

    fn draw(&self, mut pen: Pen<'_>, row: &Row<'_>) {
        let look = self.state.look;
        let (group, style) = match *row {
            Row::Empty => return,
            Row::Head(title) => {
                let columns: Vec<Column> = self.figures.iter().map(|(column, _)| *column).collect();
                table::head(&mut pen, &[&[Column { title, ..self.name }][..], &columns].concat());
                if self.bar > 0 && self.by_share {
                    pen.skip(1).put(SHARE, look.dim());
                }
                return;
            }
            Row::Group(group) => (group, look.text()),
            Row::All(group) => (group, look.text().add_modifier(Modifier::BOLD)),
        };
        let totals = &group.totals;
        pen.cell(&text::short(look, &group.name, self.name.width), self.name.width, style);
        let cells = self.figures.iter().map(|(column, figure)| {
            let is_missing = column.title == ERROR && group.error.is_none();
            (*column, (figure.text)(self, group), if is_missing { look.dim() } else { style })
        });
        table::row(&mut pen, cells);
        if self.bar > 0 && self.most > 0.0 && totals.elements > 0 {
            let figure = if self.by_share { totals.stored_bytes as f64 } else { totals.bits_per_weight() };
            pen.skip(1).cell(&long_bar(look, figure / self.most, self.bar), self.bar, look.bar());
        }
    }
}
