//! The view of all tensors: which rows there are, and which is selected.

use std::collections::HashSet;

use super::list::Cursor;
use crate::model::FileModel;
use crate::model::filter::Filter;
use crate::model::order::{self, Column, Sort};
use crate::model::totals::Totals;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// A module: a node of the tree.
    Group(usize),
    /// A tensor, by its place in the file.
    Tensor(usize),
}

/// The table of all tensors.
#[derive(Clone, Debug, Default)]
pub struct LayersState {
    /// Whether modules are shown, which needs the natural order.
    pub tree: bool,
    /// The order.
    pub sort: Sort,
    /// Which tensors are shown; all if there is none.
    pub filter: Option<Filter>,
    /// Modules whose contents are hidden: nodes of the tree.
    pub folded: HashSet<usize>,
    /// The rows, as the order, the filter and the folding leave them.
    pub rows: Vec<Row>,
    /// Sums over the tensors that the filter leaves, folded ones among them.
    pub shown: Totals,
    /// The selected row.
    pub cursor: Cursor,
    /// Columns that are scrolled out to the left.
    pub scroll: usize,
}

impl LayersState {
    /// All tensors, in a tree.
    pub fn new(file: &FileModel) -> Self {
        let mut state = Self { tree: true, ..Self::default() };
        state.arrange(file, |_| None);
        state
    }

    /// Whether rows are in a tree now.
    pub fn is_tree(&self) -> bool {
        self.tree && self.sort == Sort::default()
    }

    /// Works out the rows anew, and keeps what is selected where it can.
    pub fn arrange(&mut self, file: &FileModel, entropy: impl Fn(usize) -> Option<f64>) {
        let before = self.rows.get(self.cursor.selected).copied();
        let shown = |i: usize| self.filter.as_ref().is_none_or(|f| f.matches(&file.tensors[i].name));
        let wanted: Vec<bool> = (0..file.tensors.len()).map(shown).collect();
        self.shown = Totals::of(file.tensors.iter().zip(&wanted).filter(|(_, w)| **w).map(|(t, _)| t));
        self.rows.clear();
        if self.is_tree() {
            // How many wanted tensors come before each node, to know whether a module has some.
            let mut before_node = Vec::with_capacity(file.tree.nodes.len() + 1);
            let mut count = 0usize;
            for node in &file.tree.nodes {
                before_node.push(count);
                count += usize::from(node.tensor.is_some_and(|i| wanted[i]));
            }
            before_node.push(count);
            let mut at = 0;
            while at < file.tree.nodes.len() {
                let node = &file.tree.nodes[at];
                match node.tensor {
                    Some(i) => {
                        if wanted[i] {
                            self.rows.push(Row::Tensor(i));
                        }
                        at += 1;
                    }
                    None if before_node[at] == before_node[node.end] => at = node.end,
                    None => {
                        self.rows.push(Row::Group(at));
                        // Who looks for something sees it.
                        at = if self.folded.contains(&at) && self.filter.is_none() { node.end } else { at + 1 };
                    }
                }
            }
        } else {
            let mut tensors: Vec<usize> = file.natural.iter().copied().filter(|&i| wanted[i]).collect();
            if self.sort != Sort::default() {
                order::sort(&file.tensors, &mut tensors, self.sort, entropy);
            }
            self.rows.extend(tensors.into_iter().map(Row::Tensor));
        }
        if let Some(row) = before {
            self.select(file, row);
        }
    }

    /// Selects a row, or the module that hides it.
    pub fn select(&mut self, file: &FileModel, row: Row) {
        let mut node = match row {
            Row::Group(node) => Some(node),
            Row::Tensor(i) => file.tree.node_of.get(i).copied(),
        };
        if let Some(at) = self.rows.iter().position(|&r| r == row) {
            self.cursor.selected = at;
            return;
        }
        while let Some(at) = node {
            if let Some(found) = self.rows.iter().position(|&r| r == Row::Group(at)) {
                self.cursor.selected = found;
                return;
            }
            node = file.tree.nodes.get(at).and_then(|n| n.parent);
        }
    }

    /// The selected row.
    pub fn row(&self) -> Option<Row> {
        self.rows.get(self.cursor.selected).copied()
    }

    /// The selected tensor, or the first one of the selected module.
    pub fn current(&self, file: &FileModel) -> Option<usize> {
        match self.row()? {
            Row::Tensor(i) => Some(i),
            Row::Group(node) => {
                let node_of = &file.tree.nodes[node];
                let tensors = file.tree.nodes[node..node_of.end].iter().filter_map(|n| n.tensor);
                let mut shown =
                    tensors.filter(|&i| self.filter.as_ref().is_none_or(|f| f.matches(&file.tensors[i].name)));
                shown.next()
            }
        }
    }

    /// Tensors that a row stands for: one, or all of a module that the filter leaves.
    pub fn tensors_of(&self, file: &FileModel, row: Row) -> Vec<usize> {
        match row {
            Row::Tensor(i) => vec![i],
            Row::Group(node) => {
                let end = file.tree.nodes[node].end;
                let all = file.tree.nodes[node..end].iter().filter_map(|n| n.tensor);
                all.filter(|&i| self.filter.as_ref().is_none_or(|f| f.matches(&file.tensors[i].name))).collect()
            }
        }
    }

    /// The column that the rows are sorted by.
    pub fn column(&self) -> Column {
        self.sort.column
    }
}
