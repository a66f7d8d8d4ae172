//! Files that are no containers: checkpoints and GGUF files, of which the headers are read.

use std::collections::BTreeMap;
use std::path::Path;

use wcodec::container::Hash;
use wcodec::{AlignedBytes, Cancel, Checkpoint, Code, Dtype, Gguf, Result, SegmentInfo, Source, TensorInfo};

/// Such a file.
#[derive(Debug)]
pub enum Original {
    /// A `.safetensors` file, or a folder of them.
    Checkpoint(Checkpoint),
    /// A GGUF file.
    Gguf(Gguf),
}

impl Original {
    /// Whether a path is taken for one: a folder of a checkpoint that is no compressed model, or a file that ends or begins as they do.
    pub fn is_one(path: &Path) -> bool {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match ending.as_str() {
            "wcodec" => false,
            "safetensors" | "gguf" => true,
            // A folder with a container is that container, with what is not compressed beside it.
            _ if path.is_dir() => wcodec::Container::open(path).is_err() && Checkpoint::open_cut(path).is_ok(),
            _ => Gguf::is_one(path),
        }
    }

    /// Reads the headers.
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_file() && Gguf::is_one(path) {
            return Gguf::open(path).map(Self::Gguf);
        }
        Checkpoint::open_cut(path).map(Self::Checkpoint)
    }

    /// Its format.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Checkpoint(_) => "safetensors",
            Self::Gguf(_) => "GGUF",
        }
    }

    /// Its format, and the part of it where it was split.
    pub fn described(&self) -> String {
        let part = if let Self::Gguf(file) = self { file.part() } else { None };
        match part {
            Some((part, count)) => format!("{}, part {part} of {count}: other tensors are in the others", self.kind()),
            None => self.kind().to_owned(),
        }
    }

    /// Bytes of its files.
    pub fn file_bytes(&self) -> u64 {
        match self {
            Self::Checkpoint(c) => c.file_bytes(),
            Self::Gguf(g) => g.file_len(),
        }
    }

    /// Text that belongs to the whole.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        match self {
            Self::Checkpoint(c) => c.metadata(),
            Self::Gguf(g) => g.metadata().clone(),
        }
    }

    /// The number of a tensor's bytes that are missing because the file was cut off.
    pub fn missing(&self, tensor: usize) -> u64 {
        match self {
            Self::Checkpoint(c) => c.missing(tensor),
            Self::Gguf(g) => g.missing(tensor),
        }
    }

    /// Some bytes of a tensor.
    ///
    /// # Errors
    /// They are not there, or `cancel` was used.
    pub fn read_part(&self, tensor: usize, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        match self {
            Self::Checkpoint(c) => c.read_part(tensor, offset, length, cancel),
            Self::Gguf(g) => g.read_part(tensor, offset, length, cancel),
        }
    }

    /// Its tensors in the form of those of containers, stored as they are. Blocks of GGUF's own types are bytes, whose scheme is the type.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn infos(&self) -> Result<Vec<TensorInfo>> {
        match self {
            Self::Checkpoint(c) => {
                let info = |(i, t): (usize, &wcodec::SourceTensor)| {
                    let (offset, bytes) = c.range_of(i);
                    info(&t.name, t.dtype, "raw", &t.shape, elements(&t.shape), offset, bytes)
                };
                Ok(c.tensors().iter().enumerate().map(info).collect())
            }
            Self::Gguf(g) => {
                let info = |t: &wcodec::GgufTensor| {
                    let (dtype, scheme) = t.dtype.map_or((Dtype::U8, t.kind.as_str()), |d| (d, "raw"));
                    info(&t.name, dtype, scheme, &t.shape, t.elements, t.offset, t.bytes)
                };
                Ok(g.tensors().iter().map(info).collect())
            }
        }
    }

    /// The checkpoint, if that is what it is and nothing of it is missing.
    ///
    /// # Errors
    /// It cannot be encoded, and why.
    pub fn checkpoint(&self) -> Result<&Checkpoint> {
        match self {
            Self::Gguf(_) => Err(Code::GGUF_EXPORT
                .error("GGUF files are looked at, not encoded")
                .advice("run wcodec encode FILE.gguf -o OUT/, or better, encode the checkpoint that it was made from")),
            Self::Checkpoint(c) => match (0..c.tensors().len()).find(|&i| c.missing(i) > 0) {
                Some(i) => Err(Code::FILE_LENGTH
                    .error(format!("{} bytes of it are missing", c.missing(i)))
                    .tensor(&c.tensors()[i].name)
                    .advice("the file was cut off: download it again")),
                None => Ok(c),
            },
        }
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64))
}

/// A tensor that is stored as it is.
fn info(name: &str, dtype: Dtype, scheme: &str, shape: &[usize], elements: u64, offset: u64, bytes: u64) -> TensorInfo {
    let segments = vec![SegmentInfo { role: "data", offset, length: bytes, hash: Hash(0) }];
    TensorInfo {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        scheme: scheme.into(),
        makes_symbols: false,
        scales: None,
        columns: false,
        planes: Vec::new(),
        count: 1,
        rows: shape.first().copied().unwrap_or(1),
        cols: shape.iter().skip(1).fold(1usize, |n, &d| n.saturating_mul(d)),
        row_axis: 0,
        cut: 0,
        elements,
        original_bytes: bytes,
        stored_bytes: bytes,
        entropy: None,
        error: None,
        segments,
    }
}
