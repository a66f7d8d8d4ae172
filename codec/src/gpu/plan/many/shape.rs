//! The division of a launch of the kernels of many vectors: the blocks of a cluster, and the parts of each of them, which share the columns of a matrix,
//! and the strips of each block.
//!
//! The first two are facts of the matrix and of whether vectors are more than 8, 16, 32 or 64, since they decide the order of sums; they are those that suit
//! an H100 best, where two blocks have room on a multiprocessor. Those of routed experts depend on their number, too (`routed.rs`). The third changes no
//! result, and is what suits the device. Cycles are estimates, and only their order counts.

use wcodec_kernels::abi::{MANY_FEW_WARPS, MANY_HELPERS, MANY_MORE_HELPERS, MANY_PARTED_VECTORS, MANY_WARPS};

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
// these three gave their times but for a tenth at commit 5a70bf45. Launches have become shorter since.
/// Of a block beside its steps: until its first chunk is open, and from the last product to the end.
const BLOCK: usize = 18_000;
/// A step, in which each warp decodes and multiplies 64 columns.
const STEP: usize = 750;
/// More of a step, for each warp of the multiprocessor's blocks, of which each has one more, whatever its helpers are.
const WARP: usize = 50;
/// A step of each part takes as long for each vector at least, since helpers load them: 12 KiB are on their way together.
const VECTOR: usize = 20;
/// log2 of the most parts of a block.
const MOST_PART_BITS: usize = 2;

/// Threads of a block that has so many strips, and warps for each.
pub fn threads(strips: usize, parts: usize, vectors: usize) -> usize {
    let helpers = if vectors > MANY_VECTORS { MANY_MORE_HELPERS } else { MANY_HELPERS };
    (strips * parts + helpers) * LANES
}

/// Strips of a block come in such numbers.
pub fn step(vectors: usize) -> usize {
    if vectors > FEW_VECTORS { STRIPS_TOGETHER } else { 1 }
}

/// The division of a matrix's columns: all parts of all blocks of a cluster are as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Division {
    /// Blocks of a cluster: 1 to 8.
    pub ranks: usize,
    /// log2 of the parts of each block.
    pub part_bits: usize,
}

impl Default for Division {
    fn default() -> Self {
        Self { ranks: 1, part_bits: 0 }
    }
}

impl Division {
    /// Parts of a block.
    pub fn parts(self) -> usize {
        1 << self.part_bits
    }

    /// All parts.
    pub fn pieces(self) -> usize {
        self.ranks * self.parts()
    }
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

    /// Tiles of a strip.
    pub fn tiles(self) -> usize {
        self.cols.div_ceil(self.tile)
    }

    /// The division of its columns with which it takes an H100 the least time by itself, and with another one of its kind if it is one of a pair; a narrow
    /// one has the division of its query where that costs it little. `vectors` are the most of a kernel; those of others may have other divisions.
    pub fn division(self, vectors: usize) -> Division {
        let best =
            |of: Self| self.divisions(vectors).min_by_key(|&division| of.cycles(division, vectors)).unwrap_or_default();
        let own = best(self);
        let shared = self.query().map_or(own, best);
        // One launch is worth so much time of a launch by itself, and not more: blocks of several parts are few for a narrow matrix.
        let several = vectors.max(FEW_VECTORS);
        let (with, alone) = (self.cycles(shared, several), self.cycles(own, several));
        let worth = if shared.part_bits > 0 { 5 * with <= 8 * alone } else { 4 * with <= 5 * alone };
        if worth { shared } else { own }
    }

    /// All divisions of its columns that kernels can have.
    fn divisions(self, vectors: usize) -> impl Iterator<Item = Division> {
        let most = if vectors <= FEW_VECTORS {
            MOST_PART_BITS
        } else {
            // Three helpers take turns: a ring of fewer slots than that would not tell them apart.
            usize::from(vectors <= MANY_PARTED_VECTORS)
        };
        let all = (0..=most).flat_map(|part_bits| (1..=PLACES.len()).map(move |ranks| Division { ranks, part_bits }));
        all.filter(move |division| division.pieces() <= self.tiles())
    }

    /// The division of the columns of matrices that have the same, and so many strips each, with which one launch of them takes an H100 the least time.
    pub fn division_of_all(self, strips: &[usize], vectors: usize) -> Division {
        let time = |division: Division| {
            let work = Work { strips: strips.to_vec(), division, steps: self.steps(division), vectors };
            work.numbers()
                .map(|strips| work.flowing_cycles(strips, beside(strips, division.parts(), vectors), PROCESSORS))
                .min()
        };
        self.divisions(vectors).min_by_key(|&division| time(division)).unwrap_or_default()
    }

    fn cycles(self, division: Division, vectors: usize) -> usize {
        let work = |strips| Work { strips, division, steps: self.steps(division), vectors };
        let time = |work: &Work, strips| work.cycles(strips, beside(strips, division.parts(), vectors), PROCESSORS);
        let least = |work: Work| work.numbers().map(|strips| time(&work, strips)).min().unwrap_or(usize::MAX);
        let alone = least(work(vec![self.strips()]));
        // Some matrices of that form are a pair already.
        if self.is_tall() { 2 * alone + least(work(vec![self.strips(); 2])) } else { alone }
    }

