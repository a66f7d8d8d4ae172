//! Sizes of thread blocks for the matrices of models.

use super::shape::{processors, together};
use super::*;
use crate::coder::tile::default_tile;
use crate::coder::{Coder, Layout};

const H100: Limits =
    Limits { multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10, many: true };

/// A launch of matrices of so many rows, and of one number of columns: its work, and its memory but for the warps.
fn launch_of(rows: &[usize], cols: usize, vectors: usize) -> (Work, Memory) {
    let each = rows.iter().map(|&rows| {
        let tile = default_tile(Coder::Huffman, Layout::Quad, rows, cols);
        let (strips, tiles) = (rows / TILE_ROWS, cols.div_ceil(tile));
        (strips, shares(strips, tiles), tiles.div_ceil(shares(strips, tiles)) * (tile / BLOCK_COLS), tile)
    });
    let each: Vec<_> = each.collect();
    let ranks = each[0].1;
    assert!(each.iter().all(|item| item.1 == ranks), "they share no launch");
    let most = |of: fn(&(usize, usize, usize, usize)) -> usize| each.iter().map(of).max().unwrap();
    let work = Work { strips: each.iter().map(|item| item.0).collect(), ranks, steps: most(|item| item.2), vectors };
    // Chunks of `int8` with two bits a symbol.
    let memory = Memory { vectors, buffer: most(|item| item.3 * 4 + 16), side: 5 * SIDE_WORDS, ..Memory::default() };
    (work, memory)
}

/// Warps of a block, thread blocks, and places for them on the device.
fn chosen((work, memory): &(Work, Memory), limits: Limits) -> (usize, usize, usize) {
    let bytes = |warps| Memory { warps, ..*memory }.bytes();
    let warps = work.warps(bytes, limits).expect("there is room");
    let together = together(warps, bytes(warps), limits).expect("there is room");
    (warps, work.grid(warps), together * processors(work.ranks, together, limits))
}

#[test]
fn matrices_of_models_have_blocks_of_these_sizes() {
    // The warps of a block for 8, 16, 32 and 64 vectors.
    let cases: [(&[usize], usize, [usize; 4]); 11] = [
        (&[2048], 2048, [4, 4, 4, 4]),
        (&[2048, 512], 2048, [5, 5, 4, 4]),
        (&[2048, 256, 256], 2048, [6, 6, 4, 4]),
        (&[5632], 2048, [6, 6, 12, 12]),
        (&[11264], 2048, [11, 11, 12, 12]),
        (&[2048], 5632, [4, 4, 4, 4]),
        (&[4096], 4096, [4, 4, 4, 4]),
        (&[6144], 4096, [6, 6, 16, 16]),
        (&[14336], 4096, [14, 14, 16, 16]),
        (&[28672], 4096, [14, 14, 16, 16]),
        (&[4096], 14336, [4, 4, 4, 4]),
    ];
    for (rows, cols, warps) in cases {
        for (vectors, wanted) in [8, 16, 32, 64].into_iter().zip(warps) {
            let launch = launch_of(rows, cols, vectors);
            let (warps, grid, places) = chosen(&launch, H100);
            let context = format!("{rows:?} x {cols}, {vectors} vectors: {grid} blocks of {warps}, {places} places");
            assert_eq!(warps, wanted, "{context}");
            // All of them run at once, on most of the device.
            assert!(grid <= places && grid >= 88, "{context}");
        }
    }
}

/// Two launches of small matrices lie beside each other.
#[test]
fn small_matrices_leave_room_for_the_next_launch() {
    for vectors in [8, 16, 32, 64] {
        let (_, grid, places) = chosen(&launch_of(&[2048], 2048, vectors), H100);
        assert!(grid == 128 && places >= 2 * grid, "{grid} blocks, {places} places");
    }
}

/// Nearly all warps where there are too many strips for blocks of fewer to run at once.
#[test]
fn more_rounds_than_one_are_of_large_blocks() {
    for vectors in [8, 16, 32, 64] {
        let (warps, grid, places) = chosen(&launch_of(&[1 << 17], 4096, vectors), H100);
        assert!(warps >= 12 && grid > places, "{grid} blocks of {warps}, {places} places");
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
