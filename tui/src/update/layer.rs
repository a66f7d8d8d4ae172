//! Keys of the view of one tensor.

use crate::draw;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;
use crate::stats::{Fetch, StatsEffect};

/// Numbers of bins to choose from.
const BINS: [usize; 14] = [5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200];

/// Keeps the last line at the bottom of the screen.
pub fn fit(state: &mut State) {
    state.layer.scroll = state.layer.scroll.min(draw::layer::scroll_limit(state));
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let page = draw::layer::page_height(state);
    let layer = &mut state.layer;
    if super::scroll(&mut layer.scroll, command, page) {
        return Vec::new();
    }
    match command {
        Command::More => layer.bins = BINS.into_iter().find(|&b| b > layer.bins).unwrap_or(layer.bins),
        Command::Fewer => layer.bins = BINS.into_iter().rev().find(|&b| b < layer.bins).unwrap_or(layer.bins),
        Command::Axis => layer.log = !layer.log,
        Command::Next | Command::Previous => {
            let before = state.current();
            let mut effects = super::layers::command(state, command);
            if state.current() != before {
                effects.extend(enter(state));
            } else {
                let which = if command == Command::Next { "last" } else { "first" };
                state.say(format!("this is the {which} tensor"));
            }
            return effects;
        }
        Command::Verify => {
            if let Some(tensor) = state.current() {
                return super::verify(state, vec![tensor]);
            }
        }
        _ => {}
    }
    Vec::new()
}

/// What the view needs when it is opened, or shows another tensor: its statistics, unless they are there or being computed.
pub fn enter(state: &mut State) -> Vec<Effect> {
    state.current().map_or_else(Vec::new, |tensor| want(state, tensor))
}

/// Has the statistics of a tensor computed, unless they are there or under way.
pub fn want(state: &mut State, tensor: usize) -> Vec<Effect> {
    // Where another tensor was asked for after this one, this one was given up, even if that was not reported yet.
    let same = state.layer.tensor.replace(tensor) == Some(tensor);
    if !same {
        state.layer.scroll = 0;
    }
    let readable = state.file.original().is_some() || state.file.container().is_ok();
    if !readable || state.file.missing(tensor) > 0 {
        return Vec::new();
    }
    let stats = &mut state.known.entry(tensor).or_default().stats;
    match stats {
        Fetch::Ready(_) => return Vec::new(),
        Fetch::Running(_) if same => return Vec::new(),
        _ => *stats = Fetch::Running(0.0),
    }
    vec![Effect::Stats(StatsEffect::Compute { generation: state.generation, tensor })]
}
