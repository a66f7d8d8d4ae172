//! The layout of the shared memory of a block of threads that decodes, and how many blocks share a multiprocessor.

use wcodec_kernels::{BLOCK_THREADS, HALF_BLOCK_THREADS, abi};

use super::{Limits, TilesItem};
use crate::coder::LANES;
use crate::error::Result;

/// Shared memory that the system takes of each block.
const RESERVED_SHARED: usize = 1024;
/// Blocks of a multiprocessor, and warps of each at most: what the kernels' registers allow. The first is preferred.
const SHAPES: [(usize, usize); 2] = [(2, HALF_BLOCK_THREADS as usize / LANES), (1, BLOCK_THREADS as usize / LANES)];

/// The layout of the table, the barriers, and one or two buffers for each warp. All sizes and addresses are bytes.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    table: usize,
    /// Bytes of one buffer.
    pub buffer: usize,
    slack: usize,
}

impl SharedMemory {
    /// For any of these planes.
    pub fn new(items: &[TilesItem<'_>]) -> Self {
        let most = |size: &dyn Fn(&TilesItem<'_>) -> usize| items.iter().map(size).max().unwrap_or(0);
        let longest = most(&|item| item.tiles.max_chunk.next_multiple_of(4));
        Self {
            table: most(&|item| 4 << item.tiles.table.bits()),
            // Whole 16 bytes around a chunk, which begins at any multiple of 4.
            buffer: (12 + longest).next_multiple_of(16),
            slack: most(&|item| item.tiles.slack()),
        }
    }

    /// The place of the barriers: the table's, and two for each warp.
    pub fn barriers(self) -> usize {
        abi::TABLE_AT + self.table
    }

    /// The place at which the buffers of so many warps begin.
    pub fn buffers_at(self, warps: usize) -> usize {
        self.barriers() + (8 + 16 * warps).next_multiple_of(16)
    }

    /// All of it.
    pub fn bytes(self, warps: usize, buffers: usize) -> usize {
        // Reads behind a chunk may reach the next buffer: only behind the last one is space left for them.
        self.buffers_at(warps) + warps * buffers * self.buffer + self.slack.next_multiple_of(16)
    }

    /// Blocks on a multiprocessor, warps of each at most, and buffers of each warp.
    ///
    /// Two buffers a warp hide the copies; more warps hide everything else. Two blocks on a multiprocessor change tables independently; one
    /// block of twice as many warps has one table less.
    ///
    /// # Errors
    /// Not even one warp fits.
    pub fn shape(self, limits: Limits) -> Result<(usize, usize, usize)> {
        let options = SHAPES.map(|(blocks, warps)| {
            let budget = (limits.shared_per_multiprocessor / blocks)
                .saturating_sub(RESERVED_SHARED)
                .min(limits.shared_per_block);
            [2, 1].map(|buffers| {
                let fit = (1..=warps).rev().find(|&w| self.bytes(w, buffers) <= budget).unwrap_or(0);
                // A second buffer is worth a fifth of the warps.
                let score = fit * blocks * if buffers == 2 { 5 } else { 4 };
                (score * 2 + usize::from(blocks == 2), blocks, fit, buffers)
            })
        });
        let best = options.into_iter().flatten().reduce(|best, o| if o.0 > best.0 { o } else { best });
        let (score, blocks, most, buffers) = best.expect("there are shapes");
        if score == 0 {
            let what = format!("chunks of {} bytes do not fit the device's shared memory", self.buffer);
            return Err(coded!(SHARED_MEMORY, what).advice("decode on the CPU, or look for a newer wcodec"));
        }
        Ok((blocks, most, buffers))
    }
}
