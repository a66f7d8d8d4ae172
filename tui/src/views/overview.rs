//! The heat map: layers by role.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, Tab, View};
use crate::draw::heat as drawn;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::{VERIFY, b, c};
use crate::state::State;
use crate::state::heat::Measure;
use crate::update::{heat, reveal};

/// Layers by role, in colours.
pub struct Overview;

const FACTS: Facts = Facts {
    name: "overview",
    earlier: "heat",
    help: "Overview: layers by role, and where the bits go",
    words: &[
        ("role", "the name without numbers: what tensors of all layers share"),
        ("bits/w", "stored bits for each weight, scales and tables among them"),
        ("error", "of decoded weights, root mean square, as a part of them"),
    ],
    keys: &[
        b(&[c('m')], "m", Command::Measure, "colour by the next measure", "measure"),
        b(&[c('M')], "M", Command::MeasureBack, "colour by the measure before", ""),
        VERIFY,
    ],
    shared: &[Command::Left, Command::Right, Command::Enter, Command::Copy],
    is_home: true,
};

impl View for Overview {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn times(&self, state: &State) -> bool {
        state.heat.measure == Measure::Speed
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        drawn::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        drawn::footer(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        heat::command(state, command)
    }

    fn click(&self, state: &mut State, x: u16, y: u16) {
        heat::click(state, x, y);
    }

    fn fit(&self, state: &mut State) {
        // The grid is not worked out before somebody looks at it.
        if state.tab == Tab::Overview {
            heat::fit(state);
        }
    }

    fn watch(&self, state: &mut State) -> Vec<Effect> {
        heat::watch(state)
    }

    fn enter(&self, state: &mut State, again: bool) -> Vec<Effect> {
        if again {
            return Vec::new();
        }
        if let Some(tensor) = state.current() {
            heat::select(state, tensor);
        }
        self.resume(state)
    }

    fn resume(&self, state: &mut State) -> Vec<Effect> {
        heat::enter(state)
    }

    /// The other views are about the tensor of the selected cell.
    fn leave(&self, state: &mut State) {
        let tensor = state.heat.selected(&state.file).and_then(|c| c.tensors.first().copied());
        let shown = |i: usize| state.views.list.filter.as_ref().is_none_or(|f| f.matches(&state.file.tensors[i].name));
        if let Some(tensor) = tensor.filter(|&i| shown(i) && state.current() != Some(i)) {
            reveal(state, tensor);
        }
    }

    fn selected_name(&self, state: &State) -> Option<String> {
        let cell = state.heat.selected(&state.file)?;
        cell.tensors.first().map(|&i| state.file.tensors[i].name.clone())
    }
}
