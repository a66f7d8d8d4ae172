//! Decodes `huffman` with AVX-512: the streams of a chunk are two or four vectors, which look up their codes at once.

use std::arch::x86_64::*;

use super::{Body, HuffmanDecoder, INDEX_BITS, SYMBOL_AT, Symbol};
use crate::coder::Isa;
use crate::coder::quad::Quad;
use crate::error::Result;

/// Streams per vector, and the most vectors per chunk.
const WIDE: usize = 16;
const MOST_VECTORS: usize = 4;
/// Zeros after a stream, for vector loads at its end.
const BEYOND: usize = 4;

/// Fills `symbols` (`[step][stream]`) and returns the bit at which each stream ended, exactly as the
/// [reference](HuffmanDecoder::decode_reference) does on every input. `copy` is scratch.
///
/// # Errors
/// The body is shorter than its header.
///
/// # Panics
/// AVX-512 is missing.
pub fn decode<S: Symbol, const N: usize>(
    decoder: &HuffmanDecoder,
    body: &[u8],
    symbols: &mut [S],
    copy: &mut Vec<u8>,
) -> Result<[usize; N]> {
    assert!(Isa::Avx512.is_available());
    let Body { begins, bits, .. } = Body::<N>::new(body)?;
    copy.clear();
    copy.extend_from_slice(bits);
    copy.resize(bits.len() + BEYOND, 0);
    let begin = begins.map(|begin| begin as u32);
    // SAFETY: AVX-512 is available, and `copy` has the zeros that the function requires after the stream.
    let ends = unsafe { follow::<S, N>(&decoder.lookup, copy, begin, symbols.as_chunks_mut::<N>().0) };
    Ok(ends.map(|end| end as usize))
}

/// # Safety
/// AVX-512 F must be available; the last [`BEYOND`] bytes of `stream` must be zeros that follow the stream's own bytes.
#[target_feature(enable = "avx512f")]
unsafe fn follow<S: Symbol, const N: usize>(
    table: &[u32; 1 << INDEX_BITS],
    stream: &[u8],
    begin: [u32; N],
    steps: &mut [[S; N]],
) -> [u32; N] {
    const { assert!(N.is_multiple_of(WIDE) && N / WIDE <= MOST_VECTORS) };
    let last = _mm512_set1_epi32((stream.len() - BEYOND) as i32);
    let (index, seven, length) =
        (_mm512_set1_epi32((1 << INDEX_BITS) - 1), _mm512_set1_epi32(7), _mm512_set1_epi32(0xFF));
    // SAFETY: `begin` has N numbers of 32 bits, N / 16 vectors.
    let mut at: [__m512i; MOST_VECTORS] =
        std::array::from_fn(|v| unsafe { _mm512_loadu_si512(begin.as_ptr().add(v % (N / WIDE) * WIDE).cast()) });
    // A 32-bit load at any bit position yields 25 bits, which fit two codes of at most 12.
    for two in steps.chunks_mut(2) {
        let mut window = at.map(|at| {
            // Beyond the stream's end there are zeros, however far a damaged one leads.
            let byte = _mm512_min_epu32(_mm512_srli_epi32::<3>(at), last);
            // SAFETY: at most four bytes from `last` on, which are in `stream`.
            let word = unsafe { _mm512_i32gather_epi32::<1>(byte, stream.as_ptr().cast()) };
            _mm512_srlv_epi32(word, _mm512_and_si512(at, seven))
        });
        for step in two {
            for v in 0..N / WIDE {
                let place = _mm512_and_si512(window[v], index);
                // SAFETY: the index is below the table's length.
                let entry = unsafe { _mm512_i32gather_epi32::<4>(place, table.as_ptr().cast()) };
                let used = _mm512_and_si512(entry, length);
                window[v] = _mm512_srlv_epi32(window[v], used);
                at[v] = _mm512_add_epi32(at[v], used);
                // SAFETY: AVX-512 is available, and a step has room for 16 symbols of each vector.
                unsafe { S::store(entry, step.as_mut_ptr().add(v * WIDE)) };
            }
        }
    }
    let mut ends = [0; N];
    for (v, at) in at.into_iter().take(N / WIDE).enumerate() {
        // SAFETY: `ends` has N numbers of 32 bits.
        unsafe { _mm512_storeu_si512(ends.as_mut_ptr().add(v * WIDE).cast(), at) };
    }
    ends
}

/// [`Symbol::store`] for 8-bit symbols.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn store_bytes(entries: __m512i, to: *mut u8) {
    let symbols = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<SYMBOL_AT>(entries));
    // SAFETY: 16 bytes, for which there is room.
    unsafe { _mm_storeu_si128(to.cast(), symbols) };
}

/// [`Symbol::store`] for quads.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn store_quads(entries: __m512i, to: *mut Quad) {
    let symbols = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<SYMBOL_AT>(entries));
    // SAFETY: 32 bytes, for which there is room.
    unsafe { _mm256_storeu_si256(to.cast(), symbols) };
}
