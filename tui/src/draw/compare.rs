//! Two files side by side.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use wcodec::TensorInfo;

use super::text;
use super::theme::Look;
use super::widgets::{Pen, diverging};
use crate::model::FileModel;
use crate::model::compare::{Compared, Comparison, Relation};
use crate::state::State;

/// Columns between two columns of the table.
const GAP: usize = 2;
const SIZE: usize = 10;
const FIGURE: usize = 6;

/// Rows of the list in a view of so many rows.
pub fn height(body: usize) -> usize {
    body.saturating_sub(3)
}

/// Which columns there are, and how wide.
struct Columns {
    name: usize,
    ratios: bool,
    /// Columns of the bar, 0 without one.
    bar: usize,
    what: usize,
}

impl Columns {
    fn new(width: usize, name: usize) -> Self {
        let room = width.saturating_sub(3 + 2 * (SIZE + GAP) + FIGURE + GAP);
        let name_least = name.min((room * 2 / 5).clamp(10, 44));
        let mut left = room.saturating_sub(name_least);
        let mut take = |columns: usize| {
            let fits = left >= columns;
            left -= if fits { columns } else { 0 };
            fits
        };
        let mut what = if take(GAP + 18) { 18 } else { 0 };
        let ratios = what > 0 && take(2 * (FIGURE + GAP));
        // The text of a changed scheme, then a bar, then names in full.
        what += if ratios && take(10) { 10 } else { 0 };
        let mut bar = if ratios && take(GAP + 11) { 11 } else { 0 };
        let more = left.min(name - name_least);
        left -= more;
        if bar > 0 {
            let longer = (left / 3).min(10) / 2 * 2;
            (bar, left) = (bar + longer, left - longer);
        }
        if what > 0 {
            let longer = left.min(20);
            (what, left) = (what + longer, left - longer);
        }
        Self { name: name_least + more + left, ratios, bar, what }
    }
}

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (Some(found), Some(other)) = (&state.compare.found, state.other.as_deref()) else {
        let lines = [
            "there is no second file to compare with",
            "",
            "start the inspector with two files to see them side by side:",
            "    wcodec-tui A.wcodec B.wcodec",
        ];
        for (i, line) in lines.iter().enumerate() {
            let style = if i == 0 { state.look.warn() } else { state.look.text() };
            Pen::new(buffer, area, i + usize::from(area.height > 6)).skip(3).put(line, style);
        }
        return;
    };
    let longest = state.file.widths.name.max(other.widths.name).max(16);
    let columns = Columns::new(usize::from(area.width), longest);
    let rows = usize::from(area.height);
    // The rows are there first, then the head, the files' names, and the sums.
    let (files, head, sums) = (rows >= 4, rows >= 2, rows >= 3);
    if files {
        names(Pen::new(buffer, area, 0), state, other);
    }
    if head {
        heading(Pen::new(buffer, area, usize::from(files)), state.look, &columns);
    }
    let first = usize::from(files) + usize::from(head);
    let height = rows.saturating_sub(first + usize::from(sums));
    let (offset, len) = (state.compare.cursor.offset, state.compare.len());
    if len == 0 {
        let text =
            if found.rows.is_empty() { "neither file has tensors" } else { "no other values: o shows all tensors" };
        Pen::new(buffer, area, first + 1).skip(3).put(text, state.look.good());
    }
    for (i, at) in (offset..len).take(height).enumerate() {
        if let Some(compared) = state.compare.row(at) {
            let selected = at == state.compare.cursor.selected;
            row(Pen::new(buffer, area, first + i), state, other, &columns, (compared, selected), found.most);
        }
    }
    if sums {
        totals(Pen::new(buffer, area, rows - 1), state, &columns, found);
    }
}

