//! A source with levels chosen by Python for some tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use wcodec::{Cancel, Levels, Pool, Result, Source, SourceBytes, SourceTensor};

use crate::arrays::Array;
use crate::progress::Link;

/// A source, and a callable `levels(name)` that returns `None`, or a tensor's levels (`numpy.int8`, row by row), its
/// scales (`numpy.float32`), whether levels are paths through a trellis, the width of the tiles at which it restarts, and
/// the factors of columns (`numpy.float32`) or `None`.
pub struct WithLevels<'a> {
    pub source: &'a dyn Source,
    pub levels: Arc<Py<PyAny>>,
    pub link: Link,
}

/// The result of that callable for a tensor.
type Chosen<'py> = (Array<'py, i8>, Array<'py, f32>, bool, usize, Option<Array<'py, f32>>);

impl Source for WithLevels<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        self.source.tensors()
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        self.source.read_with(index, pool, cancel)
    }

    fn levels_with(&self, index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<Option<Levels>> {
        let (levels, name) = (self.levels.clone(), self.tensors()[index].name.clone());
        self.link.call(move |py| {
            let found = levels.call1(py, (name,))?;
            let found: Option<Chosen<'_>> = found.extract(py)?;
            let Some((symbols, scales, trellis, tile, columns)) = found else { return Ok(None) };
            let (symbols, scales) = (symbols.elements()?.to_vec(), scales.elements()?.to_vec());
            let columns = columns.map(|columns| columns.elements().map(<[f32]>::to_vec)).transpose()?;
            Ok(Some(Levels { symbols, scales, columns, trellis, tile: Some(tile) }))
        })
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.source.metadata()
    }

    fn model(&self) -> Option<serde_json::Value> {
        self.source.model()
    }

    fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }
}
