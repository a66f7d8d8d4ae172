//! Compressed tensors that a GPU decodes, in its memory or in the host's.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use wcodec::gpu::{Device, GpuDecoder, HostDecoder, Stream, Target};
use wcodec::{Cancel, Dtype, Error};

use super::batch::{DecodeBatch, Prepared};
use super::lookup::RowLookup;
use super::{Options, PyFactor, PyTarget, crate_factors, crate_stream, crate_targets, named};
use crate::container::Container;
use crate::errors::to_py;
use crate::progress::{detached, run};

/// Compressed tensors for a GPU; `wcodec.GpuDecoder` and `wcodec.HostDecoder` are the classes for users.
///
/// Streams and outputs come as the integers that torch has of them. The Python half vouches for them: streams are torch's of
/// this device, and outputs are tensors of this device, of the size that `output_bytes` tells (or the share of the rows asked
/// for), which torch is told not to reuse before the stream is done with them.
#[pyclass(frozen, module = "wcodec._native")]
pub struct TensorDecoder {
    source: Source,
    path: Option<PathBuf>,
}

/// Where the compressed bytes are.
enum Source {
    Device(GpuDecoder),
    Host(HostDecoder),
}

impl Source {
    fn device(&self) -> &Device {
        match self {
            Self::Device(decoder) => decoder.device(),
            Self::Host(decoder) => decoder.device(),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Device(decoder) => decoder.names().collect(),
            Self::Host(decoder) => decoder.names().collect(),
        }
    }

    fn rows_of(&self, name: &str, rows: Range<usize>) -> wcodec::Result<Range<usize>> {
        match self {
            Self::Device(decoder) => decoder.rows_of(name, rows),
            Self::Host(decoder) => decoder.rows_of(name, rows),
        }
    }

    fn targets(&self, targets: Vec<PyTarget>) -> wcodec::Result<Vec<Target>> {
        crate_targets(targets, |name, rows| self.rows_of(name, rows))
    }

