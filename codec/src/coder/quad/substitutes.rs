//! Chooses the quads that have codes, and the substitutes for the others. `FORMAT.md` section 3.
//!
//! As with pairs (`coder/rare.rs`), rare quads would take slots of the table from all others. Instead, a chunk codes
//! the closest quad that the table has, and patches store the true elements.

use super::counts::{COUNTED, HIGHS, PLACES, QuadCounts, highs_at, place_of};
use super::{ESCAPE, QUAD, QUADS, Quad, index_of};
use crate::coder::table::{QuadTable, limited_lengths};

/// Bits of a patch.
pub const PATCH: u32 = 32;
/// Bits that a code takes in the stored table.
const STORED: u64 = 16;
/// The ratio of successive alphabet sizes that are tried: costs hardly differ in between.
const GROWTH: f64 = 1.2;

/// The elements of a quad, escapes aside, that need a patch: bit i for element i.
pub type PatchMask = u8;

/// Masks of the elements that may take any high part, by how many these are.
const WAYS: [&[PatchMask]; QUAD] = [
    &[0b0001, 0b0010, 0b0100, 0b1000],
    &[0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100],
    &[0b0111, 0b1011, 0b1101, 0b1110],
    &[0b1111],
];

/// A code that shares some high parts with a quad: its length, and in the low 16 bits its symbol. The smallest is best.
type Code = u32;
/// Worse than any code.
const NONE: Code = Code::MAX;

/// The shortest code for each quad in which escapes mark elements that may take any high part.
struct Nearest(Vec<Code>);

impl Nearest {
    fn new(codes: impl Iterator<Item = (Quad, u8)>) -> Self {
        let mut best = vec![NONE; COUNTED];
        for (quad, length) in codes {
            let highs = std::array::from_fn(|i| usize::from(quad >> (4 * i) & 7));
            let place = &mut best[place_of(highs)];
            *place = (*place).min(Code::from(length) << Quad::BITS | Code::from(quad));
        }
        // An element that may take any high part has the best of all codes; one element after the other, so that
        // several may.
        for unit in PLACES {
            for quads in best.chunks_exact_mut(unit * HIGHS) {
                let (known, any) = quads.split_at_mut(unit * ESCAPE);
                for some in known.chunks_exact(unit) {
                    any.iter_mut().zip(some).for_each(|(any, &one)| *any = (*any).min(one));
                }
            }
        }
        Self(best)
    }

    /// The cheapest symbol for the four high parts at an index, the length of its code, and the elements that then need
    /// a patch.
    fn of(&self, place: usize) -> (u8, Quad, PatchMask) {
        let found = |code: Code, mask| ((code >> Quad::BITS) as u8, code as Quad, mask);
        // Elements that keep their high parts need no patch; escapes have one whatever is coded.
        let substitute = self.0[place];
        if substitute != NONE {
            return found(substitute, 0);
        }
        // By so much an index grows where an element may take any high part; by nothing where it is an escape already.
        let highs = highs_at(place);
        let grows: [usize; QUAD] = std::array::from_fn(|i| (ESCAPE - highs[i]) * PLACES[i]);
        // A patch takes more bits than any code, so the fewest patches are cheapest, and then the shortest code.
        for masks in WAYS {
            let mut best = (NONE, PatchMask::MAX);
            for &mask in masks {
                let free: usize = (0..QUAD).map(|i| grows[i] * usize::from(mask >> i & 1)).sum();
                best = best.min((self.0[place + free], mask));
            }
            if best.0 != NONE {
                return found(best.0, best.1);
            }
        }
        (0, 0, 0)
    }

    /// The bits of all quads, including the patches that they need, of `patch` bits each.
    fn cost(&self, counts: &QuadCounts, patch: u32) -> u64 {
        let bits = counts.iter().map(|(place, n)| {
            let (length, _, mask) = self.of(place);
            n * u64::from(u32::from(length) + patch * mask.count_ones())
        });
        bits.sum::<u64>() + u64::from(patch) * counts.escapes()
    }
}

/// The symbol that is coded for each four high parts.
pub struct Substitutes(Vec<(Quad, PatchMask)>);

impl Substitutes {
    /// The substitutes for a table with these codes.
    pub fn new(codes: impl Iterator<Item = (Quad, u8)>) -> Self {
        let nearest = Nearest::new(codes);
        Self((0..COUNTED).map(|place| nearest.of(place)).map(|(_, quad, mask)| (quad, mask)).collect())
    }

    /// The symbol coded for four high parts, and the elements that then need a patch.
    #[inline(always)]
    pub fn of(&self, highs: [usize; QUAD]) -> (Quad, PatchMask) {
        self.0[place_of(highs)]
    }
}

