//! The index's description of a tensor, in a form for people and programs.

use std::sync::Arc;

use compact_str::{CompactString, ToCompactString};
use rayon::prelude::*;
use serde::Serialize;

use crate::coder::{Coder, TILE_ROWS};
use crate::container::{Hash, Index, OPAQUE, PlaneEntry, Segment, TensorEntry};
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::int8::Granularity;
use crate::scheme::{COLUMNS, SchemeKind};
use crate::tensor::{Dtype, element_count};

/// One stored byte range of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentInfo {
    /// `scales`, `offsets`, `data`, `side` or `table`.
    pub role: &'static str,
    /// Offset from the start of the file, bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// XXH3-64; serialized as 16 hexadecimal digits.
    pub hash: Hash,
}

/// A plane of a tensor: an array that is stored by itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaneInfo {
    /// The bits that it holds of each element (of each symbol, if the scheme makes symbols), the most significant
    /// first: runs, each as its lowest bit and its width. `None` if this version does not know the scheme.
    pub bits: Option<Vec<[u32; 2]>>,
    /// `rans`, `huffman`, `zstd` or `raw`.
    pub coder: CompactString,
    /// `byte` or `pair`, for `rans` and `huffman`.
    pub layout: Option<CompactString>,
    /// Uncoded low bits of layout `pair`.
    pub shift: Option<u32>,
    /// `none`, `left`, `up` or `trellis`.
    pub filter: CompactString,
    /// Width of a tile in columns, for `rans` and `huffman`.
    pub tile: Option<usize>,
    /// Decoded bytes of a frame, for `zstd`.
    pub frame: Option<usize>,
    /// Chunks that can be decoded independently.
    pub chunks: usize,
}

/// A tensor in a container.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Element type of the source.
    #[serde(serialize_with = "name_of")]
    pub dtype: Dtype,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// `int8`, `rate`, `lossless` or `raw`.
    pub scheme: CompactString,
    /// Whether the scheme stores symbols that are converted to values, and is known to this version; otherwise the
    /// elements are stored.
    pub makes_symbols: bool,
    /// `row`, `tensor` or `block 128`, for `int8`.
    pub scales: Option<CompactString>,
    /// Whether columns have factors, too, by which values are multiplied: in scheme `rate`.
    pub columns: bool,
    /// The planes that store its elements, or the symbols that the scheme makes of them.
    pub planes: Vec<PlaneInfo>,
    /// Matrices.
    pub count: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
    /// The axis of the tensor that is the row.
    pub row_axis: usize,
    /// The granularity, in entries of the first dimension, of partial decoding: rows can be decoded from any multiple
    /// of it up to another multiple or the end. 16 for the rows of matrices, 1 for stacks of matrices; 0 if the tensor
    /// can only be decoded as a whole, as transposed matrices.
    pub cut: usize,
    /// Elements.
    pub elements: u64,
    /// Bytes in the source.
    pub original_bytes: u64,
    /// Bytes of all its segments, and of its table if no earlier tensor uses that.
    pub stored_bytes: u64,
    /// Order-0 entropy of coded parts plus all bits of uncoded ones, in bits, for `int8`, `rate` and `lossless`.
    pub entropy: Option<f64>,
    /// RMS of decoded - source, divided by the RMS of the source, for `rate`, as measured by the writer.
    pub error: Option<f64>,
    /// The positions of its bytes.
    pub segments: Vec<SegmentInfo>,
}

