//! Encoding one tensor.

use std::io::{Seek, Write};

use half::{bf16, f16};
use ndarray::{ArrayView2, ShapeBuilder};

use super::Scheme;
use crate::checkpoint::SourceTensor;
use crate::coder::histogram::{count_bytes, entropy};
use crate::coder::plane::{self, EncodedPlane, PlaneOptions, Symbols, TableChoice};
use crate::coder::table::Table;
use crate::coder::{Coder, Filter, Layout};
use crate::container::{MatrixEntry, PlaneEntry, Quality, ScalesEntry, TensorEntry, Writer, hash};
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::int8::{Granularity, NOT_FINITE_ADVICE, Quantized, Weight, quantize};
use crate::tensor::{AlignedBytes, Dtype};

/// A tensor and what to do with it.
pub struct Job<'a> {
    pub tensor: &'a SourceTensor,
    pub bytes: &'a [u8],
    pub scheme: Scheme,
    pub transposed: bool,
    pub plane: PlaneOptions,
}

/// A tensor of scheme `int8`, ready to be written.
struct Int8 {
    matrix: MatrixEntry,
    granularity: Granularity,
    quantized: Quantized,
    /// Of the symbols, bits.
    entropy: f64,
}

/// Told which share of the tensor is done.
type Tick<'a> = dyn FnMut(f64) -> Result<()> + 'a;

/// Columns from which the last dimension of a 3-D tensor is taken for the inputs of a layer, and the tensor for a stack
/// of expert matrices `[experts, out, in]`; below, it is taken for the kernel of a convolution `[out, in, kernel]`.
const STACK_COLS: usize = 64;

