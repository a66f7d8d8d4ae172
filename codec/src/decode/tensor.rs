//! Decoding one tensor.

use std::sync::Arc;

use half::{bf16, f16};
use rayon::prelude::*;

use super::values::Scales;
use super::{Container, DecodeOptions};
use crate::coder::plane::{Plane, PlaneSource, Scratch, TileFields};
use crate::coder::table::Table;
use crate::coder::{Coder, Filter, Isa, Layout};
use crate::container::{Hash, PlaneEntry, Segment, TensorEntry, hash};
use crate::error::{Error, ErrorKind, Result};
use crate::scheme::int8::{Granularity, Weight};
use crate::tensor::{AlignedBytes, Dtype, element_count, split, try_vec};
use crate::trust;

/// Decoded bytes that one stored byte can stand for at most (`FORMAT.md` section 10): what is more is refused before
/// memory is asked for.
const MAX_EXPANSION: usize = 131_072;

/// A tensor whose entry was checked.
pub(super) struct Form<'a> {
    pub plane: &'a PlaneEntry,
    pub dtype: Dtype,
    /// Elements of the plane: symbols, or bytes where elements are wider.
    pub elements: usize,
    /// Matrices, rows, columns of the plane.
    pub matrix: (usize, usize, usize),
    pub row_axis: usize,
    pub coder: Coder,
}

/// A tensor whose entry was checked and whose segments were read.
pub struct Opened<'a> {
    plane_entry: &'a PlaneEntry,
    pub dtype: Dtype,
    /// Elements of the plane: symbols, or bytes where elements are wider.
    pub elements: usize,
    /// Matrices, rows, columns of the plane.
    pub matrix: (usize, usize, usize),
    pub(super) row_axis: usize,
    pub coder: Coder,
    isa: Isa,
    pub(super) data: AlignedBytes,
    pub(super) offsets: AlignedBytes,
    pub(super) side: AlignedBytes,
    pub(super) table: Option<Arc<Table>>,
}

pub(super) fn need<T: Copy>(value: Option<T>, key: &str) -> Result<T> {
    value.ok_or_else(|| Error::format(format!("a plane without '{key}'")))
}

