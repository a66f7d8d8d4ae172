//! The file's statements on itself, and sums by scheme, coder and dtype.

use wcodec::{PLAN_KEY, QUALITY_KEY};

use crate::draw::{Canvas, Column, Style, table, text};
use crate::model::statements::{plan_line, quality_line};
use crate::model::{Content, Group};
use crate::state::State;

/// The columns of a table behind its names.
const FIGURES: [Column; 3] =
    [Column::number("count", 6).after(0), Column::number("stored", 11).after(0), Column::number("ratio", 7).after(0)];

/// The cells of a line.
type Line = Vec<(Column, String, Style)>;

/// Draws as many lines as there is room for; the last one says how many are left out.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    let (look, rows) = (state.look, canvas.height());
    let lines = lines(state, canvas.width(), rows);
    let shown = if lines.len() > rows { rows.saturating_sub(1) } else { lines.len() };
    let left_out = lines.len() - shown;
    for (i, line) in lines.into_iter().take(shown).enumerate() {
        table::row(&mut canvas.pen(i), line);
    }
    if left_out > 0 {
        canvas.pen(shown).put(&format!("{} {left_out} more lines", look.sign("…", "~")), look.dim());
    }
}

fn lines(state: &State, width: usize, rows: usize) -> Vec<Line> {
    let (look, file, map) = (state.look, &state.file, state.file.map());
    let fact = |key: &str, value: String| {
        let columns = Column::text("", if text::clean(look, key).len() > 9 { 12 } else { 9 }).after(0);
        vec![(columns, key.to_owned(), look.dim()), (Column::rest("").after(1), value, look.text())]
    };
    let columns = |name: &'static str| {
        let name = Column::text(name, width.saturating_sub(FIGURES.iter().map(Column::needs).sum())).after(0);
        [name].into_iter().chain(FIGURES)
    };
    let sums = |Group { name, totals, .. }: &Group| {
        let [count, size] = [text::count(totals.tensors as u64), text::size(totals.stored_bytes)];
        let cells = [name.clone(), count, size, text::figure(totals.ratio())];
        columns("").zip(cells).map(|(column, text)| (column, text, look.text())).collect()
    };
    let format = match (&file.content, file.container()) {
        (Content::Original(original), _) => original.described(),
        (Content::Cut(header, _), _) => format!("{}.{}, cut off", header.version.0, header.version.1),
        (_, Ok(c)) => format!("{}.{}, by {}", c.version().0, c.version().1, c.writer()),
        _ => String::new(),
    };
    let beside = file.file_bytes().saturating_sub(file.totals.stored_bytes);
    let part = beside as f64 / file.file_bytes().max(1) as f64;
    let tied = match file.aliases.len() {
        0 => String::new(),
        n => format!(", {} tied", text::count(n as u64)),
    };
    let mut lines = vec![
        fact("bytes", text::count(file.file_bytes())),
        fact("format", format),
        fact("tensors", format!("{}{tied}", text::count(file.tensors.len() as u64))),
        fact("weights", text::count(file.totals.elements)),
        fact("overhead", format!("{}, {}", text::size(beside), text::percent(part))),
    ];
    let tables = [("scheme", &map.schemes), ("coder", &map.coders), ("dtype", &map.dtypes)];
    // Empty lines between the tables where they cost nothing.
    let needed = lines.len() + tables.iter().map(|(_, t)| t.len() + 1).sum::<usize>() + file.metadata.len() + 1;
    let airy = rows >= needed + 4;
    for (what, table) in tables {
        lines.extend(airy.then(Line::new));
        lines.push(columns(what).map(|column| (column, column.title.to_owned(), look.title())).collect());
        lines.extend(table.iter().map(sums));
    }
    if !file.metadata.is_empty() {
        lines.extend(airy.then(Line::new));
        lines.push(vec![(Column::rest("").after(0), "metadata".to_owned(), look.title())]);
    }
    let rates = file.rates();
    // A hostile file may have very many, and very long ones.
    for (key, value) in file.metadata.iter().take(rows + 1) {
        let said = match key.as_str() {
            PLAN_KEY => rates.plan.as_ref().map(plan_line),
            QUALITY_KEY => rates.quality.as_ref().map(quality_line),
            _ => None,
        };
        lines.push(fact(key, said.as_ref().unwrap_or(value).chars().take(300).collect()));
    }
    lines
}
