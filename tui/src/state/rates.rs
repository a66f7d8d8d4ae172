//! The view of plan, quality and rates.

use std::sync::{Arc, OnceLock};

use crate::model::FileModel;
use crate::model::rates::Rates;

/// What part of the view is shown.
#[derive(Clone, Debug, Default)]
pub struct RatesState {
    /// Lines that are scrolled out at the top.
    pub scroll: usize,
    /// What is shown; worked out when it is first looked at, so that no other view waits for it.
    found: Arc<OnceLock<Rates>>,
}

impl RatesState {
    /// Scrolled so far, of a file that nobody looked at.
    pub fn at(scroll: usize) -> Self {
        Self { scroll, ..Self::default() }
    }

    /// What the file says, which must be the one that the state is about.
    pub fn rates(&self, file: &FileModel) -> &Rates {
        self.found.get_or_init(|| Rates::new(file))
    }
}
