//! The table of all tensors: its head, the rows that are visible, and the sums over all rows.

use wcodec::TensorInfo;

use super::columns::{Columns, MARKS, Part, Scale};
use super::{Bars, Row};
use crate::draw::{Canvas, Modifier, Pen, Style, digits, long_bar, table, text};
use crate::model::{Totals, order::Column};
use crate::state::{Overlay, State};
use crate::stats::{Fetch, Verdict};

/// Draws it.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    let (columns, scale) = (Columns::new(state, canvas.width()), Scale::new(state));
    let (list, rows) = (&state.views.list, canvas.height());
    // The selected row is shown first where there is hardly room; then comes the head, then the sums.
    let first = usize::from(rows > 1);
    if first > 0 {
        head(canvas.pen(0), state, &columns, &scale);
    }
    if list.rows.is_empty() {
        let mut part = canvas.rows(first, rows.saturating_sub(first + 1));
        for (i, line) in nothing(state).iter().enumerate() {
            let style = if i == 0 { state.look.warn() } else { state.look.dim() };
            part.pen(i + 1).skip(MARKS).cell(line, usize::MAX, style);
        }
    }
    let seen = (first, rows.saturating_sub(2).max(1));
    table::list(canvas, seen, (list.cursor, list.rows.len()), |pen, at| {
        row(pen, state, &columns, at, &scale);
    });
    if rows > 2 {
        sums(canvas.pen(rows - 1), state, &columns, &scale);
    }
}

/// The message where there is no row.
fn nothing(state: &State) -> Vec<String> {
    match &state.views.list.filter {
        Some(filter) => {
            let way = match state.overlay {
                Overlay::Search { .. } => "Esc goes back to the rows before",
                _ => "Esc shows all, / changes the filter",
            };
            vec![format!("no tensor matches '{}'", filter.text()), way.to_owned()]
        }
        None => match state.file.cut() {
            Some(cut) => vec![
                cut,
                "the index, which names the tensors, was at the end".to_owned(),
                "copy or download the file again; 5 shows what is there".to_owned(),
            ],
            None => vec!["there are no tensors in this file".to_owned()],
        },
    }
}

fn head(mut pen: Pen<'_>, state: &State, columns: &Columns, scale: &Scale) {
    let (look, sort) = (state.look, state.views.list.sort);
    let arrow = look.order(sort.descending);
    pen.fill(look.title()).skip(MARKS);
    let sorted = look.title().add_modifier(Modifier::UNDERLINED);
    match sort.column {
        Column::Name => pen.cell(&format!("{} {arrow}", Column::Name.name()), columns.name, sorted),
        _ => pen.cell(Column::Name.name(), columns.name, look.title()),
    };
    let title = |&(part, place): &(Part, table::Column)| match part {
        Part::Of(column) if column != sort.column => (place, place.title.to_owned(), look.title()),
        Part::Of(_) if place.is_number => (place, format!("{arrow}{}", place.title), sorted),
        Part::Of(_) => (place, format!("{}{arrow}", place.title), sorted),
        Part::Bar => {
            let range = scale.words(look);
            (place, if text::width(&range) <= place.width { range } else { String::new() }, look.dim())
        }
    };
    table::row(&mut pen, columns.shown.iter().map(title));
    pen.skip(1).put(look.beyond(columns.before, columns.after), look.warn());
}

/// The sign before a row, its style, and whether something is wrong: the worst of what is known of the tensors of a module, which is sound
/// where all of them are.
fn mark(state: &State, row: Row) -> (&'static str, Style, bool) {
    let look = state.look;
    let verifies = |i: usize| state.knows(i).verdict.is_running();
    let is_sound = |i: usize| matches!(state.knows(i).verdict, Fetch::Ready(Verdict::Sound));
    let (damaged, running, sound) = match row {
        Row::Tensor(i) => (state.is_damaged(i), verifies(i) || state.knows(i).stats.is_running(), is_sound(i)),
        Row::Group(_) if state.known.is_empty() && state.file.original().is_none() => (false, false, false),
        Row::Group(node) => {
            let nodes = &state.file.tree.nodes[node..state.file.tree.nodes[node].end];
            let tensors = || nodes.iter().filter_map(|n| n.tensor);
            (tensors().any(|i| state.is_damaged(i)), tensors().any(verifies), tensors().all(is_sound))
        }
    };
    match (damaged, running, sound) {
        (true, ..) => (look.sign("✗", "!"), look.bad(), true),
        (_, true, _) => (look.sign("◌", "~"), look.warn(), false),
        (.., true) => (look.sign("✓", "+"), look.good(), false),
        _ => (" ", look.text(), false),
    }
}

