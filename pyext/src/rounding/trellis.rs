//! The best paths of the filter `trellis` with error feedback, one tile of columns, on the CPU. `_calibrate/trellis.py`
//! describes the search.

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::threads::over_rows;
use crate::arrays::{Array, array};

/// Rows that are processed together: the lanes of two registers of AVX2. Their targets in a tile fit the second-level
/// cache.
const ROWS: usize = 16;
const STATES: usize = 4;
/// Columns whose errors are passed on one by one; beyond, those of all of them are passed on at once.
const GROUP: usize = 32;
/// Prices: of symbols from -128 on.
const PRICES: usize = 260;
/// A power of two, so that no index is out of range.
const PADDED: usize = 512;
/// The least and the largest symbol that a path may have.
const LEAST: f32 = -126.0;
const MOST: f32 = 125.0;

type Rows = [f32; ROWS];
type States = [Rows; STATES];

/// The symbols (`[columns][rows]`) of the path of least cost through a tile, for each row.
///
/// * `x`: `[columns][rows]`, weights in fine steps of their rows, to which errors of earlier tiles were added: `carry`.
/// * `weights`: the cost of an error in each column.
/// * `feed`: `[columns][columns]`, the share of a column's error that each later column gets; none if columns know
///   nothing of each other.
/// * `prices`: the cost of each symbol from -128 on.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arrays of one call, which Python names")]
pub fn trellis_columns<'py>(
    py: Python<'py>,
    x: Array<'py, f32>,
    carry: Option<Array<'py, f32>>,
    weights: Array<'py, f32>,
    feed: Option<Array<'py, f32>>,
    prices: Array<'py, f32>,
    columns: usize,
    threads: usize,
) -> PyResult<Bound<'py, PyArray1<i8>>> {
    let (x, weights) = (x.elements()?.to_vec(), weights.elements()?.to_vec());
    let given = |array: Option<Array<'py, f32>>| array.map(|a| a.elements().map(<[f32]>::to_vec)).transpose();
    let (carry, feed) = (given(carry)?, given(feed)?);
    let table = prices.elements()?;
    let fits = columns > 0
        && x.len() % columns == 0
        && weights.len() == columns
        && table.len() == PRICES
        && carry.as_ref().is_none_or(|c| c.len() == x.len())
        && feed.as_ref().is_none_or(|f| f.len() == columns * columns);
    if !fits {
        return Err(PyValueError::new_err("arrays of other sizes"));
    }
    let mut prices = [f32::INFINITY; PADDED];
    prices[..PRICES].copy_from_slice(table);
    let tile = Tile { x: &x, carry: carry.as_deref(), weights: &weights, feed: feed.as_deref(), prices: &prices };
    let rows = x.len() / columns;
    let levels = py.detach(|| {
        let parts = over_rows(rows, ROWS, threads, |begin, end| tile.part(begin, end, rows));
        let mut levels = vec![0; x.len()];
        for (place, part) in parts.iter().enumerate() {
            let (begin, end) = (place * ROWS, ((place + 1) * ROWS).min(rows));
            for (j, symbols) in part.iter().enumerate() {
                levels[j * rows + begin..j * rows + end].copy_from_slice(&symbols[..end - begin]);
            }
        }
        levels
    });
    array(py, levels)
}

/// The facts of a tile.
struct Tile<'a> {
    x: &'a [f32],
    carry: Option<&'a [f32]>,
    weights: &'a [f32],
    feed: Option<&'a [f32]>,
    prices: &'a [f32; PADDED],
}

/// The choices at a column: for each state, the symbol with which a path reaches it, and which of its two predecessors the
/// path comes from.
#[derive(Clone, Copy)]
struct Column {
    symbols: [[i8; ROWS]; STATES],
    second: [[bool; ROWS]; STATES],
}

