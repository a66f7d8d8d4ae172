//! The file's statements on itself, and sums by scheme, coder and dtype.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::draw::text;
use crate::draw::widgets::Pen;
use wcodec::{PLAN_KEY, QUALITY_KEY};

use crate::model::Content;
use crate::model::statements::{Plan, Quality};
use crate::model::totals::Totals;
use crate::state::State;

/// Columns of the figures of a table: tensors, stored bytes, ratio.
const FIGURES: usize = 6 + 11 + 7;

/// A line of the part.
enum Line {
    /// A word and what it stands for.
    Fact(String, String),
    /// The title of the facts below.
    Title(&'static str),
    /// The head of a table.
    Head(&'static str),
    /// A row of it.
    Sums(String, Totals),
    Empty,
}

/// Draws as many lines as there is room for; the last one says how many are left out.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let look = state.look;
    let rows = usize::from(area.height);
    let lines = lines(state, rows);
    let shown = if lines.len() > rows { rows.saturating_sub(1) } else { lines.len() };
    for (i, line) in lines.iter().take(shown).enumerate() {
        let mut pen = Pen::new(buffer, area, i);
        let name = pen.left().saturating_sub(FIGURES);
        match line {
            Line::Fact(key, value) => {
                let key = text::clean(look, key);
                pen.cell(&text::cut(look, &key, 12), if key.len() > 9 { 12 } else { 9 }, look.dim()).skip(1);
                let value = text::clean(look, value);
                pen.put(&text::cut(look, &value, pen.left()), look.text());
            }
            Line::Title(title) => {
                pen.put(title, look.title());
            }
            Line::Head(what) => {
                let style = look.title();
                pen.cell(what, name, style);
                pen.number("count", 6, style).number("stored", 11, style).number("ratio", 7, style);
            }
            Line::Sums(what, totals) => {
                let what = text::clean(look, what);
                pen.cell(&text::cut(look, &what, name), name, look.text());
                pen.number(&text::count(totals.tensors as u64), 6, look.text());
                pen.number(&text::size(totals.stored_bytes), 11, look.text());
                pen.number(&text::figure(totals.ratio()), 7, look.text());
            }
            Line::Empty => {}
        }
    }
    if shown < lines.len() {
        let more = format!("{} {} more lines", look.sign("…", "~"), lines.len() - shown);
        Pen::new(buffer, area, shown).put(&more, look.dim());
    }
}

fn lines(state: &State, rows: usize) -> Vec<Line> {
    let (file, map) = (&state.file, state.views.file.map(&state.file));
    let fact = |key: &str, value: String| Line::Fact(key.to_owned(), value);
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
        if airy {
            lines.push(Line::Empty);
        }
        lines.push(Line::Head(what));
        lines.extend(table.iter().map(|(name, totals)| Line::Sums(name.clone(), *totals)));
    }
    let metadata = &file.metadata;
    if !metadata.is_empty() {
        lines.extend(airy.then_some(Line::Empty));
        lines.push(Line::Title("metadata"));
    }
    // A hostile file may have very many.
    let rates = state.views.bits.rates(file);
    let said = |key: &str| match key {
        PLAN_KEY => rates.plan.as_ref().map(Plan::line),
        QUALITY_KEY => rates.quality.as_ref().map(Quality::line),
        _ => None,
    };
    let short = |text: &str| text.chars().take(300).collect();
    lines.extend(
        metadata.iter().take(rows + 1).map(|(key, value)| fact(key, short(said(key).as_ref().unwrap_or(value)))),
    );
    lines
}
