//! Decodes `rans` with AVX2: a tile's 32 states are four vectors.

use std::arch::x86_64::*;

use super::{Ending, LOW, RansDecoder, copy_words, split_body};
use crate::coder::chunk_format::ChunkFormat;
use crate::coder::pair::{low_mask, side_places};
use crate::coder::{BLOCK_COLS, LANES, Layout, TILE_ROWS};
use crate::error::Result;

/// Lanes per vector, and vectors per tile.
const WIDE: usize = 8;
const VECTORS: usize = LANES / WIDE;

/// For each mask of lanes that need a word, the index of the word that each lane gets (AVX2 has no expand).
static EXPAND: [[u8; WIDE]; 256] = {
    let mut table = [[0; WIDE]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut word) = (0, 0);
        while lane < WIDE {
            if mask >> lane & 1 == 1 {
                table[mask][lane] = word;
                word += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};

/// Decodes a tile of `width` columns into `out`, whose rows are `stride` apart. `words` is scratch. Returns whether the
/// stream ends as a valid one does, and the lanes' tails; an error means that nothing was decoded.
///
/// # Panics
/// AVX2 is missing, or `out` or the side plane is too short.
#[allow(clippy::too_many_arguments)]
pub fn decode(
    decoder: &RansDecoder,
    format: ChunkFormat,
    body: &[u8],
    side: &[u8],
    width: usize,
    out: &mut [i8],
    stride: usize,
    words: &mut Vec<u16>,
) -> Result<(Result<()>, [u32; LANES])> {
    assert!(crate::coder::Isa::Avx2.is_available());
    assert!(out.len() >= (TILE_ROWS - 1) * stride + width && stride >= width);
    assert!(side.len() == format.side_bytes(width));
    let (states, stream) = split_body(body)?;
    copy_words(stream, format.layout, words);
    // SAFETY: AVX2 is available, and the lengths that the function relies on were checked above.
    Ok(unsafe { decode_with_avx2(decoder, format, body, states, words, stream.len(), side, width, out, stride) })
}

/// # Safety
/// AVX2 is available; `words` has a block's worth of words after `end`; `out` holds 16 rows of `width` columns,
/// `stride` apart; `side` is as long as the format says.
#[target_feature(enable = "avx2,popcnt,bmi2")]
#[allow(clippy::too_many_arguments)]
unsafe fn decode_with_avx2(
    decoder: &RansDecoder,
    format: ChunkFormat,
    body: &[u8],
    states: [u32; LANES],
    words: &[u16],
    end: usize,
    side: &[u8],
    width: usize,
    out: &mut [i8],
    stride: usize,
) -> (Result<()>, [u32; LANES]) {
    // Loops rather than closures passed to the standard library: those are compiled without AVX2, so they would not be
    // inlined and would not keep vectors in registers.
    let mut x = load(&states);
    let mut used = 0usize;
    let (mut tails, mut verdict) = ([0; LANES], Ok(()));
    let bits = decoder.bits();
    let mask = _mm256_set1_epi32((1 << bits) - 1);
    let shift_bits = _mm_cvtsi32_si128(bits as i32);
    let field = _mm256_set1_epi32(0xFFF);
    let zero = _mm256_setzero_si256();
    let lookup = decoder.lookup();
    assert!(lookup.len() == 1 << bits && LOW == 1 << 16);

    let step = |x: &mut [__m256i; VECTORS], next_word: &mut *const u16| -> [__m256i; VECTORS] {
        let mut entries = [zero; VECTORS];
        for v in 0..VECTORS {
            let slot = _mm256_and_si256(x[v], mask);
            // SAFETY: a slot has `bits` bits, and the table has 2^bits entries.
            let e = unsafe { _mm256_i32gather_epi32::<4>(lookup.as_ptr().cast(), slot) };
            let offset = _mm256_srli_epi32::<20>(e);
            let next = _mm256_mullo_epi32(_mm256_and_si256(e, field), _mm256_srl_epi32(x[v], shift_bits));
            let next = _mm256_add_epi32(next, offset);
            // Unsigned and below 2^16: the upper half is 0.
            let needy = _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(next), zero);
            let lanes = _mm256_movemask_ps(_mm256_castsi256_ps(needy)) as usize;
            // SAFETY: a block takes fewer words than there are zeros after the last one.
            let fresh = unsafe { _mm_loadu_si128((*next_word).cast()) };
            // SAFETY: an entry of the table has eight bytes.
            let order = unsafe { _mm_loadl_epi64(EXPAND[lanes].as_ptr().cast()) };
            let fresh = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(fresh), _mm256_cvtepu8_epi32(order));
            let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(next), fresh);
            x[v] = _mm256_blendv_epi8(next, refilled, needy);
            // SAFETY: as above.
            *next_word = unsafe { next_word.add(lanes.count_ones() as usize) };
            entries[v] = e;
        }
        entries
    };

    let top = _mm256_set1_epi32(0xFF00_0000_u32 as i32);
    let blocks = width / BLOCK_COLS;
    let mut quads = [[zero; VECTORS]; 8];
    for block in 0..blocks {
        let last = block + 1 == blocks;
        let first = words[used.min(end)..].as_ptr();
        let mut next_word = first;
        for k in 0..8 {
            let quad = &mut quads[k];
            match format.layout {
                Layout::Pair => {
                    let (e0, e1) = (step(&mut x, &mut next_word), step(&mut x, &mut next_word));
                    for v in 0..VECTORS {
                        let first = _mm256_and_si256(_mm256_srli_epi32::<12>(e0[v]), _mm256_set1_epi32(0xFF));
                        let second = _mm256_and_si256(_mm256_slli_epi32::<4>(e1[v]), _mm256_set1_epi32(0xFF_0000));
                        let both = _mm256_or_si256(first, second);
                        let spread = _mm256_or_si256(both, _mm256_slli_epi32::<4>(both));
                        quad[v] = _mm256_and_si256(spread, _mm256_set1_epi32(0x0F0F_0F0F));
                    }
                }
                Layout::Quad => unreachable!("of coder huffman only"),
                Layout::Byte | Layout::Split => {
                    // In layout `byte` the last four symbols of a tile are its tails.
                    if last && k == 7 && format.layout == Layout::Byte {
                        continue;
                    }
                    for _ in 0..4 {
                        let e = step(&mut x, &mut next_word);
                        for v in 0..VECTORS {
                            // Symbols enter at the top, so that the first one ends up lowest.
                            let shifted = _mm256_srli_epi32::<8>(quad[v]);
                            quad[v] = _mm256_or_si256(shifted, _mm256_and_si256(_mm256_slli_epi32::<12>(e[v]), top));
                        }
                    }
                }
            }
        }
        // SAFETY: both are in `words`.
        used += unsafe { next_word.offset_from_unsigned(first) };
        if last {
            (tails, verdict) = Ending { states: store(&x), words_used: used }.tails(body);
            if format.layout == Layout::Byte {
                quads[7] = load(&tails);
            }
        }
        for v in 0..VECTORS {
            let mut q = [zero; 8];
            for k in 0..8 {
                q[k] = quads[k][v];
            }
            if format.layout == Layout::Pair {
                let tails = last.then_some(&tails);
                // SAFETY: the side plane has the length of the format.
                let words = unsafe { load_side(side, format.shift, block, v, tails) };
                q = join(q, words, format.shift);
            }
            for half in 0..2 {
                let rows = transpose([q[half * 4], q[half * 4 + 1], q[half * 4 + 2], q[half * 4 + 3]]);
                for r in 0..2 {
                    for part in 0..2 {
                        let at = (half * 8 + v * 2 + r) * stride + block * BLOCK_COLS + part * 32;
                        debug_assert!(at + 32 <= out.len());
                        // SAFETY: `out` holds 16 rows of the tile, checked by the caller.
                        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), rows[r][part]) };
                    }
                }
            }
        }
    }
    (verdict, tails)
}

