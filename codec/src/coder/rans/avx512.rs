//! Decodes `rans` with AVX-512: a tile's 32 states are two vectors, and its symbols become rows of the tile without
//! leaving the registers.

use std::arch::x86_64::*;

use super::{Ending, LOW, RansDecoder, copy_words, split_body};
use crate::coder::chunk_format::ChunkFormat;
use crate::coder::pair::{low_mask, side_places};
use crate::coder::{BLOCK_COLS, LANES, Layout, TILE_ROWS};
use crate::error::Result;

/// One chunk to decode.
#[derive(Clone, Copy)]
pub struct ChunkStreams<'a> {
    pub body: &'a [u8],
    pub side: &'a [u8],
}

/// Lanes per vector, and vectors per tile.
const WIDE: usize = 16;
const VECTORS: usize = LANES / WIDE;

/// The state of a tile's decoder.
#[derive(Clone, Copy)]
struct State {
    x: [__m512i; VECTORS],
    /// The next word.
    next: *const u16,
}

/// Decodes `N` neighbouring tiles of equal `width` at once into `out`, which begins at the first one's first element
/// and has rows `stride` apart. Several at a time hide the latency of table lookups. Returns whether each stream ends
/// as a valid one does, and its lanes' tails; an error means that nothing was decoded. `copies` is scratch, at least
/// `N` vectors.
///
/// # Panics
/// AVX-512 is missing, or `out`, a side plane or `copies` is too short.
pub fn decode<const N: usize>(
    decoder: &RansDecoder,
    format: ChunkFormat,
    jobs: [ChunkStreams<'_>; N],
    width: usize,
    out: &mut [i8],
    stride: usize,
    copies: &mut [Vec<u16>],
) -> Result<[(Result<()>, [u32; LANES]); N]> {
    assert!(crate::coder::Isa::Avx512.is_available());
    assert!(out.len() >= (TILE_ROWS - 1) * stride + N * width && stride >= N * width);
    assert!(jobs.iter().all(|j| j.side.len() == format.side_bytes(width)));
    let mut states = [[0; LANES]; N];
    let mut ends = [0; N];
    for i in 0..N {
        let (x, words) = split_body(jobs[i].body)?;
        states[i] = x;
        ends[i] = words.len();
        copy_words(words, format.layout, &mut copies[i]);
    }
    let words: [&[u16]; N] = std::array::from_fn(|i| &copies[i][..]);
    // SAFETY: AVX-512 F, BW and VL are available, and the lengths that the function relies on were checked above: each
    // `words[i]` has a block's worth of words after `ends[i]`, `out` holds 16 rows of N tiles, and `side` is as long as
    // the format says.
    Ok(unsafe {
        match (format.layout, format.shift) {
            (Layout::Byte, _) => {
                decode_with_avx512::<N, BYTE, 0>(decoder, jobs, states, words, ends, width, out, stride)
            }
            (Layout::Split, _) => {
                decode_with_avx512::<N, SPLIT, 0>(decoder, jobs, states, words, ends, width, out, stride)
            }
            (Layout::Quad, _) => unreachable!("of coder huffman only"),
            (Layout::Pair, 0) => {
                decode_with_avx512::<N, PAIR, 0>(decoder, jobs, states, words, ends, width, out, stride)
            }
            (Layout::Pair, 1) => {
                decode_with_avx512::<N, PAIR, 1>(decoder, jobs, states, words, ends, width, out, stride)
            }
            (Layout::Pair, 2) => {
                decode_with_avx512::<N, PAIR, 2>(decoder, jobs, states, words, ends, width, out, stride)
            }
            (Layout::Pair, _) => {
                decode_with_avx512::<N, PAIR, 3>(decoder, jobs, states, words, ends, width, out, stride)
            }
        }
    })
}

/// Layouts, as constants that functions can be specialized for.
const BYTE: u8 = 0;
const PAIR: u8 = 1;
const SPLIT: u8 = 2;

/// Layout and shift are constants, so that branches on them are resolved at compile time and rotations have fixed
/// distances.
///
/// # Safety
/// See the call.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt,bmi2")]
#[allow(clippy::too_many_arguments)]
unsafe fn decode_with_avx512<const N: usize, const LAYOUT: u8, const SHIFT: u32>(
    decoder: &RansDecoder,
    jobs: [ChunkStreams<'_>; N],
    states: [[u32; LANES]; N],
    words: [&[u16]; N],
    ends: [usize; N],
    width: usize,
    out: &mut [i8],
    stride: usize,
) -> [(Result<()>, [u32; LANES]); N] {
    // Loops and functions rather than closures passed to the standard library: those are compiled without AVX-512, so
    // they would not be inlined and would not keep vectors in registers.
    let mut used = [0; N];
    let mut endings = [const { (Ok(()), [0; LANES]) }; N];
    let mut tiles = [State { x: [_mm512_setzero_si512(); VECTORS], next: std::ptr::null() }; N];
    for i in 0..N {
        tiles[i].x = load(&states[i]);
    }
    let lookup = decoder.lookup();
    assert!(lookup.len() == 1 << decoder.bits());
    let steps = Steps {
        lookup: lookup.as_ptr(),
        mask: _mm512_set1_epi32((1 << decoder.bits()) - 1),
        bits: _mm_cvtsi32_si128(decoder.bits() as i32),
    };

    let blocks = width / BLOCK_COLS;
    // Eight words of four elements a lane (`byte`), or their coded symbols (`pair`), per tile and vector. Allocated
    // once, since zeroing takes time.
    let mut quads = [[[_mm512_setzero_si512(); VECTORS]; 8]; N];
    for block in 0..blocks {
        let last = block + 1 == blocks;
        // Words beyond the end are zeros, enough for a block.
        let mut first = [std::ptr::null(); N];
        for i in 0..N {
            first[i] = words[i][used[i].min(ends[i])..].as_ptr();
            tiles[i].next = first[i];
        }
        for k in 0..8 {
            if LAYOUT == PAIR {
                let mut parts = [[[_mm512_setzero_si512(); VECTORS]; 2]; N];
                for s in 0..2 {
                    for i in 0..N {
                        // SAFETY: as the caller promises.
                        parts[i][s] = unsafe { step(&steps, &mut tiles[i]) };
                    }
                }
                for i in 0..N {
                    for v in 0..VECTORS {
                        quads[i][k][v] = high_parts(parts[i][0][v], parts[i][1][v]);
                    }
                }
            } else {
                // In layout `byte` the last four symbols of a tile are its tails.
                if last && k == 7 && LAYOUT == BYTE {
                    continue;
                }
                for s in 0..4 {
                    for i in 0..N {
                        // SAFETY: as the caller promises.
                        let e = unsafe { step(&steps, &mut tiles[i]) };
                        for v in 0..VECTORS {
                            // Symbols enter at the top, so that the first one ends up lowest.
                            let top = _mm512_set1_epi32(0xFF00_0000_u32 as i32);
                            let top = _mm512_and_si512(_mm512_slli_epi32::<12>(e[v]), top);
                            let shifted = _mm512_srli_epi32::<8>(quads[i][k][v]);
                            quads[i][k][v] = if s == 0 { top } else { _mm512_or_si512(shifted, top) };
                        }
                    }
                }
            }
        }
        for i in 0..N {
            // SAFETY: both are in `words[i]`.
            used[i] += unsafe { tiles[i].next.offset_from_unsigned(first[i]) };
            if last {
                let ending = Ending { states: store(&tiles[i].x), words_used: used[i] };
                let (tails, verdict) = ending.tails(jobs[i].body);
                endings[i] = (verdict, tails);
                if LAYOUT == BYTE {
                    quads[i][7] = load(&tails);
                }
            }
            for v in 0..VECTORS {
                let mut q = [_mm512_setzero_si512(); 8];
                for k in 0..8 {
                    q[k] = quads[i][k][v];
                }
                if LAYOUT == PAIR {
                    let tails = if last { Some(&endings[i].1) } else { None };
                    // SAFETY: the side plane has the length of the format.
                    let side = unsafe { load_side::<SHIFT>(jobs[i].side, block, v, tails) };
                    q = join::<SHIFT>(q, side);
                }
                for half in 0..2 {
                    let rows = transpose([q[half * 4], q[half * 4 + 1], q[half * 4 + 2], q[half * 4 + 3]]);
                    for r in 0..4 {
                        let at = (half * 8 + v * 4 + r) * stride + i * width + block * BLOCK_COLS;
                        debug_assert!(at + 64 <= out.len());
                        // SAFETY: `out` holds 16 rows of N tiles, checked by the caller.
                        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(at).cast(), rows[r]) };
                    }
                }
            }
        }
    }
    endings
}

