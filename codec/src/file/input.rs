//! Files that are read at random offsets.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rayon::prelude::*;

use super::direct::{Direct, PAGE, PageBuffer, pages};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::tensor::AlignedBytes;

/// Bytes that one task reads.
const READ_PIECE: usize = 8 << 20;
/// Bytes that one direct read reads: they are copied from a buffer of that size.
const DIRECT_PIECE: usize = 1 << 20;

/// A file that is read piece by piece and never mapped: if a mapped file shrinks, the process is killed.
#[derive(Debug)]
pub struct InputFile {
    file: File,
    path: PathBuf,
    length: u64,
    modified: Option<SystemTime>,
    direct: Direct,
}

impl InputFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let open = |e| Error::io("open the file", path, e);
        // Checked before opening, which would block on a pipe without a writer.
        if !std::fs::metadata(path).map_err(open)?.is_file() {
            return Err(coded!(NOT_A_TEXT_FILE, "not a regular file").file(path).advice("name a file"));
        }
        let file = File::open(path).map_err(open)?;
        let meta = file.metadata().map_err(open)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            length: meta.len(),
            modified: meta.modified().ok(),
            direct: Direct::default(),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// `length` bytes from `offset` on; on a thread of a pool, all its threads read.
    ///
    /// # Errors
    /// The range is not in the file, the file has changed since it was opened, or `cancel` was used.
    pub fn read(&self, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        let read = |at, piece: &mut [u8]| self.read_piece(at, piece);
        self.read_by(offset, length, READ_PIECE, cancel, read)
    }

    /// As [`read`](Self::read), bypassing the system's page cache if possible.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub(crate) fn read_direct(&self, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        if !self.is_direct() {
            return self.read(offset, length, cancel);
        }
        self.read_by(offset, length, DIRECT_PIECE, cancel, |at, piece| {
            let around = pages(&(at..at + piece.len() as u64));
            let mut buffer = PageBuffer::new((around.end - around.start) as usize)?;
            self.read_pages(around.start, &mut buffer, true)?;
            let begin = (at - around.start) as usize;
            piece.copy_from_slice(&buffer[begin..begin + piece.len()]);
            Ok(())
        })
    }

    fn read_by(
        &self,
        offset: u64,
        length: usize,
        size: usize,
        cancel: &Cancel,
        read: impl Fn(u64, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<AlignedBytes> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(coded!(BAD_SEGMENTS, "{length} bytes beyond the end of the file")
                .file(&self.path)
                .offset(offset));
        }
        self.check_unchanged()?;
        let mut bytes = AlignedBytes::zeroed(length)?;
        let read = |(i, piece): (usize, &mut [u8])| {
            cancel.check()?;
            read(offset + (i * size) as u64, piece)
        };
        // In parallel, since copying from the page cache is bound by one core. Only on a thread of a pool: other
        // threads would use rayon's global pool, which does not exist in a forked process.
        if length > size && rayon::current_thread_index().is_some() {
            bytes.par_chunks_mut(size).enumerate().try_for_each(read)?;
        } else {
            bytes.chunks_mut(size).enumerate().try_for_each(read)?;
        }
        // Checked again, because the file may have been written to during the read.
        self.check_unchanged()?;
        Ok(bytes)
    }

    fn read_piece(&self, at: u64, piece: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, piece, at).map_err(|e| self.failed(e, at))
    }

    /// Whether reads can bypass the system's page cache. Tried once.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.file(&self.file, &self.path).is_some()
    }

    /// Fills `out` with the bytes from `offset` on, without checking whether the file has changed; bytes of `out`
    /// beyond the file's end are left unchanged. `direct` bypasses the page cache if possible; offset, length and
    /// address must then be multiples of [`PAGE`].
    pub(crate) fn read_pages(&self, offset: u64, out: &mut [u8], direct: bool) -> Result<()> {
        let available = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let direct = if direct { self.direct.file(&self.file, &self.path) } else { None };
        if let Some(file) = direct {
            debug_assert!(offset.is_multiple_of(PAGE as u64) && out.len().is_multiple_of(PAGE));
            match read_until(file, out, offset, available) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Err(self.failed(e, offset)),
                // The system may refuse reads although a trial succeeded, for example if the file lies on several
                // disks, or for this memory. If the disk fails, the ordinary read reports it.
                Err(_) => self.direct.refuse(),
            }
        }
        self.read_piece(offset, &mut out[..available])
    }

    fn failed(&self, e: std::io::Error, at: u64) -> Error {
        match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed().offset(at),
            _ => Error::io("read", &self.path, e).offset(at),
        }
    }

    /// # Errors
    /// The file has been written to since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let meta: Metadata = self.file.metadata().map_err(|e| Error::io("read", &self.path, e))?;
        if meta.len() == self.length && meta.modified().ok() == self.modified {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> Error {
        coded!(CHANGED_WHILE_OPEN, "the file was changed while it was open").file(&self.path).advice("open it again")
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

/// The content of a small file of at most `most` bytes.
///
/// # Errors
/// The file is larger, or not a regular file: a pipe would block, and a device would never end.
pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = InputFile::open(path)?;
    if file.length > most {
        return Err(coded!(NOT_A_TEXT_FILE, "a file of {} bytes is no such text", file.length)
            .file(path)
            .advice("check the path"));
    }
    Ok(file.read(0, file.length as usize, &Cancel::new())?.to_vec())
}

/// Whether reads of a file can bypass the system's page cache, for
/// [`AheadOptions::direct`](crate::AheadOptions::direct).
///
/// # Errors
/// It cannot be opened.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
/// println!("{}", if wcodec::reads_direct(&file)? { "it can" } else { "its file system has no such reads" });
/// # Ok(())
/// # }
/// ```
pub fn reads_direct(path: &Path) -> Result<bool> {
    Ok(InputFile::open(path)?.is_direct())
}

/// Reads until `wanted` bytes of `out` are filled; the last read may return fewer than it asks for.
fn read_until(file: &File, out: &mut [u8], offset: u64, wanted: usize) -> std::io::Result<()> {
    let mut done = 0;
    while done < wanted {
        // If a read ends early, the next one begins at a whole page again.
        let begin = done / PAGE * PAGE;
        match read_at(file, &mut out[begin..], offset + begin as u64) {
            Ok(n) if begin + n > done => done = begin + n,
            Ok(_) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, offset)
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
        // Replacing the file does not affect the open one.
        let f = InputFile::open(&path).unwrap();
        std::fs::write(dir.path().join("g"), [2; 7]).unwrap();
        std::fs::rename(dir.path().join("g"), &path).unwrap();
        assert_eq!(&f.read(0, 3, &go).unwrap()[..], [1; 3]);
    }

    #[test]
    fn bytes_beside_the_page_cache_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(i) % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let (f, go) = (InputFile::open(&path).unwrap(), Cancel::new());
        for refused in [false, true] {
            for (at, n) in [(0, 1), (5, 4096), (4096, 8192), (4095, 2), (2_999_999, 2), (17, 2_900_000), (3_000_001, 0)]
            {
                assert!(f.read_direct(at as u64, n, &go).unwrap()[..] == bytes[at..at + n], "{n} at {at}, {refused}");
            }
            for (at, n) in [(0usize, PAGE), (PAGE, 100 * PAGE), (2_998_272, PAGE), (2_998_272, 4 * PAGE)] {
                let mut out = PageBuffer::new(n).unwrap();
                f.read_pages(at as u64, &mut out, true).unwrap();
                let there = n.min(bytes.len() - at);
                assert!(out[..there] == bytes[at..at + there] && out[there..].iter().all(|&b| b == 0));
            }
            // Reads that the system refuses later fall back to ordinary ones.
            f.direct.refuse();
            assert!(!f.is_direct());
        }
        assert!(f.read_direct(2_999_999, 3, &go).is_err());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let f2 = InputFile::open(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        let mut out = PageBuffer::new(PAGE).unwrap();
        for direct in [true, false] {
            let e = f2.read_pages(0, &mut out, direct).unwrap_err();
            assert!(e.to_string().contains("changed while it was open") && e.byte_offset() == Some(0), "{e}");
        }
        assert!(f2.read_direct(0, 10, &go).is_err());
    }
}
