//! Keys of the view of the file's map.

use crate::draw::map::height;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;

/// Keeps the selection on the screen.
pub fn fit(state: &mut State) {
    let (len, height) = (state.map.map(&state.file).regions.len(), height(state));
    state.map.cursor.fit(len, height);
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let (len, page) = (state.map.map(&state.file).regions.len(), height(state));
    if state.map.cursor.moved(command, len, page) {
        return Vec::new();
    }
    if command == Command::Enter
        && let Some(tensor) = state.map.selected(&state.file).and_then(|r| r.tensor)
    {
        return super::show(state, tensor);
    }
    Vec::new()
}
