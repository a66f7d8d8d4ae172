//! Decoding: a container becomes tensors again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use crate::coder::Isa;
use crate::coder::table::Table;
use crate::coder::{Coder, TILE_ROWS};
use crate::container::{Index, Reader, TensorEntry};
use crate::error::{Error, Result};
use crate::info::{TensorInfo, tensor_infos};
use crate::pool::Pool;
use crate::tensor::{AlignedBytes, Dtype};

mod checkpoint;
mod tensor;

pub use checkpoint::decode;

/// How to decode.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Threads; all cores where absent.
    pub threads: Option<usize>,
    /// Instruction set; the fastest where absent (see [`Isa::best`]).
    pub isa: Option<Isa>,
    /// Whether to compare hashes. Without, damage is found only where it breaks a stream.
    pub verify: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { threads: None, isa: None, verify: true }
    }
}

impl DecodeOptions {
    fn isa(&self) -> Result<Isa> {
        self.isa.map_or_else(Isa::best, Isa::require)
    }
}

/// A chunk of a tensor: what can be decoded by itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ChunkInfo {
    /// Its number.
    pub index: usize,
    /// The matrix it is in, for tiles.
    pub matrix: usize,
    /// Rows of the matrix that it touches.
    pub rows: Range<usize>,
    /// Columns of the matrix that it touches; all of them where it holds more than one row without being a tile.
    pub cols: Range<usize>,
    /// Where it begins, bytes from the start of the file.
    pub offset: u64,
    /// Stored bytes.
    pub length: u64,
    /// Decoded bytes, padding excluded.
    pub decoded: u64,
}

/// An open container. Opening reads header and index only.
///
/// Shared by threads; each call reads what it needs.
#[derive(Debug)]
pub struct Container {
    reader: Reader,
    /// Tables that were read and checked already.
    tables: Mutex<HashMap<usize, std::sync::Arc<Table>>>,
    infos: OnceLock<Vec<TensorInfo>>,
}

impl Container {
    /// Opens a file.
    ///
    /// # Errors
    /// It is not a container, damaged, or of a newer version; the message names the file and the place.
    pub fn open(path: &Path) -> Result<Self> {
        Reader::open(path).map(Self::new)
    }

