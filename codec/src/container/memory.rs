//! A file in memory.

use std::io::{Error, ErrorKind, Result, Seek, SeekFrom, Write};

/// Bytes of a block of a file that grows.
const BLOCK: usize = 64 << 20;

/// Bytes that are written front to back and read anywhere. They are in blocks, so that a file of many gigabytes grows without being
/// copied, and takes no more than it has.
pub(crate) struct MemoryFile {
    /// All but the last have `block` bytes.
    blocks: Vec<Vec<u8>>,
    block: usize,
    /// Where the next byte is written.
    position: u64,
}

impl std::fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryFile({} bytes)", self.length())
    }
}

impl MemoryFile {
    /// An empty one.
    pub fn new() -> Self {
        Self { blocks: Vec::new(), block: BLOCK, position: 0 }
    }

    /// An empty one of one block, whatever its length.
    pub fn in_one() -> Self {
        Self { block: usize::MAX, ..Self::new() }
    }

    /// These bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { position: bytes.len() as u64, blocks: vec![bytes], block: usize::MAX }
    }

    /// The bytes of [`in_one`](Self::in_one).
    pub fn into_bytes(mut self) -> Vec<u8> {
        debug_assert!(self.blocks.len() < 2);
        self.blocks.pop().unwrap_or_default()
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        match self.blocks.split_last() {
            None => 0,
            Some((last, full)) => full.len() as u64 * self.block as u64 + last.len() as u64,
        }
    }

    /// Fills `out` with the bytes from `offset` on; whether there are as many.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.length()) {
            return false;
        }
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let block = &self.blocks[(at / self.block as u64) as usize][(at % self.block as u64) as usize..];
            let (now, later) = rest.split_at_mut(block.len().min(rest.len()));
            now.copy_from_slice(&block[..now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        true
    }

    /// The last block, with room for at least one byte and at most `wanted`.
    fn room(&mut self, wanted: usize) -> Result<&mut Vec<u8>> {
        let full = |b: &Vec<u8>| b.len() == self.block;
        if self.blocks.last().is_none_or(full) {
            self.blocks.try_reserve(1).map_err(no_memory)?;
            self.blocks.push(Vec::new());
        }
        let block = self.blocks.last_mut().expect("pushed above");
        if block.capacity() == block.len() {
            // Doubled, so that not each small piece moves all before it, but never beyond the block.
            let more = wanted.max(block.len()).min(self.block - block.len());
            block.try_reserve_exact(more).map_err(no_memory)?;
        }
        Ok(block)
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
        let written = if self.position < self.length() {
            let (block, at) = (self.position / self.block as u64, self.position % self.block as u64);
            let there = &mut self.blocks[block as usize][at as usize..];
            let n = there.len().min(bytes.len());
            there[..n].copy_from_slice(&bytes[..n]);
            n
        } else {
            let block = self.room(bytes.len())?;
            let n = (block.capacity() - block.len()).min(bytes.len());
            block.extend_from_slice(&bytes[..n]);
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
            SeekFrom::Start(at) if at <= self.length() => {
                self.position = at;
                Ok(at)
            }
            // What nobody here asks for.
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
            assert!(f.blocks.iter().all(|b| b.capacity() <= block.max(1024)));
        }
        assert_eq!(MemoryFile::of(bytes.clone()).into_bytes(), bytes);
        assert_eq!(MemoryFile::new().length(), 0);
        assert!(MemoryFile::new().seek(SeekFrom::Start(1)).is_err());
    }
}