fn name_of<S: serde::Serializer>(dtype: &Dtype, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

impl TensorInfo {
    /// The coder of the first plane.
    pub fn coder(&self) -> &str {
        self.planes.first().map_or("", |p| p.coder.as_str())
    }

    /// The layout of the first plane.
    pub fn layout(&self) -> Option<&str> {
        self.planes.first()?.layout.as_deref()
    }

    /// Chunks of all planes.
    pub fn chunks(&self) -> usize {
        self.planes.iter().fold(0, |n, p| n.saturating_add(p.chunks))
    }

    /// Whether it has symbols: those of the scheme, or 8-bit elements.
    pub fn has_symbols(&self) -> bool {
        self.makes_symbols || self.dtype.size() == 1
    }

    /// Original bytes / stored bytes: larger is better.
    pub fn ratio(&self) -> f64 {
        if self.stored_bytes == 0 { 1.0 } else { self.original_bytes as f64 / self.stored_bytes as f64 }
    }

    /// 8 x stored bytes / elements.
    pub fn bits_per_weight(&self) -> f64 {
        if self.elements == 0 { 0.0 } else { 8.0 * self.stored_bytes as f64 / self.elements as f64 }
    }
}

/// Groups of keys that only some coders use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Tiles,
    Frames,
    Filter,
    Chunks,
}

/// Whether the plane's coder uses these keys: an index may contain others, which have no meaning. For an unknown coder,
/// all may matter.
fn uses(plane: &PlaneEntry, keys: Use) -> bool {
    match Coder::from_name(&plane.coder) {
        Ok(Coder::Raw) => false,
        Ok(Coder::Zstd) => keys != Use::Tiles,
        Ok(Coder::Rans | Coder::Huffman) => keys != Use::Frames,
        Err(_) => true,
    }
}

