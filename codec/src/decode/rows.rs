//! Decodes some rows of a tensor. Only the strips or frames that hold them are read and decoded, as an embedding lookup
//! requires.

use std::ops::Range;
use std::sync::PoisonError;

use half::{bf16, f16};
use rayon::prelude::*;

use super::container::Container;
use super::options::DecodeOptions;
use super::stream::is_wide;
use super::tensor::placed;
use crate::cancel::Cancel;
use crate::coder::plane::{Coding, Plane, PlaneForm, PlaneSource, Scratch, Tiling};
use crate::coder::tile::OFFSET_UNIT;
use crate::coder::zstd::{ALIGN, PlaneFrames, frame_place};
use crate::coder::{Filter, TILE_ROWS};
use crate::error::{Error, Result};
use crate::scheme::int8::Weight;
use crate::scheme::join;
use crate::stored::{StoredPlane, StoredScales, StoredTensor};
use crate::tensor::{AlignedBytes, Dtype, element_count, reserve, split};
use crate::trust;

impl Container {
    /// Rows of a tensor, row-major little-endian: `rows` counts entries of its first dimension, each as large as the
    /// other dimensions say. In the tensor's own dtype, or in `dtype`: `F32`, `F16` or `BF16` for scheme `int8`, and
    /// `I8` for its symbols. Equal, byte for byte, to that part of the result of [`read_as`](Self::read_as).
    ///
    /// Only the strips or frames that hold these rows are read and decoded; a transposed matrix (`row_axis` 1), whose
    /// rows lie across all strips, is decoded as a whole. With [`verify`](DecodeOptions::verify), the first call for a
    /// tensor reads all its segments and compares them with their hashes; decoded bytes, whose hash covers the whole
    /// plane, are not compared.
    ///
    /// # Errors
    /// The tensor has no such rows, cannot be converted to `dtype`, or is damaged.
    pub fn read_rows(
        &self,
        name: &str,
        rows: Range<usize>,
        dtype: Option<Dtype>,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let place = self.reader.place(name)?;
        self.with_tensor(name, options, |tensor| {
            let elements = elements_of(&tensor.shape, &rows)?;
            let dtype = dtype.unwrap_or(tensor.dtype);
            tensor.check_dtype(dtype, true)?;
            if elements.is_empty() {
                return AlignedBytes::zeroed(0);
            }
            let plane = tensor.plane();
            let size = dtype.size();
            self.check_decoded(tensor, elements.len().saturating_mul(size), trust::OR_TO_A_FILE)?;
            if tensor.transposed() {
                return self.read_columns(tensor, &rows, dtype, options);
            }
            if options.verify {
                self.check_segments(place, options)?;
            }
            if tensor.is_joined() {
                return self.join_part(tensor, elements, options);
            }
            let Some(scales) = tensor.symbol_scales() else {
                return self.read_part(plane, elements.start * size..elements.end * size, options);
            };
            let symbols = self.read_part(plane, elements.clone(), options)?;
            let symbols: &[i8] = bytemuck::cast_slice(&symbols);
            match dtype {
                Dtype::I8 => AlignedBytes::copy_of(bytemuck::cast_slice(symbols)),
                Dtype::F32 => self.dequantize_part::<f32>(scales, symbols, &elements),
                Dtype::F16 => self.dequantize_part::<f16>(scales, symbols, &elements),
                _ => self.dequantize_part::<bf16>(scales, symbols, &elements),
            }
        })
    }

    /// Compares all segments of a tensor with their hashes, once.
    pub(crate) fn check_segments(&self, place: usize, options: &DecodeOptions) -> Result<()> {
        let sound = || self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if sound().contains(&place) {
            return Ok(());
        }
        for (_, segment) in self.index().tensors[place].segments() {
            self.reader.check_segment(segment, &options.cancel)?;
        }
        sound().insert(place);
        Ok(())
    }

