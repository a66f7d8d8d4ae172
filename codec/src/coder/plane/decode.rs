//! Decodes a plane.

use std::ops::Range;

use rayon::prelude::*;

use super::form::{Coding, PlaneForm, Tiling};
use crate::cancel::Cancel;
use crate::coder::chunk::{Chunk, ChunkDecoder, Scratch, TOGETHER, Tails};
use crate::coder::chunk_format::ChunkFormat;
use crate::coder::split::{self, Cells, Rest};
use crate::coder::table::Table;
use crate::coder::tile::{OFFSET_UNIT, TileGeometry};
use crate::coder::zstd::PlaneFrames;
use crate::coder::{Filter, Isa, LANES, Layout, TILE_ROWS, filter};
use crate::error::{Code, Error, ErrorKind, Result};
use crate::tensor::reserve;

/// Symbols of a piece of a raw plane.
const RAW_PIECE: usize = 1 << 16;

/// The stored bytes of a plane and its description in the index.
#[derive(Clone, Copy)]
pub struct PlaneSource<'a> {
    /// The form of the stored plane.
    pub form: PlaneForm,
    /// Segment of chunks.
    pub data: &'a [u8],
    /// Segment of chunk offsets.
    pub offsets: &'a [u8],
    /// Segment of the side plane, for tiles of layout `pair`.
    pub side: &'a [u8],
    /// Table, for tiles.
    pub table: Option<&'a Table>,
}

/// A plane whose structure was checked, ready to decode piece by piece. A piece is a strip of 16 rows (tiles), a frame
/// (`zstd`) or a run of bytes (`raw`). Pieces are independent and follow each other in the row-major plane.
pub struct Plane<'a>(Kind<'a>);

