//! A checkpoint whose tensors live in Python and are fetched one at a time.

use std::collections::BTreeMap;
use std::path::Path;

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use wcodec::{AlignedBytes, Dtype, Result, Source, SourceBytes, SourceTensor};

use crate::errors::to_py;
use crate::progress::Pending;

/// Name, dtype, shape, and the name of the tensor that holds the data of a tied one.
pub type Declared = (String, String, Vec<usize>, Option<String>);

/// Tensors behind a Python callable `read(index) -> numpy.uint8[bytes]`.
///
/// Fetching late keeps memory bounded by one tensor where the caller's arrays need a contiguous copy, or a transfer from
/// a GPU, before their bytes can be read.
pub struct PySource {
    tensors: Vec<SourceTensor>,
    read: Py<PyAny>,
    metadata: BTreeMap<String, String>,
    pending: Pending,
}

impl PySource {
    /// Declares the tensors; `read` is called with their positions in this list.
    pub fn new(
        tensors: Vec<Declared>,
        read: Py<PyAny>,
        metadata: BTreeMap<String, String>,
        pending: Pending,
    ) -> Result<Self> {
        let tensors = tensors
            .into_iter()
            .map(|(name, dtype, shape, alias_of)| {
                let dtype = Dtype::from_name(&dtype).map_err(|e| e.tensor(&name))?;
                Ok(SourceTensor { name, dtype, shape, alias_of })
            })
            .collect::<Result<_>>()?;
        Ok(Self { tensors, read, metadata, pending })
    }
}

impl Source for PySource {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read(&self, index: usize) -> Result<SourceBytes<'_>> {
        let bytes = self.pending.attached(|py| {
            let array: PyReadonlyArray1<'_, u8> = self.read.call1(py, (index,))?.extract(py)?;
            AlignedBytes::copy_of(array.as_slice()?).map_err(|e| to_py(py, &e.tensor(&self.tensors[index].name)))
        })?;
        Ok(SourceBytes::Owned(bytes))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }

    fn model(&self) -> Option<serde_json::Value> {
        None
    }

    fn path(&self) -> Option<&Path> {
        None
    }
}
