//! Factors of columns, by which scheme `rate` divides weights before they become symbols, and multiplies values again.
//! `FORMAT.md` section 2.

/// The factors of the columns of some matrices: each matrix has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Columns<'a> {
    /// Those of each matrix, from matrix `first` on.
    factors: &'a [f32],
    /// Rows of a matrix.
    rows: usize,
    cols: usize,
    first: usize,
    /// The matrix of each row, where rows are a sample.
    sampled: Option<&'a [usize]>,
}

impl<'a> Columns<'a> {
    /// The factors of matrices of `rows` rows and `cols` columns, of which `factors` has those of matrix `first` and of
    /// the matrices behind it.
    pub fn new(factors: &'a [f32], rows: usize, cols: usize, first: usize) -> Self {
        Self { factors, rows, cols, first, sampled: None }
    }

    /// The factors for a sample of the matrices' rows: `matrices` has the matrix of each.
    pub fn of_sample(factors: &'a [f32], cols: usize, matrices: &'a [usize]) -> Self {
        Self { factors, rows: 1, cols, first: 0, sampled: Some(matrices) }
    }

    /// The factors of the matrix of a row, which is counted through all matrices.
    pub fn of_row(&self, row: usize) -> &'a [f32] {
        let matrix = self.sampled.map_or(row / self.rows, |matrices| matrices[row]);
        &self.factors[(matrix - self.first) * self.cols..][..self.cols]
    }

    /// All factors.
    pub fn factors(&self) -> &'a [f32] {
        self.factors
    }

    /// The place of a factor: its matrix, and its column there.
    pub fn place(&self, at: usize) -> (usize, usize) {
        (self.first + at / self.cols, at % self.cols)
    }
}

/// Appends the weights of a row, which are finite, divided by the factors of their columns. A quotient out of range
/// becomes the largest number: the outermost level of its row is as near as any.
pub fn divide(weights: &[f32], factors: &[f32], out: &mut Vec<f32>) {
    out.extend(weights.iter().zip(factors).map(|(w, factor)| (w / factor).clamp(f32::MIN, f32::MAX)));
}

/// Whether a factor is one that files may have.
pub fn is_factor(factor: f32) -> bool {
    factor.is_finite() && factor > 0.0
}
