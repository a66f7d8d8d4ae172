//! Writing behind the work, and errors of writing that name the file.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::tensor::out_of_memory;

/// Writes on a thread of its own, so that copying into the page cache does not hold up the work. Errors come with a
/// later call, at the latest with `seek` or `flush`, which wait for everything written so far.
pub struct WriteBehind(State);

enum State {
    Behind { pieces: SyncSender<Vec<u8>>, thread: JoinHandle<std::io::Result<File>> },
    Direct(File),
    Failed,
}

/// Largest piece handed over, and how many may wait: bounds the memory.
const WRITE_PIECE: usize = 4 << 20;
const PIECES_WAITING: usize = 4;

impl WriteBehind {
    /// Writes to `file`: directly, where the system gives no thread for it.
    pub(super) fn new(file: File) -> Self {
        let (pieces, waiting) = std::sync::mpsc::sync_channel::<Vec<u8>>(PIECES_WAITING);
        // Taken by the thread, if there is one.
        let place = Arc::new(Mutex::new(Some(file)));
        let take = |place: &Mutex<Option<File>>| place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let of_thread = place.clone();
        let work = move || {
            let mut file = take(&of_thread).expect("taken once");
            for piece in waiting {
                file.write_all(&piece)?;
            }
            Ok(file)
        };
        match std::thread::Builder::new().name("wcodec-write".to_owned()).spawn(work) {
            Ok(thread) => Self(State::Behind { pieces, thread }),
            Err(_) => Self(State::Direct(take(&place).expect("no thread took it"))),
        }
    }

    /// Waits for the thread; from then on writes go straight to the file.
    fn direct(&mut self) -> std::io::Result<&mut File> {
        if let State::Behind { .. } = self.0 {
            let State::Behind { pieces, thread } = std::mem::replace(&mut self.0, State::Failed) else {
                unreachable!()
            };
            drop(pieces);
            self.0 = State::Direct(thread.join().map_err(|_| std::io::Error::other("the writing thread died"))??);
        }
        match &mut self.0 {
            State::Direct(file) => Ok(file),
            _ => Err(std::io::Error::other("writing failed before")),
        }
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        // An abandoned file is not written to any more once this returns.
        self.direct().ok();
    }
}

impl Write for WriteBehind {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let piece = &bytes[..bytes.len().min(WRITE_PIECE)];
        if let State::Behind { pieces, .. } = &self.0 {
            let mut copy = Vec::new();
            copy.try_reserve_exact(piece.len()).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
            copy.extend_from_slice(piece);
            if pieces.send(copy).is_ok() {
                return Ok(piece.len());
            }
            // The thread has stopped: joining it gives the reason.
        }
        self.direct()?.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.direct()?.flush()
    }
}

impl Seek for WriteBehind {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.direct()?.seek(to)
    }
}

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_writing_thread_come_back() {
        // Writing there fails as on a full disk.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut w = NamedWriter::new(WriteBehind::new(full), Path::new("out"));
        let mut result = Ok(());
        for _ in 0..20 {
            result = result.and_then(|()| w.write(&[7; 1 << 20]));
        }
        let e = result.and_then(|()| w.into_inner()?.flush().map_err(|e| Error::io("write", Path::new("out"), e)));
        let e = e.unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::Io);
        assert!(e.to_string().contains("space"), "{e}");
    }
}
