//! Sizes of thread blocks for the matrices of models.

use super::shape::places;
use super::*;
use crate::coder::tile::default_tile;
use crate::coder::{Coder, Layout};

const H100: Limits =
    Limits { multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10, many: true };

/// A launch of matrices of so many rows, and of one number of columns: its work, and its memory but for the warps.
fn launch_of(rows: &[usize], cols: usize, vectors: usize) -> (Work, Memory) {
    let each = rows.iter().map(|&rows| {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows, cols);
        (Shape { rows, cols, tile }, rows / TILE_ROWS)
    });
    let each: Vec<_> = each.collect();
    let ranks = each[0].0.ranks(vectors);
    assert!(each.iter().all(|item| item.0.ranks(vectors) == ranks), "they share no launch");
    let steps = each.iter().map(|item| item.0.steps(ranks)).max().unwrap();
    let work = Work { strips: each.iter().map(|item| item.1).collect(), ranks, steps, vectors };
    // Chunks of `int8` with two bits a symbol.
    let buffer = each.iter().map(|item| item.0.tile * 4 + 16).max().unwrap();
    (work, Memory { vectors, buffer, side: 5 * SIDE_WORDS, ranks, ..Memory::default() })
}

/// Warps of a block, blocks of a cluster, thread blocks, and places for them on the device.
fn chosen((work, memory): &(Work, Memory), limits: Limits) -> (usize, usize, usize, usize) {
    let bytes = |warps| Memory { warps, ..*memory }.bytes();
    let warps = work.warps(bytes, limits).expect("there is room");
    let beside = beside_with(warps, work.vectors, bytes(warps), limits);
    (warps, work.ranks, work.grid(warps), places(work.ranks, beside, limits.multiprocessors))
}

/// Rows of matrices and their columns; blocks of a cluster for up to 8 vectors, up to 64 and up to 128; warps of a block for 8, 16, 32, 64 and 128.
type Case = (&'static [usize], usize, [usize; 3], [usize; 5]);

#[test]
fn matrices_of_models_have_blocks_of_these_sizes() {
    let cases: [Case; 12] = [
        (&[2048], 2048, [8, 8, 4], [9, 9, 12, 12, 8]),
        (&[2048, 512], 2048, [8, 8, 4], [11, 11, 12, 12, 8]),
        (&[2048, 256, 256], 2048, [8, 8, 4], [12, 12, 12, 12, 8]),
        (&[5632, 5632], 2048, [2, 2, 2], [11, 11, 12, 12, 8]),
        (&[11264], 2048, [2, 2, 1], [11, 11, 12, 12, 8]),
        (&[2048], 5632, [8, 8, 6], [9, 9, 12, 12, 8]),
        (&[4096], 4096, [4, 4, 3], [9, 9, 12, 12, 8]),
        (&[4096, 1024, 1024], 4096, [4, 4, 0], [13, 13, 16, 16, 0]),
        (&[6144], 4096, [4, 4, 2], [13, 13, 16, 16, 8]),
        (&[14336], 4096, [2, 2, 1], [14, 14, 16, 16, 8]),
        (&[28672], 4096, [1, 1, 1], [14, 14, 16, 16, 8]),
        (&[4096], 14336, [7, 6, 3], [8, 16, 16, 16, 8]),
    ];
    for (rows, cols, ranks, warps) in cases {
        // Those with 0 take two launches.
        for (vectors, wanted) in [8, 16, 32, 64, 128].into_iter().zip(warps).filter(|case| case.1 > 0) {
            let launch = launch_of(rows, cols, vectors);
            let (warps, found, grid, places) = chosen(&launch, H100);
            let context = format!("{rows:?} x {cols}, {vectors} vectors: {grid} blocks of {warps}, {places} places");
            assert_eq!(
                (found, warps),
                (ranks[usize::from(vectors > 8) + usize::from(vectors > 64)], wanted),
                "{context}"
            );
            // All of them run at once, on most of the device, but for the smallest and the largest of 128 vectors.
            let apart = vectors == 128
                && [&[2048][..], &[2048, 512], &[2048, 256, 256], &[5632, 5632], &[28672]].contains(&rows);
            assert!(apart || (88..=places).contains(&grid), "{context}");
        }
    }
}

/// The order of sums hangs on the matrix, and on whether vectors are more than 8, and more than 64.
#[test]
fn clusters_are_the_same_whatever_the_device() {
    let large = Limits { multiprocessors: 200, ..H100 };
    for (rows, cols, [few, more, most]) in [(2048, 5632, [8, 8, 6]), (4096, 14336, [7, 6, 3])] {
        for limits in [H100, large] {
            let of = |vectors| chosen(&launch_of(&[rows], cols, vectors), limits).1;
            assert_eq!([8, 16, 32, 64, 128].map(of), [few, more, more, more, most], "{rows}x{cols}");
        }
    }
}

/// Narrow matrices have a query's clusters only where that costs them little by themselves.
#[test]
fn narrow_matrices_have_the_clusters_of_a_query_where_that_costs_little() {
    let ranks_of = |rows: usize, cols: usize, vectors: usize| {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows, cols);
        Shape { rows, cols, tile }.ranks(vectors)
    };
    let ranks = |rows, cols| ranks_of(rows, cols, 32);
    assert_eq!((ranks(4096, 4096), ranks(1024, 4096)), (4, 4));
    assert_eq!((ranks_of(4096, 4096, 128), ranks_of(1024, 4096, 128), ranks_of(256, 2048, 128)), (3, 8, 4));
    // Parts of them, as ranks of tensor parallelism have, and those of much wider ones keep their own.
    for (rows, cols) in [(512, 4096), (256, 8192), (1024, 8192), (1023, 4096)] {
        assert_eq!(ranks(rows, cols), 8, "{rows}x{cols}");
    }
}

