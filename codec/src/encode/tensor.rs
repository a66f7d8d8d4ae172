//! Encodes one tensor.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;

use half::{bf16, f16};

use super::columns::TaskColumns;
use super::matrix::{fold_narrow, fold_padded, matrix_of};
use super::naming::Naming;
use super::planes::{PlaneInput, matrices_of, planes_of};
use crate::cancel::Cancel;
use crate::checkpoint::{SourceBytes, SourceTensor};
use crate::coder::plane::{Coding, Draft, EncodedPlane, Filters, PlaneOptions, TableChoice};
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};
use crate::container::{
    Bytes, Hash, MatrixEntry, OPAQUE, PlaneEntry, Quality, Segment, Sink, TensorEntry, Writer, hash,
};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::int8::{self, Granularity};
use crate::scheme::rate::{self, Rate, Steps};
use crate::scheme::{Fields, Levels, Scheme, SchemeKind, SymbolPlanes, Weights};
use crate::stored::{StoredPlane, StoredScales, StoredTensor};
use crate::tensor::{Dtype, TensorView, out_of_memory, try_vec};

/// A tensor, and how to encode it.
pub struct TensorTask<'a> {
    pub tensor: &'a SourceTensor,
    pub scheme: Scheme,
    /// Parameters for scheme `rate`.
    pub rate: RateTask,
    pub transposed: bool,
    pub plane: PlaneOptions,
}

/// The parameters of a tensor for scheme `rate`.
#[derive(Default)]
pub struct RateTask {
    /// The step divided by the root mean square of a row.
    pub factor: f32,
    /// The factors of columns, if they have some; levels chosen beforehand have their own.
    pub columns: Option<TaskColumns>,
    /// Levels chosen beforehand.
    pub levels: Option<Levels>,
    /// Columns of a tile.
    pub tile: usize,
}

/// The threads that do the work, and the means to cancel it.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    pub pool: &'a Pool,
    pub cancel: &'a Cancel,
}

/// An analysed tensor: its table is chosen next, in the order of the file; then it is encoded.
pub struct Prepared<'a> {
    task: TensorTask<'a>,
    bytes: SourceBytes<'a>,
    matrix: MatrixEntry,
    content: Content,
}

/// The stored content of a tensor.
enum Content {
    /// Its bytes, as one plane: the draft of its encoding, and their hash.
    Bytes { draft: Draft, hash: Hash },
    /// The scheme's output, and figures about it.
    Symbols { planes: Vec<PlaneInput>, scales: Option<OwnScales>, quality: Quality },
}

/// The scales of a tensor's symbols.
struct OwnScales {
    granularity: Granularity,
    scales: Vec<f32>,
    /// The factors of columns, if they have some.
    columns: Option<Vec<f32>>,
}

/// An encoded tensor, ready to be written.
pub struct Encoded<'a> {
    tensor: &'a SourceTensor,
    scheme: SchemeKind,
    matrix: Option<MatrixEntry>,
    scales: Option<OwnScales>,
    quality: Option<Quality>,
    planes: Vec<ReadyPlane<'a>>,
}

/// An encoded plane, ready to be written.
struct ReadyPlane<'a> {
    plane: EncodedPlane,
    data: Stored<'a>,
    side: Option<Stored<'a>>,
    /// The hash of its decoded bytes.
    hash: Hash,
    /// The bits of an element that it holds; `None` if it holds whole elements.
    fields: Option<Fields>,
}

/// A segment's bytes and their hash.
struct Stored<'a> {
    bytes: Held<'a>,
    hash: Hash,
}

/// Borrowed or owned bytes.
enum Held<'a> {
    Borrowed(&'a [u8]),
    Ours(Bytes),
}

impl<'a> Stored<'a> {
    /// A segment of bytes made by the encoder.
    fn made(bytes: Vec<u8>) -> Self {
        Self { hash: hash(&bytes), bytes: Held::Ours(Bytes::Plain(bytes)) }
    }

