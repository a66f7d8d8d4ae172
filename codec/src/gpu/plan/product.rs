//! Launches that multiply vectors with weights in tiles, without the weights being written anywhere.

use std::ops::Range;

use wcodec_kernels::abi::{self, OutputKind};
use wcodec_kernels::{BLOCK_THREADS, HALF_BLOCK_THREADS, Mode, Module, Variant};

use super::{Limits, TensorPlan, TilesItem, TilesPlan, many};
use crate::coder::table::MOST_BITS;
use crate::coder::{BLOCK_COLS, Filter, LANES, Layout, TILE_ROWS};
use crate::error::Result;
use crate::gpu::plan::Method;

/// Vectors that a launch is prepared for, at most. Few vectors leave more of shared memory to the weights.
pub const MOST_VECTORS: [usize; 6] = [1, 8, 16, 32, 64, 128];
/// Vectors up to which every matrix that kernels multiply with has a launch. More are for kernels of many vectors alone.
pub const FEW_VECTORS: usize = 16;

/// Shared memory of a block of weights that is decoded before the vectors are there: operands of all lanes, or their symbols.
const STAGED_OPERANDS: usize = LANES * 16 * 4;
const STAGED_SYMBOLS: usize = LANES * 16 * 2;
/// Shared memory of the digits of one vector's elements: of a block's columns, and beside them of each tile (`kernels/cuda/single.h`).
const DIGITS_BLOCK: usize = 4 * BLOCK_COLS;
const DIGITS_SCALED: usize = 32;
/// Shared memory that a device takes of each block's.
pub const RESERVED: usize = 1 << 10;
/// The schedulers of a multiprocessor, which issue its instructions.
const SCHEDULERS: usize = 4;
/// Bytes of a column's factor.
const FACTOR_BYTES: usize = 2;
/// Warps of a block of threads, at most: of kernels with 64 registers, and of those with twice as many.
const MOST_WARPS: [usize; 2] = [BLOCK_THREADS as usize / LANES, HALF_BLOCK_THREADS as usize / LANES];
/// log2 of the copies in which a small table may lie, from the best on. With one for each bank of shared memory lanes do not wait for each other.
const COPIES: [usize; 5] = [5, 4, 3, 2, 0];
/// Bytes of a multiprocessor's tables in all their copies, at most: more of them take longer to write than they save.
const MOST_COPIES: usize = 64 << 10;
/// Bytes of the copies of a block that decodes before the vector is there: it leaves room for others.
const EARLY_COPIES: usize = 16 << 10;
/// Chunks for each multiprocessor up to which what counts is how early they are decoded, and not how many at a time: of several vectors.
const FEW_CHUNKS: usize = 12;
/// Chunks for each multiprocessor up to which two blocks share it, so that one of them works while the other one begins or ends; from there on that is
/// worth less than that a block prepares for all of them.
const MOST_CHUNKS: usize = 80;
/// Chunks for each multiprocessor up to which each has a warp of its own, though not all at a time: blocks of the same launch, and of the next one, take
/// the places of those that end.
const MOST_EARLY: usize = 64;
/// The number of such blocks that a multiprocessor has at a time at least, if there are so many.
const LEAST_EARLY: usize = 3;
/// Warps that a block of one vector's kernels has at least, if there are chunks for them: what it prepares, it prepares for them.
const SOME_WARPS: usize = 8;

/// The places of the results of products with a matrix.
#[derive(Clone, Copy, Debug)]
pub struct ProductOutput {
    /// Address of what is added to the results of the first of the item's rows; 0 for nothing.
    pub bias: u64,
    /// Results of the matrices before this one, for each vector.
    pub before: u32,
    /// Results of this one.
    pub stride: u32,
    /// Place of the first of the item's rows among them.
    pub place: u32,
    /// One of `PART_*`.
    pub part: u32,
    /// The first vector that it is for.
    pub vector: u32,
}

impl ProductOutput {
    /// From a later row on.
    pub fn starting_at(self, row: u32) -> Self {
        let bias = if self.bias == 0 { 0 } else { self.bias + 2 * u64::from(row) };
        Self { bias, place: self.place + row, ..self }
    }
}

