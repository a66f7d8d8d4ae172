//! Rows that are looked up by numbers on the GPU.

use std::path::PathBuf;

use pyo3::prelude::*;
use wcodec::gpu::{Lookup, RowIds};

use super::{crate_stream, named};
use crate::progress::run_if;

/// Rows of a tensor, to be looked up again and again; `wcodec.RowLookup` is the class for users. It keeps the decoder's memory alive.
#[pyclass(frozen, module = "wcodec._native")]
pub struct RowLookup {
    lookup: Lookup,
    path: Option<PathBuf>,
}

impl RowLookup {
    /// One for users.
    pub fn new(lookup: Lookup, path: Option<PathBuf>) -> Self {
        Self { lookup, path }
    }
}

#[pymethods]
impl RowLookup {
    /// Puts the looking up of `count` numbers at `ids` (`wide`: of 64 bits, else of 32) into the stream; rows go to `out`.
    fn look_up(&self, py: Python<'_>, ids: u64, count: usize, wide: bool, out: u64, stream: usize) -> PyResult<()> {
        run_if(py, self.lookup.waits(), |cancel| {
            let ids = RowIds { ptr: ids, count, wide };
            let stream = crate_stream(self.lookup.device(), stream);
            // SAFETY: The Python half has checked device and dtype of the numbers, and has made the output, in torch's current stream.
            unsafe { self.lookup.look_up_until(ids, out, &stream, cancel) }.map_err(|e| named(self.path.as_ref(), e))
        })
    }
}
