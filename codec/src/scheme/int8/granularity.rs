//! The elements that share a scale.

use crate::error::Result;

/// Columns of a block if none are given.
pub const DEFAULT_BLOCK: usize = 128;

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Granularity {
    /// All elements of a row (an output channel).
    #[default]
    Row,
    /// All elements of the tensor.
    Tensor,
    /// Runs of this many columns within a row, a multiple of 16; the last block of a row may be shorter.
    Block(usize),
}

impl Granularity {
    /// # Errors
    /// The block length is not a positive multiple of 16.
    pub fn check(self) -> Result<Self> {
        match self {
            Granularity::Block(n) if n == 0 || n % 16 != 0 => {
                Err(coded!(BAD_SCALES, "blocks of scales have a multiple of 16 columns, not {n}"))
            }
            _ => Ok(self),
        }
    }

    /// Scales of a row of `cols` columns; 0 if all rows share one.
    pub fn scales_per_row(self, cols: usize) -> usize {
        match self {
            Granularity::Row => 1,
            Granularity::Tensor => 0,
            Granularity::Block(n) => cols.div_ceil(n),
        }
    }

    /// Scales of `rows` rows of `cols` columns.
    pub fn scales(self, rows: usize, cols: usize) -> usize {
        match self {
            Granularity::Tensor => 1,
            _ => rows * self.scales_per_row(cols),
        }
    }

    /// Columns that share a scale.
    pub fn columns(self, cols: usize) -> usize {
        match self {
            Granularity::Block(n) => n,
            _ => cols.max(1),
        }
    }
}

impl std::fmt::Display for Granularity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Granularity::Row => f.write_str("row"),
            Granularity::Tensor => f.write_str("tensor"),
            Granularity::Block(n) => write!(f, "block {n}"),
        }
    }
}