impl Job<'_> {
    /// How the tensor is seen as matrices.
    fn matrix(&self) -> Result<MatrixEntry> {
        let shape = &self.tensor.shape;
        if self.bytes.is_empty() {
            // Stored without a matrix view, whatever the other dimensions.
            return Ok(MatrixEntry { count: 1, rows: 0, cols: 0, row_axis: 0 });
        }
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

    pub fn encode<W: Write + Seek>(
        &self,
        writer: &mut Writer<W>,
        tables: &mut Vec<Table>,
        pool: &Pool,
        tick: &mut Tick<'_>,
    ) -> Result<()> {
        let matrix = self.matrix()?;
        let weights = self.tensor.shape.len() >= 2 && self.tensor.dtype.is_quantizable() && !self.bytes.is_empty();
        if let (Scheme::Int8(granularity), true) = (self.scheme, weights) {
            let quantized = pool.run(|| quantize_bytes(self.tensor.dtype, self.bytes, &matrix, granularity)).flatten();
            let quantized = quantized.map_err(|e| {
                // Rows and columns of the matrix view are not those that its owner knows.
                let plain = matrix.count == 1 && matrix.row_axis == 0 && self.tensor.shape.len() == 2;
                match first_not_finite(self.tensor.dtype, self.bytes, &self.tensor.shape) {
                    Some(index) if !plain => {
                        let value = e.message().split(" at ").next().unwrap_or("a weight");
                        Error::input(format!("{value} at index {index:?}")).advice(NOT_FINITE_ADVICE)
                    }
                    _ => e,
                }
            })?;
            let symbols = quantized.symbols.as_slice().expect("made contiguous");
            let symbols = Symbols { count: matrix.count, rows: matrix.rows, cols: matrix.cols, data: symbols };
            let plane = self.encode_plane(&symbols, &self.plane, tables, pool, tick)?;
            let stored = if plane.coder == Coder::Raw { symbols.data.len() } else { plane.stored_bytes() };
            if stored + quantized.scales.len() * 4 < self.bytes.len() {
                let entropy = pool.run(|| entropy(&count_bytes(bytemuck::cast_slice(symbols.data))))?;
                return self.write_int8(writer, tables, plane, &Int8 { matrix, granularity, quantized, entropy });
            }
        }
        self.write_raw(writer, tables, matrix, pool, tick)
    }

    fn encode_plane(
        &self,
        symbols: &Symbols<'_>,
        options: &PlaneOptions,
        tables: &[Table],
        pool: &Pool,
        tick: &mut Tick<'_>,
    ) -> Result<EncodedPlane> {
        let mut done = 0usize;
        let mut tick = |n: usize| {
            done += n;
            tick((done as f64 / symbols.data.len() as f64).min(1.0))
        };
        plane::encode(symbols, options, tables, pool, &mut tick)
    }

    fn write_int8<W: Write + Seek>(
        &self,
        writer: &mut Writer<W>,
        tables: &mut Vec<Table>,
        plane: EncodedPlane,
        int8: &Int8,
    ) -> Result<()> {
        let Int8 { matrix, granularity, quantized, entropy } = int8;
        let symbols: &[u8] = bytemuck::cast_slice(quantized.symbols.as_slice().expect("made contiguous"));
        let scales: Vec<u8> = quantized.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        let (per, block) = match granularity {
            Granularity::Row => ("row", None),
            Granularity::Tensor => ("tensor", None),
            Granularity::Block(n) => ("block", Some(*n)),
        };
        // Rounded: the figure is for people, and digits cost bytes.
        let quality = Quality { entropy: Some((entropy * 1e4).round() / 1e4) };
        let scales = ScalesEntry { per: per.into(), block, data: writer.segment(&scales)? };
        let planes = vec![write_plane(writer, tables, plane, symbols)?];
        self.write_entry(writer, "int8", Some(*matrix), Some(scales), planes, Some(quality));
        Ok(())
    }

    fn write_raw<W: Write + Seek>(
        &self,
        writer: &mut Writer<W>,
        tables: &mut Vec<Table>,
        matrix: MatrixEntry,
        pool: &Pool,
        tick: &mut Tick<'_>,
    ) -> Result<()> {
        let bytewise = self.tensor.dtype.size() == 1 && matrix.row_axis == 0;
        let mut options = self.plane.clone();
        let symbols: &[i8] = bytemuck::cast_slice(self.bytes);
        let matrix = if bytewise { fold_narrow(matrix) } else { matrix };
        let mut symbols = Symbols { count: matrix.count, rows: matrix.rows, cols: matrix.cols, data: symbols };
        if !bytewise {
            // Bytes of floats are no symbols for a table; zstd takes them as they come.
            symbols = Symbols { count: 1, rows: 1, cols: symbols.data.len(), data: symbols.data };
            options.filters = false;
            if options.coder != Coder::Zstd {
                options.coder = Coder::Raw;
            }
        }
        let plane = self.encode_plane(&symbols, &options, tables, pool, tick)?;
        let matrix = (bytewise && plane.coder != Coder::Raw).then_some(matrix);
        let planes = vec![write_plane(writer, tables, plane, self.bytes)?];
        self.write_entry(writer, "raw", matrix, None, planes, None);
        Ok(())
    }

    fn write_entry<W: Write + Seek>(
        &self,
        writer: &mut Writer<W>,
        scheme: &str,
        matrix: Option<MatrixEntry>,
        scales: Option<ScalesEntry>,
        planes: Vec<PlaneEntry>,
        quality: Option<Quality>,
    ) {
        writer.tensor(TensorEntry {
            name: self.tensor.name.clone(),
            dtype: self.tensor.dtype.name().into(),
            shape: self.tensor.shape.clone(),
            scheme: scheme.into(),
            matrix,
            scales,
            planes,
            quality,
        });
    }
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
fn quantize_bytes(dtype: Dtype, bytes: &[u8], matrix: &MatrixEntry, granularity: Granularity) -> Result<Quantized> {
    match dtype {
        Dtype::F32 => quantize_as::<f32>(bytes, matrix, granularity),
        Dtype::F16 => quantize_as::<f16>(bytes, matrix, granularity),
        Dtype::BF16 => quantize_as::<bf16>(bytes, matrix, granularity),
        other => Err(Error::input(format!("int8 does not take {other}"))),
    }
}

fn quantize_as<T: Weight>(bytes: &[u8], matrix: &MatrixEntry, granularity: Granularity) -> Result<Quantized> {
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
    quantize(view.map_err(|e| Error::input(e.to_string()))?, granularity)
}

/// Quantizes `bytes` as the container says that the tensor `name` was.
pub(crate) fn quantize_like(container: &Container, name: &str, bytes: &[u8]) -> Result<Quantized> {
    let entry = container.reader().tensor(name)?;
    let matrix = entry.matrix.ok_or_else(|| Error::format("scheme int8 needs 'matrix'").tensor(name))?;
    let granularity = match entry.scales.as_ref().map(|s| (s.per.as_str(), s.block)) {
        Some(("tensor", _)) => Granularity::Tensor,
        Some(("block", Some(n))) => Granularity::Block(n),
        _ => Granularity::Row,
    };
    quantize_bytes(Dtype::from_name(&entry.dtype)?, bytes, &matrix, granularity)
}

/// Writes the segments of `plane`; `decoded` is what it decodes to.
fn write_plane<W: Write + Seek>(
    writer: &mut Writer<W>,
    tables: &mut Vec<Table>,
    plane: EncodedPlane,
    decoded: &[u8],
) -> Result<PlaneEntry> {
    let coded = plane.coder != Coder::Raw;
    let mut table = None;
    if let Some(tiles) = &plane.tiles {
        table = Some(match &tiles.table {
            TableChoice::Known(i) => *i,
            TableChoice::New(t) => {
                tables.push(t.clone());
                writer.table(t.coder().name(), t.bits(), &t.to_bytes())?
            }
        });
    }
    // In the order in which a GPU wants them.
    let offsets = if coded { Some(writer.segment(&plane.offsets)?) } else { None };
    let data = writer.segment(if coded { &plane.data } else { decoded })?;
    let side = match &plane.tiles {
        Some(t) if t.layout == Layout::Pair => Some(writer.segment(&t.side)?),
        _ => None,
    };
    let tiles = plane.tiles.as_ref();
    Ok(PlaneEntry {
        coder: plane.coder.name().into(),
        fields: None,
        filter: (plane.filter != Filter::None).then(|| plane.filter.name().into()),
        layout: tiles.map(|t| t.layout.name().into()),
        shift: tiles.filter(|t| t.layout == Layout::Pair).map(|t| t.shift),
        tile: tiles.map(|t| t.tile),
        chunk: plane.zstd_chunk,
        table,
        chunks: coded.then_some(plane.chunks),
        max_chunk: coded.then_some(plane.max_chunk),
        offsets,
        data,
        side,
        hash: hash(decoded),
    })
}
