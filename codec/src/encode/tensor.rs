//! Encoding one tensor.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;

use half::{bf16, f16};
use ndarray::{ArrayView2, ShapeBuilder};

use super::pipeline::Naming;
use crate::cancel::Cancel;
use crate::checkpoint::{SourceBytes, SourceTensor};
use crate::coder::histogram::{count_bytes_with, entropy};
use crate::coder::plane::{Coding, Draft, EncodedPlane, PlaneOptions, Symbols, TableChoice};
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};
use crate::container::{Bytes, Hash, MatrixEntry, PlaneEntry, Quality, Segment, Sink, TensorEntry, Writer, hash};
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::int8::{Granularity, NOT_FINITE_ADVICE, Quantized, Weight, quantize_with};
use crate::scheme::{Scheme, SchemeKind};
use crate::stored::{StoredPlane, StoredScales};
use crate::tensor::{AlignedBytes, Dtype, try_vec};

/// A tensor and what to do with it.
pub struct Job<'a> {
    pub tensor: &'a SourceTensor,
    pub scheme: Scheme,
    pub transposed: bool,
    pub plane: PlaneOptions,
}

/// What does the work, and what stops it.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    pub pool: &'a Pool,
    pub cancel: &'a Cancel,
}

/// A tensor that was looked at: what is left is to choose its table, in the order of the file, and to encode it.
pub struct Prepared<'a> {
    job: Job<'a>,
    bytes: SourceBytes<'a>,
    matrix: MatrixEntry,
    /// Where the tensor is to be quantized.
    int8: Option<Int8>,
    plane: Draft,
    /// Of what the plane decodes to.
    hash: Hash,
}

/// A quantized tensor.
struct Int8 {
    granularity: Granularity,
    symbols: Vec<i8>,
    scales: Vec<f32>,
    /// Of the symbols, bits.
    entropy: f64,
}

/// An encoded tensor, ready to be written.
pub struct Encoded<'a> {
    tensor: &'a SourceTensor,
    scheme: SchemeKind,
    matrix: Option<MatrixEntry>,
    scales: Option<(Granularity, Vec<f32>)>,
    quality: Option<Quality>,
    plane: EncodedPlane,
    data: Stored<'a>,
    side: Option<Stored<'a>>,
    hash: Hash,
}

/// What becomes a segment, and the hash of it.
struct Stored<'a> {
    bytes: Held<'a>,
    hash: Hash,
}

/// Bytes that are somebody else's, or nobody's else.
enum Held<'a> {
    Borrowed(&'a [u8]),
    Ours(Bytes),
}

impl<'a> Stored<'a> {
    /// What was made for the segment.
    fn made(bytes: Vec<u8>) -> Self {
        Self { hash: hash(&bytes), bytes: Held::Ours(Bytes::Plain(bytes)) }
    }

    /// A tensor as it is; its hash is known.
    fn tensor(bytes: SourceBytes<'a>, hash: Hash) -> Self {
        let bytes = match bytes {
            SourceBytes::Borrowed(bytes) => Held::Borrowed(bytes),
            SourceBytes::Owned(bytes) => Held::Ours(Bytes::Aligned(bytes)),
        };
        Self { bytes, hash }
    }

    fn write<W: Sink>(self, writer: &mut Writer<W>) -> Result<Segment> {
        match self.bytes {
            Held::Ours(bytes) => writer.owned_segment(bytes, self.hash),
            Held::Borrowed(bytes) => writer.segment(bytes),
        }
    }
}

/// The tables that planes share, and their numbers in the file once they are written.
#[derive(Default)]
pub struct Tables(HashMap<usize, usize>);

/// Columns from which the last dimension of a 3-D tensor is taken for the inputs of a layer, and the tensor for a stack
/// of expert matrices `[experts, out, in]`; below, it is taken for the kernel of a convolution `[out, in, kernel]`.
const STACK_COLS: usize = 64;

