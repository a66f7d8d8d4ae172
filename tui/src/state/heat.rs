//! The heat map: layers by role.

use std::sync::{Arc, OnceLock};

use crate::keymap::around;
use crate::model::FileModel;
use crate::model::heat::{Heat, HeatCell};
use crate::model::original::Original;

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
    /// Part of the file's bytes.
    Share,
    /// Decoded bytes a second, as timed here.
    Speed,
    /// Error that 4 bits would make, from samples.
    WouldError,
    /// Bits that 4 bits for all would give it.
    WouldBits,
    /// Error that `int8` would make.
    WouldError8,
    /// Bits that `int8` would take.
    WouldBits8,
}

impl Measure {
    /// Those of a container, in the order of the key.
    pub const STORED: [Self; 5] = [Self::Bits, Self::Ratio, Self::Error, Self::Share, Self::Speed];
    /// Those of a checkpoint that is not encoded.
    pub const CHECKPOINT: [Self; 6] =
        [Self::Share, Self::WouldBits8, Self::WouldBits, Self::WouldError, Self::WouldError8, Self::Bits];
    /// Those of a GGUF file, for which there are no estimates.
    pub const GGUF: [Self; 2] = [Self::Bits, Self::Share];

    /// Those of a file.
    pub fn all(file: &FileModel) -> &'static [Self] {
        match file.original() {
            Some(Original::Checkpoint(_)) => &Self::CHECKPOINT,
            Some(Original::Gguf(_)) => &Self::GGUF,
            None => &Self::STORED,
        }
    }

    /// What it is called where it stands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bits => "bits/weight",
            Self::Ratio => "ratio",
            Self::Error => "error",
            Self::Share => "share of bytes",
            Self::Speed => "GB/s",
            Self::WouldError => "error at 4 bits",
            Self::WouldBits => "bits at 4 bits",
            Self::WouldError8 => "error of int8",
            Self::WouldBits8 => "bits of int8",
        }
    }

    /// The next one, around.
    pub fn next(self, file: &FileModel, back: bool) -> Self {
        around(Self::all(file), self, back)
    }
}

/// What of the heat map is selected and shown.
#[derive(Clone, Debug, Default)]
pub struct HeatState {
    /// What the colours stand for.
    pub measure: Measure,
    /// Whether the user chose that.
    pub chosen: bool,
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
    /// The beginning of a file's grid: the first measure that it has.
    pub fn of(file: &FileModel) -> Self {
        Self { measure: Measure::all(file)[0], ..Self::default() }
    }

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
