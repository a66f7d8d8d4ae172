//! GGUF files: their content, and weights as numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use numpy::PyArray1;
use pyo3::prelude::*;
use serde_json::{Value, json};
use wcodec::{Cancel, Dtype, Pool, Result};

use crate::arrays::array;
use crate::progress::{detached, run_for};

/// An open file.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Gguf(wcodec::Gguf);

impl Gguf {
    fn values(&self, index: usize, first: u64, count: u64, dtype: &str, cancel: &Cancel) -> Result<(Vec<u64>, usize)> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let dtype = Dtype::from_name(dtype)?;
        let bytes = self.0.read_values(index, (first, count), dtype, &Pool::new(None)?, cancel)?;
        Ok(bytes.into_words())
    }
}

#[pymethods]
impl Gguf {
    /// Reads the header.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || wcodec::Gguf::open(&path)).map(Self)
    }

    /// Whether a file begins like a GGUF file.
    #[staticmethod]
    fn is_one(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        detached(py, || Ok(path.is_file() && wcodec::Gguf::is_one(&path)))
    }

    /// As JSON, for each tensor: its name, GGUF's name of its type, the dtype if it is stored as numbers, whether its
    /// weights can be read as numbers, its shape, elements, offset in the file and length, and the number of missing
    /// bytes.
    fn tensors(&self) -> String {
        let one = |(i, t): (usize, &wcodec::GgufTensor)| {
            json!({
                "name": t.name, "kind": t.kind, "dtype": t.dtype.map(Dtype::name), "decoded": t.values_dtype(Dtype::F32).is_ok(),
                "shape": t.shape, "elements": t.elements, "offset": t.offset, "bytes": t.bytes, "missing": self.0.missing(i),
            })
        };
        self.0.tensors().iter().enumerate().map(one).collect::<Value>().to_string()
    }

    /// The metadata, each value as a short text.
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.metadata().clone()
    }

    /// The part number of a split file, from 1 on, and the number of parts.
    fn part(&self) -> Option<(u64, u64)> {
        self.0.part()
    }

    /// Length of the file, bytes.
    fn length(&self) -> u64 {
        self.0.file_len()
    }

    /// The first weights of a tensor, in `dtype` if they are stored in blocks: as 8-byte words, and the number of bytes
    /// that count.
    fn read<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        first: u64,
        count: u64,
        dtype: &str,
    ) -> PyResult<(Bound<'py, PyArray1<u64>>, usize)> {
        let (words, len) =
            run_for(py, count.saturating_mul(4), |cancel| self.values(index, first, count, dtype, cancel))?;
        Ok((array(py, words)?, len))
    }
}
