//! The columns of the table that there is room for, and the scale of its bars.

use crate::draw::{Column as Place, Look, Room, text};
use crate::model::{Totals, order::Column};
use crate::state::State;
use crate::views::list::{Bars, Row};

/// Columns of the terminal before the names: selection, sign, space.
pub const MARKS: usize = 3;
/// Columns of a ratio's figure.
const RATIO: usize = 6;
/// Columns of the bar behind it, and at most so many; one more is before it.
const BAR: (usize, usize) = (8, 24);

/// The subject of a column on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A column that the table can be sorted by.
    Of(Column),
    /// The bar beside the ratio.
    Bar,
}

/// The columns that are shown.
pub struct Columns {
    /// Columns of the terminal for names.
    pub name: usize,
    /// The others, as they stand.
    pub shown: Vec<(Part, Place)>,
    /// Whether some are scrolled out at the left.
    pub before: bool,
    /// Whether there was no room for some others.
    pub after: bool,
}

/// Those of these columns in which the file has something: of a checkpoint nothing is coded.
fn of_file<const N: usize>(state: &State, columns: [Column; N]) -> impl Iterator<Item = Column> + use<N> {
    let (errors, encoded) = (state.file.widths.errors, state.file.original().is_none());
    columns.into_iter().filter(move |&c| match c {
        Column::Error => errors,
        Column::Coder | Column::Original | Column::Entropy | Column::Over => encoded,
        _ => true,
    })
}

/// Title, width and side of a column.
fn place(state: &State, column: Column) -> Place {
    let (widths, title) = (&state.file.widths, column.name());
    match column {
        // Groups have their number of tensors there, and the sums their number of weights.
        Column::Shape => Place::text(title, widths.shape.max(14)),
        Column::Dtype => Place::text(title, widths.dtype.max(6)),
        Column::Scheme => Place::text(title, widths.scheme.max(7)),
        Column::Coder => Place::text(title, widths.coder.max(6)),
        Column::Ratio => Place::number(state.views.list.bars.name(), RATIO),
        Column::Bits => Place::number("bits/w", 6),
        Column::Error => Place::number(title, 8),
        Column::Entropy | Column::Over => Place::number(title, 7),
        Column::Name | Column::Original | Column::Stored => Place::number(title, 10),
    }
}

/// Columns of the terminal that a column needs, its bar among them.
fn needs(state: &State, column: Column) -> usize {
    place(state, column).needs() + if column == Column::Ratio { 1 + BAR.0 } else { 0 }
}

impl Columns {
    /// Those that fit, the most important ones first; from the first one that is not scrolled out on where some are.
    pub fn new(state: &State, width: usize) -> Self {
        let longest = longest(state);
        // The sign that there are more columns.
        let room = width.saturating_sub(MARKS + 3);
        let least = longest.min((room / 3).clamp(12, 44));
        let all = of_file(state, Column::ranked()).count();
        let scroll = state.views.list.scroll.min(all - 1);
        let mut left = Room(room.saturating_sub(least));
        let mut chosen: Vec<Column> = match scroll {
            0 => of_file(state, Column::ranked()).filter(|&c| left.take(needs(state, c))).collect(),
            _ => of_file(state, Column::ALL).skip(1 + scroll).take_while(|&c| left.take(needs(state, c))).collect(),
        };
        chosen.sort_unstable();
        let after = scroll + chosen.len() < all;
        // The room that is left makes names whole, then bars long, and the rest is the names' again.
        let name = least + left.most(longest - least);
        let mut shown = Vec::new();
        for column in chosen {
            shown.push((Part::Of(column), place(state, column)));
            if column == Column::Ratio {
                let more = left.most((left.0 / 2).min(BAR.1 - BAR.0));
                shown.push((Part::Bar, Place::text("", BAR.0 + more).after(1)));
            }
        }
        Self { name: name + left.0, shown, before: scroll > 0, after }
    }