/// 32 words in two vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(words: &[u32; LANES]) -> [__m512i; VECTORS] {
    let mut x = [_mm512_setzero_si512(); VECTORS];
    for v in 0..VECTORS {
        // SAFETY: 32 u32 are two vectors.
        x[v] = unsafe { _mm512_loadu_epi32(words.as_ptr().add(v * WIDE).cast()) };
    }
    x
}

/// The inverse of [`load`].
#[inline]
#[target_feature(enable = "avx512f")]
fn store(x: &[__m512i; VECTORS]) -> [u32; LANES] {
    let mut words = [0; LANES];
    for v in 0..VECTORS {
        // SAFETY: 32 u32 hold two vectors.
        unsafe { _mm512_storeu_epi32(words.as_mut_ptr().add(v * WIDE).cast(), x[v]) };
    }
    words
}

/// The values that the steps of all tiles share.
struct Steps {
    lookup: *const u32,
    /// Mask of a state's slot.
    mask: __m512i,
    /// log2 of the slots.
    bits: __m128i,
}

/// One step of all lanes of a tile: returns the entries, which hold the symbols.
///
/// # Safety
/// The table has an entry for each slot, and 32 words are readable from the tile's next one on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,popcnt,bmi2")]
unsafe fn step(steps: &Steps, tile: &mut State) -> [__m512i; VECTORS] {
    let field = _mm512_set1_epi32(0xFFF);
    let mut entries = [_mm512_setzero_si512(); VECTORS];
    for v in 0..VECTORS {
        let x = tile.x[v];
        let slot = _mm512_and_si512(x, steps.mask);
        // SAFETY: the table has an entry for each slot.
        let e = unsafe { _mm512_i32gather_epi32::<4>(slot, steps.lookup.cast()) };
        let offset = _mm512_srli_epi32::<20>(e);
        let next = _mm512_mullo_epi32(_mm512_and_si512(e, field), _mm512_srl_epi32(x, steps.bits));
        let next = _mm512_add_epi32(next, offset);
        let needy = _mm512_cmplt_epu32_mask(next, _mm512_set1_epi32(LOW as i32));
        // SAFETY: as the caller promises; the first vector takes 16 of the words at most.
        let fresh = unsafe { _mm256_loadu_si256(tile.next.cast()) };
        let fresh = _mm512_maskz_expand_epi32(needy, _mm512_cvtepu16_epi32(fresh));
        let refilled = _mm512_or_si512(_mm512_slli_epi32::<16>(next), fresh);
        tile.x[v] = _mm512_mask_mov_epi32(next, needy, refilled);
        // SAFETY: as above.
        tile.next = unsafe { tile.next.add(needy.count_ones() as usize) };
        entries[v] = e;
    }
    entries
}

