//! Routes of tokens to experts, and products with these.

use std::path::PathBuf;

use pyo3::prelude::*;
use wcodec::gpu::{Combination, Device, Routed, RoutedVectors, Router, Routes, RowIds};
use wcodec::{Dtype, Result};

use super::{crate_stream, named};
use crate::progress::detached;

/// Routes to sort, and where their order goes; the keys of the dictionary are the fields. Addresses are the device's; 0 is for what is not there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct RouteCall {
    ids: u64,
    count: usize,
    wide: bool,
    each: usize,
    places: u64,
    named: usize,
    experts: usize,
    most: usize,
    rows: u64,
    positions: u64,
    slots: u64,
}

impl RouteCall {
    fn routes(&self) -> Routes {
        let &Self { ids, count, wide, each, places, named, experts, most, rows, positions, slots } = self;
        Routes { ids: RowIds { ptr: ids, count, wide }, each, places, named, experts, most, rows, positions, slots }
    }
}

/// Results of routed experts to add up; the keys of the dictionary are the fields. Addresses are the device's; 0 is for what is not there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct CombineCall {
    dtype: String,
    tokens: usize,
    each: usize,
    cols: usize,
    y: u64,
    shares: u64,
    share_dtype: String,
    positions: u64,
    out: u64,
}

impl CombineCall {
    fn combination(&self) -> Result<Combination> {
        let &Self { tokens, each, cols, y, shares, positions, out, .. } = self;
        let (dtype, share_dtype) = (Dtype::from_name(&self.dtype)?, Dtype::from_name(&self.share_dtype)?);
        Ok(Combination { dtype, tokens, each, cols, y, shares, share_dtype, positions, out })
    }
}

/// The kernels around products with routed experts, loaded on a GPU.
#[pyclass(frozen, module = "wcodec._native")]
pub struct GpuRouter(Router);

#[pymethods]
impl GpuRouter {
    /// Those of GPU `ordinal`.
    #[new]
    fn new(py: Python<'_>, ordinal: usize) -> PyResult<Self> {
        detached(py, || Router::new(&Device::new(ordinal)?)).map(Self)
    }

    /// Puts the sorting of routes into the stream.
    #[expect(clippy::needless_pass_by_value, reason = "Python's objects are converted")]
    fn route(&self, py: Python<'_>, call: RouteCall, stream: usize) -> PyResult<()> {
        detached(py, || {
            // SAFETY: The Python half has checked devices, shapes and dtypes of all tensors, or made them, in torch's current stream.
            unsafe { self.0.route(&call.routes(), &crate_stream(self.0.device(), stream)) }
        })
    }

    /// Puts the addition of experts' results into the stream.
    #[expect(clippy::needless_pass_by_value, reason = "Python's objects are converted")]
    fn combine(&self, py: Python<'_>, call: CombineCall, stream: usize) -> PyResult<()> {
        detached(py, || {
            // SAFETY: As for `route`.
            unsafe { self.0.combine(&call.combination()?, &crate_stream(self.0.device(), stream)) }
        })
    }
}

/// Matrices of experts, to multiply with those that tokens are routed to. It keeps the decoder's memory alive.
#[pyclass(frozen, module = "wcodec._native")]
pub struct RoutedProducts {
    routed: Routed,
    path: Option<PathBuf>,
}

impl RoutedProducts {
    /// For the Python half.
    pub fn new(routed: Routed, path: Option<PathBuf>) -> Self {
        Self { routed, path }
    }
}

#[pymethods]
impl RoutedProducts {
    /// Puts the products into the stream: of vectors at `x`, `stride` elements apart, as the routes say that the router has written to `rows` (0:
    /// vectors lie by position) and to the `count` slots at `slots`, which have `most` vectors at most.
    #[expect(clippy::too_many_arguments, reason = "one call for each launch of a model")]
    fn multiply(
        &self,
        py: Python<'_>,
        x: u64,
        stride: usize,
        rows: u64,
        slots: u64,
        count: usize,
        most: usize,
        y: u64,
        stream: usize,
    ) -> PyResult<()> {
        let vectors = RoutedVectors { x, x_stride: stride, rows, slots, slot_count: count, most, y };
        detached(py, || {
            // SAFETY: As for `GpuRouter::route`, which has written the routes.
            let put = unsafe { self.routed.multiply(&vectors, &crate_stream(self.routed.device(), stream)) };
            put.map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// The most vectors of a slot that suit so many tokens with so many routes.
    fn most(&self, tokens: usize, routes: usize) -> usize {
        self.routed.most(tokens, routes)
    }

    /// Bytes that it holds on the GPU, besides the decoder's.
    fn device_bytes(&self) -> usize {
        self.routed.device_bytes()
    }
}
