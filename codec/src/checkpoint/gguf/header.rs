//! The header of a GGUF file: tensors and metadata.

use std::io::Read;

use gguf_rs_lib::GGUFError;
use gguf_rs_lib::format::{GGUF_MAX_DIMENSIONS, GGUFHeader, GGUFTensorType, Metadata, MetadataValue};

use super::GgufTensor;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::InputFile;
use crate::tensor::Dtype;

/// The most bytes of a header that are read: real ones have some MB, for the tokenizer's vocabulary.
pub(super) const MOST: u64 = 64 << 20;
/// Bytes that decoded metadata may take.
const MOST_DECODED: usize = 256 << 20;
/// Characters of a metadata value that are kept.
pub(super) const LONGEST: usize = 300;

/// The header's length, its tensors and its metadata.
pub(super) fn parse(reader: &mut impl Read) -> std::result::Result<(u64, Vec<Entry>, Metadata), GGUFError> {
    let mut counted = Counted { reader, bytes: 0 };
    let header = GGUFHeader::read_from(&mut counted)?;
    header.validate_comprehensive()?;
    let count = header.metadata_kv_count;
    let metadata = Metadata::read_from_with_limits(&mut counted, count, MOST as usize, MOST_DECODED)?;
    // No capacity is reserved by the file's counts: memory grows only after each entry was read.
    let mut entries = Vec::new();
    for _ in 0..header.tensor_count {
        entries.push(Entry::read(&mut counted)?);
    }
    Ok((counted.bytes, entries, metadata))
}

/// A tensor's entry in the header. The library's own type refuses unknown types and long names.
pub(super) struct Entry {
    pub name: String,
    /// Innermost first.
    dimensions: Vec<u64>,
    kind: u32,
    /// Offset from the start of the data.
    offset: u64,
}

/// The longest name, bytes.
const LONGEST_NAME: u64 = 4096;

impl Entry {
    fn read(reader: &mut impl Read) -> std::result::Result<Self, GGUFError> {
        let length = number::<8>(reader)?;
        if length > LONGEST_NAME {
            return Err(GGUFError::Format(format!("a name of {length} bytes")));
        }
        let mut name = vec![0; length as usize];
        reader.read_exact(&mut name)?;
        let name = String::from_utf8(name).map_err(|_| GGUFError::Format("a name is no UTF-8".to_owned()))?;
        let count = number::<4>(reader)?;
        if count > GGUF_MAX_DIMENSIONS as u64 {
            return Err(GGUFError::Format(format!("a tensor of {count} dimensions")));
        }
        let dimensions = (0..count).map(|_| number::<8>(reader)).collect::<std::result::Result<_, _>>()?;
        Ok(Self { name, dimensions, kind: number::<4>(reader)? as u32, offset: number::<8>(reader)? })
    }

    /// The number of elements, if it does not overflow.
    fn elements(&self) -> Option<u64> {
        if self.dimensions.contains(&0) {
            return Some(0);
        }
        self.dimensions.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
    }
}

/// A little-endian number of `BYTES` bytes, at most 8.
fn number<const BYTES: usize>(reader: &mut impl Read) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes[..BYTES])?;
    Ok(u64::from_le_bytes(bytes))
}

/// A tensor from its entry, with the offset counted from the start of the file.
pub(super) fn tensor(entry: Entry, data: u64) -> Result<GgufTensor> {
    let of = |e: Error| e.tensor(&entry.name);
    let elements = entry.elements().ok_or_else(|| of(wrong("it has more elements than can be counted")))?;
    let offset = data.checked_add(entry.offset).ok_or_else(|| of(wrong("it begins beyond all files")))?;
    let shape = entry.dimensions.iter().rev().map(|&n| usize::try_from(n));
    let shape = shape.collect::<std::result::Result<Vec<_>, _>>().map_err(|_| of(wrong("its shape is too large")))?;
    let (kind, bytes) = match GGUFTensorType::from_u32(entry.kind) {
        // Rows of blocks: rows that are not a multiple of blocks have no size, because no block continues in the next
        // row.
        Ok(kind) => {
            let (row, block) = (shape.last().map_or(1, |&n| n as u64), kind.block_size() as u64);
            match kind.checked_calculate_size(elements) {
                Some(bytes) if block > 0 && (row % block == 0 || elements == 0) => (kind.name().to_owned(), bytes),
                _ => {
                    let what = format!("rows of {row} elements of type {} are no whole blocks", kind.name());
                    return Err(of(wrong(&what)));
                }
            }
        }
        Err(_) => (format!("type {}", entry.kind), 0),
    };
    if offset.checked_add(bytes).is_none() {
        return Err(of(wrong("it ends beyond all files")));
    }
    Ok(GgufTensor { dtype: Dtype::from_name(&kind).ok(), name: entry.name, kind, shape, elements, offset, bytes })
}

/// A value as a short text: for a list, its length.
pub(super) fn text(value: &MetadataValue) -> String {
    let text = match value {
        MetadataValue::String(text) => text.clone(),
        MetadataValue::Array(list) => format!("list of {}", list.len()),
        MetadataValue::U8(n) => n.to_string(),
        MetadataValue::I8(n) => n.to_string(),
        MetadataValue::U16(n) => n.to_string(),
        MetadataValue::I16(n) => n.to_string(),
        MetadataValue::U32(n) => n.to_string(),
        MetadataValue::I32(n) => n.to_string(),
        MetadataValue::U64(n) => n.to_string(),
        MetadataValue::I64(n) => n.to_string(),
        MetadataValue::F32(n) => n.to_string(),
        MetadataValue::F64(n) => n.to_string(),
        MetadataValue::Bool(is) => is.to_string(),
    };
    text.chars().take(LONGEST).collect()
}

pub(super) fn wrong(what: &str) -> Error {
    coded!(BAD_GGUF, "the GGUF header is damaged: {what}").advice("download the file again")
}

pub(super) fn damaged(e: &GGUFError) -> Error {
    match e {
        GGUFError::UnsupportedVersion(version) => coded!(GGUF_VERSION, "GGUF files of version {version}")
            .advice("convert the model again with a current llama.cpp: it writes version 3"),
        GGUFError::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            coded!(FILE_LENGTH, "the file ends within the GGUF header").advice("it was cut off: download it again")
        }
        e => wrong(&e.to_string()),
    }
}

/// The beginning of a file, as a stream.
pub(super) struct Header<'a> {
    pub file: &'a InputFile,
    pub at: u64,
    pub end: u64,
    /// The operating system's error, which is not a fault of the header.
    pub failed: Option<Error>,
}

impl Read for Header<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = (self.end - self.at).min(out.len() as u64) as usize;
        match self.file.read(self.at, n, &Cancel::new()) {
            Ok(bytes) => out[..n].copy_from_slice(&bytes),
            Err(e) => {
                self.failed = Some(e);
                return Err(std::io::ErrorKind::Other.into());
            }
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// Counts the bytes that are read.
struct Counted<'a, R> {
    reader: &'a mut R,
    bytes: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(out)?;
        self.bytes += n as u64;
        Ok(n)
    }
}
