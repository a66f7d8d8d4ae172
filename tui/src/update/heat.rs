//! Keys of the heat map.

use crate::draw::heat as drawn;
use crate::draw::scroll::Cursor;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;
use crate::state::heat::Measure;
use crate::views::Tab;
use crate::views::speed::Scope;

/// Keeps the selection within the grid, and on the screen.
pub fn fit(state: &mut State) {
    let heat = state.heat.heat(&state.file);
    let (rows, columns) = (heat.rows.len(), heat.columns.len());
    state.heat.row = state.heat.row.min(rows.saturating_sub(1));
    state.heat.column = state.heat.column.min(columns.saturating_sub(1));
    (state.heat.top, state.heat.left) = drawn::fit(state);
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let rows = state.heat.heat(&state.file).rows.len();
    let mut cursor = Cursor { selected: state.heat.row, offset: 0 };
    if cursor.moved(command, rows, drawn::page(state)) {
        state.heat.row = cursor.selected;
        return Vec::new();
    }
    match command {
        Command::Left => state.heat.column = state.heat.column.saturating_sub(1),
        Command::Right => state.heat.column += 1,
        Command::Enter => return open(state),
        Command::Measure | Command::MeasureBack => {
            return measure(state, state.heat.measure.next(&state.file, command == Command::MeasureBack));
        }
        Command::Verify => {
            let tensors = state.heat.selected(&state.file).map(|c| c.tensors.clone()).unwrap_or_default();
            return super::verify(state, tensors);
        }
        _ => {}
    }
    Vec::new()
}

/// Colours by something else. Speeds are measured as long as they are looked at.
pub fn measure(state: &mut State, measure: Measure) -> Vec<Effect> {
    state.heat.chosen = true;
    let before = std::mem::replace(&mut state.heat.measure, measure);
    match (before == Measure::Speed, measure == Measure::Speed) {
        (false, true) => enter(state),
        (true, false) => crate::views::speed::stop(state),
        _ => Vec::new(),
    }
}

/// The heat map is opened: it goes on with its measurements.
pub fn enter(state: &mut State) -> Vec<Effect> {
    if state.heat.measure != Measure::Speed {
        return Vec::new();
    }
    state.views.speed.scope = Scope::File;
    crate::views::speed::start(state)
}

/// The estimates of a checkpoint are there: bits of `int8` are shown, unless they tell tensors apart by nothing or the user chose otherwise.
pub fn settle(state: &mut State) {
    let found = state.encode.would.ready().is_some() && !state.heat.chosen;
    if found && !drawn::is_flat(state, Measure::WouldBits8) {
        state.heat.measure = Measure::WouldBits8;
    }
}

/// The panel shows the tensor of the selected cell: its statistics are computed when it is another one than before.
pub fn watch(state: &mut State) -> Vec<Effect> {
    if !drawn::has_panel(state.size.0) {
        return Vec::new();
    }
    match state.heat.selected(&state.file).map(|c| &c.tensors[..]) {
        Some(&[tensor]) if state.views.tensor.asked != Some(tensor) || state.known.is_empty() => {
            crate::views::tensor::want(state, tensor)
        }
        _ => Vec::new(),
    }
}

/// Selects the cell of a tensor.
pub fn select(state: &mut State, tensor: usize) {
    if let Some((row, column)) = state.heat.heat(&state.file).find(tensor) {
        state.heat.row = row;
        if row < state.heat.heat(&state.file).layers {
            state.heat.column = column;
        }
    }
}

/// Opens the tensor of the selected cell; where there are several, the list of them.
fn open(state: &mut State) -> Vec<Effect> {
    let tensors = state.heat.selected(&state.file).map(|c| c.tensors.clone()).unwrap_or_default();
    match tensors[..] {
        [] => {
            state.say("this layer has no such tensor");
            Vec::new()
        }
        [one] => super::show(state, one),
        [first, ..] => {
            super::reveal(state, first);
            super::view(state, Tab::List)
        }
    }
}

/// A click selects the cell below it.
pub fn click(state: &mut State, x: u16, y: u16) {
    let line = usize::from(y).checked_sub(crate::draw::HEAD_ROWS);
    if let Some((row, column)) = line.and_then(|line| drawn::at(state, line, usize::from(x))) {
        state.heat.row = row;
        state.heat.column = column;
    }
}