    /// A segment of a tensor's own bytes, whose hash is known.
    fn tensor(bytes: SourceBytes<'a>, hash: Hash) -> Self {
        let bytes = match bytes {
            SourceBytes::Borrowed(bytes) => Held::Borrowed(bytes),
            SourceBytes::Owned(bytes) => Held::Ours(Bytes::Aligned(bytes)),
        };
        Self { bytes, hash }
    }

    fn len(&self) -> usize {
        match &self.bytes {
            Held::Ours(bytes) => bytes.len(),
            Held::Borrowed(bytes) => bytes.len(),
        }
    }

    fn write<W: Sink>(self, writer: &mut Writer<W>) -> Result<Segment> {
        match self.bytes {
            Held::Ours(bytes) => writer.owned_segment(bytes, self.hash),
            Held::Borrowed(bytes) => writer.segment(bytes),
        }
    }
}

/// Maps tables that planes share to their numbers in the file, once they are written.
#[derive(Default)]
pub struct Tables(HashMap<usize, usize>);

impl<'a> TensorTask<'a> {
    /// Quantizes and counts.
    pub fn prepare(mut self, bytes: SourceBytes<'a>, workers: Workers<'_>) -> Result<Prepared<'a>> {
        // A source may return data that contradicts its description.
        TensorView::new(self.tensor.dtype, &self.tensor.shape, &bytes)?;
        // Stored without a matrix view, whatever the other dimensions.
        let nothing = MatrixEntry { count: 1, rows: 0, cols: 0, row_axis: 0 };
        let mut matrix = if bytes.is_empty() { nothing } else { matrix_of(&self.tensor.shape, self.transposed)? };
        if !self.scheme.takes(self.tensor.dtype, &self.tensor.shape) {
            return self.prepare_raw(bytes, matrix, workers);
        }
        let Workers { pool, cancel } = workers;
        let mut options = self.plane.clone();
        if self.scheme == Scheme::Lossless {
            // Neither exponents nor whole bytes have a sign to fold, or similar neighbours.
            (options.layout, options.filters) = (Layout::Byte, Filters::None);
            matrix = fold_padded(matrix, self.tensor.shape.len() == 2 || matrix.count > 1);
        }
        let weights = weights_of(self.tensor.dtype, &bytes, &matrix);
        let symbols = match self.scheme {
            Scheme::Rate(rate) => self.rate_symbols(rate, &weights, &matrix, &mut options, workers),
            scheme => scheme.symbols(&weights, pool, cancel),
        };
        let mut symbols = symbols.map_err(|e| self.in_its_own_terms(e, &bytes, &matrix))?;
        let (columns, error) = (symbols.columns.take(), symbols.error);
        let scales = symbols.scales.take();
        let scales = scales.map(|(granularity, scales)| OwnScales { granularity, scales, columns });
        let (planes, entropy) = planes_of(symbols, &matrix, &options, pool, cancel)?;
        // Rounded: these figures are for people, and digits cost bytes. An error is rounded up.
        let quality = Quality { entropy: Some((entropy * 1e4).round() / 1e4), error: error.map(rounded_up) };
        Ok(Prepared { task: self, bytes, matrix, content: Content::Symbols { planes, scales, quality } })
    }

    /// Computes levels of scheme `rate`, consuming those chosen beforehand, and sets the options of their plane.
    fn rate_symbols(
        &mut self,
        rate: Rate,
        weights: &Weights<'_>,
        matrix: &MatrixEntry,
        options: &mut PlaneOptions,
        Workers { pool, cancel }: Workers<'_>,
    ) -> Result<SymbolPlanes> {
        let levels = self.rate.levels.take();
        let given = levels.as_ref().and_then(|levels| levels.tile);
        let tile = self.rate.tile;
        options.tile = Some(tile);
        let check = || check_trellis(options.coder, given.unwrap_or(tile), tile);
        let (symbols, trellis) = match levels {
            Some(levels) => {
                let trellis = levels.trellis;
                if trellis {
                    check()?;
                }
                (rate::given(weights, levels, (tile, matrix.rows), pool, cancel)?, trellis)
            }
            None => {
                let columns = self.rate.columns.as_ref();
                let trellis = rate.trellis.then_some(tile);
                let steps = Steps { factor: self.rate.factor, trellis, columns: columns.map(TaskColumns::columns) };
                let (mut symbols, trellis) = rate::symbols(weights, steps, &check, pool, cancel)?;
                symbols.columns = columns.and_then(TaskColumns::stored);
                (symbols, trellis)
            }
        };
        // Levels of a quantizer without zero are not similar to their neighbours.
        options.changes = true;
        options.filters = if trellis { Filters::Trellis } else { Filters::None };
        Ok(symbols)
    }

    /// Restates the position of a non-finite element as an index into the original tensor.
    fn in_its_own_terms(&self, e: Error, bytes: &[u8], matrix: &MatrixEntry) -> Error {
        // Rows and columns of the matrix view may differ from the tensor's.
        let plain = matrix.count == 1 && matrix.row_axis == 0 && self.tensor.shape.len() == 2;
        let value = e.message().split(" at ").next().unwrap_or_default();
        if plain || !["NaN", "inf", "-inf"].contains(&value) {
            return e;
        }
        match first_not_finite(self.tensor.dtype, bytes, &self.tensor.shape) {
            Some(index) => {
                let advice = if matches!(self.scheme, Scheme::Rate(_)) {
                    rate::NOT_FINITE_ADVICE
                } else {
                    int8::NOT_FINITE_ADVICE
                };
                coded!(NOT_FINITE_WEIGHTS, "{value} at index {index:?}").advice(advice)
            }
            None => e,
        }
    }

    fn prepare_raw(self, bytes: SourceBytes<'a>, matrix: MatrixEntry, workers: Workers<'_>) -> Result<Prepared<'a>> {
        let bytewise = self.tensor.dtype.size() == 1 && matrix.row_axis == 0;
        let mut options = self.plane.clone();
        let matrix = if bytewise {
            fold_narrow(matrix)
        } else {
            // Bytes of floats are poor symbols for a table; zstd takes them as they are.
            options.filters = Filters::None;
            if options.coder != Coder::Zstd {
                options.coder = Coder::Raw;
            }
            MatrixEntry { count: 1, rows: 1, cols: bytes.len(), row_axis: matrix.row_axis }
        };
        let plane = matrices_of(&matrix, bytemuck::cast_slice(&bytes), &[]);
        let draft = Draft::new(&plane, &options, workers.pool, workers.cancel)?;
        let hash = hash(&bytes);
        Ok(Prepared { task: self, bytes, matrix, content: Content::Bytes { draft, hash } })
    }
}

