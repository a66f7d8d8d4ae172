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
    /// The table of `coder` that suits `histogram` best: `bits` are some that it may have.
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
        check_bits(coder, bits)?;
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

    /// log2 of its slots: 11 or 12, of coder `huffman` 8 to 12.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Rans(t) => t.bits(),
            Self::Huffman(t) => t.bits(),
        }
    }

    /// How many symbols it has.
    pub fn symbols(&self) -> usize {
        match self {
            Self::Rans(t) => t.frequencies().iter().filter(|&&f| f > 0).count(),
            Self::Huffman(t) => t.lengths().iter().filter(|&&l| l > 0).count(),
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

/// log2 of the fewest slots that a table of any coder has, as far as format 1.0 goes.
pub const LEAST_BITS: u32 = 11;

/// # Errors
/// [`ErrorKind::Format`](crate::ErrorKind::Format): `coder` has no tables of so many bits.
pub fn check_bits(coder: Coder, bits: u32) -> Result<()> {
    let (least, which) = if coder == Coder::Huffman { (8, "8 to 12") } else { (LEAST_BITS, "11 or 12") };
    if (least..=12).contains(&bits) {
        return Ok(());
    }
    Err(Error::format(format!("tables of coder {coder} have {which} bits, not {bits}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coders_have_tables_of_some_bits_and_say_which() {
        for bits in 0..40 {
            let refused = |coder, stored: &[u8]| Table::from_bytes(coder, bits, stored).err().map(|e| e.to_string());
            let (rans, huffman) = (refused(Coder::Rans, &[]).unwrap(), refused(Coder::Huffman, &[8; SYMBOLS]));
            assert_eq!(rans.contains("tables of coder rans have 11 or 12 bits, not"), !(11..=12).contains(&bits));
            assert_eq!(huffman.is_none(), (8..=12).contains(&bits), "{huffman:?}");
            assert!(
                huffman.is_none_or(|e| e.contains(&format!("tables of coder huffman have 8 to 12 bits, not {bits}")))
            );
        }
    }
}
