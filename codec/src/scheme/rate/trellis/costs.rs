//! The cost of magnitudes in bits.

use super::Viterbi;
use super::branches::Branches;
use crate::scheme::rate::LARGEST_TRELLIS_MAGNITUDE;

/// The largest magnitude used.
pub(super) const LARGEST: i32 = LARGEST_TRELLIS_MAGNITUDE as i32;

/// Magnitudes with a cost: those that writers use, 0 to 62, and one that is unused, so that symbols stay away from the
/// ends of their range.
pub(crate) const MAGNITUDES: usize = LARGEST as usize + 2;

/// The bits by which an unseen magnitude costs more than the one before it.
const UNSEEN: f32 = 0.25;

/// Rounds of [`Costs::fitted`]; more rounds change the error by less than a thousandth.
const ROUNDS: usize = 3;

/// The magnitude of the level `n + 1/2`, which equals that of its symbol.
pub(crate) fn magnitude(n: i8) -> usize {
    let symbol = n >> 1;
    (symbol ^ (symbol >> 7)) as usize
}

/// Bits of each magnitude, without its sign, which costs the same for all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs(pub(crate) [f32; MAGNITUDES]);

impl Costs {
    /// The bits of an ideal coder for magnitudes with these counts. Beyond the largest that occurs, each one costs more
    /// than the one before it; none costs infinitely much.
    pub(crate) fn of_counts(counts: &[u64; MAGNITUDES]) -> Self {
        // Adds half an occurrence to each: magnitudes missing from a sample may yet occur.
        let occurrences = |n: u64| n as f64 + 0.5;
        let sum: f64 = counts.iter().map(|&n| occurrences(n)).sum();
        let mut bits = counts.map(|n| (sum / occurrences(n)).log2() as f32);
        let seen = counts.iter().rposition(|&n| n > 0).map_or(0, |largest| largest + 1);
        for m in seen.max(1)..MAGNITUDES {
            bits[m] = bits[m].max(bits[m - 1] + UNSEEN);
        }
        Self(bits)
    }

    /// Costs that nearly agree with the path that they lead to: starting from rounded weights, paths are found and
    /// their magnitudes counted. `x`, `cols`, `tile` and `lambda` are as for [`Viterbi::levels`] and [`Branches::new`];
    /// a sample of the rows is enough.
    pub(crate) fn fitted(x: &[f32], cols: usize, tile: usize, lambda: f32) -> Self {
        let mut counts = [0; MAGNITUDES];
        x.iter().for_each(|x| counts[((x.abs() / 2.0) as usize).min(LARGEST as usize)] += 1);
        let (mut viterbi, mut levels) = (Viterbi::default(), vec![0; x.len()]);
        for _ in 0..ROUNDS {
            viterbi.levels(x, cols, tile, &Branches::new(&Self::of_counts(&counts), lambda), &mut levels);
            counts = [0; MAGNITUDES];
            levels.iter().for_each(|&n| counts[magnitude(n)] += 1);
        }
        Self::of_counts(&counts)
    }
}
