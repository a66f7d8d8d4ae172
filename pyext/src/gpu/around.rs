//! The work of a launch of products besides the products.

use pyo3::prelude::*;

/// The work that a launch of products does before and after them: addresses of the device, 0 for work that is not wanted, and factors.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Around(wcodec::gpu::Around);

impl Around {
    /// The crate's description.
    pub fn inner(&self) -> wcodec::gpu::Around {
        self.0
    }
}

#[pymethods]
impl Around {
    #[new]
    #[pyo3(signature = (*, squared = 0, epsilon = 0.0, norm_factor = 1.0, residual = 0, scaled = 0, gain = 0, gain_scale = 1.0, stash = 0,
        arrivals = 0))]
    #[expect(clippy::too_many_arguments, reason = "they come by their names")]
    fn new(
        squared: u64,
        epsilon: f32,
        norm_factor: f32,
        residual: u64,
        scaled: u64,
        gain: u64,
        gain_scale: f32,
        stash: u64,
        arrivals: u64,
    ) -> Self {
        Self(wcodec::gpu::Around { squared, epsilon, norm_factor, residual, scaled, gain, gain_scale, stash, arrivals })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
