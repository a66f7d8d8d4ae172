//! An open container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use wcodec::{DecodeOptions, Dtype, Source};

use crate::encode::Input;
use crate::options::Decode;
use crate::progress::{detached, run, run_for};

/// An open container; `wcodec.Container` is the class for users.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Container(wcodec::Container);

impl Container {
    /// What Python holds of the crate's container.
    pub fn new(container: wcodec::Container) -> Self {
        Self(container)
    }

    /// The crate's container.
    pub fn inner(&self) -> &wcodec::Container {
        &self.0
    }

    /// Bytes of a tensor before it was encoded, about those that decoding it makes; 0 where there is none of this name.
    fn bytes_of(&self, name: &str) -> u64 {
        self.0.info(name).map_or(0, |i| i.original_bytes)
    }
}

#[pymethods]
impl Container {
    /// Opens the file at `path`: reads header and index.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || wcodec::Container::open(&path)).map(Self)
    }

    /// Opens a container that is in memory.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: Vec<u8>) -> PyResult<Self> {
        detached(py, || wcodec::Container::from_bytes(data)).map(Self)
    }

    /// Names of the stored tensors, in the order of the file.
    fn names(&self) -> Vec<&str> {
        self.0.names()
    }

    /// Tied tensor -> the stored one that holds its data.
    fn aliases(&self) -> BTreeMap<String, String> {
        self.0.aliases().clone()
    }

    /// What the index says about one tensor, as JSON.
    fn info(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        detached(py, || self.0.info(name)).map(|i| json!(i).to_string())
    }

    /// What the index says about every tensor, as JSON.
    fn infos(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || self.0.infos()).map(|i| json!(i).to_string())
    }

    /// Metadata of the checkpoint and of the user.
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.metadata().clone()
    }

    /// The model's configuration and the names of its other files, as JSON.
    fn model(&self) -> Option<String> {
        self.0.model().map(ToString::to_string)
    }

    /// Length of the file in bytes.
    fn file_len(&self) -> u64 {
        self.0.file_len()
    }

    /// Where the file is; none for one in memory.
    fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Version of the format, major and minor.
    fn version(&self) -> (u16, u16) {
        self.0.version()
    }

    /// The program that wrote the file.
    fn writer(&self) -> &str {
        self.0.writer()
    }

    /// Quantized symbols, in the order of the matrix view.
    fn symbols<'py>(&self, py: Python<'py>, name: &str, options: Decode) -> PyResult<Bound<'py, PyArray1<i8>>> {
        run_for(py, self.bytes_of(name), |cancel| self.0.symbols(name, &options.build(cancel)?))
            .map(|v| v.into_pyarray(py))
    }

    /// Scales, in the order of the matrix view.
    fn scales<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<f32>>> {
        detached(py, || self.0.scales(name)).map(|v| v.into_pyarray(py))
    }

    /// The tensor's bytes in its own dtype, or in `dtype`, as 8-byte words, and how many bytes of them count.
    ///
    /// NumPy takes the words over without a copy; as bytes it could not, for their alignment is another.
    #[pyo3(signature = (name, dtype, options))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        dtype: Option<&str>,
        options: Decode,
    ) -> PyResult<(Bound<'py, PyArray1<u64>>, usize)> {
        let (words, len) = run_for(py, self.bytes_of(name), |cancel| {
            let options = options.build(cancel)?;
            let bytes = match dtype {
                Some(dtype) => self.0.read_as(name, Dtype::from_name(dtype)?, &options)?,
                None => self.0.read(name, &options)?,
            };
            Ok(bytes.into_words())
        })?;
        Ok((words.into_pyarray(py), len))
    }

    /// Rows of a tensor, as `read` gives all of them.
    #[pyo3(signature = (name, begin, end, dtype, options))]
    fn read_rows<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        begin: usize,
        end: usize,
        dtype: Option<&str>,
        options: Decode,
    ) -> PyResult<(Bound<'py, PyArray1<u64>>, usize)> {
        let (words, len) = run_for(py, self.bytes_of(name), |cancel| {
            let dtype = dtype.map(Dtype::from_name).transpose()?;
            Ok(self.0.read_rows(name, begin..end, dtype, &options.build(cancel)?)?.into_words())
        })?;
        Ok((words.into_pyarray(py), len))
    }

    /// A container of the tensors `names` alone.
    fn extract<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyBytes>> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        run(py, None, |_, link| {
            let options = DecodeOptions { cancel: link.cancel(), ..DecodeOptions::default() };
            wcodec::extract(&self.0, &names, &options)
        })
        .map(|bytes| PyBytes::new(py, &bytes))
    }

    /// The file with the model's other tensors, which may be missing, where the container is only a part of one.
    fn rest(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        detached(py, || match self.0.open_rest() {
            Ok(None) => Ok(None),
            _ => self.0.rest(),
        })
    }

    /// Decodes every tensor into a `.safetensors` file, with those of the model's rest. `partial`: whether that may be missing.
    #[pyo3(signature = (dst, overwrite, partial, options, progress))]
    fn decode(
        &self,
        py: Python<'_>,
        dst: PathBuf,
        overwrite: bool,
        partial: bool,
        options: Decode,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        run(py, progress.as_ref(), |progress, link| {
            let missing = partial && self.0.rest()?.is_some_and(|path| !path.is_file());
            let rest = if missing { None } else { self.0.open_rest()? };
            let rest = rest.as_ref().map(|r| r as &dyn Source);
            wcodec::decode(&self.0, rest, &dst, &options.build(&link.cancel())?, overwrite, progress)
        })
    }

    /// Checks every tensor, and against a checkpoint where one is given; the report as JSON.
    #[pyo3(signature = (against, options, progress))]
    fn verify(
        &self,
        py: Python<'_>,
        against: Option<Input>,
        options: Decode,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        run(py, progress.as_ref(), |progress, link| {
            let options = options.build(&link.cancel())?;
            match against {
                None => wcodec::verify(&self.0, None, &options, progress),
                Some(input) => input.with(link, |source| wcodec::verify(&self.0, Some(source), &options, progress)),
            }
        })
        .map(|r| json!({"ok": r.ok(), "tensors": r.tensors, "damage": r.file}).to_string())
    }
}

/// Compares two containers by what they decode to; the report as JSON.
#[pyfunction]
pub fn compare(py: Python<'_>, a: &Bound<'_, Container>, b: &Bound<'_, Container>) -> PyResult<String> {
    let (a, b) = (a.get(), b.get());
    detached(py, || wcodec::compare(&a.0, &b.0)).map(|c| json!({"same": c.same(), "tensors": c.tensors}).to_string())
}
