//! Substitutes for pairs that have no code, and their cost. `FORMAT.md` section 3.
//!
//! Hundreds of pairs are very rare, and a code for each takes slots of the table from all others: the more of them, the
//! smaller the table. So a pair may go without a code. The chunk then codes the closest pair that the table has, and
//! patches store the true elements.

use super::histogram::{ESCAPE, HIGHS, HighPairs, Histogram, SYMBOLS};
use super::table::CodeTable;

/// Bits of a patch.
const PATCH: u32 = 32;
/// The ratio, nearly, of successive alphabet sizes that are tried: costs hardly differ in between.
const GROWTH: (usize, usize) = (9, 8);

/// The symbol that is coded for each pair of high parts.
pub struct Substitutes([[u8; HIGHS]; HIGHS]);

impl Substitutes {
    /// The substitutes for a table with codes of these lengths, at least two of them not 0.
    pub fn new(lengths: &[u8; SYMBOLS]) -> Self {
        // The shortest code of all, and the shortest ones with a given first or second high part.
        type Code = Option<(u8, u8)>;
        let (mut any, mut firsts, mut seconds): (Code, [Code; ESCAPE], [Code; ESCAPE]) =
            (None, [None; ESCAPE], [None; ESCAPE]);
        for (symbol, &length) in (0..=u8::MAX).zip(lengths).filter(|(_, l)| **l > 0) {
            let (first, second) = (usize::from(symbol & 15), usize::from(symbol >> 4));
            for best in [&mut any, &mut firsts[first], &mut seconds[second]] {
                if best.is_none_or(|best| (length, symbol) < best) {
                    *best = Some((length, symbol));
                }
            }
        }
        let of = |first: usize, second: usize| {
            let entry = first.min(15) | second.min(15) << 4;
            if lengths[entry] > 0 {
                return entry as u8;
            }
            let kept = [firsts.get(first).copied().flatten(), seconds.get(second).copied().flatten(), any];
            let costs = kept.into_iter().flatten().map(|(length, symbol)| {
                (u32::from(length) + PATCH * changed(first, second, symbol).map(u32::from).iter().sum::<u32>(), symbol)
            });
            costs.min().map_or(0, |(_, symbol)| symbol)
        };
        Self(std::array::from_fn(|first| std::array::from_fn(|second| of(first, second))))
    }

    /// The symbol coded for two high parts; an escape is [`ESCAPE`].
    pub fn of(&self, first: usize, second: usize) -> u8 {
        self.0[first][second]
    }
}

/// Which of two high parts need a patch when coded as `symbol`. Escapes have one anyway.
pub fn changed(first: usize, second: usize, symbol: u8) -> [bool; 2] {
    [(first, symbol & 15), (second, symbol >> 4)].map(|(high, coded)| high < ESCAPE && high != usize::from(coded))
}

/// The bits of all pairs, including the patches that they need.
pub fn cost(table: &CodeTable, pairs: &HighPairs) -> u64 {
    let (lengths, substitutes) = (table.lengths(), Substitutes::new(table.lengths()));
    let bits = pairs.iter().filter(|(.., n)| *n > 0).map(|(first, second, n)| {
        let symbol = substitutes.of(first, second);
        let patches: u32 = changed(first, second, symbol).map(u32::from).iter().sum();
        n * u64::from(u32::from(lengths[usize::from(symbol)]) + PATCH * patches)
    });
    bits.sum::<u64>() + u64::from(PATCH) * pairs.escapes()
}

