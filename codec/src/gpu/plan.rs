//! What a device needs of a tensor: one run of bytes, its *image*, and what the kernels are told about it. No device is
//! touched here, so that the emulator's tests run the same plans.

use std::ops::Range;
use std::sync::Arc;

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind};

use crate::coder::table::Table;
use crate::coder::tile::{OFFSET_UNIT, TileGeometry};
use crate::coder::zstd::frame_place;
use crate::coder::{BLOCK_COLS, Coder, Filter, LANES, Layout, TILE_ROWS};
use crate::decode::Parts;
use crate::error::{Error, Result};
use crate::scheme::int8::Granularity;
use crate::tensor::Dtype;

/// Parts of an image begin at multiples of this: bulk copies want 16, and whole sectors of 32 bytes are read faster.
const ALIGN: usize = 128;

/// Where the parts of a tensor lie in its image, bytes.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub scales: Range<usize>,
    pub offsets: Range<usize>,
    pub data: Range<usize>,
    pub side: Range<usize>,
    /// Length, a multiple of 128. Kernels that copy whole 16 bytes read up to 15 bytes behind a part, never behind this.
    pub len: usize,
}

impl Image {
    fn new(parts: &Parts) -> Self {
        let mut len = 0;
        let mut place = |bytes: usize| {
            let begin = len;
            // Even an empty part has 16 bytes that can be read.
            len = (begin + bytes + 16).next_multiple_of(ALIGN);
            begin..begin + bytes
        };
        let (scales, offsets) = (place(parts.scales.len()), place(parts.offsets.len()));
        let (data, side) = (place(parts.data.len()), place(parts.side.len()));
        Self { scales, offsets, data, side, len }
    }

    /// Writes the image of `parts` to `out`, which has its length.
    pub fn fill(&self, parts: &Parts, out: &mut [u8]) {
        out.fill(0);
        out[self.scales.clone()].copy_from_slice(&parts.scales);
        out[self.offsets.clone()].copy_from_slice(&parts.offsets);
        out[self.data.clone()].copy_from_slice(&parts.data);
        out[self.side.clone()].copy_from_slice(&parts.side);
    }
}

/// How a tensor is decoded.
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
    },
    /// The bytes as they are.
    Raw,
}

/// What the kernels are told about a plane in tiles.
#[derive(Clone, Debug)]
pub struct TilesPlan {
    pub coder: Coder,
    pub layout: Layout,
    pub shift: u32,
    pub filter: Filter,
    pub geometry: TileGeometry,
    pub max_chunk: usize,
    /// Number of its table in the container, which with the layout names the device's table.
    pub table_number: usize,
    pub table: Arc<Table>,
}

/// A tensor, planned.
#[derive(Clone, Debug)]
pub struct TensorPlan {
    pub name: String,
    pub dtype: Dtype,
    pub elements: usize,
    /// Matrices, rows, columns.
    pub matrix: (usize, usize, usize),
    pub transposed: bool,
    pub granularity: Option<Granularity>,
    pub image: Image,
    pub method: Method,
    pub data_offset: u64,
}

impl TensorPlan {
    /// Plans the decoding of a tensor whose parts were checked.
    pub fn new(parts: &Parts) -> Result<Self> {
        let (count, rows, cols) = parts.matrix;
        let too_large = || Error::unsupported("a matrix with more rows or columns than the kernels count");
        if count.checked_mul(rows).is_none_or(|n| n >= 1 << 31) || cols >= 1 << 31 {
            return Err(too_large().tensor(&parts.name).advice("decode it on the CPU"));
        }
        let method = match parts.coder {
            Coder::Rans | Coder::Huffman => {
                let (table_number, table) =
                    parts.table.clone().ok_or_else(|| Error::format("a plane without 'table'"))?;
                let geometry = TileGeometry::new(count, rows, cols, parts.tile)?;
                let blocks = geometry.padded_elements() / (TILE_ROWS * BLOCK_COLS);
                if blocks >= 1 << 31 || parts.data.len() / OFFSET_UNIT >= u32::MAX as usize {
                    return Err(too_large().tensor(&parts.name).advice("decode it on the CPU"));
                }
                Method::Tiles(TilesPlan {
                    coder: parts.coder,
                    layout: parts.layout,
                    shift: parts.shift,
                    filter: parts.filter,
                    geometry,
                    max_chunk: parts.max_chunk,
                    table_number,
                    table,
                })
            }
            Coder::Zstd => Method::Zstd {
                chunk: parts.zstd_chunk,
                frames: parts.elements.div_ceil(parts.zstd_chunk.max(1)),
                filter: parts.filter,
            },
            _ => Method::Raw,
        };
        Ok(Self {
            name: parts.name.clone(),
            dtype: parts.dtype,
            elements: parts.elements,
            matrix: parts.matrix,
            transposed: parts.transposed,
            granularity: parts.granularity,
            image: Image::new(parts),
            method,
            data_offset: parts.data_offset,
        })
    }