impl Tile<'_> {
    /// The symbols of some rows.
    fn part(&self, begin: usize, end: usize, rows: usize) -> Vec<[i8; ROWS]> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has these instructions.
            return unsafe { self.part_with_avx2(begin, end, rows) };
        }
        self.part_of::<false>(begin, end, rows)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn part_with_avx2(&self, begin: usize, end: usize, rows: usize) -> Vec<[i8; ROWS]> {
        self.part_of::<true>(begin, end, rows)
    }

    #[inline(always)]
    fn part_of<const FMA: bool>(&self, begin: usize, end: usize, rows: usize) -> Vec<[i8; ROWS]> {
        let columns = self.weights.len();
        let of = |array: &[f32]| -> Vec<Rows> {
            let column = |j| {
                let mut out = [0.0; ROWS];
                out[..end - begin].copy_from_slice(&array[j * rows + begin..j * rows + end]);
                out
            };
            (0..columns).map(column).collect()
        };
        let x = of(self.x);
        // The sums that the errors of each survivor, and those of earlier tiles, add to the targets.
        let mut added: Vec<States> = self
            .carry
            .map_or_else(|| vec![[[0.0; ROWS]; STATES]; columns], |c| of(c).iter().map(|&r| [r; STATES]).collect());
        let mut costs = [[f32::INFINITY; ROWS]; STATES];
        costs[0] = [0.0; ROWS];
        let mut path = vec![Column { symbols: [[0; ROWS]; STATES], second: [[false; ROWS]; STATES] }; columns];
        for first in (0..columns).step_by(GROUP) {
            let last = (first + GROUP).min(columns);
            for j in first..last {
                let column = self.step::<FMA>(&x[j], &added[j], &mut costs, self.weights[j]);
                path[j] = column;
                if let Some(feed) = self.feed {
                    let errors = errors_of(&x[j], &column.symbols);
                    for (later, &share) in added[j + 1..last].iter_mut().zip(&feed[j * columns + j + 1..]) {
                        *later = followed::<FMA>(later, &column.second, share, &errors);
                    }
                }
            }
            if let Some(feed) = self.feed.filter(|_| last < columns) {
                let (errors, origin) = survivors(&x[first..last], &path[first..last]);
                for c in last..columns {
                    added[c] = moved::<FMA>(&added[c], &origin, &errors, &feed[first * columns + c..], columns);
                }
            }
        }
        let mut state = [0usize; ROWS];
        for row in 0..ROWS {
            for s in 1..STATES {
                // The first of equal ones.
                if costs[s][row] < costs[state[row]][row] {
                    state[row] = s;
                }
            }
        }
        let mut levels = vec![[0; ROWS]; columns];
        for (level, column) in levels.iter_mut().zip(&path).rev() {
            for row in 0..ROWS {
                level[row] = column.symbols[state[row]][row];
                state[row] = before(state[row], column.second[state[row]][row]);
            }
        }
        levels
    }

    /// One column: extends the best path of each state.
    #[inline(always)]
    fn step<const FMA: bool>(&self, x: &Rows, added: &States, costs: &mut States, weight: f32) -> Column {
        let mut out = Column { symbols: [[0; ROWS]; STATES], second: [[false; ROWS]; STATES] };
        let mut new = [[0.0; ROWS]; STATES];
        for p in 0..2 {
            for m in 0..2 {
                let (mut totals, mut levels) = ([[0.0; ROWS]; 2], [[0.0; ROWS]; 2]);
                for b in 0..2 {
                    let kind = (p + 2 * (m ^ b)) as f32;
                    // The first of four symbols in a row, so that both levels around the target are symbols.
                    let (low, high) = (((LEAST - kind) / 4.0).ceil(), ((MOST - kind) / 4.0).floor() - 1.0);
                    for row in 0..ROWS {
                        let target = x[row] + added[2 * p + b][row];
                        let off = target - (kind + 0.5);
                        let k = (off * 0.25).floor().max(low).min(high);
                        let off = off - 4.0 * k;
                        let n = kind + 4.0 * k;
                        let place = (n as i32 + 128) as usize;
                        let below = times::<FMA>(off * weight, off, self.prices[place % PADDED]);
                        let off = off - 4.0;
                        let above = times::<FMA>(off * weight, off, self.prices[(place + 4) % PADDED]);
                        levels[b][row] = if above < below { n + 4.0 } else { n };
                        totals[b][row] = below.min(above) + costs[2 * p + b][row];
                    }
                }
                let state = p + 2 * m;
                for row in 0..ROWS {
                    let second = totals[1][row] < totals[0][row];
                    out.second[state][row] = second;
                    out.symbols[state][row] = (if second { levels[1][row] } else { levels[0][row] }) as i8;
                    new[state][row] = totals[0][row].min(totals[1][row]);
                }
            }
        }
        *costs = new;
        out
    }
}

