//! Code lengths of coder `huffman`.

use crate::coder::histogram::{Histogram, SYMBOLS};
use crate::error::Result;

/// Lengths of a complete, length-limited canonical prefix code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeTable {
    bits: u32,
    len: Box<[u8; SYMBOLS]>,
}

impl CodeTable {
    /// The smallest code for `histogram` with codes of at most `bits` bits.
    ///
    /// # Panics
    /// There are more symbols than codes of so many bits.
    pub fn from_histogram(bits: u32, histogram: &Histogram) -> Self {
        let mut weights = *histogram;
        // A complete code needs two symbols; those that never occur cost nothing.
        for s in 0..2 {
            if weights.iter().filter(|&&n| n > 0).count() < 2 && weights[s] == 0 {
                weights[s] = 1;
            }
        }
        let mut leaves: Vec<usize> = (0..SYMBOLS).filter(|&s| weights[s] > 0).collect();
        leaves.sort_by_key(|&s| weights[s]);
        let sorted: Vec<u64> = leaves.iter().map(|&s| weights[s]).collect();
        let mut len = [0u8; SYMBOLS];
        leaves.iter().zip(limited_lengths(bits, &sorted)).for_each(|(&s, l)| len[s] = l);
        Self { bits, len: Box::new(len) }
    }

    /// Reads 256 bytes.
    pub fn from_bytes(bits: u32, bytes: &[u8]) -> Result<Self> {
        let len: [u8; SYMBOLS] =
            bytes.try_into().map_err(|_| coded!(BAD_TABLE, "a huffman table has 256 bytes, not {}", bytes.len()))?;
        let slots = 1u64 << bits;
        if let Some(l) = len.iter().find(|&&l| u32::from(l) > bits) {
            return Err(coded!(BAD_TABLE, "a huffman code of {l} bits in a table of {bits}"));
        }
        let used: u64 = len.iter().filter(|&&l| l > 0).map(|&l| slots >> l).sum();
        if used != slots {
            return Err(coded!(BAD_TABLE, "the codes of a huffman table fill {used} slots, not {slots}"));
        }
        Ok(Self { bits, len: Box::new(len) })
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.len.to_vec()
    }

    /// Longest code allowed.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Code lengths in bits, by symbol; 0 where a symbol is missing.
    pub fn lengths(&self) -> &[u8; SYMBOLS] {
        &self.len
    }

    /// Codes as they lie in the stream: first bit lowest.
    pub fn codes(&self) -> [u16; SYMBOLS] {
        let mut codes = [0u16; SYMBOLS];
        let mut next = 0u16;
        for l in 1..=self.bits {
            for (s, code) in codes.iter_mut().enumerate() {
                if u32::from(self.len[s]) == l {
                    *code = next.reverse_bits() >> (16 - l);
                    next += 1;
                }
            }
            next <<= 1;
        }
        codes
    }

    /// For each value of the next `bits` bits: the symbol in the high byte, its length in the low one.
    pub fn lookup(&self) -> Vec<u16> {
        let mut table = vec![0u16; 1 << self.bits];
        for (s, code) in self.codes().into_iter().enumerate() {
            let l = self.len[s];
            if l > 0 {
                for slot in (usize::from(code)..table.len()).step_by(1 << l) {
                    table[slot] = (s as u16) << 8 | u16::from(l);
                }
            }
        }
        table
    }

    /// Bits that one `symbol` takes; infinite where it is missing.
    pub fn cost(&self, symbol: usize) -> f64 {
        match self.len[symbol] {
            0 => f64::INFINITY,
            l => f64::from(l),
        }
    }
}

