//! Filter `trellis`: from the symbols of a path to its levels, and back. `FORMAT.md` section 4.
//!
//! The trellis has four states. One bit of the state selects which of two quantizers gives the next level; each
//! quantizer has every other level. That bit is the parity of the path's bits at every other column before, so shifts
//! compute it for a whole row at once.
//!
//! The path's bit is the symbol's bit 0. For a symbol `q` that writers use, the level is `2 q + Q`: its bit 7 is the
//! symbol's bit 7, its bits 1 to 6 are the symbol's bits 0 to 5, and its bit 0 is `Q`. (The symbol's bit 6 is dropped;
//! it equals bit 7 where the magnitude is below 64.) So the symbol of a level is half the level, rounded down.

use super::Isa;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512;

/// Turns levels, which must form a path, into their symbols, in place. The result is unspecified for levels that do not
/// form a path.
pub fn symbols_of(levels: &mut [i8]) {
    levels.iter_mut().for_each(|level| *level >>= 1);
}

/// Turns symbols into levels, in place: a row of a tile from its left edge. The reference.
pub fn levels_of(symbols: &mut [i8]) {
    let (mut quantizer, mut before) = (0u8, 0u8);
    for symbol in symbols {
        let q = *symbol as u8;
        *symbol = ((q & 0x80) | (q << 1 & 0x7E) | quantizer) as i8;
        (quantizer, before) = (before ^ (q & 1), quantizer);
    }
}

/// Turns symbols into levels, in place: `width` columns of rows that are `stride` apart, from the left edge of a tile.
///
/// # Panics
/// `stride` is 0, or this machine lacks `isa`.
pub fn undo(bytes: &mut [i8], stride: usize, width: usize, isa: Isa) {
    let rows = bytes.chunks_mut(stride).map(|row| {
        let width = width.min(row.len());
        &mut row[..width]
    });
    match isa {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Isa::Avx2 => avx2::undo(rows),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Isa::Avx512 => avx512::undo(rows),
        _ => rows.for_each(|row| words(row, 0)),
    }
}

/// Columns that vectors process at once: one per bit of a u64.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const RUN: usize = 64;

/// Every other column from the first one on.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const EVEN: u64 = 0x5555_5555_5555_5555;

/// The state that 64 columns pass on to the next 64: all even bits hold the quantizer of the next column, all odd bits
/// that of the column before it. A path bit of 1 flips the quantizers of every other column after it, so the next
/// quantizers are flipped where these bits are 1.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Default)]
struct Carry(u64);

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Carry {
    /// The quantizers of 64 columns, from the path's bits at those columns.
    #[inline(always)]
    fn quantizers(&mut self, bits: u64) -> u64 {
        // Each step doubles the number of bits summed: those at every other column up to this one.
        let mut sum = bits;
        for by in [2, 4, 8, 16, 32] {
            sum ^= sum << by;
        }
        let quantizers = sum << 1 ^ self.0;
        // The sums at the last two columns cover all even and all odd columns. A bit at an odd column affects the even
        // columns after it.
        let (even, odd) = (sum >> 63, sum >> 62 & 1);
        self.0 ^= (even.wrapping_neg() & EVEN) | (odd.wrapping_neg() & !EVEN);
        quantizers
    }
}

/// Turns symbols into levels, eight at once in portable code: a whole row, or the rest of one from an even column on,
/// with the [`Carry`] of the columns before.
#[inline]
fn words(row: &mut [i8], carry: u64) {
    // Laid out as in `Carry`, but with a byte for each column.
    let mut carry = (carry & 1 | (carry & 2) << 7) * 0x0001_0001_0001_0001;
    let (words, rest) = row.as_chunks_mut::<8>();
    for word in words {
        *word = levels_of_word(u64::from_le_bytes(word.map(|s| s as u8)), &mut carry).to_le_bytes().map(|n| n as i8);
    }
    let mut word = [0; 8];
    rest.iter().zip(&mut word).for_each(|(s, byte)| *byte = *s as u8);
    let word = levels_of_word(u64::from_le_bytes(word), &mut carry).to_le_bytes();
    rest.iter_mut().zip(word).for_each(|(s, n)| *s = n as i8);
}

/// Levels of eight symbols; the lowest byte is the first.
#[inline(always)]
fn levels_of_word(symbols: u64, carry: &mut u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const SIGN: u64 = 0x80 * EACH;
    const REST: u64 = 0x7E * EACH;
    const EVEN: u64 = 0x0001_0001_0001_0001;
    let mut sum = symbols & EACH;
    sum ^= sum << 16;
    sum ^= sum << 32;
    let quantizers = sum << 8 ^ *carry;
    let (even, odd) = (sum >> 56, sum >> 48 & 1);
    *carry ^= (even * EVEN) | ((odd * EVEN) << 8);
    (symbols & SIGN) | ((symbols << 1) & REST) | quantizers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(symbols: &[i8], stride: usize, width: usize) {
        let mut reference = symbols.to_vec();
        reference.chunks_mut(stride).for_each(|row| {
            let width = width.min(row.len());
            levels_of(&mut row[..width]);
        });
        for isa in Isa::available() {
            let mut levels = symbols.to_vec();
            undo(&mut levels, stride, width, isa);
            assert_eq!(levels, reference, "{isa}, {stride} x {width}: {symbols:?}");
        }
    }

    proptest! {
        #[test]
        fn all_instruction_sets_give_the_same_levels(
            rows in 1usize..18,
            width in prop_oneof![1usize..140, 1usize..1100],
            extra in 0usize..70,
            missing in 0usize..200,
            seed in prop::collection::vec(any::<i8>(), 1..1000),
        ) {
            let (stride, bytes) = (width + extra, rows * (width + extra));
            let symbols: Vec<i8> = seed.iter().copied().cycle().take(bytes - missing.min(bytes)).collect();
            check(&symbols, stride, width);
            check(&symbols, width, stride);
        }

        #[test]
        fn paths_come_back(symbols in prop::collection::vec(-64i8..64, 0..300)) {
            let mut bytes = symbols.clone();
            levels_of(&mut bytes);
            symbols_of(&mut bytes);
            prop_assert_eq!(bytes, symbols);
        }
    }

    #[test]
    fn every_symbol_behind_every_bit() {
        let row: Vec<i8> = (0..=255u8).flat_map(|s| [s as i8, s.wrapping_mul(77) as i8, s as i8 >> 1]).collect();
        let lengths = if cfg!(miri) { 150..153 } else { 1..row.len() };
        for width in lengths {
            check(&row, width, width);
        }
    }

    #[test]
    fn one_bit_reaches_every_other_column_behind_it() {
        let columns = if cfg!(miri) { 20 } else { 200 };
        for at in 0..columns {
            let mut symbols = vec![0i8; columns];
            symbols[at] = 1;
            check(&symbols, columns, columns);
            undo(&mut symbols, columns, columns, Isa::Scalar);
            let expected = |j: usize| 2 * i8::from(j == at) + i8::from(j > at && (j - at) % 2 == 1);
            assert!(symbols.iter().enumerate().all(|(j, n)| *n == expected(j)), "{symbols:?}");
        }
    }
}
