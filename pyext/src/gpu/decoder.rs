//! Compressed tensors that a GPU decodes, wherever their bytes are.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use wcodec::gpu::{Batch, DecodeItem, Device, Residency, ResultOrder};
use wcodec::{Cancel, Dtype, Result};

use super::batch::DecodeBatch;
use super::lookup::RowLookup;
use super::route::RoutedProducts;
use super::{Options, PyDecodeItem, PyProductItem, crate_stream, decode_items, named, product_items};
use crate::container::Container;
use crate::errors::to_py;
use crate::progress::{detached, run, run_if};

/// Compressed tensors for a GPU; `wcodec.GpuDecoder` and `wcodec.HostDecoder` are the classes for users.
///
/// Streams and outputs come as the integers that torch has of them. The Python half vouches for them: streams are torch's of
/// this device, and outputs are tensors of this device, of the size that `output_bytes` tells (or the share of the rows asked
/// for), which torch is told not to reuse before the stream is done with them.
#[pyclass(frozen, module = "wcodec._native")]
pub struct TensorDecoder {
    decoder: wcodec::gpu::TensorDecoder,
    path: Option<PathBuf>,
}

impl TensorDecoder {
    fn named(&self, e: wcodec::Error) -> wcodec::Error {
        named(self.path.as_ref(), e)
    }

    /// Does work that waits for the disk where tensors are in the file; Ctrl-C ends that.
    fn put(&self, py: Python<'_>, work: impl FnOnce(&Cancel) -> Result<()> + Send) -> PyResult<()> {
        run_if(py, self.decoder.is_direct().is_some(), |cancel| work(cancel).map_err(|e| self.named(e)))
    }

    fn items(&self, items: Vec<PyDecodeItem>) -> Result<Vec<DecodeItem>> {
        decode_items(items, |name, rows| self.decoder.rows_of(name, rows))
    }

    fn batch(&self, py: Python<'_>, prepare: impl FnOnce() -> Result<Batch> + Send) -> PyResult<DecodeBatch> {
        let batch = detached(py, || prepare().map_err(|e| self.named(e)))?;
        Ok(DecodeBatch::new(batch, self.path.clone()))
    }
}

