//! Chunks by themselves.

use std::ops::Range;

use super::tensor::Form;
use super::{Container, DecodeOptions};
use crate::coder::plane::Scratch;
use crate::coder::tile::{OFFSET_UNIT, TileGeometry};
use crate::coder::zstd::frame_place;
use crate::coder::{Coder, TILE_ROWS};
use crate::container::{PlaneEntry, TensorEntry};
use crate::error::{Error, Result};
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

impl Container {
    /// Where a chunk lies and what it holds. Reads the tensor's chunk offsets, and none of its data.
    ///
    /// # Errors
    /// There is no such tensor or chunk, or the offsets are damaged.
    pub fn chunk(&self, name: &str, index: usize) -> Result<ChunkInfo> {
        self.with_tensor(name, &DecodeOptions::default(), |t| self.chunk_info(t, index))
    }

    fn chunk_info(&self, t: &TensorEntry, index: usize) -> Result<ChunkInfo> {
        let Form { plane, elements: bytes, matrix: (count, rows, cols), coder, .. } = self.form(t)?;
        let check = |chunks: usize| match plane.chunks.unwrap_or(1) {
            _ if index < chunks && chunks == plane.chunks.unwrap_or(chunks) => Ok(()),
            said if said == chunks => Err(Error::input(format!("no chunk {index}: the tensor has {chunks}"))),
            said => Err(Error::format(format!("the index says {said} chunks, and there are {chunks}"))),
        };
        let (range, side, tile) = match (coder, plane.tile) {
            (Coder::Rans | Coder::Huffman, Some(tile)) => {
                let g = TileGeometry::new(count, rows, cols, tile)?;
                check(g.chunks())?;
                let entries = self.chunk_offsets::<4>(plane, g.chunks() + 1)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                let width = g.position(index).width;
                (at(index)..at(index + 1), side_bytes(plane, coder, width)?, Some(g))
            }
            (Coder::Zstd, _) => {
                let chunk = plane.chunk.filter(|&n| n > 0).ok_or_else(|| Error::format("a plane without 'chunk'"))?;
                let chunks = bytes.div_ceil(chunk);
                check(chunks)?;
                let (start, length) = frame_place(self.chunk_offsets::<8>(plane, chunks)?[index]);
                (start as u64..(start + length) as u64, 0, None)
            }
            (Coder::Raw, _) if index == 0 => (0..plane.data.length, 0, None),
            (Coder::Raw, _) => return Err(Error::input(format!("no chunk {index}: a raw plane is one"))),
            _ => return Err(Error::format("a plane without 'tile'")),
        };
        if range.start > range.end || range.end > plane.data.length {
            return Err(Error::corrupt(format!("chunk {index} lies at {range:?} of {}", plane.data.length)));
        }
        let (matrix, rows, cols, decoded) = match tile {
            Some(g) => {
                let p = g.position(index);
                let (m, s) = (p.strip / g.strips_per_matrix(), p.strip % g.strips_per_matrix());
                let (r, c) = (s * TILE_ROWS..((s + 1) * TILE_ROWS).min(rows), p.col..(p.col + p.width).min(cols));
                let n = r.len() * c.len();
                (m, r, c, n)
            }
            None => {
                let chunk = plane.chunk.filter(|_| coder == Coder::Zstd).unwrap_or(bytes);
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

    /// The entries of a plane's chunk offsets, `N` bytes each.
    fn chunk_offsets<const N: usize>(&self, plane: &PlaneEntry, entries: usize) -> Result<Vec<[u8; N]>> {
        let segment = plane.offsets.ok_or_else(|| Error::format("a plane without 'offsets'"))?;
        if entries.checked_mul(N).map(|n| n as u64) != Some(segment.length) {
            let what = format!("{} bytes of offsets for {entries} entries", segment.length);
            return Err(Error::format(what).offset(segment.offset));
        }
        Ok(self.reader.segment(&segment, true)?.as_chunks::<N>().0.to_vec())
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
            let opened = self.open_tensor(t, options)?;
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
                None if opened.coder == Coder::Raw => opened.symbols(options),
                None => piece(index),
            }
        })
    }
}

/// Bytes of the side plane that belong to a tile of `width` columns.
fn side_bytes(plane: &PlaneEntry, coder: Coder, width: usize) -> Result<u64> {
    let layout = crate::coder::Layout::from_name(plane.layout.as_deref().unwrap_or("byte"))?;
    let shift = plane.shift.unwrap_or(0).min(3);
    Ok(crate::coder::tile::side_bytes(coder, layout, shift, width) as u64)
}
