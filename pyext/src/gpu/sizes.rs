//! The memory that decoders hold on a GPU.

use pyo3::prelude::*;
use wcodec::Cancel;
use wcodec::gpu::{Device, Sizes};

use super::Options;
use crate::container::Container;
use crate::errors::to_py;
use crate::progress::detached;

/// Sizes of some tensors on a GPU, by what the index says; nothing is read of them.
#[pyclass(frozen, module = "wcodec._native")]
pub struct DeviceSizes(Sizes);

#[pymethods]
impl DeviceSizes {
    /// Those of the stored tensors `names`, each once.
    #[new]
    fn new(py: Python<'_>, container: &Bound<'_, Container>, names: Vec<String>) -> PyResult<Self> {
        let container = container.get().inner();
        detached(py, || Sizes::new(container, &names)).map(Self)
    }

    /// Bytes that each of them takes, compressed.
    fn packed_bytes(&self) -> Vec<usize> {
        self.0.packed_bytes().to_vec()
    }

    /// Pinned bytes of the host that a decoder of these takes, of which `on_disk` are read from the file.
    fn pinned(&self, in_memory: Vec<usize>, on_disk: Vec<usize>, options: Options) -> usize {
        self.0.pinned(&in_memory, &on_disk, &options.build(Cancel::new()))
    }

    /// Bytes that a decoder of some of them, by their places, holds on a GPU: where their bytes stay there, or with `on_host` come through
    /// the ring. Without a GPU's number, what nvCOMP needs is an estimate.
    fn total(
        &self,
        py: Python<'_>,
        which: Vec<usize>,
        on_host: bool,
        ordinal: Option<usize>,
        options: Options,
    ) -> PyResult<usize> {
        let options = options.build(Cancel::new());
        // A device is asked for nothing else.
        let device =
            ordinal.filter(|_| self.0.need_nvcomp()).map(Device::new).transpose().map_err(|e| to_py(py, &e))?;
        let footprint = self.0.footprint(which, on_host, &options, device.as_ref());
        footprint.map(|f| f.total()).map_err(|e| to_py(py, &e))
    }
}
