//! The inputs and outputs of schemes.

use super::fields::Fields;
use super::int8::granularity::Granularity;
use crate::tensor::Dtype;

/// Levels and scales of scheme `rate` that the caller has chosen for a tensor by its effect on the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// Symbols of the matrix view, row by row: level k is worth `(k + 1/2) * scale`.
    pub symbols: Vec<i8>,
    /// One scale per row, each the value of a finite bf16 that is not negative.
    pub scales: Vec<f32>,
    /// One factor per column of each matrix, matrix by matrix, each the value of a finite bf16 above 0: level k is worth
    /// `(k + 1/2) * scale * factor`. 1 if absent.
    pub columns: Option<Vec<f32>>,
    /// Whether levels are paths through a trellis.
    pub trellis: bool,
    /// Columns of a tile, after which a trellis restarts; chosen by shape if absent. If the options set a width, it
    /// must be the same.
    pub tile: Option<usize>,
}

/// A matrix of floats to encode.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Element type, which the scheme must support.
    pub dtype: Dtype,
    /// Elements, little-endian.
    pub bytes: &'a [u8],
    /// Rows (output channels) of all matrices of a stack.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Whether `bytes` is in column-major order.
    pub transposed: bool,
}

/// The scheme's output for a matrix: planes to be coded, and the data that inverts them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SymbolPlanes {
    /// The symbols of each plane, row by row.
    pub planes: Vec<Vec<i8>>,
    /// The bits of an element that each plane holds; empty if one plane holds whole elements.
    pub fields: Vec<Fields>,
    /// The scales of the symbols and the elements that share one, in the order of [`Granularity::scales`].
    pub scales: Option<(Granularity, Vec<f32>)>,
    /// The factors of columns, matrix by matrix, if columns have some.
    pub columns: Option<Vec<f32>>,
    /// The relative error of the values: RMS of the difference to the weights, divided by the RMS of the weights.
    /// `None` if it follows from the scheme.
    pub error: Option<f64>,
}