/// 32 words in four vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u32; LANES]) -> [__m256i; VECTORS] {
    let mut x = [_mm256_setzero_si256(); VECTORS];
    for v in 0..VECTORS {
        // SAFETY: 32 u32 are four vectors.
        x[v] = unsafe { _mm256_loadu_si256(words.as_ptr().add(v * WIDE).cast()) };
    }
    x
}

/// The inverse of [`load`].
#[inline]
#[target_feature(enable = "avx2")]
fn store(x: &[__m256i; VECTORS]) -> [u32; LANES] {
    let mut words = [0u32; LANES];
    for v in 0..VECTORS {
        // SAFETY: 32 u32 hold four vectors.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().add(v * WIDE).cast(), x[v]) };
    }
    words
}

/// Side words of 8 lanes; in the last block, the last word is the lane's tail.
///
/// # Safety
/// `side` holds the side words of `block`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_side(side: &[u8], shift: u32, block: usize, v: usize, tails: Option<&[u32; LANES]>) -> [__m256i; 4] {
    let words = shift as usize + 1;
    let mut loaded = [_mm256_setzero_si256(); 4];
    for word in 0..words {
        let at = ((block * words + word) * LANES + v * WIDE) * 4;
        loaded[word] = match tails {
            // SAFETY: 32 u32 are four vectors.
            Some(tails) if word + 1 == words => unsafe { _mm256_loadu_si256(tails.as_ptr().add(v * WIDE).cast()) },
            _ => {
                debug_assert!(at + 32 <= side.len());
                // SAFETY: one word for each lane, within the side plane.
                unsafe { _mm256_loadu_si256(side.as_ptr().add(at).cast()) }
            }
        };
    }
    loaded
}

