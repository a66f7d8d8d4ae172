//! Keys of the view of the file's map.

use crate::draw::map::height;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::{State, Tab};

/// Keeps the selection on the screen.
pub fn fit(state: &mut State) {
    // The map is not worked out before somebody looks at it.
    if state.tab != Tab::File {
        return;
    }
    let (len, height) = (state.map.map(&state.file).regions.len(), height(state));
    state.map.cursor.fit(len, height);
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let page = height(state).max(1) as isize;
    let len = state.map.map(&state.file).regions.len();
    let cursor = &mut state.map.cursor;
    match command {
        Command::Up => cursor.step(-1, len),
        Command::Down => cursor.step(1, len),
        Command::HalfUp => cursor.step(-(page / 2).max(1), len),
        Command::HalfDown => cursor.step((page / 2).max(1), len),
        Command::PageUp => cursor.step(-page, len),
        Command::PageDown => cursor.step(page, len),
        Command::Top => cursor.step(isize::MIN, len),
        Command::Bottom => cursor.step(isize::MAX, len),
        Command::Enter => {
            if let Some(tensor) = state.map.selected(&state.file).and_then(|r| r.tensor) {
                return super::compare::show(state, tensor);
            }
        }
        _ => {}
    }
    Vec::new()
}
