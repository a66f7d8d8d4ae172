//! Quantized tensors of a checkpoint or a container: codes, and their scales.

use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use serde_json::{Value, json};
use wcodec::{Checkpoint, QUANTIZED_KEY, Quantization, Result, Source, SourceTensor};

use crate::container::Container;
use crate::progress::detached;

/// A description as JSON: the dtype of values, the codes with their scales, and tensors that concern activations.
///
/// # Errors
/// Weights use a method that is not dequantized here, or scales are missing or do not fit.
fn described(tensors: &[SourceTensor], found: &Quantization) -> Result<String> {
    found.check(false)?;
    let name = |i: usize| &tensors[i].name;
    let pairs = found.pairs(tensors)?;
    let pairs = pairs.iter().map(|pair| {
        json!({ "name": pair.name, "shape": pair.shape, "codes": name(pair.codes), "scales": name(pair.scales), "grid": pair.grid })
    });
    Ok(json!({
        "dtype": found.dtype().name(),
        "tensors": pairs.collect::<Value>(),
        "record": found.record(),
        "beside": found.beside().map(|i| name(i).as_str()).collect::<Value>(),
    })
    .to_string())
}

/// The description of a file or a folder; `None` if none of its weights are quantized. `rest`: whether it may be the
/// uncompressed rest of a model.
#[pyfunction]
pub fn quantized_checkpoint(py: Python<'_>, path: PathBuf, rest: bool) -> PyResult<Option<String>> {
    detached(py, || {
        let checkpoint = if rest { Checkpoint::open_rest(&path)? } else { Checkpoint::open(&path)? };
        let found = Quantization::of(&checkpoint);
        found.map(|found| described(checkpoint.tensors(), &found).map_err(|e| e.file(&path))).transpose()
    })
}

/// The description of a container, with tied tensors under each of their names.
#[pyfunction]
pub fn quantized_container(py: Python<'_>, container: &Bound<'_, Container>) -> PyResult<Option<String>> {
    let container = container.get().inner();
    detached(py, || {
        let infos = container.infos()?;
        let mut tensors: Vec<SourceTensor> = Vec::with_capacity(infos.len());
        for info in infos {
            let (name, dtype, shape) = (info.name.clone(), info.dtype, info.shape.clone());
            tensors.push(SourceTensor { name, dtype, shape, alias_of: None, opaque: None });
        }
        let places: HashMap<String, usize> = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        for (name, target) in container.aliases() {
            if let Some(&at) = places.get(target) {
                tensors.push(SourceTensor { name: name.clone(), ..tensors[at].clone() });
            }
        }
        let config = match container.metadata().get(QUANTIZED_KEY) {
            Some(text) => serde_json::from_str(text).ok(),
            None => container.model()?.and_then(|model| model.get("config").cloned()),
        };
        let Some(found) = Quantization::find(&tensors, config.as_ref()) else { return Ok(None) };
        let described = described(&tensors, &found);
        match container.path() {
            Some(path) => described.map_err(|e| e.file(path)),
            None => described,
        }
        .map(Some)
    })
}