/// The bits of all quads, including the patches that they need.
pub fn cost(table: &QuadTable, counts: &QuadCounts) -> u64 {
    cost_of_patches(table, counts, PATCH)
}

/// As [`cost`], where a patch counts as `patch` bits.
pub fn cost_of_patches(table: &QuadTable, counts: &QuadCounts, patch: u32) -> u64 {
    Nearest::new(table.codes().map(|(quad, length, _)| (quad, length))).cost(counts, patch)
}

/// The cheapest table with codes of at most `bits` bits: it covers as many of the commonest quads as minimize the total
/// cost, the table's own bytes included.
pub fn choose(bits: u32, counts: &QuadCounts) -> QuadTable {
    let mut common: Vec<(u64, Quad)> = counts
        .iter()
        .filter_map(|(place, n)| {
            let highs = highs_at(place);
            (!highs.contains(&ESCAPE)).then(|| (n, (0..QUAD).map(|i| (highs[i] as Quad) << (4 * i)).sum()))
        })
        .collect();
    // A complete code needs two symbols; those that never occur cost nothing.
    for quad in 0..2 {
        if common.len() < 2 && common.iter().all(|c| c.1 != quad) {
            common.push((0, quad));
        }
    }
    common.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let most = common.len().min(1 << bits);
    // Starts at a size that is about right and goes up while costs fall, or else down.
    let about = common.partition_point(|&(n, _)| n << (bits + 1) >= counts.quads()).clamp(2, most);
    let size = |step: i32| ((about as f64 * GROWTH.powi(step)) as usize).max(2).min(most);
    let mut best = with_size(bits, &common, about, counts);
    for direction in [1, -1] {
        let mut improved = false;
        for step in 1.. {
            let (now, before) = (size(step * direction), size((step - 1) * direction));
            if now == before && (now == 2 || now == most) {
                break;
            }
            if now == before {
                continue;
            }
            let next = with_size(bits, &common, now, counts);
            if next.0 >= best.0 {
                break;
            }
            (best, improved) = (next, true);
        }
        if improved {
            break;
        }
    }
    best.1
}

/// The table for the `size` commonest quads, and the total bits with it.
fn with_size(bits: u32, common: &[(u64, Quad)], size: usize, counts: &QuadCounts) -> (u64, QuadTable) {
    let total = counts.quads().max(1);
    // Estimates, before there are codes: ideal lengths, rounded and limited to `bits`.
    let wanted = |n: u64| (total as f64 / n.max(1) as f64).log2().round().clamp(1.0, f64::from(bits)) as u8;
    let nearest = Nearest::new(common[..size].iter().map(|&(n, quad)| (quad, wanted(n))));
    let mut places = vec![usize::MAX; QUADS];
    common[..size].iter().enumerate().for_each(|(i, &(_, quad))| places[index_of(quad)] = i);
    let mut histogram = vec![0u64; size];
    counts.iter().for_each(|(place, n)| histogram[places[index_of(nearest.of(place).1)]] += n);
    let table = table_of(bits, &common[..size], &histogram);
    (cost(&table, counts) + STORED * size as u64, table)
}

