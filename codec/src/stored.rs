//! A tensor as its container stores it: the index entry, parsed and checked in one place. Decoding on CPUs and GPUs,
//! sizes, chunks and descriptions all rely on it.

use std::ops::Range;

use half::bf16;
use serde_json::value::{RawValue, to_raw_value};

use crate::coder::plane::{Coding, PlaneForm, Tiling};
use crate::coder::{Coder, Filter, Layout};
use crate::container::{Hash, MatrixEntry, PlaneEntry, ScalesEntry, Segment, TensorEntry};
use crate::error::{Code, Error, Result};
use crate::scheme::int8::{Granularity, Scales};
use crate::scheme::lossless;
use crate::scheme::{COLUMNS, Columns, Fields, Scheme, SchemeKind, check_planes};
use crate::tensor::{Dtype, element_count};

/// The most decoded bytes that one stored byte can stand for (`FORMAT.md` section 10): larger claims are refused before
/// memory is allocated.
const MAX_EXPANSION: usize = 131_072;

/// A tensor: its properties, and the positions of its bytes. None of its bytes have been read.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub scheme: SchemeKind,
    /// The tensor's matrix view, if it has one.
    pub matrix: Option<MatrixEntry>,
    pub scales: Option<StoredScales>,
    /// The planes, in the order of the file.
    pub planes: Vec<StoredPlane>,
    /// See [`Quality::error`](crate::container::Quality::error).
    pub error: Option<f64>,
    /// Stored bytes, without tables.
    pub stored_bytes: u64,
}

/// The scales of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredScales {
    /// The elements that share a scale.
    pub granularity: Granularity,
    /// The dtype in which they are stored: [`SchemeKind::scale_dtype`].
    pub dtype: Dtype,
    /// The offset added to symbols before they are multiplied: [`SchemeKind::offset`].
    pub offset: f32,
    /// Matrices, rows, columns.
    pub matrix: (usize, usize, usize),
    /// Whether columns have factors, which come first in the segment: those of each matrix.
    pub columns: bool,
    pub segment: Segment,
}

/// The values of scales, or of those of some rows.
#[derive(Debug, Default)]
pub(crate) struct ScaleValues {
    pub scales: Vec<f32>,
    /// The factors of the columns of the rows' matrices, if they have some.
    pub columns: Option<Vec<f32>>,
    /// The row, counted through all matrices, that `scales` begins with.
    pub first: usize,
}

/// A plane of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct StoredPlane {
    pub form: PlaneForm,
    /// The bits of an element that it holds; `None` if it holds whole elements.
    pub fields: Option<Fields>,
    /// Symbols, or bytes if a plane of whole elements is wider than 8 bits.
    pub elements: usize,
    /// The number of chunks, the units of independent decoding.
    pub chunks: usize,
    /// Number of its table in the container, for tiles.
    pub table: Option<usize>,
    pub offsets: Option<Segment>,
    pub data: Segment,
    pub side: Option<Segment>,
    /// The hash of all its decoded bytes.
    pub hash: Hash,
}

