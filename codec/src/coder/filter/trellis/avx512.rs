//! Levels of 64 symbols at once with AVX-512: the path's bits are a mask, and so are the quantizers.

use std::arch::x86_64::*;

use super::{Carry, RUN, words};
use crate::coder::Isa;

/// Turns the symbols of rows into levels.
///
/// # Panics
/// AVX-512 is missing.
pub fn undo<'a>(rows: impl Iterator<Item = &'a mut [i8]>) {
    assert!(Isa::Avx512.is_available());
    for row in rows {
        // SAFETY: AVX-512 is available.
        unsafe { levels_of(row) };
    }
}

/// Turns the symbols of a row into levels.
#[target_feature(enable = "avx512f,avx512bw")]
fn levels_of(row: &mut [i8]) {
    let (lowest, sign) = (_mm512_set1_epi8(1), _mm512_set1_epi8(-128));
    let mut carry = Carry::default();
    let (runs, end) = row.as_chunks_mut::<RUN>();
    for run in runs {
        // SAFETY: a run has 64 bytes.
        let symbols = unsafe { _mm512_loadu_si512(run.as_ptr().cast()) };
        let quantizers = carry.quantizers(_mm512_test_epi8_mask(symbols, lowest));
        // The symbol's bits where `sign` is set, else those of twice the symbol, which is even.
        let even = _mm512_ternarylogic_epi32::<0xCA>(sign, symbols, _mm512_add_epi8(symbols, symbols));
        let levels = _mm512_mask_add_epi8(even, quantizers, even, lowest);
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(run.as_mut_ptr().cast(), levels) };
    }
    words(end, carry.0);
}
