//! What is encoded, how, and what comes of it.

use super::decode::PlaneSource;
use super::form::{Coding, PlaneForm};
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};

/// How to encode a plane.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// The coder asked for; a plane that it would not make smaller is stored raw.
    pub coder: Coder,
    /// Layout of `rans` and `huffman`.
    pub layout: Layout,
    /// log2 of the slots of tables: 11 or 12, of `huffman` 8 to 12.
    pub table_bits: u32,
    /// Whether pairs that are too rare for a code of `huffman` may become patches. With fewer than 11 bits they always may.
    pub patch_rare: bool,
    /// Whether patches are to say, besides what an element is, by how much that exceeds what the symbols say.
    pub changes: bool,
    /// Width of tiles in columns; by shape where absent.
    pub tile: Option<usize>,
    /// Level of zstd.
    pub zstd_level: i32,
    /// Decoded bytes of a zstd frame; by shape where absent.
    pub zstd_chunk: Option<usize>,
    /// Which filters to use.
    pub filters: Filters,
}

/// Which filters a plane is encoded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// None. Those that predict need rows, which a plane of plain bytes does not have.
    None,
    /// Those that predict, where that makes the plane smaller.
    Tried,
    /// The trellis that the symbols are paths through, restarting with each tile.
    Trellis,
}

/// Symbols to encode, or elements of symbols and of what lies beside them: `count` matrices of `rows` x `cols`, row-major.
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
    /// For layout `split`, what elements have besides: as many bytes for each of up to three planes, the most significant first.
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

/// The table that a plane is encoded with.
#[derive(Clone, Debug)]
pub struct TableChoice {
    /// The table.
    pub table: Table,
    /// Its place among the tables that planes share; none where it is this plane's own.
    pub place: Option<usize>,
    /// Whether this plane was the first to want it, so that its bytes count as this plane's.
    pub is_new: bool,
}

/// An encoded plane.
#[derive(Debug)]
pub struct EncodedPlane {
    /// How it was coded. `raw`: nothing else is set, and the symbols themselves are what to store.
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
    /// A plane that is stored as it is.
    pub fn raw(symbols: &SymbolMatrices<'_>) -> Self {
        let form = PlaneForm { matrix: symbols.matrix(), coding: Coding::Raw, max_chunk: 0 };
        Self { form, table: None, offsets: Vec::new(), data: Vec::new(), side: Vec::new() }
    }

    /// The coder used.
    pub fn coder(&self) -> Coder {
        self.form.coding.coder()
    }

    /// The plane as a reader finds it: what [`Plane::new`](super::Plane::new) takes. `symbols` are those that it was encoded from.
    pub fn source<'a>(&'a self, symbols: &SymbolMatrices<'a>) -> PlaneSource<'a> {
        PlaneSource {
            form: self.form,
            data: if self.coder() == Coder::Raw { bytemuck::cast_slice(symbols.data) } else { &self.data },
            offsets: &self.offsets,
            side: &self.side,
            table: self.table.as_ref().map(|t| &t.table),
        }
    }

    /// Bytes that it takes in the file, its own table included.
    pub fn stored_bytes(&self) -> usize {
        let table = self.table.as_ref().filter(|t| t.is_new).map_or(0, |t| t.table.to_bytes().len());
        self.offsets.len() + self.data.len() + self.side.len() + table
    }
}
