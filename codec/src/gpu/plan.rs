//! The part of a tensor that a device needs: one run of bytes, the *packed tensor*, and the facts that kernels are told about it. No device is
//! touched here, so that the emulator's tests run the same plans.

mod element_bits;
mod lookup;
mod many;
mod packed;
mod product;
mod shared_memory;

use std::ops::Range;
use std::sync::Arc;

use wcodec_kernels::abi::{self, OutputKind, Parameters};
use wcodec_kernels::{Mode, Module};

pub use self::element_bits::ElementBits;
pub use self::lookup::{LookupLaunch, can_look_up};
#[cfg(test)]
pub use self::many::{Division, launch as many_launch, launches as many_launches};
pub use self::many::{RoutedLaunch, routed_launches};
pub use self::packed::{PackedPlane, PackedTensor, PlaneAddresses};
pub use self::product::{
    FEW_VECTORS, MOST_VECTORS, ProductLaunch, ProductOutput, ProductTiles, can_fuse, most_vectors, product_launches,
};
use self::shared_memory::SharedMemory;
use crate::coder::plane::{Coding, Tiling};
use crate::coder::table::{MOST_BITS, Table};
use crate::coder::tile::{OFFSET_UNIT, TileGeometry, symbols_per_block};
use crate::coder::{BLOCK_COLS, Coder, Filter, LANES, Layout, TILE_ROWS};
use crate::decode::TensorBytes;
use crate::error::{Code, Error, Result};
use crate::scheme::Fields;
use crate::stored::{StoredPlane, StoredTensor};
use crate::tensor::Dtype;

/// The method by which a plane is decoded, and the bits of elements that it has if those are not all.
#[derive(Clone, Debug)]
pub enum Method {
    /// Our own kernels.
    Tiles(TilesPlan),
    /// nvCOMP, then filters and scales.
    Zstd {
        /// Decoded bytes of a frame.
        chunk: usize,
        frames: usize,
        filter: Filter,
        bits: Option<ElementBits>,
    },
    /// The bytes as they are.
    Raw { bits: Option<ElementBits> },
}

/// The facts that kernels are told about a plane in tiles.
#[derive(Clone, Debug)]
pub struct TilesPlan {
    pub tiling: Tiling,
    pub geometry: TileGeometry,
    pub max_chunk: usize,
    /// Number of its table in the container, which with the layout names the device's table.
    pub table_number: usize,
    pub table: Arc<Table>,
    /// Length of its chunks in units of [`OFFSET_UNIT`].
    data_units: u32,
    bits: Option<ElementBits>,
    /// The kind of output that names the kernels which put its bits together, if it has some of their own.
    common: Option<OutputKind>,
    /// Whether symbols become values by products with scales of f32 alone, as scheme `int8` says.
    products: bool,
}

/// A tensor, planned.
#[derive(Clone, Debug)]
pub struct TensorPlan {
    pub tensor: Arc<StoredTensor>,
    /// Matrices, rows, columns: see [`StoredTensor::rows_view`].
    pub matrix: (usize, usize, usize),
    pub packed: PackedTensor,
    /// The method by which each plane is decoded.
    pub planes: Vec<Method>,
}

impl TensorPlan {
    /// Plans the decoding of a tensor whose bytes were checked.
    pub fn new(bytes: &TensorBytes) -> Result<Self> {
        Self::of(&bytes.tensor, bytes.planes.iter().map(|plane| plane.table.clone()))
    }