/// The state before one, by which of its predecessors a path comes from.
#[inline(always)]
fn before(state: usize, second: bool) -> usize {
    2 * (state % 2) + usize::from(second)
}

/// `a * b + c`, rounded once where the processor can.
#[inline(always)]
fn times<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The differences of the weight and each state's symbol: symbols n stand for n + 1/2.
#[inline(always)]
fn errors_of(x: &Rows, symbols: &[[i8; ROWS]; STATES]) -> States {
    std::array::from_fn(|s| std::array::from_fn(|row| x[row] - 0.5 - f32::from(symbols[s][row])))
}

/// The additions to a later column's targets once a column is done: those of the predecessor, and a share of the error.
#[inline(always)]
fn followed<const FMA: bool>(later: &States, second: &[[bool; ROWS]; STATES], share: f32, errors: &States) -> States {
    let mut out = [[0.0; ROWS]; STATES];
    for s in 0..STATES {
        let (one, other) = (&later[before(s, false)], &later[before(s, true)]);
        for row in 0..ROWS {
            let from = if second[s][row] { other[row] } else { one[row] };
            out[s][row] = times::<FMA>(share, errors[s][row], from);
        }
    }
    out
}

/// The errors of each state's path in some columns, and the state before them that it comes from.
#[inline(always)]
fn survivors(x: &[Rows], path: &[Column]) -> (Vec<States>, [[u8; ROWS]; STATES]) {
    let mut errors = vec![[[0.0; ROWS]; STATES]; x.len()];
    let mut origin = [[0; ROWS]; STATES];
    for s in 0..STATES {
        for row in 0..ROWS {
            let mut state = s;
            for (j, column) in path.iter().enumerate().rev() {
                errors[j][s][row] = x[j][row] - 0.5 - f32::from(column.symbols[state][row]);
                state = before(state, column.second[state][row]);
            }
            origin[s][row] = state as u8;
        }
    }
    (errors, origin)
}

/// The additions to a later column's targets once some columns are done.
///
/// `feed` begins with the share of the first of their errors; the next one is `stride` further.
#[inline(always)]
fn moved<const FMA: bool>(
    later: &States,
    origin: &[[u8; ROWS]; STATES],
    errors: &[States],
    feed: &[f32],
    stride: usize,
) -> States {
    let mut sums = [[0.0; ROWS]; STATES];
    for s in 0..STATES {
        for row in 0..ROWS {
            let from = [later[0][row], later[1][row], later[2][row], later[3][row]];
            let low = if origin[s][row] & 1 == 1 { from[1] } else { from[0] };
            let high = if origin[s][row] & 1 == 1 { from[3] } else { from[2] };
            sums[s][row] = if origin[s][row] & 2 == 2 { high } else { low };
        }
    }
    for (k, errors) in errors.iter().enumerate() {
        let share = feed[k * stride];
        for s in 0..STATES {
            for row in 0..ROWS {
                sums[s][row] = times::<FMA>(share, errors[s][row], sums[s][row]);
            }
        }
    }
    sums
}