/// High parts of four elements, one a byte, from two entries.
#[inline]
#[target_feature(enable = "avx512f")]
fn high_parts(e0: __m512i, e1: __m512i) -> __m512i {
    let first = _mm512_and_si512(_mm512_srli_epi32::<12>(e0), _mm512_set1_epi32(0xFF));
    let second = _mm512_and_si512(_mm512_slli_epi32::<4>(e1), _mm512_set1_epi32(0xFF_0000));
    let both = _mm512_or_si512(first, second);
    let spread = _mm512_or_si512(both, _mm512_slli_epi32::<4>(both));
    _mm512_and_si512(spread, _mm512_set1_epi32(0x0F0F_0F0F))
}

/// Side words of 16 lanes; in the last block, the last word is the lane's tail.
///
/// # Safety
/// `side` holds the side words of `block`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2")]
unsafe fn load_side<const SHIFT: u32>(
    side: &[u8],
    block: usize,
    v: usize,
    tails: Option<&[u32; LANES]>,
) -> [__m512i; 4] {
    let words = SHIFT as usize + 1;
    let mut loaded = [_mm512_setzero_si512(); 4];
    for word in 0..words {
        let at = ((block * words + word) * LANES + v * WIDE) * 4;
        loaded[word] = match tails {
            // SAFETY: 32 u32 are two vectors.
            Some(tails) if word + 1 == words => unsafe { _mm512_loadu_epi32(tails.as_ptr().add(v * WIDE).cast()) },
            _ => {
                debug_assert!(at + 64 <= side.len());
                // SAFETY: one word for each lane, within the side plane.
                unsafe { _mm512_loadu_si512(side.as_ptr().add(at).cast()) }
            }
        };
    }
    loaded
}