    /// Plans the decoding of a tensor by its tables, one of each plane that has one.
    pub fn of(tensor: &Arc<StoredTensor>, tables: impl Iterator<Item = Option<Arc<Table>>>) -> Result<Self> {
        let matrix = tensor.rows_view();
        let (count, rows, cols) = matrix;
        let too_many = |n: usize| count.checked_mul(n).is_none_or(|n| n >= 1 << 31);
        if too_many(rows) || cols >= 1 << 31 || (tensor.has_columns() && too_many(cols)) {
            return Err(too_large().tensor(&tensor.name));
        }
        let fields: Vec<Option<Fields>> = match tensor.is_joined() {
            true => tensor.fields().into_iter().map(Some).collect(),
            false => vec![None],
        };
        let joined = tensor.planes.iter().zip(tables).zip(fields).enumerate();
        let planes = joined.map(|(i, ((stored, table), fields))| {
            let joins =
                fields.as_ref().map(|fields| Joins { fields, bytes: tensor.dtype.size(), pass: pass(tensor, i) });
            let products = tensor.symbol_scales().is_none_or(|s| s.dtype == Dtype::F32 && s.offset == 0.0);
            method(matrix, stored, table, joins, products).map_err(|e| e.tensor(&tensor.name))
        });
        let planes = planes.collect::<Result<_>>()?;
        let packed = PackedTensor::of(tensor);
        Ok(Self { tensor: tensor.clone(), matrix, packed, planes })
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.tensor.name
    }

    /// Symbols, or bytes where elements are wider than 8 bits.
    pub fn elements(&self) -> usize {
        self.tensor.plane().elements
    }

    /// The kind of output that gives this tensor as `dtype`; `I8` stands for the symbols of a quantized tensor. Elements that are put together
    /// have kinds of their size.
    pub fn output(&self, dtype: Dtype) -> Result<OutputKind> {
        self.tensor.check_dtype(dtype, true).map_err(|e| e.tensor(self.name()))?;
        Ok(match (self.tensor.scheme.makes_symbols(), dtype) {
            (true, Dtype::F16) => OutputKind::F16,
            (true, Dtype::BF16) => OutputKind::BF16,
            (true, Dtype::F32) => OutputKind::F32,
            (false, Dtype::F16) if self.tensor.is_joined() => OutputKind::F16,
            (false, Dtype::BF16) if self.tensor.is_joined() => OutputKind::BF16,
            (false, Dtype::F32) if self.tensor.is_joined() => OutputKind::F32,
            _ => OutputKind::Int8,
        })
    }

    /// Bytes that decoding to `kind` writes.
    pub fn output_bytes(&self, kind: OutputKind) -> usize {
        self.elements() * kind.bytes()
    }

    /// Rows of all matrices.
    pub fn rows(&self) -> usize {
        self.matrix.0 * self.matrix.1
    }

    /// The rows, counted over all matrices, that are entries `first` of the tensor's first dimension.
    ///
    /// # Errors
    /// There are no such entries, or they are not rows.
    pub fn rows_of(&self, first: Range<usize>) -> Result<Range<usize>> {
        let refuse = |code: Code, what: String, advice: &str| Err(code.error(what).tensor(self.name()).advice(advice));
        let (all, rows) = (self.tensor.entries(), self.rows());
        if first.start > first.end || first.end > all {
            return refuse(
                Code::BAD_ROWS,
                format!("rows {first:?} of a tensor with {all} rows"),
                "ask for rows that it has",
            );
        }
        if first == (0..all) {
            return Ok(0..rows);
        }
        if self.tensor.transposed() || all == 0 || !rows.is_multiple_of(all) {
            let what = "it is not stored by rows, so that a GPU cannot decode some of them";
            return refuse(Code::GPU_ROWS, what.to_owned(), "decode it as a whole");
        }
        let per = rows / all;
        Ok(first.start * per..first.end * per)
    }

    #[cfg(test)]
    /// Strips of all matrices: sixteen rows of a matrix, or those that are left at its end.
    pub fn strips(&self) -> usize {
        self.matrix.0 * self.strips_per_matrix()
    }

    fn strips_per_matrix(&self) -> usize {
        self.matrix.1.div_ceil(TILE_ROWS)
    }

