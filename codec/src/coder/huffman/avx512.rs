//! The decoder of `huffman` with AVX-512: the 32 lanes of a chunk are two vectors, which look up their codes at once.

use std::arch::x86_64::*;

use super::{HuffmanDecoder, INDEX_BITS, split_body};
use crate::coder::{Isa, LANES};
use crate::error::Result;

/// Lanes of a vector, and vectors of a chunk.
const WIDE: usize = 16;
const VECTORS: usize = LANES / WIDE;
/// Zeros behind a stream: what a vector reads from its end on.
const BEYOND: usize = 4;

/// Fills `symbols` (`[step][lane]`), and returns the bit at which each lane ended: what the
/// [reference](HuffmanDecoder::decode_reference) does, on every input. `copy` is scratch.
///
/// # Errors
/// The body is shorter than its header.
///
/// # Panics
/// AVX-512 is missing.
pub fn decode(decoder: &HuffmanDecoder, body: &[u8], symbols: &mut [u8], copy: &mut Vec<u8>) -> Result<[usize; LANES]> {
    assert!(Isa::Avx512.is_available());
    let (bounds, bits) = split_body(body)?;
    copy.clear();
    copy.extend_from_slice(bits);
    copy.resize(bits.len() + BEYOND, 0);
    let begin: [u32; LANES] = std::array::from_fn(|lane| bounds[lane] as u32);
    // SAFETY: AVX-512 is there, and `copy` has the zeros that the function wants behind the stream.
    let ends = unsafe { follow(&decoder.wide, copy, begin, symbols.as_chunks_mut::<LANES>().0) };
    Ok(ends.map(|end| end as usize))
}

/// # Safety
/// AVX-512 F must be there; the last [`BEYOND`] bytes of `stream` are zeros, behind the stream's own.
#[target_feature(enable = "avx512f")]
unsafe fn follow(
    table: &[u32; 1 << INDEX_BITS],
    stream: &[u8],
    begin: [u32; LANES],
    steps: &mut [[u8; LANES]],
) -> [u32; LANES] {
    let last = _mm512_set1_epi32((stream.len() - BEYOND) as i32);
    let (index, seven, length) =
        (_mm512_set1_epi32((1 << INDEX_BITS) - 1), _mm512_set1_epi32(7), _mm512_set1_epi32(0xFF));
    // SAFETY: `begin` has 32 numbers of 32 bits.
    let mut at: [__m512i; VECTORS] =
        std::array::from_fn(|v| unsafe { _mm512_loadu_si512(begin.as_ptr().add(v * WIDE).cast()) });
    // 32 bits at any bit position leave 25, which two codes of at most 12 fit.
    for two in steps.chunks_mut(2) {
        let mut window = at.map(|at| {
            // From the stream's end on there are zeros, wherever a damaged one leads.
            let byte = _mm512_min_epu32(_mm512_srli_epi32::<3>(at), last);
            // SAFETY: four bytes from `last` on at most, which are in `stream`.
            let word = unsafe { _mm512_i32gather_epi32::<1>(byte, stream.as_ptr().cast()) };
            _mm512_srlv_epi32(word, _mm512_and_si512(at, seven))
        });
        for step in two {
            for v in 0..VECTORS {
                let place = _mm512_and_si512(window[v], index);
                // SAFETY: the index is below the table's length.
                let entry = unsafe { _mm512_i32gather_epi32::<4>(place, table.as_ptr().cast()) };
                let used = _mm512_and_si512(entry, length);
                window[v] = _mm512_srlv_epi32(window[v], used);
                at[v] = _mm512_add_epi32(at[v], used);
                let found = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(entry));
                // SAFETY: a step has room for 16 symbols of each vector.
                unsafe { _mm_storeu_si128(step.as_mut_ptr().add(v * WIDE).cast(), found) };
            }
        }
    }
    let mut ends = [0; LANES];
    for (v, at) in at.into_iter().enumerate() {
        // SAFETY: `ends` has 32 numbers of 32 bits.
        unsafe { _mm512_storeu_si512(ends.as_mut_ptr().add(v * WIDE).cast(), at) };
    }
    ends
}