/// Elements from their high parts and side words: `pair::join`, 16 lanes at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn join<const SHIFT: u32>(high: [__m512i; 8], side: [__m512i; 4]) -> [__m512i; 8] {
    let signs = _mm512_set1_epi32(0x8080_8080_u32 as i32);
    let low = _mm512_set1_epi32(low_mask(SHIFT) as i32);
    let mut q = high;
    for k in 0..8 {
        let [(sign, sign_left), (rest, rest_left)] = side_places(SHIFT, k);
        let (sign, rest) = (rotate(side[sign], sign_left), rotate(side[rest], rest_left));
        let v = _mm512_sll_epi32(high[k], _mm_cvtsi32_si128(SHIFT as i32));
        let v = _mm512_or_si512(v, _mm512_and_si512(rest, low));
        let negative = _mm512_movepi8_mask(_mm512_and_si512(sign, signs));
        q[k] = _mm512_xor_si512(v, _mm512_movm_epi8(negative));
    }
    q
}

#[inline]
#[target_feature(enable = "avx512f")]
fn rotate(x: __m512i, by: u32) -> __m512i {
    _mm512_rolv_epi32(x, _mm512_set1_epi32(by as i32))
}

/// Four words of each of 16 lanes -> four rows of 64 elements, lane l of a row's four giving its columns from 16 (l mod 4).
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(q: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b] = [_mm512_unpacklo_epi32(q[0], q[1]), _mm512_unpackhi_epi32(q[0], q[1])];
    let [c, d] = [_mm512_unpacklo_epi32(q[2], q[3]), _mm512_unpackhi_epi32(q[2], q[3])];
    let lanes = [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ];
    let e = _mm512_shuffle_i32x4::<0x44>(lanes[0], lanes[1]);
    let f = _mm512_shuffle_i32x4::<0x44>(lanes[2], lanes[3]);
    let g = _mm512_shuffle_i32x4::<0xEE>(lanes[0], lanes[1]);
    let h = _mm512_shuffle_i32x4::<0xEE>(lanes[2], lanes[3]);
    [
        _mm512_shuffle_i32x4::<0x88>(e, f),
        _mm512_shuffle_i32x4::<0xDD>(e, f),
        _mm512_shuffle_i32x4::<0x88>(g, h),
        _mm512_shuffle_i32x4::<0xDD>(g, h),
    ]
}
