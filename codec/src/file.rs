//! Files read at random places and written atomically.

use std::fs::{File, Metadata};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::SystemTime;

use rayon::prelude::*;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::tensor::{AlignedBytes, out_of_memory};

/// Bytes that one task reads.
const READ_PIECE: usize = 8 << 20;

/// A file that is read piece by piece, never mapped: a mapped file that shrinks kills the process.
#[derive(Debug)]
pub struct InputFile {
    file: File,
    path: PathBuf,
    length: u64,
    modified: Option<SystemTime>,
}

impl InputFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let open = |e| Error::io("open the file", path, e);
        // Asked before opening, which would wait for a writer if this were a pipe.
        if !std::fs::metadata(path).map_err(open)?.is_file() {
            return Err(Error::input("not a regular file").file(path).advice("name a file"));
        }
        let file = File::open(path).map_err(open)?;
        let meta = file.metadata().map_err(open)?;
        Ok(Self { file, path: path.to_owned(), length: meta.len(), modified: meta.modified().ok() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length when it was opened, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// `length` bytes from `offset` on; where it is called by a thread of a pool, with all of them.
    ///
    /// # Errors
    /// The range is not in the file, the file was changed since it was opened, or `cancel` was used.
    pub fn read(&self, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(Error::format(format!("{length} bytes beyond the end of the file"))
                .file(&self.path)
                .offset(offset));
        }
        self.check_unchanged()?;
        let mut bytes = AlignedBytes::zeroed(length)?;
        let read = |(i, piece): (usize, &mut [u8])| {
            cancel.check()?;
            let at = offset + (i * READ_PIECE) as u64;
            read_exact_at(&self.file, piece, at).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => self.changed(),
                _ => Error::io("read", &self.path, e).offset(at),
            })
        };
        // In parallel, since copying from the page cache is bound by one core; but rayon's own pool, which a thread of none would
        // use, is not there in a process that was forked.
        if length > READ_PIECE && rayon::current_thread_index().is_some() {
            bytes.par_chunks_mut(READ_PIECE).enumerate().try_for_each(read)?;
        } else {
            bytes.chunks_mut(READ_PIECE).enumerate().try_for_each(read)?;
        }
        // Once more, since a writer may have been at work meanwhile.
        self.check_unchanged()?;
        Ok(bytes)
    }

    fn check_unchanged(&self) -> Result<()> {
        let meta: Metadata = self.file.metadata().map_err(|e| Error::io("read", &self.path, e))?;
        if meta.len() == self.length && meta.modified().ok() == self.modified {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> Error {
        Error::corrupt("the file was changed while it was open").file(&self.path).advice("open it again")
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

/// A file that appears under its name when it is complete, or not at all.
pub struct OutputFile {
    temporary: tempfile::NamedTempFile,
    path: PathBuf,
    overwrite: bool,
}

impl OutputFile {
    /// Begins a temporary file in the folder of `path`.
    ///
    /// # Errors
    /// `path` exists and `overwrite` is not set, or the folder cannot be written.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self> {
        if path.is_dir() {
            return Err(Error::input("the output is a folder").file(path).advice("name a file in it"));
        }
        if !overwrite && path.exists() {
            return Err(exists(path));
        }
        let folder = folder_of(path);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".wcodec-").suffix(".part");
        // Opened here: the process's umask decides who may read it, and errors do not name a file that nobody knows.
        let open = |part: &Path| File::options().read(true).write(true).create_new(true).open(part);
        let temporary = builder.make_in(folder, open).map_err(|e| Error::io("create a file in its folder", path, e))?;
        Ok(Self { temporary, path: path.to_owned(), overwrite })
    }

    /// Where the file will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, for a caller that writes on a thread of its own.
    ///
    /// # Errors
    /// The operating system refuses another handle.
    pub fn file(&self) -> Result<File> {
        self.temporary.as_file().try_clone().map_err(|e| Error::io("write", &self.path, e))
    }

    /// The file, written to by a thread of its own.
    ///
    /// # Errors
    /// The operating system refuses another handle.
    pub fn writer(&self) -> Result<WriteBehind> {
        Ok(WriteBehind::new(self.file()?))
    }

    /// Makes the bytes durable and gives the file its name.
    pub fn finish(self) -> Result<()> {
        let Self { temporary, path, overwrite } = self;
        temporary.as_file().sync_all().map_err(|e| Error::io("write", &path, e))?;
        if overwrite {
            temporary.persist(&path).map_err(|e| Error::io("rename the finished file", &path, e.error))?;
        } else {
            temporary.persist_noclobber(&path).map_err(|e| match e.error.kind() {
                std::io::ErrorKind::AlreadyExists => exists(&path),
                _ => Error::io("rename the finished file", &path, e.error),
            })?;
        }
        // The rename is durable once its folder is. Where folders cannot be opened, there is nothing to do.
        if let Ok(folder) = File::open(folder_of(&path)) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

/// The folder of a file, also for a bare name.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn exists(path: &Path) -> Error {
    Error::io("create the output", path, std::io::ErrorKind::AlreadyExists.into())
}

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
    fn new(mut file: File) -> Self {
        let (pieces, waiting) = std::sync::mpsc::sync_channel::<Vec<u8>>(PIECES_WAITING);
        let thread = std::thread::spawn(move || {
            for piece in waiting {
                file.write_all(&piece)?;
            }
            Ok(file)
        });
        Self(State::Behind { pieces, thread })
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
        self.inner.write_all(bytes).map_err(|e| match e.kind() {
            // Of a file in memory, or of what waits to be written.
            std::io::ErrorKind::OutOfMemory => out_of_memory(bytes.len()),
            _ => Error::io("write", &self.path, e),
        })?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Flushes and gives the inner writer back.
    pub fn into_inner(self) -> Result<W> {
        let path = self.path;
        self.inner.into_inner().map_err(|e| Error::io("write", &path, e.into_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_while_open_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1; 100]).unwrap();
        let go = Cancel::new();
        let f = InputFile::open(&path).unwrap();
        assert_eq!(&f.read(90, 10, &go).unwrap()[..], [1; 10]);
        assert!(f.read(91, 10, &go).is_err());
        assert!(f.read(u64::MAX, 10, &go).is_err());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50).unwrap();
        let e = f.read(0, 10, &go).unwrap_err();
        assert!(e.to_string().contains("changed while it was open"), "{e}");
        // Replacing the file leaves the open one as it was.
        let f = InputFile::open(&path).unwrap();
        std::fs::write(dir.path().join("g"), [2; 7]).unwrap();
        std::fs::rename(dir.path().join("g"), &path).unwrap();
        assert_eq!(&f.read(0, 3, &go).unwrap()[..], [1; 3]);
    }

    #[test]
    fn outputs_appear_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let f = OutputFile::create(&path, false).unwrap();
        f.writer().unwrap().write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(f);
        assert_eq!(count(), 0);
        let f = OutputFile::create(&path, false).unwrap();
        let mut w = f.writer().unwrap();
        w.write_all(b"whale").unwrap();
        w.seek(SeekFrom::Start(2)).unwrap();
        w.write_all(b"o").unwrap();
        w.flush().unwrap();
        f.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), count()), (b"whole".to_vec(), 1));
        assert!(OutputFile::create(&path, false).is_err());
        // The name was taken after we began.
        let other = dir.path().join("other");
        let f = OutputFile::create(&other, false).unwrap();
        std::fs::write(&other, b"mine").unwrap();
        assert!(f.finish().is_err());
        assert_eq!((std::fs::read(&other).unwrap(), count()), (b"mine".to_vec(), 2));
        OutputFile::create(&other, true).unwrap().finish().unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"");
        assert!(OutputFile::create(dir.path(), true).is_err());
        let lost = dir.path().join("none/x");
        let e = OutputFile::create(&lost, true).err().unwrap();
        assert_eq!(e.file_path(), Some(lost.as_path()));
        assert!(!e.to_string().contains(".part"), "{e}");
    }

    #[cfg(target_os = "linux")]
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