    /// Length that an image of parts of these lengths has at most.
    pub fn image_bound(parts: impl Iterator<Item = usize>) -> usize {
        // Four parts, some of which may be missing here.
        parts.map(|n| n + 16 + ALIGN).sum::<usize>() + 4 * ALIGN
    }

    /// Whether the elements are symbols with scales.
    pub fn quantized(&self) -> bool {
        self.granularity.is_some()
    }

    /// The kind of output that gives this tensor as `dtype`; `I8` stands for the symbols of a quantized tensor.
    pub fn output(&self, dtype: Dtype) -> Result<OutputKind> {
        match (self.quantized(), dtype) {
            (true, Dtype::F16) => Ok(OutputKind::F16),
            (true, Dtype::BF16) => Ok(OutputKind::BF16),
            (true, Dtype::F32) => Ok(OutputKind::F32),
            (true, Dtype::I8) => Ok(OutputKind::Int8),
            (false, d) if d == self.dtype => Ok(OutputKind::Int8),
            (true, d) => {
                Err(Error::input(format!("scheme int8 decodes to F32, F16, BF16 or, as symbols, to I8, not {d}"))
                    .tensor(&self.name))
            }
            (false, d) => {
                Err(Error::input(format!("a {} tensor of scheme raw cannot be read as {d}", self.dtype))
                    .tensor(&self.name))
            }
        }
    }

    /// Bytes that decoding to `kind` writes.
    pub fn output_bytes(&self, kind: OutputKind) -> usize {
        self.elements * kind.bytes()
    }

    /// Rows of all matrices.
    pub fn rows(&self) -> usize {
        self.matrix.0 * self.matrix.1
    }

    /// Where the elements of `rows` go when they are written to `out`, which begins with the first of them.
    pub fn place(&self, image: u64, out: u64, kind: OutputKind) -> abi::Output {
        let (_, rows, cols) = self.matrix;
        let (row_stride, column_stride) = if self.transposed { (1, rows) } else { (cols, 1) };
        let quantized = kind != OutputKind::Int8;
        abi::Output {
            out,
            row_stride: row_stride as u64,
            column_stride: column_stride as u64,
            scales: if quantized { image + self.image.scales.start as u64 } else { 0 },
            scales_per_row: self.granularity.map_or(0, |g| g.scales_per_row(cols)) as u32,
            scale_columns: self.granularity.map_or(cols.max(1), |g| g.columns(cols)) as u32,
        }
    }

    /// Whether rows of an output at `out` begin at multiples of 16 bytes, columns follow each other, and kernels may count the bytes of
    /// eight rows in 32 bits.
    pub fn is_vector(&self, out: u64, kind: OutputKind) -> bool {
        let row = self.matrix.2 * kind.bytes();
        !self.transposed && out.is_multiple_of(16) && row.is_multiple_of(16) && row < 1 << 29
    }
}

/// What the compiler of the kernels assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Layout `byte`, tables of 12 bits, no filter.
    Byte,
    /// Layout `pair` with shift 3, tables of 12 bits, no filter.
    Pair,
    /// Whatever the format allows.
    General,
}

impl TilesPlan {
    /// The most special kernel that decodes this plane.
    pub fn mode(&self) -> Mode {
        match (self.layout, self.shift) {
            _ if self.filter != Filter::None || self.table.bits() != 12 => Mode::General,
            (Layout::Byte, _) => Mode::Byte,
            (Layout::Pair, 3) => Mode::Pair,
            _ => Mode::General,
        }
    }

    /// The module of its kernels.
    pub fn module(&self) -> Module {
        if self.coder == Coder::Rans { Module::Rans } else { Module::Huffman }
    }