enum Kind<'a> {
    Raw(&'a [i8]),
    Zstd { frames: PlaneFrames<'a>, cols: usize, filter: Filter },
    Tiles(Tiles<'a>),
}

struct Tiles<'a> {
    geometry: TileGeometry,
    format: ChunkFormat,
    filter: Filter,
    isa: Isa,
    decoder: ChunkDecoder,
    offsets: &'a [[u8; 4]],
    data: &'a [u8],
    side: &'a [u8],
    side_per_strip: usize,
    /// See [`Coding::element_bytes`].
    element_bytes: usize,
}

impl<'a> Plane<'a> {
    /// Checks that the parts fit each other.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) or [`ErrorKind::Format`](crate::ErrorKind::Format) if they do
    /// not; offsets are counted from the start of `data`.
    pub fn new(source: PlaneSource<'a>, isa: Isa) -> Result<Self> {
        let PlaneForm { matrix: (_, _, cols), coding, max_chunk } = source.form;
        let elements = source.form.elements()?;
        source.form.chunks()?;
        let kind = match coding {
            Coding::Raw => {
                if source.data.len() != elements {
                    let n = source.data.len();
                    return Err(coded!(SEGMENT_LENGTH, "{n} bytes in a raw plane of {elements}"));
                }
                Kind::Raw(bytemuck::cast_slice(source.data))
            }
            Coding::Zstd { chunk, filter } => {
                let frames = PlaneFrames::new(source.data, source.offsets, chunk, elements)?;
                let longest = (0..frames.count()).map(|i| frames.range(i).1).max();
                check_longest(longest.unwrap_or(0), max_chunk)?;
                Kind::Zstd { frames, cols, filter }
            }
            Coding::Tiles(tiling) => Kind::Tiles(Tiles::new(&source, tiling, isa)?),
        };
        Ok(Self(kind))
    }

    /// Symbols of the plane.
    pub fn elements(&self) -> usize {
        match &self.0 {
            Kind::Raw(data) => data.len(),
            Kind::Zstd { frames, .. } => frames.count().checked_sub(1).map_or(0, |last| frames.decoded(last).end),
            Kind::Tiles(t) => t.geometry.elements(),
        }
    }

    /// Pieces of the plane.
    pub fn pieces(&self) -> usize {
        match &self.0 {
            Kind::Raw(data) => data.len().div_ceil(RAW_PIECE),
            Kind::Zstd { frames, .. } => frames.count(),
            Kind::Tiles(t) => t.geometry.strips(),
        }
    }

    /// The symbols of the row-major plane that piece `i` holds.
    pub fn piece(&self, i: usize) -> Range<usize> {
        match &self.0 {
            Kind::Raw(data) => i * RAW_PIECE..((i + 1) * RAW_PIECE).min(data.len()),
            Kind::Zstd { frames, .. } => frames.decoded(i),
            Kind::Tiles(t) => t.geometry.strip_elements(i),
        }
    }

    /// Bytes that a symbol decodes to: 1, or more in layout `split`, where an element is a symbol joined with its
    /// uncoded bytes.
    pub fn element_bytes(&self) -> usize {
        match &self.0 {
            Kind::Tiles(t) => t.element_bytes,
            Kind::Raw(_) | Kind::Zstd { .. } => 1,
        }
    }

    /// Decodes piece `i` into `out`, which has room for its elements.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt), with the offset counted from the start of the data segment.
    pub fn decode_piece(&self, i: usize, out: &mut [i8], scratch: &mut Scratch) -> Result<()> {
        match &self.0 {
            Kind::Raw(data) => out.copy_from_slice(&data[self.piece(i)]),
            Kind::Zstd { frames, cols, filter } => frames.decode(i, out, *cols, *filter, &mut scratch.zstd)?,
            Kind::Tiles(t) => t.decode_strip(i, out, scratch)?,
        }
        Ok(())
    }

    /// The symbols themselves, if they are stored uncoded.
    pub fn stored(&self) -> Option<&'a [i8]> {
        match self.0 {
            Kind::Raw(data) => Some(data),
            _ => None,
        }
    }

    /// Decodes the columns `cols` of a row, counted through all matrices, into `out`, which has room for them: tile by
    /// tile, for strips too wide to hold in memory. Only for planes of tiles.
    ///
    /// # Errors
    /// Those of [`decode_piece`](Self::decode_piece), or `cancel` was used.
    pub fn decode_row(&self, row: usize, cols: Range<usize>, out: &mut [i8], cancel: &Cancel) -> Result<()> {
        let Kind::Tiles(t) = &self.0 else { return Err(coded!(BAD_PLANE, "a plane without 'tile'")) };
        let g = &t.geometry;
        let strip = row / g.rows() * g.strips_per_matrix() + row % g.rows() / TILE_ROWS;
        let row = row % g.rows() % TILE_ROWS;
        let tile_cols = |tile: usize| (tile * g.tile()).max(cols.start)..((tile + 1) * g.tile()).min(cols.end);
        let tiles = cols.start / g.tile()..cols.end.div_ceil(g.tile());
        let parts = crate::tensor::split(out, tiles.clone().map(|tile| tile_cols(tile).len() * t.element_bytes));
        parts.into_par_iter().zip(tiles).try_for_each_init(Default::default, |(buffer, scratch), (out, tile)| {
            cancel.check()?;
            let width = t.decode_tile(strip * g.tiles() + tile, buffer, scratch)?;
            let first = (row * width + tile_cols(tile).start - tile * g.tile()) * t.element_bytes;
            out.copy_from_slice(&buffer[first..first + out.len()]);
            Ok(())
        })
    }

    /// Checks every frame of coder `zstd` as far as possible without decoding it.
    ///
    /// # Errors
    /// Those of [`decode_piece`](Self::decode_piece).
    pub fn check_frames(&self) -> Result<()> {
        match &self.0 {
            Kind::Zstd { frames, .. } => (0..frames.count()).try_for_each(|i| frames.check(i)),
            _ => Ok(()),
        }
    }

    /// Chunks of the plane: tiles, frames, or 1 for a raw plane.
    pub fn chunks(&self) -> usize {
        match &self.0 {
            Kind::Raw(_) => 1,
            Kind::Zstd { frames, .. } => frames.count(),
            Kind::Tiles(t) => t.geometry.chunks(),
        }
    }

    /// The tiles' geometry; `None` for `zstd` and `raw`.
    pub fn geometry(&self) -> Option<&TileGeometry> {
        match &self.0 {
            Kind::Tiles(t) => Some(&t.geometry),
            _ => None,
        }
    }
}

/// Checks the longest chunk against the index, because kernels size their memory by it.
fn check_longest(longest: usize, max_chunk: usize) -> Result<()> {
    if longest == max_chunk {
        return Ok(());
    }
    Err(coded!(CHUNK_PLACES, "the longest chunk has {longest} bytes, and the index says {max_chunk}"))
}

