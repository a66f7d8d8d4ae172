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
    let division = each[0].0.division(vectors);
    assert!(each.iter().all(|item| item.0.division(vectors) == division), "they share no launch");
    let steps = each.iter().map(|item| item.0.steps(division)).max().unwrap();
    let work = Work { strips: each.iter().map(|item| item.1).collect(), division, steps, vectors };
    // Chunks of `int8` with two bits a symbol.
    let buffer = each.iter().map(|item| item.0.tile * 4 + 16).max().unwrap();
    (work, Memory { vectors, buffer, side: 5 * SIDE_WORDS, division, ..Memory::default() })
}

/// Strips of a block, how columns are divided, thread blocks, and places for them on the device.
fn chosen((work, memory): &(Work, Memory), limits: Limits) -> (usize, Division, usize, usize) {
    let (bytes, division) = (|strips| Memory { strips, ..*memory }.bytes(), work.division);
    let strips = work.strips_of_a_block(bytes, limits).expect("there is room");
    let beside = beside_with(strips, division.parts(), work.vectors, bytes(strips), limits);
    (strips, division, work.grid(strips), places(division.ranks, beside, limits.multiprocessors))
}

/// Rows of matrices and their columns; for up to 8, 16, 32, 64 and 128 vectors blocks of a cluster, parts of each and strips.
type Case = (&'static [usize], usize, [(usize, usize, usize); 5]);

#[test]
fn matrices_of_models_have_blocks_of_these_sizes() {
    let cases: [Case; 13] = [
        (&[2048], 2048, [(2, 4, 2), (8, 1, 9), (8, 1, 12), (8, 1, 12), (4, 1, 8)]),
        (&[2048, 512], 2048, [(2, 4, 3), (8, 1, 11), (8, 1, 12), (8, 1, 12), (4, 1, 8)]),
        (&[2048, 256, 256], 2048, [(2, 4, 3), (8, 1, 12), (8, 1, 12), (8, 1, 12), (4, 1, 8)]),
        (&[5632, 5632], 2048, [(2, 1, 11), (2, 1, 11), (2, 1, 12), (2, 1, 12), (2, 1, 8)]),
        (&[11264], 2048, [(2, 1, 11), (2, 1, 11), (2, 1, 12), (2, 1, 12), (1, 1, 8)]),
        (&[2048], 5632, [(6, 2, 8), (6, 2, 8), (6, 2, 8), (8, 1, 12), (6, 1, 8)]),
        (&[4096], 4096, [(2, 4, 4), (2, 4, 4), (2, 2, 4), (4, 1, 12), (3, 1, 8)]),
        (&[4096, 1024, 1024], 4096, [(0, 0, 0), (0, 0, 0), (2, 2, 8), (4, 1, 16), (0, 0, 0)]),
        (&[6144], 4096, [(2, 2, 6), (2, 2, 6), (4, 1, 16), (4, 1, 16), (2, 1, 8)]),
        (&[14336], 4096, [(2, 1, 14), (2, 1, 14), (2, 1, 16), (2, 1, 16), (1, 1, 8)]),
        (&[28672], 4096, [(1, 1, 14), (1, 1, 14), (1, 1, 16), (1, 1, 16), (1, 1, 8)]),
        (&[4096], 14336, [(2, 4, 4), (2, 4, 4), (6, 1, 16), (6, 1, 16), (3, 1, 8)]),
        (&[8192], 8192, [(2, 2, 8), (2, 2, 8), (2, 2, 8), (2, 1, 8), (2, 1, 8)]),
    ];
    for (rows, cols, all) in cases {
        // Those with 0 take two launches, or are too small for these kernels.
        for (vectors, wanted) in [8, 16, 32, 64, 128].into_iter().zip(all).filter(|case| case.1.0 > 0) {
            let (strips, division, grid, places) = chosen(&launch_of(rows, cols, vectors), H100);
            let context = format!("{rows:?} x {cols}, {vectors} vectors: {grid} blocks of {strips}, {places} places");
            assert_eq!((division.ranks, division.parts(), strips), wanted, "{context}");
            // All of them run at once, on most of the device, but for the smallest and the largest of 128 vectors.
            let apart = vectors == 128
                && [&[2048][..], &[2048, 512], &[2048, 256, 256], &[5632, 5632], &[28672]].contains(&rows);
            assert!(apart || (88..=places).contains(&grid), "{context}");
        }
    }
}

/// The order of sums hangs on the matrix, and on whether vectors are more than 8, 16, 32 and 64.
#[test]
fn divisions_are_the_same_whatever_the_device() {
    let large = Limits { multiprocessors: 200, ..H100 };
    let cases = [
        (2048, 5632, [(6, 2), (6, 2), (6, 2), (8, 1), (6, 1)]),
        (4096, 14336, [(2, 4), (2, 4), (6, 1), (6, 1), (3, 1)]),
    ];
    for (rows, cols, wanted) in cases {
        for limits in [H100, large] {
            let of = |vectors| chosen(&launch_of(&[rows], cols, vectors), limits).1;
            assert_eq!([8, 16, 32, 64, 128].map(of).map(|d| (d.ranks, d.parts())), wanted, "{rows}x{cols}");
        }
    }
}

/// Rows of the matrices of an expert, columns, and experts; for up to 8 and up to 32 vectors blocks of a cluster, parts of each and strips.
type ExpertsCase = (&'static [usize], usize, usize, [(usize, usize, usize); 2]);

#[test]
fn experts_are_divided_the_less_the_more_there_are() {
    let cases: [ExpertsCase; 8] = [
        (&[768, 768], 2048, 8, [(2, 1, 12), (2, 1, 12)]),
        (&[768, 768], 2048, 128, [(1, 1, 8), (1, 1, 16)]),
        (&[2048], 768, 8, [(2, 1, 16), (2, 1, 16)]),
        (&[2048], 768, 128, [(1, 1, 8), (1, 1, 16)]),
        (&[14336, 14336], 4096, 8, [(1, 1, 8), (1, 1, 16)]),
        (&[4096], 14336, 8, [(1, 1, 16), (1, 1, 16)]),
        (&[1536, 1536], 4096, 128, [(1, 1, 8), (1, 1, 16)]),
        (&[4096], 1536, 128, [(1, 1, 8), (1, 1, 16)]),
    ];
    for (rows, cols, experts, all) in cases {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows[0], cols);
        let shape = Shape { rows: rows[0], cols, tile };
        let strips: Vec<_> = rows.iter().map(|rows| rows / TILE_ROWS).collect::<Vec<_>>().repeat(experts);
        for (vectors, wanted) in [8, 32].into_iter().zip(all) {
            let division = shape.division_of_all(&strips, vectors);
            let memory = Memory { vectors, buffer: tile * 4 + 16, side: 5 * SIDE_WORDS, division, ..Memory::default() };
            let work = Work { strips: strips.clone(), division, steps: shape.steps(division), vectors };
            let best = work.strips_of_a_flowing_block(|strips| Memory { strips, ..memory }.bytes(), H100);
            let found = (division.ranks, division.parts(), best.expect("there is room"));
            assert_eq!(found, wanted, "{rows:?} x {cols}, {experts} experts, {vectors} vectors");
        }
    }
}

/// A strip has tiles for all parts, and parts are those that there are kernels for.
#[test]
fn every_part_has_a_tile() {
    // Some of the narrow ones have a query's division.
    let narrow = [(1024, 4096), (256, 2048), (16, 2048), (512, 8192), (1, 4096)];
    for (rows, cols) in (0..14).flat_map(|r| (0..14).map(move |c| (3 << r, 5 << c))).chain(narrow) {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows, cols);
        let shape = Shape { rows, cols, tile };
        for vectors in [1, 8, 9, 16, 17, 32, 33, 64, 65, 128] {
            let division = shape.division(vectors);
            assert!(division.pieces() <= shape.tiles(), "{shape:?} {division:?}");
            assert!(
                division.parts()
                    <= if vectors > 32 {
                        1
                    } else if vectors > 16 {
                        2
                    } else {
                        4
                    }
                    && division.ranks <= 8,
                "{shape:?} {division:?}"
            );
        }
    }
}