/// The mode of the kernels that multiply with a plane, if they take it. It may have any scales.
fn mode(tiles: &TilesPlan) -> Option<Mode> {
    let (shift, filter) = (tiles.tiling.shift, tiles.tiling.filter);
    match tiles.tiling.layout {
        Layout::Pair if shift == 3 => (filter == Filter::None && tiles.table.bits() == MOST_BITS).then_some(Mode::Pair),
        Layout::Pair => of_filter(filter, Mode::Low, Mode::Trellis),
        Layout::Quad => of_filter(filter, Mode::Quad, Mode::QuadTrellis),
        Layout::Byte | Layout::Split => None,
    }
}

/// The mode of planes without a filter, or that of planes with a trellis.
fn of_filter(filter: Filter, none: Mode, trellis: Mode) -> Option<Mode> {
    match filter {
        Filter::None => Some(none),
        Filter::Trellis => Some(trellis),
        Filter::Left | Filter::Up => None,
    }
}

/// The reason why no kernel multiplies vectors with a tensor as it is stored; none if one does.
pub fn can_fuse(plan: &TensorPlan) -> Option<String> {
    let tensor = &plan.tensor;
    let [Method::Tiles(tiles)] = &plan.planes[..] else {
        let coder = tensor.planes.first().map_or("raw", |p| p.form.coding.coder().name());
        return Some(if plan.planes.len() == 1 { format!("coder {coder}") } else { "several planes".to_owned() });
    };
    let Some(scales) = tensor.symbol_scales() else { return Some(format!("scheme {}", tensor.scheme.name())) };
    if tensor.transposed() {
        return Some("stored transposed".to_owned());
    }
    let columns = scales.granularity.columns(plan.matrix.2);
    if scales.granularity.scales_per_row(plan.matrix.2) > 1 && !columns.is_multiple_of(BLOCK_COLS) {
        return Some(format!("a scale for each {columns} columns"));
    }
    match mode(tiles) {
        Some(_) => None,
        None if tiles.tiling.layout == Layout::Byte => Some(format!("layout {}", tiles.tiling.layout)),
        None if tiles.tiling.filter != Filter::None => Some(format!("filter {}", tiles.tiling.filter)),
        None => Some(format!("a table of {} bits with shift 3", tiles.table.bits())),
    }
}

/// Whether kernels of many vectors multiply with a tensor, where a device has room and them: one whose rows have a scale each at most. With a trellis its
/// levels have to be halves, as in every file that is written.
pub fn takes_many(plan: &TensorPlan, tiles: &TilesPlan) -> bool {
    let Some(scales) = plan.tensor.symbol_scales() else { return false };
    let one = scales.granularity.scales_per_row(plan.matrix.2) <= 1;
    match mode(tiles) {
        Some(Mode::Quad) => one,
        Some(Mode::QuadTrellis) => one && scales.offset != 0.0,
        _ => false,
    }
}

/// The most vectors of a launch with a tensor on a device, one of [`MOST_VECTORS`]; 0 where no kernel multiplies with it as it is stored.
pub fn most_vectors(plan: &TensorPlan, limits: Limits) -> usize {
    let [Method::Tiles(tiles)] = &plan.planes[..] else { return 0 };
    if can_fuse(plan).is_some() {
        return 0;
    }
    let has = |&&vectors: &&usize| vectors <= FEW_VECTORS || many::fits(plan, tiles, vectors, limits);
    *MOST_VECTORS.iter().rfind(has).expect("few vectors")
}

/// A work item of products: strips of a matrix to multiply with.
#[derive(Clone, Copy, Debug)]
pub struct ProductTiles<'a> {
    /// `out` is not used; `kind` is the vectors'.
    pub tiles: TilesItem<'a>,
    pub product: ProductOutput,
}

