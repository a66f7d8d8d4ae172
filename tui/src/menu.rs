//! Lists to choose from, over the view: columns to sort by, and ways to encode.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::draw::{Pen, boxed, middle, text};
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
    /// The letters that choose its items at once.
    fn letters(self) -> Vec<char> {
        match self {
            Self::Columns => Column::ALL.map(Column::letter).to_vec(),
            Self::Encode => Way::ALL.map(Way::letter).to_vec(),
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
    if let Some(at) = menu.letters().into_iter().position(|l| l == letter) {
        menu.choose(state, at);
    }
}

/// Does the work of a command in a menu.
pub fn command(state: &mut State, command: Command) {
    let Overlay::Menu(menu, at) = &mut state.overlay else { return };
    match command {
        Command::Up => *at = at.saturating_sub(1),
        Command::Down => *at = (*at + 1).min(menu.letters().len() - 1),
        Command::Enter => {
            let (menu, at) = (*menu, *at);
            menu.choose(state, at);
        }
        Command::Quit => state.effects.push(Effect::Quit(0)),
        _ => state.overlay = Overlay::None,
    }
}

/// Draws a menu with the selection at an item: a letter for each, its name, and what it tells.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State, menu: Menu, at: usize) {
    let look = state.look;
    let (title, bottom, width, head) = match menu {
        Menu::Columns => {
            let longest = Column::ALL.iter().map(|c| c.about().len()).max().unwrap_or(0);
            (" Sort by ", " a letter, or Enter; again: the other way round ", longest + 20, 0)
        }
        Menu::Encode => (" Encode ", " a letter, or Enter; q closes ", 62, 1),
    };
    let letters = menu.letters();
    let columns = width.min(usize::from(area.width)) as u16;
    let rows = (letters.len() + head + 2).min(usize::from(area.height)) as u16;
    if rows < 3 || columns < 8 {
        return;
    }
    let inner = boxed(buffer, look, middle(area, columns, rows), title, bottom);
    if menu == Menu::Encode {
        let mut pen = Pen::new(buffer, inner, 0);
        pen.skip(1).put("to ", look.dim());
        let name = text::file_name(look, &encode::out(state));
        let name = text::cut_middle(look, &name, pen.left().saturating_sub(24).max(8));
        pen.put(&name, look.title()).put(", next to the checkpoint", look.dim());
    }
    let seen = usize::from(inner.height).saturating_sub(head);
    let first = (at + 1).saturating_sub(seen);
    for (i, letter) in letters.into_iter().enumerate().skip(first).take(seen) {
        let mut pen = Pen::new(buffer, inner, head + i - first);
        pen.mark(look, i == at).put(&letter.to_string(), look.title()).skip(2);
        match menu {
            Menu::Columns => {
                let (column, sort) = (Column::ALL[i], state.views.list.sort);
                let arrow = if column == sort.column { look.order(sort.descending) } else { " " };
                pen.cell(column.name(), 9, look.text()).put(arrow, look.title()).skip(2);
                pen.cut(look, column.about(), look.dim());
            }
            Menu::Encode => drop(pen.cut(look, Way::ALL[i].name(), look.text())),
        }
    }
}
