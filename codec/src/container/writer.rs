//! Writes containers, front to back.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::hash::{Hash, hash};
use super::header::{HEADER_BYTES, Header};
use super::index::{Index, TableEntry, TensorEntry};
use super::memory::{Bytes, Sink};
use super::segment::{SMALL_ALIGN, Segment, align_up, place};
use crate::error::{Error, Result};
use crate::file::NamedWriter;

/// Writes segments as they come, then the index, and the header last: an interrupted file has an empty header and is
/// refused.
pub struct Writer<W: Write + Seek> {
    out: NamedWriter<W>,
    path: std::path::PathBuf,
    index: Index,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a container in `out`, which must be empty; `path` is its name in errors.
    pub fn new(out: W, path: &Path) -> Result<Self> {
        let mut out = NamedWriter::new(out, path);
        out.write(&[0; HEADER_BYTES])?;
        Ok(Self { out, path: path.to_owned(), index: Index::new() })
    }

    /// Appends a segment.
    pub fn segment(&mut self, bytes: &[u8]) -> Result<Segment> {
        let length = bytes.len() as u64;
        let offset = place(self.out.written(), length).ok_or_else(too_large)?;
        if length > 0 {
            self.pad_to(offset)?;
            self.out.write(bytes)?;
        }
        Ok(Segment { offset, length, hash: hash(bytes) })
    }

    /// Appends a segment whose hash is known, taking ownership of its bytes.
    pub(crate) fn owned_segment(&mut self, bytes: Bytes, hash: Hash) -> Result<Segment>
    where
        W: Sink,
    {
        let length = bytes.len() as u64;
        let offset = place(self.out.written(), length).ok_or_else(too_large)?;
        if length > 0 {
            self.pad_to(offset)?;
            self.out.take(length, |out| out.take(bytes))?;
        }
        Ok(Segment { offset, length, hash })
    }

    /// Appends a table, which may be for planes of one layout only, and returns its number.
    pub fn table(&mut self, coder: &str, layout: Option<&str>, bits: u32, bytes: &[u8]) -> Result<usize> {
        let data = self.segment(bytes)?;
        let layout = layout.map(Into::into);
        self.index.tables.push(TableEntry { coder: coder.into(), layout, bits, data });
        Ok(self.index.tables.len() - 1)
    }

    /// Adds a tensor whose segments have been written.
    pub fn tensor(&mut self, entry: TensorEntry) {
        self.index.tensors.push(entry);
    }

    /// The index so far; metadata and aliases are set here.
    pub fn index(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Writes index and header; returns the index, the length of the file and its writer.
    pub fn finish(mut self) -> Result<(Index, u64, W)> {
        let json = serde_json::to_vec(&self.index).map_err(|e| coded!(BAD_TEXT, "metadata cannot be written: {e}"))?;
        let index = std::mem::take(&mut self.index);
        let (file_length, out) = self.close(index.version(), &json)?;
        Ok((index, file_length, out))
    }

    /// Writes `json` in place of the index, all of whose content it must repeat, and the header of a file of `version`;
    /// returns the writer of the file.
    pub(crate) fn finish_with(self, version: (u16, u16), json: &[u8]) -> Result<W> {
        self.close(version, json).map(|(_, out)| out)
    }

    fn close(mut self, version: (u16, u16), json: &[u8]) -> Result<(u64, W)> {
        let index_offset = align_up(self.out.written(), SMALL_ALIGN).ok_or_else(too_large)?;
        self.pad_to(index_offset)?;
        self.out.write(json)?;
        let Hash(index_hash) = hash(json);
        let file_length = self.out.written();
        let header = Header { version, index_offset, index_length: json.len() as u64, index_hash, file_length };
        let mut out = self.out.into_inner()?;
        out.seek(SeekFrom::Start(0))
            .and_then(|_| out.write_all(&header.to_bytes()))
            .and_then(|()| out.flush())
            .map_err(|e| Error::io("write the header", &self.path, e))?;
        Ok((file_length, out))
    }

    fn pad_to(&mut self, offset: u64) -> Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.out.write(&ZEROS[..(offset - self.out.written()) as usize])
    }
}

fn too_large() -> Error {
    coded!(TOO_LARGE, "the container would be larger than 2^64 bytes")
}