fn names(mut pen: Pen<'_>, state: &State, other: &FileModel) {
    let look = state.look;
    let half = pen.left() / 2;
    let title = look.text().add_modifier(Modifier::BOLD);
    for (i, (letter, file)) in [("A", &*state.file), ("B", other)].into_iter().enumerate() {
        let begin = pen.left();
        let name = text::file_name(look, &file.path);
        let size = text::size(file.file_bytes());
        let room = half.saturating_sub(size.len() + 8);
        pen.skip(3).put(letter, look.title()).put(" ", look.text());
        pen.put(&text::cut_middle(look, &name, room), title).skip(1).put(&size, look.dim());
        if i == 0 {
            pen.skip(half.saturating_sub(begin - pen.left()));
        }
    }
}

fn heading(mut pen: Pen<'_>, look: Look, columns: &Columns) {
    let style = look.title();
    pen.fill(style).skip(3).cell("name", columns.name, style);
    for (title, width) in [("A stored", SIZE), ("B stored", SIZE), ("B/A", FIGURE)] {
        pen.skip(GAP).number(title, width, style);
    }
    if columns.bar > 0 {
        let half = columns.bar / 2;
        pen.skip(GAP).number("less", half, style).skip(1).cell("more", half, style);
    }
    if columns.ratios {
        pen.skip(GAP).number("ratio A", FIGURE, style).skip(GAP).number("ratio B", FIGURE, style);
    }
    if columns.what > 0 {
        pen.skip(GAP).put("B compared with A", style);
    }
}

fn sign(look: Look, relation: Relation) -> (&'static str, Style) {
    match relation {
        Relation::Same => ("=", look.dim()),
        Relation::Recoded => (look.sign("≈", "~"), look.warn()),
        Relation::Differs => (look.sign("≠", "!"), look.bad()),
        Relation::OnlyA => ("A", look.title()),
        Relation::OnlyB => ("B", look.title()),
    }
}

/// What of a tensor is not the same in the second file.
fn what(look: Look, row: &Compared, infos: [Option<&TensorInfo>; 2]) -> String {
    let arrow = look.sign("→", "->");
    let tied = |side: Option<crate::model::compare::Side>| side.is_some_and(|s| s.alias.is_some());
    let (a, b) = match infos {
        [Some(a), Some(b)] => (a, b),
        [Some(_), None] => return if tied(row.a) { "only in A, tied" } else { "only in A" }.to_owned(),
        _ => return if tied(row.b) { "only in B, tied" } else { "only in B" }.to_owned(),
    };
    let mut changes: Vec<String> = Vec::new();
    if tied(row.a) != tied(row.b) {
        changes.push(format!("tied in {}", if tied(row.a) { "A" } else { "B" }));
    }
    let texts: [fn(&TensorInfo) -> String; 4] =
        [|t| t.dtype.name().to_owned(), |t| text::shape(&t.shape), text::scheme, text::coder];
    for text in texts {
        let (x, y) = (text(a), text(b));
        if x != y {
            changes.push(format!("{x} {arrow} {y}"));
        }
    }
    match row.relation {
        Relation::Same if changes.is_empty() && tied(row.a) => "same bytes, tied".to_owned(),
        Relation::Same if changes.is_empty() => "same bytes".to_owned(),
        Relation::Recoded if changes.is_empty() => "other bytes, same values".to_owned(),
        Relation::Recoded => format!("{}, same values", changes.join(", ")),
        _ if changes.is_empty() => "other values".to_owned(),
        _ => changes.join(", "),
    }
}