    /// # Safety
    /// As for [`GpuDecoder::decode`].
    unsafe fn decode(&self, targets: &[Target], stream: &Stream, cancel: &Cancel) -> wcodec::Result<()> {
        match self {
            // SAFETY: As the caller promises.
            Self::Device(decoder) => unsafe { decoder.decode(targets, stream) },
            // SAFETY: As the caller promises.
            Self::Host(decoder) => unsafe { decoder.decode_until(targets, stream, cancel) },
        }
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
    /// Reads the tensors `names` for decoding on GPU `ordinal`: to its memory or, if `on_host`, to pinned memory; those of `on_disk` stay in
    /// the file then.
    #[new]
    fn new(
        py: Python<'_>,
        container: &Bound<'_, Container>,
        names: Vec<String>,
        ordinal: usize,
        options: Options,
        on_host: bool,
        on_disk: Vec<String>,
    ) -> PyResult<Self> {
        let container = container.get().inner();
        run(py, None, |_, link| {
            let options = options.build(link.cancel());
            let device = kept(Device::new(ordinal)?);
            let source = if on_host {
                Source::Host(HostDecoder::with_disk(&device, container, &names, &on_disk, &options)?)
            } else {
                Source::Device(GpuDecoder::new(&device, container, &names, &options)?)
            };
            Ok(Self { source, path: container.path().map(Into::into) })
        })
    }

    /// Puts the decoding of `targets` into the stream.
    fn decode(&self, py: Python<'_>, targets: Vec<PyTarget>, stream: usize) -> PyResult<()> {
        let decode = |cancel: &Cancel| {
            let targets = self.source.targets(targets).map_err(|e| named(self.path.as_ref(), e))?;
            let stream = crate_stream(self.source.device(), stream);
            // SAFETY: The Python half has checked device, shape and dtype of the outputs, and has told torch that the stream uses
            // them.
            unsafe { self.source.decode(&targets, &stream, cancel) }.map_err(|e| named(self.path.as_ref(), e))
        };
        if self.direct().is_some() {
            // It waits for the disk.
            return run(py, None, |_, link| decode(&link.cancel()));
        }
        detached(py, || decode(&Cancel::new()))
    }

    /// Puts the decoding of some rows of one tensor into the stream: ranges of its first dimension, one behind the other from `out` on. Not for
    /// what is in the host's memory.
    fn decode_rows(
        &self,
        py: Python<'_>,
        target: (String, u64, String),
        runs: Vec<(usize, usize)>,
        stream: usize,
    ) -> PyResult<()> {
        let (name, out, dtype) = target;
        let decode = || {
            let Source::Device(decoder) = &self.source else {
                return Err(
                    Error::input("ranges of rows of a tensor in the host's memory").advice("decode each by itself")
                );
            };
            let runs = runs.iter().map(|&(begin, end)| decoder.rows_of(&name, begin..end));
            let runs = runs.collect::<wcodec::Result<Vec<_>>>()?;
            let target = Target { name, out, dtype: Dtype::from_name(&dtype)?, rows: None };
            // SAFETY: As in `decode`.
            unsafe { decoder.decode_runs(&target, &runs, &crate_stream(decoder.device(), stream)) }
        };
        detached(py, || decode().map_err(|e| named(self.path.as_ref(), e)))
    }

    /// Fixes addresses and launches for `targets`, to be launched again and again.
    fn prepare(&self, py: Python<'_>, targets: Vec<PyTarget>) -> PyResult<DecodeBatch> {
        detached(py, || {
            let targets = self.source.targets(targets).map_err(|e| named(self.path.as_ref(), e))?;
            let prepared = match &self.source {
                Source::Device(decoder) => decoder.prepare(&targets).map(Prepared::Device),
                Source::Host(decoder) => decoder.prepare(&targets).map(Prepared::Host),
            };
            let prepared = prepared.map_err(|e| named(self.path.as_ref(), e))?;
            Ok(DecodeBatch::new(prepared, self.path.clone()))
        })
    }

    /// Fixes launches for products of vectors of `dtype` with these matrices, together. `gated`: they are gates and values in turn, which give
    /// results together.
    #[pyo3(signature = (factors, dtype, gated = false))]
    fn prepare_products(
        &self,
        py: Python<'_>,
        factors: Vec<PyFactor>,
        dtype: &str,
        gated: bool,
    ) -> PyResult<DecodeBatch> {
        detached(py, || {
            let factors = crate_factors(factors, dtype, gated, |name, rows| self.source.rows_of(name, rows));
            let prepared = factors.and_then(|factors| match &self.source {
                Source::Device(decoder) => decoder.prepare_products(&factors).map(Prepared::Device),
                Source::Host(decoder) => decoder.prepare_products(&factors).map(Prepared::Host),
            });
            let prepared = prepared.map_err(|e| named(self.path.as_ref(), e))?;
            Ok(DecodeBatch::new(prepared, self.path.clone()))
        })
    }

    /// Fixes launches that look rows of a tensor up, to be written as `dtype`.
    fn prepare_lookup(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<RowLookup> {
        detached(py, || {
            let prepared = Dtype::from_name(dtype).and_then(|dtype| match &self.source {
                Source::Device(decoder) => decoder.prepare_lookup(name, dtype),
                Source::Host(_) => Err(Error::input("rows of a tensor in the host's memory, looked up on the GPU")
                    .tensor(name)
                    .advice("decode the rows that are wanted")),
            });
            let lookup = prepared.map_err(|e| named(self.path.as_ref(), e))?;
            Ok(RowLookup::new(lookup, self.path.clone()))
        })
    }

    /// Why rows of a tensor cannot be looked up by the GPU.
    fn no_lookup(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        match &self.source {
            Source::Device(decoder) => decoder.no_lookup(name).map_err(|e| to_py(py, &e)),
            Source::Host(_) => Ok(Some("in the host's memory".to_owned())),
        }
    }

    /// Why a tensor cannot be multiplied with as it is stored.
    fn unfused(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        let why = match &self.source {
            Source::Device(decoder) => decoder.unfused(name),
            Source::Host(decoder) => decoder.unfused(name),
        };
        why.map_err(|e| to_py(py, &e))
    }

    /// Waits for the stream, and raises what was found damaged.
    fn check(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || {
            let stream = crate_stream(self.source.device(), stream);
            let checked = match &self.source {
                Source::Device(decoder) => decoder.check(&stream),
                Source::Host(decoder) => decoder.check(&stream),
            };
            checked.map_err(|e| named(self.path.as_ref(), e))
        })
    }

    /// Names of the stored tensors.
    fn names(&self) -> Vec<&str> {
        self.source.names()
    }

    /// Bytes that decoding `name` to `dtype` writes.
    fn output_bytes(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<usize> {
        let bytes = Dtype::from_name(dtype).and_then(|d| match &self.source {
            Source::Device(decoder) => decoder.output_bytes(name, d),
            Source::Host(decoder) => decoder.output_bytes(name, d),
        });
        bytes.map_err(|e| to_py(py, &e))
    }

    /// Bytes that it holds in pinned memory of the host.
    fn host_bytes(&self) -> usize {
        match &self.source {
            Source::Device(_) => 0,
            Source::Host(decoder) => decoder.host_bytes(),
        }
    }

    /// Of these, the bytes that tensors in the file pass through.
    fn host_ring_bytes(&self) -> usize {
        match &self.source {
            Source::Device(_) => 0,
            Source::Host(decoder) => decoder.ring_bytes(),
        }
    }

    /// Whether tensors in the file are read beside the system's page cache; none where there are no such tensors.
    fn direct(&self) -> Option<bool> {
        match &self.source {
            Source::Device(_) => None,
            Source::Host(decoder) => decoder.is_direct(),
        }
    }

    /// Bytes that it holds on the GPU.
    fn device_bytes(&self) -> usize {
        match &self.source {
            Source::Device(decoder) => decoder.device_bytes(),
            Source::Host(decoder) => decoder.device_bytes(),
        }
    }
}
