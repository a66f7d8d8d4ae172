//! Layout `quad`: one coded symbol holds the high parts of four neighbours; signs and low bits go to the side plane.
//! `FORMAT.md` section 3.
//!
//! A high part has three bits, at the same position of its byte for every shift, so a kernel needs nothing but the side
//! bits to complete a looked-up value.

use super::LANES;
use super::pair::fold;

mod counts;
mod substitutes;

pub use counts::{QuadCounts, single};
pub use substitutes::{PATCH, Substitutes, choose, cost, cost_of_patches};

/// Elements of a symbol.
pub const QUAD: usize = 4;
/// The index under which high parts are counted that a symbol does not hold: all that are larger than 7.
pub const ESCAPE: usize = 8;
/// The most uncoded bits of an element besides its sign: with these, every high part fits a symbol.
pub const MOST_SHIFT: u32 = 4;
/// The number of symbols.
pub const QUADS: usize = 1 << 12;
/// Streams of a chunk: two per lane, one for the words of its first row and one for those of the other.
pub const STREAMS: usize = 2 * LANES;
/// The most side words of a lane and block.
pub const MOST_SIDE: usize = MOST_SHIFT as usize + 1;

/// A coded symbol: the high part of element i in nibble i; the top bit of each nibble is 0.
pub type Quad = u16;

/// The bits that a symbol may have set.
pub const QUAD_BITS: Quad = 0x7777;

/// The index of a symbol in the alphabet.
#[inline(always)]
pub fn index_of(quad: Quad) -> usize {
    usize::from(quad & 7 | quad >> 1 & 0o70 | quad >> 2 & 0o700 | quad >> 3 & 0o7000)
}

/// The symbol at an index.
#[cfg(test)]
pub fn quad_at(index: usize) -> Quad {
    let index = index as Quad;
    index & 7 | (index & 0o70) << 1 | (index & 0o700) << 2 | (index & 0o7000) << 3
}

/// High parts of four elements; an escape's is [`ESCAPE`].
#[inline(always)]
pub fn highs(elements: [i8; QUAD], shift: u32) -> [usize; QUAD] {
    elements.map(|q| usize::from(fold(q) >> shift).min(ESCAPE))
}

/// Groups of a lane's words that lie together in a block's side plane: first word, and count. The groups split `shift +
/// 1` into powers of two, the largest first, so that a lane loads each group at once.
pub fn side_groups(shift: u32) -> impl Iterator<Item = (usize, usize)> {
    let words = shift as usize + 1;
    let mut first = 0;
    [4, 2, 1].into_iter().filter(move |&n| words & n != 0).map(move |n| {
        first += n;
        (first - n, n)
    })
}

/// The positions of the signs and of the low bits of word `k` of a lane and block: for each the side word and its left
/// shift (right if negative), which puts signs into bits 7 of bytes and low bits below bit 4.
#[inline(always)]
pub fn side_places(shift: u32, k: usize) -> [(usize, i32); 2] {
    let k32 = k as i32;
    match shift {
        0 => [(0, k32); 2],
        1 => [(k / 4, k32 % 4); 2],
        2 => [(0, k32), (1 + k / 4, 2 - 2 * (k32 % 4))],
        3 => [(k / 2, 4 * (k32 % 2)), (k / 2, [-3, 1][k % 2])],
        _ => [(0, k32), (1 + k / 2, -4 * (k32 % 2))],
    }
}

/// The mask of a byte's low bits where [`side_places`] puts them.
#[inline(always)]
const fn low_place(shift: u32) -> u32 {
    (0x0F << (4 - shift)) & 0x0F
}

const EACH_BYTE: u32 = 0x0101_0101;

#[inline(always)]
fn shifted(word: u32, left: i32) -> u32 {
    if left < 0 { word >> -left } else { word << left }
}

