//! A checkpoint whose tensors live in Python and are fetched one at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use wcodec::{AlignedBytes, Cancel, Dtype, Pool, Result, Source, SourceBytes, SourceTensor};

use crate::errors::to_py;
use crate::progress::Link;

/// Name, dtype, shape, and the name of the tensor that holds the data of a tied one.
pub type Declared = (String, String, Vec<usize>, Option<String>);

/// Tensors behind a Python callable `read(index) -> numpy.uint8[bytes]`.
///
/// Fetching late keeps memory bounded by one tensor where the caller's arrays need a contiguous copy, or a transfer from
/// a GPU, before their bytes can be read.
pub struct PySource {
    tensors: Vec<SourceTensor>,
    read: Arc<Py<PyAny>>,
    metadata: BTreeMap<String, String>,
    files: Vec<PathBuf>,
    link: Link,
}

impl PySource {
    /// Declares the tensors; `read` is called with their positions in this list.
    pub fn new(
        tensors: Vec<Declared>,
        read: Py<PyAny>,
        metadata: BTreeMap<String, String>,
        files: Vec<PathBuf>,
        link: Link,
    ) -> Result<Self> {
        let tensors = tensors
            .into_iter()
            .map(|(name, dtype, shape, alias_of)| {
                let dtype = Dtype::from_name(&dtype).map_err(|e| e.tensor(&name))?;
                Ok(SourceTensor { name, dtype, shape, alias_of })
            })
            .collect::<Result<_>>()?;
        Ok(Self { tensors, read: Arc::new(read), metadata, files, link })
    }
}

impl Source for PySource {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<SourceBytes<'_>> {
        let (read, name) = (self.read.clone(), self.tensors[index].name.clone());
        let bytes = self.link.call(move |py| {
            let array: PyReadonlyArray1<'_, u8> = read.call1(py, (index,))?.extract(py)?;
            // Copied while the interpreter is held: nobody else writes to it then.
            AlignedBytes::copy_of(array.as_slice()?).map_err(|e| to_py(py, &e.tensor(&name)))
        })?;
        Ok(SourceBytes::Owned(bytes))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }
}