    /// Opens a container in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Reader::from_bytes(bytes).map(Self::new)
    }

    fn new(reader: Reader) -> Self {
        Self { reader, tables: Mutex::default(), infos: OnceLock::new() }
    }

    fn index(&self) -> &Index {
        self.reader.index()
    }

    /// The container beneath: header, index, segments.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Names of the stored tensors, in file order.
    pub fn names(&self) -> Vec<&str> {
        self.index().tensors.iter().map(|t| t.name.as_str()).collect()
    }

    /// Tied tensors and the ones that hold their data.
    pub fn aliases(&self) -> &BTreeMap<String, String> {
        &self.index().aliases
    }

    /// The name under which the data of `name` is stored: itself, or what it is an alias of.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn resolve(&self, name: &str) -> Result<&str> {
        Ok(&self.reader.tensor(name)?.name)
    }

    /// What the index says of a tensor.
    ///
    /// # Errors
    /// There is no such tensor, or its dtype is unknown.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let place = self.reader.place(name)?;
        Ok(self.all_infos()?[place].clone())
    }

    /// What the index says of all tensors.
    pub fn infos(&self) -> Result<Vec<TensorInfo>> {
        self.all_infos().map(<[TensorInfo]>::to_vec)
    }

    fn all_infos(&self) -> Result<&[TensorInfo]> {
        if let Some(infos) = self.infos.get() {
            return Ok(infos);
        }
        let infos = tensor_infos(self.index()).map_err(|e| self.reader.name(e))?;
        Ok(self.infos.get_or_init(|| infos))
    }

    /// Text that belongs to the whole.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.index().metadata
    }

    /// `config` and `files` of the model, where the source had them.
    pub fn model(&self) -> Option<&serde_json::Value> {
        self.index().model.as_ref()
    }

    /// The index as stored.
    pub fn index_json(&self) -> Result<String> {
        self.reader.index_json()
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.reader.header().file_length
    }

    /// Path of the file; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        self.reader.path()
    }

    /// Major and minor version of the format.
    pub fn version(&self) -> (u16, u16) {
        self.reader.header().version
    }

    /// The program that wrote it.
    pub fn writer(&self) -> &str {
        &self.index().writer
    }

    /// Symbols of a tensor, matrix after matrix, row-major: scheme `int8`, or `raw` where elements have 8 bits.
    ///
    /// # Errors
    /// The tensor has no symbols, or is damaged.
    pub fn symbols(&self, name: &str, options: &DecodeOptions) -> Result<Vec<i8>> {
        self.with_tensor(name, |t| {
            let opened = self.open_tensor(t, options)?;
            if t.scheme != "int8" && opened.dtype.size() != 1 {
                return Err(Error::input(format!("a {} tensor of scheme {} has no symbols", t.dtype, t.scheme))
                    .advice("read its values"));
            }
            Pool::new(options.threads)?.run(|| opened.symbols(options))
        })
    }

    /// Scales of a tensor of scheme `int8`: one per row, block or tensor.
    ///
    /// # Errors
    /// The tensor has no scales, or they are damaged.
    pub fn scales(&self, name: &str) -> Result<Vec<f32>> {
        self.with_tensor(name, |t| match self.read_scales(t, true)? {
            Some((_, scales)) => Ok(scales),
            None => Err(Error::input(format!("a tensor of scheme {} has no scales", t.scheme))),
        })
    }

    /// The tensor in its own dtype and shape, row-major little-endian; dequantized where it was quantized.
    ///
    /// # Errors
    /// The tensor is damaged.
    pub fn read(&self, name: &str, options: &DecodeOptions) -> Result<AlignedBytes> {
        self.with_tensor(name, |t| self.read_entry(t, Dtype::from_name(&t.dtype)?, options))
    }

    /// The tensor as another dtype: `F32`, `F16` or `BF16` for scheme `int8`.
    ///
    /// # Errors
    /// The tensor cannot be had as `dtype`, or is damaged.
    pub fn read_as(&self, name: &str, dtype: Dtype, options: &DecodeOptions) -> Result<AlignedBytes> {
        self.with_tensor(name, |t| self.read_entry(t, dtype, options))
    }

    /// Where a chunk lies and what it holds.
    pub fn chunk(&self, name: &str, index: usize) -> Result<ChunkInfo> {
        self.with_tensor(name, |t| {
            let opened = self.open_tensor(t, &DecodeOptions { isa: Some(Isa::Scalar), ..Default::default() })?;
            let plane = opened.plane()?;
            check_chunk(index, plane.chunks())?;
            let bytes = plane.chunk_bytes(index);
            let (_, rows, cols) = opened.matrix;
            let (matrix, rows, cols, decoded) = match plane.geometry() {
                Some(g) => {
                    let p = g.position(index);
                    let (m, s) = (p.strip / g.strips_per_matrix(), p.strip % g.strips_per_matrix());
                    let r = s * TILE_ROWS..((s + 1) * TILE_ROWS).min(rows);
                    let c = p.col..(p.col + p.width).min(cols);
                    let n = r.len() * c.len();
                    (m, r, c, n)
                }
                None => {
                    let run = if opened.coder == Coder::Raw { 0..opened.elements } else { plane.piece(index) };
                    let (first, last) = (run.start / cols.max(1), run.end.div_ceil(cols.max(1)));
                    let c = if last - first <= 1 { run.start - first * cols..run.end - first * cols } else { 0..cols };
                    (0, first..last, c, run.len())
                }
            };
            Ok(ChunkInfo {
                index,
                matrix,
                rows,
                cols,
                offset: t.planes[0].data.offset + bytes.start as u64,
                length: bytes.len() as u64,
                decoded: decoded as u64,
            })
        })
    }

    /// Decodes one chunk: its symbols (or bytes) without padding, row-major within the chunk.
    ///
    /// A tile is decoded with its strip.
    pub fn read_chunk(&self, name: &str, index: usize, options: &DecodeOptions) -> Result<Vec<i8>> {
        let info = self.chunk(name, index)?;
        self.with_tensor(name, |t| {
            let opened = self.open_tensor(t, options)?;
            let plane = opened.plane()?;
            let piece = |i: usize| -> Result<Vec<i8>> {
                let mut out = crate::tensor::try_vec(plane.piece(i).len())?;
                plane.decode_piece(i, &mut out, &mut Default::default())?;
                Ok(out)
            };
            match plane.geometry() {
                Some(g) => {
                    let strip = piece(index / g.tiles())?;
                    Ok(strip.chunks_exact(g.cols()).flat_map(|row| &row[info.cols.clone()]).copied().collect())
                }
                None if opened.coder == Coder::Raw => opened.symbols(options),
                None => piece(index),
            }
        })
    }

    fn with_tensor<R>(&self, name: &str, work: impl FnOnce(&TensorEntry) -> Result<R>) -> Result<R> {
        let tensor = self.reader.tensor(name)?;
        work(tensor).map_err(|e| self.reader.name(e.tensor(name)))
    }

    /// Table `number`, read once.
    fn table(&self, number: usize, verify: bool) -> Result<std::sync::Arc<Table>> {
        let mut tables = self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(t) = tables.get(&number) {
            return Ok(t.clone());
        }
        let entry = &self.index().tables[number];
        let bytes = self.reader.segment(&entry.data, verify)?;
        let table = Table::from_bytes(Coder::from_name(&entry.coder)?, entry.bits, &bytes)
            .map_err(|e| e.offset(entry.data.offset))?;
        let table = std::sync::Arc::new(table);
        tables.insert(number, table.clone());
        Ok(table)
    }
}

fn check_chunk(index: usize, chunks: usize) -> Result<()> {
    if index < chunks {
        return Ok(());
    }
    Err(Error::input(format!("no chunk {index}: the tensor has {chunks}")))
}