impl ProductTiles<'_> {
    /// Items with the same answer can share a launch.
    pub fn key(&self) -> (Module, Mode, OutputKind, bool) {
        let tiles = self.tiles.tiles;
        (tiles.module(), mode(tiles).expect("`can_fuse` was asked"), self.tiles.kind, tiles.tiling.changes)
    }

    pub fn strips(&self) -> usize {
        self.tiles.strips.1 - self.tiles.strips.0
    }

    /// The item as launches have it: where columns have factors, by which kernels multiply an item's vectors, an item for each matrix.
    pub fn by_matrix(self) -> impl Iterator<Item = Self> {
        let tensor = self.tiles.tensor;
        let (begin, end) = self.tiles.strips;
        let strips = if tensor.tensor.has_columns() { self.tiles.tiles.geometry.strips_per_matrix() } else { end };
        let strips = strips.max(1);
        (begin / strips..end.div_ceil(strips)).map(move |matrix| {
            let part = (begin.max(matrix * strips), end.min((matrix + 1) * strips));
            let product = self.product.starting_at((tensor.first_row(part.0) - tensor.first_row(begin)) as u32);
            Self { tiles: TilesItem { strips: part, ..self.tiles }, product }
        })
    }

    fn tiles(&self) -> usize {
        self.tiles.tiles.geometry.tiles()
    }

    /// Whether one vector is multiplied in integers: a fact of the matrix alone, so that results do not depend on what else is in the
    /// launch. Kernels add halves of levels by tile, and not by block.
    fn in_integers(&self) -> bool {
        let output = self.tiles.params(0).output;
        output.offset == 0 || output.scales_per_row <= 1
    }

    /// Blocks of columns of a tile.
    fn blocks(&self) -> usize {
        self.tiles.tiles.geometry.tile() / BLOCK_COLS
    }

    /// The item as kernels are told of it: its thread blocks, and strips of each.
    ///
    /// # Errors
    /// There are too many blocks, or too many results of so many vectors.
    pub fn params(&self, blocks: Range<usize>, strips: usize, vectors: usize) -> Result<abi::ProductItem> {
        let too_much =
            || coded!(LAUNCH_TOO_LARGE, "too much for one launch").advice("multiply with fewer tensors at once");
        let (Ok(block_begin), Ok(block_end)) = (u16::try_from(blocks.start), u16::try_from(blocks.end)) else {
            return Err(too_much());
        };
        let ProductOutput { bias, before, stride, place, part, vector } = self.product;
        // Kernels count results in 32 bits.
        let results = (before as usize + stride as usize) * vectors + place as usize;
        if results + self.strips() * TILE_ROWS >= u32::MAX as usize {
            return Err(too_much());
        }
        let mut tiles = abi::Tiles { block_begin, block_end, ..self.tiles.params(0) };
        if tiles.output.columns != 0 {
            let before = self.tiles.strips.0 / tiles.strips as usize * tiles.cols as usize;
            tiles.output.columns = tiles.output.columns.wrapping_add((before * FACTOR_BYTES) as u64);
        }
        let minus = match (tiles.output.offset, self.tiles.kind) {
            (0, OutputKind::BF16) => 0xBF00_BF00,
            (0, _) => 0xB800_B800,
            _ => 0,
        };
        let strips = strips as u32;
        Ok(abi::ProductItem { tiles, bias, before, stride, place, strips, minus, part, vector, reserved: 0 })
    }
}

/// The launch's `vector`, as far as items decide it: 1 if the factors of all columns begin at multiples of 16 bytes.
pub fn aligned_factors(items: &[abi::ProductItem]) -> u32 {
    u32::from(items.iter().all(|item| item.tiles.output.columns.is_multiple_of(16)))
}

/// One launch of a multiplying kernel, but for where vectors and results are.
#[derive(Clone, Debug)]
pub struct ProductLaunch {
    pub module: Module,
    pub kernel: String,
    pub params: Box<abi::ProductBatch>,
    pub grid: u32,
    /// Thread blocks of a cluster.
    pub cluster: u32,
    pub threads: u32,
    pub shared: u32,
}

/// The layout of the shared memory of a block of a launch of products.
#[derive(Clone, Copy)]
struct ProductMemory {
    /// log2 of the table's copies.
    copies: usize,
    barriers: usize,
    warps: usize,
    buffers: usize,
    /// Bytes of one buffer.
    buffer: usize,
    slack: usize,
    /// Bytes of the sums of all of a block's chunks.
    sums: usize,
    /// Blocks of weights for each warp.
    staged: usize,
    /// Bytes of the staged blocks, or of the digits of one vector.
    staging: usize,
    /// Bytes of sums of squares.
    squares: usize,
    /// Bytes of a word for each strip.
    arrived: usize,
    /// Bytes of the changes by patches, for each warp.
    corrections: usize,
    /// Bytes of the facts about warps and results that are known before the vector is there.
    known: usize,
}

impl ProductMemory {
    fn buffers_at(&self) -> usize {
        self.barriers + (8 + 16 * self.warps).next_multiple_of(16)
    }

    fn sums_at(&self) -> usize {
        // Reads behind a chunk may reach the next buffer: only behind the last one is space left for them.
        self.buffers_at() + self.warps * self.buffers * self.buffer + self.slack.next_multiple_of(16)
    }

