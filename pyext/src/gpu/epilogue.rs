//! The epilogue of a launch of products.

use pyo3::prelude::*;

use crate::errors::to_py;

/// The steps of a launch of products before it writes results: addresses of the device, 0 for a step that is not wanted, and factors.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Epilogue(wcodec::gpu::Epilogue);

impl Epilogue {
    /// The crate's description.
    pub fn inner(&self) -> wcodec::gpu::Epilogue {
        self.0
    }
}

#[pymethods]
impl Epilogue {
    #[new]
    #[pyo3(signature = (*, squared = 0, epsilon = 0.0, norm_factor = 1.0, residual = 0, residual_scale = 1.0, scaled = 0, gain = 0,
        gain_scale = 1.0, gain_offset = 0.0, activation = None, stash = 0, arrivals = 0))]
    #[expect(clippy::too_many_arguments, reason = "they come by their names")]
    fn new(
        py: Python<'_>,
        squared: u64,
        epsilon: f32,
        norm_factor: f32,
        residual: u64,
        residual_scale: f32,
        scaled: u64,
        gain: u64,
        gain_scale: f32,
        gain_offset: f32,
        activation: Option<&str>,
        stash: u64,
        arrivals: u64,
    ) -> PyResult<Self> {
        let known = |name| wcodec::gpu::Activation::from_name(name).map_err(|e| to_py(py, &e));
        let activation = activation.map(known).transpose()?;
        Ok(Self(wcodec::gpu::Epilogue {
            squared,
            epsilon,
            norm_factor,
            residual,
            residual_scale,
            scaled,
            gain,
            gain_scale,
            gain_offset,
            activation,
            stash,
            arrivals,
        }))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
