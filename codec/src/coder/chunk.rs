//! One chunk: a tile of 16 rows, its symbols, patches and body. `FORMAT.md` sections 3, 6 and 7.

use super::pair::{fold, join, pack_side, side_places, split};
use super::table::Table;
use super::tile::{raw_body_bytes, side_bytes, symbols_per_block};
use super::{BLOCK_COLS, Coder, Isa, LANES, Layout, TILE_ROWS, huffman, rans};
use crate::error::{Error, Result};

/// What all chunks of a plane have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    pub coder: Coder,
    pub layout: Layout,
    pub shift: u32,
}

impl ChunkFormat {
    /// Whether chunks begin with a list of patches.
    fn has_patches(self) -> bool {
        self.layout == Layout::Pair && self.shift < 3
    }

    /// Symbols that a lane of a tile of `width` columns decodes, those in its tail included.
    fn steps(self, width: usize) -> usize {
        width / BLOCK_COLS * symbols_per_block(self.layout)
    }

    /// How many symbols of each lane, its last ones, are its tail.
    fn symbols_in_tail(self) -> usize {
        if self.coder == Coder::Rans && self.layout == Layout::Byte { 4 } else { 0 }
    }

    /// Bytes of the side plane that belong to a tile of `width` columns.
    pub fn side_bytes(self, width: usize) -> usize {
        side_bytes(self.coder, self.layout, self.shift, width)
    }

    /// Longest chunk of a tile of `width` columns.
    pub fn longest(width: usize) -> usize {
        TILE_ROWS * width
    }
}

/// Where the four elements of word `k` of `lane` begin in block `block` of a row-major tile with rows `stride` apart.
#[inline(always)]
fn word_at(block: usize, k: usize, lane: usize, stride: usize) -> usize {
    (lane / 4 + k / 4 * 8) * stride + block * BLOCK_COLS + lane % 4 * 16 + k % 4 * 4
}

enum Encoder {
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
}

impl ChunkEncoder {
    pub fn new(format: ChunkFormat, table: &Table) -> Self {
        let encoder = match table {
            Table::Rans(t) => Encoder::Rans(Box::new(rans::Encoder::new(t))),
            Table::Huffman(t) => Encoder::Huffman(Box::new(huffman::Encoder::new(t))),
        };
        Self { format, encoder, symbols: Vec::new(), words: Vec::new(), body: Vec::new() }
    }

    /// Appends the chunk of `tile` (row-major, 16 rows of `width` columns) to `out` and its part of the side plane to
    /// `side`. `false`, with nothing usable appended, where the patches do not fit.
    pub fn encode(&mut self, tile: &[i8], width: usize, out: &mut Vec<u8>, side: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if self.format.has_patches() {
            put_patches(tile, width, self.format.shift, out);
        }
        let mut tails = [0; LANES];
        self.symbols.resize(self.format.steps(width) * LANES, 0);
        match self.format.layout {
            Layout::Byte => self.split_bytes(tile, width),
            Layout::Pair => self.split_pairs(tile, width, side, &mut tails),
        }
        let raw_length = raw_body_bytes(self.format.coder, self.format.layout, width);
        self.body.clear();
        match &self.encoder {
            Encoder::Huffman(e) => e.encode(&self.symbols, &mut self.body),
            Encoder::Rans(e) => {
                let coded = self.symbols.len() - self.format.symbols_in_tail() * LANES;
                let (coded, last) = self.symbols.split_at(coded);
                if let [a, b, c, d] = last.as_chunks::<LANES>().0 {
                    tails = std::array::from_fn(|l| u32::from_le_bytes([a[l], b[l], c[l], d[l]]));
                }
                e.encode(coded, &tails, &mut self.words, &mut self.body);
            }
        }
        if self.body.len() >= raw_length {
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
        out.extend_from_slice(&self.body);
        out.len() - begin <= ChunkFormat::longest(width)
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
                    let (symbols, a) = split(elements[lane], shift);
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

fn put_patches(tile: &[i8], width: usize, shift: u32, out: &mut Vec<u8>) {
    let count_at = out.len();
    out.extend_from_slice(&[0; 4]);
    // Few elements need one, so most tiles are only looked through, in memory order; those found are put in order after.
    let mut found: Vec<(u16, u8)> = Vec::new();
    for (at, &q) in tile.iter().enumerate() {
        if fold(q) >> shift > 15 {
            found.push((patch_position(at / width, at % width), q as u8));
        }
    }
    found.sort_unstable();
    for (position, value) in found {
        out.extend_from_slice(&position.to_le_bytes());
        out.extend_from_slice(&[value, 0]);
    }
    let count = ((out.len() - count_at) / 4 - 1) as u32;
    out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
}

enum Decoder {
    Rans(rans::Decoder),
    Huffman(huffman::Decoder),
}

/// Decodes the chunks of a plane. Shared by threads.
pub struct ChunkDecoder {
    format: ChunkFormat,
    decoder: Decoder,
    isa: Isa,
}

/// Most chunks that are decoded at once.
pub const TOGETHER: usize = 4;

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    symbols: Vec<u8>,
    pub(super) zstd: Option<zstd::bulk::Decompressor<'static>>,
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code))]
    pub(super) words: [Vec<u16>; TOGETHER],
}

