//! Headers of GGUF files: what tensors there are and where. Their blocks of quantized weights are not decoded.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufReader, Read};
use std::path::Path;

use gguf_rs_lib::GGUFError;
use gguf_rs_lib::format::{
    GGUF_DEFAULT_ALIGNMENT, GGUF_MAX_DIMENSIONS, GGUFHeader, GGUFTensorType, Metadata, MetadataValue,
};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::InputFile;
use crate::foreign;
use crate::tensor::{AlignedBytes, Dtype};

/// A tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// What GGUF calls its type: `F16`, `Q4_K`; `type 99` where this version does not know it.
    pub kind: String,
    /// The dtype, where elements are stored as numbers and not as blocks.
    pub dtype: Option<Dtype>,
    /// Dimensions, outermost first, which is the reverse of how GGUF lists them.
    pub shape: Vec<usize>,
    /// Elements.
    pub elements: u64,
    /// Where its bytes begin, from the start of the file.
    pub offset: u64,
    /// Its bytes; 0 where the type is not known.
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
/// Bytes of the header that are read at most: real ones have some MB, of the tokenizer's words.
const MOST: u64 = 64 << 20;
/// Bytes that decoded metadata may take.
const MOST_DECODED: usize = 256 << 20;
/// Characters of a metadata value that are kept.
const LONGEST: usize = 300;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

impl Gguf {
    /// Whether a file says that it is one, by its first bytes.
    pub fn is_one(path: &Path) -> bool {
        let read = |file: InputFile| file.read(0, MAGIC.len(), &Cancel::new());
        InputFile::open(path).and_then(read).is_ok_and(|bytes| bytes[..] == MAGIC[..])
    }

    /// Reads the header. A file whose data were cut off opens: [`missing`](Self::missing) says what a tensor lacks.
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
            return Err(Error::unsupported("this is a big-endian GGUF file").advice(foreign::LITTLE_ENDIAN));
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

    /// What the file says of itself, each value as a short text.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Which part of a split file it is, from 1 on, and of how many.
    pub fn part(&self) -> Option<(u64, u64)> {
        let number = |key: &str| self.metadata.get(key)?.parse::<u64>().ok();
        let count = number("split.count").filter(|&count| count > 1)?;
        Some((number("split.no").unwrap_or(0).saturating_add(1), count))
    }

    /// Where the data begin, bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.file.length()
    }

    /// How many of a tensor's bytes the file lacks, by its place: 0 unless it was cut off.
    pub fn missing(&self, index: usize) -> u64 {
        let t = &self.tensors[index];
        t.offset.saturating_add(t.bytes).saturating_sub(self.file.length()).min(t.bytes)
    }

    /// Some bytes of a tensor, by its place and from so many bytes behind its beginning on.
    ///
    /// # Errors
    /// They are not in the tensor or not in the file, or `cancel` was used.
    pub fn read_part(&self, index: usize, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        let t = &self.tensors[index];
        if offset.checked_add(length as u64).is_none_or(|end| end > t.bytes) {
            return Err(Error::input(format!("{length} bytes from {offset} on are not in it")).tensor(&t.name));
        }
        self.file.read(t.offset + offset, length, cancel).map_err(|e| e.tensor(&t.name))
    }
}

/// The header's length, its tensors and its metadata.
fn parse(reader: &mut impl Read) -> std::result::Result<(u64, Vec<Entry>, Metadata), GGUFError> {
    let mut counted = Counted { reader, bytes: 0 };
    let header = GGUFHeader::read_from(&mut counted)?;
    header.validate_comprehensive()?;
    let count = header.metadata_kv_count;
    let metadata = Metadata::read_from_with_limits(&mut counted, count, MOST as usize, MOST_DECODED)?;
    // No capacity by what the file says: each entry was read before there is room for it.
    let mut entries = Vec::new();
    for _ in 0..header.tensor_count {
        entries.push(Entry::read(&mut counted)?);
    }
    Ok((counted.bytes, entries, metadata))
}

/// A tensor as the header has it. The library's own refuses types that it does not know, and long names.
struct Entry {
    name: String,
    /// Innermost first.
    dimensions: Vec<u64>,
    kind: u32,
    /// From where the data begin.
    offset: u64,
}

/// Bytes of a name at most.
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

    /// Elements, if they can be counted.
    fn elements(&self) -> Option<u64> {
        if self.dimensions.contains(&0) {
            return Some(0);
        }
        self.dimensions.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
    }
}

/// A little-endian number of so many bytes, 8 at most.
fn number<const BYTES: usize>(reader: &mut impl Read) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes[..BYTES])?;
    Ok(u64::from_le_bytes(bytes))
}

/// A tensor as the header has it, its offset counted from the start of the file.
fn tensor(entry: Entry, data: u64) -> Result<GgufTensor> {
    let of = |e: Error| e.tensor(&entry.name);
    let elements = entry.elements().ok_or_else(|| of(wrong("it has more elements than can be counted")))?;
    let offset = data.checked_add(entry.offset).ok_or_else(|| of(wrong("it begins beyond all files")))?;
    let shape = entry.dimensions.iter().rev().map(|&n| usize::try_from(n));
    let shape = shape.collect::<std::result::Result<Vec<_>, _>>().map_err(|_| of(wrong("its shape is too large")))?;
    let (kind, bytes) = match GGUFTensorType::from_u32(entry.kind) {
        // Rows of blocks: what is no multiple of them has no size.
        Ok(kind) => match kind.checked_calculate_size(elements) {
            Some(bytes) => (kind.name().to_owned(), bytes),
            None => return Err(of(wrong(&format!("{elements} elements of type {} are no whole blocks", kind.name())))),
        },
        Err(_) => (format!("type {}", entry.kind), 0),
    };
    if offset.checked_add(bytes).is_none() {
        return Err(of(wrong("it ends beyond all files")));
    }
    Ok(GgufTensor { dtype: Dtype::from_name(&kind).ok(), name: entry.name, kind, shape, elements, offset, bytes })
}

/// A value as a short text: of lists how many there are.
fn text(value: &MetadataValue) -> String {
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

fn wrong(what: &str) -> Error {
    Error::format(format!("the GGUF header is damaged: {what}")).advice("download the file again")
}

fn damaged(e: &GGUFError) -> Error {
    match e {
        GGUFError::UnsupportedVersion(version) => Error::unsupported(format!("GGUF files of version {version}"))
            .advice("convert the model again with a current llama.cpp: it writes version 3"),
        GGUFError::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Error::corrupt("the file ends within the GGUF header").advice("it was cut off: download it again")
        }
        e => wrong(&e.to_string()),
    }
}

/// The beginning of a file as a stream.
struct Header<'a> {
    file: &'a InputFile,
    at: u64,
    end: u64,
    /// What the operating system said, which is no fault of the header.
    failed: Option<Error>,
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

/// Counts what is read.
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
