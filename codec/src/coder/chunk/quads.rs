//! Encodes and decodes chunks of layout `quad`. `FORMAT.md` section 3.

use super::patches::{self, Patch};
use crate::coder::chunk_format::word_at;
use crate::coder::pair::with_high;
use crate::coder::quad::{
    ESCAPE, MOST_SIDE, QUAD, QUAD_BITS, Quad, STREAMS, Substitutes, highs, join_with, pack_side, side_groups,
    side_places,
};
use crate::coder::table::QuadTable;
use crate::coder::tile::symbols_per_block;
use crate::coder::{BLOCK_COLS, LANES, Layout, huffman};

/// Words of elements (and so symbols) for each lane and block, and the number of them in one stream.
const WORDS: usize = 8;
const HALF: usize = WORDS / 2;
/// Symbols of a block.
const BLOCK: usize = WORDS * LANES;

/// The index in a block's symbols, `[step][stream]`, of the symbol of word `k` of a lane.
#[inline(always)]
fn place_of(k: usize, lane: usize) -> usize {
    k % HALF * STREAMS + lane * 2 + k / HALF
}

/// Encodes the symbols of tiles with one table.
pub struct QuadEncoder {
    codes: huffman::Encoder,
    substitutes: Substitutes,
    /// `[step][stream]`.
    quads: Vec<Quad>,
    patches: Vec<Patch>,
}

impl QuadEncoder {
    pub fn new(table: &QuadTable) -> Self {
        let substitutes = Substitutes::new(table.codes().map(|(quad, length, _)| (quad, length)));
        Self { codes: huffman::Encoder::of_quads(table), substitutes, quads: Vec::new(), patches: Vec::new() }
    }

    /// Appends patches and body of `tile` (row-major, 16 rows of `width` columns) to `out`, and its part of the side
    /// plane to `side`. A body that would not be shorter than `raw_length` is stored uncoded.
    pub fn encode(
        &mut self,
        tile: &[i8],
        width: usize,
        shift: u32,
        raw_length: usize,
        out: &mut Vec<u8>,
        side: &mut Vec<u8>,
    ) {
        self.split(tile, width, shift, side);
        let begin = out.len();
        patches::put(&mut self.patches, out);
        let body = out.len();
        self.codes.encode::<_, STREAMS>(&self.quads, out);
        if out.len() - begin >= raw_length + 4 {
            out.truncate(begin);
            self.unreplaced(tile, width, shift);
            patches::put(&mut self.patches, out);
            for block in self.quads.chunks_exact(BLOCK) {
                for half in 0..2 {
                    for lane in 0..LANES {
                        out.extend((0..HALF).flat_map(|i| block[place_of(half * HALF + i, lane)].to_le_bytes()));
                    }
                }
            }
        } else {
            debug_assert!(out.len() - body < raw_length);
        }
    }

    /// Computes symbols that have codes, the patches that this needs, and the side plane.
    fn split(&mut self, tile: &[i8], width: usize, shift: u32, side: &mut Vec<u8>) {
        self.patches.clear();
        self.quads.resize(width / BLOCK_COLS * BLOCK, 0);
        for (block, steps) in self.quads.chunks_exact_mut(BLOCK).enumerate() {
            let mut packed = [[0u32; MOST_SIDE]; LANES];
            for lane in 0..LANES {
                let mut words = [0u32; WORDS];
                for (k, word) in words.iter_mut().enumerate() {
                    let four: &[i8; QUAD] =
                        tile[word_at(block, k, lane, width)..].first_chunk().expect("within the tile");
                    *word = u32::from_le_bytes(bytemuck::cast(*four));
                    let parts = highs(*four, shift);
                    let (quad, mut mask) = self.substitutes.of(parts);
                    steps[place_of(k, lane)] = quad;
                    (0..QUAD).filter(|&i| parts[i] == ESCAPE).for_each(|i| mask |= 1 << i);
                    if mask != 0 {
                        let first = block * 1024 + lane * 32 + k * QUAD;
                        note(&mut self.patches, mask, first, *four, quad, shift);
                    }
                }
                packed[lane] = pack_side(&words, shift);
            }
            for (first, n) in side_groups(shift) {
                for words in &packed {
                    words[first..first + n].iter().for_each(|w| side.extend_from_slice(&w.to_le_bytes()));
                }
            }
        }
    }

