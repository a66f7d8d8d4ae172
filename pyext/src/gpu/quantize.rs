//! Levels of weights with error feedback, chosen on a GPU.

use pyo3::prelude::*;
use wcodec::gpu::{ColumnSizes, Device, Quantizer, RoundColumns, TrellisColumns};

use super::crate_stream;
use crate::progress::detached;

/// Weights to round; the keys of the dictionary are the fields. Addresses are the device's; 0 is for what is not there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct RoundCall {
    rows: usize,
    columns: usize,
    stride: usize,
    x: u64,
    carry: u64,
    feed: u64,
    prices: u64,
    levels: u64,
    errors: u64,
}

/// Weights through which the survivors of a trellis go on; the keys of the dictionary are the fields. Addresses are the
/// device's; 0 is for what is not there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TrellisCall {
    rows: usize,
    columns: usize,
    stride: usize,
    x: u64,
    added: u64,
    weights: u64,
    feed: u64,
    prices: u64,
    costs: u64,
    symbols: u64,
    origin: u64,
    sums: u64,
}

/// The kernels that choose levels of weights, loaded on a GPU.
#[pyclass(frozen, module = "wcodec._native")]
pub struct GpuQuantizer(Quantizer);

#[pymethods]
impl GpuQuantizer {
    /// The most columns of a call.
    #[classattr]
    const COLUMNS: usize = Quantizer::COLUMNS;

    /// Those of GPU `ordinal`.
    #[new]
    fn new(py: Python<'_>, ordinal: usize) -> PyResult<Self> {
        detached(py, || Quantizer::new(&Device::new(ordinal)?)).map(Self)
    }

    /// Puts the rounding of columns into the stream.
    #[expect(clippy::needless_pass_by_value, reason = "Python's objects are converted")]
    fn round(&self, py: Python<'_>, call: RoundCall, stream: usize) -> PyResult<()> {
        let RoundCall { rows, columns, stride, x, carry, feed, prices, levels, errors } = call;
        let sizes = ColumnSizes { rows, columns, stride };
        let call = RoundColumns { sizes, x, carry, feed, prices, levels, errors };
        detached(py, || {
            // SAFETY: The Python half has made all tensors, or checked their devices, shapes and dtypes, in torch's
            // current stream.
            unsafe { self.0.round(&call, &crate_stream(self.0.device(), stream)) }
        })
    }

    /// Puts the extension of survivors into the stream.
    #[expect(clippy::needless_pass_by_value, reason = "Python's objects are converted")]
    fn trellis(&self, py: Python<'_>, call: TrellisCall, stream: usize) -> PyResult<()> {
        let TrellisCall { rows, columns, stride, x, added, weights, feed, prices, costs, symbols, origin, sums } = call;
        let sizes = ColumnSizes { rows, columns, stride };
        let call = TrellisColumns { sizes, x, added, weights, feed, prices, costs, symbols, origin, sums };
        detached(py, || {
            // SAFETY: As for `round`.
            unsafe { self.0.trellis(&call, &crate_stream(self.0.device(), stream)) }
        })
    }
}