impl StoredTensor {
    /// Parses the entry of a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format), [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): it
    /// contradicts itself or the format. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): a later version can
    /// read it.
    pub fn new(entry: &TensorEntry) -> Result<Self> {
        let dtype = Dtype::from_name(&entry.dtype)?;
        let elements = element_count(&entry.shape)?;
        let scheme = match entry.opaque()? {
            // Opaque bytes are stored like those of any raw tensor.
            Some(_) => SchemeKind::Raw,
            None => SchemeKind::from_file(&entry.scheme)
                .map_err(|_| upgrade(Code::NEWER_FORMAT, format!("unknown scheme '{}'", entry.scheme)))?,
        };
        let split = scheme == SchemeKind::Lossless && entry.planes.len() > 1;
        let (n, most) = (entry.planes.len(), if split { dtype.size() } else { 1 });
        if n == 0 || n > most {
            let has = if most == 1 { "one plane".to_owned() } else { format!("{most} planes at most") };
            return Err(coded!(BAD_COMBINATION, "scheme {scheme} has {has}, not {n}"));
        }
        let too_large = || coded!(BAD_SIZES, "the tensor is too large");
        let bytes = elements.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let in_plane = match scheme {
            SchemeKind::Int8 | SchemeKind::Rate if dtype.is_quantizable() => elements,
            SchemeKind::Int8 | SchemeKind::Rate => {
                return Err(coded!(BAD_COMBINATION, "scheme {scheme} for a tensor of {dtype}"));
            }
            SchemeKind::Lossless if lossless::planes_of(dtype).is_some() => elements,
            SchemeKind::Lossless => return Err(coded!(BAD_COMBINATION, "scheme lossless for a tensor of {dtype}")),
            SchemeKind::Raw => bytes,
        };
        let mut coders = Vec::with_capacity(entry.planes.len());
        for plane in &entry.planes {
            if plane.fields.is_some() && scheme != SchemeKind::Lossless {
                return Err(upgrade(Code::NEWER_FORMAT, "a plane of parts of elements".to_owned()));
            }
            let coder = Coder::from_name(&plane.coder).map_err(|e| upgrade(e.code(), e.message().to_owned()))?;
            if in_plane == 0 && (scheme != SchemeKind::Raw || coder != Coder::Raw) {
                return Err(coded!(BAD_COMBINATION, "an empty tensor is stored with scheme raw and coder raw"));
            }
            if plane.data.length.saturating_mul(MAX_EXPANSION as u64) < in_plane as u64 {
                let length = plane.data.length;
                return Err(coded!(SEGMENT_LENGTH, "{length} stored bytes cannot hold {in_plane} symbols")
                    .offset(plane.data.offset));
            }
            coders.push(coder);
        }
        // Schemes that need no matrix view have one plane.
        let coder = coders[0];
        let matrix = match entry.matrix {
            Some(m) => {
                check_view(m, entry, scheme, elements, in_plane)?;
                (m.count, m.rows, m.cols)
            }
            None if scheme != SchemeKind::Raw || coder.is_tiled() => {
                return Err(coded!(BAD_COMBINATION, "scheme {scheme} with coder {coder} needs 'matrix'"));
            }
            None if entry.planes[0].filter.is_some() && coder == Coder::Zstd => {
                return Err(coded!(BAD_COMBINATION, "a filter needs 'matrix'"));
            }
            None => (1, 1, in_plane),
        };
        let scales = match (&entry.scales, entry.matrix) {
            (Some(s), Some(m)) => Some(StoredScales::new(s, m, scheme, entry.scheme == COLUMNS)?),
            _ if scheme.makes_symbols() => {
                return Err(coded!(BAD_COMBINATION, "scheme {scheme} needs 'scales' and 'matrix'"));
            }
            _ => None,
        };
        let planes = entry.planes.iter().zip(coders);
        let planes = planes.map(|(plane, coder)| StoredPlane::new(plane, coder, matrix, in_plane, scheme));
        let planes: Vec<_> = planes.collect::<Result<_>>()?;
        if scheme == SchemeKind::Lossless {
            check_split(&planes, dtype)?;
        }
        Ok(Self {
            name: entry.name.clone(),
            dtype,
            shape: entry.shape.clone(),
            scheme,
            matrix: entry.matrix,
            scales,
            planes,
            error: entry.quality.and_then(|q| q.error),
            stored_bytes: entry.segments().map(|(_, s)| s.length).sum(),
        })
    }

    /// The single plane of schemes that have one, as all schemes of format 1.0 do; the first plane of others.
    pub fn plane(&self) -> &StoredPlane {
        &self.planes[0]
    }

    /// Whether elements are joined from the bits of planes, which may have matrices in another order.
    pub fn is_joined(&self) -> bool {
        self.scheme == SchemeKind::Lossless
    }

