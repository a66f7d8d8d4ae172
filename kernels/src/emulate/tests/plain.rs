//! The kernels of `cuda/plain.cu`, launched as in `pyext/benches/plain.py`.

use super::{Buffer, Launch, Range, value_of_bf16};
use crate::abi::{Divisor, Output, PART_RESULT, Parameters, ProductBatch, ProductItem, STATUS_GOOD, TABLE_AT, Tiles};

const ROWS: usize = 48;
const COLS: usize = 512;
const TILE: usize = 128;
const BLOCKS: usize = TILE / 64;
const TILES: usize = COLS / TILE;
const STRIPS: usize = ROWS / 16;

fn bf16(v: f32) -> u16 {
    (v.to_bits() >> 16) as u16
}

fn buffer<const N: usize, T: Copy>(numbers: &[T], bytes: fn(T) -> [u8; N]) -> Buffer {
    let all: Vec<u8> = numbers.iter().flat_map(|&n| bytes(n)).collect();
    Buffer::from(&all[..])
}

/// Reorders symbols as chunks have them: tile after tile of a strip, block after block, upper rows and then lower ones.
fn in_chunks(symbols: &[i8]) -> Vec<i8> {
    let mut found = Vec::new();
    for (strip, block) in (0..STRIPS).flat_map(|s| (0..COLS / 64).map(move |b| (s, b))) {
        for (half, lane) in (0..2).flat_map(|h| (0..32).map(move |l| (h, l))) {
            let (row, col) = (strip * 16 + half * 8 + lane / 4, block * 64 + lane % 4 * 16);
            found.extend_from_slice(&symbols[row * COLS + col..][..16]);
        }
    }
    found
}

#[test]
fn products_with_weights_that_are_not_coded() {
    let mut state = 5u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as i8
    };
    let symbols: Vec<i8> = (0..ROWS * COLS).map(|_| next()).collect();
    let x: Vec<u16> = (0..COLS).map(|_| bf16(f32::from(next()) / 64.0)).collect();
    let scales: Vec<f32> = (0..ROWS).map(|_| f32::from(next()) / 1024.0 + 0.25).collect();
    let data = buffer(&in_chunks(&symbols), i8::to_le_bytes);
    let offsets: Vec<u32> = (0..=STRIPS * TILES).map(|i| (i * BLOCKS * 256) as u32).collect();
    let (offsets, table) = (buffer(&offsets, u32::to_le_bytes), Buffer::new(4 << 8));
    let (vector, factors) = (buffer(&x, u16::to_le_bytes), buffer(&scales, f32::to_le_bytes));
    for (kernel, warps, grid) in [("plain_times_bf16", 3usize, 2usize), ("plain_times_bf16_early", 4, 3)] {
        let early = kernel.ends_with("early");
        let mut status = buffer(&[STATUS_GOOD], u32::to_le_bytes);
        let mut y = Buffer::new(ROWS * 2);
        y.fill(0xFF);
        let tiles = Tiles {
            data: data.address(),
            offsets: offsets.address(),
            table: table.address(),
            status: status.address(),
            output: Output {
                scales: factors.address(),
                scales_per_row: 1,
                scale_columns: COLS as u32,
                scale_bytes: 4,
                ..Default::default()
            },
            data_units: (ROWS * COLS / 4) as u32,
            chunk_end: (STRIPS * TILES) as u32,
            max_chunk: (BLOCKS * 1024) as u32,
            strips: STRIPS as u32,
            rows: ROWS as u32,
            cols: COLS as u32,
            tiles: TILES as u32,
            blocks: BLOCKS as u32,
            last_blocks: BLOCKS as u32,
            bits: 8,
            block_end: grid as u16,
            by_tiles: Divisor::new(TILES as u32),
            by_strips: Divisor::new(STRIPS as u32),
            shared_end: (STRIPS * TILES) as u32,
            ..Default::default()
        };
        let buffers = if early { 1 } else { 2 };
        let room = (12 + BLOCKS * 1024).next_multiple_of(16);
        let barriers = TABLE_AT + (4 << 8);
        let buffers_at = barriers + (8 + 16 * warps).next_multiple_of(16);
        let sums = buffers_at + warps * buffers * room;
        let staging = sums + STRIPS * TILES * 64;
        let known = staging + if early { warps * BLOCKS * 1024 } else { TILES * (BLOCKS * 256 + 32) };
        let shared = known + if early { (warps + STRIPS * 16) * 32 } else { 0 };
        let mut params = ProductBatch {
            count: 1,
            vectors: 1,
            x: vector.address(),
            x_stride: COLS as u64,
            y: y.address(),
            vector: 1,
            barriers: barriers as u32,
            buffers: buffers_at as u32,
            buffer_bytes: room as u32,
            buffers_per_warp: buffers as u32,
            sums: sums as u32,
            staging: staging as u32,
            staged: if early { BLOCKS as u32 } else { 0 },
            known: known as u32,
            ..Default::default()
        };
        params.items[0] = ProductItem {
            tiles,
            stride: ROWS as u32,
            strips: (STRIPS / grid) as u32,
            part: PART_RESULT,
            minus: 0xBF00_BF00,
            ..Default::default()
        };
        let memory = [
            Range::read(&data),
            Range::read(&offsets),
            Range::read(&table),
            Range::read(&vector),
            Range::read(&factors),
            Range::write(&mut status),
            Range::write(&mut y),
        ];
        let launch = Launch::plain(kernel).grid(grid as u32).threads(warps as u32 * 32).shared(shared as u32);
        launch.run(params.as_bytes(), &memory).unwrap();
        for (row, (got, scale)) in y.chunks_exact(2).zip(&scales).enumerate() {
            let got = value_of_bf16(u16::from_le_bytes(got.try_into().unwrap()));
            let terms = symbols[row * COLS..][..COLS].iter().zip(&x);
            let want = terms.map(|(&q, &x)| f64::from(q) * value_of_bf16(x)).sum::<f64>() * f64::from(*scale);
            assert!((got - want).abs() <= want.abs() / 256.0, "{kernel}, row {row}: {got}, not {want}");
        }
    }
}
