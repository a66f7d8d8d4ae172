//! A file in memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Seek, SeekFrom, Write};
use std::ops::Deref;

use crate::tensor::AlignedBytes;

/// The largest size of a growing block, bytes.
const BLOCK: usize = 64 << 20;
/// The fewest bytes that get a block of their own.
const LEAST: usize = 64 << 10;

/// A destination that a container can be written to.
pub(crate) trait Sink: Write + Seek {
    /// Writes bytes, taking ownership of them.
    fn take(&mut self, bytes: Bytes) -> Result<()> {
        self.write_all(&bytes)
    }
}

impl Sink for File {}

/// Owned bytes, in the form in which they were made.
pub(crate) enum Bytes {
    Plain(Vec<u8>),
    Aligned(AlignedBytes),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Aligned(bytes) => bytes,
        }
    }
}

/// Bytes that are written front to back and read anywhere. They are in blocks, so that a file of many gigabytes grows
/// without being copied, and takes no more memory than it has bytes. A large buffer that is handed over becomes a block
/// without a copy.
pub(crate) struct MemoryFile {
    /// Blocks, each with its offset. Only the last may be empty.
    blocks: Vec<(u64, Bytes)>,
    /// The largest size of a growing block, bytes.
    block: usize,
    /// Whether buffers that are handed over are copied, too.
    in_one: bool,
    /// Whether the last block can still grow.
    open: bool,
    length: u64,
    /// The offset of the next write.
    position: u64,
}

impl std::fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryFile({} bytes)", self.length)
    }
}

impl MemoryFile {
    /// An empty file.
    pub fn new() -> Self {
        Self { blocks: Vec::new(), block: BLOCK, in_one: false, open: false, length: 0, position: 0 }
    }

    /// An empty file that stays one block, whatever its length.
    pub fn in_one() -> Self {
        Self { block: usize::MAX, in_one: true, ..Self::new() }
    }

