//! What schemes are given, and what they make of it.

use super::fields::Fields;
use super::int8::granularity::Granularity;
use crate::tensor::Dtype;

/// What is known of how much the weights of a layer matter, from running the model: statistics for schemes that go by them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// Mean square of each input, one for each column; empty where it is not known.
    pub inputs: Vec<f32>,
    /// Mean square of the gradient of each output, one for each row; empty where it is not known.
    pub outputs: Vec<f32>,
}

/// A matrix of floats to encode, and what is known of it.
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
    /// How much the weights matter, where the source says so.
    pub importance: Option<&'a Importance>,
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
