//! Codes of coder `huffman` for the symbols of layout `quad`.

use crate::coder::quad::{QUAD_BITS, QUADS, Quad, index_of};
use crate::error::Result;

/// The most codes of a table.
pub const MOST_QUADS: usize = QUADS;

/// A complete, length-limited canonical prefix code of some of the symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuadTable {
    bits: u32,
    /// Symbols by ascending length of their codes, then in ascending order, and the lengths.
    codes: Vec<(Quad, u8)>,
}

impl QuadTable {
    /// Builds a table from symbols and the lengths of their codes, which form a complete code.
    pub fn from_lengths(bits: u32, codes: impl Iterator<Item = (Quad, u8)>) -> Self {
        let mut codes: Vec<(Quad, u8)> = codes.collect();
        codes.sort_unstable_by_key(|&(quad, length)| (length, quad));
        Self { bits, codes }
    }

    /// Reads the stored form: the number of codes of each length from 1 to `bits`, then the symbols, all u16.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the code is not complete.
    pub fn from_bytes(bits: u32, bytes: &[u8]) -> Result<Self> {
        let (words, rest) = bytes.as_chunks::<2>();
        let (counts, quads) = match words.split_at_checked(bits as usize) {
            Some(parts) if rest.is_empty() => parts,
            _ => return Err(coded!(BAD_TABLE, "a table of quads of {} bytes", bytes.len())),
        };
        let counts = counts.iter().map(|n| u64::from(u16::from_le_bytes(*n)));
        let (slots, mut used, mut all) = (1u64 << bits, 0, 0);
        for (length, n) in (1..).zip(counts.clone()) {
            used += n * (slots >> length);
            all += n;
        }
        if used != slots {
            return Err(coded!(BAD_TABLE, "the codes of a table of quads fill {used} slots, not {slots}"));
        }
        if all != quads.len() as u64 {
            return Err(coded!(BAD_TABLE, "{} symbols for {all} codes of a table of quads", quads.len()));
        }
        let lengths = (1u8..).zip(counts).flat_map(|(length, n)| std::iter::repeat_n(length, n as usize));
        let codes: Vec<(Quad, u8)> = quads.iter().map(|q| u16::from_le_bytes(*q)).zip(lengths).collect();
        let mut seen = vec![false; QUADS];
        let mut before = (0, 0);
        for &(quad, length) in &codes {
            if quad & !QUAD_BITS != 0 || (length, quad) <= before || std::mem::replace(&mut seen[index_of(quad)], true)
            {
                return Err(coded!(BAD_TABLE, "symbol {quad:#06x} of a table of quads in the wrong place"));
            }
            before = (length, quad);
        }
        Ok(Self { bits, codes })
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut counts = vec![0u16; self.bits as usize];
        self.codes.iter().for_each(|&(_, length)| counts[usize::from(length) - 1] += 1);
        counts.into_iter().chain(self.codes.iter().map(|c| c.0)).flat_map(u16::to_le_bytes).collect()
    }

    /// Longest code allowed.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The number of symbols that have codes.
    pub fn symbols(&self) -> usize {
        self.codes.len()
    }

    /// Code lengths in bits, by index of the symbol; 0 where a symbol is missing.
    pub fn lengths(&self) -> Vec<u8> {
        let mut lengths = vec![0; QUADS];
        self.codes.iter().for_each(|&(quad, length)| lengths[index_of(quad)] = length);
        lengths
    }

    /// Symbols, lengths, and codes as they lie in the stream: first bit lowest.
    pub fn codes(&self) -> impl Iterator<Item = (Quad, u8, u16)> {
        let (mut next, mut before) = (0u16, 0u8);
        self.codes.iter().map(move |&(quad, length)| {
            next <<= length - before;
            before = length;
            let code = next.reverse_bits() >> (16 - length);
            next = next.wrapping_add(1);
            (quad, length, code)
        })
    }

    /// For each value of the next `bits` bits: the symbol in the upper half, its length in the lower one.
    pub fn lookup(&self) -> Vec<u32> {
        let mut table = vec![0u32; 1 << self.bits];
        for (quad, length, code) in self.codes() {
            for slot in (usize::from(code)..table.len()).step_by(1 << length) {
                table[slot] = u32::from(quad) << 16 | u32::from(length);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::quad::quad_at;
    use crate::coder::table::limited_lengths;
    use proptest::prelude::*;

    fn table(bits: u32, weights: &mut [u64]) -> QuadTable {
        weights.sort_unstable();
        let lengths = limited_lengths(bits, weights);
        QuadTable::from_lengths(bits, lengths.into_iter().enumerate().map(|(i, l)| (quad_at(i * 13 % QUADS), l)))
    }

    proptest! {
        #[test]
        fn tables_read_back_and_name_a_symbol_for_every_slot(
            mut weights in prop::collection::vec(prop_oneof![1..4u64, 1..300u64, 1..1_000_000_000u64], 2..=256),
            bits in 8u32..13,
        ) {
            let t = table(bits, &mut weights);
            prop_assert_eq!(&QuadTable::from_bytes(bits, &t.to_bytes()).unwrap(), &t);
            let (lookup, lengths) = (t.lookup(), t.lengths());
            prop_assert!(lookup.iter().all(|&e| e & 0xFF != 0));
            for (quad, length, code) in t.codes() {
                prop_assert_eq!(lookup[usize::from(code)], u32::from(quad) << 16 | u32::from(length));
                prop_assert_eq!(lengths[index_of(quad)], length);
            }
        }
    }

    #[test]
    fn what_is_no_complete_code_is_refused() {
        let good = table(8, &mut [1, 2, 3, 4, 5]);
        let bytes = good.to_bytes();
        let symbols = 8 * 2;
        assert_eq!(bytes.len(), symbols + 5 * 2);
        let refused = |bytes: &[u8]| QuadTable::from_bytes(8, bytes).unwrap_err().message().to_owned();
        assert!(refused(&bytes[..15]).contains("of 15 bytes"));
        assert!(refused(&bytes[..17]).contains("of 17 bytes"));
        assert!(refused(&bytes[..bytes.len() - 2]).contains("4 symbols for 5 codes"));
        let with = |at: usize, value: u16| {
            let mut bad = bytes.clone();
            bad[at..at + 2].copy_from_slice(&value.to_le_bytes());
            bad
        };
        assert!(refused(&with(0, 9)).contains("slots"));
        assert!(refused(&with(symbols, 0x0008)).contains("symbol 0x0008"), "a bit that high parts do not have");
        let (a, b) = (good.codes[3].0, good.codes[4].0);
        assert_eq!(good.codes[3].1, good.codes[4].1);
        assert!(refused(&with(symbols + 8, a)).contains("in the wrong place"), "twice");
        let mut swapped = with(symbols + 6, b);
        swapped[symbols + 8..].copy_from_slice(&a.to_le_bytes());
        assert!(refused(&swapped).contains("in the wrong place"), "not in order");
        assert!(refused(&with(symbols, a)).contains("in the wrong place"), "of two lengths");
        let all: Vec<(Quad, u8)> = (0..256).map(|i| (quad_at(i), 8)).collect();
        assert!(QuadTable::from_bytes(8, &QuadTable::from_lengths(8, all.into_iter()).to_bytes()).is_ok());
    }
}
