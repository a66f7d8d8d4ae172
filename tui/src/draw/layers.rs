//! The table of all tensors.

mod cells;
mod columns;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use self::cells::Cells;
pub use self::columns::most_scroll;
use self::columns::{Columns, MARKS, Scale};
use super::text;
use super::widgets::Pen;
use crate::model::order::Column;
use crate::model::totals::Totals;
use crate::state::layers::{Bars, Row};
use crate::state::{Overlay, State};
use crate::stats::{Fetch, Verdict};

/// Draws the table: its head, the rows that are visible, and the sums over all rows.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (columns, scale) = (Columns::new(state, usize::from(area.width)), Scale::new(state));
    // Where there is hardly room, the selected row is what is shown; then comes the head, then the sums.
    let rows = usize::from(area.height);
    let first = usize::from(rows > 1);
    if first > 0 {
        head(Pen::new(buffer, area, 0), state, &columns, &scale);
    }
    let height = rows.saturating_sub(2).max(1);
    let rows = &state.layers.rows;
    if rows.is_empty() {
        let text = nothing(state);
        for (i, line) in text.iter().enumerate() {
            let style = if i == 0 { state.look.warn() } else { state.look.dim() };
            let mut pen = Pen::new(buffer, Rect { height: area.height.saturating_sub(1), ..area }, i + 2);
            let line = text::clean(state.look, line);
            pen.skip(MARKS).put(&line, style);
        }
    }
    for (i, at) in (state.layers.cursor.offset..rows.len()).take(height).enumerate() {
        let before = at.checked_sub(1).map(|b| rows[b]);
        row(Pen::new(buffer, area, i + first), state, &columns, at, before, &scale);
    }
    if area.height > 2 {
        sums(Pen::new(buffer, area, usize::from(area.height) - 1), state, &columns, &scale);
    }
}

