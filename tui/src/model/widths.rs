//! The widths of columns of a table of all tensors, found out once.

use wcodec::TensorInfo;
use wcodec::text::safe;

use crate::draw::text::width;

/// The longest text of each column, in columns of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Widths {
    /// Whole names.
    pub name: usize,
    /// `4096x192`.
    pub shape: usize,
    /// `BF16`.
    pub dtype: usize,
    /// `int8 block 128`.
    pub scheme: usize,
    /// `rans pair`.
    pub coder: usize,
    /// Whether the file states errors.
    pub errors: bool,
}

impl Widths {
    /// The widths for these tensors.
    pub fn of(tensors: &[TensorInfo]) -> Self {
        let mut most = Self::default();
        let joined = |a: &str, b: Option<&str>| width(&safe(a)) + b.map_or(0, |b| width(&safe(b)) + 1);
        for t in tensors {
            let digits = |n: &usize| n.checked_ilog10().map_or(1, |d| d as usize + 1);
            let shape = t.shape.iter().map(|n| digits(n) + 1).sum::<usize>().max("scalar".len() + 1) - 1;
            most.name = most.name.max(width(&safe(&t.name)));
            most.shape = most.shape.max(shape);
            most.dtype = most.dtype.max(t.dtype.name().len());
            most.scheme = most.scheme.max(joined(&t.scheme, t.scales.as_deref()));
            most.coder = most.coder.max(joined(t.coder(), t.layout()));
            most.errors |= t.error.is_some();
        }
        most
    }
}
