//! The two lines at the bottom: what there is to say, and the keys that matter here.

use ratatui::Frame;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use tui_input::Input;

use super::help::written;
use super::text;
use super::widgets::Pen;
use crate::keymap::{Bound, Command, Context};
use crate::state::{Overlay, State};
use crate::stats::{Fetch, Verdict};
use crate::views::Tab;
use crate::views::list::Row;

/// Draws them.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let look = state.look;
    let mut first = Pen::new(frame.buffer_mut(), area, 0);
    if let Overlay::Search { input, .. } = &state.overlay {
        let column = search(first, state, input);
        if let Some(x) = column.filter(|_| area.height > 0) {
            frame.set_cursor_position(Position { x, y: area.y });
        }
    } else if let Some(notice) = &state.notice {
        let (sign, style) = match notice.error {
            true => (look.sign("✗ ", "! "), look.bad()),
            false => (look.sign("• ", "* "), look.good()),
        };
        message(first, state, sign, &notice.text, style);
    } else if state.encode.running.is_some() {
        crate::encode::footer(first, state);
    } else if let Some(why) = damage(state) {
        message(first, state, look.sign("✗ ", "! "), &why, look.bad());
    } else {
        first.skip(1);
        state.tab.view().footer(first, state);
    }
    keys(Pen::new(frame.buffer_mut(), area, 1), state);
}

fn message(mut pen: Pen<'_>, state: &State, sign: &str, text: &str, style: Style) {
    pen.skip(1).put(sign, style);
    pen.cut(state.look, text, style);
}

/// The damage of the selected tensor.
fn damage(state: &State) -> Option<String> {
    if state.tab != Tab::List {
        return None;
    }
    let Row::Tensor(i) = state.views.list.row()? else { return None };
    let known = state.knows(i);
    match (&known.verdict, &known.stats) {
        (Fetch::Ready(Verdict::Damaged(why)) | Fetch::Failed(why), _) | (_, Fetch::Failed(why)) => Some(why.clone()),
        _ => None,
    }
}

/// The search box; the column of its cursor.
fn search(mut pen: Pen<'_>, state: &State, input: &Input) -> Option<u16> {
    let look = state.look;
    let found = match state.views.list.shown.tensors {
        1 => "1 match".to_owned(),
        n => format!("{} matches", text::count(n as u64)),
    };
    let style = if state.views.list.shown.tensors == 0 { look.warn() } else { look.dim() };
    if pen.left() > 60 {
        pen.at_end("Enter keep, Esc back", look.dim());
    }
    if pen.left() > 30 {
        pen.at_end(&found, style);
    }
    pen.skip(1).put("/", look.title());
    // The part around the cursor, which has a column of its own behind the text.
    let room = pen.left().checked_sub(1)?;
    let before = text::clean(look, input.value().get(..byte_of(input))?);
    let after = text::clean(look, input.value().get(byte_of(input)..)?);
    let before = text::end(&before, room);
    pen.put(before, look.text());
    let column = pen.column();
    pen.put(text::start(&after, room - text::width(before)), look.text());
    Some(column)
}

fn byte_of(input: &Input) -> usize {
    input.value().char_indices().nth(input.cursor()).map_or(input.value().len(), |(at, _)| at)
}

/// The name of the tensor that a view is about.
pub fn tensor(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    if let Some(i) = state.current() {
        would(&mut pen, state, i);
        pen.short(look, &state.file.tensors[i].name, look.dim());
    }
}

/// Writes the estimates of a tensor of a checkpoint at the end of the line.
pub fn would(pen: &mut Pen<'_>, state: &State, tensor: usize) {
    let look = state.look;
    pen.at_end(&state.encode.sampling(), look.warn());
    if let Some(w) = state.would(tensor) {
        let words = format!(
            "would be: int8 {:.2} bits/w, error {:.3}; 4 bits {:.2}, error {:.3}",
            w.int8_bits, w.int8_error, w.rate_bits, w.rate_error
        );
        pen.at_end(&words, look.good());
    }
}

fn keys(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    let context = state.context();
    let key = look.title();
    pen.skip(1);
    if context == Context::Search {
        for (k, word) in [("Enter", "keep"), ("Esc", "back"), (look.sign("↑ ↓", "Up Down"), "move")] {
            pen.put(k, key).put(" ", look.dim()).put(word, look.dim()).skip(2);
        }
        return;
    }
    // These two are always there, at the end of the line.
    let last = |b: &&Bound| matches!(b.command, Command::Help | Command::Back);
    let counts = |b: &&Bound| b.counts(context) && !b.footer.is_empty() && !b.shown.is_empty();
    let quits = state.tab == state.home && state.views.list.filter.is_none() && matches!(state.overlay, Overlay::None);
    let shown = |b: &Bound| {
        let k = written(look, b.shown.split(' ').next().unwrap_or(&b.shown));
        (k, if quits && b.command == Command::Back { "quit" } else { b.footer })
    };
    let always: Vec<_> = state.keys.bindings.iter().filter(counts).filter(last).map(shown).collect();
    let reserved: usize = always.iter().map(|(k, word)| k.len() + word.len() + 3).sum::<usize>().saturating_sub(2);
    for (k, word) in state.keys.bindings.iter().filter(counts).filter(|b| !last(b)).map(shown) {
        if text::width(&k) + word.len() + 3 + reserved > pen.left() {
            break;
        }
        pen.put(&k, key).put(" ", look.dim()).put(word, look.text()).skip(2);
    }
    for (k, word) in always {
        pen.put(&k, key).put(" ", look.dim()).put(word, look.text()).skip(2);
    }
}
