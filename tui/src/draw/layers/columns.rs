//! Which columns the table of layers has room for.

use crate::model::order::Column;
use crate::state::State;
use crate::state::layers::Row;

/// Columns of the terminal before the names: selection, sign, space.
pub const MARKS: usize = 3;
/// Columns between two columns of the table.
pub const GAP: usize = 2;
/// Columns of a ratio's figure, its bar excluded.
pub const RATIO: usize = 6;
/// Columns of the bar, and at most so many; one more is before it.
const BAR: (usize, usize) = (8, 24);
/// Columns of a size such as `12.34 MiB`.
const SIZE: usize = 10;

/// The columns by what they tell: the first one is the last to go.
const IMPORTANCE: [Column; 10] = [
    Column::Ratio,
    Column::Stored,
    Column::Bits,
    Column::Original,
    Column::Over,
    Column::Coder,
    Column::Shape,
    Column::Scheme,
    Column::Entropy,
    Column::Dtype,
];

/// The columns that are shown.
pub struct Columns {
    /// Columns of the terminal for names.
    pub name: usize,
    /// The others, as they stand, and how wide they are.
    pub shown: Vec<(Column, usize)>,
    /// Whether some are scrolled out at the left.
    pub before: bool,
    /// Whether there was no room for some others.
    pub after: bool,
}

/// Whether it stands at the right of its column.
pub fn is_number(column: Column) -> bool {
    !matches!(column, Column::Name | Column::Shape | Column::Dtype | Column::Scheme | Column::Coder)
}

impl Columns {
    /// Those that fit, the most important ones first; from the first one that is not scrolled out on where some are.
    pub fn new(state: &State, width: usize) -> Self {
        let longest = longest(state);
        // The sign that there are more columns.
        let room = width.saturating_sub(MARKS + 3);
        let least = longest.min((room / 3).clamp(12, 44));
        let scroll = state.layers.scroll.min(IMPORTANCE.len() - 1);
        let mut left = room.saturating_sub(least);
        let mut take = |column: Column| {
            let needed = width_of(state, column) + GAP;
            let fits = needed <= left;
            left -= if fits { needed } else { 0 };
            fits
        };
        let mut chosen: Vec<Column> = match scroll {
            0 => IMPORTANCE.into_iter().filter(|&c| take(c)).collect(),
            _ => Column::ALL.into_iter().skip(1 + scroll).take_while(|&c| take(c)).collect(),
        };
        chosen.sort_unstable();
        let all = IMPORTANCE.len();
        let after = scroll + chosen.len() < all;
        let mut shown: Vec<(Column, usize)> = chosen.into_iter().map(|c| (c, width_of(state, c))).collect();
        // What is left makes names whole, then bars long, and the rest is the names' again.
        let name = least + left.min(longest.saturating_sub(least));
        left -= name - least;
        if let Some((_, width)) = shown.iter_mut().find(|(c, _)| *c == Column::Ratio) {
            let more = (left / 2).min(BAR.1 - BAR.0);
            *width += more;
            left -= more;
        }
        Self { name: name + left, shown, before: scroll > 0, after }
    }

    /// Whether a column is shown.
    pub fn has(&self, column: Column) -> bool {
        self.shown.iter().any(|(c, _)| *c == column)
    }
}

/// Columns that the longest name takes, and what stands below the names.
fn longest(state: &State) -> usize {
    let widths = &state.file.widths;
    if state.layers.is_tree() { widths.label } else { widths.name }.max(16)
}

fn width_of(state: &State, column: Column) -> usize {
    let widths = &state.file.widths;
    match column {
        // Groups have their number of tensors there, and the sums their number of weights.
        Column::Shape => widths.shape.max(14),
        Column::Dtype => widths.dtype.max(6),
        Column::Scheme => widths.scheme.max(7),
        Column::Coder => widths.coder.max(6),
        Column::Ratio => RATIO + 1 + BAR.0,
        Column::Bits => 6,
        Column::Entropy | Column::Over => 7,
        Column::Name | Column::Original | Column::Stored => SIZE,
    }
}

/// How many columns can be scrolled out to the left: none where all of them fit.
pub fn most_scroll(state: &State) -> usize {
    let needed: usize = IMPORTANCE.iter().map(|&c| width_of(state, c) + GAP).sum();
    let room = usize::from(state.size.0).saturating_sub(MARKS + 3);
    if needed + longest(state).min((room / 3).clamp(12, 44)) <= room { 0 } else { IMPORTANCE.len() - 1 }
}

/// The ratio that has the longest bar: the largest one of all rows, unless that is so large that the others could not be
/// told from each other.
pub fn largest_ratio(state: &State) -> f64 {
    let file = &state.file;
    let ratios = state.layers.rows.iter().map(|row| match *row {
        Row::Group(node) => file.tree.nodes[node].totals.ratio(),
        Row::Tensor(i) => file.tensors[i].ratio(),
    });
    ratios.fold(0.0, f64::max).min(2.0 * file.totals.ratio())
}
