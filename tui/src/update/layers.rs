//! Keys of the view of all tensors.

use crate::draw::HEAD_ROWS;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::model::order::{Column, Sort};
use crate::state::State;
use crate::state::layers::Row;
use crate::stats::StatsEffect;
use crate::update::rearrange;
use crate::views::Tab;

/// Rows of the table without its head and the line of totals.
pub fn height(state: &State) -> usize {
    state.body_height().saturating_sub(2)
}

/// Keeps the selection on the screen.
pub fn fit(state: &mut State) {
    let (len, height) = (state.layers.rows.len(), height(state));
    state.layers.cursor.fit(len, height);
    state.layers.scroll = state.layers.scroll.min(crate::draw::layers::most_scroll(state));
}

/// Does what a key asks for.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let (len, page) = (state.layers.rows.len(), height(state));
    if state.layers.cursor.moved(command, len, page) {
        return Vec::new();
    }
    match command {
        Command::Next | Command::Previous => next(state, command == Command::Previous),
        Command::Left => left(state),
        Command::Right => right(state),
        Command::Enter => match state.layers.row() {
            Some(Row::Group(node)) => fold(state, node),
            Some(Row::Tensor(_)) => return crate::update::view(state, Tab::Tensor),
            None => {}
        },
        Command::Fold => {
            if let Some(node) = group(state) {
                fold(state, node);
            }
        }
        Command::FoldAll => {
            let layers = &mut state.layers;
            if layers.folded.is_empty() {
                let nodes = state.file.tree.nodes.iter().enumerate();
                layers.folded = nodes.filter(|(_, n)| n.tensor.is_none()).map(|(i, _)| i).collect();
            } else {
                layers.folded.clear();
            }
            rearrange(state);
        }
        Command::Tree => {
            let layers = &mut state.layers;
            // In another order there is no tree to turn off: the key turns it on.
            layers.tree = !layers.is_tree();
            layers.sort = Sort::default();
            rearrange(state);
        }
        Command::Sort => sort(state, state.layers.sort.column.next(false)),
        Command::Bars => state.layers.bars = state.layers.bars.next(),
        Command::Reverse => {
            state.layers.sort.descending ^= true;
            rearrange(state);
        }
        Command::Entropies => {
            let wanted = |i: &usize| state.entropy(*i).is_none() && state.file.tensors[*i].makes_symbols;
            let tensors: Vec<usize> = (0..state.file.tensors.len()).filter(wanted).collect();
            if tensors.is_empty() || state.file.original().is_some() {
                state.say("all entropies are known");
            } else {
                let generation = state.generation;
                return vec![Effect::Stats(StatsEffect::Entropies { generation, tensors })];
            }
        }
        Command::Verify => {
            let Some(row) = state.layers.row() else { return Vec::new() };
            let tensors = state.layers.tensors_of(&state.file, row);
            return super::verify(state, tensors);
        }
        _ => {}
    }
    Vec::new()
}

/// Sorts by a column, the most interesting rows first.
pub fn sort(state: &mut State, column: Column) {
    state.layers.sort = Sort { column, descending: column.descends() };
    rearrange(state);
    state.layers.cursor = Default::default();
}

/// Sorts by a column; by the one that it is sorted by already, the other way round.
pub fn choose(state: &mut State, column: Column) {
    if state.layers.sort.column == column && column != Column::Name {
        state.layers.sort.descending ^= true;
        rearrange(state);
    } else {
        sort(state, column);
    }
}

/// The next tensor, past modules.
fn next(state: &mut State, back: bool) {
    let (rows, at) = (&state.layers.rows, state.layers.cursor.selected);
    let is_tensor = |i: &usize| matches!(rows.get(*i), Some(Row::Tensor(_)));
    let found = if back { (0..at.min(rows.len())).rev().find(is_tensor) } else { (at + 1..rows.len()).find(is_tensor) };
    if let Some(found) = found {
        state.layers.cursor.selected = found;
    }
}

/// The module that is selected, or that the selected tensor is in.
fn group(state: &State) -> Option<usize> {
    if !state.layers.is_tree() {
        return None;
    }
    match state.layers.row()? {
        Row::Group(node) => Some(node),
        Row::Tensor(i) => state.file.tree.nodes[state.file.tree.node_of[i]].parent,
    }
}

fn fold(state: &mut State, node: usize) {
    let layers = &mut state.layers;
    if !layers.folded.remove(&node) {
        layers.folded.insert(node);
        layers.select(&state.file, Row::Group(node));
    }
    rearrange(state);
}

/// Columns back, or the module folded, or its parent selected.
fn left(state: &mut State) {
    if state.layers.scroll > 0 {
        state.layers.scroll -= 1;
        return;
    }
    let Some(row) = state.layers.row().filter(|_| state.layers.is_tree()) else { return };
    match row {
        Row::Group(node) if !state.layers.folded.contains(&node) => fold(state, node),
        Row::Group(node) => {
            if let Some(parent) = state.file.tree.nodes[node].parent {
                state.layers.select(&state.file, Row::Group(parent));
            }
        }
        Row::Tensor(_) => {
            if let Some(parent) = group(state) {
                state.layers.select(&state.file, Row::Group(parent));
            }
        }
    }
}

/// The module unfolded, or columns on.
fn right(state: &mut State) {
    match state.layers.row() {
        Some(Row::Group(node)) if state.layers.folded.contains(&node) => fold(state, node),
        _ => state.layers.scroll += 1,
    }
}

/// Selects what is at a row of the screen; the head of a column sorts by it.
pub fn click(state: &mut State, x: u16, row: u16) {
    let first = HEAD_ROWS + 1;
    if usize::from(row) == HEAD_ROWS && state.body_height() > 1 {
        if let Some(column) = crate::draw::layers::column_at(state, usize::from(x)) {
            choose(state, column);
        }
        return;
    }
    if let Some(at) = usize::from(row).checked_sub(first)
        && at < height(state)
        && state.layers.cursor.offset + at < state.layers.rows.len()
    {
        state.layers.cursor.selected = state.layers.cursor.offset + at;
    }
}