impl<'a> Prepared<'a> {
    /// Makes tables for it, a sample of a tensor that is `factor` times as large; see [`Draft::make_tables`].
    pub fn make_tables(&mut self, factor: f64, Workers { pool, cancel }: Workers<'_>) -> Result<()> {
        self.drafts().try_for_each(|draft| draft.make_tables(factor, pool, cancel))
    }

    /// Chooses its tables; see [`Draft::choose`].
    pub fn choose(&mut self, shared: &mut Vec<Table>) {
        self.drafts().for_each(|draft| draft.choose(shared));
    }

    fn drafts(&mut self) -> impl Iterator<Item = &mut Draft> {
        let (whole, planes) = match &mut self.content {
            Content::Bytes { draft, .. } => (Some(draft), None),
            Content::Symbols { planes, .. } => (None, Some(planes.iter_mut().map(|plane| &mut plane.draft))),
        };
        whole.into_iter().chain(planes.into_iter().flatten())
    }

    /// Encodes the tensor; `done` counts the elements encoded so far.
    pub fn encode(self, workers: Workers<'_>, done: &AtomicUsize) -> Result<Encoded<'a>> {
        let Self { task, bytes, matrix, content } = self;
        let Workers { pool, cancel } = workers;
        let tensor = task.tensor;
        let (inputs, scales, quality) = match content {
            Content::Symbols { planes, scales, quality } => (planes, scales, quality),
            Content::Bytes { draft, hash } => {
                let bytewise = tensor.dtype.size() == 1 && matrix.row_axis == 0;
                let plane =
                    draft.encode(&matrices_of(&matrix, bytemuck::cast_slice(&bytes), &[]), pool, cancel, done)?;
                let matrix = (bytewise && plane.coder() != Coder::Raw).then_some(matrix);
                let planes = vec![ReadyPlane::new(plane, Stored::tensor(bytes, hash), hash, None)];
                return Ok(Encoded { tensor, scheme: SchemeKind::Raw, matrix, scales: None, quality: None, planes });
            }
        };
        let scale_size = task.scheme.kind().scale_dtype().size();
        let mut stored = scales.as_ref().map_or(0, |s| (s.scales.len() + s.factors()) * scale_size);
        let (mut planes, mut lost) = (Vec::with_capacity(inputs.len()), false);
        for input in inputs {
            let PlaneInput { symbols, beside, fields, hash, draft } = input;
            let elements = matrices_of(&matrix, &symbols, &beside);
            let plane = draft.encode(&elements, pool, cancel, done)?;
            let raw = plane.coder() == Coder::Raw;
            stored += if raw { elements.bytes() } else { plane.stored_bytes() };
            lost |= raw && !beside.is_empty();
            let raw = Stored { bytes: Held::Ours(Bytes::Plain(bytemuck::cast_vec(symbols))), hash };
            planes.push(ReadyPlane::new(plane, raw, hash, fields));
        }
        // A raw plane has no room for the uncoded bytes of its elements.
        if lost || stored >= bytes.len() {
            // A table would have to be chosen in order, which is no longer possible.
            let mut task = task;
            if task.plane.coder != Coder::Zstd {
                task.plane.coder = Coder::Raw;
            }
            return task.prepare_raw(bytes, matrix, workers)?.encode(workers, done);
        }
        Ok(Encoded { tensor, scheme: task.scheme.kind(), matrix: Some(matrix), scales, quality: Some(quality), planes })
    }
}

impl<'a> ReadyPlane<'a> {
    /// `raw` is stored if the plane is not coded; `hash` is the hash of its decoded bytes, `fields` are the bits that
    /// it holds.
    fn new(mut plane: EncodedPlane, raw: Stored<'a>, hash: Hash, fields: Option<Fields>) -> Self {
        let coded = plane.coder() != Coder::Raw;
        let data = if coded { Stored::made(std::mem::take(&mut plane.data)) } else { raw };
        let has_side = matches!(plane.form.coding, Coding::Tiles(t) if t.layout.has_side());
        let side = has_side.then(|| Stored::made(std::mem::take(&mut plane.side)));
        Self { plane, data, side, hash, fields }
    }
}

impl OwnScales {
    /// The number of factors of columns.
    fn factors(&self) -> usize {
        self.columns.as_ref().map_or(0, Vec::len)
    }
}

/// The bytes that a tensor takes in the file.
pub struct Counted {
    /// Bytes that grow with its rows.
    pub of_rows: usize,
    /// Bytes of factors of columns.
    pub of_columns: usize,
    /// Bytes of tables that no earlier tensor uses.
    pub of_tables: usize,
    /// Bytes that these tables are expected to save only because they were made for the very symbols that they code
    /// (overfitting); no table saves as much on many more symbols of the same kind. Half a bit for the logarithm of
    /// each frequency (G. A. Miller, "Note on the bias of information estimates", 1955).
    pub of_fit: f64,
}

impl Encoded<'_> {
    /// Counts its bytes; `used` has the indices of shared tables already counted.
    pub fn counted(&self, used: &mut Vec<usize>) -> Counted {
        let size = self.scheme.scale_dtype().size();
        let (scales, factors) = self.scales.as_ref().map_or((0, 0), |s| (s.scales.len(), s.factors()));
        let mut counted = Counted { of_rows: scales * size, of_columns: factors * size, of_tables: 0, of_fit: 0.0 };
        for plane in &self.planes {
            let side = plane.side.as_ref().map_or(0, Stored::len);
            counted.of_rows += plane.data.len() + plane.plane.offsets.len() + side;
            let Some(choice) = &plane.plane.table else { continue };
            match choice.place {
                Some(place) if used.contains(&place) => continue,
                Some(place) => used.push(place),
                None => {}
            }
            counted.of_tables += choice.table.to_bytes().len();
            counted.of_fit += (choice.table.symbols() - 1) as f64 * std::f64::consts::LOG2_E / 2.0 / 8.0;
        }
        counted
    }

