//! The list of ways to encode a checkpoint, over the view; and how far an encoding is.

use ratatui::Frame;
use ratatui::layout::Rect;

use super::text;
use super::widgets::{self, Pen, boxed, middle};
use crate::state::State;
use crate::state::encode::Way;
use crate::update::encode::out;

/// Columns of the box at most.
const COLUMNS: u16 = 62;

/// Draws the list.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, at: usize) {
    let look = state.look;
    let columns = COLUMNS.min(area.width);
    let rows = (Way::ALL.len() as u16 + 3).min(area.height);
    if rows < 3 || columns < 8 {
        return;
    }
    let inner =
        boxed(frame.buffer_mut(), look, middle(area, columns, rows), " Encode ", " a letter, or Enter; q closes ");
    let name = text::file_name(look, &out(state));
    let mut pen = Pen::new(frame.buffer_mut(), inner, 0);
    pen.skip(1).put("to ", look.dim());
    let name = text::cut_middle(look, &name, pen.left().saturating_sub(24).max(8));
    pen.put(&name, look.title()).put(", next to the checkpoint", look.dim());
    for (i, way) in Way::ALL.into_iter().enumerate() {
        let mut pen = Pen::new(frame.buffer_mut(), inner, i + 1);
        let style = |s| if i == at { look.selected() } else { s };
        if i == at {
            pen.fill(look.selected());
        }
        pen.put(if i == at { look.sign("▌", ">") } else { " " }, style(look.text()));
        pen.put(&way.letter().to_string(), style(look.title())).skip(2);
        let words = text::cut(look, way.words(), pen.left());
        pen.put(&words, style(look.text()));
    }
}

/// The line above the keys while a checkpoint is encoded.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    let Some((out, progress)) = &state.encode.running else { return };
    let part = progress.done as f64 / progress.total.max(1) as f64;
    let (drawn, rest) = widgets::part(look, part, 20);
    pen.skip(1).put("encoding ", look.warn());
    if pen.left() > 50 {
        pen.put(&drawn, look.bar()).put(&rest, look.dim());
    }
    let words = format!(" {:.0} % to {}", 100.0 * part.clamp(0.0, 1.0), text::file_name(look, out));
    pen.put(&words, look.text());
    let key = state.keys.shown(state.context(), crate::keymap::Command::Encode).unwrap_or("E");
    let words = format!("  {key} gives it up  ");
    pen.put(&words, look.dim());
    let name = text::clean(look, &progress.tensor);
    let name = text::short_name(look, &name, pen.left());
    pen.put(&name, look.dim());
}