/// A chunk taken apart.
struct Parts<'a> {
    patches: &'a [[u8; 4]],
    body: &'a [u8],
    is_raw: bool,
}

/// One chunk to decode: its bytes, and its part of the side plane.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    pub bytes: &'a [u8],
    pub side: &'a [u8],
    pub width: usize,
}

impl ChunkDecoder {
    pub fn new(format: ChunkFormat, table: &Table, isa: Isa) -> Self {
        let decoder = match table {
            Table::Rans(t) => Decoder::Rans(rans::Decoder::new(t)),
            Table::Huffman(t) => Decoder::Huffman(huffman::Decoder::new(t)),
        };
        Self { format, decoder, isa }
    }

    fn split<'a>(&self, chunk: &Chunk<'a>) -> Result<Parts<'a>> {
        let Chunk { bytes, side, width } = *chunk;
        if side.len() != self.format.side_bytes(width) {
            return Err(Error::corrupt(format!("{} bytes of side plane for a tile of {width} columns", side.len())));
        }
        let (patches, body) = if self.format.has_patches() {
            let (count, rest) = bytes
                .split_first_chunk::<4>()
                .ok_or_else(|| Error::corrupt("a chunk is too short for its count of patches"))?;
            let length = (u32::from_le_bytes(*count) as usize).saturating_mul(4);
            if length > rest.len() {
                return Err(Error::corrupt(format!("{} patches in a chunk of {} bytes", length / 4, bytes.len())));
            }
            rest.split_at(length)
        } else {
            (&[][..], bytes)
        };
        let raw_length = raw_body_bytes(self.format.coder, self.format.layout, width);
        if body.len() > raw_length {
            return Err(Error::corrupt(format!("a chunk body of {} bytes where {raw_length} are raw", body.len())));
        }
        Ok(Parts { patches: patches.as_chunks::<4>().0, body, is_raw: body.len() == raw_length })
    }

    /// Decodes `chunk` into the tile that begins at `out[0]` and whose rows are `stride` apart; all 16 rows and
    /// `chunk.width` columns of it are written.
    ///
    /// # Errors
    /// The chunk is damaged. What is in the tile then is the same for every [`Isa`] where the chunk's lengths were
    /// right, and untouched where they were not.
    pub fn decode(&self, chunk: &Chunk<'_>, out: &mut [i8], stride: usize, scratch: &mut Scratch) -> Result<()> {
        let parts = self.split(chunk)?;
        let coded = match &self.decoder {
            _ if parts.is_raw => self.decode_raw(&parts, chunk, out, stride, scratch),
            Decoder::Rans(d) => self.decode_rans(d, &parts, chunk, out, stride, scratch),
            Decoder::Huffman(d) => {
                scratch.symbols.resize(self.format.steps(chunk.width) * LANES, 0);
                let ends = if self.isa == Isa::Scalar {
                    d.decode_reference(parts.body, &mut scratch.symbols)?
                } else {
                    d.decode(parts.body, &mut scratch.symbols)?
                };
                self.place(&scratch.symbols, chunk, &[0; LANES], out, stride);
                huffman::check_ends(parts.body, &ends)
            }
        };
        patch(parts.patches, chunk.width, out, stride).and(coded)
    }

    /// Decodes neighbouring chunks, which the widest vectors do faster together than one after the other. `chunks` are at
    /// most [`TOGETHER`], and all but the last have equal widths.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), with the place in `chunks` of the first damaged one. All of them are decoded.
    pub fn decode_run(
        &self,
        chunks: &[Chunk<'_>],
        out: &mut [i8],
        stride: usize,
        scratch: &mut Scratch,
    ) -> Result<(), (usize, Error)> {
        let mut result = Ok(());
        let mut at = 0;
        while at < chunks.len() {
            let out = &mut out[chunks[..at].iter().map(|c| c.width).sum()..];
            let rest = &chunks[at..];
            let mut verdicts = [const { Ok(()) }; TOGETHER];
            let done = match rest {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                [a, b, c, d, ..] if self.decode_together([a, b, c, d], out, stride, scratch, &mut verdicts) => 4,
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                [a, b, ..] if self.decode_together([a, b], out, stride, scratch, &mut verdicts) => 2,
                _ => {
                    verdicts[0] = self.decode(&rest[0], out, stride, scratch);
                    1
                }
            };
            for (i, verdict) in verdicts.into_iter().enumerate() {
                result = result.and(verdict.map_err(|e| (at + i, e)));
            }
            at += done;
        }
        result
    }

    /// Decodes `N` chunks at once where this machine and they allow it, else does nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn decode_together<const N: usize>(
        &self,
        chunks: [&Chunk<'_>; N],
        out: &mut [i8],
        stride: usize,
        scratch: &mut Scratch,
        verdicts: &mut [Result<()>; TOGETHER],
    ) -> bool {
        let (Decoder::Rans(decoder), Isa::Avx512) = (&self.decoder, self.isa) else { return false };
        let width = chunks[0].width;
        // A chunk that cannot be taken apart leaves the others to be decoded one by one, as on every other machine.
        let parts = chunks.map(|c| self.split(c).ok().filter(|p| !p.is_raw && c.width == width));
        if parts.iter().any(Option::is_none) {
            return false;
        }
        let parts = parts.map(|p| p.expect("checked above"));
        let jobs = std::array::from_fn(|i| rans::avx512::Job { body: parts[i].body, side: chunks[i].side });
        let Ok(streams) = rans::avx512::decode::<N>(decoder, self.format, jobs, width, out, stride, scratch) else {
            return false;
        };
        for (i, stream) in streams.into_iter().enumerate() {
            let patched = patch(parts[i].patches, width, &mut out[i * width..], stride);
            verdicts[i] = patched.and(stream);
        }
        true
    }

    fn decode_raw(
        &self,
        parts: &Parts<'_>,
        chunk: &Chunk<'_>,
        out: &mut [i8],
        stride: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let half = symbols_per_block(self.format.layout) / 2;
        let steps = self.format.steps(chunk.width);
        scratch.symbols.resize(steps * LANES, 0);
        let (symbols, tails) = parts.body.split_at(steps * LANES);
        for (to, from) in scratch.symbols.chunks_exact_mut(half * LANES).zip(symbols.chunks_exact(half * LANES)) {
            for lane in 0..LANES {
                for i in 0..half {
                    to[i * LANES + lane] = from[lane * half + i];
                }
            }
        }
        let tails = tails.as_chunks::<4>().0;
        let tails = std::array::from_fn(|l| tails.get(l).map_or(0, |t| u32::from_le_bytes(*t)));
        self.place(&scratch.symbols, chunk, &tails, out, stride);
        Ok(())
    }

    fn decode_rans(
        &self,
        decoder: &rans::Decoder,
        parts: &Parts<'_>,
        chunk: &Chunk<'_>,
        out: &mut [i8],
        stride: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        match self.isa {
            Isa::Avx512 => {
                let job = rans::avx512::Job { body: parts.body, side: chunk.side };
                let [verdict] = rans::avx512::decode(decoder, self.format, [job], chunk.width, out, stride, scratch)?;
                return verdict;
            }
            Isa::Avx2 => {
                let words = &mut scratch.words[0];
                let (body, side) = (parts.body, chunk.side);
                return rans::avx2::decode(decoder, self.format, body, side, chunk.width, out, stride, words);
            }
            Isa::Scalar => {}
        }
        let steps = self.format.steps(chunk.width);
        scratch.symbols.resize(steps * LANES, 0);
        let coded = steps - self.format.symbols_in_tail();
        let (symbols, last) = scratch.symbols.split_at_mut(coded * LANES);
        let (tails, verdict) = decoder.decode(parts.body, symbols)?.tails(parts.body);
        for (i, step) in last.chunks_exact_mut(LANES).enumerate() {
            for (symbol, tail) in step.iter_mut().zip(tails) {
                *symbol = tail.to_le_bytes()[i];
            }
        }
        self.place(&scratch.symbols, chunk, &tails, out, stride);
        verdict
    }

    /// Puts coded symbols (`[step][lane]`) and the side plane together and writes the tile.
    fn place(&self, symbols: &[u8], chunk: &Chunk<'_>, tails: &[u32; LANES], out: &mut [i8], stride: usize) {
        let per_word = symbols_per_block(self.format.layout) / 8;
        let shift = self.format.shift;
        for block in 0..chunk.width / BLOCK_COLS {
            let side = match self.format.layout {
                Layout::Byte => [[0; LANES]; 4],
                Layout::Pair => side_words(self.format, chunk, block, tails),
            };
            // Elements by word and lane: loops over lanes vectorize.
            let mut words = [[0u32; LANES]; 8];
            for (k, words) in words.iter_mut().enumerate() {
                let steps = symbols[(block * 8 + k) * per_word * LANES..][..per_word * LANES].as_chunks::<LANES>().0;
                match (self.format.layout, steps) {
                    (Layout::Byte, [a, b, c, d]) => {
                        for lane in 0..LANES {
                            words[lane] = u32::from_le_bytes([a[lane], b[lane], c[lane], d[lane]]);
                        }
                    }
                    (_, [a, b, ..]) => {
                        let [(sign, sign_left), (low, low_left)] = side_places(shift, k);
                        for lane in 0..LANES {
                            let sign = side[sign][lane].rotate_left(sign_left);
                            let low = side[low][lane].rotate_left(low_left);
                            words[lane] = join(a[lane], b[lane], sign, low, shift);
                        }
                    }
                    _ => unreachable!("a word has two or four symbols"),
                }
            }
            for lane in 0..LANES {
                for half in 0..2 {
                    let run: [u32; 4] = std::array::from_fn(|k| words[half * 4 + k][lane].to_le());
                    let at = word_at(block, half * 4, lane, stride);
                    out[at..at + 16].copy_from_slice(bytemuck::cast_slice(&run));
                }
            }
        }
    }
}

