//! Background writing.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Writes on its own thread, so that copying into the page cache does not block the work. Errors are returned by a
/// later call, at the latest by `seek` or `flush`, which wait for everything written so far.
pub struct WriteBehind(State);

enum State {
    Behind { pieces: SyncSender<Vec<u8>>, thread: JoinHandle<std::io::Result<File>> },
    Direct(File),
    Failed,
}

/// The largest piece handed over, and the most pieces in the queue: together they bound the memory.
const WRITE_PIECE: usize = 4 << 20;
const PIECES_WAITING: usize = 4;

impl WriteBehind {
    /// Writes to `file`; on the calling thread if the system refuses a thread.
    pub(super) fn new(file: File) -> Self {
        let (pieces, waiting) = std::sync::mpsc::sync_channel::<Vec<u8>>(PIECES_WAITING);
        // The thread takes the file, if there is one.
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

    /// Waits for the thread; subsequent writes go directly to the file.
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
        // Once this returns, nothing writes to the abandoned file any more.
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

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Error;
    use crate::file::NamedWriter;

    #[test]
    fn errors_of_the_writing_thread_come_back() {
        // Writes to this device fail as on a full disk.
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
