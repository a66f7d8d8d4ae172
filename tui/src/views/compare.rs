//! Two files side by side.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, View};
use crate::draw::compare as drawn;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::{b, c};
use crate::state::State;
use crate::update::compare;

/// Two files.
pub struct Compare;

const FACTS: Facts = Facts {
    name: "compare",
    earlier: "compare",
    help: "Compare: two files side by side",
    words: &[
        ("recoded", "other bytes that decode to the same values"),
        ("tied", "another name for a tensor: it stores nothing itself"),
    ],
    keys: &[
        b(&[c('s')], "s", Command::Sort, "sort by size of the difference, or by name", "sort"),
        b(&[c('o')], "o", Command::Differences, "only tensors with other values, or all", "only differences"),
    ],
    shared: &[Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

impl View for Compare {
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
        compare::command(state, command)
    }

    fn fit(&self, state: &mut State) {
        compare::fit(state);
    }

    fn selected_name(&self, state: &State) -> Option<String> {
        compare::selected_name(state)
    }
}