/// The device, which stays in use until the process ends, as torch's does: a CUDA graph that outlives its decoder by mistake would
/// otherwise launch kernels that are no longer loaded, and take the process with it.
fn kept(device: Device) -> Device {
    static KEPT: Mutex<Vec<Device>> = Mutex::new(Vec::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.contains(&device) {
        all.push(device.clone());
    }
    device
}

#[pymethods]
impl TensorDecoder {
    /// Reads the tensors `names` for decoding on GPU `ordinal`: those of `on_host` to pinned memory, all others to its own, but that those of
    /// `on_disk` stay in the file.
    #[new]
    fn new(
        py: Python<'_>,
        container: &Bound<'_, Container>,
        names: Vec<String>,
        ordinal: usize,
        options: Options,
        on_host: HashSet<String>,
        on_disk: HashSet<String>,
    ) -> PyResult<Self> {
        let container = container.get().inner();
        let residency = |name: &str| match (on_disk.contains(name), on_host.contains(name)) {
            (true, _) => Residency::Disk,
            (false, true) => Residency::Host,
            (false, false) => Residency::Device,
        };
        run(py, None, |_, link| {
            let options = options.build(link.cancel());
            let device = kept(Device::new(ordinal)?);
            let decoder = wcodec::gpu::TensorDecoder::new(&device, container, &names, &residency, &options)?;
            Ok(Self { decoder, path: container.path().map(Into::into) })
        })
    }

    /// Puts the decoding of `items` into the stream.
    fn decode(&self, py: Python<'_>, items: Vec<PyDecodeItem>, stream: usize) -> PyResult<()> {
        self.put(py, |cancel| {
            let items = self.items(items)?;
            // SAFETY: The Python half has checked device, shape and dtype of the outputs, and has told torch that the stream uses
            // them.
            unsafe { self.decoder.decode_until(&items, &crate_stream(self.decoder.device(), stream), cancel) }
        })
    }

    /// Puts the decoding of some rows of one tensor into the stream: ranges of its first dimension, one after the other from `out` on.
    fn decode_rows(
        &self,
        py: Python<'_>,
        item: (String, u64, String),
        runs: Vec<(usize, usize)>,
        stream: usize,
    ) -> PyResult<()> {
        let (name, out, dtype) = item;
        self.put(py, |cancel| {
            let runs = runs.iter().map(|&(begin, end)| self.decoder.rows_of(&name, begin..end));
            let runs = runs.collect::<Result<Vec<_>>>()?;
            let item = DecodeItem { name, out, dtype: Dtype::from_name(&dtype)?, rows: None };
            let stream = crate_stream(self.decoder.device(), stream);
            // SAFETY: As in `decode`.
            unsafe { self.decoder.decode_runs_until(&item, &runs, &stream, cancel) }
        })
    }

    /// Fixes addresses and launches for `items`, to be launched again and again.
    fn prepare(&self, py: Python<'_>, items: Vec<PyDecodeItem>) -> PyResult<DecodeBatch> {
        self.batch(py, || self.decoder.prepare(&self.items(items)?))
    }

    /// Fixes launches for products of vectors of `dtype` with these matrices, together. `gated`: they are gate and up projections in turn,
    /// which give results together. `by_vector`: results of all matrices lie side by side for each vector.
    #[pyo3(signature = (items, dtype, gated = false, by_vector = false))]
    fn prepare_products(
        &self,
        py: Python<'_>,
        items: Vec<PyProductItem>,
        dtype: &str,
        gated: bool,
        by_vector: bool,
    ) -> PyResult<DecodeBatch> {
        self.batch(py, || {
            let items = product_items(items, dtype, gated, |name, rows| self.decoder.rows_of(name, rows))?;
            let order = if by_vector { ResultOrder::ByVector } else { ResultOrder::ByMatrix };
            self.decoder.prepare_products_in(order, &items)
        })
    }

    /// Fixes launches for products of vectors of `dtype` with the matrices of the experts that tokens are routed to.
    fn prepare_routed(
        &self,
        py: Python<'_>,
        experts: Vec<Vec<PyProductItem>>,
        dtype: &str,
    ) -> PyResult<RoutedProducts> {
        let prepare = || {
            let items = |items| product_items(items, dtype, false, |name, rows| self.decoder.rows_of(name, rows));
            self.decoder.prepare_routed(&experts.into_iter().map(items).collect::<Result<Vec<_>>>()?)
        };
        let routed = detached(py, || prepare().map_err(|e| self.named(e)))?;
        Ok(RoutedProducts::new(routed, self.path.clone()))
    }

    /// Fixes launches that gather rows of a tensor, to be written as `dtype`.
    fn prepare_lookup(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<RowLookup> {
        let prepare = || self.decoder.prepare_lookup(name, Dtype::from_name(dtype)?);
        let lookup = detached(py, || prepare().map_err(|e| self.named(e)))?;
        Ok(RowLookup::new(lookup, self.path.clone()))
    }

    /// The reason why the GPU cannot gather rows of a tensor; none if it can.
    fn can_look_up(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        self.decoder.can_look_up(name).map_err(|e| to_py(py, &e))
    }

    /// The reason why no kernel multiplies vectors with a tensor as it is stored; none if one does.
    fn can_fuse(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        self.decoder.can_fuse(name).map_err(|e| to_py(py, &e))
    }

    /// The most vectors that products with a tensor take; 0 if no kernel multiplies with it as it is stored.
    fn most_vectors(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        detached(py, || self.decoder.most_vectors(name).map_err(|e| self.named(e)))
    }

    /// Waits for the stream, and raises what was found damaged.
    fn check(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || self.decoder.check(&crate_stream(self.decoder.device(), stream)).map_err(|e| self.named(e)))
    }

    /// Names of the stored tensors.
    fn names(&self) -> Vec<&str> {
        self.decoder.names().collect()
    }

    /// Bytes that decoding `name` to `dtype` writes.
    fn output_bytes(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<usize> {
        let bytes = Dtype::from_name(dtype).and_then(|dtype| self.decoder.output_bytes(name, dtype));
        bytes.map_err(|e| to_py(py, &e))
    }

    /// Bytes that it holds in pinned memory of the host.
    fn host_bytes(&self) -> usize {
        self.decoder.host_bytes()
    }

    /// Bytes, among these, that tensors in the file pass through.
    fn host_ring_bytes(&self) -> usize {
        self.decoder.ring_bytes()
    }

    /// Whether tensors in the file are read beside the system's page cache; none where there are no such tensors.
    fn direct(&self) -> Option<bool> {
        self.decoder.is_direct()
    }

    /// Bytes that it holds on the GPU.
    fn device_bytes(&self) -> usize {
        self.decoder.device_bytes()
    }
}
