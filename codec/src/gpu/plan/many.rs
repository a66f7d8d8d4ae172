//! Launches of the kernels of many vectors (`kernels/cuda/many.h`): which matrices they are for, and how their blocks of threads lie.
//!
//! A block has a warp for each of its strips and each of its parts of the columns, and the blocks of a cluster share the columns of the same strips. How
//! many parts there are decides the order of sums: it is a fact of the matrix and of whether vectors are more than 8, 16, 32 or 64, whereas the number of
//! strips, which decides nothing, is what suits the device. Routed experts are divided otherwise ([`routed`]).

use wcodec_kernels::abi::{
    self, MANY_BARRIERS_AT, MANY_GROUP, MANY_LEAST_SLOTS, MANY_MOST_SLOTS, MANY_RING_AT, MANY_RING_VECTORS,
};
use wcodec_kernels::{Module, Variant};

use self::shape::{Shape, Work, beside_with, step, threads};
use super::product::{FEW_VECTORS, ProductLaunch, ProductTiles, RESERVED, aligned_factors, takes_many};
use super::{Limits, TensorPlan, TilesPlan};
use crate::coder::{BLOCK_COLS, TILE_ROWS};
use crate::error::Result;

mod routed;
mod shape;
#[cfg(test)]
mod tests;

pub use self::routed::{RoutedLaunch, launches as routed_launches};
pub use self::shape::Division;

/// Weights of a matrix from which on these kernels take up to 8 and up to 16 vectors, too. Other kernels were faster with less (H100, `int8`,
/// `pyext/benches/products.py`). A tall matrix counts twice with 16: most are one of a pair, which is multiplied together.
const LEAST: [(usize, usize); 2] = [(8, 40 << 20), (16, 20 << 20)];
/// Bytes of shared memory up to which sums have a place of their own where vectors are more than so many. Those kernels keep some registers in local
/// memory, for which the first-level cache needs room, and it has what shared memory leaves of 256 KiB. That is the probable reason why 28672x4096 with 64
/// vectors took 17 % longer at 4 bits, with sums apart and 28 KiB of cache, than as `int8`, without and with 60 KiB (one H200).
const SPARED: usize = 196 << 10;
const SPARING_VECTORS: usize = 32;
/// Bytes of a block's side words: so many times one more than the shift of its plane.
const SIDE_WORDS: usize = 128;

/// Whether a kernel of many vectors multiplies up to `vectors` vectors with a tensor: one that [takes it](takes_many), and has room.
pub fn fits(plan: &TensorPlan, tiles: &TilesPlan, vectors: usize, limits: Limits) -> bool {
    // The smallest block has so many strips, and all parts.
    let has_room = || {
        let division = shape_of(plan, tiles).division(vectors);
        let memory = Memory { vectors, strips: step(vectors), division, gates: true, ..Memory::of(tiles) };
        memory.bytes() <= limit(limits)
    };
    limits.many && takes_many(plan, tiles) && has_room()
}

/// Whether an item's products with up to `vectors` vectors are left to these kernels.
pub fn is_for(item: &ProductTiles<'_>, vectors: usize, limits: Limits) -> bool {
    let (plan, tiles) = (item.tiles.tensor, item.tiles.tiles);
    let pair = vectors == FEW_VECTORS && shape_of(plan, tiles).is_tall();
    let weights = plan.matrix.1 * plan.matrix.2 * if pair { 2 } else { 1 };
    let large = LEAST.iter().any(|&(most, least)| most == vectors && weights >= least);
    let wanted = vectors > FEW_VECTORS || large;
    wanted && fits(plan, tiles, vectors, limits)
}

/// Shared memory that a block can have, bytes.
fn limit(limits: Limits) -> usize {
    limits.shared_per_multiprocessor.saturating_sub(RESERVED).min(limits.shared_per_block)
}

