//! Plan, measured quality, and bits by role and by layer.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, Tab, View};
use crate::draw::rates as drawn;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;
use crate::update::rates;

/// Plan, quality, and bits by role and layer.
pub struct Bits;

const FACTS: Facts = Facts {
    name: "bits",
    earlier: "rates",
    help: "Bits: plan, quality, bits by role and layer",
    words: &[
        ("KL", "how far answers are from the original's, nats a token"),
        ("trellis", "levels chosen together: worth about 0.15 bits a weight"),
    ],
    keys: &[],
    shared: &[],
    is_home: false,
};

impl View for Bits {
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
        rates::command(state, command);
        Vec::new()
    }

    fn fit(&self, state: &mut State) {
        if state.tab == Tab::Bits {
            rates::fit(state);
        }
    }
}