fn row(mut pen: Pen<'_>, state: &State, columns: &Columns, at: usize, scale: &Scale) {
    let look = state.look;
    let rows = &state.views.list.rows;
    let (row, above) = (rows[at], at.checked_sub(1).map(|above| rows[above]));
    let (sign, style, is_bad) = mark(state, row);
    pen.put(sign, style).put(" ", look.text());
    name(&mut pen, state, columns.name, (at, above), is_bad);
    let cells = Cells::of(state, at);
    let beside = above.filter(|above| matches!((above, row), (Row::Tensor(_), Row::Tensor(_))));
    let above = beside.map(|_| Cells::of(state, at - 1));
    let cell = |&(part, place): &(Part, table::Column)| {
        let (text, mut style) = cells.text(part, scale, place.width);
        // A cell that says the same as the one above is dim.
        let repeats = matches!(part, Part::Of(Column::Shape | Column::Dtype | Column::Scheme | Column::Coder));
        if above.as_ref().is_some_and(|above| repeats && above.text(part, scale, place.width).0 == text) {
            style = look.dim();
        }
        (place, text, style)
    };
    table::row(&mut pen, columns.shown.iter().map(cell));
}

/// Writes the name of a row into so many columns: its label in the tree, or all of it, of which the parts that the row above has are dim.
fn name(pen: &mut Pen<'_>, state: &State, columns: usize, (at, above): (usize, Option<Row>), is_bad: bool) {
    let (look, file, list) = (state.look, &state.file, &state.views.list);
    let style = if is_bad { look.bad() } else { look.text() };
    let node = list.node(file, at);
    // Deep modules do not push a label out.
    let indent = node.map_or(0, |node| 2 * node.depth).min(columns / 2);
    let room = columns.saturating_sub(indent + 2);
    let label = text::clean(look, node.map_or("", |node| &node.label));
    match list.rows[at] {
        Row::Group(node) => {
            let is_folded = list.folded.contains(&node) && list.filter.is_none();
            let fold = if is_folded { look.sign("▸ ", "> ") } else { look.sign("▾ ", "v ") };
            let label = text::cut_middle(look, &label, room);
            pen.skip(indent).put(fold, look.dim()).cell(&label, room, look.text().add_modifier(Modifier::BOLD));
        }
        Row::Tensor(i) if list.is_tree() => {
            let own = &file.tree.nodes[file.tree.node_of[i]];
            let is_own = node.is_some_and(|node| node.path == own.path);
            let short = if is_own { text::short_label } else { text::short_name };
            pen.skip(indent + 2).cell(&short(look, &label, room), room, style);
        }
        Row::Tensor(i) => {
            let short = |i: usize| text::short(look, &file.tensors[i].name, columns);
            let text = short(i);
            let above = match above {
                Some(Row::Tensor(above)) => short(above),
                _ => String::new(),
            };
            let (same, rest) = text.split_at(shared(&above, &text));
            pen.put(same, if is_bad { style } else { look.dim() });
            pen.cell(rest, columns.saturating_sub(text::width(same)), style);
        }
    }
}

/// The part of a name, up to a dot, that the one above has, too. Bytes.
fn shared(above: &str, name: &str) -> usize {
    let same = above.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    name.as_bytes()[..same].iter().rposition(|&b| b == b'.').map_or(0, |dot| dot + 1)
}

fn sums(mut pen: Pen<'_>, state: &State, columns: &Columns, scale: &Scale) {
    let shown = &state.views.list.shown;
    let all = state.file.tensors.len();
    let label = match shown.tensors == all {
        true => text::plural(all, "tensor"),
        false => format!("{} of {}", text::count(shown.tensors as u64), text::plural(all, "tensor")),
    };
    // The number of weights stands where the shapes are, or here if there is room.
    let with_weights = format!("{label}, {}", weights(shown.elements));
    let fits = !columns.has(Column::Shape) && text::width(&with_weights) <= columns.name;
    let label = if fits { with_weights } else { label };
    let cells = Cells { state, tensor: None, is_sum: true, totals: *shown };
    pen.skip(MARKS).cell(&label, columns.name, cells.style());
    let cell = |&(part, place): &(Part, table::Column)| (place, cells.text(part, scale, place.width).0, cells.style());
    table::row(&mut pen, columns.shown.iter().map(cell));
}

/// A row's figures: those of a tensor, of a module, or of all that are listed.
struct Cells<'a> {
    state: &'a State,
    tensor: Option<(usize, &'a TensorInfo)>,
    is_sum: bool,
    totals: Totals,
}

