//! Reads matrices of floats row by row as f32.

use ndarray::{ArrayView2, ShapeBuilder};

use super::int8::Weight;
use super::matrix::Weights;
use crate::error::Result;
use crate::tensor::{AlignedBytes, out_of_memory};

/// Columns that are processed together: as many as the inner cache holds as f32, so that data that is read twice is
/// fetched once.
pub const RUN: usize = 1 << 14;
/// Rows that are read together if memory is column-major: whole cache lines.
const PANEL: usize = 32;

/// The elements of `weights`, which are of type `T`; copied to `copy` if they are misaligned in the caller's memory.
///
/// # Errors
/// The operating system refuses memory.
pub fn view_of<'a, T: Weight>(weights: &Weights<'a>, copy: &'a mut AlignedBytes) -> Result<ArrayView2<'a, T>> {
    let elements: &[T] = match bytemuck::try_cast_slice(weights.bytes) {
        Ok(elements) => elements,
        Err(_) => {
            *copy = AlignedBytes::copy_of(weights.bytes)?;
            bytemuck::cast_slice(copy)
        }
    };
    let shape = (weights.rows, weights.cols);
    let view = match weights.transposed {
        false => ArrayView2::from_shape(shape, elements),
        true => ArrayView2::from_shape(shape.f(), elements),
    };
    view.map_err(|e| coded!(INPUT_BUG, e.to_string()))
}

/// Reads runs of rows as f32. A clone has its own buffer.
pub struct Reader<'a, 'v, T> {
    weights: &'a ArrayView2<'v, T>,
    /// Whether the elements of a row are adjacent in memory.
    by_rows: bool,
    buffer: Vec<f32>,
    /// The rows in the buffer, each whole, if memory is column-major.
    panel: std::ops::Range<usize>,
}

impl<T> Clone for Reader<'_, '_, T> {
    fn clone(&self) -> Self {
        Self { weights: self.weights, by_rows: self.by_rows, buffer: Vec::new(), panel: 0..0 }
    }
}

impl<'a, 'v, T: Weight> Reader<'a, 'v, T> {
    /// A reader of a matrix in any memory order.
    pub fn new(weights: &'a ArrayView2<'v, T>) -> Self {
        let by_rows = weights.ncols() < 2 || weights.strides()[1] == 1;
        Self { weights, by_rows, buffer: Vec::new(), panel: 0..0 }
    }

    /// At least `rows` rows, rounded up to whole panels.
    pub fn whole_panels(&self, rows: usize) -> usize {
        if self.by_rows { rows } else { rows.next_multiple_of(PANEL) }
    }

    /// `length` elements of row `r` from column `col` on.
    ///
    /// # Errors
    /// The operating system refuses memory.
    pub fn run(&mut self, r: usize, col: usize, length: usize) -> Result<&[f32]> {
        let row = self.weights.row(r);
        if let Some(row) = row.to_slice().filter(|_| self.by_rows) {
            self.buffer.clear();
            self.buffer.try_reserve_exact(length).map_err(|_| out_of_memory(length * size_of::<f32>()))?;
            self.buffer.extend(row[col..col + length].iter().map(|w| w.to_f32()));
            return Ok(&self.buffer);
        }
        let cols = self.weights.ncols();
        if !self.panel.contains(&r) {
            // Fewer rows if they are long, so that the panel stays in cache.
            let rows = (16 * RUN / cols).clamp(1, PANEL);
            let first = r / rows * rows;
            self.panel = first..(first + rows).min(self.weights.nrows());
            let size = self.panel.len() * cols;
            self.buffer.clear();
            self.buffer.try_reserve_exact(size).map_err(|_| out_of_memory(size * size_of::<f32>()))?;
            self.buffer.resize(size, 0.0);
            let panel = self.weights.slice(ndarray::s![self.panel.clone(), ..]);
            for (c, column) in panel.columns().into_iter().enumerate() {
                for (r, w) in column.iter().enumerate() {
                    self.buffer[r * cols + c] = w.to_f32();
                }
            }
        }
        Ok(&self.buffer[(r - self.panel.start) * cols + col..][..length])
    }
}