    fn staging_at(&self) -> usize {
        self.sums_at() + self.sums.next_multiple_of(16)
    }

    fn squares_at(&self) -> usize {
        self.staging_at() + self.staging
    }

    fn arrived_at(&self) -> usize {
        self.squares_at() + self.squares
    }

    fn corrections_at(&self) -> usize {
        (self.arrived_at() + self.arrived).next_multiple_of(16)
    }

    fn known_at(&self) -> usize {
        (self.corrections_at() + self.warps * self.corrections).next_multiple_of(16)
    }

    fn bytes(&self) -> usize {
        self.known_at() + self.known
    }
}

/// A configuration of kernels that multiply.
#[derive(Clone, Copy)]
struct ProductConfig {
    /// The first chunk of each warp is decoded before the vectors are there.
    early: bool,
    /// One vector, in integers (`kernels/cuda/single.h`).
    one: bool,
    /// Blocks of threads that a multiprocessor has room for at a time, of this launch or of the next one, which then begin beside those of this one.
    blocks: usize,
    /// Strips of a block of threads.
    per_block: usize,
}

impl ProductConfig {
    fn warps(self, items: &[ProductTiles<'_>], vectors: usize) -> usize {
        let threads = items[0].key().1.multiplying_threads(self.variant(vectors));
        threads.expect("a mode that multiplies") as usize / LANES / self.blocks
    }

    /// The kernel of a mode that goes this way with up to `vectors` vectors.
    fn variant(self, vectors: usize) -> Variant {
        match (self.one, self.early, vectors > 8) {
            (true, true, _) => Variant::OneEarly,
            (true, false, _) => Variant::One,
            (_, true, _) => Variant::EightEarly,
            (_, _, true) => Variant::Sixteen,
            _ => Variant::Eight,
        }
    }

    /// log2 of the copies in which the table may lie, from the best on.
    fn copies(self, items: &[ProductTiles<'_>]) -> impl Iterator<Item = usize> {
        let (module, mode, ..) = items[0].key();
        let bytes = items.iter().map(|j| 4 << j.tiles.tiles.table.bits()).max().unwrap_or(0);
        let most = if self.early { EARLY_COPIES } else { MOST_COPIES / self.blocks };
        // Kernels for several vectors have no copies: they have other things to wait for.
        let several = module == Module::Huffman && mode != Mode::Pair && self.one;
        COPIES.into_iter().filter(move |&copies| copies == 0 || (several && bytes << copies <= most))
    }

    /// Whether the sums of what patches change are added behind all blocks of a chunk, in integers, which have no order. Symbols of a trellis have to
    /// be right before it is undone, what is decoded before the vector is there can have its patches then, too, and rows with several scales have no sum of
    /// a whole chunk.
    fn corrects(self, items: &[ProductTiles<'_>]) -> bool {
        let (_, mode, _, changes) = items[0].key();
        items.iter().all(|j| j.tiles.params(0).output.scales_per_row <= 1)
            && changes
            && matches!(mode, Mode::Low | Mode::Quad)
            && self.one
            && !self.early
    }

    /// Bytes that a block of so many warps, which has `per_block` strips, wants for what is staged, and for digits.
    fn staging(self, items: &[ProductTiles<'_>], warps: usize, per_block: usize) -> usize {
        let of = |item: &ProductTiles<'_>| {
            let (tiles, blocks) = (item.tiles(), item.blocks());
            match (self.one, self.early) {
                (true, true) => warps.min(per_block * tiles) * blocks * STAGED_SYMBOLS,
                (true, false) => tiles * (blocks * DIGITS_BLOCK + DIGITS_SCALED),
                (false, true) => warps * blocks * STAGED_OPERANDS,
                (false, false) => 0,
            }
        };
        items.iter().map(of).max().unwrap_or(0)
    }
}

/// Configurations for some items, from the best on.
fn configs(items: &[ProductTiles<'_>], vectors: usize, limits: Limits) -> Vec<ProductConfig> {
    let chunks: usize = items.iter().map(|j| j.strips() * j.tiles()).sum();
    let strips: usize = items.iter().map(ProductTiles::strips).sum();
    let tiles = items.iter().map(ProductTiles::tiles).max().unwrap_or(1);
    let processors = limits.multiprocessors;
    // Up to two strips for each multiprocessor, blocks have one each, which begin and end by themselves.
    let per_block = |blocks: usize| if strips <= 2 * processors { 1 } else { strips.div_ceil(processors * blocks) };
    let mut configs = Vec::new();
    if vectors == 1 && items.iter().all(ProductTiles::in_integers) {
        // A warp for each chunk: so all are decoded before the vector is there, or nearly all.
        let strips_each = if strips <= 2 * processors { 1 } else { (SOME_WARPS / tiles).max(1) };
        let together = strips.div_ceil(strips_each).div_ceil(processors);
        if strips_each * tiles <= MOST_WARPS[0] && together * strips_each * tiles <= MOST_EARLY {
            let early = |blocks| ProductConfig { early: true, one: true, blocks, per_block: strips_each };
            // The next launch's blocks begin beside these if there is room.
            let at_a_time = together.max(2).min(MOST_WARPS[0] / (strips_each * tiles));
            configs.extend((together.min(LEAST_EARLY)..=at_a_time).rev().map(early));
        }
        // Two blocks have no more strips than one would.
        if chunks <= processors * MOST_CHUNKS && 2 * strips.div_ceil(2 * processors) <= strips.div_ceil(processors) {
            configs.push(ProductConfig { early: false, one: true, blocks: 2, per_block: per_block(2) });
        }
        configs.push(ProductConfig { early: false, one: true, blocks: 1, per_block: per_block(1) });
    }
    if vectors <= 8 && chunks <= processors * FEW_CHUNKS {
        configs.push(ProductConfig { early: true, one: false, blocks: 1, per_block: per_block(1) });
    }
    configs.push(ProductConfig { early: false, one: false, blocks: 1, per_block: per_block(1) });
    configs
}

/// The shared memory of a block of threads, whose table lies in 2^`copies` copies, and its strips; or how many bytes there would have to be.
fn divided(
    items: &[ProductTiles<'_>],
    vectors: usize,
    config: ProductConfig,
    copies: usize,
    limits: Limits,
) -> std::result::Result<(ProductMemory, usize), usize> {
    let most = |of: fn(&TilesPlan) -> usize| items.iter().map(|j| of(j.tiles.tiles)).max().unwrap_or(0);
    let tiles = most(|t| t.geometry.tiles());
    let share = (limits.shared_per_multiprocessor / config.blocks).saturating_sub(RESERVED);
    let limit = share.min(limits.shared_per_block);
    // Sums must not take the space that chunks need.
    let strip_sums = tiles * vectors * TILE_ROWS * 4;
    let most_blocks = items.iter().map(ProductTiles::blocks).max().unwrap_or(0);
    // A warp that has decoded its only chunk leaves the digits in the chunk's place.
    let digits = if config.one && config.early { most_blocks * DIGITS_BLOCK } else { 0 };
    let per_block = config.per_block.min(limit / 3 / strip_sums.max(1)).max(1);
    let chunks = per_block * tiles;
    let rounds = chunks.div_ceil(config.warps(items, vectors)).max(1);
    // As many on each of a multiprocessor's schedulers, if there are that many.
    let warps =
        chunks.div_ceil(rounds).next_multiple_of(SCHEDULERS).min(config.warps(items, vectors)).min(chunks).max(1);
    let mut memory = ProductMemory {
        copies,
        barriers: abi::TABLE_AT + (most(|t| 4 << t.table.bits()) << copies),
        warps,
        buffers: if rounds > 1 { 2 } else { 1 },
        // Whole 16 bytes around a chunk, which begins at any multiple of 4.
        buffer: (12 + most(|t| t.max_chunk.next_multiple_of(4))).next_multiple_of(16).max(digits),
        slack: most(TilesPlan::slack),
        sums: per_block * strip_sums,
        staged: if config.early { most_blocks } else { 0 },
        staging: config.staging(items, warps, per_block),
        squares: most(|t| t.geometry.cols().div_ceil(abi::SQUARES_COLS)) * vectors * 4,
        arrived: if items.iter().any(|j| j.product.part != abi::PART_RESULT) { per_block * 4 } else { 0 },
        corrections: if config.corrects(items) { abi::CHANGES_BYTES } else { 0 },
        known: if config.one && config.early { (warps + per_block * TILE_ROWS) * abi::KNOWN_BYTES } else { 0 },
    };
    while memory.bytes() > limit {
        match (memory.buffers, memory.warps) {
            (2, _) => memory.buffers = 1,
            // Without room for what patches change they are applied before symbols are multiplied.
            (_, 1) if memory.corrections > 0 => memory.corrections = 0,
            (_, 1) => return Err(memory.bytes()),
            // More copies are worth less than warps.
            _ if copies > 0 => return Err(memory.bytes()),
            (_, warps) => {
                memory.warps = warps - 1;
                memory.staging = config.staging(items, memory.warps, per_block);
            }
        }
    }
    // Chunks that are decoded early have to be all there are, or nearly: others come one after the other.
    let least = match config {
        ProductConfig { early: true, one: true, .. } => chunks,
        ProductConfig { early: true, .. } => tiles.min(MOST_WARPS[1]),
        _ => 1,
    };
    if memory.warps < least { Err(memory.bytes()) } else { Ok((memory, per_block)) }
}

/// The launches that do `items`, which have one key, for up to `vectors` vectors, one of [`MOST_VECTORS`]. Which kernels do an item is a fact of its
/// matrix and of the device, whatever else is launched.
pub fn product_launches(items: &[ProductTiles<'_>], vectors: usize, limits: Limits) -> Result<Vec<ProductLaunch>> {
    let (many, others): (Vec<_>, Vec<_>) = items.iter().copied().partition(|item| many::is_for(item, vectors, limits));
    let mut launches = many::launches(&many, vectors, limits)?;
    let others: Vec<_> = others.into_iter().flat_map(ProductTiles::by_matrix).collect();
    for items in others.chunks(abi::MAX_PRODUCT_ITEMS) {
        launches.push(product_launch(items, vectors, limits)?);
    }
    Ok(launches)
}

fn product_launch(items: &[ProductTiles<'_>], vectors: usize, limits: Limits) -> Result<ProductLaunch> {
    let (module, mode, kind, _) = items[0].key();
    let mut wanted = 0;
    let mut tried = configs(items, vectors, limits)
        .into_iter()
        .flat_map(|config| config.copies(items).map(move |copies| (config, copies)));
    let chosen = tried.find_map(|(config, copies)| match divided(items, vectors, config, copies, limits) {
        Ok((memory, per_block)) => Some((config, memory, per_block)),
        Err(bytes) => {
            wanted = bytes;
            None
        }
    });
    let Some((config, memory, per_block)) = chosen else {
        return Err(coded!(SHARED_MEMORY, "products need {wanted} bytes of shared memory for a block")
            .tensor(items[0].tiles.tensor.name())
            .advice("decode the tensor, and multiply with what that gives"));
    };
    let mut params = Box::new(abi::ProductBatch { count: items.len() as u32, ..Default::default() });
    // As many blocks of threads as there is room for at a time, or as many as it takes: so multiprocessors have nearly as much to do, each.
    let least = |item: &ProductTiles<'_>| item.strips().div_ceil(per_block);
    let strips: usize = items.iter().map(ProductTiles::strips).sum();
    let more = (limits.multiprocessors * config.blocks).saturating_sub(items.iter().map(least).sum());
    let mut grid = 0usize;
    for (item, to) in items.iter().zip(&mut params.items) {
        let begin = grid;
        let blocks = (least(item) + more * item.strips() / strips).min(item.strips());
        grid += blocks;
        *to = item.params(begin..grid, item.strips() / blocks, vectors)?;
    }
    params.vector = aligned_factors(&params.items);
    params.barriers = memory.barriers as u32;
    params.buffers = memory.buffers_at() as u32;
    params.buffer_bytes = memory.buffer as u32;
    params.buffers_per_warp = memory.buffers as u32;
    params.sums = memory.sums_at() as u32;
    params.staging = memory.staging_at() as u32;
    params.staged = memory.staged as u32;
    params.squares = memory.squares_at() as u32;
    params.arrived = memory.arrived_at() as u32;
    params.copies = memory.copies as u32;
    params.corrections = if memory.corrections > 0 { memory.corrections_at() as u32 } else { 0 };
    params.known = memory.known_at() as u32;
    let kernel = mode.multiplying_kernel(module, kind, config.variant(vectors)).expect("`can_fuse` was asked");
    Ok(ProductLaunch {
        module: if module == Module::Rans { Module::Ranstimes } else { Module::Huffmantimes },
        kernel,
        params,
        grid: grid as u32,
        cluster: 1,
        threads: (memory.warps * LANES) as u32,
        shared: memory.bytes() as u32,
    })
}
