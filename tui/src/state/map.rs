//! The view of the file's map.

use std::sync::{Arc, OnceLock};

use crate::draw::scroll::Cursor;
use crate::model::FileModel;
use crate::model::map::{FileMap, Region};

/// Which part of the file is selected.
#[derive(Clone, Debug, Default)]
pub struct MapState {
    /// The selected region.
    pub cursor: Cursor,
    /// What is where; worked out when it is first looked at, so that no other view waits for it.
    found: Arc<OnceLock<FileMap>>,
}

impl MapState {
    /// At the beginning of the file.
    pub fn new(_file: &FileModel) -> Self {
        Self::default()
    }

    /// What is where in the file, which must be the one that the state is about.
    pub fn map(&self, file: &FileModel) -> &FileMap {
        self.found.get_or_init(|| FileMap::new(file))
    }

    /// The selected region.
    pub fn selected(&self, file: &FileModel) -> Option<&Region> {
        self.map(file).regions.get(self.cursor.selected)
    }
}
