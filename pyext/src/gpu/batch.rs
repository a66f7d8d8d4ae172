//! Targets whose launches are ready.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use wcodec::gpu::{Batch, GpuDecoder, HostBatch};

use super::turn::Turn;
use super::{crate_stream, named};
use crate::progress::detached;

/// Targets whose launches are ready; `wcodec.DecodeBatch` is the class for users. It keeps the decoder's memory alive, and the
/// Python half keeps the outputs.
#[pyclass(frozen, module = "wcodec._native")]
pub struct DecodeBatch {
    source: Source,
    turn: Option<Arc<Turn>>,
    path: Option<PathBuf>,
}

/// Where the compressed bytes are.
enum Source {
    Device { batch: Batch, decoder: Arc<GpuDecoder> },
    Host(HostBatch),
}

impl DecodeBatch {
    /// A batch of `decoder`.
    pub fn on_device(decoder: Arc<GpuDecoder>, batch: Batch, turn: Option<Arc<Turn>>, path: Option<PathBuf>) -> Self {
        Self { source: Source::Device { batch, decoder }, turn, path }
    }

    /// A batch whose bytes are in the host's memory.
    pub fn on_host(batch: HostBatch, turn: Option<Arc<Turn>>, path: Option<PathBuf>) -> Self {
        Self { source: Source::Host(batch), turn, path }
    }
}

#[pymethods]
impl DecodeBatch {
    /// Puts the decoding into the stream.
    fn launch(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || {
            let device = match &self.source {
                Source::Device { decoder, .. } => decoder.device(),
                Source::Host(batch) => batch.device(),
            };
            let stream = crate_stream(device, stream);
            Turn::take(self.turn.as_deref(), &stream, || match &self.source {
                // SAFETY: As for `GpuDecoder::decode`; the decoder, whose memory this reads, is kept.
                Source::Device { batch, .. } => unsafe { batch.launch(&stream) },
                // SAFETY: Likewise.
                Source::Host(batch) => unsafe { batch.launch(&stream) },
            })
            .map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Begins to copy the bytes to the GPU; does nothing where they are there.
    fn prefetch(&self, py: Python<'_>) -> PyResult<()> {
        match &self.source {
            Source::Device { .. } => Ok(()),
            Source::Host(batch) => detached(py, || batch.prefetch().map_err(|e| named(self.path.as_ref(), e))),
        }
    }

    /// Slots of the ring that it takes; 0 where the bytes are on the GPU.
    fn slots(&self) -> usize {
        match &self.source {
            Source::Device { .. } => 0,
            Source::Host(batch) => batch.slots(),
        }
    }
}