    /// Rows of a tensor that is stored transposed: columns of its matrix, which need all symbols.
    fn read_columns(
        &self,
        tensor: &StoredTensor,
        columns: &Range<usize>,
        dtype: Dtype,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let plane = tensor.plane();
        self.check_decoded(tensor, plane.elements, trust::AS_TRUSTED)?;
        if !tensor.scheme.makes_symbols() {
            return self.open_joined(tensor, options)?.columns(columns.clone(), options);
        }
        let (_, rows, cols) = plane.form.matrix;
        let symbols = self.open_plane(plane, options)?.symbols(options)?;
        let mut out = AlignedBytes::zeroed(columns.len() * rows * dtype.size())?;
        if dtype == Dtype::I8 {
            for (to, col) in out.chunks_exact_mut(rows).zip(columns.clone()) {
                to.iter_mut().zip(symbols.chunks_exact(cols)).for_each(|(to, row)| *to = row[col] as u8);
            }
            return Ok(out);
        }
        let stored =
            tensor.symbol_scales().ok_or_else(|| coded!(BAD_COMBINATION, "a transposed tensor without 'scales'"))?;
        let scales = self.read_scales(stored, options)?;
        let scales = stored.scales(&scales);
        match dtype {
            Dtype::F32 => scales.apply_to_columns::<f32>(&symbols, columns.start, bytemuck::cast_slice_mut(&mut out)),
            Dtype::F16 => scales.apply_to_columns::<f16>(&symbols, columns.start, bytemuck::cast_slice_mut(&mut out)),
            _ => scales.apply_to_columns::<bf16>(&symbols, columns.start, bytemuck::cast_slice_mut(&mut out)),
        }
        Ok(out)
    }

    /// Elements `range` of a tensor whose elements are spread over several planes; the range is not empty.
    fn join_part(&self, tensor: &StoredTensor, range: Range<usize>, options: &DecodeOptions) -> Result<AlignedBytes> {
        let parts = tensor.planes.iter().map(|p| self.read_part(p, range.clone(), options));
        let (parts, fields) = (parts.collect::<Result<Vec<_>>>()?, tensor.fields());
        let parts: Vec<(&[i8], _)> = parts.iter().map(|p| bytemuck::cast_slice(p)).zip(&fields).collect();
        let size = tensor.dtype.size();
        let mut out = AlignedBytes::zeroed(range.len() * size)?;
        join(&parts, size, &mut out);
        Ok(out)
    }

    /// Elements `range` of a plane in row-major order, each a byte unless its layout is `split`; the range is not empty.
    pub(crate) fn read_part(
        &self,
        plane: &StoredPlane,
        range: Range<usize>,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        match plane.form.coding {
            Coding::Raw => self.reader.part(&plane.data, range.start as u64..range.end as u64, &options.cancel),
            Coding::Zstd { chunk, filter } => self.read_frames(plane, (chunk, filter), range, options),
            Coding::Tiles(tiling) => self.read_strips(plane, tiling, range, options),
        }
    }

    /// Decodes the strips of 16 rows that hold `range`, and keeps only that part.
    fn read_strips(
        &self,
        plane: &StoredPlane,
        tiling: Tiling,
        range: Range<usize>,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let (_, rows, cols) = plane.form.matrix;
        let g = tiling.geometry(plane.form.matrix)?;
        let table = plane.table.map(|number| self.table(number, options.verify)).transpose()?;

        let strip = |row: usize| row / rows * g.strips_per_matrix() + row % rows / TILE_ROWS;
        let strips = strip(range.start / cols)..strip((range.end - 1) / cols) + 1;
        let chunks = strips.start * g.tiles()..strips.end * g.tiles();
        let offsets = self.entries::<4>(plane, chunks.start..chunks.end + 1, g.chunks() + 1, false)?;
        let offsets: Vec<usize> = offsets.iter().map(|&e| u32::from_le_bytes(e) as usize * OFFSET_UNIT).collect();
        if !offsets.is_sorted() {
            return Err(coded!(CHUNK_PLACES, "chunk offsets do not ascend").offset(plane.data.offset));
        }
        let (base, end) = (offsets[0], offsets[offsets.len() - 1]);
        let data = self.reader.part(&plane.data, base as u64..end as u64, &options.cancel)?;
        let per_strip: usize = (0..g.tiles()).map(|t| tiling.side_bytes(g.position(t).width)).sum();
        let stored = plane.side.as_ref().map_or(0, |s| s.length);
        if per_strip.checked_mul(g.strips()).map(|n| n as u64) != Some(stored) {
            return Err(coded!(SEGMENT_LENGTH, "{stored} bytes of side plane").offset(plane.data.offset));
        }
        let side = match &plane.side {
            Some(s) => {
                let range = (strips.start * per_strip) as u64..(strips.end * per_strip) as u64;
                self.reader.part(s, range, &options.cancel)?
            }
            None => AlignedBytes::default(),
        };

        let whole_strips = g.strip_elements(strips.start).start..g.strip_elements(strips.end - 1).end;
        let held = if is_wide(cols) { range.clone() } else { whole_strips };
        let bytes = plane.form.coding.element_bytes();
        let mut out = AlignedBytes::zeroed(held.len() * bytes)?;
        let mut rest: &mut [i8] = bytemuck::cast_slice_mut(&mut out);
        let mut next = strips.start;
        while next < strips.end {
            // Strips of one matrix form a smaller plane, which is checked and decoded like any other.
            let last = ((next / g.strips_per_matrix() + 1) * g.strips_per_matrix()).min(strips.end);
            let elements = g.strip_elements(next).start..g.strip_elements(last - 1).end;
            let bounds = &offsets[(next - strips.start) * g.tiles()..=(last - strips.start) * g.tiles()];
            let wanted = elements.start.max(held.start)..elements.end.min(held.end);
            let (piece, others) = rest.split_at_mut(wanted.len() * bytes);
            let rebased: Vec<u8> =
                bounds.iter().flat_map(|at| (((at - bounds[0]) / OFFSET_UNIT) as u32).to_le_bytes()).collect();
            let matrix = (1, elements.len() / cols, cols);
            let max_chunk = longest(plane, bounds.windows(2).map(|w| w[1] - w[0]))?;
            let source = PlaneSource {
                form: PlaneForm { matrix, max_chunk, ..plane.form },
                data: &data[bounds[0] - base..bounds[bounds.len() - 1] - base],
                offsets: &rebased,
                side: &side[(next - strips.start) * per_strip..(last - strips.start) * per_strip],
                table: table.as_deref(),
            };
            let place = Place { stored: plane, base: bounds[0], row: elements.start / cols };
            let wanted = wanted.start - elements.start..wanted.end - elements.start;
            place.decode(&place.plane(source, options)?, wanted, piece, options)?;
            (rest, next) = (others, last);
        }
        cut(out, (range.start - held.start) * bytes..(range.end - held.start) * bytes)
    }

