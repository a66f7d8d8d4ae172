//! Sizes of the thread blocks of kernels of many vectors: the number of warps with which a launch is expected to take the least time.
//!
//! Blocks of few warps leave room for others on their multiprocessor: for those of the same launch, and for those of the next one, which begin beside
//! them. Blocks of many warps stage the vectors for more strips at once. Cycles here are estimates, and only their order counts: the number of warps
//! changes no result.

use wcodec_kernels::abi::{MANY_HELPERS, MANY_WARPS};

use super::super::Limits;
use super::super::product::{FEW_VECTORS, RESERVED};
use crate::coder::LANES;

/// Registers and threads of a multiprocessor.
const REGISTERS: usize = 64 << 10;
const THREADS: usize = 2 << 10;
/// Registers of a thread: the most that let a block of all warps run, in steps of 8.
const THREAD_REGISTERS: usize = REGISTERS / ((MANY_WARPS + MANY_HELPERS) * LANES) / 8 * 8;
/// Blocks on a multiprocessor that are counted on, at most.
const MOST_TOGETHER: usize = 3;
/// Clusters of more than two blocks, one on a multiprocessor, leave over one of this many multiprocessors: an H200 has places for 120 blocks on 132.
/// Where two have a place on each, they leave over none, since parts of a device have even numbers of multiprocessors.
const ONE_LEFT: usize = 11;
/// Strips that multiply together on tensor cores, where vectors are more than few.
const STRIPS_TOGETHER: usize = 4;

// Clocks of blocks on an H100, `int8`, medians of traces with 16 and 64 vectors; the parts of a step come from counted instructions.
/// Cycles from a block's start until its first chunk is open.
const START: usize = 5_000;
/// From the end of a block's first warp to the first product of the block that takes its place.
const HANDOVER: usize = 11_000;
/// A step of a warp that has the multiprocessor to itself: symbols, operands and products of 64 columns wait for each other.
const LATENCY: usize = 450;
/// Part of a step that each warp of a multiprocessor takes from the others, with up to 32 vectors and with 64.
const WARP: [usize; 2] = [105, 118];
/// Part of a step that each block's helpers take, beside one for each vector.
const HELPERS: usize = 32;

/// Warps that decode come in such numbers.
pub fn step(vectors: usize) -> usize {
    if vectors > FEW_VECTORS { STRIPS_TOGETHER } else { 1 }
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
        let numbers = (1..=MANY_WARPS).filter(|warps| warps.is_multiple_of(step(self.vectors)));
        let times = numbers.filter_map(|warps| {
            let together = together(warps, bytes(warps), limits)?;
            Some((self.cycles(warps, together, limits), warps))
        });
        times.min().map(|(_, warps)| warps)
    }

    /// Blocks of threads.
    pub fn grid(&self, warps: usize) -> usize {
        self.strips.iter().map(|strips| strips.div_ceil(warps) * self.ranks).sum()
    }

    /// Cycles from the end of the launch before it to its own, where such launches follow each other and multiprocessors have room for `together`
    /// blocks each.
    fn cycles(&self, warps: usize, together: usize, limits: Limits) -> usize {
        let (grid, processors) = (self.grid(warps).max(1), processors(self.ranks, together, limits));
        let places = processors * together;
        let (rounds, last) = ((grid - 1) / places, (grid - 1) % places + 1);
        // The multiprocessor with the most blocks ends last.
        let most = last.div_ceil(processors);
        let block = warps * WARP[usize::from(self.vectors > 32)] + HELPERS + self.vectors;
        let round = |blocks: usize| self.steps * LATENCY.max(blocks * block);
        // Blocks of the next launch begin where there is a place beside those that end last.
        let ending = (last - (most - 1) * processors) * most;
        let waiting = grid - grid.min(places - ending);
        rounds * (round(together) + HANDOVER) + round(most) + START * waiting / grid
    }
}

/// Blocks of so many warps that a multiprocessor has room for at a time; nothing where it has none.
pub fn together(warps: usize, bytes: usize, limits: Limits) -> Option<usize> {
    let threads = (warps + MANY_HELPERS) * LANES;
    let shared =
        if bytes > limits.shared_per_block { 0 } else { limits.shared_per_multiprocessor / (bytes + RESERVED) };
    let room = shared.min(REGISTERS / (threads * THREAD_REGISTERS)).min(THREADS / threads);
    (room > 0).then_some(room.min(MOST_TOGETHER))
}

/// Multiprocessors that clusters of so many blocks find places on.
pub fn processors(ranks: usize, together: usize, limits: Limits) -> usize {
    let all = limits.multiprocessors;
    if ranks > 2 && together == 1 { all - all / ONE_LEFT } else { all }
}