/// See [`TensorInfo::cut`].
fn cut(t: &TensorEntry) -> usize {
    let entries = t.shape.first().copied().unwrap_or(0);
    // Tensors without a matrix view are cut like a single matrix.
    let (rows, per_matrix, transposed) = match t.matrix {
        Some(m) => (m.count.saturating_mul(m.rows), m.rows, m.row_axis != 0),
        None => (entries, entries, false),
    };
    if transposed || entries == 0 || rows == 0 || !rows.is_multiple_of(entries) {
        return 0;
    }
    match rows / entries {
        // An entry is one or several whole matrices.
        n if n.is_multiple_of(per_matrix) => 1,
        // An entry is some rows of a matrix, and each matrix has whole entries.
        n if per_matrix.is_multiple_of(n) => TILE_ROWS / gcd(TILE_ROWS, n),
        _ => 0,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The number of tensors from which on several threads describe them.
const MANY: usize = 4096;

/// The index's descriptions of its tensors, by index in file order. Each is made on demand: for a hundred thousand
/// tensors, all of them would take more memory than the index. It outlives the container.
#[derive(Clone, Debug)]
pub struct TensorInfos {
    index: Arc<Index>,
    /// The tensor that each table's bytes are charged to: its first user.
    payers: Arc<Vec<Option<usize>>>,
}

impl TensorInfos {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        let mut payers = vec![None; index.tables.len()];
        for (i, t) in index.tensors.iter().enumerate() {
            for table in t.planes.iter().filter_map(|p| p.table) {
                if let Some(payer) = payers.get_mut(table) {
                    payer.get_or_insert(i);
                }
            }
        }
        Self { index, payers: Arc::new(payers) }
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.index.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a tensor; `None` if there is none at this index.
    pub fn name(&self, place: usize) -> Option<&str> {
        self.index.tensors.get(place).map(|t| t.name.as_str())
    }

    /// The index's description of a tensor; `None` if there is none at this index.
    ///
    /// # Errors
    /// Its dtype is unknown, or its element count overflows, which opening a container rules out.
    pub fn get(&self, place: usize) -> Result<Option<TensorInfo>> {
        self.index.tensors.get(place).map(|t| self.info(place, t)).transpose()
    }

    /// All descriptions.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), or there are many tensors and no threads available.
    pub fn all(&self) -> Result<Vec<TensorInfo>> {
        let tensors = &self.index.tensors;
        let info = |(i, t)| self.info(i, t);
        if tensors.len() < MANY {
            return tensors.iter().enumerate().map(info).collect();
        }
        Pool::new(None)?.run(|| tensors.par_iter().enumerate().map(info).collect())?
    }

    /// Elements, bytes in the source and stored bytes of a tensor, computed cheaply; zeros if there is none at this
    /// index.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn sizes(&self, place: usize) -> Result<[u64; 3]> {
        let Some(t) = self.index.tensors.get(place) else { return Ok([0; 3]) };
        let (dtype, elements) = kind(t)?;
        let stored = t.segments().map(|(_, s)| s).chain(self.charged(place, t)).map(|s| s.length).sum();
        Ok([elements, elements.saturating_mul(dtype.size() as u64), stored])
    }

    /// The tables that are charged to a tensor.
    fn charged<'a>(&'a self, place: usize, t: &'a TensorEntry) -> impl Iterator<Item = &'a Segment> {
        let tables = || t.planes.iter().filter_map(|p| p.table);
        tables()
            .enumerate()
            .filter(move |&(i, table)| {
                self.payers.get(table) == Some(&Some(place)) && !tables().take(i).any(|before| before == table)
            })
            .map(|(_, table)| &self.index.tables[table].data)
    }

    fn info(&self, place: usize, t: &TensorEntry) -> Result<TensorInfo> {
        let (dtype, elements) = kind(t)?;
        let segments = t.segments().chain(self.charged(place, t).map(|s| ("table", s)));
        let segments: Vec<_> =
            segments.map(|(role, s)| SegmentInfo { role, offset: s.offset, length: s.length, hash: s.hash }).collect();
        let scheme = if t.scheme == OPAQUE { Some(SchemeKind::Raw) } else { SchemeKind::from_file(&t.scheme).ok() };
        let all_bits = scheme.map(|scheme| vec![[0, scheme.bits(dtype)]]);
        let plane = |p: &PlaneEntry| PlaneInfo {
            bits: match &p.fields {
                None => all_bits.clone().filter(|_| t.planes.len() == 1),
                Some(fields) => {
                    serde_json::from_str(fields.get()).ok().filter(|_| scheme == Some(SchemeKind::Lossless))
                }
            },
            coder: p.coder.clone(),
            layout: p.layout.clone().filter(|_| uses(p, Use::Tiles)),
            shift: p.shift.filter(|_| uses(p, Use::Tiles)),
            filter: p.filter.clone().filter(|_| uses(p, Use::Filter)).unwrap_or(CompactString::const_new("none")),
            tile: p.tile.filter(|_| uses(p, Use::Tiles)),
            frame: p.chunk.filter(|_| uses(p, Use::Frames)),
            chunks: p.chunks.filter(|_| uses(p, Use::Chunks)).unwrap_or(1),
        };
        let matrix = t.matrix;
        let columns = t.scheme == COLUMNS;
        Ok(TensorInfo {
            name: t.name.clone(),
            dtype,
            shape: t.shape.clone(),
            scheme: if columns { SchemeKind::Rate.name().into() } else { t.scheme.clone() },
            makes_symbols: scheme.is_some_and(SchemeKind::makes_symbols),
            scales: t.scales.as_ref().map(|s| match s.block {
                Some(n) => Granularity::Block(n).to_compact_string(),
                None => s.per.clone(),
            }),
            columns,
            planes: t.planes.iter().map(plane).collect(),
            count: matrix.map_or(1, |m| m.count),
            rows: matrix.map_or(1, |m| m.rows),
            cols: matrix.map_or(elements as usize, |m| m.cols),
            row_axis: matrix.map_or(0, |m| m.row_axis),
            cut: cut(t),
            elements,
            original_bytes: elements.saturating_mul(dtype.size() as u64),
            stored_bytes: segments.iter().map(|s| s.length).sum(),
            entropy: t.quality.and_then(|q| q.entropy),
            error: t.quality.and_then(|q| q.error),
            segments,
        })
    }
}

/// Element type, and elements.
fn kind(t: &TensorEntry) -> Result<(Dtype, u64)> {
    let dtype = Dtype::from_name(&t.dtype).map_err(|e| e.tensor(&t.name))?;
    let elements = element_count(&t.shape).map_err(|e| e.tensor(&t.name))?;
    Ok((dtype, elements as u64))
}
