//! Writing errors that name the file.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::tensor::out_of_memory;

/// Writes smaller than this are buffered.
const SMALL: usize = 1 << 15;

/// A buffered writer whose errors name the file.
pub struct NamedWriter<W: Write> {
    inner: BufWriter<W>,
    path: PathBuf,
    written: u64,
}

impl<W: Write> NamedWriter<W> {
    /// Writes to `inner`, which errors call `path`.
    pub fn new(inner: W, path: &Path) -> Self {
        Self { inner: BufWriter::with_capacity(SMALL, inner), path: path.to_owned(), written: 0 }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.inner.write_all(bytes);
        self.count(bytes.len() as u64, written)
    }

    /// Accounts for `bytes` bytes that `write` appends directly.
    pub(crate) fn take(&mut self, bytes: u64, write: impl FnOnce(&mut W) -> std::io::Result<()>) -> Result<()> {
        let written = self.inner.flush().and_then(|()| write(self.inner.get_mut()));
        self.count(bytes, written)
    }

    fn count(&mut self, bytes: u64, written: std::io::Result<()>) -> Result<()> {
        written.map_err(|e| named(e, bytes as usize, &self.path))?;
        self.written += bytes;
        Ok(())
    }

    /// Flushes and returns the inner writer.
    pub fn into_inner(self) -> Result<W> {
        let (path, left) = (self.path, self.inner.buffer().len());
        self.inner.into_inner().map_err(|e| named(e.into_error(), left, &path))
    }
}

/// The error of writing `bytes` bytes.
fn named(e: std::io::Error, bytes: usize, path: &Path) -> Error {
    match e.kind() {
        // From a file in memory, or from the queue of a background writer.
        std::io::ErrorKind::OutOfMemory => out_of_memory(bytes),
        _ => Error::io("write", path, e),
    }
}