    /// The bits of an element that each plane holds, if planes hold parts of elements.
    pub fn fields(&self) -> Vec<Fields> {
        let usual = || lossless::planes_of(self.dtype).unwrap_or_default();
        let given: Option<Vec<_>> = self.planes.iter().map(|p| p.fields.clone()).collect();
        given.unwrap_or_else(usual)
    }

    /// Bytes that a plane's symbol decodes to, in a tensor that is decoded to `dtype`.
    pub fn bytes_of_symbol(&self, dtype: Dtype) -> usize {
        if self.scheme == SchemeKind::Raw { 1 } else { dtype.size() }
    }

    /// Whether the matrix is the transpose of the tensor.
    pub fn transposed(&self) -> bool {
        self.matrix.is_some_and(|m| m.row_axis == 1)
    }

    /// The scheme with its parameters, for encoding the tensor again; `None` if the parameters are not known.
    pub fn scheme(&self) -> Option<Scheme> {
        match self.scheme {
            SchemeKind::Int8 => self.scales.map(|s| Scheme::Int8(s.granularity)),
            SchemeKind::Rate => None,
            SchemeKind::Lossless => Some(Scheme::Lossless),
            SchemeKind::Raw => Some(Scheme::Raw),
        }
    }

    /// The scales that symbols are multiplied by; `None` if the elements themselves are stored.
    pub fn symbol_scales(&self) -> Option<&StoredScales> {
        self.scales.as_ref().filter(|_| self.scheme.makes_symbols())
    }

    /// Whether columns have factors that values are multiplied by.
    pub fn has_columns(&self) -> bool {
        self.symbol_scales().is_some_and(|s| s.columns)
    }

    /// Whether it has symbols: those of the scheme, or 8-bit elements.
    pub fn has_symbols(&self) -> bool {
        self.scheme.makes_symbols() || self.dtype.size() == 1
    }