/// The side words of a lane and block from its eight words of elements: `shift + 1` of them; the others stay 0.
#[inline(always)]
pub fn pack_side(elements: &[u32; 8], shift: u32) -> [u32; MOST_SIDE] {
    let mut side = [0u32; MOST_SIDE];
    for (k, &q) in elements.iter().enumerate() {
        let sign = q & (0x80 * EACH_BYTE);
        let folded = q ^ ((sign >> 7) * 0xFF);
        let low = (folded << (4 - shift)) & (low_place(shift) * EACH_BYTE);
        let [(sign_word, sign_left), (low_word, low_left)] = side_places(shift, k);
        side[sign_word] |= shifted(sign, -sign_left);
        side[low_word] |= shifted(low, -low_left);
    }
    side
}

/// Four elements from their coded symbol and the side words of the lane and block.
#[cfg(test)]
pub fn join(quad: Quad, side: &[u32; MOST_SIDE], shift: u32, k: usize) -> u32 {
    let [(sign_word, sign_left), (low_word, low_left)] = side_places(shift, k);
    join_with(quad, shifted(side[sign_word], sign_left), shifted(side[low_word], low_left), shift)
}

/// Four elements from their coded symbol and from side words already shifted into place.
#[inline(always)]
pub fn join_with(quad: Quad, sign: u32, low: u32, shift: u32) -> u32 {
    let quad = u32::from(quad & QUAD_BITS);
    let pairs = (quad | (quad << 8)) & 0x00FF_00FF;
    let high = (pairs | (pairs << 4)) & 0x0707_0707;
    let v = ((high << 4) | (low & (low_place(shift) * EACH_BYTE))) >> (4 - shift);
    v ^ (((sign >> 7) & EACH_BYTE) * 0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::pair::with_high;
    use proptest::prelude::*;

    fn word(elements: &[i8]) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|b| elements[b] as u8))
    }

    proptest! {
        #[test]
        fn symbols_and_side_words_restore_every_element(q in prop::array::uniform32(any::<i8>()), shift in 0u32..5) {
            let words: [u32; 8] = std::array::from_fn(|k| word(&q[4 * k..]));
            let side = pack_side(&words, shift);
            prop_assert!(side[shift as usize + 1..].iter().all(|&w| w == 0));
            for k in 0..8 {
                let four = q[4 * k..][..4].try_into().unwrap();
                let high = highs(four, shift).map(|h| h.min(7) as u8);
                let quad = (0..4).map(|i| Quad::from(high[i]) << (4 * i)).sum();
                let got = join(quad, &side, shift, k).to_le_bytes().map(|b| b as i8);
                for i in 0..4 {
                    prop_assert_eq!(got[i], with_high(high[i], four[i], shift));
                    if fold(four[i]) >> shift <= 7 {
                        prop_assert_eq!(got[i], four[i]);
                    }
                }
                prop_assert_eq!(join(quad | 0x8888, &side, shift, k), word(&got));
            }
        }
    }

    #[test]
    fn places_are_numbers_of_symbols_in_their_order() {
        assert!((1..QUADS).all(|i| quad_at(i) > quad_at(i - 1) && quad_at(i) & !QUAD_BITS == 0));
        assert!((0..QUADS).all(|i| index_of(quad_at(i)) == i));
    }

    #[test]
    fn every_bit_of_the_side_words_says_something() {
        for shift in 0..=MOST_SHIFT {
            let all = pack_side(&[word(&[!0x7F; 4]); 8], shift);
            let none = pack_side(&[word(&[0x7F; 4]); 8], shift);
            let bits: u32 = all.iter().zip(none).map(|(a, n)| (a | n).count_ones()).sum();
            assert_eq!(bits, 32 * (shift + 1), "shift {shift}");
        }
        let groups: Vec<Vec<_>> = (0..=MOST_SHIFT).map(|s| side_groups(s).collect()).collect();
        assert_eq!(groups, [vec![(0, 1)], vec![(0, 2)], vec![(0, 2), (2, 1)], vec![(0, 4)], vec![(0, 4), (4, 1)]]);
    }
}