    /// Decodes the frames that hold `range`, and keeps only that part. The frames at its ends are decoded to separate
    /// memory.
    fn read_frames(
        &self,
        plane: &StoredPlane,
        (chunk, filter): (usize, Filter),
        range: Range<usize>,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let cols = plane.form.matrix.2;
        let frames = range.start / chunk..range.end.div_ceil(chunk);
        let places: Vec<(usize, usize)> =
            self.entries::<8>(plane, frames.clone(), plane.chunks, false)?.into_iter().map(frame_place).collect();
        longest(plane, places.iter().map(|p| p.1))?;
        let (base, last) = (places[0].0, places[places.len() - 1]);
        let data = self.reader.part(&plane.data, base as u64..(last.0 + last.1) as u64, &options.cancel)?;
        let mut rebased = Vec::with_capacity(places.len() * 8);
        for &(start, length) in &places {
            let at = start.checked_sub(base).ok_or_else(|| {
                coded!(CHUNK_PLACES, "chunk offsets do not ascend")
                    .offset(plane.data.offset.saturating_add(start as u64))
            })?;
            // Both were read as 32-bit numbers.
            rebased.extend_from_slice(&((at / ALIGN) as u32).to_le_bytes());
            rebased.extend_from_slice(&(length as u32).to_le_bytes());
        }
        let placed = |e: Error| placed(plane, base, e);
        let begin = frames.start * chunk;
        let held = frames.end.saturating_mul(chunk).min(plane.elements) - begin;
        let part = PlaneFrames::part(&data, &rebased, chunk, held, frames.start).map_err(placed)?;

        // Memory is allocated once the frames are known to fit its size.
        let mut out = AlignedBytes::zeroed(range.len())?;
        let wanted = |i: usize| {
            let frame = part.decoded(i);
            (frame.start + begin).max(range.start)..(frame.end + begin).min(range.end)
        };
        let pieces = split(bytemuck::cast_slice_mut(&mut out), (0..part.count()).map(|i| wanted(i).len()));
        pieces.into_par_iter().enumerate().try_for_each_init(Default::default, |(context, decoded), (i, out)| {
            options.cancel.check()?;
            let frame = part.decoded(i);
            if out.len() == frame.len() {
                return part.decode(i, out, cols, filter, context).map_err(placed);
            }
            reserve(decoded, frame.len())?;
            part.decode(i, decoded, cols, filter, context).map_err(placed)?;
            out.copy_from_slice(&decoded[wanted(i).start - begin - frame.start..][..out.len()]);
            Ok(())
        })?;
        Ok(out)
    }

    /// Some of a plane's `all` chunk offsets, `N` bytes each; with `verify`, all of them are first compared with their
    /// hash.
    pub(crate) fn entries<const N: usize>(
        &self,
        plane: &StoredPlane,
        some: Range<usize>,
        all: usize,
        verify: bool,
    ) -> Result<Vec<[u8; N]>> {
        let segment = plane.offsets.as_ref().ok_or_else(|| coded!(BAD_PLANE, "a plane without 'offsets'"))?;
        if all.checked_mul(N).map(|n| n as u64) != Some(segment.length) {
            let what = format!("{} bytes of offsets for {all} entries", segment.length);
            return Err(coded!(CHUNK_PLACES, what).offset(segment.offset));
        }
        let bytes = if verify {
            AlignedBytes::copy_of(&self.reader.segment(segment, true)?[some.start * N..some.end * N])?
        } else {
            self.reader.part(segment, (some.start * N) as u64..(some.end * N) as u64, &Cancel::new())?
        };
        Ok(bytes.as_chunks::<N>().0.to_vec())
    }

