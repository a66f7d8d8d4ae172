//! What the index says of a tensor, in a form for people and programs.

use compact_str::CompactString;
use rayon::prelude::*;
use serde::Serialize;

use crate::coder::TILE_ROWS;
use crate::container::{Hash, Index, PlaneEntry, Segment, TensorEntry};
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::int8::Granularity;
use crate::tensor::{Dtype, element_count};

/// One stored byte range of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentInfo {
    /// `scales`, `offsets`, `data`, `side` or `table`.
    pub role: &'static str,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// XXH3-64; serialized as 16 hexadecimal digits.
    pub hash: Hash,
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
    /// `int8` or `raw`.
    pub scheme: String,
    /// `row`, `tensor` or `block 128`, for `int8`.
    pub scales: Option<String>,
    /// `rans`, `huffman`, `zstd` or `raw`.
    pub coder: String,
    /// `byte` or `pair`, for `rans` and `huffman`.
    pub layout: Option<String>,
    /// Uncoded low bits of layout `pair`.
    pub shift: Option<u32>,
    /// `none`, `left` or `up`.
    pub filter: String,
    /// Width of a tile in columns.
    pub tile: Option<usize>,
    /// Matrices.
    pub count: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
    /// Which axis of the tensor the rows are.
    pub row_axis: usize,
    /// Entries of the first dimension that are decoded together: rows can be had from any multiple of it on, up to any other or the
    /// end. 16 for the rows of matrices, 1 for stacks of matrices; 0 where only the whole can be had, as of transposed matrices.
    pub cut: usize,
    /// Chunks that can be decoded by themselves.
    pub chunks: usize,
    /// Elements.
    pub elements: u64,
    /// Bytes in the source.
    pub original_bytes: u64,
    /// Bytes of all its segments, and of its table where no tensor before it uses that.
    pub stored_bytes: u64,
    /// Order-0 entropy of the symbols in bits, for `int8`.
    pub entropy: Option<f64>,
    /// Where its bytes are.
    pub segments: Vec<SegmentInfo>,
}

fn name_of<S: serde::Serializer>(dtype: &Dtype, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

impl TensorInfo {
    /// Original bytes / stored bytes: larger is better.
    pub fn ratio(&self) -> f64 {
        if self.stored_bytes == 0 { 1.0 } else { self.original_bytes as f64 / self.stored_bytes as f64 }
    }

    /// 8 x stored bytes / elements.
    pub fn bits_per_weight(&self) -> f64 {
        if self.elements == 0 { 0.0 } else { 8.0 * self.stored_bytes as f64 / self.elements as f64 }
    }
}

/// As [`TensorInfo::cut`] says.
fn cut(t: &TensorEntry) -> usize {
    let entries = t.shape.first().copied().unwrap_or(0);
    // What is not seen as matrices is cut as if it were one.
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
        // It is some rows of one, and matrices have whole entries.
        n if per_matrix.is_multiple_of(n) => TILE_ROWS / gcd(TILE_ROWS, n),
        _ => 0,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Tensors from which on several threads look at them.
const MANY: usize = 4096;

/// Describes all tensors of an index.
pub(crate) fn tensor_infos(index: &Index) -> Result<Vec<TensorInfo>> {
    // A table is charged to its first user.
    let mut users = vec![None; index.tables.len()];
    for (i, t) in index.tensors.iter().enumerate() {
        for table in t.planes.iter().filter_map(|p| p.table) {
            if let Some(user) = users.get_mut(table) {
                user.get_or_insert(i);
            }
        }
    }
    let info = |(i, t)| tensor_info(index, t, |table| users.get(table) == Some(&Some(i)));
    if index.tensors.len() < MANY {
        return index.tensors.iter().enumerate().map(info).collect();
    }
    Pool::new(None)?.run(|| index.tensors.par_iter().enumerate().map(info).collect())?
}

fn tensor_info(index: &Index, t: &TensorEntry, pays_for: impl Fn(usize) -> bool) -> Result<TensorInfo> {
    let dtype = Dtype::from_name(&t.dtype).map_err(|e| e.tensor(&t.name))?;
    let elements = element_count(&t.shape).map_err(|e| e.tensor(&t.name))?;
    let mut segments: Vec<SegmentInfo> = Vec::new();
    let mut push = |role, s: &Segment| {
        segments.push(SegmentInfo { role, offset: s.offset, length: s.length, hash: s.hash });
    };
    t.segments().for_each(|(role, s)| push(role, s));
    let tables = || t.planes.iter().filter_map(|p| p.table);
    for (i, table) in tables().enumerate() {
        if pays_for(table) && !tables().take(i).any(|before| before == table) {
            push("table", &index.tables[table].data);
        }
    }
    let plane = t.planes.first();
    let text = |f: fn(&PlaneEntry) -> Option<&CompactString>| plane.and_then(f).map(CompactString::to_string);
    let matrix = t.matrix;
    Ok(TensorInfo {
        name: t.name.clone(),
        dtype,
        shape: t.shape.clone(),
        scheme: t.scheme.to_string(),
        scales: t.scales.as_ref().map(|s| match s.block {
            Some(n) => Granularity::Block(n).to_string(),
            None => s.per.to_string(),
        }),
        coder: plane.map_or_else(String::new, |p| p.coder.to_string()),
        layout: text(|p| p.layout.as_ref()),
        shift: plane.and_then(|p| p.shift),
        filter: text(|p| p.filter.as_ref()).unwrap_or_else(|| "none".to_owned()),
        tile: plane.and_then(|p| p.tile),
        count: matrix.map_or(1, |m| m.count),
        rows: matrix.map_or(1, |m| m.rows),
        cols: matrix.map_or(elements, |m| m.cols),
        row_axis: matrix.map_or(0, |m| m.row_axis),
        cut: cut(t),
        chunks: plane.and_then(|p| p.chunks).unwrap_or(1),
        elements: elements as u64,
        original_bytes: (elements as u64).saturating_mul(dtype.size() as u64),
        stored_bytes: segments.iter().map(|s| s.length).sum(),
        entropy: t.quality.and_then(|q| q.entropy),
        segments,
    })
}
