//! Norms of vectors, against sums in f64.

use super::*;
use crate::gpu::norm::{Norm, NormKind, NormVectors, launch};
use half::{bf16, f16};

fn number(dtype: Dtype, memory: &[u8], i: usize) -> f64 {
    let bits = u16::from_le_bytes(memory[2 * i..][..2].try_into().unwrap());
    if dtype == Dtype::F16 { f16::from_bits(bits).to_f64() } else { bf16::from_bits(bits).to_f64() }
}

fn rounded(dtype: Dtype, value: f32) -> f64 {
    if dtype == Dtype::F16 { f16::from_f32(value).to_f64() } else { bf16::from_f32(value).to_f64() }
}

fn random(rng: &mut StdRng, dtype: Dtype, count: usize, range: Range<f32>) -> Buffer {
    let bits = |v| if dtype == Dtype::F16 { f16::from_f32(v).to_bits() } else { bf16::from_f32(v).to_bits() };
    let bytes: Vec<u8> = (0..count).flat_map(|_| bits(rng.random_range(range.clone())).to_le_bytes()).collect();
    Buffer::from(&bytes[..])
}

/// A test's vectors, and the work that it asks for.
struct Case {
    dtype: Dtype,
    kind: NormKind,
    count: usize,
    cols: usize,
    bias: bool,
    residual: bool,
    scaled: bool,
}

fn check(rng: &mut StdRng, case: &Case) {
    let &Case { dtype, kind, count, cols, .. } = case;
    // A mean that is not small beside the spread.
    let mut x = random(rng, dtype, count * cols, -1.0..3.0);
    let mut gain = random(rng, dtype, cols, -0.5..0.5);
    let mut bias = random(rng, dtype, cols, -1.0..1.0);
    let mut residual = random(rng, dtype, count * cols, -2.0..2.0);
    let mut next = random(rng, dtype, cols, -1.0..1.0);
    let mut y = Buffer::new(count * cols * 2 + 2 * GUARD);
    let mut scaled = Buffer::new(count * cols * 2 + 2 * GUARD);
    y.fill(POISON);
    scaled.fill(POISON);
    let norm = Norm {
        kind,
        epsilon: 1e-5,
        gain: gain.address(),
        gain_offset: 1.0,
        bias: if case.bias { bias.address() } else { 0 },
    };
    let vectors = NormVectors {
        dtype,
        count,
        cols,
        x: x.address(),
        y: y.address() + GUARD as u64,
        scale: 0.75,
        residual: if case.residual { residual.address() } else { 0 },
        scaled: if case.scaled { scaled.address() + GUARD as u64 } else { 0 },
        next_gain: next.address(),
        next_offset: 1.0,
        next_scale: 0.5,
    };
    let (params, grid, threads, shared) = launch(&norm, &vectors).unwrap().unwrap();
    // Another launch may have written all of it: loads of what never changes would be mistakes.
    let memory = [&mut x, &mut gain, &mut bias, &mut residual, &mut next, &mut y, &mut scaled];
    let memory: Vec<Memory<'_>> = memory.into_iter().map(|buffer| Memory::write::<u8>(buffer)).collect();
    let run = Launch::new(Module::Util, "wcodec_norm").grid(grid).threads(threads).shared(shared);
    run.overlaps(true).run(params.as_bytes(), &memory).unwrap_or_else(|e| panic!("{e}"));
    drop(memory);
    for buffer in [&y, &scaled] {
        let guards = buffer[..GUARD].iter().chain(&buffer[buffer.len() - GUARD..]);
        assert!(guards.copied().all(|b| b == POISON), "it writes elsewhere");
    }
    let last = if dtype == Dtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
    for vector in 0..count {
        let at = |c: usize| number(dtype, &x, vector * cols + c);
        let mean = if kind == NormKind::Layer { (0..cols).map(at).sum::<f64>() / cols as f64 } else { 0.0 };
        let squares = (0..cols).map(|c| (at(c) - mean).powi(2)).sum::<f64>() / cols as f64;
        for c in 0..cols {
            let i = vector * cols + c;
            let mut want = (at(c) - mean) / (squares + 1e-5).sqrt() * (1.0 + number(dtype, &gain, c));
            want += if case.bias { number(dtype, &bias, c) } else { 0.0 };
            want *= 0.75;
            want += if case.residual { number(dtype, &residual, i) } else { 0.0 };
            let got = number(dtype, &y[GUARD..], i);
            assert!((got - want).abs() <= want.abs() * last * 1.001 + 1e-5, "({vector}, {c}): {got}, not {want}");
            if case.scaled {
                let by = (number(dtype, &next, c) as f32).mul_add(0.5, 0.5);
                assert_eq!(number(dtype, &scaled[GUARD..], i), rounded(dtype, got as f32 * by), "({vector}, {c})");
            }
        }
    }
}

#[test]
fn norms_are_those_of_exact_sums() {
    let mut rng = StdRng::seed_from_u64(90);
    // Fewer columns than a warp has, not a multiple of eight, and more than a block of threads takes at once.
    for (i, cols) in [5, 64, 300, 1021, 5000].into_iter().enumerate() {
        for (j, dtype) in [Dtype::F16, Dtype::BF16].into_iter().enumerate() {
            for kind in [NormKind::Rms, NormKind::Layer] {
                let (bias, residual, scaled) = (i % 2 == j, (i + j) % 3 != 0, i % 2 == 0);
                check(&mut rng, &Case { dtype, kind, count: 1 + i % 3, cols, bias, residual, scaled });
            }
        }
    }
}

#[test]
fn norms_of_other_elements_are_refused() {
    let vectors = NormVectors {
        dtype: Dtype::F32,
        count: 1,
        cols: 8,
        x: 16,
        y: 16,
        scale: 1.0,
        residual: 0,
        scaled: 0,
        next_gain: 0,
        next_offset: 0.0,
        next_scale: 1.0,
    };
    assert!(launch(&Norm::default(), &vectors).unwrap_err().to_string().contains("F16 or BF16"));
    let none = NormVectors { dtype: Dtype::F16, count: 0, ..vectors };
    assert!(launch(&Norm::default(), &none).unwrap().is_none());
}