    fn dequantize_part<T: Weight>(
        &self,
        stored: &StoredScales,
        symbols: &[i8],
        elements: &Range<usize>,
    ) -> Result<AlignedBytes> {
        let cols = stored.matrix.2;
        let rows = elements.start / cols..elements.end.div_ceil(cols);
        let (scales, factors) = stored.held(&rows);
        let read = |held| self.reader.part(&stored.segment, held, &Cancel::new());
        let factors = if factors.is_empty() { AlignedBytes::default() } else { read(factors)? };
        let values = stored.values_of(&read(scales)?, &factors, rows.start);
        let mut out = AlignedBytes::zeroed(symbols.len() * size_of::<T>())?;
        stored.scales(&values).apply::<T>(elements.start, symbols, bytemuck::cast_slice_mut(&mut out));
        Ok(out)
    }
}

/// The elements of the tensor in its `rows`.
pub(super) fn elements_of(shape: &[usize], rows: &Range<usize>) -> Result<Range<usize>> {
    let Some((&all, others)) = shape.split_first() else {
        return Err(coded!(BAD_ROWS, "a scalar has no rows").advice("read it as a whole"));
    };
    if rows.start > rows.end || rows.end > all {
        return Err(coded!(BAD_ROWS, "rows {rows:?} of a tensor with {all} rows").advice("ask for rows that it has"));
    }
    if all == 0 {
        return Ok(0..0);
    }
    // Partial products of an element count that is known to fit.
    let row = element_count(others)?;
    Ok(rows.start * row..rows.end * row)
}

/// The longest of some chunks, which must not be longer than the index says of all chunks.
fn longest(plane: &StoredPlane, lengths: impl Iterator<Item = usize>) -> Result<usize> {
    let longest = lengths.max().unwrap_or(0);
    let said = plane.form.max_chunk;
    if longest > said {
        return Err(coded!(CHUNK_PLACES, "a chunk has {longest} bytes, and the index says {said} at most")
            .offset(plane.data.offset));
    }
    Ok(longest)
}

/// A part of a plane: its first row, and the offset of its data in the segment.
#[derive(Clone, Copy)]
struct Place<'a> {
    stored: &'a StoredPlane,
    base: usize,
    row: usize,
}

impl Place<'_> {
    /// The part as a plane, structurally checked.
    fn plane<'a>(&self, source: PlaneSource<'a>, options: &DecodeOptions) -> Result<Plane<'a>> {
        Plane::new(source, options.isa()?).map_err(|e| self.placed(e))
    }

    /// Decodes `elements` of the part into `out`, which has room for them: all at once, unless strips are too wide to
    /// hold in memory.
    fn decode(&self, plane: &Plane<'_>, elements: Range<usize>, out: &mut [i8], options: &DecodeOptions) -> Result<()> {
        let (cols, bytes) = (self.stored.form.matrix.2, plane.element_bytes());
        if is_wide(cols) {
            let rows = elements.start / cols..elements.end.div_ceil(cols);
            let part = |row: usize| (row * cols).max(elements.start)..((row + 1) * cols).min(elements.end);
            let pieces = split(out, rows.clone().map(|row| part(row).len() * bytes));
            return pieces.into_iter().zip(rows).try_for_each(|(out, row)| {
                let cols = part(row).start - row * cols..part(row).end - row * cols;
                plane.decode_row(row, cols, out, &options.cancel).map_err(|e| self.placed(e))
            });
        }
        let pieces = split(out, (0..plane.pieces()).map(|i| plane.piece(i).len() * bytes));
        pieces.into_par_iter().enumerate().try_for_each_init(Scratch::default, |scratch, (i, piece)| {
            options.cancel.check()?;
            plane.decode_piece(i, piece, scratch).map_err(|e| self.placed(e))
        })
    }

    /// Moves an error's position: coders count from the start of their input, messages from the start of the file.
    fn placed(&self, e: Error) -> Error {
        let text = format!("counted from row {} on, {}", self.row, e.message());
        placed(self.stored, self.base, e.code().error(text).offset(e.byte_offset().unwrap_or(0)))
    }
}

/// `range` of `bytes`, without a copy if it is all of them.
fn cut(bytes: AlignedBytes, range: Range<usize>) -> Result<AlignedBytes> {
    if range == (0..bytes.len()) { Ok(bytes) } else { AlignedBytes::copy_of(&bytes[range]) }
}
