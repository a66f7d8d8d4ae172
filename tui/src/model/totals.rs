//! Sums over tensors, and the widths of columns of a table of all of them, found out once.

use serde::Serialize;
use wcodec::TensorInfo;
use wcodec::text::safe;

use crate::draw::text::width;

/// Sums over some tensors, all bytes counted that belong to one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Tensors.
    pub tensors: usize,
    /// Elements.
    pub elements: u64,
    /// Bytes in the source.
    pub original_bytes: u64,
    /// Bytes here.
    pub stored_bytes: u64,
}

impl Totals {
    /// Sums over these.
    pub fn of<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Self {
        let mut sums = Self::default();
        tensors.into_iter().for_each(|t| sums.add(t));
        sums
    }

    /// Counts one more.
    pub fn add(&mut self, t: &TensorInfo) {
        self.tensors += 1;
        self.elements = self.elements.saturating_add(t.elements);
        self.original_bytes = self.original_bytes.saturating_add(t.original_bytes);
        self.stored_bytes = self.stored_bytes.saturating_add(t.stored_bytes);
    }

    /// Counts what others counted.
    pub fn merge(&mut self, more: &Self) {
        self.tensors += more.tensors;
        self.elements = self.elements.saturating_add(more.elements);
        self.original_bytes = self.original_bytes.saturating_add(more.original_bytes);
        self.stored_bytes = self.stored_bytes.saturating_add(more.stored_bytes);
    }

    /// Original bytes for each stored byte.
    pub fn ratio(&self) -> f64 {
        if self.stored_bytes == 0 { 1.0 } else { self.original_bytes as f64 / self.stored_bytes as f64 }
    }

    /// Stored bits for each element.
    pub fn bits_per_weight(&self) -> f64 {
        if self.elements == 0 { 0.0 } else { 8.0 * self.stored_bytes as f64 / self.elements as f64 }
    }
}

/// The longest text of each column, in columns of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Widths {
    /// Whole names.
    pub name: usize,
    /// `4096x192`.
    pub shape: usize,
    /// `BF16`.
    pub dtype: usize,
    /// `int8 block 128`, `rate row column`.
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
            let columns = if t.columns { " column".len() } else { 0 };
            most.scheme = most.scheme.max(joined(&t.scheme, t.scales.as_deref()) + columns);
            most.coder = most.coder.max(joined(t.coder(), t.layout()));
            most.errors |= t.error.is_some();
        }
        most
    }
}
