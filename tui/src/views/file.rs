//! The map of the file.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, Tab, View};
use crate::draw::map as drawn;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;
use crate::update::map;

/// The file's map.
pub struct File;

const FACTS: Facts = Facts {
    name: "file",
    earlier: "file",
    help: "File: its map",
    words: &[
        ("data", "coded symbols"),
        ("side", "signs and low bits, stored as they are"),
        ("offsets", "where chunks begin"),
        ("tables", "frequencies of symbols, which the decoder needs"),
    ],
    keys: &[],
    shared: &[Command::Enter],
    is_home: false,
};

impl View for File {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        drawn::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        drawn::footer(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        map::command(state, command)
    }

    fn fit(&self, state: &mut State) {
        // The map is not worked out before somebody looks at it.
        if state.tab == Tab::File {
            map::fit(state);
        }
    }
}