impl<'a> Job<'a> {
    /// How a tensor that is not empty is seen as matrices.
    fn matrix(&self) -> Result<MatrixEntry> {
        let shape = &self.tensor.shape;
        let rest = |from: usize| shape[from..].iter().product::<usize>();
        let (count, rows, cols, row_axis) = match (&shape[..], self.transposed) {
            (&[rows, cols], false) => (1, rows, cols, 0),
            (&[cols, rows], true) => (1, rows, cols, 1),
            (_, true) => {
                return Err(Error::input(format!("only matrices can be transposed, not shape {shape:?}"))
                    .advice("narrow the pattern given to transpose"));
            }
            (&[count, rows, cols], _) if cols >= STACK_COLS => (count, rows, cols, 0),
            ([], _) => (1, 1, 1, 0),
            (&[n], _) => (1, 1, n, 0),
            (&[rows, ..], _) => (1, rows, rest(1), 0),
        };
        Ok(MatrixEntry { count, rows, cols, row_axis })
    }

    /// Quantizes and counts.
    pub fn prepare(self, bytes: SourceBytes<'a>, workers: Workers<'_>) -> Result<Prepared<'a>> {
        // Stored without a matrix view, whatever the other dimensions.
        let nothing = MatrixEntry { count: 1, rows: 0, cols: 0, row_axis: 0 };
        let matrix = if bytes.is_empty() { nothing } else { self.matrix()? };
        let weights = self.tensor.shape.len() >= 2 && self.tensor.dtype.is_quantizable() && !bytes.is_empty();
        let (Scheme::Int8(granularity), true) = (self.scheme, weights) else {
            return self.prepare_raw(bytes, matrix, workers);
        };
        let Workers { pool, cancel } = workers;
        let quantized = quantize_bytes(self.tensor.dtype, &bytes, &matrix, granularity, workers);
        let Quantized { symbols, scales } = quantized.map_err(|e| self.in_its_own_terms(e, &bytes, &matrix))?;
        let (symbols, scales) = (symbols.into_raw_vec_and_offset().0, scales.into_raw_vec_and_offset().0);
        let entropy = entropy(&count_bytes_with(bytemuck::cast_slice(&symbols), pool, cancel)?);
        let plane = Draft::new(&symbols_of(&matrix, &symbols), &self.plane, pool, cancel)?;
        let hash = hash(bytemuck::cast_slice(&symbols));
        let int8 = Some(Int8 { granularity, symbols, scales, entropy });
        Ok(Prepared { job: self, bytes, matrix, int8, plane, hash })
    }

    /// Of an element that is not finite, the place that its owner knows it by.
    fn in_its_own_terms(&self, e: Error, bytes: &[u8], matrix: &MatrixEntry) -> Error {
        // Rows and columns of the matrix view may be others.
        let plain = matrix.count == 1 && matrix.row_axis == 0 && self.tensor.shape.len() == 2;
        let value = e.message().split(" at ").next().unwrap_or_default();
        if plain || !["NaN", "inf", "-inf"].contains(&value) {
            return e;
        }
        match first_not_finite(self.tensor.dtype, bytes, &self.tensor.shape) {
            Some(index) => Error::input(format!("{value} at index {index:?}")).advice(NOT_FINITE_ADVICE),
            None => e,
        }
    }

    fn prepare_raw(self, bytes: SourceBytes<'a>, matrix: MatrixEntry, workers: Workers<'_>) -> Result<Prepared<'a>> {
        let bytewise = self.tensor.dtype.size() == 1 && matrix.row_axis == 0;
        let mut options = self.plane.clone();
        let matrix = if bytewise {
            fold_narrow(matrix)
        } else {
            // Bytes of floats are no symbols for a table; zstd takes them as they come.
            options.filters = false;
            if options.coder != Coder::Zstd {
                options.coder = Coder::Raw;
            }
            MatrixEntry { count: 1, rows: 1, cols: bytes.len(), row_axis: matrix.row_axis }
        };
        let symbols = symbols_of(&matrix, bytemuck::cast_slice(&bytes));
        let plane = Draft::new(&symbols, &options, workers.pool, workers.cancel)?;
        let hash = hash(&bytes);
        Ok(Prepared { job: self, bytes, matrix, int8: None, plane, hash })
    }
}

impl<'a> Prepared<'a> {
    /// Chooses its table; see [`Draft::choose`].
    pub fn choose(&mut self, shared: &mut Vec<Table>) {
        self.plane.choose(shared);
    }

