//! Reads that bypass the system's page cache (direct I/O).
//!
//! Data that is read once and not again soon, such as the weights of a model larger than memory, evicts everything else
//! from the page cache, and costs a copy of each byte. Linux instead reads directly into the caller's memory if offset,
//! length and address are whole pages and the file system supports it.

use std::fs::File;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::tensor::try_vec;

/// The alignment of offsets, lengths and addresses: no disk requires more.
pub(crate) const PAGE: usize = 4096;

/// The pages that hold a range.
pub(crate) fn pages(range: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    range.start / page * page..range.end.next_multiple_of(page)
}

/// A second handle of an open file that bypasses the page cache.
#[derive(Debug, Default)]
pub(super) struct Direct {
    handle: OnceLock<Option<File>>,
    refused: AtomicBool,
}

impl Direct {
    /// The handle, opened and tried by the first call; `None` if the system or the file system does not support it.
    pub fn file(&self, file: &File, path: &Path) -> Option<&File> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        self.handle.get_or_init(|| open(file, path)).as_ref()
    }

    /// Records that the system refused a read.
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
fn open(file: &File, path: &Path) -> Option<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

    let flag = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let open = |path: &Path| std::fs::OpenOptions::new().read(true).custom_flags(flag).open(path).ok();
    // Reopens the open file itself, even if another file has its name by now.
    let same = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
    let direct = open(&same).or_else(|| open(path))?;
    let (a, b) = (file.metadata().ok()?, direct.metadata().ok()?);
    let mut page = PageBuffer::new(PAGE).ok()?;
    // Some file systems allow opening and then refuse reads.
    ((a.dev(), a.ino()) == (b.dev(), b.ino()) && direct.read_at(&mut page, 0).is_ok()).then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open(_: &File, _: &Path) -> Option<File> {
    None
}

/// Zeroed memory at an address that is a multiple of [`PAGE`].
#[derive(Debug)]
pub(crate) struct PageBuffer {
    words: Vec<u64>,
    begin: usize,
    len: usize,
}

impl PageBuffer {
    /// Allocates `len` bytes; an error if memory does not suffice.
    pub fn new(len: usize) -> Result<Self> {
        let words: Vec<u64> = try_vec((len + PAGE).div_ceil(8))?;
        let begin = words.as_ptr().addr().next_multiple_of(PAGE) - words.as_ptr().addr();
        Ok(Self { words, begin, len })
    }
}

impl Deref for PageBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.begin..self.begin + self.len]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.begin..self.begin + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_their_range() {
        assert_eq!(pages(&(0..1)), 0..4096);
        assert_eq!(pages(&(4095..4097)), 0..8192);
        assert_eq!(pages(&(8192..12288)), 8192..12288);
        for len in [0, 1, 4096, 100_000] {
            let buffer = PageBuffer::new(len).unwrap();
            assert!(buffer.len() == len && buffer.as_ptr().addr().is_multiple_of(PAGE));
        }
    }
}
