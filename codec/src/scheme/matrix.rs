//! What schemes are given, and what they make of it.

use super::fields::Fields;
use super::int8::granularity::Granularity;
use crate::tensor::Dtype;

/// Levels and scales of scheme `rate` that somebody has chosen for a tensor by what the model does with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// Symbols of the matrix view, row by row: level k is worth `(k + 1/2) * scale`.
    pub symbols: Vec<i8>,
    /// One a row, each the value of a bf16 that is finite and not below 0.
    pub scales: Vec<f32>,
    /// Whether levels are paths through a trellis.
    pub trellis: bool,
    /// Columns of a tile, after which a trellis restarts; by shape where absent, and nothing but what the options say where they say it.
    pub tile: Option<usize>,
}

/// A matrix of floats to encode.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Element type: one that the scheme takes.
    pub dtype: Dtype,
    /// Elements, little-endian.
    pub bytes: &'a [u8],
    /// Rows (output channels), those of all matrices of a stack.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Whether `bytes` has columns one after the other, and not rows.
    pub transposed: bool,
}

/// What a scheme makes of a matrix: planes to be coded, and what turns them back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SymbolPlanes {
    /// Those of each plane, row by row.
    pub planes: Vec<Vec<i8>>,
    /// The bits of an element that each plane holds; empty where one plane holds all that there is.
    pub fields: Vec<Fields>,
    /// Factors of the symbols and what shares one, in the order of [`Granularity::scales`].
    pub scales: Option<(Granularity, Vec<f32>)>,
    /// How far what they become is from the weights: root of the mean square of the difference, over that of the weights. Nothing where that
    /// follows from the scheme.
    pub error: Option<f64>,
}