/// What to say where there is no row.
fn nothing(state: &State) -> Vec<String> {
    match &state.layers.filter {
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
    let (look, sort) = (state.look, state.layers.sort);
    let arrow = if sort.descending { look.sign("▼", "v") } else { look.sign("▲", "^") };
    pen.fill(look.title()).skip(MARKS);
    let sorted = look.title().add_modifier(Modifier::UNDERLINED);
    let label = |column: Column| match column {
        Column::Bits => "bits/w",
        Column::Ratio if scale.bars() == Bars::Share => "share",
        _ => column.name(),
    };
    match sort.column {
        Column::Name => pen.cell(&format!("{} {arrow}", label(Column::Name)), columns.name, sorted),
        _ => pen.cell(label(Column::Name), columns.name, look.title()),
    };
    for &(column, width) in &columns.shown {
        let here = column == sort.column;
        let (text, style) = match here {
            true if columns::is_number(column) => (format!("{arrow}{}", label(column)), sorted),
            true => (format!("{}{arrow}", label(column)), sorted),
            false => (label(column).to_owned(), look.title()),
        };
        pen.skip(columns::GAP);
        match column {
            Column::Ratio => {
                pen.number(&text, columns::RATIO, style);
                let room = width - columns::RATIO;
                let range = scale.words(look);
                let range = if text::width(&range) < room { range } else { String::new() };
                pen.skip(room.min(1)).cell(&range, room.saturating_sub(1), look.dim())
            }
            _ if columns::is_number(column) => pen.number(&text, width, style),
            _ => pen.cell(&text, width, style),
        };
    }
    // Where the columns go on.
    let more = match (columns.before, columns.after) {
        (false, false) => "",
        (true, false) => look.sign("‹", "<"),
        (false, true) => look.sign("›", ">"),
        (true, true) => look.sign("‹›", "<>"),
    };
    pen.skip(1).put(more, look.warn());
}

/// The sign before a row, and the style of its name: what is known of the tensor.
fn mark(state: &State, row: Row) -> (&'static str, Style, Option<Style>) {
    let look = state.look;
    let none = (" ", look.text(), None);
    let i = match row {
        Row::Tensor(i) => i,
        Row::Group(node) => return module_mark(state, node),
    };
    if state.file.missing(i) > 0 {
        return (look.sign("✗", "!"), look.bad(), Some(look.bad()));
    }
    let Some(known) = state.known.get(&i) else { return none };
    match (&known.verdict, &known.stats) {
        (Fetch::Ready(Verdict::Damaged(_)) | Fetch::Failed(_), _) | (_, Fetch::Failed(_)) => {
            (look.sign("✗", "!"), look.bad(), Some(look.bad()))
        }
        (Fetch::Running(_), _) | (_, Fetch::Running(_)) => (look.sign("◌", "~"), look.warn(), None),
        (Fetch::Ready(Verdict::Sound), _) => (look.sign("✓", "+"), look.good(), None),
        _ => none,
    }
}

/// The sign of a module: the worst of what is known of the tensors in it; sound where all of them are.
fn module_mark(state: &State, node: usize) -> (&'static str, Style, Option<Style>) {
    let look = state.look;
    let none = (" ", look.text(), None);
    if state.known.is_empty() && state.file.original().is_none() {
        return none;
    }
    let nodes = &state.file.tree.nodes[node..state.file.tree.nodes[node].end];
    let (mut running, mut sound) = (false, true);
    for i in nodes.iter().filter_map(|n| n.tensor) {
        if state.is_damaged(i) {
            return (look.sign("✗", "!"), look.bad(), Some(look.bad()));
        }
        let verdict = state.known.get(&i).map(|k| &k.verdict);
        running |= matches!(verdict, Some(Fetch::Running(_)));
        sound &= matches!(verdict, Some(Fetch::Ready(Verdict::Sound)));
    }
    match (running, sound) {
        (true, _) => (look.sign("◌", "~"), look.warn(), None),
        (false, true) => (look.sign("✓", "+"), look.good(), None),
        (false, false) => none,
    }
}

/// The column of the table at a column of the terminal.
pub fn column_at(state: &State, x: usize) -> Option<Column> {
    let columns = Columns::new(state, usize::from(state.size.0));
    let mut end = MARKS + columns.name;
    if x < end {
        return Some(Column::Name);
    }
    columns.shown.iter().find_map(|&(column, width)| {
        end += columns::GAP + width;
        (x < end).then_some(column)
    })
}

fn row(mut pen: Pen<'_>, state: &State, columns: &Columns, at: usize, before: Option<Row>, scale: &Scale) {
    let (look, file, layers) = (state.look, &state.file, &state.layers);
    let Some(&row) = layers.rows.get(at) else { return };
    let selected = at == layers.cursor.selected;
    // A selected row has one style, which is to be seen without colours.
    let style = |s: Style| if selected { look.selected() } else { s };
    if selected {
        pen.fill(look.selected());
    }
    let (sign, sign_style, name_style) = mark(state, row);
    pen.put(if selected { look.sign("▌", ">") } else { " " }, style(look.text()));
    pen.put(sign, style(sign_style)).put(" ", style(look.text()));
    let tree = layers.is_tree();
    let place = layers.places.get(at).copied().unwrap_or_default();
    let name = name_style.unwrap_or(look.text());
    match row {
        Row::Group(node) => {
            let folded = layers.folded.contains(&node) && layers.filter.is_none();
            let fold = if folded { look.sign("▸ ", "> ") } else { look.sign("▾ ", "v ") };
            let label = layers.label(file, at);
            let label = text::clean(look, &label);
            let begin = pen.left();
            pen.skip(indent(place.depth, columns.name)).put(fold, style(look.dim()));
            let room = columns.name.saturating_sub(begin - pen.left());
            pen.cell(&text::cut_middle(look, &label, room), room, style(look.text().add_modifier(Modifier::BOLD)));
        }
        Row::Tensor(i) if tree => {
            let label = layers.label(file, at);
            let label = text::clean(look, &label);
            let begin = pen.left();
            pen.skip(indent(place.depth, columns.name) + 2);
            let room = columns.name.saturating_sub(begin - pen.left());
            let label = match place.top == file.tree.node_of[i] {
                true => text::short_label(look, &label, room),
                false => text::short_name(look, &label, room),
            };
            pen.cell(&label, room, style(name));
        }
        Row::Tensor(i) => {
            let short = |i: usize| {
                let clean = text::clean(look, &file.tensors[i].name).into_owned();
                text::short_name(look, &clean, columns.name).into_owned()
            };
            let text = short(i);
            // What the row above says already is dim.
            let above = match before {
                Some(Row::Tensor(b)) => short(b),
                _ => String::new(),
            };
            let same = shared(&above, &text);
            let dim = if name_style.is_none() { look.dim() } else { name };
            pen.put(&text[..same], style(dim));
            pen.cell(&text[same..], columns.name.saturating_sub(text::width(&text[..same])), style(name));
        }
    }
    let cells = Cells::of(state, at);
    let above =
        before.filter(|b| matches!((b, row), (Row::Tensor(_), Row::Tensor(_)))).map(|_| Cells::of(state, at - 1));
    for &(column, width) in &columns.shown {
        pen.skip(columns::GAP);
        if column == Column::Ratio {
            let plain = scale.bars() == Bars::Share;
            let figure = if plain { look.text() } else { cells.ratio_style(look) };
            pen.number(&scale.figure(cells.totals()), columns::RATIO, style(figure));
            let room = width - columns::RATIO;
            if room > 1 {
                let columns = room - 1;
                pen.skip(1).cell(&cells.bar(look, scale, columns), columns, style(look.bar()));
            }
            continue;
        }
        let (text, mut s) = cells.text(column, look);
        if above.as_ref().is_some_and(|a| cells::repeats(column) && a.text(column, look).0 == text) {
            s = look.dim();
        }
        match columns::is_number(column) {
            true => pen.number(&text, width, style(s)),
            false => pen.cell(&text::cut(look, &text, width), width, style(s)),
        };
    }
}

/// Columns before a label; deep modules do not push it out.
fn indent(depth: usize, name: usize) -> usize {
    (2 * depth).min(name / 2)
}

/// How much of a name, up to a dot, the one above has, too. Bytes.
fn shared(above: &str, name: &str) -> usize {
    let same = above.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    name.as_bytes()[..same].iter().rposition(|&b| b == b'.').map_or(0, |dot| dot + 1)
}

fn sums(mut pen: Pen<'_>, state: &State, columns: &Columns, scale: &Scale) {
    let (look, shown) = (state.look, &state.layers.shown);
    let all = state.file.tensors.len();
    let style = look.text().add_modifier(Modifier::BOLD);
    let label = match shown.tensors == all {
        true => text::plural(all, "tensor"),
        false => format!("{} of {}", text::count(shown.tensors as u64), text::plural(all, "tensor")),
    };
    // The number of weights stands where the shapes are, or here if there is room.
    let with_weights = format!("{label}, {} weights", short_count(shown.elements));
    let fits = !columns.has(Column::Shape) && text::width(&with_weights) <= columns.name;
    let label = if fits { with_weights } else { label };
    pen.skip(MARKS).cell(&text::cut(look, &label, columns.name), columns.name, style);
    let cells = Cells::sums(*shown);
    for &(column, width) in &columns.shown {
        pen.skip(columns::GAP);
        let text = match column {
            Column::Shape => format!("{} weights", short_count(shown.elements)),
            Column::Ratio => scale.figure(cells.totals()),
            _ => cells.text(column, look).0,
        };
        match column {
            Column::Ratio => pen.number(&text, columns::RATIO, style).skip(width - columns::RATIO),
            _ if columns::is_number(column) => pen.number(&text, width, style),
            _ => pen.cell(&text::cut(look, &text, width), width, style),
        };
    }
}

/// A number of weights as models are named: `3.15 M`.
fn short_count(n: u64) -> String {
    match n as f64 {
        v if v >= 1e12 => format!("{:.2} T", v / 1e12),
        v if v >= 1e9 => format!("{:.2} B", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e4 => format!("{:.1} k", v / 1e3),
        _ => text::count(n),
    }
}

/// Sums over the tensors of a module that the filter leaves; those of the module where there is no filter.
fn group_totals(state: &State, at: usize, node: usize) -> Totals {
    let (file, layers) = (&state.file, &state.layers);
    let whole = &file.tree.nodes[node];
    if layers.filter.is_none() {
        return whole.totals;
    }
    // With a filter nothing is folded: the rows that follow are the module's.
    let rows = layers.rows.get(at + 1..).unwrap_or_default().iter().map(|&row| match row {
        Row::Group(node) => (node, None),
        Row::Tensor(i) => (file.tree.node_of[i], Some(i)),
    });
    let inside = rows.take_while(|&(node, _)| node < whole.end);
    Totals::of(inside.filter_map(|(_, tensor)| file.tensors.get(tensor?)))
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

    #[test]
    fn counts_of_weights_are_short() {
        assert_eq!(
            [short_count(9_999), short_count(3_146_000), short_count(1_100_048_384)],
            ["9,999", "3.15 M", "1.10 B"]
        );
        assert_eq!([short_count(10_000), short_count(u64::MAX)], ["10.0 k", "18446744.07 T"]);
    }
}
