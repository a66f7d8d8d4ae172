//! Work items: a tensor to decode or to multiply with, as callers ask for it; its planes, as launches are made of them; and
//! the parameters of kernels of module `util`.

use std::ops::Range;

use wcodec_kernels::abi::{self, OutputKind};

use super::plan::{
    ElementBits, FEW_VECTORS, Limits, MOST_VECTORS, Method, PlaneAddresses, ProductOutput, TensorPlan, TilesItem,
    TilesPlan,
};
use crate::coder::TILE_ROWS;
use crate::error::{Code, Result};
use crate::tensor::Dtype;

/// A tensor to decode, and where to.
#[derive(Clone, Debug)]
pub struct DecodeItem {
    /// Name of the tensor, or of an alias.
    pub name: String,
    /// Device address of the first element; the output is contiguous and row-major in the tensor's shape. Multiples of 16
    /// bytes are faster.
    pub out: u64,
    /// The dtype to write: `F32`, `F16` or `BF16` for schemes `int8` and `rate`, `I8` for their symbols; the tensor's own dtype for schemes `lossless` and
    /// `raw`.
    pub dtype: Dtype,
    /// Rows to decode, counted through all matrices (of a tensor that is stored raw and not as matrices, entries of its first
    /// dimension); all where absent. Ranges begin and end at multiples of 16 rows of a matrix, or at its end; `out` is then the
    /// address of their first element.
    pub rows: Option<Range<usize>>,
}

/// A matrix to multiply vectors with, as it is stored.
#[derive(Clone, Debug)]
pub struct ProductItem {
    /// Name of the tensor, or of an alias.
    pub name: String,
    /// The dtype of the vectors' elements and of the results: `F16` or `BF16`.
    pub dtype: Dtype,
    /// Rows to multiply with, as in [`DecodeItem::rows`]; all where absent. Each gives one result.
    pub rows: Option<Range<usize>>,
    /// Device address of what is added to the results, as many elements of `dtype`; 0 for nothing.
    pub bias: u64,
    /// The use of the results.
    pub part: ProductPart,
    /// Which of the vectors of a call is the first that it multiplies: for matrices that belong to other vectors each, as experts do.
    pub vector: usize,
}

/// The order of the results of products with several matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultOrder {
    /// All vectors' results of a matrix lie before those of the next one, each matrix's as an array `[vectors, rows]`.
    #[default]
    ByMatrix,
    /// All matrices' results of a vector lie before those of the next one: an array `[vectors, rows of all]`, as of one matrix that has them one
    /// below the other.
    ByVector,
}

/// The use of the products with a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductPart {
    /// They are results.
    #[default]
    Result,
    /// They are a gate projection, which belongs to the item behind this one: an [`Up`](Self::Up) projection of as many rows. Results are
    /// `activation(gate) * up`.
    Gate,
    /// They are an up projection, whose gate projection is the item before this one.
    Up,
}

impl ProductPart {
    /// [`Up`](Self::Up) by its former name.
    #[allow(non_upper_case_globals, reason = "it was a variant")]
    pub const Value: Self = Self::Up;
}

/// Vectors to multiply with matrices, and where the results go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vectors {
    /// Device address of the first one.
    pub x: u64,
    /// From one vector to the next, elements.
    pub x_stride: usize,
    /// The number of vectors: at most what the batch takes ([`Batch::most_vectors`](super::Batch::most_vectors)).
    pub count: usize,
    /// Device address of the results: of the first matrix those of all vectors, one vector after the other, then those of the next matrix.
    /// A gate and its up projection give results together.
    pub y: u64,
    /// The launch's epilogue, as in blocks of models.
    pub epilogue: Epilogue,
}

/// A function of numbers that neural networks apply to the results of a layer. The variants are the kernels' `ACTIVATION_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// No function: a number stays as it is.
    #[default]
    None = abi::ACTIVATION_NONE,
    /// `v * sigmoid(v)`.
    Silu = abi::ACTIVATION_SILU,
    /// GELU by its approximation with tanh.
    GeluTanh = abi::ACTIVATION_GELU_TANH,
    /// GELU by the error function.
    Gelu = abi::ACTIVATION_GELU,
    /// `max(v, 0)`.
    Relu = abi::ACTIVATION_RELU,
    /// `max(v, 0)^2`.
    ReluSquared = abi::ACTIVATION_RELU_SQUARED,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::None, Self::Silu, Self::GeluTanh, Self::Gelu, Self::Relu, Self::ReluSquared];

    /// The name by which other languages ask for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_tanh",
            Self::Gelu => "gelu",
            Self::Relu => "relu",
            Self::ReluSquared => "relu_squared",
        }
    }

    /// The activation of that name.
    ///
    /// # Errors
    /// There is none.
    ///
    /// ```
    /// use wcodec::gpu::Activation;
    /// assert_eq!(Activation::from_name("gelu_tanh").unwrap(), Activation::GeluTanh);
    /// ```
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|a| a.name()).collect();
            coded!(NO_FUSED_KERNEL, "no kernel has the activation '{name}'")
                .advice(format!("use one of {}", names.join(", ")))
        })
    }
}

