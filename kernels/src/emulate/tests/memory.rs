//! Primitives that access memory: streams, shared and global memory, copies.

use std::collections::BTreeSet;

use super::abi::TABLE_AT;
use super::cases::{self, SLOTS, STREAM, THREADS, shared};
use super::{SelfTest, launch};

/// The output of a kernel for `input` in one block, `outputs` words per thread. It uses `used` bytes of shared memory.
fn run(kernel: &str, [mode, n]: [u32; 2], used: usize, input: &[u32], outputs: usize, seed: u64) -> Vec<u32> {
    let mut test = SelfTest::new(input, THREADS * outputs);
    (test.mode, test.n) = (mode, n);
    test.output.fill(0xEE);
    test.run(&launch(kernel).threads(THREADS as u32).shared(shared(used)).seed(seed)).unwrap()
}

#[test]
fn lanes_take_words_in_order() {
    for seed in 0..4 {
        let input = cases::takes(seed);
        let stream: Vec<u32> = input[..STREAM].iter().flat_map(|v| [v & 0xFFFF, v >> 16]).collect();
        let output = run("takes", [0, STREAM as u32], STREAM * 4, &input, 16, seed);
        let mut takers = BTreeSet::new();
        for warp in 0..THREADS / 32 {
            let own = |lane: usize| &input[STREAM + (warp * 32 + lane) * 5..][..5];
            let (mut taken, mut x) = (0, [0; 32]);
            let place = |taken: usize| (TABLE_AT + warp * 66 + 2 * taken) as u32;
            for step in 0..8 {
                let before = taken;
                for lane in 0..32 {
                    if step % 2 == 0 {
                        x[lane] = own(lane)[1 + step / 2];
                    }
                    if x[lane] <= 0xFFFF {
                        x[lane] = x[lane] << 16 | stream[warp * 33 + taken];
                        taken += 1;
                    }
                }
                for lane in 0..32 {
                    let out = &output[(warp * 32 + lane) * 16 + 2 * step..][..2];
                    assert_eq!(out, [x[lane], place(taken)], "step {step} of lane {lane}, warp {warp}, seed {seed}");
                }
                takers.insert(taken - before);
            }
            // So the bytes after it were read, and did not matter.
            assert_eq!(place(taken), own(0)[0]);
        }
        assert!([0, 1, 32].iter().all(|n| takers.contains(n)) && takers.len() > 3, "{takers:?}");
    }
}

#[test]
fn windows_move_where_they_are_told_to() {
    for seed in 0..4 {
        let input = cases::windows(seed);
        let output = run("windows", [0, STREAM as u32], STREAM * 4, &input, 24, seed);
        for t in 0..THREADS {
            let mut first = t * 2;
            for step in 0..6 {
                first += usize::from(input[STREAM + t * 6 + step] != 0);
                let next = (TABLE_AT + 4 * (first + 3)) as u32;
                let expected = [input[first], input[first + 1], input[first + 2], next];
                assert_eq!(output[t * 24 + step * 4..][..4], expected, "step {step} of thread {t}, seed {seed}");
            }
        }
    }
}

#[test]
fn loads_of_each_kind_find_what_stores_of_each_kind_left() {
    for seed in 0..4 {
        let input = cases::random(THREADS * 8, seed);
        let output = run("shared_words", [0, 0], THREADS * 32, &input, 19, seed);
        for (t, out) in output.chunks_exact(19).enumerate() {
            let mut bytes: Vec<u8> = input[(t ^ 33) * 8..][..8].iter().flat_map(|v| v.to_le_bytes()).collect();
            bytes[25] = bytes[0];
            let number = |at: usize, len: usize| {
                bytes[at..at + len].iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
            };
            let mut expected: Vec<u32> = [0, 4, 8, 12, 16, 20, 24, 28].map(|at| number(at, 4)).to_vec();
            expected.extend([8, 12, 24, 28, 12].map(|at| number(at, 4)));
            expected.push(number(18, 2) | number(28, 2) << 16);
            expected.push(number(3, 1) | number(17, 1) << 8 | number(25, 1) << 16 | number(30, 1) << 24);
            expected.extend([20, 4].map(|at| number(at, 4)));
            expected.push(number(26, 2) | number(14, 2) << 16);
            expected.push(1);
            assert_eq!(out, expected, "thread {t}, seed {seed}");
        }
    }
}