    /// Encodes it; `done` counts its elements that are encoded.
    pub fn encode(self, workers: Workers<'_>, done: &AtomicUsize) -> Result<Encoded<'a>> {
        let Self { job, bytes, matrix, int8, plane, hash } = self;
        let Workers { pool, cancel } = workers;
        let Some(int8) = int8 else {
            let symbols = symbols_of(&matrix, bytemuck::cast_slice(&bytes));
            let plane = plane.encode(&symbols, pool, cancel, done)?;
            let matrix =
                (job.tensor.dtype.size() == 1 && matrix.row_axis == 0 && plane.coder() != Coder::Raw).then_some(matrix);
            let raw = Stored::tensor(bytes, hash);
            return Ok(Encoded::new(&job, plane, raw, hash, SchemeKind::Raw, matrix));
        };
        let plane = plane.encode(&symbols_of(&matrix, &int8.symbols), pool, cancel, done)?;
        let coded = plane.coder() != Coder::Raw;
        let stored = if coded { plane.stored_bytes() } else { int8.symbols.len() };
        if stored + int8.scales.len() * size_of::<f32>() >= bytes.len() {
            // Floats share no tables, so that nothing is to be chosen.
            return job.prepare_raw(bytes, matrix, workers)?.encode(workers, done);
        }
        let raw = Stored { bytes: Held::Ours(Bytes::Plain(bytemuck::cast_vec(int8.symbols))), hash };
        Ok(Encoded {
            scales: Some((int8.granularity, int8.scales)),
            // Rounded: the figure is for people, and digits cost bytes.
            quality: Some(Quality { entropy: Some((int8.entropy * 1e4).round() / 1e4) }),
            ..Encoded::new(&job, plane, raw, hash, SchemeKind::Int8, Some(matrix))
        })
    }
}

impl<'a> Encoded<'a> {
    /// Of a plane; `raw` is what it stores where it is not coded, `hash` that of what it decodes to.
    fn new(
        job: &Job<'a>,
        mut plane: EncodedPlane,
        raw: Stored<'a>,
        hash: Hash,
        scheme: SchemeKind,
        matrix: Option<MatrixEntry>,
    ) -> Self {
        let coded = plane.coder() != Coder::Raw;
        let data = if coded { Stored::made(std::mem::take(&mut plane.data)) } else { raw };
        let has_side = matches!(plane.form.coding, Coding::Tiles(t) if t.layout == Layout::Pair);
        let side = has_side.then(|| Stored::made(std::mem::take(&mut plane.side)));
        Self { tensor: job.tensor, scheme, matrix, scales: None, quality: None, plane, data, side, hash }
    }

    /// Writes the tensor's segments, and its entry.
    pub fn write<W: Sink>(self, writer: &mut Writer<W>, tables: &mut Tables, naming: Naming<'_>) -> Result<()> {
        let name = &self.tensor.name;
        self.write_unnamed(writer, tables).map_err(|e| naming.of(name, e))
    }

    fn write_unnamed<W: Sink>(self, writer: &mut Writer<W>, tables: &mut Tables) -> Result<()> {
        let scales = match self.scales {
            None => None,
            Some((granularity, scales)) => {
                Some(StoredScales::entry(granularity, writer.segment(&little_endian(scales)?)?))
            }
        };
        let planes = vec![write_plane(writer, tables, self.plane, self.data, self.side, self.hash)?];
        writer.tensor(TensorEntry {
            name: self.tensor.name.clone(),
            dtype: self.tensor.dtype.name().into(),
            shape: self.tensor.shape.clone(),
            scheme: self.scheme.name().into(),
            matrix: self.matrix,
            scales,
            planes,
            quality: self.quality,
        });
        Ok(())
    }
}

fn symbols_of<'a>(matrix: &MatrixEntry, data: &'a [i8]) -> Symbols<'a> {
    Symbols { count: matrix.count, rows: matrix.rows, cols: matrix.cols, data }
}

/// The bytes of scales as they are stored.
fn little_endian(mut scales: Vec<f32>) -> Result<Vec<u8>> {
    if cfg!(target_endian = "big") {
        scales.iter_mut().for_each(|s| *s = f32::from_bits(s.to_bits().to_le()));
    }
    let mut bytes = try_vec(scales.len() * size_of::<f32>())?;
    bytes.copy_from_slice(bytemuck::cast_slice(&scales));
    Ok(bytes)
}

