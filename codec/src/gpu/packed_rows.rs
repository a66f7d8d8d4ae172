//! Some rows of a tensor on their way to a device: what of its packed tensor they need.

use std::ops::Range;

use super::plan::{Method, PackedPlane, PackedTensor, PlaneAddresses, TensorPlan};
use crate::coder::TILE_ROWS;
use crate::coder::plane::Coding;
use crate::coder::tile::OFFSET_UNIT;
use crate::coder::zstd::frame_place;
use crate::stored::StoredTensor;

/// The parts of a packed tensor that decoding some rows reads, packed closer.
#[derive(Clone, Debug)]
pub struct PackedRows {
    /// Ranges of the packed tensor, each with its place in the piece: multiples of 128.
    pub copies: Vec<(Range<usize>, usize)>,
    pub len: usize,
    /// The places of each plane's parts where the piece is at address 0.
    places: Vec<PlaneAddresses>,
}

impl PackedRows {
    /// The parts of the tensor `packed` that are read when `rows` are decoded, which begin and end with strips: whole units of
    /// [`PackedTensor::ALIGN`] bytes, in which lies what kernels read around a part.
    pub fn of(plan: &TensorPlan, packed: &[u8], rows: &Range<usize>) -> Self {
        let parts = &plan.packed;
        if rows.len() == plan.rows() {
            return Self { copies: vec![(0..parts.len, 0)], len: parts.len, places: parts.at(0) };
        }
        let mut piece = Self { copies: Vec::new(), len: 0, places: vec![PlaneAddresses::default(); plan.planes.len()] };
        if rows.is_empty() {
            return piece;
        }
        let (scales, factors) = match plan.tensor.symbol_scales() {
            Some(scales) => scales.held(rows),
            None => Default::default(),
        };
        let mut held = |part: Range<u64>| piece.add(parts, &parts.scales, &(part.start as usize..part.end as usize));
        let (scales, columns) = (held(scales).wrapping_add(parts.factors as u64), held(factors));
        for (i, (method, plane)) in plan.planes.iter().zip(&parts.planes).enumerate() {
            let (offsets, data, side) = ranges(plan, method, plane, packed, rows);
            piece.places[i] = PlaneAddresses {
                scales,
                columns,
                offsets: piece.add(parts, &plane.offsets, &offsets),
                data: piece.add(parts, &plane.data, &data),
                side: piece.add(parts, &plane.side, &side),
            };
        }
        piece
    }