/// Nearly all warps where there are too many strips for blocks of fewer to run at once.
#[test]
fn more_rounds_than_one_are_of_large_blocks() {
    for vectors in [8, 16, 32, 64, 128] {
        let (warps, _, grid, places) = chosen(&launch_of(&[1 << 17], 4096, vectors), H100);
        assert!(
            warps >= if vectors > 64 { 8 } else { 12 } && grid > places,
            "{grid} blocks of {warps}, {places} places"
        );
    }
}

#[test]
fn blocks_fit_the_memory_that_there_is() {
    let launch = launch_of(&[14336], 4096, 32);
    let mut before = 0;
    for kilobytes in [50, 60, 100, 200] {
        let limits = Limits { shared_per_block: kilobytes << 10, ..H100 };
        let bytes = |warps| Memory { warps, ..launch.1 }.bytes();
        let warps = launch.0.warps(bytes, limits).unwrap_or(0);
        assert!(bytes(warps) <= kilobytes << 10 || warps == 0, "{kilobytes} KiB: {warps}");
        assert!(warps >= before, "{kilobytes} KiB: {warps}");
        before = warps;
    }
    assert_eq!(before, 16);
    assert_eq!(launch.0.warps(|_| 48 << 10, Limits { shared_per_block: 40 << 10, ..H100 }), None);
}

#[test]
fn parts_of_a_block_s_memory_follow_each_other() {
    let shapes = (1..=16).flat_map(|warps| (1..=8).map(move |ranks| (warps, ranks)));
    for ((warps, ranks), vectors) in shapes.flat_map(|shape| [8, 16, 32, 64, 128].map(|vectors| (shape, vectors))) {
        for (gates, apart) in [(false, false), (true, false), (false, true), (true, true)] {
            let memory =
                Memory { vectors, warps, buffer: 1616, side: 640, slack: 48, segments: 17, gates, ranks, apart };
            let ring = MANY_RING_AT + (256 / vectors).clamp(4, 8) * vectors * 128;
            let (sums, context) = (memory.sums(), format!("{memory:?}"));
            assert!(
                memory.side_at() >= ring && memory.buffers_at() == memory.side_at() + warps * 2 * 4 * 640,
                "{context}"
            );
            assert!(memory.squares_at() >= memory.buffers_at() + warps * 2 * 1616 + 48, "{context}");
            let squares = if vectors > FEW_VECTORS { 0 } else { 17 * vectors * 4 };
            assert!(memory.arrived_at() >= memory.squares_at() + squares, "{context}");
            assert!(memory.known_at() >= memory.arrived_at() + if gates { 4 * warps } else { 0 }, "{context}");
            // The blocks of a cluster divide the strips as evenly as they can.
            let own = (0..ranks).map(|r| warps * (r + 1) / ranks - warps * r / ranks).max().unwrap();
            assert_eq!(sums, ranks * own * TILE_ROWS * vectors * 4, "{context}");
            let end = memory.known_at() + own * TILE_ROWS * abi::KNOWN_BYTES;
            if apart {
                assert!(memory.sums_at() >= end && memory.bytes() == memory.sums_at() + sums, "{context}");
            } else {
                assert!(memory.sums_at() == MANY_RING_AT && memory.squares_at() >= MANY_RING_AT + sums, "{context}");
                assert_eq!(memory.bytes(), end, "{context}");
            }
            for place in
                [memory.side_at(), memory.buffers_at(), memory.squares_at(), memory.known_at(), memory.sums_at()]
            {
                assert!(place.is_multiple_of(16), "{context}");
            }
        }
    }
}

#[test]
fn sums_have_a_place_of_their_own_where_there_is_room() {
    let placed = |vectors: usize, side: usize, buffer: usize| {
        Memory { vectors, warps: 16, ranks: 2, side, buffer, ..Memory::default() }.placed(H100).apart
    };
    // 4 bits, `int8`, and `int8` with long chunks.
    assert!(placed(32, 384, 1100) && placed(16, 640, 1616) && !placed(32, 640, 2100));
    // Kernels of 64 vectors need a cache.
    assert!(!placed(64, 384, 1100) && placed(64, 128, 600));
}

/// A place of their own for sums is worth less than a second block on a multiprocessor.
#[test]
fn sums_take_no_room_that_a_second_block_needs() {
    let of = |buffer| Memory { vectors: 8, warps: 8, ranks: 7, side: 640, buffer, ..Memory::default() };
    let blocks = |memory: Memory| beside_with(memory.warps, memory.vectors, memory.bytes(), H100);
    let all: Vec<_> = (1000..3600).step_by(16).map(|buffer| (of(buffer), of(buffer).placed(H100))).collect();
    assert!(all.iter().all(|&(before, placed)| blocks(placed) == blocks(before)));
    // Both ways occur with two blocks, and so does one block.
    for (blocks_of, apart) in [(2, true), (2, false), (1, true)] {
        assert!(all.iter().any(|&(_, m)| blocks(m) == blocks_of && m.apart == apart), "{blocks_of} blocks, {apart}");
    }
}