    /// The strip, counted over all matrices, that begins with `row`, or the number of strips.
    pub fn strip_of(&self, row: usize) -> usize {
        let per = self.matrix.1.max(1);
        row / per * self.strips_per_matrix() + (row % per).div_ceil(TILE_ROWS)
    }

    /// The row, counted over all matrices, that a strip begins with.
    pub fn first_row(&self, strip: usize) -> usize {
        let per = self.strips_per_matrix().max(1);
        strip / per * self.matrix.1 + strip % per * TILE_ROWS
    }

    /// Elements from one row of the output to the next, and from one column to the next.
    pub fn strides(&self) -> (usize, usize) {
        if self.tensor.transposed() { (1, self.matrix.1) } else { (self.matrix.2, 1) }
    }

    /// Bytes from one row of the output to the next.
    pub fn row_bytes(&self, kind: OutputKind) -> usize {
        self.strides().0 * kind.bytes()
    }

    /// The places of elements that are written to `out`, which begins with those of the row `row_begin`, counted through all matrices.
    pub fn place(&self, addresses: &PlaneAddresses, out: u64, kind: OutputKind, row_begin: usize) -> abi::Output {
        let (row_stride, column_stride) = self.strides();
        let cols = self.matrix.2;
        let scales = self.tensor.symbol_scales();
        let quantized = kind != OutputKind::Int8 && scales.is_some();
        abi::Output {
            out,
            scales: if quantized { addresses.scales } else { 0 },
            columns: if quantized && self.tensor.has_columns() { addresses.columns } else { 0 },
            row_begin: row_begin as u32,
            row_stride: row_stride as u32,
            column_stride: column_stride as u32,
            scales_per_row: scales.map_or(0, |s| s.granularity.scales_per_row(cols)) as u32,
            scale_columns: scales.map_or(cols.max(1), |s| s.granularity.columns(cols)) as u32,
            scale_bytes: scales.map_or(0, |s| s.dtype.size()) as u16,
            offset: scales.map_or(0.0, |s| s.offset * 256.0) as u16,
        }
    }

    /// Whether rows of an output at `out` begin at multiples of 16 bytes, columns follow each other, and kernels may count the bytes of
    /// eight rows in 32 bits.
    pub fn is_vector(&self, out: u64, kind: OutputKind) -> bool {
        let row = self.matrix.2 * kind.bytes();
        !self.tensor.transposed() && out.is_multiple_of(16) && row.is_multiple_of(16) && row < 1 << 29
    }
}

/// The bits that a plane has of elements that are joined.
struct Joins<'a> {
    fields: &'a Fields,
    /// Bytes of an element.
    bytes: usize,
    pass: usize,
}

fn too_large() -> Error {
    coded!(GPU_LIMITS, "a matrix with more rows or columns than the kernels count").advice("decode it on the CPU")
}

/// The number of a tensor's planes that are written before this one: those in tiles come first, and then those that are raw, as launches have them.
fn pass(tensor: &StoredTensor, plane: usize) -> usize {
    let turn = |i: usize| match tensor.planes[i].form.coding {
        Coding::Tiles(_) => (0, i),
        Coding::Raw => (1, i),
        Coding::Zstd { .. } => (2, i),
    };
    (0..tensor.planes.len()).filter(|&i| turn(i) < turn(plane)).count()
}

