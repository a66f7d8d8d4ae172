//! Arithmetic primitives, against integer and f64 arithmetic.

use super::cases::{self, THREADS};
use super::{
    SelfTest, bf16, f16, launch, nearest_bf16, nearest_f16, place_in_a, place_in_b, place_in_c, value_of_bf16,
    value_of_f16,
};

/// The output of a kernel for `input`; each thread takes `words` words and outputs `outputs`.
fn run(kernel: &str, mode: u32, input: &[u32], words: usize, outputs: usize) -> Vec<u32> {
    let threads = input.len() / words;
    let mut test = SelfTest::new(input, threads * outputs);
    test.mode = mode;
    test.run(&launch(kernel).grid((threads / THREADS) as u32).threads(THREADS as u32)).unwrap()
}

/// Whether two floats have the same bits, or both are NaN.
fn alike(a: u32, b: f32) -> bool {
    a == b.to_bits() || (f32::from_bits(a).is_nan() && b.is_nan())
}

/// A sum. If f64 has too few bits for it, the one of its two neighbours whose last bit is 1: it is never midway between
/// two f32, and is on the sum's side of the midpoint, so it rounds to the same f32.
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // The exact rounding error.
    let more = sum - a;
    let rest = (a - (sum - more)) + (b - more);
    if !sum.is_finite() || rest == 0.0 || sum.to_bits() & 1 == 1 {
        sum
    } else if (rest > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

#[test]
fn floats_are_rounded_once() {
    for seed in 0..3 {
        let input = cases::floats(seed);
        let output = run("floats", 0, &input, 3, 8);
        for (words, out) in input.chunks_exact(3).zip(output.chunks_exact(8)) {
            let [a, b, c] = [0, 1, 2].map(|i| f64::from(f32::from_bits(words[i])));
            // f64 holds all bits of products. Quotients and roots of f32 come no nearer to a midpoint between two f32
            // than f64 can resolve, unless they lie exactly there.
            let expected = [sum_to_odd(a, b), a * b, a / b, a.sqrt(), sum_to_odd(a * b, c), f64::from(words[0] as i32)];
            for (k, value) in expected.into_iter().enumerate() {
                assert!(alike(out[k], value as f32), "word {k} of {words:08x?}: {:08x}, not {value}", out[k]);
            }
            assert_eq!(out[6], f16(words[0]) | f16(words[1]) << 16, "{words:08x?}");
            assert_eq!(out[7], bf16(words[0]) | bf16(words[1]) << 16, "{words:08x?}");
        }
    }
}

#[test]
fn digits_are_what_an_element_is_rounded_to() {
    for seed in 0..3 {
        let input = cases::digits(seed);
        for (words, out) in input.chunks_exact(2).zip(run("digits", 0, &input, 2, 3).chunks_exact(3)) {
            let v = f64::from(f32::from_bits(words[0])) * f64::from(f32::from_bits(words[1]));
            if !v.is_finite() {
                assert!(out.iter().all(|&bits| !f32::from_bits(bits).is_finite()), "{words:08x?}");
                continue;
            }
            // The addend is even, and a unit in the last place of the sum is 1.
            let above = |least: u32, v: f64| least.wrapping_add_signed(v.round_ties_even() as i32);
            let rest = v - v.round_ties_even();
            assert_eq!(out[0], above(0x4B40_8080, v), "{words:08x?}");
            assert!(f64::from(f32::from_bits(out[1])) == rest, "{words:08x?}");
            assert_eq!(out[2], above(0x4B40_0080, rest * 128.0), "{words:08x?}");
        }
    }
}

#[test]
fn powers_are_within_two_units_of_the_last_place() {
    let input = cases::powers();
    for (v, found) in input.iter().zip(run("powers", 0, &input, 1, 1)) {
        let [v, found] = [*v, found].map(f32::from_bits);
        assert!(cases::is_power(v, found), "e^{v}: {found}");
    }
}

#[test]
fn every_f16_has_its_value() {
    let output = SelfTest::new(&[], 1 << 16).run(&launch("halves").grid(128).threads(512)).unwrap();
    for (h, found) in output.into_iter().enumerate() {
        assert!(alike(found, value_of_f16(h as u16) as f32), "{h:04x}: {found:08x}");
    }
}

#[test]
fn pairs_are_added_half_by_half() {
    for (mode, seed) in (0..2).flat_map(|mode| (0..3).map(move |seed| (mode, seed))) {
        let input = cases::pairs(mode, seed);
        for (words, sum) in input.chunks_exact(2).zip(run("pairs", mode, &input, 2, 1)) {
            let half = |i: u32| {
                let [a, b] = [0, 1].map(|k| (words[k] >> (16 * i)) as u16);
                // f64 holds all bits of sums of f16; also of bf16, unless one of the two is too small to matter.
                if mode == 0 {
                    nearest_f16(value_of_f16(a) + value_of_f16(b))
                } else {
                    nearest_bf16(value_of_bf16(a) + value_of_bf16(b))
                }
            };
            assert_eq!(sum, half(0) | half(1) << 16, "mode {mode}, {words:08x?}");
        }
    }
}

#[test]
fn whole_numbers_are_what_they_are() {
    for seed in 0..3 {
        let (input, divisors) = (cases::integers(seed), cases::divisors());
        // Nine numbers for each divisor.
        let count = divisors.len() * 9;
        let output = run("integers", 0, &input, 4, 11);
        let all: Vec<u32> = input.chunks_exact(4).map(|words| words[0]).collect();
        for (i, out) in output.chunks_exact(11).enumerate() {
            let (a, b, lane) = (all[i], input[i * 4 + 1], i % 32);
            let warp = &all[i - lane..][..32];
            let zeros = (0..32).rev().take_while(|bit| a >> bit & 1 == 0).count();
            assert_eq!(out[0], zeros as u32);
            assert_eq!(out[1], (u64::from(a) * u64::from(b) / (1 << 32)) as u32);
            let d = divisors[i % count / 9];
            assert_eq!(out[2], (a & 0x7FFF_FFFF) / d, "{a} by {d}");
            for (k, by) in [1, 2, 4].into_iter().enumerate() {
                assert_eq!(out[3 + k], warp[if lane < by { lane } else { lane - by }], "lane {lane}, by {by}");
            }
            let larger = |at: u32| (a >> at & 0xFFFF).max(b >> at & 0xFFFF);
            assert_eq!(out[6], larger(16) << 16 | larger(0));
            assert_eq!(Some(&out[7]), warp.iter().max());
            assert_eq!(out[8], warp[..=lane].iter().map(|&v| u64::from(v)).sum::<u64>() as u32);
            assert_eq!([out[9], out[10]], [a, b]);
        }
    }
}

#[test]
fn products_of_small_matrices_are_exact() {
    for (mode, seed) in (0..2).flat_map(|mode| (0..3).map(move |seed| (mode, seed))) {
        let (numbers, words) = cases::small_matrices(mode, seed);
        let output = run("products", mode, &words, 10, 4);
        for (lanes, sums) in numbers.chunks_exact(32 * 16).zip(output.chunks_exact(32 * 4)) {
            let (mut a, mut b) = ([[0; 16]; 16], [[0; 8]; 16]);
            for (lane, r, half) in (0..32).flat_map(|lane| (0..8).map(move |i| (lane, i / 2, i % 2))) {
                let (row, col) = place_in_a(lane, r, half);
                a[row][col] = lanes[lane * 16 + 2 * r + half];
                if r < 2 {
                    let (row, col) = place_in_b(lane, r, half);
                    b[row][col] = lanes[lane * 16 + 8 + 2 * r + half];
                }
            }
            for (i, &found) in sums.iter().enumerate() {
                let (row, col) = place_in_c(i / 4, i % 4);
                let sum: i32 = (0..16).map(|k| a[row][k] * b[k][col]).sum();
                let expected = (lanes[i / 4 * 16 + 12 + i % 4] + sum) as f32;
                assert_eq!(found, expected.to_bits(), "mode {mode}, row {row}, column {col}");
            }
        }
    }
}
