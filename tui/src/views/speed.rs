//! Timings of decoding, on the CPU and on GPUs.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, View};
use crate::draw::footer;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::{b, c};
use crate::state::State;
use crate::update::timing;

/// Decode timings.
pub struct Speed;

const FACTS: Facts = Facts {
    name: "speed",
    earlier: "timing",
    help: "Speed: how fast it decodes here",
    words: &[
        ("round", "every chosen tensor decoded once"),
        ("p50, p95", "half, or 95 %, of the last rounds took no longer"),
    ],
    keys: &[
        b(&[c('s')], "s", Command::Sort, "sort by time, by GB/s, by size or by name", "sort"),
        b(&[c(' ')], "Space", Command::Pause, "pause or go on", "pause"),
        b(&[c('+'), c('=')], "+", Command::More, "more threads", "threads"),
        b(&[c('-')], "-", Command::Fewer, "fewer threads", ""),
        b(&[c('D')], "D", Command::Device, "the next device", "device"),
        b(&[c('m')], "m", Command::Scope, "time the whole file, the layer or its module", "scope"),
        b(&[c('x')], "x", Command::Export, "write the timings to a JSON file", "export"),
    ],
    shared: &[Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

impl View for Speed {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn times(&self, _state: &State) -> bool {
        true
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        crate::draw::timing::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::tensor(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        timing::command(state, command)
    }

    fn fit(&self, state: &mut State) {
        timing::fit(state);
    }

    fn resume(&self, state: &mut State) -> Vec<Effect> {
        timing::enter(state)
    }
}
