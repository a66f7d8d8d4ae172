//! Decodes chunks, one by one or several at a time.

use super::{patches, quads};
use crate::coder::chunk_format::{ChunkFormat, word_at};
use crate::coder::pair::{join, side_places};
use crate::coder::quad::{Quad, STREAMS};
use crate::coder::table::Table;
use crate::coder::tile::{raw_body_bytes, symbols_per_block};
use crate::coder::{BLOCK_COLS, Coder, Isa, LANES, Layout, huffman, rans};
use crate::error::{Error, Result};

enum CoderDecoder {
    Rans(rans::RansDecoder),
    Huffman(huffman::HuffmanDecoder),
    Quads(huffman::HuffmanDecoder),
}

/// Decodes the chunks of a plane. Threads share it.
pub struct ChunkDecoder {
    format: ChunkFormat,
    decoder: CoderDecoder,
    isa: Isa,
}

/// The most chunks that are decoded at once.
pub const TOGETHER: usize = 4;

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    symbols: Vec<u8>,
    quads: Vec<Quad>,
    /// The coded symbols of layout `split`, before the side plane is joined to them.
    pub(in crate::coder) coded: Vec<i8>,
    pub(in crate::coder) zstd: Option<zstd::bulk::Decompressor<'static>>,
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code))]
    words: [Vec<u16>; TOGETHER],
    /// A stream with zeros behind it.
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code))]
    stream: Vec<u8>,
}

/// The bits that the lanes' last states hold besides symbols.
pub type Tails = [u32; LANES];

