//! Symbol tables: what a plane's chunks share. `FORMAT.md` section 5.

mod code;
mod frequency;

pub use code::CodeTable;
pub use frequency::FrequencyTable;

pub use super::histogram::SYMBOLS;

use super::Coder;
use super::histogram::Histogram;
use crate::error::{Error, Result};

/// A table of either coder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// Frequencies of coder `rans`.
    Rans(FrequencyTable),
    /// Code lengths of coder `huffman`.
    Huffman(CodeTable),
}

impl Table {
    /// The table of `coder` that suits `histogram` best. `bits` is 11 or 12.
    ///
    /// # Panics
    /// `coder` is neither `rans` nor `huffman`.
    pub fn from_histogram(coder: Coder, bits: u32, histogram: &Histogram) -> Self {
        match coder {
            Coder::Rans => Self::Rans(FrequencyTable::from_histogram(bits, histogram)),
            Coder::Huffman => Self::Huffman(CodeTable::from_histogram(bits, histogram)),
            _ => panic!("coder {coder} has no table"),
        }
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; refuses tables that do not add up.
    pub fn from_bytes(coder: Coder, bits: u32, bytes: &[u8]) -> Result<Self> {
        check_bits(bits)?;
        match coder {
            Coder::Rans => FrequencyTable::from_bytes(bits, bytes).map(Self::Rans),
            Coder::Huffman => CodeTable::from_bytes(bits, bytes).map(Self::Huffman),
            _ => Err(Error::format(format!("a table for coder {coder}, which has none"))),
        }
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Rans(t) => t.to_bytes(),
            Self::Huffman(t) => t.to_bytes(),
        }
    }

    /// Length of the stored form of a table of `coder`.
    pub fn stored_bytes(coder: Coder) -> u64 {
        match coder {
            Coder::Rans => 2 * SYMBOLS as u64,
            Coder::Huffman => SYMBOLS as u64,
            _ => 0,
        }
    }

    /// Its coder.
    pub fn coder(&self) -> Coder {
        match self {
            Self::Rans(_) => Coder::Rans,
            Self::Huffman(_) => Coder::Huffman,
        }
    }

    /// log2 of its slots: 11 or 12.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Rans(t) => t.bits(),
            Self::Huffman(t) => t.bits(),
        }
    }

    /// Bits that symbols of `histogram` take; `None` where it lacks one of them.
    pub fn cost(&self, histogram: &Histogram) -> Option<f64> {
        let cost: f64 = histogram
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(s, &n)| {
                n as f64
                    * match self {
                        Self::Rans(t) => t.cost(s),
                        Self::Huffman(t) => t.cost(s),
                    }
            })
            .sum();
        cost.is_finite().then_some(cost)
    }
}

pub(super) fn check_bits(bits: u32) -> Result<()> {
    if matches!(bits, 11 | 12) {
        return Ok(());
    }
    Err(Error::format(format!("tables have 11 or 12 bits, not {bits}")))
}
