//! Targets whose launches are ready.

use std::path::PathBuf;

use pyo3::prelude::*;
use wcodec::gpu::{Around, Batch, HostBatch, Vectors};

use super::{crate_stream, named};
use crate::progress::detached;

/// Targets whose launches are ready; `wcodec.DecodeBatch` is the class for users. It keeps the decoder's memory alive, and the
/// Python half keeps the outputs.
#[pyclass(frozen, module = "wcodec._native")]
pub struct DecodeBatch {
    prepared: Prepared,
    path: Option<PathBuf>,
}

/// A batch, by where its compressed bytes are.
pub enum Prepared {
    Device(Batch),
    Host(HostBatch),
}

impl DecodeBatch {
    /// A batch for users.
    pub fn new(prepared: Prepared, path: Option<PathBuf>) -> Self {
        Self { prepared, path }
    }

    fn products(&self, py: Python<'_>, vectors: &Vectors, stream: usize) -> PyResult<()> {
        detached(py, || {
            let device = match &self.prepared {
                Prepared::Device(batch) => batch.device(),
                Prepared::Host(batch) => batch.device(),
            };
            let stream = crate_stream(device, stream);
            let launched = match &self.prepared {
                // SAFETY: The Python half has checked device, shape and dtype of vectors, results and all that is added to them, and has told
                // torch that the stream uses them.
                Prepared::Device(batch) => unsafe { batch.multiply(vectors, &stream) },
                // SAFETY: Likewise.
                Prepared::Host(batch) => unsafe { batch.multiply(vectors, &stream) },
            };
            launched.map_err(|e| named(self.path.as_ref(), e))
        })
    }
}

#[pymethods]
impl DecodeBatch {
    /// Puts the decoding into the stream.
    fn launch(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || {
            let device = match &self.prepared {
                Prepared::Device(batch) => batch.device(),
                Prepared::Host(batch) => batch.device(),
            };
            let stream = crate_stream(device, stream);
            let launched = match &self.prepared {
                // SAFETY: As for `GpuDecoder::decode`.
                Prepared::Device(batch) => unsafe { batch.launch(&stream) },
                // SAFETY: Likewise.
                Prepared::Host(batch) => unsafe { batch.launch(&stream) },
            };
            launched.map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Puts the products with `count` vectors at `x`, `stride` elements from each other, into the stream; results go to `y`.
    fn multiply(&self, py: Python<'_>, x: u64, stride: usize, count: usize, y: u64, stream: usize) -> PyResult<()> {
        self.products(py, &Vectors { x, x_stride: stride, count, y, ..Vectors::default() }, stream)
    }

    /// As `multiply`, with what else a launch does: `(squared, epsilon, norm_factor, residual, scaled, gain, stash, arrivals)`.
    #[expect(clippy::too_many_arguments, reason = "one call for each launch of a model: nothing is built for it")]
    fn multiply_around(
        &self,
        py: Python<'_>,
        x: u64,
        stride: usize,
        count: usize,
        y: u64,
        stream: usize,
        around: (u64, f32, f32, u64, u64, u64, u64, u64),
    ) -> PyResult<()> {
        let (squared, epsilon, norm_factor, residual, scaled, gain, stash, arrivals) = around;
        let around = Around { squared, epsilon, norm_factor, residual, scaled, gain, stash, arrivals };
        self.products(py, &Vectors { x, x_stride: stride, count, y, around }, stream)
    }

    /// Begins to copy the bytes to the GPU; does nothing where they are there.
    fn prefetch(&self, py: Python<'_>) -> PyResult<()> {
        match &self.prepared {
            Prepared::Device(_) => Ok(()),
            Prepared::Host(batch) => detached(py, || batch.prefetch().map_err(|e| named(self.path.as_ref(), e))),
        }
    }

    /// Slots of the ring that it takes; 0 where the bytes are on the GPU.
    fn slots(&self) -> usize {
        match &self.prepared {
            Prepared::Device(_) => 0,
            Prepared::Host(batch) => batch.slots(),
        }
    }
}
