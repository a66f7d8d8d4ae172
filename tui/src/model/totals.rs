//! Sums over tensors.

use serde::Serialize;
use wcodec::TensorInfo;

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
