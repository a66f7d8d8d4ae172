//! Chunks by themselves.

use std::ops::Range;

use super::{Container, DecodeOptions};
use crate::coder::TILE_ROWS;
use crate::coder::plane::{Coding, Scratch};
use crate::coder::tile::{OFFSET_UNIT, side_bytes};
use crate::coder::zstd::frame_place;
use crate::error::{Error, Result};
use crate::stored::StoredTensor;
use crate::tensor::try_vec;

/// A chunk of a tensor: what can be decoded by itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ChunkInfo {
    /// Its number.
    pub index: usize,
    /// The matrix it is in, for tiles; else 0.
    pub matrix: usize,
    /// Rows that it touches: of its matrix for tiles, else counted through all matrices.
    pub rows: Range<usize>,
    /// Columns that it touches; all of them where it holds more than one row without being a tile.
    pub cols: Range<usize>,
    /// Where it begins, bytes from the start of the file.
    pub offset: u64,
    /// Stored bytes there.
    pub length: u64,
    /// Bytes of the side plane that belong to it, for layout `pair`.
    pub side: u64,
    /// Decoded bytes, padding excluded.
    pub decoded: u64,
}

/// How much of a tensor a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// Stored bytes, those in the side plane included.
    pub bytes: u64,
    /// Elements; one that goes over from a frame to the next counts where it ends.
    pub elements: u64,
}

impl Container {
    /// All chunks of a tensor. Reads its chunk offsets once, however many there are, and nothing else.
    ///
    /// # Errors
    /// There is no such tensor, or the offsets are damaged.
    pub fn chunk_sizes(&self, name: &str) -> Result<Vec<ChunkSize>> {
        self.with_tensor(name, &DecodeOptions::default(), |t| self.sizes_of_chunks(t))
    }

    fn sizes_of_chunks(&self, t: &StoredTensor) -> Result<Vec<ChunkSize>> {
        let plane = t.plane();
        let size = (t.scheme.bits(t.dtype) / 8) as u64;
        match plane.form.coding {
            Coding::Raw => Ok(vec![ChunkSize { bytes: plane.data.length, elements: plane.elements as u64 / size }]),
            Coding::Zstd { chunk, .. } => {
                let bytes = plane.elements as u64;
                let entries = self.entries::<8>(plane, 0..plane.chunks, plane.chunks, true)?;
                let end = |i: usize| (i as u64).saturating_mul(chunk as u64).min(bytes) / size;
                let sizes = entries
                    .iter()
                    .enumerate()
                    .map(|(i, entry)| ChunkSize { bytes: frame_place(*entry).1 as u64, elements: end(i + 1) - end(i) });
                Ok(sizes.collect())
            }
            Coding::Tiles(tiling) => {
                let Some(g) = plane.form.geometry()? else { return Ok(Vec::new()) };
                let entries = self.entries::<4>(plane, 0..plane.chunks + 1, plane.chunks + 1, true)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                (0..plane.chunks)
                    .map(|i| {
                        let coded = at(i + 1).checked_sub(at(i));
                        let coded = coded.ok_or_else(|| Error::corrupt("chunk offsets do not ascend"))?;
                        let p = g.position(i);
                        let row = p.strip % g.strips_per_matrix() * TILE_ROWS;
                        let (rows, cols) = ((g.rows() - row).min(TILE_ROWS), (g.cols() - p.col).min(p.width));
                        let side = side_bytes(tiling.coder, tiling.layout, tiling.shift, p.width) as u64;
                        Ok(ChunkSize { bytes: coded + side, elements: (rows * cols) as u64 })
                    })
                    .collect()
            }
        }
    }

    /// Where a chunk lies and what it holds. Reads the tensor's chunk offsets, and none of its data.
    ///
    /// # Errors
    /// There is no such tensor or chunk, or the offsets are damaged.
    pub fn chunk(&self, name: &str, index: usize) -> Result<ChunkInfo> {
        self.with_tensor(name, &DecodeOptions::default(), |t| self.chunk_info(t, index))
    }

