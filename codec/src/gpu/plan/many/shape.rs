//! The division of a launch of the kernels of many vectors: the blocks of a cluster, which share the columns of a matrix, and the warps of each block.
//!
//! The first is a fact of the matrix and of whether vectors are more than 8 or 64, since it decides the order of sums; it is the one that suits an H100 best,
//! where two blocks have room on a multiprocessor. The second changes no result, and is what suits the device. Cycles are estimates, and only their
//! order counts.

use wcodec_kernels::abi::{MANY_FEW_WARPS, MANY_HELPERS, MANY_MORE_HELPERS, MANY_WARPS};

use super::super::Limits;
use super::super::product::{FEW_VECTORS, RESERVED};
use crate::coder::tile::default_tile;
use crate::coder::{BLOCK_COLS, Coder, LANES, Layout, TILE_ROWS};

/// Threads and registers of a multiprocessor.
const THREADS: usize = 2 << 10;
const REGISTERS: usize = 64 << 10;
/// Vectors up to which kernels have few registers for each thread, and how many: two blocks may share a multiprocessor.
const SHARING_VECTORS: usize = 8;
const FEW_REGISTERS: usize = 80;
/// Multiprocessors of an H100, and blocks that it has at a time, one on each of them, by the blocks of a cluster
/// (`cuOccupancyMaxActiveClusters`): those of a cluster lie on one part of the device.
const PROCESSORS: usize = 132;
const PLACES: [usize; 8] = [132, 132, 117, 120, 110, 102, 105, 120];
/// Those blocks where each multiprocessor has up to two.
const PLACES_OF_PAIRS: [usize; 8] = [264, 264, 237, 248, 235, 234, 224, 240];
/// Rows up to which a matrix may be a key or value projection, if it has at least twice as many columns as that, and these are a multiple of its rows.
const NARROW: usize = 1 << 10;
/// Vectors beyond which blocks have few warps, whose sums take half of the registers.
const MANY_VECTORS: usize = 64;
/// Strips that multiply together on tensor cores, where vectors are more than few.
const STRIPS_TOGETHER: usize = 4;

// Cycles of launches that follow each other on an H100 (`int8`, 16 vectors, blocks of 4 to 16 warps, clusters of 1 to 8, matrices of 4 to 117 M weights):
// these three gave their times but for a tenth at commit 5a70bf45. Launches have become shorter since, and
// divisions the same.
/// Of a block beside its steps: until its first chunk is open, and from the last product to the end.
const BLOCK: usize = 18_000;
/// A step, in which each warp decodes and multiplies 64 columns.
const STEP: usize = 750;
/// More of a step, for each warp of the multiprocessor's blocks, of which each has one more, whatever its helpers are.
const WARP: usize = 50;

/// Numbers of vectors of one class have the same clusters; this is one of them.
fn class(vectors: usize) -> usize {
    if vectors <= SHARING_VECTORS {
        vectors
    } else if vectors <= MANY_VECTORS {
        FEW_VECTORS + 1
    } else {
        MANY_VECTORS + 1
    }
}

/// Threads of a block that has so many warps which decode.
pub fn threads(warps: usize, vectors: usize) -> usize {
    let helpers = if vectors > MANY_VECTORS { MANY_MORE_HELPERS } else { MANY_HELPERS };
    (warps + helpers) * LANES
}

/// Warps that decode come in such numbers.
pub fn step(vectors: usize) -> usize {
    if vectors > FEW_VECTORS { STRIPS_TOGETHER } else { 1 }
}

/// A matrix, as far as it decides how its products are divided.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    /// Columns of a tile.
    pub tile: usize,
}

impl Shape {
    /// Whether it has at least twice as many rows as columns. Such matrices are gate and up projections, which come in pairs.
    pub fn is_tall(self) -> bool {
        self.rows >= 2 * self.cols
    }

    /// The square matrix that it may share a launch with if it is narrow: narrow ones are key and value projections, and the square one a query's.
    fn query(self) -> Option<Self> {
        let narrow = self.rows <= NARROW && self.cols >= 2 * NARROW && self.cols.is_multiple_of(self.rows.max(1));
        let tile = default_tile(Coder::Huffman, Layout::Quad, self.cols, self.cols);
        narrow.then_some(Self { rows: self.cols, tile, ..self })
    }

