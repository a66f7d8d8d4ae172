//! The view of one tensor: facts and segments, histograms, and how far its values are from those of the reference.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, Tab, View};
use crate::draw::footer;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::{VERIFY, b, c};
use crate::state::State;
use crate::update::layer;

/// One tensor.
pub struct Tensor;

const FACTS: Facts = Facts {
    name: "tensor",
    earlier: "layer",
    help: "Tensor: one of them, with histograms and hashes",
    words: &[
        ("scale", "what a symbol is multiplied with; a row of weights shares one"),
        ("chunk", "what is decoded independently of all others"),
        ("side", "signs and low bits, stored as they are"),
        ("pair", "a layout: two symbols are coded as one, their low bits aside"),
        ("quad", "a layout: four symbols are coded as one, their low bits aside"),
    ],
    keys: &[
        VERIFY,
        b(&[c('+'), c('=')], "+", Command::More, "more bins", "bins"),
        b(&[c('-')], "-", Command::Fewer, "fewer bins", ""),
        b(&[c('a')], "a", Command::Axis, "logarithmic or linear axis of scales", "axis"),
    ],
    shared: &[Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

impl View for Tensor {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        crate::draw::layer::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::tensor(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        layer::command(state, command)
    }

    fn fit(&self, state: &mut State) {
        if state.tab == Tab::Tensor {
            layer::fit(state);
        }
    }

    /// Statistics that failed are asked for again.
    fn enter(&self, state: &mut State, _again: bool) -> Vec<Effect> {
        self.resume(state)
    }

    fn resume(&self, state: &mut State) -> Vec<Effect> {
        layer::enter(state)
    }
}
