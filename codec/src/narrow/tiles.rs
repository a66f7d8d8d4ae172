//! Copies the chunks of a plane unchanged.

use std::ops::Range;

use rayon::prelude::*;

use super::cut::MatrixCut;
use crate::coder::plane::{Coding, Plane, PlaneForm, PlaneSource, Scratch, Tiling};
use crate::coder::tile::OFFSET_UNIT;
use crate::container::{Hash, Hasher, Segment, hash};
use crate::decode::{Container, DecodeOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::stored::StoredPlane;
use crate::tensor::{AlignedBytes, split, try_vec};

/// Advice on a damaged chunk.
const RESTORE: &str = "restore the file, or encode the model again";

/// Strips that are decoded at once for their hash.
const STRIPS: usize = 64;

/// The copied part of a plane.
pub(super) struct Copied {
    pub form: PlaneForm,
    pub offsets: Option<AlignedBytes>,
    pub data: AlignedBytes,
    pub side: AlignedBytes,
    /// The hash of its decoded bytes.
    pub hash: Hash,
}

/// Copies the chunks in these strips and tiles. Each is decoded once to compute the part's hash, which also checks it.
pub(super) fn copy(
    container: &Container,
    plane: &StoredPlane,
    tiling: Tiling,
    part: &MatrixCut,
    (strips, tiles): &(Vec<usize>, Vec<usize>),
    options: &DecodeOptions,
) -> Result<Copied> {
    let g = tiling.geometry(plane.form.matrix)?;
    let entries = container.entries::<4>(plane, 0..g.chunks() + 1, g.chunks() + 1, options.verify)?;
    let at = |chunk: usize| u32::from_le_bytes(entries[chunk]) as usize * OFFSET_UNIT;
    if !entries.iter().map(|e| u32::from_le_bytes(*e)).is_sorted() || at(g.chunks()) as u64 != plane.data.length {
        return Err(coded!(CHUNK_PLACES, "chunk offsets do not ascend").offset(plane.data.offset).advice(RESTORE));
    }
    let side_at: Vec<usize> = (0..=g.tiles()).map(|t| t * tiling.side_bytes(g.tile())).collect();
    let side_of = |t: usize| tiling.side_bytes(g.position(t).width);
    let side_per_strip: usize = (0..g.tiles()).map(side_of).sum();
    let stored = plane.side.as_ref().map_or(0, |s| s.length);
    if side_per_strip.checked_mul(g.strips()).map(|n| n as u64) != Some(stored) {
        return Err(coded!(SEGMENT_LENGTH, "{stored} bytes of side plane").offset(plane.data.offset).advice(RESTORE));
    }

    let chunks: Vec<usize> = strips.iter().flat_map(|s| tiles.iter().map(move |t| s * g.tiles() + t)).collect();
    let (mut offsets, mut end, mut max_chunk) = (Vec::with_capacity((chunks.len() + 1) * 4), 0usize, 0);
    offsets.extend_from_slice(&0u32.to_le_bytes());
    for &chunk in &chunks {
        let length = at(chunk + 1) - at(chunk);
        (end, max_chunk) = (end + length, max_chunk.max(length));
        let units = u32::try_from(end / OFFSET_UNIT)
            .map_err(|_| coded!(PARTS, "a part of more than 16 GiB").advice("take fewer ranges"))?;
        offsets.extend_from_slice(&units.to_le_bytes());
    }
    let place = |chunk: usize| chunk / g.tiles() * side_per_strip + side_at[chunk % g.tiles()];
    let data = gather(container, &plane.data, runs(&chunks, |c| at(c)..at(c + 1)), options)?;
    let side = match &plane.side {
        Some(s) => {
            let side = runs(&chunks, |c| place(c)..place(c) + side_of(c % g.tiles()));
            gather(container, s, side, options)?
        }
        None => AlignedBytes::default(),
    };

    let form = PlaneForm { matrix: part.form(), coding: plane.form.coding, max_chunk };
    let table = plane.table.map(|number| container.table(number, true)).transpose()?;
    let source = PlaneSource { form, data: &data, offsets: &offsets, side: &side, table: table.as_deref() };
    let hash = hash_of(&source, options).map_err(|e| match e.kind() {
        ErrorKind::Cancelled => e,
        // The coder's offsets are relative to the part, so they are dropped.
        _ => e.code().error(e.message()).offset(plane.data.offset).advice(RESTORE),
    })?;
    Ok(Copied { form, offsets: Some(AlignedBytes::copy_of(&offsets)?), data, side, hash })
}

/// Copies the selected part of a raw plane.
pub(super) fn copy_raw(
    container: &Container,
    plane: &StoredPlane,
    part: &MatrixCut,
    options: &DecodeOptions,
) -> Result<Copied> {
    let data = part.elements_of(container, plane, options)?;
    let form = PlaneForm { matrix: part.form(), coding: Coding::Raw, max_chunk: 0 };
    let hash = hash(&data);
    Ok(Copied { form, offsets: None, data, side: AlignedBytes::default(), hash })
}

/// Ranges of chunks; adjacent ones are merged.
fn runs(chunks: &[usize], range: impl Fn(usize) -> Range<usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &chunk in chunks {
        let new = range(chunk);
        match runs.last_mut() {
            Some(last) if last.end == new.start => last.end = new.end,
            _ => runs.push(new),
        }
    }
    runs
}

/// Concatenates byte ranges of a segment.
fn gather(
    container: &Container,
    segment: &Segment,
    ranges: Vec<Range<usize>>,
    options: &DecodeOptions,
) -> Result<AlignedBytes> {
    let mut out = AlignedBytes::zeroed(ranges.iter().map(Range::len).sum())?;
    let pieces = split(&mut out, ranges.iter().map(Range::len));
    pieces.into_par_iter().zip(ranges).try_for_each(|(out, r)| {
        options.cancel.check()?;
        let bytes = container.reader().part(segment, r.start as u64..r.end as u64, &options.cancel)?;
        out.copy_from_slice(&bytes);
        Ok::<_, Error>(())
    })?;
    Ok(out)
}

/// The hash of all bytes that a plane decodes to, some strips at a time.
fn hash_of(source: &PlaneSource<'_>, options: &DecodeOptions) -> Result<Hash> {
    let plane = Plane::new(*source, options.isa()?)?;
    let bytes = plane.element_bytes();
    let (mut hasher, mut buffer) = (Hasher::default(), Vec::new());
    for first in (0..plane.pieces()).step_by(STRIPS) {
        let pieces = first..(first + STRIPS).min(plane.pieces());
        let lengths = || pieces.clone().map(|i| plane.piece(i).len() * bytes);
        let length = lengths().sum();
        if buffer.len() < length {
            buffer = try_vec::<i8>(length)?;
        }
        let parts = split(&mut buffer[..length], lengths());
        parts.into_par_iter().zip(pieces.clone()).try_for_each_init(Scratch::default, |scratch, (out, i)| {
            options.cancel.check()?;
            plane.decode_piece(i, out, scratch)
        })?;
        hasher.update(bytemuck::cast_slice(&buffer[..length]));
    }
    Ok(hasher.hash())
}
