//! The view of two files.

use std::sync::Arc;

use super::list::Cursor;
use crate::model::FileModel;
use crate::model::compare::{Compared, Comparison};

/// Which tensors are compared, and which is selected.
#[derive(Clone, Debug, Default)]
pub struct CompareState {
    /// Whether only tensors that differ are shown.
    pub only_differences: bool,
    /// The selected row.
    pub cursor: Cursor,
    /// What was found; nothing where there is no second file.
    pub found: Option<Arc<Comparison>>,
}

impl CompareState {
    /// All tensors of both files.
    pub fn new(file: &FileModel, other: Option<&FileModel>) -> Self {
        Self { found: other.map(|other| Arc::new(Comparison::new(file, other))), ..Self::default() }
    }

    /// Rows that are shown.
    pub fn len(&self) -> usize {
        match &self.found {
            Some(found) if self.only_differences => found.differences.len(),
            Some(found) => found.rows.len(),
            None => 0,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place among all rows of the one that is shown at `at`.
    pub fn place(&self, at: usize) -> Option<usize> {
        let found = self.found.as_ref()?;
        if self.only_differences { found.differences.get(at).copied() } else { (at < found.rows.len()).then_some(at) }
    }

    /// A row that is shown.
    pub fn row(&self, at: usize) -> Option<Compared> {
        self.found.as_ref()?.rows.get(self.place(at)?).copied()
    }

    /// The selected row.
    pub fn selected(&self) -> Option<Compared> {
        self.row(self.cursor.selected)
    }
}
