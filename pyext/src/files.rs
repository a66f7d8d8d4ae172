//! Files: the tensors of checkpoints, and outputs that appear only once they are complete.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use wcodec::{Checkpoint, Code, DecodeOptions, Error, OutputFile, OutputFolder, OutputKind, Result, Source, join_to};

use crate::container::Container;
use crate::errors::to_py;
use crate::progress::{detached, run};

/// Names of tensors, and the file that each is in.
type Places = Vec<(String, PathBuf)>;

/// The file of each tensor of a checkpoint, in order, after all checks of its headers and its index; and all files that
/// belong to it. `rest`: whether it may be the uncompressed rest of a model.
#[pyfunction]
pub fn checkpoint(py: Python<'_>, path: PathBuf, rest: bool) -> PyResult<(Places, Vec<PathBuf>)> {
    detached(py, || {
        let checkpoint = if rest { Checkpoint::open_rest(&path)? } else { Checkpoint::open(&path)? };
        let tensors = checkpoint.tensors().iter().enumerate();
        let tensors = tensors.map(|(i, t)| (t.name.clone(), checkpoint.file_of(i).to_owned())).collect();
        Ok((tensors, checkpoint.files()))
    })
}

/// Whether reads of a file can bypass the system's page cache.
#[pyfunction]
pub fn reads_direct(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
    detached(py, || wcodec::reads_direct(&path))
}

/// Refuses an output that is one of the input files, under whatever name.
#[pyfunction]
pub fn check_output(py: Python<'_>, path: PathBuf, inputs: Vec<PathBuf>) -> PyResult<()> {
    detached(py, || OutputKind::Other.check(&path, &inputs))
}

/// A file that appears under its name once it is finished, or not at all.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Output(Mutex<Option<OutputFile>>);

impl Output {
    fn with<T: Send>(&self, work: impl FnOnce(&OutputFile) -> Result<T> + Send) -> Result<T> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(file) => work(file),
            None => Err(closed()),
        }
    }

    fn take(&self) -> Option<OutputFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn closed() -> Error {
    Code::INPUT_BUG.error("the output is finished already")
}

#[pymethods]
impl Output {
    /// Creates a temporary file beside `path`. `report`: whether it is a JSON report, whose name must not be a model's.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, report: bool, inputs: Vec<PathBuf>, overwrite: bool) -> PyResult<Self> {
        let kind = if report { OutputKind::Json } else { OutputKind::Other };
        detached(py, || OutputFile::create(&path, kind, &inputs, overwrite)).map(|f| Self(Mutex::new(Some(f))))
    }

    /// Appends bytes.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        detached(py, || self.with(|file| file.write_all(data)))
    }

    /// Writes one container with tensors of others, each given with the names to take from it, and more metadata.
    fn write_extract(
        &self,
        py: Python<'_>,
        parts: Vec<(Bound<'_, Container>, Vec<String>)>,
        metadata: BTreeMap<String, String>,
    ) -> PyResult<()> {
        let names: Vec<Vec<&str>> = parts.iter().map(|(_, n)| n.iter().map(String::as_str).collect()).collect();
        let parts: Vec<_> = parts.iter().zip(&names).map(|((c, _), n)| (c.get().inner(), n.as_slice())).collect();
        run(py, None, |_, link| {
            let options = DecodeOptions { cancel: link.cancel(), ..DecodeOptions::default() };
            self.with(|file| join_to(file, &parts, &metadata, &options))
        })
    }

    /// Makes the bytes durable and renames the file to its final path.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.take().ok_or_else(|| to_py(py, &closed()))?;
        detached(py, || file.finish())
    }

    /// Removes the temporary file, unless it is finished.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }
}

/// The folder of a compressed model that appears under its name once it is finished, or not at all.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Folder {
    folder: Mutex<Option<OutputFolder>>,
    path: PathBuf,
}

impl Folder {
    fn take(&self) -> Option<OutputFolder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Folder {
    /// Creates a temporary folder beside `path`. `ours` are names of files that a model's folder may have and that are
    /// replaced with it.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, inputs: Vec<PathBuf>, ours: Vec<String>, overwrite: bool) -> PyResult<Self> {
        let folder = detached(py, || OutputFolder::create(&path, inputs, ours, overwrite))?;
        Ok(Self { path: folder.path(), folder: Mutex::new(Some(folder)) })
    }

    /// The folder to fill.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Renames the folder to its final path.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let folder = self.take().ok_or_else(|| to_py(py, &closed()))?;
        detached(py, || folder.finish())
    }

    /// Removes the temporary folder, unless it is finished.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }
}
