//! Factors of columns, by which scheme `rate` divides weights before they become symbols, and multiplies values again.
//! `FORMAT.md` section 2.

/// The factors of the columns of some matrices: each matrix has its own.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Those of each matrix, from matrix `first` on.
    factors: &'a [f32],
    /// Rows of a matrix.
    rows: usize,
    cols: usize,
    first: usize,
}

impl<'a> Columns<'a> {
    /// The factors of matrices of `rows` rows and `cols` columns, of which `factors` has those of matrix `first` and of
    /// the matrices behind it.
    pub fn new(factors: &'a [f32], rows: usize, cols: usize, first: usize) -> Self {
        Self { factors, rows, cols, first }
    }

    /// The factors of the matrix of a row, which is counted through all matrices.
    pub fn of_row(&self, row: usize) -> &'a [f32] {
        &self.factors[(row / self.rows - self.first) * self.cols..][..self.cols]
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

/// Whether a factor is one that files may have.
pub fn is_factor(factor: f32) -> bool {
    factor.is_finite() && factor > 0.0
}
