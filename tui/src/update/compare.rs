//! Keys of the view of two files.

use crate::draw::compare::height;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::State;
use crate::state::compare::CompareState;
use crate::state::layers::Row;
use crate::views::Tab;

/// Keeps the selection on the screen.
pub fn fit(state: &mut State) {
    let (len, height) = (state.compare.len(), height(state.body_height()));
    state.compare.cursor.fit(len, height);
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let (len, page) = (state.compare.len(), height(state.body_height()));
    if state.compare.cursor.moved(command, len, page) {
        return Vec::new();
    }
    match command {
        Command::Next => next(state, false),
        Command::Previous => next(state, true),
        Command::Differences => only_differences(state),
        Command::Sort => sort(state),
        Command::Enter => return open(state),
        _ => {}
    }
    Vec::new()
}

/// The next row whose values are not the same.
fn next(state: &mut State, back: bool) {
    let compare = &mut state.compare;
    let Some(found) = compare.found.clone() else { return };
    let differs = |&at: &usize| compare.row(at).is_some_and(|r| r.relation.differs());
    let (at, len) = (compare.cursor.selected, compare.len());
    match if back { (0..at.min(len)).rev().find(differs) } else { (at + 1..len).find(differs) } {
        Some(at) => compare.cursor.selected = at,
        None if found.differing == 0 => state.say("the files hold the same values"),
        None => state.say(if back { "this is the first difference" } else { "this is the last difference" }),
    }
}

/// Shows all rows or those that differ, and keeps the selection where it can.
fn only_differences(state: &mut State) {
    again(&mut state.compare, |compare| compare.only_differences ^= true);
}

/// Sorts by the size of the difference, or by name.
fn sort(state: &mut State) {
    again(&mut state.compare, |compare| compare.by_name ^= true);
}

/// Changes which rows are shown and how, and selects the same one, if it is among them.
fn again(compare: &mut CompareState, change: impl Fn(&mut CompareState)) {
    let place = compare.place(compare.cursor.selected);
    change(compare);
    if let Some(place) = place {
        compare.cursor.selected = compare.find(place);
    }
}

/// Opens the selected tensor in the view of one layer.
fn open(state: &mut State) -> Vec<Effect> {
    let Some(row) = state.compare.selected() else { return Vec::new() };
    match row.a {
        Some(side) => show(state, side.tensor),
        None => {
            state.say("only the second file has it");
            Vec::new()
        }
    }
}

/// Selects a tensor in the table of layers, whatever hides it there, and opens it.
pub fn show(state: &mut State, tensor: usize) -> Vec<Effect> {
    reveal(state, tensor);
    crate::update::view(state, Tab::Tensor)
}

/// Selects a tensor in the table of layers, whatever hides it there.
pub fn reveal(state: &mut State, tensor: usize) {
    let Some(info) = state.file.tensors.get(tensor) else { return };
    if state.layers.filter.as_ref().is_some_and(|f| !f.matches(&info.name)) {
        crate::update::filter(state, "");
    }
    let tree = &state.file.tree;
    let mut parent = tree.node_of.get(tensor).and_then(|&n| tree.nodes.get(n)?.parent);
    let mut hidden = false;
    while let Some(node) = parent {
        hidden |= state.layers.folded.remove(&node);
        parent = tree.nodes.get(node).and_then(|n| n.parent);
    }
    if hidden {
        crate::update::rearrange(state);
    }
    state.layers.select(&state.file, Row::Tensor(tensor));
}

/// The name of the selected tensor.
pub fn selected_name(state: &State) -> Option<String> {
    let (row, other) = (state.compare.selected()?, state.other.as_deref()?);
    Some(row.name(&state.file, other).to_owned())
}