fn method(
    matrix: (usize, usize, usize),
    stored: &StoredPlane,
    table: Option<Arc<Table>>,
    joins: Option<Joins<'_>>,
    products: bool,
) -> Result<Method> {
    let coding = stored.form.coding;
    let (mut bits, mut common) = (None, None);
    if let Some(Joins { fields, bytes, pass }) = joins {
        if fields.bytes() != coding.element_bytes() {
            let (bits, bytes) = (fields.runs(), coding.element_bytes());
            return Err(coded!(BAD_FIELDS, "'fields' {bits:?} of a plane of {bytes} bytes an element"));
        }
        // A plane of whole elements is written as symbols are.
        if bytes > 1 || !element_bits::is_whole(fields, bytes) {
            bits = Some(ElementBits::new(fields, pass)?);
            common = element_bits::common(fields, bytes).filter(|_| pass == 0);
        }
    }
    Ok(match coding {
        Coding::Tiles(tiling) => {
            let (Some(table_number), Some(table)) = (stored.table, table) else {
                return Err(coded!(BAD_PLANE, "a plane without 'table'"));
            };
            table.check(tiling.coder, tiling.layout)?;
            let geometry = tiling.geometry(matrix)?;
            let blocks = geometry.padded_elements() / (TILE_ROWS * BLOCK_COLS);
            let units = u32::try_from(stored.data.length / OFFSET_UNIT as u64).ok().filter(|&n| n < u32::MAX);
            let Some(data_units) = units.filter(|_| blocks < 1 << 31) else { return Err(too_large()) };
            let max_chunk = stored.form.max_chunk;
            Method::Tiles(TilesPlan {
                tiling,
                geometry,
                max_chunk,
                table_number,
                table,
                data_units,
                bits,
                common,
                products,
            })
        }
        Coding::Zstd { chunk, filter } => Method::Zstd { chunk, frames: stored.chunks, filter, bits },
        Coding::Raw => Method::Raw { bits },
    })
}

impl TilesPlan {
    /// The most special kernel that decodes this plane.
    pub fn mode(&self) -> Mode {
        let Tiling { layout, shift, filter, .. } = self.tiling;
        let special = filter == Filter::None && self.table.bits() == MOST_BITS;
        match layout {
            Layout::Split if special && self.common.is_some() => Mode::Split,
            _ if self.bits.is_some() => Mode::Fields,
            Layout::Byte if special && self.products => Mode::Byte,
            Layout::Pair if shift == 3 && special && self.products => Mode::Pair,
            Layout::Pair if shift < 3 && filter == Filter::None => Mode::Low,
            Layout::Pair if shift < 3 && filter == Filter::Trellis => Mode::Trellis,
            Layout::Quad if filter == Filter::None => Mode::Quad,
            Layout::Quad => Mode::QuadTrellis,
            Layout::Byte | Layout::Pair | Layout::Split => Mode::General,
        }
    }

    /// The module of its kernels.
    pub fn module(&self) -> Module {
        match self.tiling.coder {
            Coder::Rans => Module::Rans,
            Coder::Huffman => Module::Huffman,
            Coder::Zstd | Coder::Raw => unreachable!("coders of bytes have no tiles"),
        }
    }

    /// Space behind a chunk, bytes, into which a damaged stream may run on. rANS: four steps of 32 words, from two
    /// bytes behind the end. Huffman: the longest code for each symbol of a lane, and the window.
    fn slack(&self) -> usize {
        match self.tiling.coder {
            Coder::Rans => 4 * LANES * 2 + 16,
            Coder::Huffman => {
                let symbols = self.geometry.tile() / BLOCK_COLS * symbols_per_block(self.tiling.layout);
                (symbols * MOST_BITS as usize).div_ceil(32) * 4 + 16
            }
            Coder::Zstd | Coder::Raw => unreachable!("coders of bytes have no tiles"),
        }
    }
}

/// The key that launches are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Later ones add to what earlier ones have written.
    pass: u8,
    module: Module,
    mode: Mode,
    kind: OutputKind,
    /// The bits of elements that a kernel is told.
    bits: Option<ElementBits>,
}

/// A [work item](crate::gpu::work_item::WorkItem) whose plane is in tiles: strips to decode to one place.
#[derive(Clone, Copy, Debug)]
pub struct TilesItem<'a> {
    pub tensor: &'a TensorPlan,
    pub tiles: &'a TilesPlan,
    /// The addresses of the plane's parts.
    pub addresses: PlaneAddresses,
    /// Address of the plane's decoding table.
    pub table: u64,
    /// Address of the plane's status.
    pub status: u64,
    /// Address of the first element of the first strip.
    pub out: u64,
    pub kind: OutputKind,
    /// First strip, and the one behind the last, counted over all matrices.
    pub strips: (usize, usize),
}

