//! Symbol tables, which the chunks of a plane share. `FORMAT.md` section 5.

mod code;
mod frequency;
mod quads;

pub use code::CodeTable;
pub(in crate::coder) use code::limited_lengths;
pub use frequency::FrequencyTable;
pub(in crate::coder) use quads::MOST_QUADS;
pub use quads::QuadTable;

pub use super::histogram::SYMBOLS;

use super::histogram::Histogram;
use super::{Coder, Layout};
use crate::error::Result;

/// A table of either coder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// Frequencies of coder `rans`.
    Rans(FrequencyTable),
    /// Code lengths of coder `huffman`.
    Huffman(CodeTable),
    /// Codes of coder `huffman` for layout `quad`.
    Quads(QuadTable),
}

impl Table {
    /// The table of `coder` that suits `histogram` best; `bits` must be a size that the coder allows.
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

    /// Reads the bytes that [`to_bytes`](Self::to_bytes) wrote; refuses tables that are not consistent. `layout` is the
    /// only layout that the table is for, if it is not for all.
    pub fn from_bytes(coder: Coder, layout: Option<Layout>, bits: u32, bytes: &[u8]) -> Result<Self> {
        check_bits(coder, bits)?;
        match (coder, layout) {
            (Coder::Rans, None) => FrequencyTable::from_bytes(bits, bytes).map(Self::Rans),
            (Coder::Huffman, None) => CodeTable::from_bytes(bits, bytes).map(Self::Huffman),
            (Coder::Huffman, Some(Layout::Quad)) => QuadTable::from_bytes(bits, bytes).map(Self::Quads),
            (_, None) => Err(coded!(BAD_CODER_NUMBER, "a table for coder {coder}, which has none")),
            (_, Some(layout)) => Err(coded!(BAD_CODER_NUMBER, "a table for coder {coder} and layout {layout}")),
        }
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Rans(t) => t.to_bytes(),
            Self::Huffman(t) => t.to_bytes(),
            Self::Quads(t) => t.to_bytes(),
        }
    }

    /// Least and largest length of the stored form of a table of `coder`, in bytes.
    pub fn stored_bytes(coder: Coder, layout: Option<Layout>) -> (u64, u64) {
        match (coder, layout) {
            (Coder::Rans, None) => (2 * SYMBOLS as u64, 2 * SYMBOLS as u64),
            (Coder::Huffman, None) => (SYMBOLS as u64, SYMBOLS as u64),
            (Coder::Huffman, Some(Layout::Quad)) => (0, 2 * (u64::from(MOST_BITS) + MOST_QUADS as u64)),
            _ => (0, 0),
        }
    }

    /// Its coder.
    pub fn coder(&self) -> Coder {
        match self {
            Self::Rans(_) => Coder::Rans,
            Self::Huffman(_) | Self::Quads(_) => Coder::Huffman,
        }
    }

    /// The only layout that it is for; `None` if it is for all others.
    pub fn layout(&self) -> Option<Layout> {
        matches!(self, Self::Quads(_)).then_some(Layout::Quad)
    }

    /// Checks that planes with this coder and layout may use the table.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): it belongs to another coder or layout.
    pub fn check(&self, coder: Coder, layout: Layout) -> Result<()> {
        if self.coder() != coder {
            return Err(coded!(BAD_CODER_NUMBER, "a plane of coder {coder} names a {} table", self.coder()));
        }
        match (self.layout(), layout) {
            (Some(own), layout) if own != layout => {
                Err(coded!(BAD_CODER_NUMBER, "a plane of layout {layout} names a table for layout {own}"))
            }
            (None, layout) if layout.has_own_tables() => {
                Err(coded!(BAD_CODER_NUMBER, "a plane of layout {layout} names a table for other layouts"))
            }
            _ => Ok(()),
        }
    }

    /// log2 of its slots: 11 or 12; 8 to 12 for coder `huffman`.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Rans(t) => t.bits(),
            Self::Huffman(t) => t.bits(),
            Self::Quads(t) => t.bits(),
        }
    }

    /// The number of symbols that it has.
    pub fn symbols(&self) -> usize {
        match self {
            Self::Rans(t) => t.frequencies().iter().filter(|&&f| f > 0).count(),
            Self::Huffman(t) => t.lengths().iter().filter(|&&l| l > 0).count(),
            Self::Quads(t) => t.symbols(),
        }
    }

    /// The bits that the symbols of `histogram` take; `None` if it lacks one of them, or has an alphabet of another
    /// kind.
    pub fn cost(&self, histogram: &Histogram) -> Option<f64> {
        let bits = |s: usize| match self {
            Self::Rans(t) => t.cost(s),
            Self::Huffman(t) => t.cost(s),
            Self::Quads(_) => f64::INFINITY,
        };
        let occur = histogram.iter().enumerate().filter(|(_, n)| **n > 0);
        let cost: f64 = occur.map(|(s, &n)| n as f64 * bits(s)).sum();
        cost.is_finite().then_some(cost)
    }
}

/// log2 of the fewest slots that format 1.0 allows a table of any coder.
pub const LEAST_BITS: u32 = 11;
/// log2 of the slots of the largest tables, which is the length of the longest code.
pub const MOST_BITS: u32 = 12;

/// # Errors
/// [`ErrorKind::Format`](crate::ErrorKind::Format): `coder` has no tables of so many bits.
pub fn check_bits(coder: Coder, bits: u32) -> Result<()> {
    let (least, which) = if coder == Coder::Huffman { (8, "8 to 12") } else { (LEAST_BITS, "11 or 12") };
    if (least..=MOST_BITS).contains(&bits) {
        return Ok(());
    }
    Err(coded!(BAD_CODER_NUMBER, "tables of coder {coder} have {which} bits, not {bits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coders_have_tables_of_some_bits_and_say_which() {
        for bits in 0..40 {
            let refused =
                |coder, stored: &[u8]| Table::from_bytes(coder, None, bits, stored).err().map(|e| e.to_string());
            let (rans, huffman) = (refused(Coder::Rans, &[]).unwrap(), refused(Coder::Huffman, &[8; SYMBOLS]));
            assert_eq!(rans.contains("tables of coder rans have 11 or 12 bits, not"), !(11..=12).contains(&bits));
            assert_eq!(huffman.is_none(), (8..=12).contains(&bits), "{huffman:?}");
            assert!(
                huffman.is_none_or(|e| e.contains(&format!("tables of coder huffman have 8 to 12 bits, not {bits}")))
            );
        }
    }
}