    /// Entries of the first dimension; 1 for a scalar.
    pub fn entries(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Matrices, rows, columns of the decoded tensor; without a matrix view, the entries of its first dimension count
    /// as rows, and the bytes of an entry as columns.
    pub fn rows_view(&self) -> (usize, usize, usize) {
        let plane = self.plane();
        match self.matrix {
            None if plane.elements > 0 => (1, self.entries(), plane.elements / self.entries()),
            _ => plane.form.matrix,
        }
    }

    /// Checks that elements can be decoded to `dtype`, by dequantization or unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): they cannot. `I8` is accepted for symbols if `symbols` is set.
    pub fn check_dtype(&self, dtype: Dtype, symbols: bool) -> Result<()> {
        match (self.scheme.makes_symbols(), dtype) {
            (true, Dtype::F32 | Dtype::F16 | Dtype::BF16) => Ok(()),
            (true, Dtype::I8) if symbols => Ok(()),
            (true, other) => {
                let what = if symbols { "F32, F16, BF16 or, as symbols, to I8" } else { "F32, F16 or BF16" };
                Err(coded!(DECODED_DTYPE, "scheme {} decodes to {what}, not {other}", self.scheme)
                    .advice("leave dtype out, or ask for one of these"))
            }
            (false, own) if own == self.dtype => Ok(()),
            (false, other) => Err(coded!(
                DECODED_DTYPE,
                "a {} tensor of scheme {} cannot be read as {other}",
                self.dtype,
                self.scheme
            )
            .advice("leave dtype out, and convert it afterwards")),
        }
    }
}

fn upgrade(code: Code, what: String) -> Error {
    code.error(what).advice("upgrade wcodec")
}

/// Checks planes that hold parts of elements of `dtype`: no bit may be in two planes, and all planes must be cut into
/// equal units of decoding.
fn check_split(planes: &[StoredPlane], dtype: Dtype) -> Result<()> {
    for plane in planes {
        if let Coding::Tiles(Tiling { layout: layout @ (Layout::Pair | Layout::Quad), .. }) = plane.form.coding {
            return Err(coded!(BAD_COMBINATION, "layout {layout} in scheme lossless"));
        }
    }
    if let [StoredPlane { fields: None, form, .. }] = planes {
        return if dtype.size() == 1 && form.coding.element_bytes() == 1 {
            Ok(())
        } else {
            Err(coded!(BAD_FIELDS, "one plane for the elements of {dtype}"))
        };
    }
    let fields: Option<Vec<Fields>> = planes.iter().map(|p| p.fields.clone()).collect();
    let fields = fields.ok_or_else(|| coded!(BAD_FIELDS, "one of several planes without 'fields'"))?;
    check_planes(&fields, dtype.size())?;
    let cut = |p: &StoredPlane| match p.form.coding {
        Coding::Raw => None,
        Coding::Zstd { chunk, .. } => Some((Coder::Zstd, chunk)),
        Coding::Tiles(Tiling { tile, .. }) => Some((Coder::Rans, tile)),
    };
    let first = planes.iter().find_map(cut);
    for (plane, fields) in planes.iter().zip(fields) {
        let bytes = plane.form.coding.element_bytes();
        if fields.bytes() != bytes {
            let runs = fields.runs();
            return Err(coded!(BAD_FIELDS, "'fields' {runs:?} of a plane of {bytes} bytes an element"));
        }
        if cut(plane).is_some_and(|cut| Some(cut) != first) {
            return Err(coded!(BAD_FIELDS, "planes of one tensor that are cut differently"));
        }
    }
    Ok(())
}

fn check_view(m: MatrixEntry, entry: &TensorEntry, scheme: SchemeKind, elements: usize, in_plane: usize) -> Result<()> {
    let n = m.elements()?;
    let transposed = m.row_axis == 1 && m.count == 1 && entry.shape == [m.cols, m.rows];
    if n != elements || !(m.row_axis == 0 || transposed) {
        let view = [m.count, m.rows, m.cols, m.row_axis];
        return Err(coded!(BAD_COMBINATION, "the matrix view {view:?} does not fit shape {:?}", entry.shape));
    }
    if in_plane != elements {
        let dtype = &entry.dtype;
        return Err(coded!(BAD_COMBINATION, "a matrix view of raw {dtype} elements, which have more than 8 bits"));
    }
    if scheme == SchemeKind::Raw && m.row_axis != 0 {
        return Err(coded!(BAD_COMBINATION, "a transposed matrix view in scheme raw"));
    }
    Ok(())
}

impl StoredScales {
    fn new(entry: &ScalesEntry, m: MatrixEntry, scheme: SchemeKind, columns: bool) -> Result<Self> {
        // Keys that 1.0 does not define are ignored in its schemes.
        if let Some(dtype) = stated_dtype(scheme) {
            let dtype_text = entry.dtype.as_ref().map(|text| text.get());
            if dtype_text != Some(dtype.get()) {
                // The text may have any length.
                let what: String = dtype_text.unwrap_or("none").chars().take(32).collect();
                return Err(upgrade(
                    Code::SCALES_KIND,
                    format!("scales of scheme {scheme} with dtype {what}, not {dtype}"),
                ));
            }
        }
        let granularity = match (entry.per.as_str(), entry.block) {
            ("row", None) => Granularity::Row,
            ("tensor", None) => Granularity::Tensor,
            ("block", Some(n)) => Granularity::Block(n).check()?,
            (per, block) => {
                return Err(coded!(BAD_SCALES, "scales per '{per}' with block {block:?}"));
            }
        };
        if scheme == SchemeKind::Rate && granularity != Granularity::Row {
            return Err(upgrade(Code::SCALES_KIND, format!("scales of scheme rate per {granularity}, not per row")));
        }
        // The product is checked because nothing has compared the matrix with the file yet.
        let scales = match granularity {
            Granularity::Tensor => Some(1),
            _ => (m.count * m.rows).checked_mul(granularity.scales_per_row(m.cols)),
        };
        let dtype = scheme.scale_dtype();
        let factors = if columns { m.count * m.cols } else { 0 };
        let want = scales.and_then(|n| n.checked_add(factors)?.checked_mul(dtype.size()));
        let segment = entry.data;
        if want.map(|n| n as u64) != Some(segment.length) {
            let also = if columns { " and column" } else { "" };
            let what = format!("{} bytes of scales per {granularity}{also}", segment.length);
            return Err(coded!(BAD_SCALES, what).offset(segment.offset));
        }
        let matrix = (m.count, m.rows, m.cols);
        Ok(Self { granularity, dtype, offset: scheme.offset(), matrix, columns, segment })
    }

