//! Searches the path with the least error and bits: converts weights to levels of filter `trellis`. `FORMAT.md` section
//! 4.
//!
//! This is trellis-coded, or dependent, quantization ([`rate`](super) has the references), with the bits of levels
//! included in the cost that the Viterbi algorithm minimizes (T. R. Fischer and M. Wang, IEEE Trans. Information Theory
//! 38(2), 1992). A level is `n + 1/2` fine steps; the filter's `levels_of` gives `n`. The filter's formulas amount to this: with quantizer `Q` and path bit `b`, `n` satisfies `n mod 4 = Q + 2 b`, which defines a
//! **coset**. The magnitude `m` of a level is that of `floor(n / 2)`, which is `m` or `-m - 1`. So whatever the state,
//! a weight has four costs, those of the best level of each coset; the eight branches of a column choose among them.

mod branches;
mod costs;
#[cfg(test)]
mod tests;

pub(crate) use branches::Branches;
use branches::{COSETS, Four};
pub(crate) use costs::Costs;

/// States of the trellis, numbered `Q(j - 1) + 2 Q(j)`.
const STATES: usize = 4;

/// Runs that are processed at once. Each is a chain of additions and comparisons that depend on the column before; four
/// chains keep a core busy.
const TOGETHER: usize = 4;

/// Columns after which costs are rebased to 0, so that long rows lose no precision.
const RESTART: usize = 64;

/// The branch of the cheapest path to each state after a column: twice its level's `n`, with bit 0 set if it comes from
/// the second of the two predecessor states. The entries are as wide as costs, so that one comparison selects both.
type Column = [i32; STATES];

/// Finds paths. It holds only reusable memory.
#[derive(Default)]
pub(crate) struct Viterbi(Vec<Column>);

impl Viterbi {
    /// Fills `levels` with the path that has the least `sum (x - (n + 1/2))^2 + lambda * bits` in each row of each
    /// tile.
    ///
    /// `x` holds rows of `cols` weights, in units of the fine step, cut into tiles of `tile` columns, the last of which
    /// may be narrower. Paths restart at each tile in the state `Q(0) = Q(-1) = 0`. Weights beyond the outermost levels
    /// count as if they were half a step beyond. `levels` receives `n` of the levels `n + 1/2`, -126 to 125, so that
    /// magnitudes are at most 62. Rows do not influence each other; the search is fastest with at least four rows, or
    /// as many whole tiles.
    ///
    /// # Panics
    /// `x` and `levels` differ in length, `cols` or `tile` is 0, or there are incomplete rows.
    pub(crate) fn levels(&mut self, x: &[f32], cols: usize, tile: usize, branches: &Branches, levels: &mut [i8]) {
        assert!(x.len() == levels.len() && x.len().is_multiple_of(cols));
        let (rows, full_tiles) = (x.len() / cols, cols / tile);
        let last = full_tiles * tile;
        self.parts(x, tile, rows * full_tiles, |i| i / full_tiles * cols + i % full_tiles * tile, branches, levels);
        self.parts(x, cols - last, rows, |row| row * cols + last, branches, levels);
    }

    /// Finds the paths of `count` runs of `width` weights; run `i` begins at `begin(i)`.
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

/// Follows the cheapest paths to all states through runs of the same length, and returns the state in which each run's
/// best path ends.
fn follow<const N: usize>(x: [&[f32]; N], branches: &Branches, columns: &mut [[Column; N]]) -> [usize; N] {
    let x = x.map(|x| &x[..columns.len()]);
    let mut costs = [[0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]; N];
    for (j, column) in columns.iter_mut().enumerate() {
        for i in 0..N {
            let (cosets, levels) = branches.of(x[i][j]);
            (costs[i], column[i]) = step(&costs[i], &cosets, &levels);
        }
        if j % RESTART == RESTART - 1 {
            // State 0 is always reachable.
            costs = costs.map(|c| c.map(|cost| cost - c[0]));
        }
    }
    costs.map(|c| (1..STATES).fold(0, |best, state| if c[state] < c[best] { state } else { best }))
}

/// One column: given the cost of reaching each state before it and the cost of each coset, computes the cost of
/// reaching each state after it, and the branch taken.
///
/// State `s` after a column has the column's own quantizer in bit 0 and `b xor Q(j - 1)` in bit 1. So it is reached
/// from `2 * (s & 1)` by coset `s`, and from `2 * (s & 1) + 1` by coset `s ^ 2`.
#[inline(always)]
fn step(costs: &Four, cosets: &Four, levels: &[i32; COSETS]) -> (Four, Column) {
    let first: Four = std::array::from_fn(|s| costs[(s & 1) << 1] + cosets[s]);
    let second: Four = std::array::from_fn(|s| costs[(s & 1) << 1 | 1] + cosets[s ^ 2]);
    let cheapest = std::array::from_fn(|s| if second[s] < first[s] { second[s] } else { first[s] });
    (cheapest, std::array::from_fn(|s| if second[s] < first[s] { levels[s ^ 2] | 1 } else { levels[s] }))
}