    /// As many of the `rows`, from their beginning, as fit `capacity` bytes, and what is read for them; nothing where not even a strip
    /// fits.
    pub fn fitting(
        plan: &TensorPlan,
        packed: &[u8],
        rows: &Range<usize>,
        capacity: usize,
    ) -> Option<(Range<usize>, Self)> {
        let upto = |strip: usize| {
            let rows = rows.start..plan.first_row(strip);
            let piece = Self::of(plan, packed, &rows);
            (piece.len <= capacity).then_some((rows, piece))
        };
        let (first, end) = (plan.strip_of(rows.start), plan.strip_of(rows.end));
        if let Some(all) = upto(end) {
            return Some(all);
        }
        let (mut fits, mut too_many) = (first, end);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if upto(middle).is_some() { fits = middle } else { too_many = middle }
        }
        if fits > first { upto(fits) } else { None }
    }

    /// Bytes that the piece for any one strip has at most: what of a tensor cannot be cut. By what the index says of it.
    pub fn bound_of_strip(tensor: &StoredTensor) -> usize {
        let lengths = PackedTensor::lengths(tensor);
        let (count, rows, cols) = tensor.rows_view();
        let scales = match tensor.symbol_scales().map_or(0, |s| s.bytes_per_row(cols)) {
            0 => lengths.scales,
            per_row => TILE_ROWS * per_row,
        };
        let factors = tensor.symbol_scales().filter(|s| s.columns).map(|_| lengths.factors / count.max(1));
        let decoded = TILE_ROWS.saturating_mul(cols);
        let planes = tensor.planes.iter().zip(&lengths.planes).flat_map(|(plane, &[_, data, side])| {
            let longest = plane.form.max_chunk;
            let (offsets, chunks, side) = match plane.form.coding {
                Coding::Raw => (0, decoded, 0),
                Coding::Zstd { chunk, .. } => {
                    // A strip may begin and end within a frame; frames begin at multiples of 8.
                    let frames = decoded / chunk + 2;
                    (8 * frames, frames.saturating_mul(longest + 8), 0)
                }
                Coding::Tiles(_) => {
                    let strips = count * rows.div_ceil(TILE_ROWS);
                    let tiles = plane.chunks / strips.max(1);
                    (4 * (tiles + 1), tiles.saturating_mul(longest), side / strips.max(1))
                }
            };
            [offsets, chunks.min(data), side]
        });
        // Each part is widened to whole units on both sides, and by what kernels read behind it.
        let bound = [scales]
            .into_iter()
            .chain(factors)
            .chain(planes)
            .map(|n| n + 3 * PackedTensor::ALIGN)
            .fold(0, usize::saturating_add);
        bound.next_multiple_of(PackedTensor::ALIGN).min(PackedTensor::new(&lengths).len)
    }

    /// Puts a range of a part behind what is there; the place at which the part would begin.
    fn add(&mut self, packed: &PackedTensor, part: &Range<usize>, range: &Range<usize>) -> u64 {
        if range.is_empty() {
            return self.len as u64;
        }
        let begin = (part.start + range.start) / PackedTensor::ALIGN * PackedTensor::ALIGN;
        // Up to 15 bytes behind a part are read, too.
        let end = (part.start + range.end + 16).next_multiple_of(PackedTensor::ALIGN).min(packed.len);
        let place = self.len;
        self.copies.push((begin..end, place));
        self.len += end - begin;
        // May lie before address 0: what is read does not.
        (place as u64).wrapping_add(part.start as u64).wrapping_sub(begin as u64)
    }

    /// The places that each plane is decoded from, of a piece at `address`.
    pub fn at(&self, address: u64) -> Vec<PlaneAddresses> {
        let at = |p: &PlaneAddresses| PlaneAddresses {
            scales: p.scales.wrapping_add(address),
            columns: p.columns.wrapping_add(address),
            offsets: p.offsets.wrapping_add(address),
            data: p.data.wrapping_add(address),
            side: p.side.wrapping_add(address),
        };
        self.places.iter().map(at).collect()
    }
}

/// The ranges of a plane's offsets, data and side that decoding `rows`, not all and not none, reads, counted from where each begins.
fn ranges(
    plan: &TensorPlan,
    method: &Method,
    parts: &PackedPlane,
    packed: &[u8],
    rows: &Range<usize>,
) -> (Range<usize>, Range<usize>, Range<usize>) {
    let elements = rows.start * plan.matrix.2..rows.end * plan.matrix.2;
    let entry = |at: usize, bytes: usize| &packed[parts.offsets.start + at * bytes..][..bytes];
    match method {
        Method::Tiles(t) => {
            let g = &t.geometry;
            let strips = plan.strip_of(rows.start)..plan.strip_of(rows.end);
            let chunks = strips.start * g.tiles()..strips.end * g.tiles();
            let at = |chunk: usize| {
                u32::from_le_bytes(entry(chunk, 4).try_into().expect("four bytes")) as usize * OFFSET_UNIT
            };
            let side = parts.side.len() / g.strips();
            let data = at(chunks.start)..at(chunks.end);
            (4 * chunks.start..4 * (chunks.end + 1), data, strips.start * side..strips.end * side)
        }
        Method::Zstd { chunk, frames, .. } => {
            let (first, end) = (elements.start / chunk, elements.end.div_ceil(*chunk).min(*frames));
            let place = |frame| frame_place(entry(frame, 8).try_into().expect("eight bytes"));
            let last = place(end - 1);
            (8 * first..8 * end, place(first).0..last.0 + last.1, 0..0)
        }
        Method::Raw { .. } => (0..0, elements, 0..0),
    }
}