    /// Computes the unreplaced symbols, for a chunk that is stored uncoded: only escapes need patches.
    fn unreplaced(&mut self, tile: &[i8], width: usize, shift: u32) {
        self.patches.clear();
        for (block, steps) in self.quads.chunks_exact_mut(BLOCK).enumerate() {
            for lane in 0..LANES {
                for k in 0..WORDS {
                    let four: &[i8; QUAD] =
                        tile[word_at(block, k, lane, width)..].first_chunk().expect("within the tile");
                    let parts = highs(*four, shift);
                    let quad = (0..QUAD).map(|i| (parts[i].min(7) as Quad) << (4 * i)).sum();
                    steps[place_of(k, lane)] = quad;
                    let mask = (0..QUAD).filter(|&i| parts[i] == ESCAPE).map(|i| 1 << i).sum();
                    if mask != 0 {
                        note(&mut self.patches, mask, block * 1024 + lane * 32 + k * QUAD, *four, quad, shift);
                    }
                }
            }
        }
    }
}

/// Adds patches for those of four elements coded as `quad` that `mask` selects.
#[cold]
fn note(patches: &mut Vec<Patch>, mask: u8, first: usize, elements: [i8; QUAD], quad: Quad, shift: u32) {
    for (i, &q) in elements.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
        let made = with_high((quad >> (4 * i) & 7) as u8, q, shift);
        patches.push(Patch { position: (first + i) as u16, value: q, change: q.wrapping_sub(made) });
    }
}

/// The symbols of an uncoded body, as `[step][stream]`.
pub fn raw_quads(body: &[u8], quads: &mut [Quad]) {
    for (to, from) in quads.chunks_exact_mut(BLOCK).zip(body.as_chunks::<2>().0.chunks_exact(BLOCK)) {
        for (i, quad) in from.iter().enumerate() {
            let (half, lane) = (i / (BLOCK / 2), i / HALF % LANES);
            to[place_of(half * HALF + i % HALF, lane)] = u16::from_le_bytes(*quad) & QUAD_BITS;
        }
    }
}

/// Joins symbols (`[step][stream]`) with a tile's part of the side plane and writes the tile.
pub fn place(quads: &[Quad], side: &[u8], width: usize, shift: u32, out: &mut [i8], stride: usize) {
    debug_assert_eq!(symbols_per_block(Layout::Quad), WORDS);
    let words = shift as usize + 1;
    let side = side.as_chunks::<4>().0;
    for block in 0..width / BLOCK_COLS {
        // Words by number and lane: loops over lanes vectorize.
        let mut side_words = [[0u32; LANES]; MOST_SIDE];
        for (first, n) in side_groups(shift) {
            let group = &side[(block * words + first) * LANES..][..n * LANES];
            for (lane, of_lane) in group.chunks_exact(n).enumerate() {
                for (word, side_words) in of_lane.iter().zip(&mut side_words[first..]) {
                    side_words[lane] = u32::from_le_bytes(*word);
                }
            }
        }
        let steps = &quads[block * BLOCK..][..BLOCK];
        let mut elements = [[0u32; LANES]; WORDS];
        for (k, elements) in elements.iter_mut().enumerate() {
            let [(sign, sign_left), (low, low_left)] = side_places(shift, k);
            let (sign_left, low_right) = (sign_left as u32, low_left.min(0).unsigned_abs());
            let low_left = low_left.max(0) as u32;
            for lane in 0..LANES {
                let low = side_words[low][lane] << low_left >> low_right;
                elements[lane] = join_with(steps[place_of(k, lane)], side_words[sign][lane] << sign_left, low, shift);
            }
        }
        for lane in 0..LANES {
            for half in 0..2 {
                let run: [u32; 4] = std::array::from_fn(|k| elements[half * 4 + k][lane].to_le());
                let at = word_at(block, half * 4, lane, stride);
                out[at..at + 16].copy_from_slice(bytemuck::cast_slice(&run));
            }
        }
    }
}
