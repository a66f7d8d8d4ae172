//! Samples of a time, of which the last ones are kept.

use std::collections::VecDeque;

/// Samples that a series keeps.
pub const KEPT: usize = 256;

/// The sample below or at which a share `q` (0 to 1) of all samples lie: nearest rank, so always one of them.
///
/// ```
/// use wcodec_tui::timing::series::percentile;
/// let sorted = [1.0, 2.0, 3.0, 4.0];
/// assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.95), percentile(&[], 0.5)), (Some(2.0), Some(4.0), None));
/// ```
pub fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Units of 1e9 bytes each second; nothing where no time was measured.
pub fn gb_per_s(bytes: u64, ms: f64) -> Option<f64> {
    (ms > 0.0).then(|| bytes as f64 / ms / 1e6)
}

/// Times of rounds, milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    recent: VecDeque<f64>,
    /// All that were ever added, those that are not kept among them.
    runs: u64,
    /// Decoded bytes of a round.
    pub bytes: u64,
}

/// The figures of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Rounds in all.
    pub runs: u64,
    /// Rounds that the other figures are about: the last ones.
    pub samples: usize,
    /// Half of the rounds took no longer, milliseconds.
    pub p50: f64,
    /// 95 % of the rounds took no longer, milliseconds.
    pub p95: f64,
    /// The shortest, milliseconds.
    pub min: f64,
    /// The longest, milliseconds.
    pub max: f64,
    /// Decoded bytes at the median time, 1e9 a second.
    pub gb_per_s: Option<f64>,
}

impl Series {
    /// Adds a round's time, milliseconds.
    pub fn push(&mut self, ms: f64) {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(ms);
        self.runs += 1;
    }

    /// Counts rounds whose times are not known.
    pub fn skip(&mut self, rounds: u64) {
        self.runs += rounds;
    }

    /// The last rounds' times, the oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = f64> + ExactSizeIterator + '_ {
        self.recent.iter().copied()
    }

    /// Rounds in all.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Its figures; nothing before the first round.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let p50 = percentile(&sorted, 0.5)?;
        Some(Summary {
            runs: self.runs,
            samples: sorted.len(),
            p50,
            p95: percentile(&sorted, 0.95)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            gb_per_s: gb_per_s(self.bytes, p50),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_samples() {
        let mut series = Series { bytes: 2_000_000, ..Series::default() };
        assert_eq!(series.summary(), None);
        // 1 to 100, in an order that is none.
        (0..100).for_each(|i| series.push(f64::from(i * 37 % 100 + 1)));
        let s = series.summary().unwrap();
        assert_eq!((s.runs, s.samples, s.p50, s.p95, s.min, s.max), (100, 100, 50.0, 95.0, 1.0, 100.0));
        // 2 MB in 50 ms are 40 MB/s.
        assert!((s.gb_per_s.unwrap() - 0.04).abs() < 1e-12);
    }

    #[test]
    fn only_the_last_samples_are_kept() {
        let mut series = Series::default();
        (0..1000).for_each(|i| series.push(f64::from(i)));
        series.skip(5);
        let s = series.summary().unwrap();
        assert_eq!((s.runs, s.samples, s.min, s.max), (1005, KEPT, 744.0, 999.0));
        assert_eq!(series.recent().next_back(), Some(999.0));
    }

    #[test]
    fn one_sample_is_every_percentile() {
        for q in [0.0, 0.5, 0.95, 1.0] {
            assert_eq!(percentile(&[7.0], q), Some(7.0));
        }
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 0.5), Some(2.0));
        assert_eq!(gb_per_s(10, 0.0), None);
    }
}