/// The launches that do `items`, which have one key and [fit](fits), for up to `vectors` vectors: 8, 16, 32, 64 or 128.
///
/// # Errors
/// Items have too many strips or results for a launch.
pub fn launches(items: &[ProductTiles<'_>], vectors: usize, limits: Limits) -> Result<Vec<ProductLaunch>> {
    let mut items: Vec<_> = items.iter().copied().flat_map(ProductTiles::by_matrix).collect();
    let of = |item: &ProductTiles<'_>| division(item, vectors);
    items.sort_by_cached_key(of);
    let mut launches = Vec::new();
    for items in items.chunk_by(|a, b| of(a) == of(b)).flat_map(|same| same.chunks(abi::MAX_PRODUCT_ITEMS)) {
        let division = of(&items[0]);
        match strips_of_a_block(items, vectors, division, limits) {
            Some(strips) => launches.push(launch(items, vectors, division, strips, limits)?),
            // Each has room, but one has long chunks and another one many bits beside them.
            None => {
                for item in items.chunks(1) {
                    let strips = strips_of_a_block(item, vectors, division, limits).unwrap_or(step(vectors));
                    launches.push(launch(item, vectors, division, strips, limits)?);
                }
            }
        }
    }
    Ok(launches)
}

/// The shape of a tensor's matrix.
fn shape_of(plan: &TensorPlan, tiles: &TilesPlan) -> Shape {
    let (_, rows, cols) = plan.matrix;
    Shape { rows, cols, tile: tiles.geometry.tile() }
}

/// The division of a matrix's columns, for up to so many vectors.
fn division(item: &ProductTiles<'_>, vectors: usize) -> Division {
    shape_of(item.tiles.tensor, item.tiles.tiles).division(vectors)
}

/// The work with items whose columns are divided like this.
fn work(items: &[ProductTiles<'_>], vectors: usize, division: Division) -> Work {
    let steps =
        items.iter().map(|item| shape_of(item.tiles.tensor, item.tiles.tiles).steps(division)).max().unwrap_or(0);
    Work { strips: items.iter().map(ProductTiles::strips).collect(), division, steps, vectors }
}

/// Strips of each block; nothing where there is no room.
fn strips_of_a_block(items: &[ProductTiles<'_>], vectors: usize, division: Division, limits: Limits) -> Option<usize> {
    let memory = Memory::of_all(items, vectors, division);
    work(items, vectors, division).strips_of_a_block(|strips| Memory { strips, ..memory }.bytes(), limits)
}

/// The launch that does `items`, whose columns are divided like this, in blocks of so many strips.
pub fn launch(
    items: &[ProductTiles<'_>],
    vectors: usize,
    division: Division,
    strips: usize,
    limits: Limits,
) -> Result<ProductLaunch> {
    let (module, mode, kind, _) = items[0].key();
    let memory = Memory { strips, ..Memory::of_all(items, vectors, division) }.placed(limits);
    let mut params = Box::new(abi::ProductBatch { count: items.len() as u32, ..Default::default() });
    let mut blocks = 0;
    for (item, to) in items.iter().zip(&mut params.items) {
        let begin = blocks;
        blocks += item.strips().div_ceil(strips) * division.ranks;
        *to = item.params(begin..blocks, 0, vectors)?;
    }
    params.vector = aligned_factors(&params.items);
    memory.place(&mut params);
    let variant = match vectors {
        8 => Variant::Many8,
        16 => Variant::Many16,
        32 => Variant::Many32,
        64 => Variant::Many64,
        _ => Variant::Many128,
    };
    let kernel = mode.multiplying_kernel(module, kind, variant).expect("`takes_many` was asked");
    Ok(ProductLaunch {
        module: Module::Huffmanmany,
        kernel,
        params,
        grid: blocks as u32,
        cluster: division.ranks as u32,
        threads: threads(strips, division.parts(), vectors) as u32,
        shared: memory.bytes() as u32,
    })
}

/// The layout of a block's shared memory. Sums have a place of their own, or that of all that is there while weights are decoded.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    vectors: usize,
    strips: usize,
    /// Bytes of a buffer, for a chunk.
    buffer: usize,
    /// Bytes of the side words of a block of weights.
    side: usize,
    slack: usize,
    /// Columns whose squares are summed together.
    segments: usize,
    /// Whether there are gates, whose strips have a word each.
    gates: bool,
    /// The division of the columns.
    division: Division,
    /// Whether sums have a place of their own. Then the blocks of a cluster leave them without waiting for each other.
    apart: bool,
}

impl Memory {
    /// That of a tensor, without vectors, strips and a division.
    fn of(tiles: &TilesPlan) -> Self {
        Self {
            // Whole 16 bytes around a chunk, which begins at any multiple of 4.
            buffer: (12 + tiles.max_chunk.next_multiple_of(4)).next_multiple_of(16),
            side: (tiles.tiling.shift as usize + 1) * SIDE_WORDS,
            slack: tiles.slack(),
            segments: tiles.geometry.cols().div_ceil(abi::SQUARES_COLS),
            ..Self::default()
        }
    }

    /// That of any of these items, with their columns divided like this, and without strips.
    fn of_all(items: &[ProductTiles<'_>], vectors: usize, division: Division) -> Self {
        let gates = items.iter().any(|item| item.product.part != abi::PART_RESULT);
        let each = items.iter().map(|item| Self::of(item.tiles.tiles));
        let larger = |a: Self, b: Self| Self {
            buffer: a.buffer.max(b.buffer),
            side: a.side.max(b.side),
            slack: a.slack.max(b.slack),
            segments: a.segments.max(b.segments),
            ..a
        };
        Self { vectors, gates, division, ..each.reduce(larger).unwrap_or_default() }
    }

    /// Says where all that is, and how the columns are divided.
    fn place(self, params: &mut abi::ProductBatch) {
        params.staged = self.division.ranks as u32;
        params.corrections = self.division.part_bits as u32;
        params.barriers = MANY_BARRIERS_AT as u32;
        params.sums = self.sums_at() as u32;
        params.staging = self.side_at() as u32;
        params.buffers = self.buffers_at() as u32;
        params.buffer_bytes = self.buffer as u32;
        params.buffers_per_warp = 2;
        params.squares = self.squares_at() as u32;
        params.arrived = self.arrived_at() as u32;
        params.known = self.known_at() as u32;
    }

    fn side_at(self) -> usize {
        let slots = (MANY_RING_VECTORS / self.vectors).clamp(MANY_LEAST_SLOTS, MANY_MOST_SLOTS);
        MANY_RING_AT + slots * self.vectors * BLOCK_COLS * 2
    }

    /// Warps that decode.
    fn warps(self) -> usize {
        self.strips * self.division.parts()
    }

    fn buffers_at(self) -> usize {
        self.side_at() + self.warps() * 2 * MANY_GROUP * self.side
    }

    /// Strips whose results a block of a cluster writes, at most.
    fn own_strips(self) -> usize {
        self.strips.div_ceil(self.division.ranks)
    }

    /// Bytes of the sums that all parts leave for a block's results.
    fn sums(self) -> usize {
        self.division.pieces() * self.own_strips() * TILE_ROWS * self.vectors * size_of::<f32>()
    }

    fn squares_at(self) -> usize {
        // Reads behind a chunk may reach the next buffer: only behind the last one is space left for them.
        let decoding = self.buffers_at() + self.warps() * 2 * self.buffer + self.slack;
        let sums = if self.apart { 0 } else { MANY_RING_AT + self.sums() };
        decoding.max(sums).next_multiple_of(16)
    }

    fn arrived_at(self) -> usize {
        // A norm of more than few vectors is not part of the launch.
        let squares = if self.vectors > FEW_VECTORS { 0 } else { self.segments * self.vectors * 4 };
        self.squares_at() + squares.next_multiple_of(16)
    }

    fn known_at(self) -> usize {
        (self.arrived_at() + if self.gates { 4 * self.strips } else { 0 }).next_multiple_of(16)
    }

    fn known_end(self) -> usize {
        self.known_at() + self.own_strips() * TILE_ROWS * abi::KNOWN_BYTES
    }

    fn sums_at(self) -> usize {
        if self.apart { self.known_end() } else { MANY_RING_AT }
    }

    fn bytes(self) -> usize {
        self.known_end() + if self.apart { self.sums() } else { 0 }
    }

    /// With a place for sums, if there is room, and as many blocks share a multiprocessor.
    fn placed(self, limits: Limits) -> Self {
        let apart = Self { apart: true, ..self };
        let most = if self.vectors > SPARING_VECTORS { limit(limits).min(SPARED) } else { limit(limits) };
        let beside =
            |memory: Self| beside_with(self.strips, self.division.parts(), self.vectors, memory.bytes(), limits);
        if apart.bytes() <= most && beside(apart) >= beside(self) { apart } else { self }
    }
}