/// Checks that the parts of a plane of tiles fit together, given only the lengths of its data and side plane. Returns
/// the bytes of a strip's side plane.
///
/// # Errors
/// Those of [`Plane::new`].
pub fn check_tiles(form: &PlaneForm, tiling: Tiling, offsets: &[u8], data: usize, side: usize) -> Result<usize> {
    let geometry = tiling.geometry(form.matrix)?;
    let format = tiling.chunk_format();
    let entries = offsets.as_chunks::<4>().0;
    if !offsets.len().is_multiple_of(4) || entries.len().checked_sub(1) != Some(geometry.chunks()) {
        let (n, chunks) = (offsets.len(), geometry.chunks());
        return Err(coded!(CHUNK_PLACES, "{n} bytes of offsets for {chunks} chunks"));
    }
    let side_per_strip = (0..geometry.tiles()).map(|t| format.side_bytes(geometry.position(t).width)).sum::<usize>();
    if side_per_strip.checked_mul(geometry.strips()) != Some(side) {
        return Err(coded!(SEGMENT_LENGTH, "{side} bytes of side plane"));
    }
    let at = |i: usize| u32::from_le_bytes(entries[i]) as usize * OFFSET_UNIT;
    let (mut end, mut longest) = (0, 0);
    for i in 0..geometry.chunks() {
        let r = at(i)..at(i + 1);
        let most = format.longest(geometry.position(i).width);
        if r.start != end || r.end < r.start || r.len() > most {
            let Range { start, end } = r;
            return Err(coded!(CHUNK_PLACES, "chunk {i} lies at {start}..{end}, at most {most} bytes long"));
        }
        end = r.end;
        longest = longest.max(r.len());
    }
    if end != data {
        return Err(coded!(CHUNK_PLACES, "chunks end at {end} of {data}"));
    }
    check_longest(longest, form.max_chunk)?;
    Ok(side_per_strip)
}

impl<'a> Tiles<'a> {
    fn new(source: &PlaneSource<'a>, tiling: Tiling, isa: Isa) -> Result<Self> {
        let Tiling { coder, layout, filter, .. } = tiling;
        let geometry = tiling.geometry(source.form.matrix)?;
        let Some(table) = source.table else {
            return Err(coded!(BAD_PLANE, "a plane of coder {coder} without a table"));
        };
        table.check(coder, layout)?;
        let format = tiling.chunk_format();
        let side_per_strip = check_tiles(&source.form, tiling, source.offsets, source.data.len(), source.side.len())?;
        let offsets = source.offsets.as_chunks::<4>().0;
        let decoder = ChunkDecoder::new(format, table, isa);
        let element_bytes = source.form.coding.element_bytes();
        let (data, side) = (source.data, source.side);
        Ok(Self { geometry, format, filter, isa, decoder, offsets, data, side, side_per_strip, element_bytes })
    }

    fn chunk_range(&self, i: usize) -> Range<usize> {
        let at = |i: usize| u32::from_le_bytes(self.offsets[i]) as usize * OFFSET_UNIT;
        at(i)..at(i + 1)
    }