fn row(
    mut pen: Pen<'_>,
    state: &State,
    other: &FileModel,
    columns: &Columns,
    (row, selected): (Compared, bool),
    most: f64,
) {
    let (look, file) = (state.look, &*state.file);
    let style = |s: Style| if selected { look.selected() } else { s };
    if selected {
        pen.fill(look.selected());
    }
    let same = row.relation == Relation::Same;
    let text_style = style(if same { look.dim() } else { look.text() });
    let (sign, sign_style) = sign(look, row.relation);
    pen.put(if selected { look.sign("▌", ">") } else { " " }, style(look.text()));
    pen.put(sign, style(sign_style)).skip(1);
    let name = text::clean(look, row.name(file, other));
    pen.cell(&text::short_name(look, &name, columns.name), columns.name, text_style);
    let infos = row.infos(file, other);
    let sides = [row.a, row.b];
    for (info, side) in infos.iter().zip(sides) {
        let tied = side.is_some_and(|s| s.alias.is_some());
        let size = info.map_or_else(String::new, |t| if tied { "tied".to_owned() } else { text::size(t.stored_bytes) });
        pen.skip(GAP).number(&size, SIZE, text_style);
    }
    let change = row.stored_ratio(file, other);
    let colour = match change {
        Some(c) if c < 0.9995 => look.good(),
        Some(c) if c > 1.0005 => look.warn(),
        _ => look.dim(),
    };
    pen.skip(GAP).number(&change.map_or_else(String::new, text::figure), FIGURE, style(colour));
    if columns.bar > 0 {
        let part = change.filter(|_| most > 0.0).map(|c| (c - 1.0) / most);
        let bar = part.map_or_else(String::new, |p| diverging(look, p, columns.bar));
        pen.skip(GAP).cell(&bar, columns.bar, style(colour));
    }
    if columns.ratios {
        for info in infos {
            let ratio = info.map_or_else(String::new, |t| text::figure(t.ratio()));
            pen.skip(GAP).number(&ratio, FIGURE, text_style);
        }
    }
    if columns.what > 0 {
        let what = what(look, &row, infos);
        let what = text::clean(look, &what);
        pen.skip(GAP).cell(
            &text::cut(look, &what, columns.what),
            columns.what,
            style(if same { look.dim() } else { sign_style }),
        );
    }
}

fn totals(mut pen: Pen<'_>, state: &State, columns: &Columns, found: &Comparison) {
    let look = state.look;
    let style = look.text().add_modifier(Modifier::BOLD);
    let recoded = found.counts[Relation::Recoded as usize];
    let label = match (found.differing, found.rows.len()) {
        (0, all) if recoded > 0 => format!("{}, same values", text::plural(all, "tensor")),
        (0, all) => format!("{}, no difference", text::plural(all, "tensor")),
        (n, all) => format!("{} of {} differ", text::count(n as u64), text::plural(all, "tensor")),
    };
    pen.skip(3).cell(&text::cut(look, &label, columns.name), columns.name, style);
    for totals in [&found.a, &found.b] {
        pen.skip(GAP).number(&text::size(totals.stored_bytes), SIZE, style);
    }
    let change = match found.a.stored_bytes {
        0 => String::new(),
        a => text::figure(found.b.stored_bytes as f64 / a as f64),
    };
    pen.skip(GAP).number(&change, FIGURE, style);
    if columns.bar > 0 {
        pen.skip(GAP + columns.bar);
    }
    if columns.ratios {
        for totals in [&found.a, &found.b] {
            pen.skip(GAP).number(&text::figure(totals.ratio()), FIGURE, style);
        }
    }
}

/// The line above the keys: how many rows there are of each kind.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    let Some(found) = &state.compare.found else { return };
    let (at, len) = (state.compare.cursor.selected, state.compare.len());
    if len > 0 {
        pen.at_end(&format!("{}/{}", text::count(at as u64 + 1), text::count(len as u64)), look.dim());
    }
    if state.compare.only_differences {
        pen.put("only differences", look.warn()).put(look.sign(" · ", " | "), look.dim());
    }
    let order = if state.compare.by_name { "by name" } else { "by size of the difference" };
    if pen.left() >= 60 + order.len() {
        pen.put(order, look.dim()).put(look.sign(" · ", " | "), look.dim());
    }
    let kinds = [
        (Relation::Same, "same"),
        (Relation::Recoded, "recoded, same values"),
        (Relation::Differs, "differ"),
        (Relation::OnlyA, "only in A"),
        (Relation::OnlyB, "only in B"),
    ];
    for (relation, word) in kinds {
        let count = found.counts[relation as usize];
        if count > 0 {
            let (sign, style) = sign(look, relation);
            pen.put(sign, style).put(&format!(" {} {word}  ", text::count(count as u64)), look.dim());
        }
    }
}