#[test]
fn all_that_is_added_counts() {
    for seed in 0..4 {
        let input = cases::random(THREADS, seed);
        let output = run("shared_sums", [0, 0], 256, &input, 3, seed);
        let sum = |begin: usize, of: &mut dyn Iterator<Item = u32>| {
            (u64::from(!(begin as u32)) + of.map(u64::from).sum::<u64>()) as u32
        };
        for (t, out) in output.chunks_exact(3).enumerate() {
            let (warp, some) = (t / 32, t % 7);
            assert_eq!(out[0], sum(1 + warp, &mut input[warp * 32..][..32].iter().map(|v| !v)), "thread {t}");
            assert_eq!(out[1], sum(0, &mut input.iter().copied()), "thread {t}");
            let of_some = &mut input.iter().skip(some).step_by(7).flat_map(|&v| [v, 1]);
            assert_eq!(out[2], sum(40 + some, of_some), "thread {t}");
        }
    }
}

#[test]
fn global_memory_is_loaded_as_it_was_stored() {
    let input = cases::random(THREADS * 8, 7);
    let output = run("memory", [0, 0], 0, &input, 28, 0);
    for (t, (words, out)) in input.chunks_exact(8).zip(output.chunks_exact(28)).enumerate() {
        let bytes: Vec<u8> = words.iter().flat_map(|v| v.to_le_bytes()).collect();
        // Bytes, the lowest first.
        let of = |at: [usize; 4]| u32::from_le_bytes(at.map(|i| bytes[i]));
        let w = words;
        let mut expected = words.to_vec(); // ldg128, ldg128_stream
        expected.extend([w[2], w[3], w[6], w[7]]); // ldg64_stream
        expected.extend([w[3], w[2], w[1], w[0]]); // load128
        expected.extend([w[2], w[3]]); // load64
        expected.extend([w[5], of([6, 7, 16, 17]), of([1, 15, 23, 28])]);
        // The content stored by now: bytes 0 to 31 are the input's, and 32 to 47 are the input's 8 to 15 and 24 to 31.
        expected.extend([w[3], of([18, 19, 27, 25]), of([26, 27, 28, 29])]);
        expected.extend([w[5], w[6], w[7], w[4]]); // load128
        assert_eq!(out, expected, "thread {t}");
    }
}

#[test]
fn additions_say_what_was_there() {
    const BEFORE: u32 = 0xEEEE_EEEE;
    for seed in 0..4 {
        let input = cases::random(THREADS, seed);
        let output = run("arrivals", [0, 0], 0, &input, 4, seed);
        let mut ranks: Vec<u32> = output.chunks_exact(4).map(|out| out[1]).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq((0..THREADS as u32).map(|i| BEFORE + i)), "seed {seed}");
        for (t, out) in output.chunks_exact(4).enumerate() {
            assert_eq!([out[0], out[2]], [BEFORE, BEFORE.wrapping_add(input[t])], "thread {t}");
            let last = match t {
                0 => BEFORE + THREADS as u32,
                1 => input.iter().fold(BEFORE, |sum, &v| sum.wrapping_add(v)),
                _ => BEFORE,
            };
            assert_eq!(out[3], last, "thread {t}");
        }
    }
}

/// The words that `copies` reads, thread by thread: buffers of `SLOT` bytes change only where a copy writes.
fn copied(mode: u32, input: &[u32]) -> Vec<u32> {
    const SLOT: usize = 1024;
    let (two, in_pieces) = (mode >= 3, mode % 3 == 1);
    let mut sums = vec![0u32; THREADS];
    for warp in 0..4 {
        let mut buffers: Vec<u32> = (0..2 * SLOT as u32).map(|i| i * 4).collect();
        for (i, slot) in (warp..SLOTS).step_by(4).enumerate() {
            let (from, units) = (&input[slot * 260..][..SLOT], 256 - slot * 51 % 256);
            let buffer = &mut buffers[if two { i % 2 * SLOT } else { 0 }..][..SLOT];
            if in_pieces {
                let (first, second) = (units.div_ceil(4) * 4, units.div_ceil(2) * 4);
                buffer[..first].copy_from_slice(&from[..first]);
                buffer[SLOT - second..].copy_from_slice(&from[SLOT / 2..][..second]);
            } else {
                buffer[..units * 4].copy_from_slice(&from[..units * 4]);
            }
            for (k, &word) in buffer.iter().enumerate() {
                let sum = &mut sums[warp * 32 + k % 32];
                *sum = sum.wrapping_mul(0x0100_0193).wrapping_add(word);
            }
        }
    }
    sums
}

#[test]
pub fn copies_arrive_by_the_time_they_are_waited_for() {
    let lens = (0..SLOTS).map(|slot| (256 - slot * 51 % 256) * 16);
    assert_eq!((lens.clone().min(), lens.max()), (Some(16), Some(4096)));
    for (mode, seed) in (0..6).flat_map(|mode| (0..3).map(move |seed| (mode, seed))) {
        let input = cases::slots(seed);
        let found = run("copies", [mode, SLOTS as u32], cases::COPIES, &input, 1, seed);
        assert_eq!(found, copied(mode, &input), "mode {mode}, seed {seed}");
    }
}
