//! The heat map: layers by role, a figure in each cell, and its colour.

mod figures;
mod grid;
mod panel;
mod picture;

pub use self::figures::Measure;
pub use self::picture::picture;
use super::speed::Scope;
use super::{Facts, Tab, View, speed, tensor};
use crate::draw::{Canvas, Cursor, HEAD_ROWS, Pen, Scrolled};
use crate::keymap::{Command, VERIFY, around, b};
use crate::model::{FileModel, HeatCell};
use crate::state::State;
use crate::update::{reveal, show, verify, view};

/// Layers by role, in colours.
pub struct Overview;

pub(super) const FACTS: Facts = Facts {
    earlier: "heat",
    words: &[
        ("role", "the name without numbers: what tensors of all layers share"),
        ("bits/w", "stored bits for each weight, scales and tables among them"),
        ("error", "of decoded weights, root mean square, as a part of them"),
    ],
    keys: &[
        b("m", Command::Measure, "colour by the next measure", "measure"),
        b("M", Command::MeasureBack, "colour by the measure before", ""),
        VERIFY,
    ],
    shared: &[Command::Left, Command::Right, Command::Enter, Command::Copy],
    is_home: true,
};

/// The selected cell, the cells that are shown, and their figures.
#[derive(Clone, Debug, Default)]
pub struct OverviewState {
    /// The subject of the colours.
    pub measure: Measure,
    /// Whether the user chose that.
    pub chosen: bool,
    /// The selected row.
    pub row: usize,
    /// The selected column.
    pub column: usize,
    /// The first row that is shown.
    pub top: usize,
    /// The first column that is shown.
    pub left: usize,
}

impl OverviewState {
    /// The beginning of a file's grid: the first measure that it has.
    pub fn new(file: &FileModel) -> Self {
        Self { measure: Measure::all(file)[0], ..Self::default() }
    }

    /// The selected cell, if there is a tensor.
    pub fn selected<'a>(&self, file: &'a FileModel) -> Option<&'a HeatCell> {
        file.heat().cell(self.row, self.column)
    }
}

impl View for Overview {
    fn times(&self, state: &State) -> bool {
        state.views.overview.measure == Measure::Speed
    }

    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        grid::draw(canvas, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        grid::footer(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) {
        let page = grid::page(state);
        let overview = &mut state.views.overview;
        let rows = state.file.heat().rows.len();
        let mut cursor = Cursor { selected: overview.row, offset: 0 };
        if cursor.moved(command, rows, page) {
            overview.row = cursor.selected;
            return;
        }
        match command {
            Command::Left => overview.column = overview.column.saturating_sub(1),
            Command::Right => overview.column += 1,
            Command::Enter => open(state),
            Command::Measure | Command::MeasureBack => {
                let next = around(Measure::all(&state.file), overview.measure, command == Command::MeasureBack);
                colour_by(state, next);
            }
            Command::Verify => verify(state, selected(state)),
            _ => {}
        }
    }

    /// A click selects the cell below it.
    fn click(&self, state: &mut State, x: u16, y: u16) {
        let line = usize::from(y).checked_sub(HEAD_ROWS);
        if let Some((row, column)) = line.and_then(|line| grid::at(state, line, usize::from(x))) {
            (state.views.overview.row, state.views.overview.column) = (row, column);
        }
    }

    fn fit(&self, state: &mut State) {
        grid::fit(state);
    }

    /// The panel shows the tensor of the selected cell: its statistics are computed when it is another one than before.
    fn watch(&self, state: &mut State) {
        if let [tensor] = selected(state)[..]
            && panel::is_shown(state)
            && (state.views.tensor.asked != Some(tensor) || state.known.is_empty())
        {
            tensor::want(state, tensor);
        }
    }

    fn enter(&self, state: &mut State, again: bool) {
        if again {
            return;
        }
        let overview = &mut state.views.overview;
        let heat = state.file.heat();
        let place = state.views.list.current(&state.file).and_then(|tensor| heat.find(tensor));
        let layers = heat.layers;
        if let Some((row, column)) = place {
            overview.row = row;
            overview.column = if row < layers { column } else { overview.column };
        }
        self.resume(state);
    }

    /// Speeds are measured as long as they are looked at.
    fn resume(&self, state: &mut State) {
        if self.times(state) {
            state.views.speed.scope = Scope::File;
            speed::start(state);
        }
    }

    /// The other views are about the tensor of the selected cell.
    fn leave(&self, state: &mut State) {
        let shown = |&i: &usize| state.views.list.shows(&state.file, i) && state.current() != Some(i);
        if let Some(tensor) = selected(state).first().copied().filter(shown) {
            reveal(state, tensor);
        }
    }

    fn selected_name(&self, state: &State) -> Option<String> {
        selected(state).first().map(|&i| state.file.tensors[i].name.clone())
    }
}

/// The tensors of the selected cell.
fn selected(state: &State) -> Vec<usize> {
    state.views.overview.selected(&state.file).map(|c| c.tensors.clone()).unwrap_or_default()
}

/// Colours by something else.
fn colour_by(state: &mut State, measure: Measure) {
    state.views.overview.chosen = true;
    let before = std::mem::replace(&mut state.views.overview.measure, measure);
    match (before == Measure::Speed, measure == Measure::Speed) {
        (false, true) => Overview.resume(state),
        (true, false) => speed::stop(state),
        _ => {}
    }
}

/// The estimates of a checkpoint are there: bits of `int8` are shown, unless they tell tensors apart by nothing or the user chose otherwise.
pub fn settle(state: &mut State) {
    let found = state.encode.would.ready().is_some() && !state.views.overview.chosen;
    if found && !grid::is_flat(state, Measure::WouldBits8) {
        state.views.overview.measure = Measure::WouldBits8;
    }
}

/// Opens the tensor of the selected cell; where there are several, the list of them.
fn open(state: &mut State) {
    match selected(state)[..] {
        [] => state.say("this layer has no such tensor"),
        [one] => show(state, one),
        [first, ..] => {
            reveal(state, first);
            view(state, Tab::List);
        }
    }
}
