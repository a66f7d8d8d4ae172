//! Files read at random places.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rayon::prelude::*;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::tensor::AlignedBytes;

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
}
