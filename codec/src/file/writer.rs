//! Errors of writing that name the file.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::tensor::out_of_memory;

/// Bytes below which what is written is collected first.
const SMALL: usize = 1 << 15;

/// Buffered writing whose errors name the file.
pub struct NamedWriter<W: Write> {
    inner: BufWriter<W>,
    path: PathBuf,
    written: u64,
}

impl<W: Write> NamedWriter<W> {
    /// Writes to `inner`, which is called `path` in errors.
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

    /// Has `write` write so many bytes behind all others.
    pub(crate) fn take(&mut self, bytes: u64, write: impl FnOnce(&mut W) -> std::io::Result<()>) -> Result<()> {
        let written = self.inner.flush().and_then(|()| write(self.inner.get_mut()));
        self.count(bytes, written)
    }

    fn count(&mut self, bytes: u64, written: std::io::Result<()>) -> Result<()> {
        written.map_err(|e| named(e, bytes as usize, &self.path))?;
        self.written += bytes;
        Ok(())
    }

    /// Flushes and gives the inner writer back.
    pub fn into_inner(self) -> Result<W> {
        let (path, left) = (self.path, self.inner.buffer().len());
        self.inner.into_inner().map_err(|e| named(e.into_error(), left, &path))
    }
}

/// An error of writing so many bytes.
fn named(e: std::io::Error, bytes: usize, path: &Path) -> Error {
    match e.kind() {
        // Of a file in memory, or of what waits to be written.
        std::io::ErrorKind::OutOfMemory => out_of_memory(bytes),
        _ => Error::io("write", path, e),
    }
}
