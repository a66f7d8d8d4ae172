//! A checkpoint whose tensors live in Python and are fetched one at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use wcodec::{AlignedBytes, Cancel, Code, Dtype, Pool, Result, Source, SourceBytes, SourceTensor, TensorView};

use crate::arrays::Array;
use crate::gpu::{Fetchers, OnDevice};
use crate::progress::Link;

/// Name, dtype, shape and, for a tied tensor, the name of the tensor that holds its data.
pub type Declared = (String, String, Vec<usize>, Option<String>);

/// Tensors behind a Python callable `read(index, device) -> numpy.uint8[bytes]`, which with `device` may instead return
/// the address of the bytes in a GPU's memory.
///
/// Fetching late keeps memory bounded by one tensor if the caller's arrays need a contiguous copy, or a transfer from a
/// GPU, before their bytes can be read.
pub struct PySource {
    tensors: Vec<SourceTensor>,
    read: Arc<Py<PyAny>>,
    metadata: BTreeMap<String, String>,
    files: Vec<PathBuf>,
    link: Link,
    fetchers: Fetchers,
}

/// Advice on arrays that change during the work.
const STAY: &str = "pass arrays that stay as they are until the work is done";

/// The callable's result.
#[derive(FromPyObject)]
enum Found {
    OnDevice(OnDevice),
    Bytes(Py<PyAny>),
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
                Ok(SourceTensor { name, dtype, shape, alias_of, opaque: None })
            })
            .collect::<Result<_>>()?;
        Ok(Self { tensors, read: Arc::new(read), metadata, files, link, fetchers: Fetchers::default() })
    }

    /// Calls the callable on the thread that passed it.
    fn find<T: for<'py> FromPyObjectOwned<'py> + Send + 'static>(&self, index: usize, device: bool) -> Result<T> {
        let read = self.read.clone();
        self.link.call(move |py| read.call1(py, (index, device))?.extract(py).map_err(Into::into))
    }

    fn bytes(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<AlignedBytes> {
        let array = match self.find(index, true)? {
            Found::Bytes(array) => array,
            Found::OnDevice(place) => {
                let fetched = self.fetchers.fetch(&place, &self.tensors, pool, cancel);
                // Released now rather than by the garbage collector, so that a copy made on the GPU is freed before the
                // next one.
                self.link.attached(|_| {
                    drop(place);
                    Ok(())
                })?;
                match fetched? {
                    Some(bytes) => return Ok(bytes),
                    None => self.find(index, false)?,
                }
            }
        };
        self.copied(&array, pool, cancel)
    }

    fn copied(&self, array: &Py<PyAny>, pool: &Pool, cancel: &Cancel) -> Result<AlignedBytes> {
        // Copied while the interpreter is held, so that nothing else writes to it. The pool's threads do not need the
        // interpreter.
        self.link.attached(|py| {
            let array: Array<'_, u8> = array.extract(py)?;
            Ok(AlignedBytes::copy_with(array.elements()?, pool, cancel))
        })?
    }
}

impl Source for PySource {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        let tensor = &self.tensors[index];
        let bytes = self.bytes(index, pool, cancel).map_err(|e| e.tensor(&tensor.name))?;
        // The declaration comes from the caller, and the array may have changed since.
        if TensorView::new(tensor.dtype, &tensor.shape, &bytes).is_err() {
            let what = format!(
                "it changed while it was read: {} bytes are no {} of shape {:?}",
                bytes.len(),
                tensor.dtype,
                tensor.shape
            );
            return Err(Code::CHANGED_WHILE_READ.error(what).tensor(&tensor.name).advice(STAY));
        }
        Ok(SourceBytes::Owned(bytes))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }
}
