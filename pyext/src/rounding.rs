//! Rounding with GPTQ-style error feedback (E. Frantar et al., 2023) on the CPU; `gpu/quantize.rs` does the same on a
//! GPU.

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use wcodec::scheme::rate::LARGEST_MAGNITUDE;

use self::threads::over_rows;
use crate::arrays::{Array, array};

mod threads;
pub mod trellis;

/// Rows that are processed together through all columns: their carried errors stay in the first-level cache.
const ROWS: usize = 32;
/// The most columns of a call: the errors of these are passed on one by one, and beyond by a matrix product.
pub const COLUMNS: usize = 64;
/// Magnitudes of symbols that have a price.
pub const MAGNITUDES: usize = 128;
/// Prices: two entries below the first magnitude, which are never chosen, and all magnitudes.
const PRICES: usize = 2 + MAGNITUDES;

/// Symbols and errors.
type Rounded<'py> = (Bound<'py, PyArray1<i8>>, Bound<'py, PyArray1<f32>>);

/// Symbols and errors of some columns (`[columns][rows]`, one after the other), each rounded to the nearest level, or
/// to one of the next two towards 0 if prices make that cheaper; the errors of earlier columns are added to later ones.
///
/// * `x`, `carry`: `[columns][rows]` targets in steps of their rows, and the errors passed on by earlier columns.
/// * `feed`: `[columns][columns]`, the share of a column's error that each later column gets.
/// * `prices`: 130 entries, or none to round to the nearest.
#[pyfunction]
pub fn round_columns<'py>(
    py: Python<'py>,
    x: Array<'py, f32>,
    carry: Array<'py, f32>,
    feed: Array<'py, f32>,
    prices: Option<Array<'py, f32>>,
    columns: usize,
    threads: usize,
) -> PyResult<Rounded<'py>> {
    let (x, carry, feed) = (x.elements()?.to_vec(), carry.elements()?.to_vec(), feed.elements()?.to_vec());
    let prices = prices.map(|p| p.elements().map(<[f32]>::to_vec)).transpose()?;
    let fits = (1..=COLUMNS).contains(&columns) && x.len() % columns == 0 && carry.len() == x.len();
    if !fits || feed.len() != columns * columns || prices.as_ref().is_some_and(|p| p.len() != PRICES) {
        return Err(PyValueError::new_err("arrays of other sizes"));
    }
    let work = Work { x: &x, carry: &carry, feed: &feed, prices: prices.as_deref(), columns };
    let (levels, errors) = py.detach(|| work.all(threads));
    Ok((array(py, levels)?, array(py, errors)?))
}

struct Work<'a> {
    x: &'a [f32],
    carry: &'a [f32],
    feed: &'a [f32],
    prices: Option<&'a [f32]>,
    columns: usize,
}

impl Work<'_> {
    fn all(&self, threads: usize) -> (Vec<i8>, Vec<f32>) {
        let rows = self.x.len() / self.columns;
        let rounded = over_rows(rows, ROWS, threads, |begin, end| self.part(begin, end, rows));
        let (mut levels, mut errors) = (vec![0; self.x.len()], vec![0.0; self.x.len()]);
        for (place, (q, e)) in rounded.iter().enumerate() {
            let (begin, end) = (place * ROWS, ((place + 1) * ROWS).min(rows));
            for j in 0..self.columns {
                levels[j * rows + begin..j * rows + end].copy_from_slice(&q[j][..end - begin]);
                errors[j * rows + begin..j * rows + end].copy_from_slice(&e[j][..end - begin]);
            }
        }
        (levels, errors)
    }

    fn part(&self, begin: usize, end: usize, rows: usize) -> ([[i8; ROWS]; COLUMNS], [[f32; ROWS]; COLUMNS]) {
        let (mut levels, mut errors) = ([[0; ROWS]; COLUMNS], [[0.0; ROWS]; COLUMNS]);
        let mut carried = [[0.0; ROWS]; COLUMNS];
        for (j, carried) in carried.iter_mut().enumerate().take(self.columns) {
            carried[..end - begin].copy_from_slice(&self.carry[j * rows + begin..j * rows + end]);
        }
        for j in 0..self.columns {
            let mut x = [0.0; ROWS];
            x[..end - begin].copy_from_slice(&self.x[j * rows + begin..j * rows + end]);
            let mut error = [0.0; ROWS];
            for row in 0..ROWS {
                let target = x[row] + carried[j][row];
                let m = self.magnitude(target.abs());
                let q = if target < 0.0 { -1.0 - m } else { m };
                levels[j][row] = q as i8;
                error[row] = x[row] - (q + 0.5);
            }
            errors[j] = error;
            let feed = &self.feed[j * self.columns..(j + 1) * self.columns];
            for (later, &share) in carried[..self.columns].iter_mut().zip(feed).skip(j + 1) {
                for (sum, error) in later.iter_mut().zip(&error) {
                    *sum += share * error;
                }
            }
        }
        (levels, errors)
    }

    /// The level with the least error and bits: `size` rounded down, or one of the next two towards 0.
    fn magnitude(&self, size: f32) -> f32 {
        let m = size.floor().min(f32::from(LARGEST_MAGNITUDE));
        let Some(prices) = self.prices else { return m };
        let (off, place) = (size - m - 0.5, m as usize);
        let (mut best, mut chosen) = (off * off + prices[place + 2], m);
        for (down, by) in [(1, 1.0), (2, 2.0)] {
            let cost = (off + by) * (off + by) + prices[place + 2 - down];
            if cost < best {
                (best, chosen) = (cost, m - by);
            }
        }
        chosen
    }
}