/// Lengths of the smallest code for ascending `weights`, at most `bits` bits each.
///
/// Package-merge: L. Larmore, D. Hirschberg, "A fast algorithm for optimal length-limited Huffman codes", 1990. A
/// package need not record its leaves: packages and leaves are both in ascending order, so their counts at each level
/// are enough.
pub fn limited_lengths(bits: u32, weights: &[u64]) -> Vec<u8> {
    let mut taken = 2 * weights.len() - 2;
    assert!(weights.len() <= 1 << bits);
    let mut items: Vec<u64> = Vec::new();
    // For each level, whether each item is a leaf.
    let mut levels: Vec<Vec<bool>> = Vec::with_capacity(bits as usize);
    for _ in 0..bits {
        let mut packages = items.chunks_exact(2).map(|p| p[0] + p[1]).peekable();
        let mut leaves = weights.iter().copied().peekable();
        let (mut merged, mut level) = (Vec::new(), Vec::new());
        loop {
            let (item, is_leaf) = match (packages.peek(), leaves.peek()) {
                (Some(package), Some(leaf)) if package <= leaf => (packages.next(), false),
                (Some(_), None) => (packages.next(), false),
                _ => (leaves.next(), true),
            };
            let Some(item) = item else { break };
            merged.push(item);
            level.push(is_leaf);
        }
        drop(packages);
        items = merged;
        levels.push(level);
    }
    let mut lengths = vec![0; weights.len()];
    for level in levels.iter().rev() {
        let leaves = level[..taken].iter().filter(|&&is_leaf| is_leaf).count();
        lengths[..leaves].iter_mut().for_each(|l| *l += 1);
        taken = 2 * (taken - leaves);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::histogram::entropy;
    use proptest::prelude::*;

    /// The algorithm as its authors state it: a package records its leaves.
    fn lengths_by_lists(bits: u32, weights: &[u64]) -> Vec<u8> {
        let leaves: Vec<(u64, Vec<usize>)> = weights.iter().enumerate().map(|(i, &w)| (w, vec![i])).collect();
        let mut items: Vec<(u64, Vec<usize>)> = Vec::new();
        for _ in 0..bits {
            let packages = items.chunks_exact(2).map(|p| (p[0].0 + p[1].0, [&p[0].1[..], &p[1].1[..]].concat()));
            let mut merged: Vec<_> = packages.chain(leaves.iter().cloned()).collect();
            merged.sort_by_key(|i| i.0);
            items = merged;
        }
        let mut lengths = vec![0; weights.len()];
        items[..2 * weights.len() - 2].iter().flat_map(|i| &i.1).for_each(|&i| lengths[i] += 1);
        lengths
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_packages_with_lists(
            mut weights in prop::collection::vec(prop_oneof![1..4u64, 1..300u64, 1..1_000_000_000u64], 2..=SYMBOLS),
            bits in 8u32..13,
        ) {
            weights.sort_unstable();
            prop_assert_eq!(limited_lengths(bits, &weights), lengths_by_lists(bits, &weights));
        }

        #[test]
        fn any_histogram_gives_a_complete_code(
            counts in prop::collection::vec(prop_oneof![Just(0u64), 1..4u64, 1..1_000_000_000u64], SYMBOLS),
            bits in 8u32..13,
        ) {
            let h: Histogram = counts.try_into().unwrap();
            let t = CodeTable::from_histogram(bits, &h);
            prop_assert_eq!(&CodeTable::from_bytes(bits, &t.to_bytes()).unwrap(), &t);
            for s in 0..SYMBOLS {
                prop_assert!(h[s] == 0 || t.len[s] > 0);
            }
            let (table, codes) = (t.lookup(), t.codes());
            prop_assert!(table.iter().all(|&e| e & 0xFF != 0));
            for s in (0..SYMBOLS).filter(|&s| t.len[s] > 0) {
                prop_assert_eq!(table[codes[s] as usize], (s as u16) << 8 | u16::from(t.len[s]));
            }
        }
    }

    #[test]
    fn the_code_is_within_a_bit_of_the_entropy() {
        let h: Histogram = std::array::from_fn(|s| 1 + 1_000_000 / (1 + s as u64 * s as u64));
        let t = CodeTable::from_histogram(12, &h);
        let n: u64 = h.iter().sum();
        let mean = (0..SYMBOLS).map(|s| h[s] as f64 * t.cost(s)).sum::<f64>() / n as f64;
        assert!(mean >= entropy(&h) && mean < entropy(&h) + 1.0);
    }

    #[test]
    fn lone_symbols_get_a_companion() {
        for s in [0usize, 1, 255] {
            let mut h = [0; SYMBOLS];
            h[s] = 9;
            let t = CodeTable::from_histogram(12, &h);
            assert_eq!(t.len[s], 1);
            assert!(CodeTable::from_bytes(12, &t.to_bytes()).is_ok());
        }
    }

    #[test]
    fn incomplete_and_overfull_codes_are_refused() {
        let good = CodeTable::from_histogram(12, &[3; SYMBOLS]).to_bytes();
        assert!(good.iter().all(|&l| l == 8));
        for l in [0u8, 7, 9, 13, 255] {
            let mut bad = good.clone();
            bad[17] = l;
            assert!(CodeTable::from_bytes(12, &bad).is_err(), "length {l}");
        }
        assert!(CodeTable::from_bytes(12, &good[..255]).is_err());
    }
}