    /// Room behind a chunk, bytes, into which a damaged stream may run on. rANS: four steps of 32 words, from two
    /// bytes behind the end. Huffman: 12 bits for each symbol of a lane, and the window.
    fn slack(&self) -> usize {
        let blocks = self.geometry.tile() / BLOCK_COLS;
        match (self.coder, self.layout) {
            (Coder::Rans, _) => 4 * LANES * 2 + 16,
            (_, Layout::Byte) => (blocks * 32 * 12).div_ceil(32) * 4 + 16,
            (_, Layout::Pair) => (blocks * 16 * 12).div_ceil(32) * 4 + 16,
        }
    }
}

/// Strips of a plane to decode to one place.
#[derive(Clone, Copy, Debug)]
pub struct TilesJob<'a> {
    pub tensor: &'a TensorPlan,
    pub tiles: &'a TilesPlan,
    /// Address of the tensor's image.
    pub image: u64,
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

impl TilesJob<'_> {
    /// Jobs with the same answer can share a launch.
    pub fn key(&self) -> (Module, Mode, OutputKind) {
        (self.tiles.module(), self.tiles.mode(), self.kind)
    }

    fn item(&self, cost_begin: u32) -> abi::Tiles {
        let (t, g) = (self.tiles, &self.tiles.geometry);
        let (begin, end) = self.strips;
        let blocks = g.tile() / BLOCK_COLS;
        abi::Tiles {
            data: self.image + self.tensor.image.data.start as u64,
            offsets: self.image + self.tensor.image.offsets.start as u64,
            side: self.image + self.tensor.image.side.start as u64,
            table: self.table,
            status: self.status,
            row_begin: first_row(g, begin) as u64,
            output: self.tensor.place(self.image, self.out, self.kind),
            data_units: (self.tensor.image.data.len() / OFFSET_UNIT) as u32,
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
            layout: if t.layout == Layout::Pair { 1 } else { 0 },
            shift: t.shift as u8,
            filter: filter_code(t.filter),
            vector: u8::from(self.tensor.is_vector(self.out, self.kind)),
            block_begin: 0,
            block_end: 0,
            reserved: 0,
            by_tiles: abi::Divisor::new(g.tiles() as u32),
            by_strips: abi::Divisor::new(g.strips_per_matrix() as u32),
            shared_begin: 0,
            shared_end: 0,
        }
    }
}

/// The strip that begins with `row`.
pub fn strip_of(g: &TileGeometry, row: usize) -> usize {
    let per = g.rows().max(1);
    row / per * g.strips_per_matrix() + (row % per).div_ceil(TILE_ROWS)
}

/// The parts of a tensor's image that are read when `rows` are decoded, which begin and end with strips: whole units of
/// [`ALIGN`] bytes, in which lies what kernels read around a part.
pub fn needed(plan: &TensorPlan, image: &[u8], rows: &Range<usize>) -> Vec<Range<usize>> {
    let parts = &plan.image;
    if rows.len() == plan.rows() {
        let all = 0..parts.len;
        return vec![all];
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let elements = rows.start * plan.matrix.2..rows.end * plan.matrix.2;
    let entry = |at: usize, bytes: usize| &image[parts.offsets.start + at * bytes..][..bytes];
    let (offsets, data, side) = match &plan.method {
        Method::Tiles(t) => {
            let g = &t.geometry;
            let strips = strip_of(g, rows.start)..strip_of(g, rows.end);
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
        Method::Raw => (0..0, elements, 0..0),
    };
    let within = |part: &Range<usize>, of: Range<usize>| part.start + of.start..part.start + of.end;
    [parts.scales.clone(), within(&parts.offsets, offsets), within(&parts.data, data), within(&parts.side, side)]
        .into_iter()
        .filter(|r| !r.is_empty())
        // Up to 15 bytes behind a part are read, too.
        .map(|r| r.start / ALIGN * ALIGN..(r.end + 16).next_multiple_of(ALIGN).min(parts.len))
        .collect()
}

/// The row, counted through all matrices, that a strip begins with.
pub fn first_row(g: &TileGeometry, strip: usize) -> usize {
    let per = g.strips_per_matrix().max(1);
    strip / per * g.rows() + strip % per * TILE_ROWS
}

/// The kernels' number of a filter.
pub fn filter_code(filter: Filter) -> u8 {
    match filter {
        Filter::Left => abi::FILTER_LEFT,
        Filter::Up => abi::FILTER_UP,
        _ => abi::FILTER_NONE,
    }
}

/// What of a device decides how a launch is cut.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub multiprocessors: usize,
    /// Shared memory that one block can have, bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_multiprocessor: usize,
}

/// Shared memory that the system takes of each block.
const RESERVED_SHARED: usize = 1024;
/// Blocks of a multiprocessor, and warps of each at most: what the kernels' registers allow. The first is preferred.
const SHAPES: [(usize, usize); 2] = [(2, 16), (1, 32)];

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
    pub params: Box<abi::TilesBatch>,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
}