    fn chunk_info(&self, t: &StoredTensor, index: usize) -> Result<ChunkInfo> {
        let plane = t.plane();
        let (_, rows, cols) = plane.form.matrix;
        let bytes = plane.elements;
        if index >= plane.chunks {
            let has = plane.chunks;
            return Err(match plane.form.coding {
                Coding::Raw => Error::input(format!("no chunk {index}: a raw plane is one")),
                _ => Error::input(format!("no chunk {index}: the tensor has {has}")),
            });
        }
        let (range, side) = match plane.form.coding {
            Coding::Raw => (0..plane.data.length, 0),
            Coding::Zstd { .. } => {
                let (start, length) = frame_place(self.entries::<8>(plane, index..index + 1, plane.chunks, true)?[0]);
                (start as u64..(start + length) as u64, 0)
            }
            Coding::Tiles(tiling) => {
                let entries = self.entries::<4>(plane, index..index + 2, plane.chunks + 1, true)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                let width = plane.form.geometry()?.map_or(0, |g| g.position(index).width);
                (at(0)..at(1), side_bytes(tiling.coder, tiling.layout, tiling.shift, width) as u64)
            }
        };
        if range.start > range.end || range.end > plane.data.length {
            return Err(Error::corrupt(format!("chunk {index} lies at {range:?} of {}", plane.data.length)));
        }
        let (matrix, rows, cols, decoded) = match (plane.form.geometry()?, plane.form.coding) {
            (Some(g), _) => {
                let p = g.position(index);
                let (m, s) = (p.strip / g.strips_per_matrix(), p.strip % g.strips_per_matrix());
                let (r, c) = (s * TILE_ROWS..((s + 1) * TILE_ROWS).min(rows), p.col..(p.col + p.width).min(cols));
                let n = r.len() * c.len();
                (m, r, c, n)
            }
            (None, coding) => {
                let chunk = if let Coding::Zstd { chunk, .. } = coding { chunk } else { bytes };
                let start = index.saturating_mul(chunk).min(bytes);
                let run = start..start.saturating_add(chunk).min(bytes);
                let (first, last) = (run.start / cols.max(1), run.end.div_ceil(cols.max(1)));
                let c = if last - first <= 1 { run.start - first * cols..run.end - first * cols } else { 0..cols };
                (0, first..last, c, run.len())
            }
        };
        Ok(ChunkInfo {
            index,
            matrix,
            rows,
            cols,
            offset: plane.data.offset + range.start,
            length: range.end - range.start,
            side,
            decoded: decoded as u64,
        })
    }

    /// Decodes one chunk: its symbols (or bytes) without padding, row-major within the chunk.
    ///
    /// Hashes are of whole segments, so the plane's are read for it; a tile is decoded with its strip.
    ///
    /// # Errors
    /// There is no such tensor or chunk, or the tensor is damaged.
    pub fn read_chunk(&self, name: &str, index: usize, options: &DecodeOptions) -> Result<Vec<i8>> {
        let info = self.chunk(name, index)?;
        self.with_tensor(name, options, |t| {
            let opened = self.open_plane(t.plane(), options)?;
            let plane = opened.plane()?;
            let piece = |i: usize| -> Result<Vec<i8>> {
                let mut out = try_vec(plane.piece(i).len())?;
                plane.decode_piece(i, &mut out, &mut Scratch::default()).map_err(|e| opened.at_data(e))?;
                Ok(out)
            };
            match plane.geometry() {
                Some(g) => {
                    let strip = piece(index / g.tiles())?;
                    Ok(strip.chunks_exact(g.cols()).flat_map(|row| &row[info.cols.clone()]).copied().collect())
                }
                None if plane.stored().is_some() => opened.symbols(options),
                None => piece(index),
            }
        })
    }
}
