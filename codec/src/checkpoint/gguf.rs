//! GGUF files: their tensors, with positions, and their weights as numbers.

use std::collections::{BTreeMap, HashSet};
use std::io::BufReader;
use std::path::Path;

use gguf_rs_lib::format::{GGUF_DEFAULT_ALIGNMENT, MetadataValue};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::file::InputFile;
use crate::foreign;
use crate::tensor::{AlignedBytes, Dtype};

mod blocks;
mod grids;
mod header;
mod iq;
mod k;
mod legacy;
mod small;
mod source;
mod values;

use header::{Header, MOST, damaged, parse, tensor, text, wrong};
pub use source::GgufSource;

/// A tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// The name of its type in GGUF: `F16`, `Q4_K`; `type 99` if this version does not know it.
    pub kind: String,
    /// The dtype, if elements are stored as numbers rather than as blocks.
    pub dtype: Option<Dtype>,
    /// Dimensions, outermost first, which is the reverse of how GGUF lists them.
    pub shape: Vec<usize>,
    /// Elements.
    pub elements: u64,
    /// Offset of its bytes from the start of the file.
    pub offset: u64,
    /// Length in bytes; 0 if the type is unknown.
    pub bytes: u64,
}

/// The header of a GGUF file. Opening reads it and nothing else.
///
/// ```no_run
/// # fn main() -> wcodec::Result<()> {
/// let file = wcodec::Gguf::open("model.gguf".as_ref())?;
/// for tensor in file.tensors() {
///     println!("{} {} {:?}", tensor.name, tensor.kind, tensor.shape);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gguf {
    file: InputFile,
    tensors: Vec<GgufTensor>,
    metadata: BTreeMap<String, String>,
    data: u64,
}

/// The first bytes of every GGUF file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

impl Gguf {
    /// Whether a file is a GGUF file, judged by its first bytes.
    pub fn is_one(path: &Path) -> bool {
        let read = |file: InputFile| file.read(0, MAGIC.len(), &Cancel::new());
        InputFile::open(path).and_then(read).is_ok_and(|bytes| bytes[..] == MAGIC[..])
    }

    /// Reads the header. A truncated file can be opened: [`missing`](Self::missing) has the number of bytes that a
    /// tensor lacks.
    ///
    /// # Errors
    /// The file cannot be read, or its header is damaged or of another version than 3; the message names the file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = InputFile::open(path)?;
        Self::read(file).map_err(|e| e.file(path))
    }

    fn read(file: InputFile) -> Result<Self> {
        let head = file.read(0, file.length().min(8) as usize, &Cancel::new())?;
        if foreign::is_big_endian_gguf(&head) {
            return Err(coded!(GGUF_BYTE_ORDER, "this is a big-endian GGUF file").advice(foreign::LITTLE_ENDIAN));
        }
        let mut header = Header { file: &file, at: 0, end: file.length().min(MOST), failed: None };
        let parsed = parse(&mut BufReader::with_capacity(PIECE, &mut header));
        if let Some(e) = header.failed {
            return Err(e);
        }
        let (length, entries, metadata) = parsed.map_err(|e| damaged(&e))?;
        let alignment = match metadata.get("general.alignment") {
            None => GGUF_DEFAULT_ALIGNMENT as u64,
            Some(MetadataValue::U32(n)) if n.is_power_of_two() => u64::from(*n),
            Some(_) => return Err(wrong("its alignment is no power of two")),
        };
        let data =
            length.checked_next_multiple_of(alignment).ok_or_else(|| wrong("its alignment is beyond the file"))?;
        let mut names = HashSet::new();
        let mut tensors = Vec::with_capacity(entries.len());
        for entry in entries {
            if !names.insert(entry.name.clone()) {
                return Err(wrong("two tensors have one name").tensor(&entry.name));
            }
            tensors.push(tensor(entry, data)?);
        }
        let metadata = metadata.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        Ok(Self { file, tensors, metadata, data })
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The file's metadata, each value as a short text.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The part number of a split file, from 1 on, and the number of parts.
    pub fn part(&self) -> Option<(u64, u64)> {
        let number = |key: &str| self.metadata.get(key)?.parse::<u64>().ok();
        let count = number("split.count").filter(|&count| count > 1)?;
        Some((number("split.no").unwrap_or(0).saturating_add(1), count))
    }

    /// Offset of the data from the start of the file, bytes.
    pub fn data_offset(&self) -> u64 {
        self.data
    }

    /// Length of the file, bytes.
    pub fn file_len(&self) -> u64 {
        self.file.length()
    }

    /// The number of a tensor's bytes that the file lacks, by index: 0 unless the file was truncated.
    pub fn missing(&self, index: usize) -> u64 {
        let t = &self.tensors[index];
        t.offset.saturating_add(t.bytes).saturating_sub(self.file.length()).min(t.bytes)
    }

    /// Some bytes of a tensor, by index, from `offset` within the tensor on.
    ///
    /// # Errors
    /// They are not in the tensor or not in the file, or `cancel` was used.
    pub fn read_part(&self, index: usize, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        let t = &self.tensors[index];
        if offset.checked_add(length as u64).is_none_or(|end| end > t.bytes) {
            return Err(coded!(INPUT_BUG, "{length} bytes from {offset} on are not in it").tensor(&t.name));
        }
        self.file.read(t.offset + offset, length, cancel).map_err(|e| e.tensor(&t.name))
    }
}