impl<'a> Cells<'a> {
    /// Those of the row at a place of the list.
    fn of(state: &'a State, at: usize) -> Self {
        let list = &state.views.list;
        let (tensor, totals) = match list.rows[at] {
            Row::Group(_) => (None, list.node(&state.file, at).map_or_else(Totals::default, |node| node.totals)),
            Row::Tensor(i) => (Some((i, &state.file.tensors[i])), Totals::of([&state.file.tensors[i]])),
        };
        Self { state, tensor, is_sum: false, totals }
    }

    /// The style of the row where nothing deserves another one.
    fn style(&self) -> Style {
        let plain = self.state.look.text();
        if self.tensor.is_some() { plain } else { plain.add_modifier(Modifier::BOLD) }
    }

    /// A cell's text and style, where a bar has so many columns.
    fn text(&self, part: Part, scale: &Scale, columns: usize) -> (String, Style) {
        let (look, totals) = (self.state.look, &self.totals);
        let Part::Of(column) = part else {
            let part = scale.part(totals).filter(|_| !self.is_sum);
            return (part.map_or_else(String::new, |part| long_bar(look, part, columns)), look.bar());
        };
        let text = match (column, self.tensor) {
            (Column::Original, _) => text::size(totals.original_bytes),
            (Column::Stored, _) => text::size(totals.stored_bytes),
            (Column::Bits, _) if totals.elements > 0 => format!("{:.3}", totals.bits_per_weight()),
            // Nothing gained deserves a look.
            (Column::Ratio, _) => {
                let style = match self.state.views.list.bars {
                    _ if self.is_sum => self.style(),
                    Bars::Share => look.text(),
                    Bars::Ratio if totals.ratio() < 1.0 => look.warn(),
                    Bars::Ratio => self.style(),
                };
                return (scale.figure(totals), style);
            }
            (Column::Shape, None) if self.is_sum => weights(totals.elements),
            (Column::Shape, None) => return (text::plural(totals.tensors, "tensor"), look.dim()),
            (_, None) | (Column::Bits, _) => String::new(),
            (Column::Name, Some((_, t))) => t.name.clone(),
            (Column::Shape, Some((_, t))) => text::shape(&t.shape),
            (Column::Dtype, Some((_, t))) => t.dtype.name().to_owned(),
            (Column::Scheme, Some((_, t))) => text::scheme(t),
            (Column::Coder, Some((_, t))) => text::coder(t),
            (Column::Error, Some((_, t))) => {
                let unknown = || (look.unknown().to_owned(), look.dim());
                return t.error.map_or_else(unknown, |error| (digits(error), look.text()));
            }
            (Column::Entropy | Column::Over, Some((i, t))) => return self.entropy(column, i, t),
        };
        (text, self.style())
    }

    fn entropy(&self, column: Column, tensor: usize, t: &TensorInfo) -> (String, Style) {
        let look = self.state.look;
        match self.state.entropy(tensor) {
            Some(e) if column == Column::Entropy => (format!("{e:.3}"), look.text()),
            Some(e) if e > 0.0 => {
                let over = t.bits_per_weight() / e - 1.0;
                // Something deserves a look if much more is stored than the symbols say.
                (text::change(over), if over > 0.05 { look.warn() } else { look.good() })
            }
            None if self.state.knows(tensor).stats.is_running() => (look.sign("…", "~").to_owned(), look.warn()),
            _ => (look.unknown().to_owned(), look.dim()),
        }
    }
}

/// A number of weights as models are named: `3.15 M weights`.
fn weights(n: u64) -> String {
    short_count(n) + " weights"
}

fn short_count(n: u64) -> String {
    match n as f64 {
        v if v >= 1e12 => format!("{:.2} T", v / 1e12),
        v if v >= 1e9 => format!("{:.2} B", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e4 => format!("{:.1} k", v / 1e3),
        _ => text::count(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_weights_are_short() {
        assert_eq!(
            [short_count(9_999), short_count(3_146_000), short_count(1_100_048_384)],
            ["9,999", "3.15 M", "1.10 B"]
        );
        assert_eq!([short_count(10_000), short_count(u64::MAX)], ["10.0 k", "18446744.07 T"]);
    }

    #[test]
    fn shared_parts_end_at_dots() {
        assert_eq!(shared("model.layers.1.q", "model.layers.10.q"), "model.layers.".len());
        assert_eq!(shared("a.b", "a.b"), 2);
        assert_eq!(shared("", "a.b"), 0);
        assert_eq!(shared("größe.é", "größe.è"), "größe.".len());
    }
}