/// Narrow matrices are divided as a query where that costs them little by themselves.
#[test]
fn narrow_matrices_have_the_division_of_a_query_where_that_costs_little() {
    let of = |rows: usize, cols: usize, vectors: usize| {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows, cols);
        let division = Shape { rows, cols, tile }.division(vectors);
        (division.ranks, division.parts())
    };
    for (vectors, wanted) in [(8, (2, 4)), (16, (2, 4)), (32, (2, 2)), (64, (4, 1))] {
        assert_eq!([of(4096, 4096, vectors), of(1024, 4096, vectors)], [wanted; 2], "{vectors}");
    }
    assert_eq!((of(4096, 4096, 128), of(1024, 4096, 128), of(256, 2048, 128)), ((3, 1), (8, 1), (4, 1)));
    // Parts of them, as ranks of tensor parallelism have, and those of much wider ones keep their own.
    for (rows, cols) in [(512, 4096), (256, 8192), (1024, 8192), (1023, 4096)] {
        assert_eq!((of(rows, cols, 32), of(rows, cols, 64)), ((8, 2), (8, 1)), "{rows}x{cols}");
    }
}

/// Nearly all warps where there are too many strips for blocks of fewer to run at once.
#[test]
fn more_rounds_than_one_are_of_large_blocks() {
    for vectors in [8, 16, 32, 64, 128] {
        let (strips, division, grid, places) = chosen(&launch_of(&[1 << 17], 4096, vectors), H100);
        let warps = strips * division.parts();
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
        let bytes = |strips| Memory { strips, ..launch.1 }.bytes();
        let strips = launch.0.strips_of_a_block(bytes, limits).unwrap_or(0);
        assert!(bytes(strips) <= kilobytes << 10 || strips == 0, "{kilobytes} KiB: {strips}");
        assert!(strips >= before, "{kilobytes} KiB: {strips}");
        before = strips;
    }
    assert_eq!(before, 16);
    assert_eq!(launch.0.strips_of_a_block(|_| 48 << 10, Limits { shared_per_block: 40 << 10, ..H100 }), None);
}

