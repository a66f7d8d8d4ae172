//! The inputs, options and results of encoding a plane.

use super::decode::PlaneSource;
use super::form::{Coding, PlaneForm};
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};

/// Options for encoding a plane.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// The requested coder; a plane that it would not make smaller is stored raw.
    pub coder: Coder,
    /// Layout of `rans` and `huffman`.
    pub layout: Layout,
    /// log2 of the slots of tables: 11 or 12; 8 to 12 for `huffman`.
    pub table_bits: u32,
    /// Whether pairs too rare for a code of `huffman` may become patches. With fewer than 11 bits they always may.
    pub patch_rare: bool,
    /// Whether patches store, besides the element, by how much it exceeds the value that the symbols give.
    pub changes: bool,
    /// Width of tiles in columns; chosen by shape if absent.
    pub tile: Option<usize>,
    /// Level of zstd.
    pub zstd_level: i32,
    /// Decoded bytes of a zstd frame; chosen by shape if absent.
    pub zstd_chunk: Option<usize>,
    /// The filters to use.
    pub filters: Filters,
}

/// The filters that a plane may be encoded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// No filter. Prediction needs rows, which a plane of plain bytes does not have.
    None,
    /// Prediction, if it makes the plane smaller.
    Tried,
    /// The trellis that the symbols are paths through; it restarts with each tile.
    Trellis,
}

/// Symbols to encode, with the uncoded bytes of their elements if there are any: `count` matrices of `rows` x `cols`,
/// row-major.
#[derive(Clone, Copy, Debug)]
pub struct SymbolMatrices<'a> {
    /// Matrices.
    pub count: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub cols: usize,
    /// `count * rows * cols` symbols.
    pub data: &'a [i8],
    /// For layout `split`, the other bytes of the elements: one vector for each of up to three bytes, the most
    /// significant first.
    pub beside: &'a [Vec<i8>],
}

impl SymbolMatrices<'_> {
    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.data.len() * (1 + self.beside.len())
    }

    /// Matrices, rows, columns.
    pub fn matrix(&self) -> (usize, usize, usize) {
        (self.count, self.rows, self.cols)
    }
}

/// The table that a plane is encoded with, and its origin.
#[derive(Clone, Debug)]
pub struct TableChoice {
    /// The table.
    pub table: Table,
    /// Its index among the tables that planes share; `None` if it belongs to this plane alone.
    pub place: Option<usize>,
    /// Whether this plane added it, so that its bytes count as this plane's.
    pub is_new: bool,
}

/// An encoded plane.
#[derive(Debug)]
pub struct EncodedPlane {
    /// The form of the coded plane. If `raw`, nothing else is set, and the symbols themselves are stored.
    pub form: PlaneForm,
    /// Its table, for `rans` and `huffman`.
    pub table: Option<TableChoice>,
    /// Segment of chunk offsets.
    pub offsets: Vec<u8>,
    /// Segment of chunks.
    pub data: Vec<u8>,
    /// Segment of the side plane; empty in layout `byte`.
    pub side: Vec<u8>,
}

impl EncodedPlane {
    /// A plane whose symbols are stored uncoded.
    pub fn raw(symbols: &SymbolMatrices<'_>) -> Self {
        let form = PlaneForm { matrix: symbols.matrix(), coding: Coding::Raw, max_chunk: 0 };
        Self { form, table: None, offsets: Vec::new(), data: Vec::new(), side: Vec::new() }
    }

    /// The coder that was used.
    pub fn coder(&self) -> Coder {
        self.form.coding.coder()
    }

    /// The plane as a reader finds it, ready for [`Plane::new`](super::Plane::new). `symbols` are those that it was
    /// encoded from.
    pub fn source<'a>(&'a self, symbols: &SymbolMatrices<'a>) -> PlaneSource<'a> {
        PlaneSource {
            form: self.form,
            data: if self.coder() == Coder::Raw { bytemuck::cast_slice(symbols.data) } else { &self.data },
            offsets: &self.offsets,
            side: &self.side,
            table: self.table.as_ref().map(|t| &t.table),
        }
    }

    /// The bytes that it takes in the file, including its own table.
    pub fn stored_bytes(&self) -> usize {
        let table = self.table.as_ref().filter(|t| t.is_new).map_or(0, |t| t.table.to_bytes().len());
        self.offsets.len() + self.data.len() + self.side.len() + table
    }
}