/// The side words of every lane in `block`, `[word][lane]`.
fn side_words(format: ChunkFormat, chunk: &Chunk<'_>, block: usize, tails: &[u32; LANES]) -> [[u32; LANES]; 4] {
    let words = format.shift as usize + 1;
    let mut side = [[0; LANES]; 4];
    for (word, lanes) in side.iter_mut().enumerate().take(words) {
        if format.coder == Coder::Rans && block + 1 == chunk.width / BLOCK_COLS && word + 1 == words {
            *lanes = *tails;
        } else {
            let line = &chunk.side[(block * words + word) * LANES * 4..];
            for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<4>().0) {
                *lane = u32::from_le_bytes(*word);
            }
        }
    }
    side
}

/// Position of an element in its chunk, counted in the order in which lanes decode: a kernel that holds a block's
/// elements in registers meets the patches in this order.
fn patch_position(row: usize, col: usize) -> u16 {
    let (block, in_block) = (col / BLOCK_COLS, col % BLOCK_COLS);
    let lane = row % 8 * 4 + in_block / 16;
    // A tile has at most 16 blocks of 1,024 elements.
    (block * 1024 + lane * 32 + row / 8 * 16 + in_block % 16) as u16
}

/// Row and column of a patch: the inverse of [`patch_position`].
fn patch_place(position: usize) -> (usize, usize) {
    let (block, lane, element) = (position / 1024, position / 32 % 32, position % 32);
    (lane / 4 + element / 16 * 8, block * BLOCK_COLS + lane % 4 * 16 + element % 16)
}

/// Applies the patches of a chunk, as far as they are valid.
fn patch(patches: &[[u8; 4]], width: usize, out: &mut [i8], stride: usize) -> Result<()> {
    let mut next = 0;
    for &[low, high, value, zero] in patches {
        let position = usize::from(u16::from_le_bytes([low, high]));
        if position < next || position >= TILE_ROWS * width || zero != 0 {
            return Err(Error::corrupt(format!("a patch at position {position} of a tile of {width} columns")));
        }
        let (row, col) = patch_place(position);
        out[row * stride + col] = value as i8;
        next = position + 1;
    }
    Ok(())
}
