//! Encodes a chunk.

use super::patches;
use super::quads::QuadEncoder;
use crate::coder::chunk_format::{ChunkFormat, word_at};
use crate::coder::histogram::ESCAPE;
use crate::coder::pair::{fold, pack_side, split as split_pair};
use crate::coder::rare::{Substitutes, changed};
use crate::coder::table::{SYMBOLS, Table};
use crate::coder::tile::{raw_body_bytes, symbols_per_block};
use crate::coder::{BLOCK_COLS, Coder, LANES, Layout, huffman, rans, split};

/// Bytes of a patch.
const PATCH_BYTES: usize = 4;

enum Encoder {
    Quads(Box<QuadEncoder>),
    Rans(Box<rans::Encoder>),
    Huffman(Box<huffman::Encoder>),
}

/// Encodes the chunks of a plane, with buffers that it reuses.
pub struct ChunkEncoder {
    format: ChunkFormat,
    encoder: Encoder,
    symbols: Vec<u8>,
    words: Vec<u16>,
    body: Vec<u8>,
    /// Present if the table lacks symbols that may occur.
    rare: Option<Box<Rare>>,
}

/// Substitutes for symbols without a code, and a record of those replaced in the current tile.
struct Rare {
    is_coded: [bool; SYMBOLS],
    substitutes: Substitutes,
    /// Index among the symbols, and the original symbol.
    replaced: Vec<(usize, u8)>,
    /// Positions and values of elements that therefore need a patch.
    patches: Vec<(u16, i8)>,
}

impl Rare {
    /// The state that `table` requires; `None` if all symbols have codes.
    fn new(format: ChunkFormat, table: &Table) -> Option<Box<Self>> {
        let Table::Huffman(table) = table else { return None };
        let is_coded = table.lengths().map(|length| length > 0);
        (format.has_patches() && is_coded.contains(&false)).then(|| {
            let substitutes = Substitutes::new(table.lengths());
            Box::new(Self { is_coded, substitutes, replaced: Vec::new(), patches: Vec::new() })
        })
    }

    /// Replaces the symbols of `tile` that have no code and records the patches that this needs.
    fn replace(&mut self, symbols: &mut [u8], tile: &[i8], width: usize, shift: u32) {
        self.replaced.clear();
        self.patches.clear();
        for (at, symbol) in symbols.iter_mut().enumerate() {
            if self.is_coded[usize::from(*symbol)] {
                continue;
            }
            // Steps of 32 lanes, 16 steps to a block, two elements each.
            let (step, lane) = (at / LANES, at % LANES);
            let first = step / 16 * 1024 + lane * 32 + step % 16 * 2;
            let elements = [first, first + 1].map(|position| {
                let (row, col) = patches::place_of(position);
                tile[row * width + col]
            });
            let [a, b] = elements.map(|q| usize::from(fold(q) >> shift).min(ESCAPE));
            let coded = self.substitutes.of(a, b);
            for (i, _) in changed(a, b, coded).into_iter().enumerate().filter(|(_, changed)| *changed) {
                self.patches.push(((first + i) as u16, elements[i]));
            }
            self.replaced.push((at, *symbol));
            *symbol = coded;
        }
    }

    /// Restores the replaced symbols, for a chunk that is stored uncoded.
    fn restore(&mut self, symbols: &mut [u8]) {
        self.replaced.drain(..).for_each(|(at, symbol)| symbols[at] = symbol);
        self.patches.clear();
    }
}

impl ChunkEncoder {
    pub fn new(format: ChunkFormat, table: &Table) -> Self {
        let encoder = match table {
            Table::Rans(t) => Encoder::Rans(Box::new(rans::Encoder::new(t))),
            Table::Huffman(t) => Encoder::Huffman(Box::new(huffman::Encoder::new(t))),
            Table::Quads(t) => Encoder::Quads(Box::new(QuadEncoder::new(t))),
        };
        let rare = Rare::new(format, table);
        Self { format, encoder, symbols: Vec::new(), words: Vec::new(), body: Vec::new(), rare }
    }

