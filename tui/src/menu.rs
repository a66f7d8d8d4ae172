//! Lists to choose from, over the view: columns to sort by, and ways to encode.

use crossterm::event::{KeyCode, KeyEvent};

use crate::draw::{Canvas, text};
use crate::effect::Effect;
use crate::encode::{self, Way};
use crate::keymap::Command;
use crate::model::order::Column;
use crate::state::{Overlay, State};
use crate::views::list;

/// A list to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Menu {
    /// The columns to sort by.
    Columns,
    /// The ways to encode a checkpoint.
    Encode,
}

impl Menu {
    /// Its items: the letter that chooses one at once, its name, and what it tells.
    fn items(self) -> Vec<(char, &'static str, &'static str)> {
        match self {
            Self::Columns => Column::ALL.map(|c| (c.letter(), c.name(), c.about())).to_vec(),
            Self::Encode => Way::ALL.map(|w| (w.letter(), w.name(), "")).to_vec(),
        }
    }

    fn choose(self, state: &mut State, at: usize) {
        state.overlay = Overlay::None;
        match self {
            Self::Columns => list::choose(state, Column::ALL[at]),
            Self::Encode => encode::begin(state, Way::ALL[at]),
        }
    }
}

/// Chooses the item of a letter.
pub fn on_key(state: &mut State, key: KeyEvent) {
    let (&Overlay::Menu(menu, _), KeyCode::Char(letter)) = (&state.overlay, key.code) else { return };
    if let Some(at) = menu.items().into_iter().position(|item| item.0 == letter) {
        menu.choose(state, at);
    }
}

/// Does the work of a command in a menu.
pub fn command(state: &mut State, command: Command) {
    let Overlay::Menu(menu, at) = &mut state.overlay else { return };
    match command {
        Command::Up => *at = at.saturating_sub(1),
        Command::Down => *at = (*at + 1).min(menu.items().len() - 1),
        Command::Enter => {
            let (menu, at) = (*menu, *at);
            menu.choose(state, at);
        }
        Command::Quit => state.effects.push(Effect::Quit(0)),
        _ => state.overlay = Overlay::None,
    }
}

/// Draws a menu with the selection at an item.
pub fn draw(canvas: &mut Canvas<'_>, state: &State, menu: Menu, at: usize) {
    let (look, items, sort) = (state.look, menu.items(), state.views.list.sort);
    let (title, bottom, columns, head) = match menu {
        Menu::Columns => {
            let longest = items.iter().map(|item| item.2.len()).max().unwrap_or(0);
            (" Sort by ", " a letter, or Enter; again: the other way round ", longest + 20, 0)
        }
        Menu::Encode => (" Encode ", " a letter, or Enter; q closes ", 62, 1),
    };
    if canvas.height() < 3 || canvas.width() < 8 {
        return;
    }
    let mut inner = canvas.boxed(columns, items.len() + head + 2, title, bottom);
    if menu == Menu::Encode {
        let mut pen = inner.pen(0);
        pen.skip(1).put("to ", look.dim());
        let name = text::file_name(look, &encode::out(state));
        let name = text::cut_middle(look, &name, pen.left().saturating_sub(24).max(8));
        pen.put(&name, look.title()).put(", next to the checkpoint", look.dim());
    }
    let seen = inner.height().saturating_sub(head);
    let first = (at + 1).saturating_sub(seen);
    for (i, (letter, name, about)) in items.into_iter().enumerate().skip(first).take(seen) {
        let mut pen = inner.pen(head + i - first);
        pen.mark(i == at).put(&letter.to_string(), look.title()).skip(2);
        if menu == Menu::Columns {
            let arrow = if name == sort.column.name() { look.order(sort.descending) } else { " " };
            pen.cell(name, 9, look.text()).put(arrow, look.title()).skip(2).cut(about, look.dim());
        } else {
            pen.cut(name, look.text());
        }
    }
}
