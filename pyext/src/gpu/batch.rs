//! Items whose launches are ready.

use std::path::PathBuf;

use pyo3::prelude::*;
use wcodec::gpu::{Batch, Vectors};
use wcodec::{Cancel, Result};

use super::epilogue::Epilogue;
use super::{crate_stream, named};
use crate::progress::{detached, run_if};

/// Items whose launches are ready; `wcodec.DecodeBatch` is the class for users. It keeps the decoder's memory alive, and the
/// Python half keeps the outputs.
#[pyclass(frozen, module = "wcodec._native")]
pub struct DecodeBatch {
    batch: Batch,
    path: Option<PathBuf>,
}

impl DecodeBatch {
    /// A batch for users.
    pub fn new(batch: Batch, path: Option<PathBuf>) -> Self {
        Self { batch, path }
    }

    /// Puts work into a stream; where that waits for the disk, Ctrl-C ends it.
    fn put(&self, py: Python<'_>, work: impl FnOnce(&Cancel) -> Result<()> + Send) -> PyResult<()> {
        run_if(py, self.batch.waits(), |cancel| work(cancel).map_err(|e| named(self.path.as_ref(), e)))
    }

    fn products(&self, py: Python<'_>, vectors: &Vectors, stream: usize) -> PyResult<()> {
        self.put(py, |cancel| {
            let stream = crate_stream(self.batch.device(), stream);
            // SAFETY: The Python half has checked device, shape and dtype of vectors, results and what is added to them, and has told torch that
            // the stream uses them.
            unsafe { self.batch.multiply_until(vectors, &stream, cancel) }
        })
    }
}

#[pymethods]
impl DecodeBatch {
    /// Puts the decoding into the stream.
    fn launch(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.put(py, |cancel| {
            // SAFETY: As for `TensorDecoder::decode`.
            unsafe { self.batch.launch_until(&crate_stream(self.batch.device(), stream), cancel) }
        })
    }

    /// Puts the products with `count` vectors at `x`, `stride` elements from each other, into the stream; results go to `y`.
    fn multiply(&self, py: Python<'_>, x: u64, stride: usize, count: usize, y: u64, stream: usize) -> PyResult<()> {
        self.products(py, &Vectors { x, x_stride: stride, count, y, ..Vectors::default() }, stream)
    }

    /// As `multiply`, with an epilogue.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call for each launch of a model: only what differs from the plain one is an object"
    )]
    fn multiply_with_epilogue(
        &self,
        py: Python<'_>,
        x: u64,
        stride: usize,
        count: usize,
        y: u64,
        stream: usize,
        epilogue: &Epilogue,
    ) -> PyResult<()> {
        self.products(py, &Vectors { x, x_stride: stride, count, y, epilogue: epilogue.inner() }, stream)
    }

    /// Begins to copy the bytes to the GPU; does nothing where they are there.
    fn prefetch(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.batch.prefetch().map_err(|e| named(self.path.as_ref(), e)))
    }

    /// The most vectors that its products take.
    fn most_vectors(&self) -> usize {
        self.batch.most_vectors()
    }

    /// Slots of the ring that it takes; 0 where the bytes are on the GPU.
    fn slots(&self) -> usize {
        self.batch.slots()
    }
}