    fn strips(self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    fn tiles(self) -> usize {
        self.cols.div_ceil(self.tile)
    }

    /// Blocks of the clusters that share its columns: those with which it takes an H100 the least time by itself, and with another one of its kind if it
    /// is one of a pair; a narrow one has those of its query where that costs it little. Kernels of few registers, and of more than 64 vectors, may
    /// have others.
    pub fn ranks(self, vectors: usize) -> usize {
        let vectors = class(vectors);
        let best = |of: Self| {
            let most = self.tiles().min(PLACES.len());
            (1..=most).min_by_key(|&ranks| of.cycles(ranks, vectors)).unwrap_or(1)
        };
        let own = best(self);
        let shared = self.query().map_or(own, best);
        // One launch is worth so much time of a launch by itself, and not more.
        let several = vectors.max(FEW_VECTORS + 1);
        let cycles = |ranks| self.cycles(ranks, several);
        if 4 * cycles(shared) <= 5 * cycles(own) { shared } else { own }
    }

    fn cycles(self, ranks: usize, vectors: usize) -> usize {
        let work = |strips| Work { strips, ranks, steps: self.steps(ranks), vectors };
        let time = |work: &Work, warps| work.cycles(warps, beside(warps, vectors), PROCESSORS);
        let least = |work: Work| work.numbers().map(|warps| time(&work, warps)).min().unwrap_or(usize::MAX);
        let alone = least(work(vec![self.strips()]));
        // Some matrices of that form are a pair already.
        if self.is_tall() { 2 * alone + least(work(vec![self.strips(); 2])) } else { alone }
    }

    /// Blocks of 64 columns that a warp decodes, at most.
    pub fn steps(self, ranks: usize) -> usize {
        self.tiles().div_ceil(ranks) * (self.tile / BLOCK_COLS)
    }
}

/// The work of a launch.
#[derive(Clone, Debug)]
pub struct Work {
    /// Strips of each item.
    pub strips: Vec<usize>,
    /// Blocks of a cluster.
    pub ranks: usize,
    /// Blocks of 64 columns that a warp decodes, at most.
    pub steps: usize,
    /// Vectors that the kernel takes.
    pub vectors: usize,
}

impl Work {
    /// Warps that decode, a strip each, with which the launch is expected to take the least time; nothing where there is room for none. A block of so
    /// many has as many `bytes` of shared memory.
    pub fn warps(&self, bytes: impl Fn(usize) -> usize, limits: Limits) -> Option<usize> {
        let room = limits.shared_per_block.min(limits.shared_per_multiprocessor.saturating_sub(RESERVED));
        let fitting = self.numbers().filter(|&warps| bytes(warps) <= room && threads(warps, self.vectors) <= THREADS);
        fitting.min_by_key(|&warps| {
            let beside = beside_with(warps, self.vectors, bytes(warps), limits);
            self.cycles(warps, beside, limits.multiprocessors)
        })
    }

    /// The numbers of warps that a block can have.
    fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let step = step(self.vectors);
        let most = if self.vectors > MANY_VECTORS { MANY_FEW_WARPS } else { MANY_WARPS };
        (1..=most).filter(move |warps| warps.is_multiple_of(step))
    }

    /// Blocks of threads.
    pub fn grid(&self, warps: usize) -> usize {
        self.strips.iter().map(|strips| strips.div_ceil(warps) * self.ranks).sum()
    }

    /// Cycles of the launch on a device with so many multiprocessors, each of which has up to so many blocks at a time.
    fn cycles(&self, warps: usize, beside: usize, processors: usize) -> usize {
        let grid = self.grid(warps);
        // Blocks go to multiprocessors that have none as long as there are some.
        let beside = if grid <= places(self.ranks, 1, processors) { 1 } else { beside };
        let rounds = grid.div_ceil(places(self.ranks, beside, processors));
        rounds * (BLOCK + self.steps * (STEP + WARP * (warps + 1) * beside))
    }
}

/// Blocks of so many warps, one or two, for which a multiprocessor has registers.
fn beside(warps: usize, vectors: usize) -> usize {
    let registers = threads(warps, vectors) * FEW_REGISTERS;
    if vectors <= SHARING_VECTORS && 2 * registers <= REGISTERS { 2 } else { 1 }
}

/// Blocks that share a multiprocessor if each takes so many `bytes` of its shared memory, too: one or two.
pub fn beside_with(warps: usize, vectors: usize, bytes: usize, limits: Limits) -> usize {
    beside(warps, vectors).min(limits.shared_per_multiprocessor / (bytes + RESERVED)).max(1)
}

/// Blocks that a device with so many multiprocessors has at a time, one or two on each.
pub fn places(ranks: usize, beside: usize, processors: usize) -> usize {
    let most = if beside > 1 { PLACES_OF_PAIRS } else { PLACES };
    (most[ranks - 1] * processors / PROCESSORS).max(1)
}