    /// A file with these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let length = bytes.len() as u64;
        let blocks = if bytes.is_empty() { Vec::new() } else { vec![(0, Bytes::Plain(bytes))] };
        Self { blocks, length, position: length, ..Self::in_one() }
    }

    /// The bytes of a file made by [`in_one`](Self::in_one).
    pub fn into_bytes(mut self) -> Vec<u8> {
        debug_assert!(self.blocks.len() < 2);
        match self.blocks.pop() {
            Some((_, Bytes::Plain(bytes))) => bytes,
            Some((_, Bytes::Aligned(bytes))) => bytes.to_vec(),
            None => Vec::new(),
        }
    }

    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` with the bytes from `offset` on; returns whether there are enough.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.length) {
            return false;
        }
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (begin, block) = &self.blocks[self.block_at(at)];
            let block = &block[(at - begin) as usize..];
            let (now, later) = rest.split_at_mut(block.len().min(rest.len()));
            now.copy_from_slice(&block[..now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        true
    }

    /// The index of the block with the byte at `offset`, which must exist.
    fn block_at(&self, offset: u64) -> usize {
        self.blocks.partition_point(|(begin, _)| *begin <= offset) - 1
    }

    /// The last block, with room for at least one byte and at most `wanted`.
    fn room(&mut self, wanted: usize) -> Result<&mut Vec<u8>> {
        let full = |(_, b): &(u64, Bytes)| b.len() >= self.block;
        if !self.open || self.blocks.last().is_none_or(full) {
            self.blocks.try_reserve(1).map_err(no_memory)?;
            self.blocks.push((self.length, Bytes::Plain(Vec::new())));
            self.open = true;
        }
        let Some((_, Bytes::Plain(block))) = self.blocks.last_mut() else { unreachable!("a block that grows") };
        if block.capacity() == block.len() {
            // Doubles the capacity, so that small writes do not each move all bytes, but never beyond the block size.
            let more = wanted.max(block.len()).min(self.block - block.len());
            block.try_reserve_exact(more).map_err(no_memory)?;
        }
        Ok(block)
    }
}

impl Sink for MemoryFile {
    fn take(&mut self, bytes: Bytes) -> Result<()> {
        // A buffer with much unused capacity is copied, since that capacity would stay allocated.
        let loose = matches!(&bytes, Bytes::Plain(b) if b.capacity() - b.len() > b.len() / 8);
        if self.in_one || loose || bytes.len() < LEAST || self.position < self.length {
            return self.write_all(&bytes);
        }
        self.blocks.try_reserve(1).map_err(no_memory)?;
        let begin = self.length;
        self.length += bytes.len() as u64;
        self.position = self.length;
        self.blocks.push((begin, bytes));
        self.open = false;
        Ok(())
    }
}

fn no_memory<E>(_: E) -> Error {
    ErrorKind::OutOfMemory.into()
}

impl Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let written = if self.position < self.length {
            let number = self.block_at(self.position);
            let (begin, block) = &mut self.blocks[number];
            let at = (self.position - *begin) as usize;
            // Only the header is written twice, and it lies in a growing block.
            let Bytes::Plain(block) = block else { return Err(ErrorKind::Unsupported.into()) };
            let free = &mut block[at..];
            let n = free.len().min(bytes.len());
            free[..n].copy_from_slice(&bytes[..n]);
            n
        } else {
            let block = self.room(bytes.len())?;
            let n = (block.capacity() - block.len()).min(bytes.len());
            block.extend_from_slice(&bytes[..n]);
            self.length += n as u64;
            n
        };
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for MemoryFile {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        match to {
            SeekFrom::Start(at) if at <= self.length => {
                self.position = at;
                Ok(at)
            }
            // The other variants are not used.
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_across_blocks() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for block in [1, 7, 64, 999, 1000, usize::MAX] {
            let mut f = MemoryFile { block, ..MemoryFile::new() };
            for piece in bytes.chunks(37) {
                f.write_all(piece).unwrap();
            }
            assert_eq!(f.length(), 1000, "{block}");
            f.seek(SeekFrom::Start(0)).unwrap();
            f.write_all(&[9; 100]).unwrap();
            assert_eq!(f.length(), 1000);
            let mut out = [0; 700];
            assert!(f.read(95, &mut out));
            assert_eq!((&out[..5], &out[5..]), (&[9; 5][..], &bytes[100..795]), "{block}");
            assert!(!f.read(301, &mut out) && !f.read(u64::MAX, &mut out));
            assert!(f.read(1000, &mut []));
            let capacity = |b: &Bytes| if let Bytes::Plain(b) = b { b.capacity() } else { 0 };
            assert!(f.blocks.iter().all(|(_, b)| capacity(b) <= block.max(1024)));
        }
        assert_eq!(MemoryFile::of(bytes.clone()).into_bytes(), bytes);
        assert_eq!(MemoryFile::new().length(), 0);
        assert!(MemoryFile::new().seek(SeekFrom::Start(1)).is_err());
    }

    #[test]
    fn what_is_large_and_handed_over_is_not_copied() {
        let bytes: Vec<u8> = (0..LEAST as u32 + 77).map(|i| (i * 7) as u8).collect();
        let place = bytes.as_ptr();
        let mut aligned = AlignedBytes::zeroed(LEAST + 3).unwrap();
        aligned.copy_from_slice(&bytes[..LEAST + 3]);
        for in_one in [false, true] {
            let mut f = if in_one { MemoryFile::in_one() } else { MemoryFile::new() };
            f.write_all(&[1; 64]).unwrap();
            f.take(Bytes::Plain(if in_one { bytes.clone() } else { bytes.as_slice().into() })).unwrap();
            f.write_all(&[2; 5]).unwrap();
            f.take(Bytes::Plain(vec![3; 7])).unwrap();
            f.take(Bytes::Aligned(aligned.clone())).unwrap();
            f.take(Bytes::Plain(Vec::new())).unwrap();
            f.write_all(&[4; 9]).unwrap();
            f.seek(SeekFrom::Start(0)).unwrap();
            f.write_all(&[5; 64]).unwrap();
            let mut whole = vec![0; f.length() as usize];
            assert!(f.read(0, &mut whole));
            let mut want = vec![5; 64];
            [&bytes[..], &[2; 5], &[3; 7], &aligned, &[4; 9]].iter().for_each(|b| want.extend_from_slice(b));
            assert!(whole == want);
            for (at, n) in [(63, 3), (64, LEAST), (60, want.len() - 70), (LEAST + 140, 20), (want.len() - 10, 10)] {
                assert!(f.read(at as u64, &mut whole[..n]) && whole[..n] == want[at..at + n], "{n} at {at}");
            }
            assert!(!f.read(want.len() as u64 - 9, &mut whole[..10]));
            assert_eq!(f.blocks.len(), if in_one { 1 } else { 5 });
            if in_one {
                assert!(f.into_bytes() == want);
            }
        }
        let mut f = MemoryFile::new();
        f.take(Bytes::Plain(bytes)).unwrap();
        assert_eq!(f.blocks[0].1.as_ptr(), place);
        let mut loose = Vec::with_capacity(4 * LEAST);
        loose.resize(2 * LEAST, 1);
        f.take(Bytes::Plain(loose)).unwrap();
        let Bytes::Plain(copy) = &f.blocks[1].1 else { panic!("of another kind") };
        assert_eq!((copy.len(), copy.capacity()), (2 * LEAST, 2 * LEAST));
    }
}
