//! The heat map: layers by role.

use std::sync::{Arc, OnceLock};

use crate::model::FileModel;
use crate::model::heat::{Heat, HeatCell};

/// What the cells of the heat map are coloured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Stored bits for each weight.
    #[default]
    Bits,
    /// Original bytes for each stored byte.
    Ratio,
    /// Root of the mean square of what is wrong in decoded values, over that of the original's.
    Error,
    /// Part of the stored bytes of all tensors.
    Share,
    /// Decoded bytes a second, as timed here.
    Speed,
}

impl Measure {
    /// All of them, in the order of the key.
    pub const ALL: [Self; 5] = [Self::Bits, Self::Ratio, Self::Error, Self::Share, Self::Speed];

    /// What it is called where it stands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bits => "bits/weight",
            Self::Ratio => "ratio",
            Self::Error => "error",
            Self::Share => "share of bytes",
            Self::Speed => "GB/s",
        }
    }

    /// The next one, around.
    pub fn next(self, back: bool) -> Self {
        let at = Self::ALL.iter().position(|&m| m == self).unwrap_or(0);
        Self::ALL[(at + if back { Self::ALL.len() - 1 } else { 1 }) % Self::ALL.len()]
    }
}

/// What of the heat map is selected and shown.
#[derive(Clone, Debug, Default)]
pub struct HeatState {
    /// What the colours stand for.
    pub measure: Measure,
    /// The selected row.
    pub row: usize,
    /// The selected column.
    pub column: usize,
    /// The first row that is shown.
    pub top: usize,
    /// The first column that is shown.
    pub left: usize,
    /// The grid; worked out when it is first looked at.
    found: Arc<OnceLock<Heat>>,
}

impl HeatState {
    /// Nothing of the grid of the file before; what was chosen stays.
    pub fn again(&self) -> Self {
        Self { found: Arc::default(), ..self.clone() }
    }

    /// The grid of the file, which must be the one that the state is about.
    pub fn heat(&self, file: &FileModel) -> &Heat {
        self.found.get_or_init(|| Heat::new(file))
    }

    /// The selected cell, if there is a tensor.
    pub fn selected<'a>(&'a self, file: &FileModel) -> Option<&'a HeatCell> {
        self.heat(file).cell(self.row, self.column)
    }
}
