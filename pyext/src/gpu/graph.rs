//! CUDA graphs of torch, and memory for what they decode.

use std::sync::{PoisonError, RwLock};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use wcodec::gpu::{Device, DeviceBuffer};

use super::crate_stream;
use crate::progress::detached;

/// Whether the interpreter ends. Held for reading while an object is let go of: who waits for an interpreter that ends meanwhile would
/// take the process with it.
static ENDED: RwLock<bool> = RwLock::new(false);

/// Waits for objects that are just being let go of, and has all others stay. Python calls it at its exit.
#[pyfunction]
pub fn gpu_end(py: Python<'_>) {
    py.detach(|| *ENDED.write().unwrap_or_else(PoisonError::into_inner) = true);
}

/// A Python object that a graph keeps; let go of on whatever thread the graph is gone on.
struct Kept(Option<Py<PyAny>>);

impl Drop for Kept {
    fn drop(&mut self) {
        let mut object = self.0.take();
        let ended = ENDED.read().unwrap_or_else(PoisonError::into_inner);
        if *ended || Python::try_attach(|_| drop(object.take())).is_none() {
            // Everything ends with the interpreter.
            std::mem::forget(object);
        }
    }
}

/// The number of the capture that a stream of GPU `ordinal` is in; 0 if it is in none.
#[pyfunction]
pub fn gpu_capture(py: Python<'_>, ordinal: usize, stream: usize) -> PyResult<u64> {
    // The driver counts from 0.
    detached(py, || Ok(crate_stream(&Device::new(ordinal)?, stream).capture()?.map_or(0, |number| number + 1)))
}

/// Lets what is put into a stream of GPU `ordinal` from now on wait for what is in another one; false where it cannot, because a graph
/// is being captured in one of them.
#[pyfunction]
pub fn gpu_follow(py: Python<'_>, ordinal: usize, stream: usize, other: usize) -> PyResult<bool> {
    detached(py, || {
        let device = Device::new(ordinal)?;
        crate_stream(&device, stream).follow(&crate_stream(&device, other))
    })
}

/// Keeps an object alive as long as the graph that is being captured in this stream, and all that is made of it.
#[pyfunction]
pub fn gpu_keep(py: Python<'_>, ordinal: usize, stream: usize, object: Py<PyAny>) -> PyResult<bool> {
    let kept = Kept(Some(object));
    detached(py, || crate_stream(&Device::new(ordinal)?, stream).keep(kept))
}

/// Memory of a GPU that is not torch's: no pool of its allocator has it, so that it can be taken while a graph is captured, and outlive
/// that. torch takes it by `__cuda_array_interface__`.
#[pyclass(frozen, module = "wcodec._native")]
pub struct DeviceMemory(DeviceBuffer);

#[pymethods]
impl DeviceMemory {
    /// So many bytes of GPU `ordinal`, of unknown contents.
    #[new]
    fn new(py: Python<'_>, ordinal: usize, bytes: usize) -> PyResult<Self> {
        detached(py, || DeviceBuffer::new(&Device::new(ordinal)?, bytes)).map(Self)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.0.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.0.ptr(), false))?;
        interface.set_item("version", 2)?;
        Ok(interface)
    }
}
