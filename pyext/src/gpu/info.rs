//! The drivers, GPUs and libraries that are there.

use std::path::PathBuf;

use pyo3::prelude::*;
use serde_json::json;
use wcodec::gpu::nvcomp::Nvcomp;
use wcodec::gpu::{Residency, TensorDecoder, available, device_infos, driver_version};
use wcodec_kernels::Module;

use crate::progress::detached;

/// Raises why no GPU can be used, if that is so.
#[pyfunction]
pub fn gpu_available(py: Python<'_>) -> PyResult<()> {
    detached(py, available)
}

/// Version of CUDA, major and minor, that the driver implements.
#[pyfunction]
pub fn gpu_driver(py: Python<'_>) -> PyResult<(u32, u32)> {
    detached(py, driver_version)
}

/// Every GPU that the driver shows, as JSON; `problem` says why one cannot be used, `kernels` which image it gets.
#[pyfunction]
pub fn gpu_devices(py: Python<'_>) -> PyResult<String> {
    let infos = detached(py, device_infos)?;
    let records: Vec<_> = infos
        .iter()
        .map(|i| {
            let mut record = json!(i);
            let kernels = i.supported().and_then(|()| i.kernels());
            record["problem"] = json!(kernels.as_ref().err().map(wcodec::Error::without_code));
            record["kernels"] = json!(kernels.ok().map(|image| image.to_string()));
            record
        })
        .collect();
    Ok(json!(records).to_string())
}

/// The images that kernels are shipped as, such as `cubin sm_80` and `PTX sm_80`.
#[pyfunction]
pub fn gpu_kernels() -> Vec<String> {
    wcodec_kernels::images(Module::Util).iter().map(ToString::to_string).collect()
}

/// The nvCOMP that would be used, as JSON, or raises why there is none.
#[pyfunction]
pub fn nvcomp_info(py: Python<'_>, explicit: Option<PathBuf>, folders: Vec<PathBuf>) -> PyResult<String> {
    let nvcomp = detached(py, || Nvcomp::load(explicit.as_deref(), &folders, driver_version().ok()))?;
    Ok(json!({
        "path": nvcomp.path(),
        "version": nvcomp.version().to_string(),
        "family": format!("{:?}", nvcomp.family()),
        "cuda": nvcomp.cudart_version(),
    })
    .to_string())
}

/// The names of the places that a decoder can have compressed bytes in.
#[pyfunction]
pub fn residencies() -> Vec<&'static str> {
    Residency::ALL.iter().map(|residency| residency.name()).collect()
}

/// Slots of the ring that compressed bytes in the host's memory pass through.
#[pyfunction]
pub fn ring_slots() -> usize {
    TensorDecoder::SLOTS
}
