//! GGUF files: what is in them, and weights as numbers.

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

    /// Whether a file begins as GGUF files do.
    #[staticmethod]
    fn is_one(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        detached(py, || Ok(path.is_file() && wcodec::Gguf::is_one(&path)))
    }

    /// As JSON, for each tensor its name, GGUF's name of its type, the dtype where it is stored as numbers, whether its weights can be had as
    /// numbers, its shape, elements, place in the file and bytes, and how many of these are missing.
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

    /// Which part of a split file it is, from 1 on, and of how many.
    fn part(&self) -> Option<(u64, u64)> {
        self.0.part()
    }

    /// Bytes of the file.
    fn length(&self) -> u64 {
        self.0.file_len()
    }

    /// Some weights of a tensor, from the first on, those that are stored in blocks in `dtype`: as 8-byte words, and how many bytes of them
    /// count.
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
