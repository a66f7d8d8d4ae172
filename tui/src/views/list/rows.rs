//! The view of all tensors: which rows there are, and which is selected.

use std::collections::HashSet;

use crate::draw::Cursor;
use crate::model::tree::{Node, Tree};
use crate::model::{FileModel, Filter, Sort, Totals, order};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// A module: a node of the tree.
    Group(usize),
    /// A tensor, by its place in the file.
    Tensor(usize),
}

worded! {
    /// The subject of the table's bars.
    #[derive(Default)]
    Bars {
        #[default]
        Ratio = "ratio", "ratios, from the smallest to the largest that is listed";
        Share = "share", "parts of the stored bytes";
    }
}

/// The table of all tensors.
#[derive(Clone, Debug, Default)]
pub struct ListState {
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
    /// The tree of the tensors that the filter leaves, in which modules of which one thing is left are one with it.
    filtered: Option<Tree>,
    /// The nodes of the rows in the tree that is shown.
    nodes: Vec<usize>,
    /// The subject of the bars.
    pub bars: Bars,
    /// Sums over the tensors that the filter leaves, folded ones among them.
    pub shown: Totals,
    /// The selected row.
    pub cursor: Cursor,
    /// Columns that are scrolled out to the left.
    pub scroll: usize,
}

impl ListState {
    /// All tensors, in a tree.
    pub fn new(file: &FileModel) -> Self {
        // Without encoding, ratios are 1 everywhere.
        let bars = if file.original().is_some() { Bars::Share } else { Bars::Ratio };
        let mut state = Self { tree: true, bars, ..Self::default() };
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
        let mut wanted: Vec<usize> = file.natural.iter().copied().filter(|&i| self.shows(file, i)).collect();
        self.shown = Totals::of(wanted.iter().map(|&i| &file.tensors[i]));
        self.rows.clear();
        self.nodes.clear();
        if self.is_tree() {
            self.filtered = self.filter.as_ref().map(|_| Tree::new(&file.tensors, &wanted));
            let tree = self.filtered.as_ref().unwrap_or(&file.tree);
            let mut at = 0;
            while let Some(node) = tree.nodes.get(at) {
                // A module is told by its node in the tree of all tensors.
                let mut inside = tree.nodes[at..node.end].iter().filter_map(|n| n.tensor);
                let ends = inside.next().map(|first| (first, inside.next_back().unwrap_or(first)));
                let module = || ends.and_then(|(first, last)| file.tree.module_of(first, last)).unwrap_or(at);
                let row = node.tensor.map_or_else(|| Row::Group(module()), Row::Tensor);
                self.rows.push(row);
                self.nodes.push(at);
                // A filter shows folded tensors, too.
                let is_folded = self.filter.is_none() && matches!(row, Row::Group(node) if self.folded.contains(&node));
                at = if is_folded { node.end } else { at + 1 };
            }
        } else {
            if self.sort != Sort::default() {
                order::sort(&file.tensors, &mut wanted, self.sort, entropy);
            }
            self.rows.extend(wanted.into_iter().map(Row::Tensor));
        }
        if let Some(row) = before {
            self.select(file, row);
        }
    }

    /// The tree that is shown where rows are in one.
    pub fn tree<'a>(&'a self, file: &'a FileModel) -> &'a Tree {
        self.filtered.as_ref().filter(|_| self.filter.is_some()).unwrap_or(&file.tree)
    }

    /// The node of a row in that tree; none of a flat list.
    pub fn node<'a>(&'a self, file: &'a FileModel, row: usize) -> Option<&'a Node> {
        self.tree(file).nodes.get(*self.nodes.get(row)?)
    }

    /// Selects a row, or the module that hides it.
    pub fn select(&mut self, file: &FileModel, row: Row) {
        let node = match row {
            Row::Group(node) => Some(node),
            Row::Tensor(i) => file.tree.node_of.get(i).copied(),
        };
        let rows = std::iter::once(row).chain(file.tree.upwards(node).map(Row::Group));
        if let Some(at) = rows.into_iter().find_map(|row| self.rows.iter().position(|&r| r == row)) {
            self.cursor.selected = at;
        }
    }

    /// The selected row.
    pub fn row(&self) -> Option<Row> {
        self.rows.get(self.cursor.selected).copied()
    }

    /// Whether the filter leaves a tensor.
    pub fn shows(&self, file: &FileModel, tensor: usize) -> bool {
        self.filter.as_ref().is_none_or(|f| f.matches(&file.tensors[tensor].name))
    }

    /// The selected tensor, or the first one of the selected module.
    pub fn current(&self, file: &FileModel) -> Option<usize> {
        self.tensors_of(file, self.row()?).next()
    }

    /// Tensors that a row stands for: one, or all of a module that the filter leaves.
    pub fn tensors_of(&self, file: &FileModel, row: Row) -> impl Iterator<Item = usize> {
        let nodes = match row {
            Row::Tensor(i) => file.tree.node_of[i]..file.tree.node_of[i] + 1,
            Row::Group(node) => node..file.tree.nodes[node].end,
        };
        file.tree.nodes[nodes].iter().filter_map(|n| n.tensor).filter(|&i| self.shows(file, i))
    }
}
