//! The cost of the best level of each coset, for any weight.

use super::costs::{Costs, LARGEST, magnitude};

/// Cosets: levels four fine steps apart.
pub(super) const COSETS: usize = 4;

/// A number for each coset, or for each state.
pub(super) type Four = [f32; 4];

/// Weights are clamped to this range, in fine steps: the outermost levels are half a step nearer to zero.
const OUTERMOST: f32 = 126.0;

/// Adding this to a number and subtracting it again rounds the number to the nearest integer, which is in the low bits
/// in between, because an f32 has no finer steps there.
const ROUND: f32 = 12_582_912.0;

/// A bin of weights that round to the same integer: for each coset, the best levels at both ends of the bin.
///
/// All levels share the term in the square of the weight's fraction; without it, the cost of a level is linear in the
/// fraction. The minimum of such lines is, at each end, the best level's, and in between it is one of these two unless
/// a third level is best only strictly inside. That does not happen: the range of weights for which a level is best is
/// `4 + lambda / 8 * (second difference of the bits)` wide, which is less than 1 only if the second difference is below
/// `-24 / lambda`.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bin {
    /// The cost of each level at the integer.
    at: [Four; 2],
    /// The change of that cost one step further up.
    slope: [Four; 2],
}

/// Costs of levels, prepared for [`Viterbi::levels`](super::Viterbi::levels) and indexed by the low byte of a rounded
/// weight.
pub(crate) struct Branches {
    bins: Box<[Bin; 256]>,
    /// Twice the `n` of the levels at the ends of the bin.
    levels: Box<[[[i32; COSETS]; 2]; 256]>,
}

impl Branches {
    /// The cost of a level is its squared distance to the weight, in fine steps, plus `lambda` for each bit. `lambda`
    /// is at least 0 and at most of the order of 1; with larger values, a level that is not quite the best may be
    /// found.
    pub(crate) fn new(costs: &Costs, lambda: f32) -> Self {
        let all = |coset: usize| (-(LARGEST + 1) * 2..=LARGEST * 2 + 1).filter(move |n| n & 3 == coset as i32);
        let weight = |n: i32| lambda * costs.0[magnitude(n as i8)];
        // The best level of a coset, half a step below each integer.
        let best = |coset: usize, i: i32| {
            let cost = |n: i32| (n - i + 1).pow(2) as f32 + weight(n);
            all(coset).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).expect("every coset has levels") as i8
        };
        let edges: Vec<[i8; COSETS]> = (-128..=128).map(|i| std::array::from_fn(|coset| best(coset, i))).collect();
        let mut bins = Box::new([Bin { at: [[0.0; 4]; 2], slope: [[0.0; 4]; 2] }; 256]);
        let mut levels = Box::new([[[0; COSETS]; 2]; 256]);
        for (ends, i) in edges.windows(2).zip(-128i32..) {
            let at = i as u8 as usize;
            for (end, &of_cosets) in ends.iter().enumerate() {
                let beyond = of_cosets.map(|n| n as f32 + 0.5 - i as f32);
                levels[at][end] = of_cosets.map(|n| i32::from(n) * 2);
                bins[at].at[end] = std::array::from_fn(|c| beyond[c].powi(2) + weight(of_cosets[c].into()));
                bins[at].slope[end] = beyond.map(|d| -2.0 * d);
            }
        }
        Self { bins, levels }
    }

    /// The cost of each coset's best level for the weight `x`, without the term that all levels share, and twice the
    /// level's `n`.
    #[inline(always)]
    pub(super) fn of(&self, x: f32) -> (Four, [i32; COSETS]) {
        let x = x.clamp(-OUTERMOST, OUTERMOST);
        let rounded = x + ROUND;
        let bin = usize::from(rounded.to_bits() as u8);
        let beyond = x - (rounded - ROUND);
        let Bin { at, slope } = &self.bins[bin];
        let costs = |end: usize| -> Four { std::array::from_fn(|c| at[end][c] + slope[end][c] * beyond) };
        let (low, high) = (costs(0), costs(1));
        let best = std::array::from_fn(|c| if high[c] < low[c] { high[c] } else { low[c] });
        let [of_low, of_high] = self.levels[bin];
        (best, std::array::from_fn(|c| if high[c] < low[c] { of_high[c] } else { of_low[c] }))
    }
}
