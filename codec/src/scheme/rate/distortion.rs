//! Measures the distortion of values relative to the weights.

use std::iter::Sum;
use std::ops::Add;

use crate::error::Result;
use crate::scheme::int8::Weight;

/// Advice on non-finite weights.
pub(crate) const NOT_FINITE_ADVICE: &str =
    "rate needs finite weights: repair the checkpoint, or exclude the tensor so that it is stored raw";

/// Elements that are summed in f32 without losing much precision.
pub(super) const RUN: usize = 256;

/// Sums over rows.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    /// The sum of the squared weights.
    squares: f64,
    /// The sum of the squared errors of the values.
    errors: f64,
}

impl Sums {
    /// The sums of a row whose squared weights are already summed; `factors` are those of columns, if they have some.
    pub fn of_row<T: Weight>(
        weights: &[f32],
        squares: f64,
        symbols: &[i8],
        scale: f32,
        factors: Option<&[f32]>,
    ) -> Self {
        let errors = match factors {
            // A scale of 0 makes all values 0.
            _ if scale == 0.0 => squares,
            None => errors::<T>(weights, symbols, scale),
            Some(factors) => errors_by_columns::<T>(weights, symbols, scale, factors),
        };
        Self { squares, errors }
    }

    /// The relative error: RMS of the difference, divided by the RMS of the weights.
    pub fn relative(self) -> f64 {
        if self.errors == 0.0 { 0.0 } else { (self.errors / self.squares).sqrt() }
    }
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { squares: self.squares + other.squares, errors: self.errors + other.errors }
    }
}

impl Sum for Sums {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), Add::add)
    }
}

/// The sum of squares of row `r`.
///
/// # Errors
/// An element is not finite.
pub(super) fn row_squares(row: &[f32], r: usize) -> Result<f64> {
    // In f64, because squares of f32 can exceed f32's range. Several sums, so that additions do not wait for each
    // other.
    let mut sums = [0f64; 8];
    let (runs, rest) = row.as_chunks::<8>();
    for run in runs {
        sums.iter_mut().zip(run).for_each(|(sum, &w)| *sum += f64::from(w) * f64::from(w));
    }
    let squares = sums.iter().sum::<f64>() + rest.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>();
    if squares.is_finite() {
        return Ok(squares);
    }
    let at = row.iter().position(|w| !w.is_finite()).unwrap_or(0);
    Err(coded!(NOT_FINITE_WEIGHTS, "{} at row {r}, column {at}", row[at]).advice(NOT_FINITE_ADVICE))
}

/// The sum of the squared errors; the scale is not 0.
fn errors<T: Weight>(weights: &[f32], symbols: &[i8], scale: f32) -> f64 {
    let run = |(weights, symbols): (&[f32], &[i8])| {
        let differ = |(w, &q): (&f32, &i8)| T::from_f32((f32::from(q) + 0.5) * scale).to_f32() - w;
        // Divided by the scale, so that squares are in range.
        let sum: f32 = weights.iter().zip(symbols).map(differ).map(|d| (d / scale) * (d / scale)).sum();
        if sum.is_finite() {
            return f64::from(sum) * f64::from(scale) * f64::from(scale);
        }
        // Values and weights of opposite signs near the largest f32, or a scale far from the weights' magnitude.
        let value = |q: i8| f64::from(T::from_f32((f32::from(q) + 0.5) * scale).to_f32());
        weights.iter().zip(symbols).map(|(w, &q)| (value(q) - f64::from(*w)).powi(2)).sum()
    };
    weights.chunks(RUN).zip(symbols.chunks(RUN)).map(run).sum()
}

/// As [`errors`], with factors of columns: in f64, since columns may differ in size by any power of 2.
fn errors_by_columns<T: Weight>(weights: &[f32], symbols: &[i8], scale: f32, factors: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for ((weights, symbols), factors) in weights.chunks(8).zip(symbols.chunks(8)).zip(factors.chunks(8)) {
        for (((sum, &w), &q), factor) in sums.iter_mut().zip(weights).zip(symbols).zip(factors) {
            let value = T::from_f32((f32::from(q) + 0.5) * scale * factor).to_f32();
            let difference = f64::from(value) - f64::from(w);
            *sum += difference * difference;
        }
    }
    sums.iter().sum()
}