    /// Writes the tensor's segments and its entry.
    pub fn write<W: Sink>(self, writer: &mut Writer<W>, tables: &mut Tables, naming: Naming<'_>) -> Result<()> {
        let name = &self.tensor.name;
        self.write_unnamed(writer, tables).map_err(|e| naming.of(name, e))
    }

    fn write_unnamed<W: Sink>(self, writer: &mut Writer<W>, tables: &mut Tables) -> Result<()> {
        let columns = self.scales.as_ref().is_some_and(|s| s.columns.is_some());
        let scales = match self.scales {
            None => None,
            Some(OwnScales { granularity, scales, columns }) => {
                let bytes = scale_bytes(self.scheme.scale_dtype(), with_factors(columns, scales)?)?;
                Some(StoredScales::entry(self.scheme, granularity, writer.segment(&bytes)?))
            }
        };
        let planes = self.planes.into_iter().map(|plane| plane.write(writer, tables)).collect::<Result<_>>()?;
        let opaque = self.tensor.opaque.as_ref();
        let source = opaque.map(serde_json::value::to_raw_value).transpose();
        let source = source
            .map_err(|e| coded!(DTYPE_NOT_STORED, "its dtype cannot be written: {e}").advice("give it another name"))?;
        writer.tensor(TensorEntry {
            name: self.tensor.name.clone(),
            dtype: self.tensor.dtype.name().into(),
            shape: self.tensor.shape.clone(),
            scheme: opaque.map_or(self.scheme.name_in_file(columns), |_| OPAQUE).into(),
            matrix: self.matrix,
            scales,
            planes,
            quality: self.quality,
            source,
        });
        Ok(())
    }
}