    /// Bytes of the factors of columns, which come first in the segment.
    pub fn factor_bytes(&self) -> u64 {
        let (count, _, cols) = self.matrix;
        if self.columns { (self.dtype.size() * count * cols) as u64 } else { 0 }
    }

    /// The ranges of the segment that have the scales of `rows`, which are counted through all matrices, and the
    /// factors of the columns of their matrices: the latter are empty if there are none.
    pub fn held(&self, rows: &Range<usize>) -> (Range<u64>, Range<u64>) {
        let (_, per_matrix, cols) = self.matrix;
        let begin = self.factor_bytes();
        let scales = match self.bytes_per_row(cols) {
            0 => begin..self.segment.length,
            per_row => begin + (rows.start * per_row) as u64..begin + (rows.end * per_row) as u64,
        };
        let matrices = rows.start / per_matrix..rows.end.div_ceil(per_matrix);
        let factors = if self.columns { self.dtype.size() * cols } else { 0 };
        (scales, (matrices.start * factors) as u64..(matrices.end * factors) as u64)
    }

    /// The values of `scales` and `factors`, which are the bytes of the ranges that are [held](Self::held) for rows from
    /// `first` on.
    pub fn values_of(&self, scales: &[u8], factors: &[u8], first: usize) -> ScaleValues {
        ScaleValues { scales: self.floats(scales), columns: self.columns.then(|| self.floats(factors)), first }
    }

    /// The values of all scales, whose segment is `bytes`.
    pub fn values(&self, bytes: &[u8]) -> ScaleValues {
        let (factors, scales) = bytes.split_at(self.factor_bytes() as usize);
        self.values_of(scales, factors, 0)
    }

    /// Values as scales that symbols are multiplied by.
    pub fn scales<'a>(&self, values: &'a ScaleValues) -> Scales<'a> {
        let (_, rows, cols) = self.matrix;
        let scales = Scales::new(self.granularity, self.offset, cols, &values.scales, values.first);
        match &values.columns {
            Some(factors) => scales.with_columns(Columns::new(factors, rows, cols, values.first / rows)),
            None => scales,
        }
    }

    /// Bytes of a row's scales; 0 if rows share one.
    pub fn bytes_per_row(&self, cols: usize) -> usize {
        self.dtype.size() * self.granularity.scales_per_row(cols)
    }

    /// Numbers decoded from their bytes.
    fn floats(&self, bytes: &[u8]) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        }
    }

    /// The index entry for scales of `scheme` with this granularity.
    pub fn entry(scheme: SchemeKind, granularity: Granularity, data: Segment) -> ScalesEntry {
        let (per, block) = match granularity {
            Granularity::Row => ("row", None),
            Granularity::Tensor => ("tensor", None),
            Granularity::Block(n) => ("block", Some(n)),
        };
        ScalesEntry { per: per.into(), block, dtype: stated_dtype(scheme), data }
    }
}

/// The dtype of the scales of `scheme` in the index: `None` if it is the one that 1.0 implies.
fn stated_dtype(scheme: SchemeKind) -> Option<Box<RawValue>> {
    let dtype = scheme.scale_dtype();
    (dtype != Dtype::F32).then(|| to_raw_value(dtype.name()).expect("text"))
}

fn need<T: Copy>(value: Option<T>, key: &str) -> Result<T> {
    value.ok_or_else(|| coded!(BAD_PLANE, "a plane without '{key}'"))
}

