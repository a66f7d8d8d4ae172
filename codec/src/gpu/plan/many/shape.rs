//! The division of a launch of the kernels of many vectors: the blocks of a cluster, which share the columns of a matrix, and the warps of each block.
//!
//! The first is a fact of the matrix, since it decides the order of sums; it is the one that suits an H100 best. The second changes no result, and is
//! what suits the device. Cycles are estimates, and only their order counts.

use wcodec_kernels::abi::{MANY_HELPERS, MANY_WARPS};

use super::super::Limits;
use super::super::product::{FEW_VECTORS, RESERVED};
use crate::coder::LANES;

/// Threads of a multiprocessor.
const THREADS: usize = 2 << 10;
/// Multiprocessors of an H100, and blocks that it has at a time, one on each of them, by the blocks of a cluster
/// (`cuOccupancyMaxActiveClusters`): those of a cluster lie on one part of the device.
const PROCESSORS: usize = 132;
const PLACES: [usize; 8] = [132, 132, 117, 120, 110, 102, 105, 120];
/// Strips that multiply together on tensor cores, where vectors are more than few.
const STRIPS_TOGETHER: usize = 4;

// Cycles of launches that follow each other on an H100 (`int8`, 16 vectors, blocks of 4 to 16 warps, clusters of 1 to 8, matrices of 4 to 117 M weights):
// these three gave their times but for a tenth at commit 5a70bf45. Launches have become shorter since, and
// divisions the same.
/// Of a block beside its steps: until its first chunk is open, and from the last product to the end.
const BLOCK: usize = 18_000;
/// A step, in which each warp decodes and multiplies 64 columns.
const STEP: usize = 800;
/// More of a step, for each warp of the block.
const WARP: usize = 50;

/// Warps that decode come in such numbers.
pub fn step(vectors: usize) -> usize {
    if vectors > FEW_VECTORS { STRIPS_TOGETHER } else { 1 }
}

/// A matrix, as far as it decides how its products are divided.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub strips: usize,
    /// Tiles of a strip, and blocks of 64 columns of a tile.
    pub tiles: usize,
    pub blocks: usize,
    /// Whether it has at least twice as many rows as columns. Such matrices are gate and up projections, which come in pairs.
    pub tall: bool,
}

impl Shape {
    /// Blocks of the clusters that share its columns: those with which it takes an H100 the least time by itself, and with another one of its kind if it
    /// is one of a pair.
    pub fn ranks(self) -> usize {
        let most = self.tiles.min(PLACES.len());
        (1..=most).min_by_key(|&ranks| self.cycles(ranks)).unwrap_or(1)
    }

    fn cycles(self, ranks: usize) -> usize {
        let work = |strips| Work { strips, ranks, steps: self.steps(ranks), vectors: FEW_VECTORS + 1 };
        let least = |work: Work| work.numbers().map(|warps| work.cycles(warps, PROCESSORS)).min().unwrap_or(usize::MAX);
        let alone = least(work(vec![self.strips]));
        // Some matrices of that form are a pair already.
        if self.tall { 2 * alone + least(work(vec![self.strips; 2])) } else { alone }
    }

    /// Blocks of 64 columns that a warp decodes, at most.
    pub fn steps(self, ranks: usize) -> usize {
        self.tiles.div_ceil(ranks) * self.blocks
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
        let fitting = self.numbers().filter(|&warps| bytes(warps) <= room && (warps + MANY_HELPERS) * LANES <= THREADS);
        fitting.min_by_key(|&warps| self.cycles(warps, limits.multiprocessors))
    }

    /// The numbers of warps that a block can have.
    fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let step = step(self.vectors);
        (1..=MANY_WARPS).filter(move |warps| warps.is_multiple_of(step))
    }

    /// Blocks of threads.
    pub fn grid(&self, warps: usize) -> usize {
        self.strips.iter().map(|strips| strips.div_ceil(warps) * self.ranks).sum()
    }

    /// Cycles of the launch on a device with so many multiprocessors, each of which has one block at a time.
    fn cycles(&self, warps: usize, processors: usize) -> usize {
        let rounds = self.grid(warps).div_ceil(places(self.ranks, processors));
        rounds * (BLOCK + self.steps * (STEP + WARP * warps))
    }
}

/// Blocks that a device with so many multiprocessors has at a time.
pub fn places(ranks: usize, processors: usize) -> usize {
    (PLACES[ranks - 1] * processors / PROCESSORS).max(1)
}
