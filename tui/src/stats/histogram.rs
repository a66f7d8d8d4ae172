//! Counting into bins.

/// Counts how many of `sorted` (ascending, finite) lie in each of `bins` parts of equal width between the first and the last of them; on a
/// logarithmic axis if `log`, for which they must be above 0. A value on a border is in the part above it, but the last one is in
/// the last part.
///
/// The counts add up to the number of values, whatever they are.
///
/// ```
/// use wcodec_tui::stats::histogram::bins;
/// assert_eq!(bins(&[0.0, 0.1, 0.5, 1.0], 2, false), [2, 2]);
/// assert_eq!(bins(&[1.0, 5.0, 20.0, 100.0], 2, true), [2, 2]);
/// ```
pub fn bins(sorted: &[f32], bins: usize, log: bool) -> Vec<u64> {
    let bins = bins.max(1);
    let mut counts = vec![0; bins];
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return counts };
    if first == last {
        // All are equal: they stand in the middle.
        counts[bins / 2] = sorted.len() as u64;
        return counts;
    }
    let axis = Axis::new(f64::from(first), f64::from(last), log);
    let mut at = 0;
    for (i, count) in counts.iter_mut().enumerate() {
        let end = if i + 1 == bins {
            sorted.len()
        } else {
            let border = axis.value((i + 1) as f64 / bins as f64);
            sorted.partition_point(|&x| f64::from(x) < border).max(at)
        };
        *count = (end - at) as u64;
        at = end;
    }
    counts
}

/// An axis from one value to another.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// From `low` to `high`; linear where a logarithm cannot be had.
    pub fn new(low: f64, high: f64, log: bool) -> Self {
        Self { low, high, log: log && low > 0.0 && high.is_finite() }
    }

    /// The value at a part of the axis, from 0 to 1.
    pub fn value(&self, part: f64) -> f64 {
        if self.log {
            (self.low.ln() + (self.high.ln() - self.low.ln()) * part).exp()
        } else {
            self.low + (self.high - self.low) * part
        }
    }

    /// The place of a value on the axis, from 0 to 1; in the middle where the axis has no length.
    pub fn part(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 }
    }
}
