//! Converts symbols and scales to values.

use rayon::prelude::*;

use super::granularity::Granularity;
use super::weight::Weight;
use crate::error::{Code, Error, Result};
use crate::scheme::columns::{Columns, is_factor};

/// Elements that one task dequantizes.
const TASK: usize = 1 << 16;

/// Writes `(symbols[i] + offset) * scale` for a run of a row that begins at column `col`, as elements of the target
/// type.
///
/// `offset` is 0 in scheme `int8` and 1/2 in scheme `rate`. `scales` are those of the row (or the tensor's single one),
/// and `columns` is the number that share one, as in [`Granularity::columns`].
#[inline]
pub fn dequantize_run<T: Weight>(
    symbols: &[i8],
    offset: f32,
    col: usize,
    scales: &[f32],
    columns: usize,
    out: &mut [T],
) {
    let mut done = 0;
    while done < symbols.len() {
        let block = (col + done) / columns;
        let end = ((block + 1) * columns - col).min(symbols.len());
        let scale = scales[block];
        let value = |q: i8| T::from_f32((f32::from(q) + offset) * scale);
        out[done..end].iter_mut().zip(&symbols[done..end]).for_each(|(o, &q)| *o = value(q));
        done = end;
    }
}

/// Writes `(symbols[i] + offset) * scale * factors[i]` for a run of a row, in this order.
#[inline]
fn dequantize_by_columns<T: Weight>(symbols: &[i8], offset: f32, scale: f32, factors: &[f32], out: &mut [T]) {
    let value = |q: i8, factor: f32| T::from_f32((f32::from(q) + offset) * scale * factor);
    out.iter_mut().zip(symbols).zip(factors).for_each(|((o, &q), &factor)| *o = value(q, factor));
}

/// The scales of a matrix, or of some of its rows.
pub struct Scales<'a> {
    granularity: Granularity,
    /// The offset added to symbols before they are multiplied.
    offset: f32,
    cols: usize,
    values: &'a [f32],
    /// The row, counted through all matrices, that `values` begins with.
    first: usize,
    /// The factors of columns, if they have some: only where each row has one scale.
    columns: Option<Columns<'a>>,
}

impl<'a> Scales<'a> {
    /// Scales of rows of `cols` columns, from row `first` on; `values` must cover every row that is asked for.
    pub fn new(granularity: Granularity, offset: f32, cols: usize, values: &'a [f32], first: usize) -> Self {
        Self { granularity, offset, cols, values, first, columns: None }
    }

    /// Adds factors of columns.
    pub fn with_columns(self, columns: Columns<'a>) -> Self {
        Self { columns: Some(columns), ..self }
    }

