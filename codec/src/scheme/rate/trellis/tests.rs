use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

use super::costs::{MAGNITUDES, magnitude};
use super::*;
use crate::coder::filter::trellis;

fn found(x: &[f32], cols: usize, tile: usize, costs: &Costs, lambda: f32) -> Vec<i8> {
    let mut levels = vec![0; x.len()];
    Viterbi::default().levels(x, cols, tile, &Branches::new(costs, lambda), &mut levels);
    levels
}

/// The cost of the path with these levels, by the definition.
fn cost(x: &[f32], levels: &[i8], costs: &Costs, lambda: f32) -> f64 {
    let each = x.iter().zip(levels).map(|(x, &n)| {
        let error = f64::from(x.clamp(-126.0, 126.0)) - f64::from(n) - 0.5;
        error * error + f64::from(lambda) * f64::from(costs.0[magnitude(n)])
    });
    each.sum()
}

/// Whether the levels are a path with magnitudes that writers may use, judged by the filter alone.
fn is_path(levels: &[i8]) -> bool {
    let mut bytes = levels.to_vec();
    trellis::symbols_of(&mut bytes);
    let magnitudes = bytes.iter().all(|&s| (0..=62).contains(&(s ^ (s >> 7))));
    trellis::levels_of(&mut bytes);
    magnitudes && bytes == levels
}

/// The least cost of any path, by exhaustive search over the path bits with every level that each allows. Levels are
/// computed from symbols by the filter's rule.
fn least(x: &[f32], costs: &Costs, lambda: f32) -> f64 {
    let paths = (0..1u32 << x.len()).map(|path| {
        let (mut quantizer, mut before) = (0u8, 0u8);
        let each = x.iter().enumerate().map(|(j, x)| {
            let b = (path >> j & 1) as u8;
            let symbols = (-63..=62i8).filter(|s| s & 1 == b as i8);
            let all = symbols.map(|s| {
                let (negative, m) = (s >> 7, s ^ (s >> 7));
                let n = (2 * m + (quantizer as i8 ^ (negative & 1))) ^ negative;
                cost(&[*x], &[n], costs, lambda)
            });
            let best = all.fold(f64::INFINITY, f64::min);
            (quantizer, before) = (before ^ b, quantizer);
            best
        });
        each.sum::<f64>()
    });
    paths.fold(f64::INFINITY, f64::min)
}

fn falling(n: f64, ratio: f64) -> Costs {
    Costs::of_counts(&std::array::from_fn(|m| (n * ratio.powi(m as i32)) as u64))
}

prop_compose! {
    /// Weights near zero, anywhere, and at the ends of the range, some of them equally near to two levels.
    fn weights(longest: usize)(
        kind in 0usize..4,
        x in prop::collection::vec(prop_oneof![-1.0f32..1.0, (-8..8i32).prop_map(|i| i as f32 / 8.0)], 1..=longest),
    ) -> Vec<f32> {
        x.into_iter().map(|x| [x * 2.5, x * 12.0, x * 140.0, x.signum() * 124.0 + 4.0 * x][kind]).collect()
    }
}

proptest! {
    #[test]
    fn no_path_is_cheaper(x in weights(6), ratio in 0.05f64..1.0, log_n in 1i32..24, lambda in prop_oneof![Just(0.0f32), 0.0f32..1.0]) {
        let costs = falling(2f64.powi(log_n), ratio);
        let levels = found(&x, x.len(), x.len(), &costs, lambda);
        prop_assert!(is_path(&levels));
        let (is, least) = (cost(&x, &levels, &costs, lambda), least(&x, &costs, lambda));
        prop_assert!(is <= least + 1e-3, "{is} instead of {least}: {levels:?}");
    }

    #[test]
    fn counts_of_any_kind_make_costs(counts in prop::collection::vec(prop_oneof![Just(0u64), 0u64..5, any::<u32>().prop_map(u64::from)], MAGNITUDES)) {
        let costs = Costs::of_counts(&counts.clone().try_into().unwrap());
        prop_assert!(costs.0.iter().all(|b| b.is_finite() && *b >= 0.0), "{costs:?}");
        let last = counts.iter().rposition(|&n| n > 0).unwrap_or(0);
        prop_assert!(costs.0[last..].is_sorted_by(|a, b| a < b) || counts.iter().all(|&n| n == 0));
        let x: Vec<f32> = (0..200).map(|i| (i * 37 % 260) as f32 - 130.0).collect();
        prop_assert!(is_path(&found(&x, 200, 200, &costs, 0.3)));
    }

    #[test]
    fn rows_and_tiles_are_independent(rows in 1usize..10, cols in 1usize..300, tile in 1usize..200, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let x: Vec<f32> = (0..rows * cols).map(|_| 9.0 * rng.sample::<f32, _>(StandardNormal)).collect();
        let costs = falling(1e4, 0.7);
        let together = found(&x, cols, tile, &costs, 0.3);
        for (x, levels) in x.chunks(cols).zip(together.chunks(cols)) {
            for (x, levels) in x.chunks(tile).zip(levels.chunks(tile)) {
                prop_assert_eq!(&found(x, x.len(), x.len(), &costs, 0.3), levels);
                prop_assert!(is_path(levels));
            }
        }
    }
}

