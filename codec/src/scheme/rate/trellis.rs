//! The path with the least error and bits: weights become levels of filter `trellis`. `FORMAT.md` section 4.
//!
//! Trellis-coded quantization (M. W. Marcellin and T. R. Fischer, IEEE Trans. Communications 38(1), 1990), with the bits that levels cost in what the
//! Viterbi algorithm minimizes (T. R. Fischer and M. Wang, IEEE Trans. Information Theory 38(2), 1992). A level is `n + 1/2` fine steps; `n` is what
//! the filter's `levels_of` gives. The formulas of the filter come to this: where the quantizer is `Q` and the path's bit `b`, `n` is one of those with
//! `n mod 4 = Q + 2 b`, a **coset**, and its magnitude `m` is that of `floor(n / 2)`, which is `m` or `-m - 1`. So a weight has four costs, those of
//! the best level of each coset, whatever the state; the eight branches of a column choose among them.

mod branches;
mod costs;
#[cfg(test)]
mod tests;

pub(crate) use branches::Branches;
use branches::{COSETS, Four};
pub(crate) use costs::Costs;

/// States of the trellis: numbered `Q(j - 1) + 2 Q(j)`.
const STATES: usize = 4;

/// Paths that are followed at once. Each is a chain of additions and comparisons that wait for those of the column before; four of them keep a core busy.
const TOGETHER: usize = 4;

/// Columns after which costs are counted anew from 0, so that long rows lose no precision.
const RESTART: usize = 64;

/// How the cheapest path to each state behind a column gets there: twice its level's `n`, and in bit 0 whether it comes from the second of the two states
/// that lead there. Numbers are as wide as costs, so that one comparison chooses both.
type Column = [i32; STATES];

/// Finds paths. It holds memory that is used again, and nothing else.
#[derive(Default)]
pub(crate) struct Viterbi(Vec<Column>);

impl Viterbi {
    /// Fills `levels` with the path that has the least `sum (x - (n + 1/2))^2 + lambda * bits` in each row of each tile.
    ///
    /// `x` holds rows of `cols` weights, in units of the fine step, cut into tiles of `tile` columns, of which the last may be narrower: paths begin anew
    /// at each, in the state `Q(0) = Q(-1) = 0`. What is beyond the outermost levels counts as if it were half a step beyond. `levels` gets `n` of the
    /// levels `n + 1/2`, -126 to 125, so that magnitudes are 62 at most. Rows are independent of those beside them; it is fastest where there are four
    /// or more, or as many whole tiles.
    ///
    /// # Panics
    /// `x` and `levels` are not of the same length, `cols` or `tile` is 0, or there are parts of rows.
    pub(crate) fn levels(&mut self, x: &[f32], cols: usize, tile: usize, branches: &Branches, levels: &mut [i8]) {
        assert!(x.len() == levels.len() && x.len().is_multiple_of(cols));
        let (rows, whole) = (x.len() / cols, cols / tile);
        let last = whole * tile;
        self.parts(x, tile, rows * whole, |i| i / whole * cols + i % whole * tile, branches, levels);
        self.parts(x, cols - last, rows, |row| row * cols + last, branches, levels);
    }

    /// Finds the paths of `count` runs of `width` weights, of which each begins where `begin` says.
    fn parts(
        &mut self,
        x: &[f32],
        width: usize,
        count: usize,
        begin: impl Fn(usize) -> usize,
        branches: &Branches,
        levels: &mut [i8],
    ) {
        let together = count - count % TOGETHER;
        for i in (0..together).step_by(TOGETHER) {
            self.run::<TOGETHER>(x, width, std::array::from_fn(|k| begin(i + k)), branches, levels);
        }
        for i in together..count {
            self.run(x, width, [begin(i)], branches, levels);
        }
    }

    /// Finds the paths of `N` runs of `width` weights at once.
    fn run<const N: usize>(
        &mut self,
        x: &[f32],
        width: usize,
        begins: [usize; N],
        branches: &Branches,
        levels: &mut [i8],
    ) {
        self.0.clear();
        self.0.resize(width * N, Default::default());
        let columns = self.0.as_chunks_mut().0;
        let mut states = follow(begins.map(|begin| &x[begin..begin + width]), branches, columns);
        for (j, column) in columns.iter().enumerate().rev() {
            for i in 0..N {
                let branch = column[i][states[i]];
                levels[begins[i] + j] = (branch >> 1) as i8;
                states[i] = (states[i] & 1) << 1 | (branch & 1) as usize;
            }
        }
    }
}

/// Follows the cheapest paths to all states through runs of the same length, and returns the state in which that of each ends.
fn follow<const N: usize>(x: [&[f32]; N], branches: &Branches, columns: &mut [[Column; N]]) -> [usize; N] {
    let x = x.map(|x| &x[..columns.len()]);
    let mut costs = [[0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]; N];
    for (j, column) in columns.iter_mut().enumerate() {
        for i in 0..N {
            let (cosets, levels) = branches.of(x[i][j]);
            (costs[i], column[i]) = step(&costs[i], &cosets, &levels);
        }
        if j % RESTART == RESTART - 1 {
            // State 0 can always be reached.
            costs = costs.map(|c| c.map(|cost| cost - c[0]));
        }
    }
    costs.map(|c| (1..STATES).fold(0, |best, state| if c[state] < c[best] { state } else { best }))
}

/// A column: from what it costs to reach the states before it and what each coset costs, what it costs to reach those behind it, and by which branch.
///
/// State `s` behind a column has the column's own quantizer in bit 0 and `b xor Q(j - 1)` in bit 1. So it is reached from `2 * (s & 1)` by the coset `s`, and
/// from `2 * (s & 1) + 1` by the coset `s ^ 2`.
#[inline(always)]
fn step(costs: &Four, cosets: &Four, levels: &[i32; COSETS]) -> (Four, Column) {
    let first: Four = std::array::from_fn(|s| costs[(s & 1) << 1] + cosets[s]);
    let second: Four = std::array::from_fn(|s| costs[(s & 1) << 1 | 1] + cosets[s ^ 2]);
    let cheapest = std::array::from_fn(|s| if second[s] < first[s] { second[s] } else { first[s] });
    (cheapest, std::array::from_fn(|s| if second[s] < first[s] { levels[s ^ 2] | 1 } else { levels[s] }))
}