/// # Errors
/// The coder does not support a trellis, or the levels' trellis has tiles of another width.
fn check_trellis(coder: Coder, columns: usize, tile: usize) -> Result<()> {
    if !coder.is_tiled() {
        return Err(
            coded!(CODER_CONFLICT, "a trellis with coder {coder}").advice("use coder rans or huffman, or no trellis")
        );
    }
    if columns != tile {
        let what = format!("a trellis that restarts every {columns} columns, and tiles of {tile}");
        return Err(coded!(BAD_LEVELS, what).advice("let it restart with the tiles"));
    }
    Ok(())
}

/// The bytes of a tensor with the view `matrix`, as input for a scheme.
fn weights_of<'a>(dtype: Dtype, bytes: &'a [u8], matrix: &MatrixEntry) -> Weights<'a> {
    let (rows, cols) = (matrix.count * matrix.rows, matrix.cols);
    Weights { dtype, bytes, rows, cols, transposed: matrix.row_axis != 0 }
}

/// The relative amount by which the true error may exceed the computed one: runs of 256 squares are added in f32, which
/// loses up to 255 half-ulps of the sum, and half as much of its root.
const ERROR_OF_SUMS: f64 = 1e-5;

/// An error in four digits, rounded up so that no other measurement exceeds it.
fn rounded_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let value = value * (1.0 + ERROR_OF_SUMS);
    let unit = 10f64.powi(value.log10().floor() as i32 - 3);
    // Goes through text, so that the file has four digits rather than the digits of an inexact product.
    let text = format!("{:.3e}", (value / unit).ceil() * unit);
    text.parse().unwrap_or(value)
}

