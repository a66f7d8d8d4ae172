//! The view of all tensors: which rows there are, and which is selected.

use std::collections::HashSet;

use wcodec::text::safe;

use crate::draw::{Cursor, text::width};
use crate::model::{FileModel, Filter, Sort, Totals, Tree, order};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// A module: a node of the tree.
    Group(usize),
    /// A tensor, by its place in the file.
    Tensor(usize),
}

/// The place of a row in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The node that its label begins with: with a filter, modules of which one thing is shown are one row with it.
    pub top: usize,
    /// Modules that are shown above it.
    pub depth: usize,
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
    /// The places of the rows of a tree.
    pub places: Vec<Place>,
    /// Columns of the terminal that the longest label takes, with what is before it, where a filter makes labels longer.
    pub widest: usize,
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
        let wanted: Vec<bool> = (0..file.tensors.len()).map(|i| self.shows(file, i)).collect();
        self.shown = Totals::of(file.tensors.iter().zip(&wanted).filter(|(_, w)| **w).map(|(t, _)| t));
        self.rows.clear();
        self.places.clear();
        self.widest = 0;
        if self.is_tree() {
            // The number of wanted tensors before each node tells whether a module has some.
            let mut before_node = Vec::with_capacity(file.tree.nodes.len() + 1);
            let mut count = 0usize;
            for node in &file.tree.nodes {
                before_node.push(count);
                count += usize::from(node.tensor.is_some_and(|i| wanted[i]));
            }
            before_node.push(count);
            let shows = |node: usize| before_node[node] < before_node[file.tree.nodes[node].end];
            // Modules above, each with its end; and where a label begins that is longer than its node's.
            let (mut above, mut top) = (Vec::new(), None);
            let mut at = 0;
            while at < file.tree.nodes.len() {
                let node = &file.tree.nodes[at];
                while above.last().is_some_and(|&end| end <= at) {
                    above.pop();
                }
                let place = Place { top: top.unwrap_or(at), depth: above.len() };
                match node.tensor {
                    Some(i) => {
                        if wanted[i] {
                            self.rows.push(Row::Tensor(i));
                            self.places.push(place);
                            top = None;
                        }
                        at += 1;
                    }
                    None if before_node[at] == before_node[node.end] => at = node.end,
                    None if self.filter.is_some() && is_chain(&file.tree, at, &shows) => {
                        top = Some(place.top);
                        at += 1;
                    }
                    None => {
                        self.rows.push(Row::Group(at));
                        self.places.push(place);
                        top = None;
                        above.push(node.end);
                        // A filter shows folded tensors, too.
                        at = if self.folded.contains(&at) && self.filter.is_none() { node.end } else { at + 1 };
                    }
                }
            }
            if self.filter.is_some() {
                let width = |at: usize| 2 * self.places[at].depth + 2 + width(&safe(&self.label(file, at)));
                self.widest = (0..self.rows.len()).map(width).max().unwrap_or(0);
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

    /// The label of a row of the tree: its part of the path, and those of modules that are one row with it.
    pub fn label(&self, file: &FileModel, at: usize) -> String {
        let (Some(row), Some(place)) = (self.rows.get(at), self.places.get(at)) else { return String::new() };
        let node = match *row {
            Row::Group(node) => node,
            Row::Tensor(i) => file.tree.node_of[i],
        };
        let above = file.tree.upwards(Some(node)).take_while(|&at| at >= place.top);
        let mut parts: Vec<&str> = above.map(|at| file.tree.nodes[at].label.as_str()).collect();
        parts.reverse();
        parts.join(".")
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

/// Whether a module has one thing in it that is shown, as `shows` tells.
fn is_chain(tree: &Tree, module: usize, shows: &impl Fn(usize) -> bool) -> bool {
    let end = tree.nodes[module].end;
    let (mut child, mut shown) = (module + 1, 0);
    while child < end && shown < 2 {
        shown += usize::from(shows(child));
        child = tree.nodes[child].end;
    }
    shown == 1
}