impl Container {
    /// Checks the entry of a tensor.
    pub(super) fn form<'a>(&self, entry: &'a TensorEntry) -> Result<Form<'a>> {
        let dtype = Dtype::from_name(&entry.dtype)?;
        let count = element_count(&entry.shape)?;
        let upgrade = |what: String| Error::unsupported(what).advice("upgrade wcodec");
        if !matches!(entry.scheme.as_str(), "int8" | "raw") {
            return Err(upgrade(format!("unknown scheme '{}'", entry.scheme)));
        }
        let [plane] = &entry.planes[..] else {
            return Err(Error::format(format!("scheme {} has one plane, not {}", entry.scheme, entry.planes.len())));
        };
        let bytes = count.checked_mul(dtype.size()).ok_or_else(|| Error::format("the tensor is too large"))?;
        let elements = match entry.scheme.as_str() {
            "int8" if dtype.is_quantizable() => count,
            "int8" => {
                return Err(Error::format(format!("scheme int8 for a tensor of {dtype}")));
            }
            _ => bytes,
        };
        if plane.fields.is_some() {
            return Err(upgrade("a plane of parts of elements".to_owned()));
        }
        let coder = Coder::from_name(&plane.coder).map_err(|e| upgrade(e.message().to_owned()))?;
        if elements == 0 && (entry.scheme != "raw" || coder != Coder::Raw) {
            return Err(Error::format("an empty tensor is stored with scheme raw and coder raw"));
        }
        if plane.data.length.saturating_mul(MAX_EXPANSION as u64) < elements as u64 {
            let length = plane.data.length;
            return Err(Error::corrupt(format!("{length} stored bytes cannot hold {elements} symbols"))
                .offset(plane.data.offset));
        }
        let matrix = match entry.matrix {
            Some(m) => {
                let n = m.elements()?;
                let transposed = m.row_axis == 1 && m.count == 1 && entry.shape == [m.cols, m.rows];
                if n != count || !(m.row_axis == 0 || transposed) {
                    let view = [m.count, m.rows, m.cols, m.row_axis];
                    return Err(Error::format(format!(
                        "the matrix view {view:?} does not fit shape {:?}",
                        entry.shape
                    )));
                }
                if elements != count {
                    return Err(Error::format(format!(
                        "a matrix view of raw {dtype} elements, which have more than 8 bits"
                    )));
                }
                if entry.scheme == "raw" && m.row_axis != 0 {
                    return Err(Error::format("a transposed matrix view in scheme raw"));
                }
                (m.count, m.rows, m.cols)
            }
            None if entry.scheme == "int8" || matches!(coder, Coder::Rans | Coder::Huffman) => {
                return Err(Error::format(format!("scheme {} with coder {coder} needs 'matrix'", entry.scheme)));
            }
            None if plane.filter.is_some() && coder == Coder::Zstd => {
                return Err(Error::format("a filter needs 'matrix'"));
            }
            None => (1, 1, elements),
        };
        let row_axis = entry.matrix.map_or(0, |m| m.row_axis);
        Ok(Form { plane, dtype, elements, matrix, row_axis, coder })
    }

    /// Checks the entry of a tensor and reads its plane's segments.
    pub(super) fn open_tensor<'a>(&self, entry: &'a TensorEntry, options: &DecodeOptions) -> Result<Opened<'a>> {
        let Form { plane, dtype, elements, matrix, row_axis, coder } = self.form(entry)?;
        let verify = options.verify;
        let read = |s: &Option<Segment>| match s {
            Some(s) => self.reader.segment_with(s, verify, &options.cancel),
            None => Ok(AlignedBytes::default()),
        };
        let tiled = matches!(coder, Coder::Rans | Coder::Huffman);
        let table = plane.table.filter(|_| tiled).map(|t| self.table(t, verify)).transpose()?;
        Ok(Opened {
            plane_entry: plane,
            dtype,
            elements,
            matrix,
            row_axis,
            coder,
            isa: options.isa()?,
            data: self.reader.segment_with(&plane.data, verify, &options.cancel)?,
            offsets: read(&plane.offsets)?,
            side: read(&plane.side)?,
            table,
        })
    }

    /// Scales of a tensor and what shares them; `None` where the scheme has none.
    pub(super) fn read_scales(
        &self,
        entry: &TensorEntry,
        options: &DecodeOptions,
    ) -> Result<Option<(Granularity, Vec<f32>)>> {
        let Some((granularity, segment)) = self.scale_form(entry)? else { return Ok(None) };
        Ok(Some((granularity, scales_in(&self.reader.segment_with(segment, options.verify, &options.cancel)?))))
    }

    /// What shares the scales of a tensor, and where they lie; `None` where the scheme has none.
    pub(super) fn scale_form<'a>(&self, entry: &'a TensorEntry) -> Result<Option<(Granularity, &'a Segment)>> {
        let (Some(s), Some(m)) = (&entry.scales, entry.matrix) else {
            if entry.scheme == "int8" {
                return Err(Error::format("scheme int8 needs 'scales' and 'matrix'"));
            }
            return Ok(None);
        };
        let granularity = match (s.per.as_str(), s.block) {
            ("row", None) => Granularity::Row,
            ("tensor", None) => Granularity::Tensor,
            ("block", Some(n)) => Granularity::Block(n).check()?,
            (per, block) => {
                return Err(Error::format(format!("scales per '{per}' with block {block:?}")));
            }
        };
        m.elements()?;
        // Checked as a product, since nothing has compared the matrix with the file yet.
        let want = match granularity {
            Granularity::Tensor => Some(4),
            _ => (m.count * m.rows).checked_mul(granularity.scales_per_row(m.cols)).and_then(|n| n.checked_mul(4)),
        };
        if want.map(|n| n as u64) != Some(s.data.length) {
            return Err(
                Error::format(format!("{} bytes of scales per {granularity}", s.data.length)).offset(s.data.offset)
            );
        }
        Ok(Some((granularity, &s.data)))
    }

    /// Refuses a tensor that would take more memory than a file that is not trusted may ask for: `decoded` bytes.
    pub(super) fn check_decoded(&self, entry: &TensorEntry, decoded: usize, advice: &'static str) -> Result<()> {
        let stored = entry.segments().map(|(_, s)| s.length).sum();
        trust::check_decoded(self.trusted(), stored, decoded as u64, advice)
    }

    pub(super) fn read_entry(
        &self,
        entry: &TensorEntry,
        dtype: Dtype,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let form = self.form(entry)?;
        let size = if entry.scheme == "int8" { dtype.size() } else { 1 };
        let bytes = form.elements.checked_mul(size).ok_or_else(|| Error::format("the tensor is too large"))?;
        self.check_decoded(entry, bytes, trust::OR_TO_A_FILE)?;
        let opened = self.open_tensor(entry, options)?;
        let scales = self.read_scales(entry, options)?;
        match (scales, entry.scheme.as_str()) {
            (Some((granularity, scales)), "int8") => {
                let scales = Scales::new(granularity, opened.matrix.2, &scales, 0);
                match dtype {
                    Dtype::F32 => opened.dequantize::<f32>(&scales, options),
                    Dtype::F16 => opened.dequantize::<f16>(&scales, options),
                    Dtype::BF16 => opened.dequantize::<bf16>(&scales, options),
                    other => Err(Error::input(format!("scheme int8 decodes to F32, F16 or BF16, not {other}"))
                        .advice("leave dtype out, or ask for one of these")),
                }
            }
            _ if dtype == opened.dtype => {
                let plane = opened.plane()?;
                let mut out = AlignedBytes::zeroed(opened.elements)?;
                opened.decode_into(&plane, bytemuck::cast_slice_mut(&mut out), options)?;
                Ok(out)
            }
            _ => Err(Error::input(format!(
                "a {} tensor of scheme {} cannot be read as {dtype}",
                opened.dtype, entry.scheme
            ))
            .advice("leave dtype out, and convert it afterwards")),
        }
    }
}

