//! Levels of 64 symbols at once with AVX2: two vectors, whose path bits form one mask.

use std::arch::x86_64::*;

use super::{Carry, RUN, words};
use crate::coder::Isa;

/// Bytes of a vector, and vectors of a run.
const WIDE: usize = 32;
const VECTORS: usize = RUN / WIDE;

/// Turns the symbols of rows into levels.
///
/// # Panics
/// AVX2 is missing.
pub fn undo<'a>(rows: impl Iterator<Item = &'a mut [i8]>) {
    assert!(Isa::Avx2.is_available());
    for row in rows {
        // SAFETY: AVX2 is available.
        unsafe { levels_of(row) };
    }
}

/// Turns the symbols of a row into levels.
#[target_feature(enable = "avx2")]
fn levels_of(row: &mut [i8]) {
    let (sign, rest) = (_mm256_set1_epi8(-128), _mm256_set1_epi8(0x7E));
    let mut carry = Carry::default();
    let (runs, end) = row.as_chunks_mut::<RUN>();
    for run in runs {
        let (mut symbols, mut bits) = ([_mm256_setzero_si256(); VECTORS], 0);
        for v in 0..VECTORS {
            // SAFETY: a run has the bytes of all its vectors.
            symbols[v] = unsafe { _mm256_loadu_si256(run.as_ptr().add(v * WIDE).cast()) };
            // Bit 0 of each byte moves to bit 7, from which the mask is taken.
            let mask = _mm256_movemask_epi8(_mm256_slli_epi16::<7>(symbols[v])) as u32;
            bits |= u64::from(mask) << (v * WIDE);
        }
        let quantizers = carry.quantizers(bits);
        for v in 0..VECTORS {
            let double = _mm256_and_si256(_mm256_add_epi8(symbols[v], symbols[v]), rest);
            let even = _mm256_or_si256(_mm256_and_si256(symbols[v], sign), double);
            // `spread` gives -1 where the quantizer is 1.
            let levels = _mm256_sub_epi8(even, spread((quantizers >> (v * WIDE)) as u32));
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(run.as_mut_ptr().add(v * WIDE).cast(), levels) };
        }
    }
    words(end, carry.0);
}

/// A byte for each bit: all ones where it is 1.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(bits: u32) -> __m256i {
    // Each byte gets the mask byte that holds its bit, then keeps only that bit.
    let places = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), places);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each)
}