/// Elements from their high parts and side words: `pair::join`, 8 lanes at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn join(high: [__m256i; 8], side: [__m256i; 4], shift: u32) -> [__m256i; 8] {
    let low = _mm256_set1_epi32(low_mask(shift) as i32);
    let mut q = high;
    for k in 0..8 {
        let [(sign, sign_left), (rest, rest_left)] = side_places(shift, k);
        let (sign, rest) = (rotate(side[sign], sign_left), rotate(side[rest], rest_left));
        let v = _mm256_sll_epi32(high[k], _mm_cvtsi32_si128(shift as i32));
        let v = _mm256_or_si256(v, _mm256_and_si256(rest, low));
        // All ones where the sign bit of the byte is set.
        q[k] = _mm256_xor_si256(v, _mm256_cmpgt_epi8(_mm256_setzero_si256(), sign));
    }
    q
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate(x: __m256i, by: u32) -> __m256i {
    let left = _mm256_sll_epi32(x, _mm_cvtsi32_si128(by as i32));
    _mm256_or_si256(left, _mm256_srl_epi32(x, _mm_cvtsi32_si128(32 - by as i32)))
}

/// Four words of each of 8 lanes -> two rows of 64 elements, each in two parts.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(q: [__m256i; 4]) -> [[__m256i; 2]; 2] {
    let [a, b] = [_mm256_unpacklo_epi32(q[0], q[1]), _mm256_unpackhi_epi32(q[0], q[1])];
    let [c, d] = [_mm256_unpacklo_epi32(q[2], q[3]), _mm256_unpackhi_epi32(q[2], q[3])];
    let lanes = [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ];
    let first = |x, y| _mm256_permute2x128_si256::<0x20>(x, y);
    let second = |x, y| _mm256_permute2x128_si256::<0x31>(x, y);
    [[first(lanes[0], lanes[1]), first(lanes[2], lanes[3])], [second(lanes[0], lanes[1]), second(lanes[2], lanes[3])]]
}