impl StoredPlane {
    fn new(
        p: &PlaneEntry,
        coder: Coder,
        matrix: (usize, usize, usize),
        elements: usize,
        scheme: SchemeKind,
    ) -> Result<Self> {
        let filter = || p.filter.as_deref().map_or(Ok(Filter::None), Filter::from_name);
        let (coding, table) = match coder {
            Coder::Raw => (Coding::Raw, None),
            Coder::Zstd => (Coding::Zstd { chunk: need(p.chunk, "chunk")?, filter: filter()? }, None),
            Coder::Rans | Coder::Huffman => {
                let layout = Layout::from_name(need(p.layout.as_deref(), "layout")?)?;
                let shift = if layout.has_side() { need(p.shift, "shift")? } else { 0 };
                let changes = scheme == SchemeKind::Rate || layout.always_has_changes();
                let tiling = Tiling { coder, layout, shift, tile: need(p.tile, "tile")?, filter: filter()?, changes };
                (Coding::Tiles(tiling), Some(need(p.table, "table")?))
            }
        };
        if coding.element_bytes() > 1 && scheme != SchemeKind::Lossless {
            return Err(coded!(BAD_COMBINATION, "layout split in scheme {scheme}"));
        }
        if scheme == SchemeKind::Lossless && p.filter.is_some() {
            return Err(coded!(BAD_COMBINATION, "a filter in scheme lossless"));
        }
        if coding.filter() == Filter::Trellis && (scheme != SchemeKind::Rate || coder == Coder::Zstd) {
            return Err(coded!(BAD_CODER_NUMBER, "filter trellis in scheme {scheme} with coder {coder}"));
        }
        let coded = coder != Coder::Raw;
        let max_chunk = if coded { need(p.max_chunk, "max_chunk")? } else { 0 };
        let form = PlaneForm { matrix, coding, max_chunk };
        let chunks = form.chunks()?;
        let said = if coded { need(p.chunks, "chunks")? } else { chunks };
        if said != chunks {
            return Err(coded!(CHUNK_COUNT, "the index says {said} chunks, and there are {chunks}"));
        }
        if !coded && p.data.length != elements as u64 {
            let what = format!("{} bytes in a raw plane of {elements}", p.data.length);
            return Err(coded!(SEGMENT_LENGTH, what).offset(p.data.offset));
        }
        let fields = p.fields.as_deref().filter(|_| scheme == SchemeKind::Lossless).map(|text| {
            let runs = serde_json::from_str(text.get());
            runs.map_err(|e| coded!(BAD_FIELDS, "'fields' cannot be read: {e}")).and_then(Fields::new)
        });
        let fields = fields.transpose()?;
        Ok(Self { form, fields, elements, chunks, table, offsets: p.offsets, data: p.data, side: p.side, hash: p.hash })
    }

    /// The index entry of a plane.
    pub fn entry(&self) -> PlaneEntry {
        let coded = self.form.coding.coder() != Coder::Raw;
        let filter = self.form.coding.filter();
        let (tiling, chunk) = match self.form.coding {
            Coding::Raw => (None, None),
            Coding::Zstd { chunk, .. } => (None, Some(chunk)),
            Coding::Tiles(tiling) => (Some(tiling), None),
        };
        PlaneEntry {
            coder: self.form.coding.coder().name().into(),
            fields: self.fields.as_ref().map(|f| serde_json::value::to_raw_value(f).expect("numbers")),
            filter: (filter != Filter::None).then(|| filter.name().into()),
            layout: tiling.map(|t| t.layout.name().into()),
            shift: tiling.filter(|t| t.layout.has_side()).map(|t| t.shift),
            tile: tiling.map(|t| t.tile),
            chunk,
            table: self.table,
            chunks: coded.then_some(self.chunks),
            max_chunk: coded.then_some(self.form.max_chunk),
            offsets: self.offsets,
            data: self.data,
            side: self.side,
            hash: self.hash,
        }
    }
}