impl TilesItem<'_> {
    /// Items with the same answer can share a launch. Launches are made in this order.
    pub fn key(&self) -> Key {
        let mode = self.tiles.mode();
        Key {
            pass: self.tiles.bits.map_or(0, |p| p.pass),
            module: self.tiles.module(),
            mode,
            kind: self.tiles.common.filter(|_| mode == Mode::Split).unwrap_or(self.kind),
            bits: self.tiles.bits.filter(|_| mode == Mode::Fields),
        }
    }

    fn params(&self, cost_begin: u32) -> abi::Tiles {
        let (t, g) = (self.tiles, &self.tiles.geometry);
        let (begin, end) = self.strips;
        let blocks = g.tile() / BLOCK_COLS;
        abi::Tiles {
            data: self.addresses.data,
            offsets: self.addresses.offsets,
            side: self.addresses.side,
            table: self.table,
            status: self.status,
            output: self.tensor.place(&self.addresses, self.out, self.kind, self.tensor.first_row(begin)),
            data_units: t.data_units,
            cost_begin,
            chunk_begin: (begin * g.tiles()) as u32,
            chunk_end: (end * g.tiles()) as u32,
            max_chunk: t.max_chunk as u32,
            strips: g.strips_per_matrix() as u32,
            rows: g.rows() as u32,
            cols: g.cols() as u32,
            tiles: g.tiles() as u32,
            blocks: blocks as u32,
            last_blocks: (g.position(g.tiles() - 1).width / BLOCK_COLS) as u32,
            bits: t.table.bits() as u16,
            layout: layout_code(t.tiling.layout),
            shift: t.tiling.shift as u8,
            filter: filter_code(t.tiling.filter),
            vector: u8::from(self.tensor.is_vector(self.out, self.kind)),
            block_begin: 0,
            block_end: 0,
            changes: u16::from(t.tiling.changes),
            by_tiles: abi::Divisor::new(g.tiles() as u32),
            by_strips: abi::Divisor::new(g.strips_per_matrix() as u32),
            shared_begin: 0,
            shared_end: 0,
        }
    }
}

/// The kernels' number of a layout.
fn layout_code(layout: Layout) -> u8 {
    match layout {
        Layout::Byte => abi::LAYOUT_BYTE,
        Layout::Pair => abi::LAYOUT_PAIR,
        Layout::Split => abi::LAYOUT_SPLIT,
        Layout::Quad => abi::LAYOUT_QUAD,
    }
}

/// The kernels' number of a filter.
pub fn filter_code(filter: Filter) -> u8 {
    match filter {
        Filter::Left => abi::FILTER_LEFT,
        Filter::Up => abi::FILTER_UP,
        Filter::Trellis => abi::FILTER_TRELLIS,
        Filter::None => abi::FILTER_NONE,
    }
}

/// The limits of a device, which decide how a launch is cut.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub multiprocessors: usize,
    /// Shared memory that one block can have, bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_multiprocessor: usize,
    /// Whether kernels of many vectors run there.
    pub many: bool,
}

/// Warps of a multiprocessor up to which one block of them is faster than two.
const FEW_WARPS: usize = 8;

/// Chunks for each warp from which on blocks take those of an item in turns: fewer would leave some blocks without any, and then the next
/// launch's blocks, which come early, crowd where these were.
const SHARED_TURNS: usize = 4;

/// One launch of a decoding kernel.
#[derive(Clone, Debug)]
pub struct TilesLaunch {
    pub module: Module,
    pub kernel: String,
    pub params: Params,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
}