/// The launches that do `jobs`, which have one key.
pub fn tiles_launches(jobs: &[TilesJob<'_>], limits: Limits) -> Result<Vec<TilesLaunch>> {
    jobs.chunks(abi::MAX_ITEMS).map(|jobs| tiles_launch(jobs, limits)).collect()
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

fn tiles_launch(jobs: &[TilesJob<'_>], limits: Limits) -> Result<TilesLaunch> {
    let (module, mode, kind) = jobs[0].key();
    let mut params = Box::new(abi::TilesBatch { count: jobs.len() as u32, ..Default::default() });
    let (mut cost, mut chunks) = (0u32, 0usize);
    let (mut table, mut longest, mut slack) = (0, 0, 0);
    for (job, item) in jobs.iter().zip(&mut params.items) {
        *item = job.item(cost);
        let n = item.chunk_end - item.chunk_begin;
        chunks += n as usize;
        cost = n
            .checked_mul(item.blocks)
            .and_then(|c| cost.checked_add(c))
            .filter(|_| item.chunk_end <= i32::MAX as u32)
            .ok_or_else(|| Error::input("too much for one launch").advice("decode fewer tensors at once"))?;
        table = table.max(4usize << item.bits);
        longest = longest.max(job.tiles.max_chunk.next_multiple_of(4));
        slack = slack.max(job.tiles.slack());
    }
    // Whole 16 bytes around a chunk, which begins at any multiple of 4.
    let buffer = (12 + longest).next_multiple_of(16);
    let barriers = abi::TABLE_AT + table;
    // Barriers: the table's, and two for each warp.
    let buffers_at = |warps: usize| barriers + (8 + 16 * warps).next_multiple_of(16);
    // What is read behind a chunk may be of the next buffer: only behind the last one is there room for it.
    let shared =
        |warps: usize, buffers: usize| buffers_at(warps) + warps * buffers * buffer + slack.next_multiple_of(16);
    // Two buffers a warp hide the copies; more warps hide everything else. Two blocks on a multiprocessor change tables
    // independently; one block of twice as many warps has one table less.
    let options = SHAPES.map(|(blocks, warps)| {
        let budget =
            (limits.shared_per_multiprocessor / blocks).saturating_sub(RESERVED_SHARED).min(limits.shared_per_block);
        [2, 1].map(|buffers| {
            let fit = (1..=warps).rev().find(|&w| shared(w, buffers) <= budget).unwrap_or(0);
            // A second buffer is worth a fifth of the warps.
            let score = fit * blocks * if buffers == 2 { 5 } else { 4 };
            (score * 2 + usize::from(blocks == 2), blocks, fit, buffers)
        })
    });
    let (score, blocks, most, buffers) =
        options.into_iter().flatten().reduce(|best, o| if o.0 > best.0 { o } else { best }).expect("there are shapes");
    if score == 0 {
        return Err(Error::device(format!("chunks of {buffer} bytes do not fit the device's shared memory")));
    }
    // Few chunks: one block a multiprocessor, which loads one table and leaves room for the next launch.
    let blocks = if chunks <= limits.multiprocessors * FEW_WARPS.min(most) { 1 } else { blocks };
    let grid = chunks.clamp(1, limits.multiprocessors * blocks);
    let warps = chunks.div_ceil(grid).clamp(1, most);
    params.cost = cost;
    for item in &mut params.items[..jobs.len()] {
        if (item.chunk_end - item.chunk_begin) as usize >= grid * warps * SHARED_TURNS {
            share(item, cost, grid as u32);
        }
    }
    params.barriers = barriers as u32;
    params.buffers = buffers_at(warps) as u32;
    params.buffer_bytes = buffer as u32;
    params.buffers_per_warp = buffers as u32;
    let coder = module.name();
    let mode = match mode {
        Mode::Byte => "byte",
        Mode::Pair => "pair",
        Mode::General => "general",
    };
    Ok(TilesLaunch {
        module,
        kernel: format!("wcodec_{coder}_{mode}_{}", kind.name()),
        params,
        grid: grid as u32,
        threads: (warps * LANES) as u32,
        shared: shared(warps, buffers) as u32,
    })
}