/// The smallest code for quads with these counts.
fn table_of(bits: u32, quads: &[(u64, Quad)], histogram: &[u64]) -> QuadTable {
    let mut order: Vec<usize> = (0..quads.len()).collect();
    order.sort_by_key(|&i| (histogram[i], std::cmp::Reverse(quads[i].1)));
    // Even a quad that never occurs gets a code here.
    let sorted: Vec<u64> = order.iter().map(|&i| histogram[i].max(1)).collect();
    let lengths = limited_lengths(bits, &sorted);
    QuadTable::from_lengths(bits, order.iter().zip(lengths).map(|(&i, length)| (quads[i].1, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::pool::Pool;
    use proptest::prelude::*;

    fn counts_of(symbols: &[i8], shift: u32) -> QuadCounts {
        QuadCounts::count(symbols, symbols.len(), shift, &Pool::new(None).unwrap(), &Cancel::new()).unwrap()
    }

    fn quad(highs: [Quad; 4]) -> Quad {
        (0..4).map(|i| highs[i] << (4 * i)).sum()
    }

    #[test]
    fn the_nearest_quad_shares_most_elements_and_its_code_is_short() {
        let codes = [([0, 0, 0, 0], 1), ([1, 2, 3, 4], 5), ([1, 2, 3, 5], 6), ([1, 2, 0, 0], 3), ([7, 2, 3, 4], 5)];
        let table = Substitutes::new(codes.into_iter().map(|(highs, length)| (quad(highs), length)));
        let of = |highs| table.of(highs);
        assert_eq!(of([1, 2, 3, 4]), (quad([1, 2, 3, 4]), 0), "a code of its own");
        assert_eq!(of([1, 2, 3, 6]), (quad([1, 2, 3, 4]), 0b1000), "the shorter code of two");
        assert_eq!(of([2, 2, 3, 4]), (quad([1, 2, 3, 4]), 1), "equal lengths: the smaller symbol");
        assert_eq!(of([1, 2, 5, 6]), (quad([1, 2, 0, 0]), 0b1100), "two patches");
        assert_eq!(of([6, 6, 6, 0]), (quad([0, 0, 0, 0]), 0b0111), "three");
        assert_eq!(of([6, 6, 6, 6]), (quad([0, 0, 0, 0]), 0b1111), "no element can be kept");
        assert_eq!(of([1, 2, 3, ESCAPE]), (quad([1, 2, 3, 4]), 0), "an escape has a patch whatever is coded");
        assert_eq!(of([1, 2, 6, ESCAPE]), (quad([1, 2, 0, 0]), 0b0100));
        assert_eq!(of([ESCAPE; 4]), (quad([0, 0, 0, 0]), 0));
    }

    #[test]
    fn what_is_met_once_gets_no_code_and_what_is_common_does() {
        let mut symbols: Vec<i8> = (0..40_000).map(|i| (i * i / 3 % 4) as i8).collect();
        symbols[100..108].copy_from_slice(&[5, 7, 6, 0, 100, 0, 2, -100]);
        let counts = counts_of(&symbols, 0);
        assert_eq!(counts.escapes(), 2);
        for bits in 8..=12 {
            let table = choose(bits, &counts);
            assert!(table.lengths()[index_of(quad([5, 7, 6, 0]))] == 0);
            assert!(counts.iter().filter(|c| c.1 > 1000).count() > 2);
            for (place, n) in counts.iter().filter(|c| c.1 > 1000) {
                let highs = highs_at(place).map(|h| h as Quad);
                assert!(table.lengths()[index_of(quad(highs))] > 0, "{n} times");
            }
        }
    }

    /// The cheapest of all ways, each looked at.
    fn of_all_ways(codes: &[(Quad, u8)], place: usize) -> (u8, Quad, PatchMask) {
        let highs = highs_at(place);
        let fitting = codes.iter().map(|&(quad, length)| {
            let differs = |i: usize| highs[i] != ESCAPE && usize::from(quad >> (4 * i) & 7) != highs[i];
            let mask: PatchMask = (0..QUAD).filter(|&i| differs(i)).map(|i| 1 << i).sum();
            (u32::from(length) + PATCH * mask.count_ones(), length, quad, mask)
        });
        fitting.min().map_or((0, 0, 0), |(_, length, quad, mask)| (length, quad, mask))
    }

    proptest! {
        #[test]
        fn the_nearest_code_is_the_cheapest_of_all(
            codes in prop::collection::btree_map(prop::array::uniform4(0 as Quad..8), 1u8..13, 1..40),
        ) {
            let codes: Vec<(Quad, u8)> = codes.into_iter().map(|(highs, length)| (quad(highs), length)).collect();
            let nearest = Nearest::new(codes.iter().copied());
            for place in 0..COUNTED {
                prop_assert_eq!(nearest.of(place), of_all_ways(&codes, place));
            }
        }

        #[test]
        fn every_quad_has_a_code_or_one_in_its_place(
            symbols in prop::collection::vec(prop_oneof![-2i8..2, -20i8..20, any::<i8>()], 0..4000),
            shift in 0u32..5, bits in 8u32..13,
        ) {
            let counts = counts_of(&symbols, shift);
            let table = choose(bits, &counts);
            prop_assert_eq!(&QuadTable::from_bytes(bits, &table.to_bytes()).unwrap(), &table);
            let substitutes = Substitutes::new(table.codes().map(|(quad, length, _)| (quad, length)));
            for place in 0..COUNTED {
                let (quad, mask) = substitutes.0[place];
                prop_assert!(table.lengths()[index_of(quad)] > 0);
                for (i, high) in highs_at(place).into_iter().enumerate() {
                    let same = usize::from(quad >> (4 * i) & 7) == high;
                    prop_assert_eq!(mask >> i & 1 == 1, high != ESCAPE && !same);
                }
            }
            prop_assert!(cost(&table, &counts) <= counts.quads() * u64::from(bits) + 128 * counts.quads());
        }

    }
}
