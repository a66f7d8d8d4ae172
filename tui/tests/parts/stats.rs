//! Figures of tensors against figures by hand.

use proptest::prelude::*;
use wcodec_tui::stats::error::Differences;
use wcodec_tui::stats::histogram::{Axis, bins};
use wcodec_tui::stats::weights::{BINS, Outlier, WeightStats, Weights};
use wcodec_tui::stats::{ScaleStats, Spread, SymbolStats};

#[test]
fn spreads_have_their_middle() {
    assert_eq!(Spread::of(vec![]), None);
    assert_eq!(Spread::of(vec![3.0]), Some(Spread { min: 3.0, median: 3.0, max: 3.0 }));
    assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 9.0]), Some(Spread { min: 1.0, median: 3.0, max: 9.0 }));
}

#[test]
fn symbols_are_counted_from_the_smallest() {
    let mut bytes = [0; 256];
    (bytes[0], bytes[127], bytes[128], bytes[255]) = (5, 6, 7, 8);
    let s = SymbolStats::of_bytes(&bytes);
    assert_eq!((s.count(0), s.count(127), s.count(-128), s.count(-1), s.total()), (5, 6, 7, 8, 26));
    assert_eq!(s.counts[0], 7);
}

#[test]
fn two_levels_of_the_trellis_are_one_symbol() {
    let mut bytes = [0; 256];
    // Levels 3 and 2, -1 and -2, 127, -128.
    (bytes[3], bytes[2], bytes[255], bytes[254], bytes[127], bytes[128]) = (5, 6, 7, 8, 9, 10);
    let s = SymbolStats::of_trellis(&bytes);
    assert_eq!((s.count(1), s.count(-1), s.count(63), s.count(-64), s.total()), (11, 15, 9, 10, 45));
    assert_eq!(s.levels, Some(6));
}

#[test]
fn percentiles_of_few_scales() {
    let none = ScaleStats::default();
    assert_eq!(none.percentile(50.0), None);
    let one = ScaleStats { sorted: vec![0.5], ..ScaleStats::default() };
    assert_eq!((one.percentile(0.0), one.percentile(99.0)), (Some(0.5), Some(0.5)));
}

#[test]
fn differences_by_hand() {
    let mut sums = Differences::default();
    for (decoded, original) in [(1.0, 1.0), (2.5, 2.0), (-4.0, -3.0), (f64::INFINITY, f64::INFINITY)] {
        sums.add(decoded, original);
    }
    let found = sums.stats();
    assert_eq!((found.max, found.rms, found.snr_db), (1.0, (1.25f64 / 4.0).sqrt(), f64::INFINITY));
    let mut sums = Differences::default();
    sums.add(11.0, 10.0);
    assert!((sums.stats().snr_db - 20.0).abs() < 1e-12 && sums.stats().relative == 0.1);
    assert_eq!((Differences::default().stats().rms, Differences::default().stats().relative), (0.0, 0.0));
    sums.add(f64::NAN, 1.0);
    assert!(sums.stats().max.is_nan() && sums.stats().rms.is_nan());
}

proptest! {
    #[test]
    fn nothing_is_lost(mut values in prop::collection::vec(any::<f32>(), 0..200), count in 0usize..300, log: bool) {
        values.sort_unstable_by(f32::total_cmp);
        let found = bins(&values, count, log);
        prop_assert_eq!(found.len(), count.max(1));
        prop_assert_eq!(found.iter().sum::<u64>(), values.len() as u64);
    }

    #[test]
    fn bins_are_what_counting_gives(
        mut values in prop::collection::vec(1e-6f32..10.0, 2..300),
        count in 1usize..50,
        log: bool,
    ) {
        values.sort_unstable_by(f32::total_cmp);
        let (low, high) = (f64::from(values[0]), f64::from(values[values.len() - 1]));
        prop_assume!(low < high);
        let mut want = vec![0u64; count];
        let mut unsure = 0;
        for &v in &values {
            let v = f64::from(v);
            let at = if log { (v / low).ln() / (high / low).ln() } else { (v - low) / (high - low) } * count as f64;
            // Rounding may put a value that is on a border into either part.
            unsure += u64::from((at - at.round()).abs() < 1e-9);
            want[(at as usize).min(count - 1)] += 1;
        }
        let found = bins(&values, count, log);
        let off: u64 = found.iter().zip(&want).map(|(a, b)| a.abs_diff(*b)).sum();
        prop_assert!(off <= 2 * unsure, "{found:?} {want:?}");
    }
}

#[test]
fn odd_values_are_counted_too() {
    assert_eq!(bins(&[], 3, true), [0, 0, 0]);
    assert_eq!(bins(&[2.0], 3, true), [0, 1, 0]);
    assert_eq!(bins(&[2.0; 7], 4, false), [0, 0, 7, 0]);
    assert_eq!(bins(&[0.0, 1.0], 0, true), [2]);
    assert_eq!(bins(&[f32::MIN, f32::MAX], 2, false).iter().sum::<u64>(), 2);
    assert_eq!(bins(&[1.0, f32::INFINITY], 2, true).iter().sum::<u64>(), 2);
}

#[test]
fn axes_go_there_and_back() {
    for log in [false, true] {
        let axis = Axis::new(1e-4, 0.3, log);
        for part in [0.0, 0.25, 0.5, 1.0] {
            assert!((axis.part(axis.value(part)) - part).abs() < 1e-12);
        }
    }
    assert_eq!(Axis::new(2.0, 2.0, true).part(2.0), 0.5);
    assert_eq!(Axis::new(0.0, 2.0, true).value(0.5), 1.0);
}

fn of(values: &[f64]) -> WeightStats {
    let mut weights = Weights::default();
    let (first, rest) = values.split_at(values.len() / 3);
    weights.add(0, first.iter().copied());
    weights.add(first.len() as u64, rest.iter().copied());
    weights.stats()
}

#[test]
fn weights_by_hand() {
    let mut values = vec![0.5, -0.5, 0.0, f64::NAN, f64::INFINITY];
    values.extend([0.25; 95]);
    values.push(-8.0);
    let found = of(&values);
    assert_eq!((found.count, found.odd, found.zeros, found.beyond), (99, 2, 1, 1));
    assert_eq!(found.outliers[0], Outlier { value: -8.0, place: 100 });
    assert_eq!((found.outliers[1].place, found.outliers[2].place, found.outliers.len()), (0, 1, 5));
    assert!((found.rms - ((64.0 + 0.5 + 95.0 / 16.0) / 99.0f64).sqrt()).abs() < 1e-12);
    assert_eq!(found.span, 6.0 * found.rms);
    for room in 1..300 {
        let bars = found.bars(room);
        assert!(bars.len() <= room && bars.iter().sum::<u64>() == 98, "{room}");
    }
    // A tensor of nothing, and one of zeros.
    assert_eq!((of(&[]).count, of(&[]).span), (0, 0.0));
    assert_eq!((of(&[0.0; 9]).zeros, of(&[0.0; 9]).counts[BINS / 2]), (9, 9));
}

proptest! {
    #[test]
    fn no_weight_is_lost(values in prop::collection::vec(any::<f64>(), 0..200)) {
        let found = of(&values);
        prop_assert_eq!(found.count + found.odd, values.len() as u64);
        prop_assert_eq!(found.counts.iter().sum::<u64>() + found.beyond, found.count);
    }
}
