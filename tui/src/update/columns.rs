//! The list of columns to sort by.

use crossterm::event::{KeyCode, KeyEvent};

use crate::effect::Effect;
use crate::keymap::Command;
use crate::model::order::Column;
use crate::state::{Overlay, State};

/// Opens it, at the column that rows are sorted by.
pub fn open(state: &mut State) {
    let at = Column::ALL.iter().position(|&c| c == state.layers.sort.column).unwrap_or(0);
    state.overlay = Overlay::Columns(at);
}

/// A letter sorts by its column at once.
pub fn on_key(state: &mut State, key: KeyEvent) {
    if let KeyCode::Char(letter) = key.code
        && let Some(column) = Column::ALL.into_iter().find(|c| c.letter() == letter)
    {
        choose(state, column);
    }
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let Overlay::Columns(at) = &mut state.overlay else { return Vec::new() };
    match command {
        Command::Up => *at = at.saturating_sub(1),
        Command::Down => *at = (*at + 1).min(Column::ALL.len() - 1),
        Command::Enter => {
            let column = Column::ALL[*at];
            choose(state, column);
        }
        Command::Quit => return vec![Effect::Quit(0)],
        _ => state.overlay = Overlay::None,
    }
    Vec::new()
}

fn choose(state: &mut State, column: Column) {
    state.overlay = Overlay::None;
    super::layers::choose(state, column);
}