    /// All values.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// The scales of a row.
    fn of_row(&self, row: usize) -> &'a [f32] {
        match self.granularity.scales_per_row(self.cols) {
            0 => self.values,
            n => &self.values[(row - self.first) * n..(row - self.first + 1) * n],
        }
    }

    /// The values of `symbols`, the first of which is element `begin` of the matrices in row-major order.
    pub fn apply<T: Weight>(&self, begin: usize, symbols: &[i8], out: &mut [T]) {
        let columns = self.granularity.columns(self.cols);
        out.par_chunks_mut(TASK).zip(symbols.par_chunks(TASK)).enumerate().for_each(|(i, (out, symbols))| {
            let mut rest = (out, symbols, begin + i * TASK);
            while !rest.1.is_empty() {
                let (row, col) = (rest.2 / self.cols, rest.2 % self.cols);
                let n = (self.cols - col).min(rest.1.len());
                let (symbols, others) = rest.1.split_at(n);
                let (out, places) = rest.0.split_at_mut(n);
                match &self.columns {
                    None => dequantize_run(symbols, self.offset, col, self.of_row(row), columns, out),
                    Some(factors) => {
                        let (scale, factors) = (self.of_row(row)[0], &factors.of_row(row)[col..]);
                        dequantize_by_columns(symbols, self.offset, scale, factors, out);
                    }
                }
                rest = (places, others, rest.2 + n);
            }
        });
    }

    /// The values of some columns, one column after the other, of a matrix whose symbols are all present.
    pub fn apply_to_columns<T: Weight>(&self, symbols: &[i8], from: usize, out: &mut [T]) {
        let (columns, rows) = (self.granularity.columns(self.cols), symbols.len() / self.cols);
        out.par_chunks_mut(rows).enumerate().for_each(|(i, out)| {
            let col = from + i;
            // Transposed matrices are single ones.
            let factor = self.columns.map(|columns| [columns.of_row(0)[col]]);
            for (row, value) in out.iter_mut().enumerate() {
                let symbol = &symbols[row * self.cols + col..][..1];
                let (scales, value) = (self.of_row(row), std::slice::from_mut(value));
                match &factor {
                    None => dequantize_run(symbol, self.offset, col, scales, columns, value),
                    Some(factor) => dequantize_by_columns(symbol, self.offset, scales[0], factor, value),
                }
            }
        });
    }

    /// The scales with which a symbol might become a non-finite value in `T`: usually none.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): a factor of a column is not finite and above 0.
    pub fn suspects<T: Weight>(&self) -> Result<Suspects<'_>> {
        let factors = self.columns.map_or(&[][..], |columns| columns.factors());
        if let (Some(columns), Some(at)) = (&self.columns, factors.iter().position(|&f| !is_factor(f))) {
            let ((matrix, col), factor) = (columns.place(at), factors[at]);
            return Err(coded!(BAD_SCALES, "the factor of column {col} of matrix {matrix} is {factor:e}"));
        }
        // Values grow with the factor.
        let largest = factors.iter().copied().reduce(f32::max).unwrap_or(1.0);
        // Writers never produce the symbol -128, but readers compute with it.
        let overflows = |scale: &f32| !finite::<T>(f32::from(i8::MIN), *scale, largest);
        Ok(Suspects { scales: self, any: self.values.par_iter().any(overflows), largest, finite: finite::<T> })
    }
}

fn finite<T: Weight>(level: f32, scale: f32, factor: f32) -> bool {
    T::from_f32(level * scale * factor).to_f32().is_finite()
}

/// Checks for values that are not finite.
pub struct Suspects<'a> {
    scales: &'a Scales<'a>,
    any: bool,
    /// The largest factor of a column; 1 if they have none.
    largest: f32,
    finite: fn(f32, f32, f32) -> bool,
}

impl Suspects<'_> {
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): one of `symbols`, the first of which is element `begin`,
    /// becomes infinite or NaN.
    pub fn check(&self, begin: usize, symbols: &[i8]) -> Result<()> {
        if !self.any {
            return Ok(());
        }
        let Scales { granularity, cols, offset, columns: factors, .. } = *self.scales;
        let finite = |q: i8, scale, factor| (self.finite)(f32::from(q) + offset, scale, factor);
        let columns = granularity.columns(cols);
        let find = |(i, symbols): (usize, &[i8])| {
            let mut at = begin + i * TASK;
            let end = at + symbols.len();
            while at < end {
                let (row, col) = (at / cols, at % cols);
                let scale = self.scales.of_row(row)[col / columns];
                let n = (columns - col % columns).min(cols - col).min(end - at);
                let run = &symbols[at - begin - i * TASK..][..n];
                let factors = factors.map(|columns| &columns.of_row(row)[col..]);
                let factor = |i: usize| factors.map_or(1.0, |factors| factors[i]);
                if !(self.finite)(f32::from(i8::MIN), scale, self.largest)
                    && let Some(column) = (0..run.len()).find(|&i| !finite(run[i], scale, factor(i)))
                {
                    return Some((row, col + column, run[column], scale, factors.map(|factors| factors[column])));
                }
                at += n;
            }
            None
        };
        match symbols.par_chunks(TASK).enumerate().find_map_first(find) {
            None => Ok(()),
            Some((row, col, symbol, scale, factor)) => Err(not_finite((row, col), symbol, scale, factor)),
        }
    }
}

fn not_finite((row, col): (usize, usize), symbol: i8, scale: f32, factor: Option<f32>) -> Error {
    let factor = factor.map_or_else(String::new, |factor| format!(" times factor {factor:e}"));
    let what =
        format!("the value at row {row}, column {col} is not finite: symbol {symbol} times scale {scale:e}{factor}");
    Code::NOT_FINITE
        .error(what)
        .advice("encode the model again: an older wcodec wrote this for weights near the largest that there are")
}