/// Another view of bytes in rows that tiles would pad to many times their size, such as the `[n, 1]` of 4-bit
/// checkpoints: rows of 1,024 to 4,096 columns, where the number of bytes allows.
fn fold_narrow(matrix: MatrixEntry) -> MatrixEntry {
    let n = matrix.count * matrix.rows * matrix.cols;
    if matrix.cols >= 256 && matrix.rows >= 16 {
        return matrix;
    }
    let cols = (1024..=4096).rev().step_by(64).find(|c| n.is_multiple_of(*c) && n / c >= 16);
    cols.map_or(matrix, |cols| MatrixEntry { count: 1, rows: n / cols, cols, row_axis: 0 })
}

/// Where the first element that is not finite is, as an index into the tensor.
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

/// Quantizes the bytes of a tensor that is seen as `matrix`.
fn quantize_bytes(
    dtype: Dtype,
    bytes: &[u8],
    matrix: &MatrixEntry,
    granularity: Granularity,
    workers: Workers<'_>,
) -> Result<Quantized> {
    match dtype {
        Dtype::F32 => quantize_as::<f32>(bytes, matrix, granularity, workers),
        Dtype::F16 => quantize_as::<f16>(bytes, matrix, granularity, workers),
        Dtype::BF16 => quantize_as::<bf16>(bytes, matrix, granularity, workers),
        other => Err(Error::input(format!("int8 does not take {other}"))),
    }
}

fn quantize_as<T: Weight>(
    bytes: &[u8],
    matrix: &MatrixEntry,
    granularity: Granularity,
    workers: Workers<'_>,
) -> Result<Quantized> {
    let copy;
    let weights: &[T] = match bytemuck::try_cast_slice(bytes) {
        Ok(weights) => weights,
        // Misaligned in the caller's memory.
        Err(_) => {
            copy = AlignedBytes::copy_of(bytes)?;
            bytemuck::cast_slice(&copy)
        }
    };
    let shape = (matrix.count * matrix.rows, matrix.cols);
    let view = match matrix.row_axis {
        0 => ArrayView2::from_shape(shape, weights),
        _ => ArrayView2::from_shape(shape.f(), weights),
    };
    let view = view.map_err(|e| Error::input(e.to_string()))?;
    quantize_with(view, granularity, workers.pool, workers.cancel)
}

/// Quantizes `bytes` as the container says that the tensor `name` was.
pub(crate) fn quantize_like(
    container: &Container,
    name: &str,
    bytes: &[u8],
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Quantized> {
    let tensor = container.stored(name)?;
    let (Some(matrix), Some(scales)) = (tensor.matrix, tensor.symbol_scales()) else {
        return Err(Error::format("a tensor of symbols without 'matrix' and 'scales'").tensor(name));
    };
    quantize_bytes(tensor.dtype, bytes, &matrix, scales.granularity, Workers { pool, cancel })
}

/// Writes the segments of `plane`; `hash` is that of what it decodes to.
fn write_plane<W: Sink>(
    writer: &mut Writer<W>,
    tables: &mut Tables,
    plane: EncodedPlane,
    data: Stored<'_>,
    side: Option<Stored<'_>>,
    hash: Hash,
) -> Result<PlaneEntry> {
    let table = plane.table.as_ref().map(|choice| tables.number(choice, writer)).transpose()?;
    // In the order in which a GPU wants them.
    let offsets = if plane.coder() == Coder::Raw { None } else { Some(writer.segment(&plane.offsets)?) };
    let data = data.write(writer)?;
    let side = side.map(|side| side.write(writer)).transpose()?;
    Ok(StoredPlane {
        form: plane.form,
        elements: plane.form.elements()?,
        chunks: plane.form.chunks()?,
        table,
        offsets,
        data,
        side,
        hash,
    }
    .entry())
}

impl Tables {
    /// The number of a table in the file, where it is now if it was not before: some that planes share are never used.
    fn number<W: Sink>(&mut self, choice: &TableChoice, writer: &mut Writer<W>) -> Result<usize> {
        if let Some(&number) = choice.place.and_then(|place| self.0.get(&place)) {
            return Ok(number);
        }
        let table = &choice.table;
        let number = writer.table(table.coder().name(), table.bits(), &table.to_bytes())?;
        if let Some(place) = choice.place {
            self.0.insert(place, number);
        }
        Ok(number)
    }
}
