//! The list of columns to sort by, over the view.

use ratatui::Frame;
use ratatui::layout::Rect;

use super::text;
use super::widgets::{Pen, boxed, middle};
use crate::model::order::Column;
use crate::state::State;

/// Draws it: a letter for each column, its name, and what it tells.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, at: usize) {
    let look = state.look;
    let longest = Column::ALL.iter().map(|&c| c.means().len()).max().unwrap_or(0);
    let columns = (longest + 20).min(usize::from(area.width)) as u16;
    let rows = (Column::ALL.len() + 2).min(usize::from(area.height)) as u16;
    if rows < 3 || columns < 8 {
        return;
    }
    let inner = boxed(
        frame.buffer_mut(),
        look,
        middle(area, columns, rows),
        " Sort by ",
        " a letter, or Enter; again: the other way round ",
    );
    let seen = usize::from(inner.height);
    let first = (at + 1).saturating_sub(seen);
    for (i, column) in Column::ALL.into_iter().enumerate().skip(first).take(seen) {
        let mut pen = Pen::new(frame.buffer_mut(), inner, i - first);
        let style = |s| if i == at { look.selected() } else { s };
        if i == at {
            pen.fill(look.selected());
        }
        let now = column == state.views.list.sort.column;
        let arrow = match (now, state.views.list.sort.descending) {
            (false, _) => " ",
            (true, true) => look.sign("▼", "v"),
            (true, false) => look.sign("▲", "^"),
        };
        pen.put(if i == at { look.sign("▌", ">") } else { " " }, style(look.text()));
        pen.put(&column.letter().to_string(), style(look.title())).skip(2);
        pen.cell(column.name(), 9, style(look.text())).put(arrow, style(look.title())).skip(2);
        let means = text::cut(look, column.means(), pen.left());
        pen.put(&means, style(look.dim()));
    }
}
