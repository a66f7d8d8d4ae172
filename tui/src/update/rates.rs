//! Keys of the view of plan, quality and rates.

use crate::draw::rates::scroll_limit;
use crate::keymap::Command;
use crate::state::State;

/// Keeps the last line at the bottom of the screen.
pub fn fit(state: &mut State) {
    state.rates.scroll = state.rates.scroll.min(scroll_limit(state));
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) {
    let page = state.body_height();
    super::scroll(&mut state.rates.scroll, command, page);
}
