//! The view of two files.

use std::sync::Arc;

use crate::draw::scroll::Cursor;
use crate::model::FileModel;
use crate::model::compare::{Compared, Comparison};

/// Which tensors are compared, and which is selected.
#[derive(Clone, Debug, Default)]
pub struct CompareState {
    /// Whether only tensors with other values are shown.
    pub only_differences: bool,
    /// Whether rows are by name; by the size of the difference if not.
    pub by_name: bool,
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
            Some(found) if self.only_differences => found.differing,
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
        match (self.by_name, self.only_differences) {
            (false, _) => found.by_size.get(at).copied().filter(|_| at < self.len()),
            (true, false) => (at < found.rows.len()).then_some(at),
            (true, true) => found.rows.iter().enumerate().filter(|(_, r)| r.relation.differs()).nth(at).map(|(i, _)| i),
        }
    }

    /// Where the row of a place is shown, or the next one that is.
    pub fn find(&self, place: usize) -> usize {
        let Some(found) = &self.found else { return 0 };
        match (self.by_name, self.only_differences) {
            (false, _) => found.by_size.iter().position(|&p| p == place).unwrap_or(0),
            (true, false) => place,
            (true, true) => found.rows[..place.min(found.rows.len())].iter().filter(|r| r.relation.differs()).count(),
        }
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