/// The epilogue of a launch of products: what it does with them before it writes results. An RMSNorm in front of the
/// products is part of it, since results can be divided by the root afterwards. All addresses are the device's; 0 is for
/// a step that is not to be done.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    /// Address of vectors that lie as those to multiply with do: each result is multiplied by `norm_factor / sqrt(mean(squares) + epsilon)`, of
    /// the squares of its vector here, of up to [`Vectors::MOST_SQUARED`]. With these as `h` and `h * gain` as what to multiply with, that is an RMSNorm in front.
    pub squared: u64,
    /// Is added to the mean of the squares.
    pub epsilon: f32,
    /// By what `h * gain` was divided, so that it is not too large for the dtype; 1 where it was not.
    pub norm_factor: f32,
    /// Address of what is added to the results, which lies as they do: a residual. Each is read before the result is written, so that it may
    /// be the same place.
    pub residual: u64,
    /// Address of more results, which lie as those at `y` do: these as they were rounded, times `gain` and `gain_scale`, and rounded again.
    pub scaled: u64,
    /// Address of a gain for each row of the matrix; of launches of one item.
    pub gain: u64,
    /// By what results are multiplied besides; a power of two rounds nothing.
    pub gain_scale: f32,
    /// Is added to `gain` before: gains of some norms are stored without the 1 that they lie around.
    pub gain_offset: f32,
    /// By what results are multiplied before the residual is added.
    pub residual_scale: f32,
    /// Is applied to gates, and in launches without gates to the results, before the residual is added. SiLU of gates, and nothing of results,
    /// where it is absent.
    pub activation: Option<Activation>,
    /// Address of f32, twice as many as there are results, for gate and up projections.
    pub stash: u64,
    /// Address of arrival counters: a u32 for each 16 results of a vector, 0 before and after each launch with gates. Launches that may run
    /// at the same time need their own, and their own `stash`.
    pub arrivals: u64,
}

impl Default for Epilogue {
    fn default() -> Self {
        Self {
            squared: 0,
            epsilon: 0.0,
            norm_factor: 1.0,
            residual: 0,
            scaled: 0,
            gain: 0,
            gain_scale: 1.0,
            gain_offset: 0.0,
            residual_scale: 1.0,
            activation: None,
            stash: 0,
            arrivals: 0,
        }
    }
}

impl Vectors {
    /// The most vectors that any call takes.
    pub const MOST: usize = MOST_VECTORS[MOST_VECTORS.len() - 1];

    /// The most vectors of a call whose results are divided by their norm ([`Epilogue::squared`]). The norm of more is written first.
    pub const MOST_SQUARED: usize = FEW_VECTORS;
}

/// Indices of rows, in the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct RowIds {
    /// Device address of the first one, a multiple of its size.
    pub ptr: u64,
    /// The number of indices.
    pub count: usize,
    /// Whether they are `i64`; otherwise they are `i32`.
    pub wide: bool,
}

impl RowIds {
    /// Bytes of an index.
    pub(super) fn bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// The indices, of their bytes.
    pub(super) fn indices(&self, bytes: &[u8]) -> Vec<i64> {
        match self.wide {
            true => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            false => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
        }
    }
}

/// A work item of grouped launches: a plane of a tensor to decode or to multiply with, its source and its output. All addresses are the device's.
#[derive(Clone, Debug)]
pub(super) struct WorkItem<'a> {
    pub plan: &'a TensorPlan,
    /// The method by which the plane is decoded.
    pub method: &'a Method,
    /// The addresses that it is decoded from.
    pub addresses: PlaneAddresses,
    /// Address of its decoding table; 0 where it has none.
    pub table: u64,
    /// Address of its status.
    pub status: u64,
    /// Address of the output's first element.
    pub out: u64,
    pub kind: OutputKind,
    /// Rows of all matrices.
    pub rows: Range<usize>,
    /// The places of its rows' results, if it is to be multiplied with and not decoded.
    pub product: Option<ProductOutput>,
}