    /// Appends the chunk of `tile` (row-major, 16 rows of `width` columns) to `out` and its part of the side plane to
    /// `side`. For layout `split`, `rest` has the other bytes of the elements: one tile of bytes for each, the most
    /// significant first. Returns `false`, with nothing usable appended, if the patches do not fit.
    pub fn encode(
        &mut self,
        tile: &[i8],
        rest: &[Vec<i8>],
        width: usize,
        out: &mut Vec<u8>,
        side: &mut Vec<u8>,
    ) -> bool {
        let begin = out.len();
        let raw_length = raw_body_bytes(self.format.coder, self.format.layout, width);
        if let Encoder::Quads(e) = &mut self.encoder {
            e.encode(tile, width, self.format.shift, raw_length, out, side);
            return out.len() - begin <= self.format.longest(width);
        }
        let mut tails = [0; LANES];
        self.symbols.resize(self.format.steps(width) * LANES, 0);
        match self.format.layout {
            Layout::Byte => self.split_bytes(tile, width),
            Layout::Pair => self.split_pairs(tile, width, side, &mut tails),
            Layout::Split => {
                self.split_bytes(tile, width);
                split::put_rest(self.format.coder, rest, width, side, &mut tails);
            }
            Layout::Quad => unreachable!("tables of quads have their own encoder"),
        }
        if let Some(rare) = &mut self.rare {
            rare.replace(&mut self.symbols, tile, width, self.format.shift);
        }
        self.body.clear();
        match &self.encoder {
            Encoder::Huffman(e) => e.encode::<_, LANES>(&self.symbols, &mut self.body),
            Encoder::Quads(_) => unreachable!("returned above"),
            Encoder::Rans(e) => {
                let coded = self.symbols.len() - self.format.symbols_in_tail() * LANES;
                let (coded, last) = self.symbols.split_at(coded);
                if let [a, b, c, d] = last.as_chunks::<LANES>().0 {
                    tails = std::array::from_fn(|l| u32::from_le_bytes([a[l], b[l], c[l], d[l]]));
                }
                e.encode(coded, &tails, &mut self.words, &mut self.body);
            }
        }
        let patched = self.rare.as_ref().map_or(0, |rare| PATCH_BYTES * rare.patches.len());
        if self.body.len() + patched >= raw_length {
            if let Some(rare) = &mut self.rare {
                rare.restore(&mut self.symbols);
            }
            self.body.clear();
            let half = symbols_per_block(self.format.layout) / 2;
            for steps in self.symbols.chunks_exact(half * LANES) {
                for lane in 0..LANES {
                    self.body.extend((0..half).map(|i| steps[i * LANES + lane]));
                }
            }
            if self.body.len() < raw_length {
                tails.iter().for_each(|t| self.body.extend_from_slice(&t.to_le_bytes()));
            }
        }
        if self.format.has_patches() {
            let more = self.rare.as_ref().map_or(&[][..], |rare| &rare.patches);
            patches::put(&mut patches::of_pairs(self.format, tile, width, &self.symbols, more), out);
        }
        out.extend_from_slice(&self.body);
        out.len() - begin <= self.format.longest(width)
    }

    /// The coded symbols of `tile`, `[step][lane]`, in layout `byte`.
    fn split_bytes(&mut self, tile: &[i8], width: usize) {
        for (half, steps) in self.symbols.chunks_exact_mut(16 * LANES).enumerate() {
            for lane in 0..LANES {
                let run = &tile[word_at(half / 2, half % 2 * 4, lane, width)..][..16];
                for (i, &q) in run.iter().enumerate() {
                    steps[i * LANES + lane] = q as u8;
                }
            }
        }
    }

    /// The coded symbols of `tile`, `[step][lane]`, in layout `pair`; appends its part of the side plane to `side`.
    fn split_pairs(&mut self, tile: &[i8], width: usize, side: &mut Vec<u8>, tails: &mut [u32; LANES]) {
        let ChunkFormat { coder, shift, .. } = self.format;
        let (blocks, words) = (width / BLOCK_COLS, shift as usize + 1);
        for (block, steps) in self.symbols.chunks_exact_mut(16 * LANES).enumerate() {
            // Signs and low bits, by word and lane: loops over lanes vectorize.
            let mut rest = [[0u32; LANES]; 8];
            for (k, rest) in rest.iter_mut().enumerate() {
                let elements: [u32; LANES] = std::array::from_fn(|lane| {
                    let at = word_at(block, k, lane, width);
                    let four: &[i8; 4] = tile[at..].first_chunk().expect("within the tile");
                    u32::from_le_bytes(bytemuck::cast(*four))
                });
                let (first, second) = steps[2 * k * LANES..][..2 * LANES].split_at_mut(LANES);
                for lane in 0..LANES {
                    let (symbols, a) = split_pair(elements[lane], shift);
                    first[lane] = symbols as u8;
                    second[lane] = (symbols >> 16) as u8;
                    rest[lane] = a;
                }
            }
            let mut packed = [[0u32; LANES]; 4];
            for lane in 0..LANES {
                let side = pack_side(&std::array::from_fn(|k| rest[k][lane]), shift);
                for word in 0..4 {
                    packed[word][lane] = side[word];
                }
            }
            for (word, lanes) in packed.iter().enumerate().take(words) {
                if coder == Coder::Rans && block + 1 == blocks && word + 1 == words {
                    *tails = *lanes;
                } else {
                    side.extend_from_slice(bytemuck::cast_slice(&lanes.map(u32::to_le)));
                }
            }
        }
    }
}
