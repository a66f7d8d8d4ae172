//! The two lines at the bottom: what there is to say, and the keys that matter here.

use tui_input::Input;

use super::help::written;
use super::{Canvas, Pen, Style, text};
use crate::encode;
use crate::keymap::{Bound, Command, Context};
use crate::state::{Notice, Overlay, State};
use crate::stats::{Fetch, Verdict};
use crate::views::Tab;
use crate::views::list::Row;

/// Draws them; the column of the search box's cursor.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) -> Option<u16> {
    let look = state.look;
    let is_seen = canvas.height() > 0;
    keys(canvas.pen(1), state);
    let mut first = canvas.pen(0);
    if let Overlay::Search { input, .. } = &state.overlay {
        return search(first, state, input).filter(|_| is_seen);
    }
    first.skip(1);
    let is_encoding = state.encode.running.is_some();
    match state.notice.clone().or_else(|| damage(state).filter(|_| !is_encoding)) {
        Some(Notice { text, error: true }) => drop(first.put(look.sign("✗ ", "! "), look.bad()).cut(&text, look.bad())),
        Some(Notice { text, .. }) => drop(first.put(look.sign("• ", "* "), look.good()).cut(&text, look.good())),
        None if is_encoding => encode::footer(first, state),
        None => state.tab.view().footer(first, state),
    }
    None
}

/// The damage of the selected tensor.
fn damage(state: &State) -> Option<Notice> {
    if state.tab != Tab::List {
        return None;
    }
    let Row::Tensor(i) = state.views.list.row()? else { return None };
    let known = state.knows(i);
    match (&known.verdict, &known.stats) {
        (Fetch::Ready(Verdict::Damaged(why)) | Fetch::Failed(why), _) | (_, Fetch::Failed(why)) => {
            Some(Notice { text: why.clone(), error: true })
        }
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
    let cursor = input.value().char_indices().nth(input.cursor()).map_or(input.value().len(), |(at, _)| at);
    let (before, after) = input.value().split_at(cursor);
    let (before, after) = (text::clean(look, before), text::clean(look, after));
    let before = text::end(&before, room);
    pen.put(before, look.text());
    let column = pen.column();
    pen.put(text::start(&after, room - text::width(before)), look.text());
    Some(column)
}

/// The name of the tensor that a view is about.
pub fn tensor(mut pen: Pen<'_>, state: &State) {
    if let Some(i) = state.current() {
        would(&mut pen, state, i);
        pen.short(&state.file.tensors[i].name, state.look.dim());
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
    let (look, context) = (state.look, state.context());
    pen.skip(1);
    let put = |pen: &mut Pen<'_>, key: &str, word: &str, style: Style| {
        pen.put(key, look.title()).put(" ", look.dim()).put(word, style).skip(2);
    };
    if context == Context::Search {
        for (key, word) in [("Enter", "keep"), ("Esc", "back"), (look.sign("↑ ↓", "Up Down"), "move")] {
            put(&mut pen, key, word, look.dim());
        }
        return;
    }
    let counts = |b: &&Bound| b.counts(context) && !b.footer.is_empty() && !b.shown.is_empty();
    let quits = state.tab == state.home && state.views.list.filter.is_none() && matches!(state.overlay, Overlay::None);
    let shown = |b: &Bound| {
        let key = written(look, b.shown.split(' ').next().unwrap_or(&b.shown));
        (key, if quits && b.command == Command::Back { "quit" } else { b.footer })
    };
    // These two are always there, at the end of the line.
    let is_last = |b: &&Bound| matches!(b.command, Command::Help | Command::Back);
    let (last, others): (Vec<_>, Vec<_>) = state.keys.bindings.iter().filter(counts).partition(is_last);
    let needs = |(key, word): &(String, &str)| text::width(key) + word.len() + 3;
    let reserved = last.iter().map(|b| needs(&shown(b))).sum::<usize>().saturating_sub(2);
    for hint in others.into_iter().map(shown) {
        if needs(&hint) + reserved > pen.left() {
            break;
        }
        put(&mut pen, &hint.0, hint.1, look.text());
    }
    for (key, word) in last.into_iter().map(shown) {
        put(&mut pen, &key, word, look.text());
    }
}
