//! Compressed tensors in pinned memory of the host.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use wcodec::Dtype;
use wcodec::gpu::Device;

use super::batch::DecodeBatch;
use super::turn::Turn;
use super::{Options, PyTarget, crate_stream, crate_targets, named};
use crate::container::Container;
use crate::errors::to_py;
use crate::progress::detached;

/// Compressed tensors in pinned memory; `wcodec.HostDecoder` is the class for users. Streams and outputs are as for
/// [`GpuDecoder`](super::GpuDecoder).
#[pyclass(frozen, module = "wcodec._native")]
pub struct HostDecoder {
    decoder: wcodec::gpu::HostDecoder,
    path: Option<PathBuf>,
    /// Present where planes of coder `zstd` share scratch, so that work in different streams has to take turns.
    turn: Option<Arc<Turn>>,
}

#[pymethods]
impl HostDecoder {
    /// Reads the tensors `names` into pinned memory, for decoding on GPU `ordinal`.
    #[new]
    fn new(
        py: Python<'_>,
        container: &Bound<'_, Container>,
        names: Vec<String>,
        ordinal: usize,
        options: Options,
    ) -> PyResult<Self> {
        let container = container.get().inner();
        let options = options.build();
        detached(py, || {
            let device = Device::new(ordinal)?;
            let decoder = wcodec::gpu::HostDecoder::new(&device, container, &names, &options)?;
            let coders = decoder.names().map(|n| Ok(container.info(n)?.coder)).collect::<wcodec::Result<Vec<_>>>()?;
            let turn = Turn::new(&device, coders.into_iter())?.map(Arc::new);
            Ok(Self { decoder, path: container.path().map(Into::into), turn })
        })
    }

    /// Puts the decoding of `targets` into the stream.
    fn decode(&self, py: Python<'_>, targets: Vec<PyTarget>, stream: usize) -> PyResult<()> {
        detached(py, || {
            let targets = crate_targets(targets)?;
            let stream = crate_stream(self.decoder.device(), stream);
            Turn::take(self.turn.as_deref(), &stream, || {
                // SAFETY: The Python half has checked device, shape and dtype of the outputs, and has told torch that the
                // stream uses them. Work that shares scratch takes turns.
                unsafe { self.decoder.decode(&targets, &stream) }
            })
            .map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Fixes addresses and launches for `targets`, to be launched again and again.
    fn prepare(&self, py: Python<'_>, targets: Vec<PyTarget>) -> PyResult<DecodeBatch> {
        detached(py, || {
            let batch = self.decoder.prepare(&crate_targets(targets)?).map_err(|e| named(self.path.as_ref(), e))?;
            Ok(DecodeBatch::on_host(batch, self.turn.clone(), self.path.clone()))
        })
    }

    /// Waits for the stream, and raises what was found damaged.
    fn check(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || {
            self.decoder.check(&crate_stream(self.decoder.device(), stream)).map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Names of the stored tensors.
    fn names(&self) -> Vec<&str> {
        self.decoder.names().collect()
    }

    /// Bytes that decoding `name` to `dtype` writes.
    fn output_bytes(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<usize> {
        let bytes = Dtype::from_name(dtype).and_then(|d| self.decoder.output_bytes(name, d));
        bytes.map_err(|e| to_py(py, &e))
    }

    /// Bytes that it holds in pinned memory.
    fn host_bytes(&self) -> usize {
        self.decoder.host_bytes()
    }

    /// Bytes that it holds on the GPU.
    fn device_bytes(&self) -> usize {
        self.decoder.device_bytes()
    }
}