/// The parameters that it is launched with.
#[derive(Clone, Debug)]
pub enum Params {
    Tiles(Box<abi::TilesBatch>),
    Fields(Box<abi::FieldsBatch>),
}

impl Params {
    /// As the kernel takes them.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Params::Tiles(batch) => batch.as_bytes(),
            Params::Fields(batch) => batch.as_bytes(),
        }
    }
}

/// The launches that do `items`, which have one key.
pub fn tiles_launches(items: &[TilesItem<'_>], limits: Limits) -> Result<Vec<TilesLaunch>> {
    items.chunks(abi::MAX_ITEMS).map(|items| tiles_launch(items, limits)).collect()
}

/// Finds the blocks of threads whose share of a launch's `cost` lies within `item`, as the kernels cut it.
fn share(item: &mut abi::Tiles, cost: u32, grid: u32) {
    let begins = |block: u32| (u64::from(cost) * u64::from(block) / u64::from(grid)) as u32;
    let end = item.cost_begin + (item.chunk_end - item.chunk_begin) * item.blocks;
    let within = |at: u32| (item.cost_begin..=end).contains(&at);
    let (Some(first), Some(last)) = ((0..=grid).find(|&b| within(begins(b))), (0..=grid).rfind(|&b| within(begins(b))))
    else {
        return;
    };
    if first < last && last <= u16::MAX.into() {
        let chunk = |block| item.chunk_begin + (begins(block) - item.cost_begin).div_ceil(item.blocks);
        (item.block_begin, item.block_end) = (first as u16, last as u16);
        (item.shared_begin, item.shared_end) = (chunk(first), chunk(last).min(item.chunk_end));
    }
}

fn tiles_launch(items: &[TilesItem<'_>], limits: Limits) -> Result<TilesLaunch> {
    let Key { module, mode, kind, bits, .. } = items[0].key();
    let mut params = Box::new(abi::TilesBatch { count: items.len() as u32, ..Default::default() });
    let (mut cost, mut chunks) = (0u32, 0usize);
    for (item, to) in items.iter().zip(&mut params.items) {
        *to = item.params(cost);
        let n = to.chunk_end - to.chunk_begin;
        chunks += n as usize;
        cost = n
            .checked_mul(to.blocks)
            .and_then(|c| cost.checked_add(c))
            .filter(|_| to.chunk_end <= i32::MAX as u32)
            .ok_or_else(|| {
            coded!(LAUNCH_TOO_LARGE, "too much for one launch").advice("decode fewer tensors at once")
        })?;
    }
    let shared_memory = SharedMemory::new(items);
    let (blocks, most, buffers) = shared_memory.shape(limits)?;
    // Few chunks: one block a multiprocessor, which loads one table and leaves room for the next launch.
    let blocks = if chunks <= limits.multiprocessors * FEW_WARPS.min(most) { 1 } else { blocks };
    let grid = chunks.clamp(1, limits.multiprocessors * blocks);
    let warps = chunks.div_ceil(grid).clamp(1, most);
    params.cost = cost;
    for item in &mut params.items[..items.len()] {
        if (item.chunk_end - item.chunk_begin) as usize >= grid * warps * SHARED_TURNS {
            share(item, cost, grid as u32);
        }
    }
    params.barriers = shared_memory.barriers() as u32;
    params.buffers = shared_memory.buffers_at(warps) as u32;
    params.buffer_bytes = shared_memory.buffer as u32;
    params.buffers_per_warp = buffers as u32;
    let kernel = mode.decoding_kernel(module, kind);
    let params = match bits {
        Some(bits) => Params::Fields(Box::new(abi::FieldsBatch { tiles: *params, fields: bits.fields(kind) })),
        None => Params::Tiles(params),
    };
    Ok(TilesLaunch {
        module,
        kernel,
        params,
        grid: grid as u32,
        threads: (warps * LANES) as u32,
        shared: shared_memory.bytes(warps, buffers) as u32,
    })
}