#[test]
fn levels_stay_within_their_range() {
    let costs = falling(1e3, 0.5);
    for x in [1e30f32, 127.0, f32::MAX, f32::INFINITY] {
        let levels = found(&[x, -x, x, -x, x], 5, 5, &costs, 0.1);
        assert!(is_path(&levels));
        assert!(levels.iter().enumerate().all(|(j, &n)| if j % 2 == 0 { n > 115 } else { n < -115 }), "{levels:?}");
    }
    assert!(is_path(&found(&[f32::NAN; 9], 9, 9, &costs, 0.1)));
    assert!(found(&[], 5, 5, &costs, 0.1).is_empty());
}

#[test]
fn magnitudes_are_those_of_symbols() {
    let mut levels: Vec<i8> = (-126..=125).collect();
    let magnitudes: Vec<usize> = levels.iter().map(|&n| magnitude(n)).collect();
    trellis::symbols_of(&mut levels);
    let of_symbols: Vec<usize> = levels.iter().map(|&s| (s ^ (s >> 7)) as usize).collect();
    assert_eq!(magnitudes, of_symbols);
}

/// Entropy of the magnitudes plus one bit for the sign, bits per weight.
fn entropy(levels: impl Iterator<Item = usize>) -> f64 {
    let (mut counts, mut n) = ([0u32; 1000], 0.0);
    levels.for_each(|m| {
        counts[m] += 1;
        n += 1.0;
    });
    1.0 + counts.iter().filter(|&&c| c > 0).map(|&c| f64::from(c) / n * (n / f64::from(c)).log2()).sum::<f64>()
}

/// The error of levels at half steps, with the step at which independently rounded weights have the entropy `bits`.
fn rounded(x: &[f32], bits: f64) -> f64 {
    let (mut small, mut large) = (0.01f64, 100.0f64);
    for _ in 0..40 {
        let step = (small * large).sqrt();
        let high = entropy(x.iter().map(|x| (f64::from(x.abs()) / step) as usize)) > bits;
        *(if high { &mut small } else { &mut large }) = step;
    }
    let error = |x: &f32| ((f64::from(x.abs()) / small).floor() + 0.5) * small - f64::from(x.abs());
    x.iter().map(|x| error(x).powi(2)).sum::<f64>() / x.len() as f64
}

#[test]
#[cfg_attr(miri, ignore = "too many weights")]
fn the_error_is_lower_than_that_of_rounding_with_as_many_bits() {
    let mut rng = StdRng::seed_from_u64(1);
    let (cols, tile) = (1000, 256);
    let gauss: Vec<f32> = (0..200 * cols).map(|_| rng.sample(StandardNormal)).collect();
    // Standard deviations, in fine steps, that give about 3 bits.
    for (lambda, deviation) in [(0.0, 3.8), (0.2, 3.86), (0.46, 3.93)] {
        let x: Vec<f32> = gauss.iter().map(|g| g * deviation).collect();
        let costs = Costs::fitted(&x[..40 * cols], cols, tile, lambda);
        let levels = found(&x, cols, tile, &costs, lambda);
        let bits = entropy(levels.iter().map(|&n| magnitude(n)));
        let errors = x.iter().zip(&levels).map(|(x, &n)| (f64::from(*x) - f64::from(n) - 0.5).powi(2));
        let error = errors.sum::<f64>() / x.len() as f64;
        let gain = 10.0 * (rounded(&x, bits) / error).log10();
        assert!((2.95..3.05).contains(&bits), "{bits} bits with lambda {lambda}");
        assert!(gain >= 0.7, "{gain} dB with lambda {lambda}");
    }
}