impl<'a> WorkItem<'a> {
    /// The item as launches are made of it, where its plane is in these tiles.
    pub fn in_tiles(&self, tiles: &'a TilesPlan) -> TilesItem<'a> {
        let strips = (self.plan.strip_of(self.rows.start), self.plan.strip_of(self.rows.end));
        debug_assert_eq!(self.plan.first_row(strips.0), self.rows.start);
        TilesItem {
            tensor: self.plan,
            tiles,
            addresses: self.addresses,
            table: self.table,
            status: self.status,
            out: self.out,
            kind: self.kind,
            strips,
        }
    }
}

/// Rows of an item as the kernels can decode them: whole strips.
pub(super) fn checked_rows(plan: &TensorPlan, rows: Option<&Range<usize>>) -> Result<Range<usize>> {
    let all = 0..plan.rows();
    let Some(rows) = rows else { return Ok(all) };
    let refuse = |code: Code, what: String, advice: &str| Err(code.error(what).tensor(plan.name()).advice(advice));
    if rows.start > rows.end || rows.end > all.end {
        return refuse(
            Code::BAD_ROWS,
            format!("rows {rows:?} of a tensor with {} rows", all.end),
            "ask for rows that it has",
        );
    }
    if plan.tensor.transposed() {
        return refuse(Code::INPUT_BUG, "rows of a transposed matrix".to_owned(), "decode it as a whole");
    }
    if *rows == all {
        return Ok(all);
    }
    let per = plan.matrix.1.max(1);
    let edge = |row: usize| row == all.end || (row % per).is_multiple_of(TILE_ROWS);
    if !(edge(rows.start) && edge(rows.end)) {
        let what = format!("rows {rows:?} do not begin and end at strips of {TILE_ROWS} rows of a matrix");
        return refuse(Code::GPU_ROWS, what, "widen the range");
    }
    Ok(rows.clone())
}

/// Threads of the kernels in module `util`.
pub(super) const UTIL_THREADS: u32 = 256;

/// Elements of the plane that an item writes.
pub(super) fn elements_of(item: &WorkItem<'_>) -> Range<usize> {
    if item.rows.len() == item.plan.rows() {
        return 0..item.plan.elements();
    }
    item.rows.start * item.plan.matrix.2..item.rows.end * item.plan.matrix.2
}

/// An item of `wcodec_dequantize`: `symbols` is the address at which element 0 of the plane would lie.
pub(super) fn symbols_item(item: &WorkItem<'_>, symbols: u64, elements: Range<usize>) -> abi::Symbols {
    let cols = item.plan.matrix.2;
    let aligned = cols.is_multiple_of(16) && symbols.is_multiple_of(16) && elements.start.is_multiple_of(16);
    abi::Symbols {
        symbols,
        begin: elements.start as u64,
        end: elements.end as u64,
        rows: item.plan.matrix.1 as u32,
        cols: cols as u32,
        output: item.plan.place(&item.addresses, item.out, item.kind, item.rows.start),
        cost_begin: 0,
        kind: item.kind as u32,
        vector: u32::from(aligned && elements.len().is_multiple_of(16) && item.plan.is_vector(item.out, item.kind)),
    }
}

/// A launch of `wcodec_dequantize`, and its grid.
pub(super) fn symbols_batch(items: &[abi::Symbols], limits: Limits) -> (Box<abi::SymbolsBatch>, u32) {
    let mut batch = Box::new(abi::SymbolsBatch { count: items.len() as u32, ..Default::default() });
    for (to, item) in batch.items.iter_mut().zip(items) {
        *to = abi::Symbols { cost_begin: batch.cost, ..*item };
        batch.cost += (item.end - item.begin).div_ceil(16);
    }
    let grid = grid_for(batch.cost, limits);
    (batch, grid)
}

/// Symbols of planes that are bits of elements, each with its pass: those of one are launched together, and before those of the next.
pub(super) type BitsItems = Vec<(u8, abi::FieldsSymbols)>;

/// An item of `wcodec_fields`, and its pass.
pub(super) fn bits_item(bits: ElementBits, kind: OutputKind, symbols: abi::Symbols) -> (u8, abi::FieldsSymbols) {
    (bits.pass, abi::FieldsSymbols { symbols: abi::Symbols { kind: 0, ..symbols }, fields: bits.fields(kind) })
}

/// Launches of `wcodec_fields`, in order, and their grids.
pub(super) fn bits_batches(mut planes: BitsItems, limits: Limits) -> Vec<(Box<abi::FieldsSymbolsBatch>, u32)> {
    planes.sort_by_key(|(pass, _)| *pass);
    let together = planes.chunk_by(|a, b| a.0 == b.0).flat_map(|items| items.chunks(abi::MAX_ITEMS));
    let batches = together.map(|items| {
        let mut batch = Box::new(abi::FieldsSymbolsBatch { count: items.len() as u32, ..Default::default() });
        for (to, (_, item)) in batch.items.iter_mut().zip(items) {
            *to = *item;
            to.symbols.cost_begin = batch.cost;
            batch.cost += (item.symbols.end - item.symbols.begin).div_ceil(16);
        }
        let grid = grid_for(batch.cost, limits);
        (batch, grid)
    });
    batches.collect()
}

/// Blocks of [`UTIL_THREADS`] threads for so many threads' worth of work, as many as the device holds at most.
pub(super) fn grid_for(threads: u64, limits: Limits) -> u32 {
    threads.div_ceil(u64::from(UTIL_THREADS)).clamp(1, limits.multiprocessors as u64 * 8) as u32
}
