//! Chunks of a tensor: what each of them holds, and how long it is.

use wcodec::coder::tile::{OFFSET_UNIT, TileGeometry, side_bytes};
use wcodec::coder::zstd::frame_place;
use wcodec::container::{PlaneEntry, TensorEntry};
use wcodec::{Coder, Container, Error, Layout, Result, TensorInfo};

use super::ChunkStats;

/// All chunks of a tensor. Reads its chunk offsets once, however many there are, and nothing else.
///
/// # Errors
/// The offsets are damaged, or do not fit what the index says.
pub fn chunks(container: &Container, entry: &TensorEntry, info: &TensorInfo) -> Result<Vec<ChunkStats>> {
    let Some(plane) = entry.planes.first() else { return Ok(Vec::new()) };
    let found = match (Coder::from_name(&plane.coder)?, plane.tile) {
        (coder @ (Coder::Rans | Coder::Huffman), Some(tile)) => tiles(container, plane, coder, tile, info),
        (Coder::Rans | Coder::Huffman, None) => Err(Error::format("a plane without 'tile'")),
        (Coder::Zstd, _) => frames(container, plane, info),
        (Coder::Raw, _) => Ok(vec![ChunkStats { bytes: plane.data.length, elements: info.elements }]),
    };
    found.map_err(|e| container.reader().name(e))
}

fn tiles(
    container: &Container,
    plane: &PlaneEntry,
    coder: Coder,
    tile: usize,
    info: &TensorInfo,
) -> Result<Vec<ChunkStats>> {
    let g = TileGeometry::new(info.count, info.rows, info.cols, tile)?;
    let layout = Layout::from_name(plane.layout.as_deref().unwrap_or("byte"))?;
    let shift = plane.shift.unwrap_or(0).min(3);
    let offsets = offsets::<4>(container, plane, g.chunks().saturating_add(1))?;
    let at = |i: usize| offsets.get(i).map_or(0, |e| u64::from(u32::from_le_bytes(*e)) * OFFSET_UNIT as u64);
    let mut found = Vec::with_capacity(offsets.len().saturating_sub(1));
    for i in 0..offsets.len().saturating_sub(1) {
        let coded = at(i + 1).checked_sub(at(i)).ok_or_else(|| Error::corrupt("chunk offsets do not ascend"))?;
        let p = g.position(i);
        let row = p.strip % g.strips_per_matrix() * wcodec::coder::TILE_ROWS;
        let rows = g.rows().saturating_sub(row).min(wcodec::coder::TILE_ROWS);
        let cols = g.cols().saturating_sub(p.col).min(p.width);
        let side = side_bytes(coder, layout, shift, p.width) as u64;
        let side = if layout == Layout::Pair { side } else { 0 };
        found.push(ChunkStats { bytes: coded + side, elements: rows as u64 * cols as u64 });
    }
    Ok(found)
}

fn frames(container: &Container, plane: &PlaneEntry, info: &TensorInfo) -> Result<Vec<ChunkStats>> {
    let size = if info.scheme == "int8" { 1 } else { info.dtype.size() as u64 };
    let bytes = info.elements.saturating_mul(size);
    let chunk = plane.chunk.filter(|&n| n > 0).ok_or_else(|| Error::format("a plane without 'chunk'"))? as u64;
    let count = usize::try_from(bytes.div_ceil(chunk)).map_err(|_| Error::format("the tensor is too large"))?;
    let offsets = offsets::<8>(container, plane, count)?;
    let stats = offsets.iter().enumerate().map(|(i, entry)| {
        // A frame may end within an element, which then counts where it ends: the sum is right.
        let place = |i: usize| (i as u64).saturating_mul(chunk).min(bytes) / size;
        ChunkStats { bytes: frame_place(*entry).1 as u64, elements: place(i + 1) - place(i) }
    });
    Ok(stats.collect())
}

/// The entries of a plane's chunk offsets, `N` bytes each.
fn offsets<const N: usize>(container: &Container, plane: &PlaneEntry, entries: usize) -> Result<Vec<[u8; N]>> {
    let segment = plane.offsets.as_ref().ok_or_else(|| Error::format("a plane without 'offsets'"))?;
    if entries.checked_mul(N).map(|n| n as u64) != Some(segment.length) {
        let what = format!("{} bytes of chunk offsets for {entries} entries", segment.length);
        return Err(Error::format(what).offset(segment.offset));
    }
    Ok(container.reader().segment(segment, true)?.as_chunks::<N>().0.to_vec())
}