/// The cheapest table with codes of at most `bits` bits: it covers as many of the commonest pairs as minimize the total
/// cost.
pub fn table(bits: u32, pairs: &HighPairs) -> CodeTable {
    let mut counts: Vec<(u64, usize)> = pairs
        .iter()
        .filter(|&(first, second, n)| n > 0 && first < ESCAPE && second < ESCAPE)
        .map(|(first, second, n)| (n, first | second << 4))
        .collect();
    counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let total: u64 = pairs.iter().map(|(.., n)| n).sum();
    let mut best = CodeTable::from_histogram(bits, &pairs.symbols());
    let mut least = cost(&best, pairs);
    let mut size = 2;
    while size <= counts.len() {
        // Estimates, before there are codes: ideal lengths, rounded and limited to `bits`.
        let mut lengths = [0; SYMBOLS];
        for &(n, symbol) in &counts[..size] {
            lengths[symbol] = (total as f64 / n as f64).log2().round().clamp(1.0, f64::from(bits)) as u8;
        }
        let substitutes = Substitutes::new(&lengths);
        let mut histogram: Histogram = [0; SYMBOLS];
        pairs.iter().for_each(|(first, second, n)| histogram[usize::from(substitutes.of(first, second))] += n);
        let table = CodeTable::from_histogram(bits, &histogram);
        let bits = cost(&table, pairs);
        if bits < least {
            (best, least) = (table, bits);
        }
        size = (size * GROWTH.0 / GROWTH.1).max(size + 1);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::coder::histogram::PairHistogram;
    use crate::pool::Pool;
    use proptest::prelude::*;

    fn pairs_of(symbols: &[i8], shift: u32) -> HighPairs {
        PairHistogram::count(symbols, symbols.len(), &Pool::new(None).unwrap(), &Cancel::new()).unwrap().highs(shift)
    }

    fn lengths(codes: &[(usize, usize, u8)]) -> [u8; SYMBOLS] {
        let mut lengths = [0; SYMBOLS];
        codes.iter().for_each(|&(first, second, length)| lengths[first | second << 4] = length);
        lengths
    }

    #[test]
    fn the_nearest_pair_shares_an_element_and_its_code_is_short() {
        let table = Substitutes::new(&lengths(&[(0, 0, 1), (0, 5, 3), (2, 5, 4), (2, 7, 4), (3, 0, 2)]));
        let of = |first, second| {
            let symbol = table.of(first, second);
            (symbol & 15, symbol >> 4)
        };
        assert_eq!(of(2, 7), (2, 7), "a code of its own");
        assert_eq!(of(2, 6), (2, 5), "equal lengths: the smaller symbol");
        assert_eq!(of(9, 5), (0, 5), "the shorter code of two");
        assert_eq!(of(3, 7), (3, 0), "either element could be kept");
        assert_eq!(of(9, 9), (0, 0), "neither can");
        assert_eq!(of(ESCAPE, 5), (0, 5), "an escape has a patch whatever is coded");
        assert_eq!(of(2, ESCAPE), (2, 5), "the same for the second");
        assert_eq!(of(ESCAPE, ESCAPE), (0, 0));
        assert_eq!(changed(9, 5, 0x50), [true, false]);
        assert_eq!(changed(ESCAPE, 5, 0x50), [false; 2]);
        assert_eq!(changed(9, 9, 0), [true; 2]);
    }

    #[test]
    fn what_is_met_once_gets_no_code_and_what_is_common_does() {
        let mut symbols: Vec<i8> = (0..40_000).map(|i| (i * i / 3 % 4) as i8).collect();
        symbols[100..116].copy_from_slice(&[5, 9, 12, 0, 7, 7, 1, 14, 15, 2, 100, 0, 2, -100, 100, 100]);
        let pairs = pairs_of(&symbols, 0);
        for bits in 8..=12 {
            let table = table(bits, &pairs);
            let has = |first: usize, second: usize| table.lengths()[first | second << 4] > 0;
            assert!(has(0, 0) && !has(12, 0) && !has(7, 7) && !has(15, 0));
            assert_eq!(pairs.escapes(), 4);
        }
    }

    proptest! {
        #[test]
        fn a_chosen_table_is_never_worse_than_one_of_all_pairs(
            symbols in prop::collection::vec(prop_oneof![-2i8..2, -20i8..20, any::<i8>()], 0..4000),
            shift in 0u32..3, bits in 8u32..13,
        ) {
            let pairs = pairs_of(&symbols, shift);
            let (all, chosen) = (CodeTable::from_histogram(bits, &pairs.symbols()), table(bits, &pairs));
            prop_assert!(cost(&chosen, &pairs) <= cost(&all, &pairs));
            prop_assert_eq!(&CodeTable::from_bytes(bits, &chosen.to_bytes()).unwrap(), &chosen);
            let substitutes = Substitutes::new(chosen.lengths());
            for (first, second, _) in pairs.iter() {
                prop_assert!(chosen.lengths()[usize::from(substitutes.of(first, second))] > 0);
            }
        }
    }
}