/// `fits` asks for the smallest block: of a device with little shared memory, too.
#[test]
fn there_is_a_block_wherever_the_smallest_one_fits() {
    let few = Limits { shared_per_block: 99 << 10, shared_per_multiprocessor: 100 << 10, ..H100 };
    let mut found = [0; 2];
    for (rows, cols) in [(4096, 4096), (8192, 8192), (2048, 5632), (4096, 14336), (14336, 4096)] {
        for vectors in [8, 16, 32, 64, 128] {
            let (work, memory) = launch_of(&[rows], cols, vectors);
            let bytes = |strips| Memory { strips, ..memory }.bytes();
            let fits = bytes(step(vectors)) <= limit(few);
            assert_eq!(work.strips_of_a_block(bytes, few).is_some(), fits, "{rows}x{cols}, {vectors}");
            found[usize::from(fits)] += 1;
        }
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

#[test]
fn parts_of_a_block_s_memory_follow_each_other() {
    let divisions = (1..=8).flat_map(|ranks| (0..3).map(move |part_bits| Division { ranks, part_bits }));
    let shapes = divisions.flat_map(|d| (1..=16 >> d.part_bits).map(move |strips| (strips, d)));
    for ((strips, division), vectors) in shapes.flat_map(|shape| [8, 16, 32, 64, 128].map(|vectors| (shape, vectors))) {
        let (ranks, warps) = (division.ranks, strips * division.parts());
        for (gates, apart) in [(false, false), (true, false), (false, true), (true, true)] {
            let memory =
                Memory { vectors, strips, buffer: 1616, side: 640, slack: 48, segments: 17, gates, division, apart };
            let ring = MANY_RING_AT + (256 / vectors).clamp(4, 16) * vectors * 128;
            let (sums, context) = (memory.sums(), format!("{memory:?}"));
            assert!(
                memory.side_at() >= ring && memory.buffers_at() == memory.side_at() + warps * 2 * 4 * 640,
                "{context}"
            );
            assert!(memory.squares_at() >= memory.buffers_at() + warps * 2 * 1616 + 48, "{context}");
            let squares = if vectors > FEW_VECTORS { 0 } else { 17 * vectors * 4 };
            assert!(memory.arrived_at() >= memory.squares_at() + squares, "{context}");
            assert!(memory.known_at() >= memory.arrived_at() + if gates { 4 * strips } else { 0 }, "{context}");
            // The blocks of a cluster divide the strips as evenly as they can.
            let own = (0..ranks).map(|r| strips * (r + 1) / ranks - strips * r / ranks).max().unwrap();
            assert_eq!(sums, division.pieces() * own * TILE_ROWS * vectors * 4, "{context}");
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
        let division = Division { ranks: 2, part_bits: 0 };
        Memory { vectors, strips: 16, division, side, buffer, ..Memory::default() }.placed(H100).apart
    };
    // 4 bits, `int8`, and `int8` with long chunks.
    assert!(placed(32, 384, 1100) && placed(16, 640, 1616) && !placed(32, 640, 2100));
    // Kernels of 64 vectors need a cache.
    assert!(!placed(64, 384, 1100) && placed(64, 128, 600));
}

/// A place of their own for sums is worth less than a second block on a multiprocessor.
#[test]
fn sums_take_no_room_that_a_second_block_needs() {
    let division = Division { ranks: 7, part_bits: 0 };
    let of = |buffer| Memory { vectors: 8, strips: 8, division, side: 640, buffer, ..Memory::default() };
    let blocks = |memory: Memory| beside_with(memory.strips, 1, memory.vectors, memory.bytes(), H100);
    let all: Vec<_> = (1000..3600).step_by(16).map(|buffer| (of(buffer), of(buffer).placed(H100))).collect();
    assert!(all.iter().all(|&(before, placed)| blocks(placed) == blocks(before)));
    // Both ways occur with two blocks, and so does one block.
    for (blocks_of, apart) in [(2, true), (2, false), (1, true)] {
        assert!(all.iter().any(|&(_, m)| blocks(m) == blocks_of && m.apart == apart), "{blocks_of} blocks, {apart}");
    }
}