/// A chunk taken apart.
struct ChunkParts<'a> {
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
            Table::Rans(t) => CoderDecoder::Rans(rans::RansDecoder::new(t)),
            Table::Huffman(t) => CoderDecoder::Huffman(huffman::HuffmanDecoder::new(t)),
            Table::Quads(t) => CoderDecoder::Quads(huffman::HuffmanDecoder::of_quads(t)),
        };
        Self { format, decoder, isa }
    }

    fn split<'a>(&self, chunk: &Chunk<'a>) -> Result<ChunkParts<'a>> {
        let Chunk { bytes, side, width } = *chunk;
        if side.len() != self.format.side_bytes(width) {
            return Err(coded!(SEGMENT_LENGTH, "{} bytes of side plane for a tile of {width} columns", side.len()));
        }
        let (patches, body) = if self.format.has_patches() {
            let (count, rest) = bytes
                .split_first_chunk::<4>()
                .ok_or_else(|| coded!(BAD_CHUNK, "a chunk is too short for its count of patches"))?;
            let length = (u32::from_le_bytes(*count) as usize).saturating_mul(4);
            if length > rest.len() {
                return Err(coded!(BAD_CHUNK, "{} patches in a chunk of {} bytes", length / 4, bytes.len()));
            }
            rest.split_at(length)
        } else {
            (&[][..], bytes)
        };
        let raw_length = raw_body_bytes(self.format.coder, self.format.layout, width);
        if body.len() > raw_length {
            return Err(coded!(BAD_CHUNK, "a chunk body of {} bytes where {raw_length} are raw", body.len()));
        }
        Ok(ChunkParts { patches: patches.as_chunks::<4>().0, body, is_raw: body.len() == raw_length })
    }

    /// Decodes `chunk` into the tile that begins at `out[0]` and whose rows are `stride` apart; all 16 rows and
    /// `chunk.width` columns are written. In layout `split` these are the coded symbols, and `tails` receives the
    /// lanes' tails.
    ///
    /// # Errors
    /// The chunk is damaged. The tile then has the same content for every [`Isa`] if the chunk's lengths were right,
    /// and is untouched if they were not.
    pub fn decode(
        &self,
        chunk: &Chunk<'_>,
        out: &mut [i8],
        stride: usize,
        tails: &mut Tails,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let parts = self.split(chunk)?;
        let coded = match &self.decoder {
            _ if parts.is_raw => self.decode_raw(&parts, chunk, out, stride, tails, scratch),
            CoderDecoder::Rans(d) => self.decode_rans(d, &parts, chunk, out, stride, tails, scratch),
            CoderDecoder::Huffman(d) => {
                scratch.symbols.resize(self.format.steps(chunk.width) * LANES, 0);
                let ends = self.follow::<_, LANES>(d, parts.body, &mut scratch.symbols, &mut scratch.stream)?;
                self.place(&scratch.symbols, chunk, &[0; LANES], out, stride);
                huffman::check_ends(parts.body, &ends)
            }
            CoderDecoder::Quads(d) => {
                scratch.quads.resize(self.format.steps(chunk.width) * LANES, 0);
                let ends = self.follow::<_, STREAMS>(d, parts.body, &mut scratch.quads, &mut scratch.stream)?;
                quads::place(&scratch.quads, chunk.side, chunk.width, self.format.shift, out, stride);
                huffman::check_ends(parts.body, &ends)
            }
        };
        patches::apply(self.format, parts.patches, chunk.width, out, stride).and(coded)
    }

    /// Decodes the streams of coder `huffman` and returns where they ended.
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(unused_variables, clippy::ptr_arg))]
    fn follow<S: huffman::Symbol, const N: usize>(
        &self,
        decoder: &huffman::HuffmanDecoder,
        body: &[u8],
        symbols: &mut [S],
        stream: &mut Vec<u8>,
    ) -> Result<[usize; N]> {
        match self.isa {
            Isa::Scalar => decoder.decode_reference(body, symbols),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx512 => huffman::avx512::decode(decoder, body, symbols, stream),
            _ => decoder.decode(body, symbols),
        }
    }

    /// Decodes neighbouring chunks, which the widest vectors do faster together than one after the other. `chunks` has
    /// at most [`TOGETHER`] of them; all but the last have equal widths.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), with the index in `chunks` of the first damaged one. All of them are decoded.
    pub fn decode_run(
        &self,
        chunks: &[Chunk<'_>],
        out: &mut [i8],
        stride: usize,
        tails: &mut [Tails; TOGETHER],
        scratch: &mut Scratch,
    ) -> Result<(), (usize, Error)> {
        let mut result = Ok(());
        let mut at = 0;
        while at < chunks.len() {
            let out = &mut out[chunks[..at].iter().map(|c| c.width).sum()..];
            let rest = &chunks[at..];
            let mut verdicts = [const { Ok(()) }; TOGETHER];
            let tails = &mut tails[at..];
            let done = match rest {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                [a, b, c, d, ..] if self.decode_together([a, b, c, d], out, stride, tails, scratch, &mut verdicts) => 4,
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                [a, b, ..] if self.decode_together([a, b], out, stride, tails, scratch, &mut verdicts) => 2,
                _ => {
                    verdicts[0] = self.decode(&rest[0], out, stride, &mut tails[0], scratch);
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

    /// Decodes `N` chunks at once if this machine and the chunks allow it, else does nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn decode_together<const N: usize>(
        &self,
        chunks: [&Chunk<'_>; N],
        out: &mut [i8],
        stride: usize,
        tails: &mut [Tails],
        scratch: &mut Scratch,
        verdicts: &mut [Result<()>; TOGETHER],
    ) -> bool {
        let (CoderDecoder::Rans(decoder), Isa::Avx512) = (&self.decoder, self.isa) else { return false };
        let width = chunks[0].width;
        // If one chunk cannot be taken apart, all are decoded one by one, as on every other machine.
        let parts = chunks.map(|c| self.split(c).ok().filter(|p| !p.is_raw && c.width == width));
        if parts.iter().any(Option::is_none) {
            return false;
        }
        let parts = parts.map(|p| p.expect("checked above"));
        let jobs = std::array::from_fn(|i| rans::avx512::ChunkStreams { body: parts[i].body, side: chunks[i].side });
        let Ok(streams) = rans::avx512::decode::<N>(decoder, self.format, jobs, width, out, stride, &mut scratch.words)
        else {
            return false;
        };
        for (i, (stream, end)) in streams.into_iter().enumerate() {
            tails[i] = end;
            let patched = patches::apply(self.format, parts[i].patches, width, &mut out[i * width..], stride);
            verdicts[i] = patched.and(stream);
        }
        true
    }

    fn decode_raw(
        &self,
        parts: &ChunkParts<'_>,
        chunk: &Chunk<'_>,
        out: &mut [i8],
        stride: usize,
        lanes: &mut Tails,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let half = symbols_per_block(self.format.layout) / 2;
        let steps = self.format.steps(chunk.width);
        if self.format.layout == Layout::Quad {
            scratch.quads.resize(steps * LANES, 0);
            quads::raw_quads(parts.body, &mut scratch.quads);
            quads::place(&scratch.quads, chunk.side, chunk.width, self.format.shift, out, stride);
            return Ok(());
        }
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
        *lanes = tails;
        self.place(&scratch.symbols, chunk, &tails, out, stride);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what the vector code takes")]
    fn decode_rans(
        &self,
        decoder: &rans::RansDecoder,
        parts: &ChunkParts<'_>,
        chunk: &Chunk<'_>,
        out: &mut [i8],
        stride: usize,
        lanes: &mut Tails,
        scratch: &mut Scratch,
    ) -> Result<()> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        match self.isa {
            Isa::Avx512 => {
                let job = rans::avx512::ChunkStreams { body: parts.body, side: chunk.side };
                let [(verdict, tails)] =
                    rans::avx512::decode(decoder, self.format, [job], chunk.width, out, stride, &mut scratch.words)?;
                *lanes = tails;
                return verdict;
            }
            Isa::Avx2 => {
                let words = &mut scratch.words[0];
                let (body, side) = (parts.body, chunk.side);
                let (verdict, tails) =
                    rans::avx2::decode(decoder, self.format, body, side, chunk.width, out, stride, words)?;
                *lanes = tails;
                return verdict;
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
        *lanes = tails;
        self.place(&scratch.symbols, chunk, &tails, out, stride);
        verdict
    }

    /// Joins coded symbols (`[step][lane]`) with the side plane and writes the tile.
    fn place(&self, symbols: &[u8], chunk: &Chunk<'_>, tails: &[u32; LANES], out: &mut [i8], stride: usize) {
        let per_word = symbols_per_block(self.format.layout) / 8;
        let shift = self.format.shift;
        for block in 0..chunk.width / BLOCK_COLS {
            let side = match self.format.layout {
                Layout::Byte | Layout::Split => [[0; LANES]; 4],
                Layout::Pair | Layout::Quad => side_words(self.format, chunk, block, tails),
            };
            // Elements by word and lane: loops over lanes vectorize.
            let mut words = [[0u32; LANES]; 8];
            for (k, words) in words.iter_mut().enumerate() {
                let steps = symbols[(block * 8 + k) * per_word * LANES..][..per_word * LANES].as_chunks::<LANES>().0;
                match (self.format.layout, steps) {
                    (Layout::Byte | Layout::Split, [a, b, c, d]) => {
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
