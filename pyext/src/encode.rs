//! Encodes a checkpoint on disk, or tensors from Python, as a container.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use wcodec::{Cancel, Checkpoint, Dtype, EncodeOptions, EncodeReport, Gguf, GgufSource, Progress, Result, Source};

use crate::container::Container;
use crate::errors::to_py;
use crate::levels::WithLevels;
use crate::options::Encode;
use crate::progress::{Link, run};
use crate::source::{Declared, PySource};

/// The source of the tensors.
#[derive(FromPyObject)]
pub enum Input {
    /// A `.safetensors` or `.gguf` file, or a folder of a checkpoint.
    Path(PathBuf),
    /// Tensors from Python: declarations, the callable that reads one, metadata, and the files that contain them.
    Tensors(Vec<Declared>, Py<PyAny>, BTreeMap<String, String>, Vec<PathBuf>),
}

impl Input {
    /// Opens the checkpoint, or declares the tensors, and passes the source to `work`.
    pub fn with<T>(self, link: &Link, work: impl FnOnce(&dyn Source) -> Result<T>) -> Result<T> {
        match self {
            // Blocks are converted to the usual compute dtype.
            Self::Path(path) if path.is_file() && Gguf::is_one(&path) => work(&GgufSource::open(&path, Dtype::BF16)?),
            Self::Path(path) => work(&Checkpoint::open(&path)?),
            Self::Tensors(tensors, read, metadata, files) => {
                work(&PySource::new(tensors, read, metadata, files, link.clone())?)
            }
        }
    }
}

fn report(report: &EncodeReport) -> String {
    json!({
        "tensors": report.tensors,
        "aliases": report.aliases,
        "original_bytes": report.original_bytes,
        "stored_bytes": report.stored_bytes,
        "seconds": report.seconds,
    })
    .to_string()
}

fn work<T: Send>(
    py: Python<'_>,
    source: Input,
    options: Encode,
    (progress, levels): (Option<&Py<PyAny>>, Option<Py<PyAny>>),
    encode: impl FnOnce(&dyn Source, &EncodeOptions, &mut Progress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    run(py, progress, |progress, link| {
        let options = options.build(link.cancel())?;
        source.with(link, |source| match levels {
            None => encode(source, &options, progress),
            Some(levels) => {
                encode(&WithLevels { source, levels: levels.into(), link: link.clone() }, &options, progress)
            }
        })
    })
}

/// Encodes a checkpoint to the file `dst`; returns the report as JSON. `levels`: see [`WithLevels`].
#[pyfunction]
#[pyo3(signature = (source, dst, options, progress, levels=None))]
pub fn encode(
    py: Python<'_>,
    source: Input,
    dst: PathBuf,
    options: Encode,
    progress: Option<Py<PyAny>>,
    levels: Option<Py<PyAny>>,
) -> PyResult<String> {
    work(py, source, options, (progress.as_ref(), levels), |source, options, progress| {
        wcodec::encode(source, &dst, options, progress)
    })
    .map(|r| report(&r))
}

/// Encodes a checkpoint to the bytes of a container; returns these and the report as JSON.
#[pyfunction]
#[pyo3(signature = (source, options, progress, levels=None))]
pub fn encode_to_bytes<'py>(
    py: Python<'py>,
    source: Input,
    options: Encode,
    progress: Option<Py<PyAny>>,
    levels: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    // Not to one vector, which would be copied as it grows.
    let (container, r) = work(py, source, options, (progress.as_ref(), levels), wcodec::encode_to_container)?;
    let bytes = PyBytes::new_with(py, r.stored_bytes as usize, |out| {
        // The interpreter is held, so nothing can cancel this.
        container.copy_to(out, &Cancel::new()).map_err(|e| to_py(py, &e))
    })?;
    Ok((bytes, report(&r)))
}

/// Bits per weight of scheme `rate`, computed from samples; `shares` has the ratio of each tensor to its sample.
/// `levels`: see [`WithLevels`].
#[pyfunction]
pub fn rate_bits(
    py: Python<'_>,
    source: Input,
    options: Encode,
    shares: BTreeMap<String, f64>,
    levels: Option<Py<PyAny>>,
) -> PyResult<f64> {
    work(py, source, options, (None, levels), |source, options, _| wcodec::rate_bits(source, options, &shares))
}

/// Encodes a checkpoint to an open container in memory.
#[pyfunction]
#[pyo3(signature = (source, options, progress, levels=None))]
pub fn encode_to_container(
    py: Python<'_>,
    source: Input,
    options: Encode,
    progress: Option<Py<PyAny>>,
    levels: Option<Py<PyAny>>,
) -> PyResult<Container> {
    work(py, source, options, (progress.as_ref(), levels), wcodec::encode_to_container)
        .map(|(made, _)| Container::new(made))
}
