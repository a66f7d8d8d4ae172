//! The table of all tensors: its head, the rows that are visible, and the sums over all rows.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::cells::{self, Cells};
use super::columns::{Columns, MARKS, Part, Scale};
use super::{ListState, Row};
use crate::draw::table;
use crate::draw::text;
use crate::draw::widgets::Pen;
use crate::model::order::Column;
use crate::state::{Overlay, State};
use crate::stats::{Fetch, Verdict};

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (columns, scale) = (Columns::new(state, usize::from(area.width)), Scale::new(state));
    // The selected row is shown first where there is hardly room; then comes the head, then the sums.
    let rows = usize::from(area.height);
    let first = usize::from(rows > 1);
    if first > 0 {
        head(Pen::new(buffer, area, 0), state, &columns, &scale);
    }
    let list = &state.views.list;
    if list.rows.is_empty() {
        let text = nothing(state);
        for (i, line) in text.iter().enumerate() {
            let style = if i == 0 { state.look.warn() } else { state.look.dim() };
            let mut pen = Pen::new(buffer, Rect { height: area.height.saturating_sub(1), ..area }, i + 2);
            pen.skip(MARKS).put(&text::clean(state.look, line), style);
        }
    }
    let seen = (first, rows.saturating_sub(2).max(1));
    table::list((buffer, area), seen, state.look, (list.cursor, list.rows.len()), |pen, at| {
        row(pen, state, &columns, at, &scale);
    });
    if rows > 2 {
        sums(Pen::new(buffer, area, rows - 1), state, &columns, &scale);
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
    let arrow = if sort.descending { look.sign("▼", "v") } else { look.sign("▲", "^") };
    pen.fill(look.title()).skip(MARKS);
    let sorted = look.title().add_modifier(Modifier::UNDERLINED);
    match sort.column {
        Column::Name => pen.cell(&format!("{} {arrow}", Column::Name.name()), columns.name, sorted),
        _ => pen.cell(Column::Name.name(), columns.name, look.title()),
    };
    let title = |&(part, place): &(Part, table::Column)| match part {
        Part::Of(column) if column == sort.column && place.is_number => {
            (place, format!("{arrow}{}", place.title), sorted)
        }
        Part::Of(column) if column == sort.column => (place, format!("{}{arrow}", place.title), sorted),
        Part::Of(_) => (place, place.title.to_owned(), look.title()),
        Part::Bar => {
            let range = scale.words(look);
            (place, if text::width(&range) <= place.width { range } else { String::new() }, look.dim())
        }
    };
    table::row(&mut pen, look, columns.shown.iter().map(title));
    // The columns go on there.
    let more = match (columns.before, columns.after) {
        (false, false) => "",
        (true, false) => look.sign("‹", "<"),
        (false, true) => look.sign("›", ">"),
        (true, true) => look.sign("‹›", "<>"),
    };
    pen.skip(1).put(more, look.warn());
}

/// The sign before a row, its style, and whether something is wrong: the worst of what is known of the tensors of a module, which is sound
/// where all of them are.
fn mark(state: &State, row: Row) -> (&'static str, Style, bool) {
    let look = state.look;
    let verdict = |i: usize| state.known.get(&i).map(|k| &k.verdict);
    let verifies = |i: usize| matches!(verdict(i), Some(Fetch::Running(_)));
    let is_sound = |i: usize| matches!(verdict(i), Some(Fetch::Ready(Verdict::Sound)));
    let (damaged, running, sound) = match row {
        Row::Tensor(i) => {
            let computes = state.known.get(&i).is_some_and(|k| matches!(k.stats, Fetch::Running(_)));
            (state.is_damaged(i), verifies(i) || computes, is_sound(i))
        }
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
        let is_same = |above: &Cells<'_>| cells::repeats(part) && above.text(part, scale, place.width).0 == text;
        if above.as_ref().is_some_and(is_same) {
            style = look.dim();
        }
        (place, text, style)
    };
    table::row(&mut pen, look, columns.shown.iter().map(cell));
}

/// Writes the name of a row into so many columns: its label in the tree, or all of it, of which the parts that the row above has are dim.
fn name(pen: &mut Pen<'_>, state: &State, columns: usize, (at, above): (usize, Option<Row>), is_bad: bool) {
    let (look, file, list) = (state.look, &state.file, &state.views.list);
    let ListState { rows, places, folded, filter, .. } = list;
    let style = if is_bad { look.bad() } else { look.text() };
    let place = places.get(at).copied().unwrap_or_default();
    // Deep modules do not push a label out.
    let indent = (2 * place.depth).min(columns / 2);
    let room = columns.saturating_sub(indent + 2);
    match rows[at] {
        Row::Group(node) => {
            let is_folded = folded.contains(&node) && filter.is_none();
            let fold = if is_folded { look.sign("▸ ", "> ") } else { look.sign("▾ ", "v ") };
            let label = list.label(file, at);
            let label = text::clean(look, &label);
            pen.skip(indent).put(fold, look.dim());
            pen.cell(&text::cut_middle(look, &label, room), room, look.text().add_modifier(Modifier::BOLD));
        }
        Row::Tensor(i) if list.is_tree() => {
            let label = list.label(file, at);
            let label = text::clean(look, &label);
            let label = match place.top == file.tree.node_of[i] {
                true => text::short_label(look, &label, room),
                false => text::short_name(look, &label, room),
            };
            pen.skip(indent + 2).cell(&label, room, style);
        }
        Row::Tensor(i) => {
            let short = |i: usize| {
                let clean = text::clean(look, &file.tensors[i].name).into_owned();
                text::short_name(look, &clean, columns).into_owned()
            };
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
    let (look, shown) = (state.look, &state.views.list.shown);
    let all = state.file.tensors.len();
    let label = match shown.tensors == all {
        true => text::plural(all, "tensor"),
        false => format!("{} of {}", text::count(shown.tensors as u64), text::plural(all, "tensor")),
    };
    // The number of weights stands where the shapes are, or here if there is room.
    let with_weights = format!("{label}, {}", cells::weights(shown.elements));
    let fits = !columns.has(Column::Shape) && text::width(&with_weights) <= columns.name;
    let label = if fits { with_weights } else { label };
    let cells = Cells::sums(state);
    pen.skip(MARKS).cell(&text::cut(look, &label, columns.name), columns.name, cells.style());
    let cell = |&(part, place): &(Part, table::Column)| (place, cells.text(part, scale, place.width).0, cells.style());
    table::row(&mut pen, look, columns.shown.iter().map(cell));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parts_end_at_dots() {
        assert_eq!(shared("model.layers.1.q", "model.layers.10.q"), "model.layers.".len());
        assert_eq!(shared("a.b", "a.b"), 2);
        assert_eq!(shared("", "a.b"), 0);
        assert_eq!(shared("größe.é", "größe.è"), "größe.".len());
    }
}
