//! A tensor's weights: their histogram, and the largest of them.

use std::cmp::Ordering;

/// Bins of a histogram: a number that many others divide, so that any width of a screen takes whole bins.
pub const BINS: usize = 240;
/// Weights that are told with their places.
const OUTLIERS: usize = 5;
/// The histogram ends at so many root mean squares: what is beyond is counted by itself.
const REACH: f64 = 6.0;

/// A weight and its place in the tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlier {
    /// The weight.
    pub value: f64,
    /// The element, in row-major order.
    pub place: u64,
}

/// The figures of a tensor's weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightStats {
    /// Those that are finite.
    pub count: u64,
    /// Infinite ones, and those that are no numbers.
    pub odd: u64,
    /// Those that are 0.
    pub zeros: u64,
    /// Root of the mean square.
    pub rms: f64,
    /// The histogram goes from -span to span.
    pub span: f64,
    /// Weights of each bin, [`BINS`] of them.
    pub counts: Vec<u64>,
    /// Weights beyond it.
    pub beyond: u64,
    /// The largest magnitudes, the largest first.
    pub outliers: Vec<Outlier>,
}

impl WeightStats {
    /// The histogram in so many bars at most, each of as many bins.
    pub fn bars(&self, room: usize) -> Vec<u64> {
        let step = (1..=BINS).find(|s| BINS.is_multiple_of(*s) && BINS / s <= room.max(1)).unwrap_or(BINS);
        self.counts.chunks(step).map(|bins| bins.iter().sum()).collect()
    }
}

/// Gathers weights in one pass. They are counted by the upper half of their bits, which tells values apart by less than a hundredth: how
/// far the histogram should go is known at the end.
pub struct Weights {
    counts: Vec<u64>,
    squares: f64,
    outliers: Vec<Outlier>,
}

impl Default for Weights {
    fn default() -> Self {
        Self { counts: vec![0; 1 << 16], squares: 0.0, outliers: Vec::new() }
    }
}

impl Weights {
    /// Adds weights, the first of which has this place.
    pub fn add(&mut self, first: u64, values: impl Iterator<Item = f64>) {
        let mut least = self.least();
        for (at, value) in values.enumerate() {
            self.counts[(value as f32).to_bits() as usize >> 16] += 1;
            if value.is_finite() {
                self.squares += value * value;
                if value.abs() > least {
                    self.outliers.push(Outlier { value, place: first + at as u64 });
                    // The sort is stable: of equal ones, the first counts.
                    self.outliers.sort_by(|a, b| b.value.abs().partial_cmp(&a.value.abs()).unwrap_or(Ordering::Equal));
                    self.outliers.truncate(OUTLIERS);
                    least = self.least();
                }
            }
        }
    }

    /// The magnitude that a weight must exceed to be among the largest.
    fn least(&self) -> f64 {
        self.outliers.get(OUTLIERS - 1).map_or(0.0, |o| o.value.abs())
    }

    /// The figures.
    pub fn stats(self) -> WeightStats {
        let mut stats = WeightStats { counts: vec![0; BINS], outliers: self.outliers, ..WeightStats::default() };
        let values = || {
            let counted = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
            counted.map(|(key, &n)| (f64::from(f32::from_bits((key as u32) << 16)), n))
        };
        stats.count = values().filter(|(v, _)| v.is_finite()).map(|(_, n)| n).sum();
        stats.rms = (self.squares / stats.count.max(1) as f64).sqrt();
        let most = stats.outliers.first().map_or(0.0, |o| o.value.abs());
        stats.span = most.min(REACH * stats.rms);
        for (value, n) in values() {
            if !value.is_finite() {
                stats.odd += n;
                continue;
            }
            stats.zeros += if value == 0.0 { n } else { 0 };
            let part = if stats.span > 0.0 { (value / stats.span + 1.0) / 2.0 } else { 0.5 };
            match part {
                0.0..=1.0 => stats.counts[((part * BINS as f64) as usize).min(BINS - 1)] += n,
                _ => stats.beyond += n,
            }
        }
        stats
    }
}
