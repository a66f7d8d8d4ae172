//! Compressed tensors in the memory of a GPU.

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

/// Compressed tensors on a GPU; `wcodec.GpuDecoder` is the class for users.
///
/// Streams and outputs come as the integers that torch has of them. The Python half vouches for them: streams are torch's of
/// this device, and outputs are tensors of this device, of the size that `output_bytes` tells (or the share of the rows asked
/// for), which torch is told not to reuse before the stream is done with them.
#[pyclass(frozen, module = "wcodec._native")]
pub struct GpuDecoder {
    decoder: Arc<wcodec::gpu::GpuDecoder>,
    path: Option<PathBuf>,
    /// Present where planes of coder `zstd` share scratch, so that work in different streams has to take turns.
    turn: Option<Arc<Turn>>,
}

#[pymethods]
impl GpuDecoder {
    /// Reads the tensors `names` and sends them, compressed, to GPU `ordinal`.
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
            let decoder = wcodec::gpu::GpuDecoder::new(&device, container, &names, &options)?;
            let coders = decoder.names().map(|n| Ok(container.info(n)?.coder)).collect::<wcodec::Result<Vec<_>>>()?;
            let turn = Turn::new(&device, coders.into_iter())?.map(Arc::new);
            Ok(Self { decoder: Arc::new(decoder), path: container.path().map(Into::into), turn })
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
            Ok(DecodeBatch::on_device(self.decoder.clone(), batch, self.turn.clone(), self.path.clone()))
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

    /// Bytes that it holds on the GPU.
    fn device_bytes(&self) -> usize {
        self.decoder.device_bytes()
    }
}
