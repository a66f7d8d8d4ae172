//! Norms of vectors by a kernel of their own.

use pyo3::prelude::*;
use wcodec::gpu::{Device, Norm, NormKind, NormVectors, Norms};
use wcodec::{Code, Dtype, Result};

use super::crate_stream;
use crate::progress::detached;

/// Vectors, their norm, and what becomes of it; the keys of the dictionary are the fields. Addresses are the device's; 0 is for what is not
/// there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct NormCall {
    dtype: String,
    count: usize,
    cols: usize,
    x: u64,
    y: u64,
    kind: String,
    epsilon: f32,
    gain: u64,
    gain_offset: f32,
    scale: f32,
    residual: u64,
    scaled: u64,
    next_gain: u64,
    next_offset: f32,
    next_scale: f32,
}

impl NormCall {
    fn norm(&self) -> Result<Norm> {
        let kind = match self.kind.as_str() {
            "rms" => NormKind::Rms,
            "layer" => NormKind::Layer,
            other => {
                return Err(Code::NO_FUSED_KERNEL
                    .error(format!("no kernel has norms of kind '{other}'"))
                    .advice("use rms or layer"));
            }
        };
        let &Self { epsilon, gain, gain_offset, .. } = self;
        Ok(Norm { kind, epsilon, gain, gain_offset, bias: 0 })
    }

    fn vectors(&self) -> Result<NormVectors> {
        let &Self { count, cols, x, y, scale, residual, scaled, next_gain, next_offset, next_scale, .. } = self;
        let dtype = Dtype::from_name(&self.dtype)?;
        Ok(NormVectors { dtype, count, cols, x, y, scale, residual, scaled, next_gain, next_offset, next_scale })
    }
}

/// The kernel of norms, loaded on a GPU.
#[pyclass(frozen, module = "wcodec._native")]
pub struct GpuNorms(Norms);

#[pymethods]
impl GpuNorms {
    /// That of GPU `ordinal`.
    #[new]
    fn new(py: Python<'_>, ordinal: usize) -> PyResult<Self> {
        detached(py, || Norms::new(&Device::new(ordinal)?)).map(Self)
    }

    /// Puts norms into the stream.
    #[expect(clippy::needless_pass_by_value, reason = "Python's objects are converted")]
    fn run(&self, py: Python<'_>, call: NormCall, stream: usize) -> PyResult<()> {
        detached(py, || {
            let (norm, vectors) = (call.norm()?, call.vectors()?);
            // SAFETY: The Python half has checked devices, shapes and dtypes of all tensors, or made them, in torch's current stream.
            unsafe { self.0.run(&norm, &vectors, &crate_stream(self.0.device(), stream)) }
        })
    }
}
