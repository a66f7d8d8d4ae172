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
    prepared: Prepared,
    turn: Option<Arc<Turn>>,
    path: Option<PathBuf>,
}

/// A batch, by where its compressed bytes are; with the decoder that has them, if it does not keep that itself.
pub enum Prepared {
    Device(Batch, Arc<GpuDecoder>),
    Host(HostBatch),
}

impl DecodeBatch {
    /// A batch for users.
    pub fn new(prepared: Prepared, turn: Option<Arc<Turn>>, path: Option<PathBuf>) -> Self {
        Self { prepared, turn, path }
    }
}

#[pymethods]
impl DecodeBatch {
    /// Puts the decoding into the stream.
    fn launch(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || {
            let device = match &self.prepared {
                Prepared::Device(_, decoder) => decoder.device(),
                Prepared::Host(batch) => batch.device(),
            };
            let stream = crate_stream(device, stream);
            Turn::take(self.turn.as_deref(), &stream, || match &self.prepared {
                // SAFETY: As for `GpuDecoder::decode`; the decoder, whose memory this reads, is kept.
                Prepared::Device(batch, _) => unsafe { batch.launch(&stream) },
                // SAFETY: Likewise.
                Prepared::Host(batch) => unsafe { batch.launch(&stream) },
            })
            .map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Begins to copy the bytes to the GPU; does nothing where they are there.
    fn prefetch(&self, py: Python<'_>) -> PyResult<()> {
        match &self.prepared {
            Prepared::Device(..) => Ok(()),
            Prepared::Host(batch) => detached(py, || batch.prefetch().map_err(|e| named(self.path.as_ref(), e))),
        }
    }

    /// Slots of the ring that it takes; 0 where the bytes are on the GPU.
    fn slots(&self) -> usize {
        match &self.prepared {
            Prepared::Device(..) => 0,
            Prepared::Host(batch) => batch.slots(),
        }
    }
}