/// An error with its place in the file: coders count places from the start of what they are given, which begins at `base` of the data
/// segment.
pub(super) fn placed(plane: &PlaneEntry, base: usize, error: Error) -> Error {
    if error.kind() == ErrorKind::Cancelled {
        return error;
    }
    let place = plane.data.offset + base as u64 + error.byte_offset().unwrap_or(0);
    let placed = Error::new(error.kind(), error.message()).offset(place);
    match error.kind() {
        ErrorKind::Corrupt => placed.advice("restore the file, or encode the model again"),
        _ => placed,
    }
}

/// Scales as stored.
pub(super) fn scales_in(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

impl Opened<'_> {
    /// The plane, its structure checked.
    pub fn plane(&self) -> Result<Plane<'_>> {
        let p = self.plane_entry;
        let filter = p.filter.as_deref().map_or(Ok(Filter::None), Filter::from_name)?;
        let tiles = match self.coder {
            Coder::Rans | Coder::Huffman => {
                let layout = Layout::from_name(need(p.layout.as_deref(), "layout")?)?;
                Some(TileFields {
                    layout,
                    shift: if layout == Layout::Pair { need(p.shift, "shift")? } else { 0 },
                    tile: need(p.tile, "tile")?,
                    table: self.table.as_deref().ok_or_else(|| Error::format("a plane without 'table'"))?,
                    side: &self.side,
                })
            }
            _ => None,
        };
        let coded = self.coder != Coder::Raw;
        let source = PlaneSource {
            coder: self.coder,
            filter,
            matrix: self.matrix,
            data: &self.data,
            offsets: &self.offsets,
            zstd_chunk: if self.coder == Coder::Zstd { need(p.chunk, "chunk")? } else { 0 },
            max_chunk: if coded { need(p.max_chunk, "max_chunk")? } else { 0 },
            tiles,
        };
        let plane = Plane::new(source, self.isa).map_err(|e| self.at_data(e))?;
        if coded && plane.chunks() != need(p.chunks, "chunks")? {
            return Err(Error::format(format!(
                "the index says {:?} chunks, and there are {}",
                p.chunks,
                plane.chunks()
            )));
        }
        Ok(plane)
    }

    /// The error of a coder, with its place in the file.
    pub fn at_data(&self, error: Error) -> Error {
        placed(self.plane_entry, 0, error)
    }

    /// Compares the hash of all decoded bytes with the one that they should have.
    pub(super) fn compare(&self, found: Hash) -> Result<()> {
        self.plane_entry.hash.check(found).map_err(|e| e.offset(self.plane_entry.data.offset))
    }

    /// All symbols (or bytes) of the plane.
    pub fn symbols(&self, options: &DecodeOptions) -> Result<Vec<i8>> {
        // Memory is asked for once the plane's parts are known to fit its size.
        let plane = self.plane()?;
        let mut out = try_vec(self.elements)?;
        self.decode_into(&plane, &mut out, options)?;
        Ok(out)
    }

    /// Decodes all pieces into `out`, which has the plane's length, and checks the plane's hash.
    fn decode_into(&self, plane: &Plane<'_>, out: &mut [i8], options: &DecodeOptions) -> Result<()> {
        let pieces = split(out, (0..plane.pieces()).map(|i| plane.piece(i).len()));
        pieces.into_par_iter().enumerate().try_for_each_init(Scratch::default, |scratch, (i, piece)| {
            options.cancel.check()?;
            plane.decode_piece(i, piece, scratch).map_err(|e| self.at_data(e))
        })?;
        if options.verify { self.compare(hash(bytemuck::cast_slice(out))) } else { Ok(()) }
    }

    fn dequantize<T: Weight>(&self, scales: &Scales<'_>, options: &DecodeOptions) -> Result<AlignedBytes> {
        let bytes = self.elements.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or_else(|| Error::format("the tensor is too large"))?;
        if self.row_axis == 1 {
            let symbols = self.symbols(options)?;
            let mut out = AlignedBytes::zeroed(bytes)?;
            scales.apply_to_columns::<T>(&symbols, 0, bytemuck::cast_slice_mut(&mut out));
            return Ok(out);
        }
        let plane = self.plane()?;
        let mut out = AlignedBytes::zeroed(bytes)?;
        let values: &mut [T] = bytemuck::cast_slice_mut(&mut out);
        self.stream(&plane, options, &mut |begin, symbols| {
            scales.apply(begin, symbols, &mut values[begin..begin + symbols.len()]);
            Ok(())
        })?;
        Ok(out)
    }
}