    /// Whether a column is shown.
    pub fn has(&self, column: Column) -> bool {
        self.shown.iter().any(|(part, _)| *part == Part::Of(column))
    }

    /// The column at a column of the terminal.
    pub fn at(&self, x: usize) -> Option<Column> {
        let mut end = MARKS + self.name;
        if x < end {
            return Some(Column::Name);
        }
        self.shown.iter().find_map(|&(part, place)| {
            end += place.needs();
            (x < end).then_some(if let Part::Of(column) = part { column } else { Column::Ratio })
        })
    }
}

/// Columns that the longest name takes, and what stands below the names.
fn longest(state: &State) -> usize {
    let (file, list) = (&state.file, &state.views.list);
    match list.tree(file).widest {
        _ if !list.is_tree() => file.widths.name,
        0 => file.tree.widest,
        widest => widest,
    }
    .max(16)
}

/// Columns that can be scrolled out to the left: none where all of them fit.
pub fn most_scroll(state: &State) -> usize {
    let needed: usize = of_file(state, Column::ranked()).map(|c| needs(state, c)).sum();
    let room = usize::from(state.size.0).saturating_sub(MARKS + 3);
    let all = of_file(state, Column::ranked()).count();
    if needed + longest(state).min((room / 3).clamp(12, 44)) <= room { 0 } else { all - 1 }
}

/// The scale of the table's bars.
pub struct Scale {
    bars: Bars,
    /// The figures of an empty bar and of the longest one.
    low: f64,
    high: f64,
    all: u64,
}

impl Scale {
    /// That of the rows that are listed. Of ratios that are so large that the others could not be told from each other, and of modules'
    /// bytes, bars are cut.
    pub fn new(state: &State) -> Self {
        let (file, bars) = (&state.file, state.views.list.bars);
        let tensors = state.views.list.rows.iter().filter_map(|row| match *row {
            Row::Group(_) => None,
            Row::Tensor(i) => Some(&file.tensors[i]),
        });
        let all = file.totals.stored_bytes;
        let (low, high) = match bars {
            Bars::Ratio => {
                let ratios = tensors.filter(|t| t.stored_bytes > 0).map(|t| t.ratio());
                let (low, high) = ratios.fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(r), high.max(r)));
                (low, high.min(2.0 * file.totals.ratio()).max(low))
            }
            Bars::Share => (0.0, tensors.map(|t| t.stored_bytes).max().unwrap_or(0) as f64),
        };
        Self { bars, low, high, all }
    }

    /// The length of the bar of some tensors: 1 for the longest, more where it is cut; none where there is nothing to show.
    pub fn part(&self, totals: &Totals) -> Option<f64> {
        // The smallest one is to be seen.
        const LEAST: f64 = 0.06;
        match self.bars {
            _ if totals.stored_bytes == 0 || self.low > self.high => None,
            Bars::Share => (self.high > 0.0).then(|| totals.stored_bytes as f64 / self.high),
            // All alike: bars would tell nothing.
            Bars::Ratio if self.high <= self.low => None,
            Bars::Ratio => {
                Some((LEAST + (1.0 - LEAST) * (totals.ratio() - self.low) / (self.high - self.low)).max(0.0))
            }
        }
    }

    /// A figure for the bar of some tensors.
    pub fn figure(&self, totals: &Totals) -> String {
        match self.bars {
            _ if totals.stored_bytes == 0 => String::new(),
            Bars::Ratio => text::figure(totals.ratio()),
            Bars::Share => text::percent(totals.stored_bytes as f64 / self.all.max(1) as f64),
        }
    }

    /// The ends of the scale, in a few words.
    pub fn words(&self, look: Look) -> String {
        match self.bars {
            Bars::Ratio if self.low <= self.high => format!("{:.2}{}{:.2}", self.low, look.sign("–", "-"), self.high),
            _ => String::new(),
        }
    }
}
