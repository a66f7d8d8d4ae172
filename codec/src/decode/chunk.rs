//! Single chunks.

use std::ops::Range;

use super::container::Container;
use super::options::DecodeOptions;
use crate::coder::plane::{Coding, Scratch};
use crate::coder::tile::OFFSET_UNIT;
use crate::coder::zstd::frame_place;
use crate::error::Result;
use crate::scheme::SchemeKind;
use crate::stored::{StoredPlane, StoredTensor};
use crate::tensor::try_vec;

/// A chunk of a tensor, the unit of independent decoding.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ChunkInfo {
    /// Its index.
    pub index: usize,
    /// The matrix that contains it, for tiles; else 0.
    pub matrix: usize,
    /// Rows that it touches: within its matrix for tiles, else counted through all matrices.
    pub rows: Range<usize>,
    /// Columns that it touches; all of them if it spans more than one row without being a tile.
    pub cols: Range<usize>,
    /// Offset of its data in the tensor's first plane, bytes from the start of the file.
    pub offset: u64,
    /// Stored bytes of that data.
    pub length: u64,
    /// Bytes that belong to it in the side plane (layouts `pair` and `split`) and in the tensor's other planes.
    pub side: u64,
    /// Decoded bytes, without padding.
    pub decoded: u64,
}