/// The factors of columns, if there are some, and the scales behind them, as a segment has them.
///
/// # Errors
/// The operating system refuses memory.
pub fn with_factors(columns: Option<Vec<f32>>, scales: Vec<f32>) -> Result<Vec<f32>> {
    let Some(mut values) = columns else {
        return Ok(scales);
    };
    values.try_reserve_exact(scales.len()).map_err(|_| out_of_memory(size_of_val(&scales[..])))?;
    values.extend(scales);
    Ok(values)
}

/// The bytes of scales that are stored as `dtype`; their values are already representable in it.
pub fn scale_bytes(dtype: Dtype, mut scales: Vec<f32>) -> Result<Vec<u8>> {
    if dtype == Dtype::BF16 {
        let mut bytes = try_vec(scales.len() * size_of::<bf16>())?;
        for (to, scale) in bytes.as_chunks_mut().0.iter_mut().zip(scales) {
            *to = bf16::from_f32(scale).to_le_bytes();
        }
        return Ok(bytes);
    }
    if cfg!(target_endian = "big") {
        scales.iter_mut().for_each(|s| *s = f32::from_bits(s.to_bits().to_le()));
    }
    let mut bytes = try_vec(scales.len() * size_of::<f32>())?;
    bytes.copy_from_slice(bytemuck::cast_slice(&scales));
    Ok(bytes)
}

/// The position of the first non-finite element, as an index into the tensor.
fn first_not_finite(dtype: Dtype, bytes: &[u8], shape: &[usize]) -> Option<Vec<usize>> {
    let at = match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
        Dtype::F16 => bytes.as_chunks::<2>().0.iter().position(|b| !f16::from_le_bytes(*b).is_finite()),
        _ => bytes.as_chunks::<2>().0.iter().position(|b| !bf16::from_le_bytes(*b).is_finite()),
    };
    at.map(|mut at| {
        let mut index: Vec<usize> = shape
            .iter()
            .rev()
            .map(|&d| {
                let i = at % d;
                at /= d;
                i
            })
            .collect();
        index.reverse();
        index
    })
}

/// The symbols of `bytes`, encoded in the same way as `tensor` was.
pub(crate) fn symbols_like(tensor: &StoredTensor, bytes: &[u8], pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
    let (Some(matrix), Some(scheme)) = (tensor.matrix, tensor.scheme()) else {
        return Err(coded!(BAD_COMBINATION, "a tensor of symbols without 'matrix' and 'scales'")
            .advice("encode the model again"));
    };
    scheme.symbols(&weights_of(tensor.dtype, bytes, &matrix), pool, cancel)
}

impl ReadyPlane<'_> {
    /// Writes the plane's segments.
    fn write<W: Sink>(self, writer: &mut Writer<W>, tables: &mut Tables) -> Result<PlaneEntry> {
        let plane = self.plane;
        let table = plane.table.as_ref().map(|choice| tables.number(choice, writer)).transpose()?;
        // In the order in which a GPU reads them.
        let offsets = if plane.coder() == Coder::Raw { None } else { Some(writer.segment(&plane.offsets)?) };
        let data = self.data.write(writer)?;
        let side = self.side.map(|side| side.write(writer)).transpose()?;
        let stored = StoredPlane {
            form: plane.form,
            fields: self.fields,
            elements: plane.form.elements()?,
            chunks: plane.form.chunks()?,
            table,
            offsets,
            data,
            side,
            hash: self.hash,
        };
        Ok(stored.entry())
    }
}

impl Tables {
    /// The number of a table in the file; writes the table now if it is new, because some shared tables are never used.
    pub fn number<W: Sink>(&mut self, choice: &TableChoice, writer: &mut Writer<W>) -> Result<usize> {
        if let Some(&number) = choice.place.and_then(|place| self.0.get(&place)) {
            return Ok(number);
        }
        let table = &choice.table;
        let number =
            writer.table(table.coder().name(), table.layout().map(Layout::name), table.bits(), &table.to_bytes())?;
        if let Some(place) = choice.place {
            self.0.insert(place, number);
        }
        Ok(number)
    }
}