    fn chunk(&self, i: usize) -> Chunk<'a> {
        let (strip, tile) = (i / self.geometry.tiles(), i % self.geometry.tiles());
        let width = self.geometry.position(i).width;
        let side = strip * self.side_per_strip + tile * self.format.side_bytes(self.geometry.tile());
        let side_length = self.format.side_bytes(width);
        Chunk { bytes: &self.data[self.chunk_range(i)], side: &self.side[side..side + side_length], width }
    }

    fn decode_strip(&self, strip: usize, out: &mut [i8], scratch: &mut Scratch) -> Result<()> {
        if self.format.layout == Layout::Split {
            let mut coded = std::mem::take(&mut scratch.coded);
            let decoded = self.decode_split(strip, &mut coded, out, scratch);
            scratch.coded = coded;
            return decoded;
        }
        self.decode_symbols(strip, out, &mut |_, _| (), scratch)
    }

    /// Decodes the strip's symbols into `coded` and joins them with the uncoded bytes.
    fn decode_split(&self, strip: usize, coded: &mut Vec<i8>, out: &mut [i8], scratch: &mut Scratch) -> Result<()> {
        let (g, bytes) = (&self.geometry, self.element_bytes);
        reserve(coded, out.len() / bytes)?;
        let mut tails: Vec<Tails> = vec![[0; LANES]; g.tiles()];
        let decoded = self.decode_symbols(strip, coded, &mut |tile, lanes| tails[tile] = *lanes, scratch);
        for (tile, tails) in tails.iter().enumerate() {
            let Chunk { side, width, .. } = self.chunk(strip * g.tiles() + tile);
            let col = tile * g.tile();
            let (rows, cols) = (coded.len() / g.cols(), width.min(g.cols() - col));
            let cells = Cells { rows, col, cols, stride: g.cols() };
            let rest = Rest { coder: self.format.coder, side, tails, width };
            split::join(coded, rest, bytes, cells, bytemuck::cast_slice_mut(out));
        }
        decoded
    }

    /// Decodes the strip's symbols and reports each tile's tails.
    fn decode_symbols(
        &self,
        strip: usize,
        out: &mut [i8],
        ended: &mut dyn FnMut(usize, &Tails),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (g, cols) = (&self.geometry, self.geometry.cols());
        let first = strip * g.tiles();
        let full_strip = out.len() == TILE_ROWS * cols;
        // Tiles without padding are decoded in place, several at once.
        let inner = if full_strip {
            (0..g.tiles()).take_while(|&t| t * g.tile() + g.position(t).width <= cols).count()
        } else {
            0
        };
        for t in (0..inner).step_by(TOGETHER) {
            let mut run = [self.chunk(first + t); TOGETHER];
            let n = TOGETHER.min(inner - t);
            for (i, chunk) in run.iter_mut().enumerate().take(n).skip(1) {
                *chunk = self.chunk(first + t + i);
            }
            let mut tails = [[0; LANES]; TOGETHER];
            let decoded = self.decoder.decode_run(&run[..n], &mut out[t * g.tile()..], cols, &mut tails, scratch);
            tails.iter().take(n).enumerate().for_each(|(i, tails)| ended(t + i, tails));
            decoded.map_err(|(i, e)| self.place(&e, first + t + i))?;
        }
        for t in inner..g.tiles() {
            let mut tails = [0; LANES];
            let decoded = self.decode_padded(&self.chunk(first + t), t * g.tile(), out, &mut tails, scratch);
            ended(t, &tails);
            decoded.map_err(|e| self.place(&e, first + t))?;
        }
        if self.filter != Filter::None {
            for col in (0..cols).step_by(g.tile()) {
                filter::undo(self.filter, &mut out[col..], cols, g.tile().min(cols - col), self.isa);
            }
        }
        Ok(())
    }

    /// Decodes a tile by itself, padding included, and returns its width.
    fn decode_tile(&self, i: usize, out: &mut Vec<i8>, scratch: &mut Scratch) -> Result<usize> {
        let chunk = self.chunk(i);
        let (width, elements) = (chunk.width, TILE_ROWS * chunk.width);
        let mut tails = [0; LANES];
        out.clear();
        out.resize(elements, 0);
        self.decoder.decode(&chunk, out, width, &mut tails, scratch).map_err(|e| self.place(&e, i))?;
        filter::undo(self.filter, out, width, width, self.isa);
        if self.format.layout == Layout::Split {
            let symbols = std::mem::take(out);
            out.resize(elements * self.element_bytes, 0);
            let cells = Cells { rows: TILE_ROWS, col: 0, cols: width, stride: width };
            let rest = Rest { coder: self.format.coder, side: chunk.side, tails: &tails, width };
            split::join(&symbols, rest, self.element_bytes, cells, bytemuck::cast_slice_mut(out));
        }
        Ok(width)
    }

    /// Decodes a tile that reaches beyond the matrix, and drops the padding.
    fn decode_padded(
        &self,
        chunk: &Chunk<'_>,
        col: usize,
        out: &mut [i8],
        tails: &mut Tails,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let cols = self.geometry.cols();
        let mut tile = vec![0i8; TILE_ROWS * chunk.width];
        let decoded = self.decoder.decode(chunk, &mut tile, chunk.width, tails, scratch);
        let width = chunk.width.min(cols - col);
        for (to, from) in out.chunks_exact_mut(cols).zip(tile.chunks_exact(chunk.width)) {
            to[col..col + width].copy_from_slice(&from[..width]);
        }
        decoded
    }

    fn place(&self, error: &Error, chunk: usize) -> Error {
        // Damage keeps the code of its cause.
        let code = if error.kind() == ErrorKind::Corrupt { error.code() } else { Code::BAD_CHUNK };
        code.error(format!("chunk {chunk}: {}", error.message())).offset(self.chunk_range(chunk).start as u64)
    }
}