/// The size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// Stored bytes, including those in the side plane and in the tensor's other planes.
    pub bytes: u64,
    /// Elements; one that continues in the next frame counts there.
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
        let mut planes = t.planes.iter().map(|plane| self.sizes_in_plane(t, plane));
        let mut sizes = planes.next().transpose()?.unwrap_or_default();
        for (others, plane) in planes.zip(&t.planes[1..]) {
            let others = others?;
            for (i, size) in sizes.iter_mut().enumerate() {
                // A raw plane has no chunks, so its bytes count in proportion to elements.
                size.bytes += if plane.form.coding == Coding::Raw { size.elements } else { others[i].bytes };
            }
        }
        Ok(sizes)
    }

    fn sizes_in_plane(&self, t: &StoredTensor, plane: &StoredPlane) -> Result<Vec<ChunkSize>> {
        let size = if t.scheme == SchemeKind::Raw { t.dtype.size() as u64 } else { 1 };
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
                let g = tiling.geometry(plane.form.matrix)?;
                let entries = self.entries::<4>(plane, 0..plane.chunks + 1, plane.chunks + 1, true)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                (0..plane.chunks)
                    .map(|i| {
                        let coded = at(i + 1).checked_sub(at(i));
                        let coded = coded.ok_or_else(|| coded!(CHUNK_PLACES, "chunk offsets do not ascend"))?;
                        let (_, rows, cols) = g.cells(i);
                        let side = tiling.side_bytes(g.position(i).width) as u64;
                        Ok(ChunkSize { bytes: coded + side, elements: (rows.len() * cols.len()) as u64 })
                    })
                    .collect()
            }
        }
    }

    /// The position and contents of a chunk. Reads the tensor's chunk offsets, and none of its data.
    ///
    /// # Errors
    /// There is no such tensor or chunk, or the offsets are damaged.
    pub fn chunk(&self, name: &str, index: usize) -> Result<ChunkInfo> {
        self.with_tensor(name, &DecodeOptions::default(), |t| self.chunk_info(t, index))
    }

    fn chunk_info(&self, t: &StoredTensor, index: usize) -> Result<ChunkInfo> {
        let plane = t.plane();
        let bytes = plane.elements;
        if index >= plane.chunks {
            let has = plane.chunks;
            return Err(match plane.form.coding {
                Coding::Raw => coded!(INPUT_BUG, "no chunk {index}: a raw plane is one"),
                _ => coded!(INPUT_BUG, "no chunk {index}: the tensor has {has}"),
            });
        }
        // For chunks that are not tiles: elements in row-major order.
        let run = |elements: Range<usize>| {
            let cols = plane.form.matrix.2;
            let rows = elements.start / cols.max(1)..elements.end.div_ceil(cols.max(1));
            let first = rows.start * cols;
            let held = if rows.len() <= 1 { elements.start - first..elements.end - first } else { 0..cols };
            (0, rows, held, elements.len())
        };
        let (range, side, (matrix, rows, cols, decoded)) = match plane.form.coding {
            Coding::Raw => (0..plane.data.length, 0, run(0..bytes)),
            Coding::Zstd { chunk, .. } => {
                let (start, length) = frame_place(self.entries::<8>(plane, index..index + 1, plane.chunks, true)?[0]);
                let begin = index.saturating_mul(chunk).min(bytes);
                let elements = begin..begin.saturating_add(chunk).min(bytes);
                (start as u64..(start + length) as u64, 0, run(elements))
            }
            Coding::Tiles(tiling) => {
                let entries = self.entries::<4>(plane, index..index + 2, plane.chunks + 1, true)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                let g = tiling.geometry(plane.form.matrix)?;
                let (matrix, rows, cols) = g.cells(index);
                let decoded = rows.len() * cols.len();
                (at(0)..at(1), tiling.side_bytes(g.position(index).width) as u64, (matrix, rows, cols, decoded))
            }
        };
        if range.start > range.end || range.end > plane.data.length {
            return Err(coded!(CHUNK_PLACES, "chunk {index} lies at {range:?} of {}", plane.data.length));
        }
        let beside = t.planes[1..].iter().map(|p| self.beside(p, index, decoded));
        let side = beside.sum::<Result<u64>>()? + side;
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

    /// Bytes in another plane of the same tensor that belong to the `decoded` symbols of chunk `index` of the first
    /// plane.
    fn beside(&self, plane: &StoredPlane, index: usize, decoded: usize) -> Result<u64> {
        match plane.form.coding {
            Coding::Raw => Ok(decoded as u64),
            Coding::Zstd { .. } => {
                Ok(frame_place(self.entries::<8>(plane, index..index + 1, plane.chunks, true)?[0]).1 as u64)
            }
            Coding::Tiles(_) => {
                let entries = self.entries::<4>(plane, index..index + 2, plane.chunks + 1, true)?;
                let at = |i: usize| u64::from(u32::from_le_bytes(entries[i])) * OFFSET_UNIT as u64;
                at(1).checked_sub(at(0)).ok_or_else(|| coded!(CHUNK_PLACES, "chunk offsets do not ascend"))
            }
        }
    }

    /// Decodes one chunk: its symbols (or bytes) without padding, row-major within the chunk. For a tensor of several
    /// planes these are the first plane's; elements of layout `split` include their uncoded bytes.
    ///
    /// Hashes cover whole segments, so the plane's segments are read for it; a tile is decoded with its strip.
    ///
    /// # Errors
    /// There is no such tensor or chunk, or the tensor is damaged.
    pub fn read_chunk(&self, name: &str, index: usize, options: &DecodeOptions) -> Result<Vec<i8>> {
        let info = self.chunk(name, index)?;
        self.with_tensor(name, options, |t| {
            let opened = self.open_plane(t.plane(), options)?;
            let plane = opened.plane()?;
            let piece = |i: usize| -> Result<Vec<i8>> {
                let mut out = try_vec(plane.piece(i).len() * plane.element_bytes())?;
                plane.decode_piece(i, &mut out, &mut Scratch::default()).map_err(|e| opened.at_data(e))?;
                Ok(out)
            };
            match plane.geometry() {
                Some(g) => {
                    let strip = piece(index / g.tiles())?;
                    let bytes = plane.element_bytes();
                    let cols = info.cols.start * bytes..info.cols.end * bytes;
                    Ok(strip.chunks_exact(g.cols() * bytes).flat_map(|row| &row[cols.clone()]).copied().collect())
                }
                None if plane.stored().is_some() => opened.symbols(options),
                None => piece(index),
            }
        })
    }
}