    /// Blocks of 64 columns that a warp decodes, at most.
    pub fn steps(self, division: Division) -> usize {
        self.tiles().div_ceil(division.pieces()) * (self.tile / BLOCK_COLS)
    }
}

/// The work of a launch.
#[derive(Clone, Debug)]
pub struct Work {
    /// Strips of each item.
    pub strips: Vec<usize>,
    /// The division of the columns.
    pub division: Division,
    /// Blocks of 64 columns that a warp decodes, at most.
    pub steps: usize,
    /// Vectors that the kernel takes.
    pub vectors: usize,
}

impl Work {
    /// Strips of a block with which the launch is expected to take the least time; nothing where there is room for none. A block of so many has as many
    /// `bytes` of shared memory.
    pub fn strips_of_a_block(&self, bytes: impl Fn(usize) -> usize, limits: Limits) -> Option<usize> {
        self.best_strips(bytes, limits, Self::cycles)
    }

    /// As [`strips_of_a_block`](Self::strips_of_a_block), for a launch of so many blocks that they do not begin and end together.
    pub fn strips_of_a_flowing_block(&self, bytes: impl Fn(usize) -> usize, limits: Limits) -> Option<usize> {
        self.best_strips(bytes, limits, Self::flowing_cycles)
    }

    fn best_strips(
        &self,
        bytes: impl Fn(usize) -> usize,
        limits: Limits,
        cycles: impl Fn(&Self, usize, usize, usize) -> usize,
    ) -> Option<usize> {
        let room = limits.shared_per_block.min(limits.shared_per_multiprocessor.saturating_sub(RESERVED));
        let parts = self.division.parts();
        let fits = |&strips: &usize| bytes(strips) <= room && threads(strips, parts, self.vectors) <= THREADS;
        self.numbers().filter(fits).min_by_key(|&strips| {
            let beside = beside_with(strips, parts, self.vectors, bytes(strips), limits);
            cycles(self, strips, beside, limits.multiprocessors)
        })
    }

    /// The numbers of strips that a block can have.
    fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let step = step(self.vectors);
        let most = if self.vectors > MANY_VECTORS { MANY_FEW_WARPS } else { MANY_WARPS };
        (1..=most / self.division.parts()).filter(move |strips| strips.is_multiple_of(step))
    }

    /// Blocks of threads.
    pub fn grid(&self, strips: usize) -> usize {
        self.strips.iter().map(|all| all.div_ceil(strips) * self.division.ranks).sum()
    }

    /// Cycles of the launch on a device with so many multiprocessors, each of which has up to so many blocks at a time.
    fn cycles(&self, strips: usize, beside: usize, processors: usize) -> usize {
        let (grid, ranks) = (self.grid(strips), self.division.ranks);
        // Blocks go to multiprocessors that have none as long as there are some.
        let beside = if grid <= places(ranks, 1, processors) { 1 } else { beside };
        let rounds = grid.div_ceil(places(ranks, beside, processors));
        rounds * (BLOCK + self.steps * self.step_cycles(strips, beside))
    }

    /// As [`cycles`](Self::cycles), where there are several rounds of blocks: these have no common beginning and end, and a block begins beside the steps of
    /// another one.
    fn flowing_cycles(&self, strips: usize, beside: usize, processors: usize) -> usize {
        let (grid, at_a_time) = (self.grid(strips), places(self.division.ranks, beside, processors));
        if grid <= 2 * at_a_time {
            return self.cycles(strips, beside, processors);
        }
        grid * (BLOCK / beside + self.steps * self.step_cycles(strips, beside)) / at_a_time
    }

    /// Cycles of a step.
    fn step_cycles(&self, strips: usize, beside: usize) -> usize {
        let parts = self.division.parts();
        let decoding = STEP + WARP * (strips * parts + 1) * beside;
        let loading = if self.vectors > MANY_PARTED_VECTORS { 0 } else { VECTOR * self.vectors * parts };
        decoding.max(loading)
    }
}

/// Blocks of so many strips, one or two, for which a multiprocessor has registers.
fn beside(strips: usize, parts: usize, vectors: usize) -> usize {
    let registers = threads(strips, parts, vectors) * FEW_REGISTERS;
    if vectors <= SHARING_VECTORS && 2 * registers <= REGISTERS { 2 } else { 1 }
}

/// Blocks that share a multiprocessor if each takes so many `bytes` of its shared memory, too: one or two.
pub fn beside_with(strips: usize, parts: usize, vectors: usize, bytes: usize, limits: Limits) -> usize {
    beside(strips, parts, vectors).min(limits.shared_per_multiprocessor / (bytes + RESERVED)).max(1)
}

/// Blocks that a device with so many multiprocessors has at a time, one or two on each.
pub fn places(ranks: usize, beside: usize, processors: usize) -> usize {
    let most = if beside > 1 { PLACES_OF_PAIRS } else { PLACES };
    (most[ranks - 1] * processors / PROCESSORS).max(1)
}
