//! Single int8 layers as bytes: containers with one tensor, and legacy blobs.

use numpy::PyArray1;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wcodec::{Cancel, Isa};

use crate::arrays::{Array, array};
use crate::errors::to_py;
use crate::options::{Decode, Encode, open_options};
use crate::progress::{detached, run_for};

/// Rows, columns and row-major symbols.
type Layer<'py> = (usize, usize, Bound<'py, PyArray1<i8>>);

/// A copy, because others may write to the array while the interpreter is released.
fn copied(symbols: &Array<'_, i8>) -> PyResult<Vec<i8>> {
    let symbols = symbols.elements()?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(symbols.len()).map_err(|_| PyMemoryError::new_err(()))?;
    copy.extend_from_slice(symbols);
    Ok(copy)
}

/// Encodes row-major symbols as a container with one tensor.
#[pyfunction]
pub fn layer_encode<'py>(
    py: Python<'py>,
    symbols: Array<'_, i8>,
    rows: usize,
    cols: usize,
    options: Encode,
) -> PyResult<Bound<'py, PyBytes>> {
    let symbols = copied(&symbols)?;
    run_for(py, symbols.len() as u64, |cancel| {
        wcodec::layer::encode(&symbols, rows, cols, &options.build(cancel.clone())?)
    })
    .map(|v| PyBytes::new(py, &v))
}

/// Decodes a container with one tensor.
#[pyfunction]
pub fn layer_decode<'py>(py: Python<'py>, data: &[u8], trusted: bool, options: Decode) -> PyResult<Layer<'py>> {
    let (rows, cols, symbols) = run_for(py, data.len() as u64, |cancel| {
        wcodec::layer::decode_with(data, &open_options(trusted), &options.build(cancel)?)
    })?;
    Ok((rows, cols, array(py, symbols)?))
}

/// Whether these bytes begin like a legacy blob.
#[pyfunction]
pub fn is_legacy(data: &[u8]) -> bool {
    wcodec::legacy::is_legacy(data)
}

/// Encodes row-major symbols as a legacy blob.
#[pyfunction]
pub fn legacy_encode<'py>(
    py: Python<'py>,
    symbols: Array<'_, i8>,
    rows: u32,
    cols: u32,
    level: i32,
) -> PyResult<Bound<'py, PyBytes>> {
    let symbols = copied(&symbols)?;
    // High levels take long even for few bytes.
    let effort = symbols.len() as u64 * 16;
    let encode = |cancel: &Cancel| wcodec::legacy::encode_with(&symbols, rows, cols, level, cancel);
    run_for(py, effort, encode).map(|v| PyBytes::new(py, &v))
}

/// Decodes a legacy blob.
#[pyfunction]
pub fn legacy_decode<'py>(py: Python<'py>, data: &[u8], trusted: bool) -> PyResult<Layer<'py>> {
    let layer = detached(py, || wcodec::legacy::decode_with(data, &open_options(trusted)))?;
    Ok((layer.rows as usize, layer.cols as usize, array(py, layer.symbols)?))
}

/// Instruction sets of this processor that have decoders, and the one in use.
#[pyfunction]
pub fn instruction_sets(py: Python<'_>) -> PyResult<(Vec<&'static str>, &'static str)> {
    let best = Isa::best().map_err(|e| to_py(py, &e))?;
    Ok((Isa::available().into_iter().map(Isa::name).collect(), best.name()))
}
