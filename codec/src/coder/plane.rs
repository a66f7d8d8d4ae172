//! A plane: all its chunks, encoded and decoded in parallel. `FORMAT.md` sections 2 to 8.

use super::table::Table;
use super::{Coder, Filter, Layout};

mod decode;
mod encode;

pub use super::chunk::Scratch;
pub use decode::{Plane, PlaneSource, TileFields};
pub use encode::{Draft, encode};

/// How to encode a plane.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// The coder asked for; a plane that it would not make smaller is stored raw.
    pub coder: Coder,
    /// Layout of `rans` and `huffman`.
    pub layout: Layout,
    /// log2 of the slots of tables, 11 or 12.
    pub table_bits: u32,
    /// Width of tiles in columns; by shape where absent.
    pub tile: Option<usize>,
    /// Level of zstd.
    pub zstd_level: i32,
    /// Decoded bytes of a zstd frame; by shape where absent.
    pub zstd_chunk: Option<usize>,
    /// Whether to try filters. They need rows, which a plane of plain bytes does not have.
    pub filters: bool,
}

/// Symbols to encode: `count` matrices of `rows` x `cols`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'a> {
    /// Matrices.
    pub count: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub cols: usize,
    /// `count * rows * cols` symbols.
    pub data: &'a [i8],
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

/// An encoded plane, as the index describes it.
#[derive(Debug)]
pub struct EncodedPlane {
    /// The coder used. `raw`: nothing else is set, and the symbols themselves are what to store.
    pub coder: Coder,
    /// Filter to undo after decoding.
    pub filter: Filter,
    /// Layout and what goes with it, for `rans` and `huffman`.
    pub tiles: Option<EncodedTiles>,
    /// Decoded bytes of a chunk, for `zstd`.
    pub zstd_chunk: Option<usize>,
    /// Chunks.
    pub chunks: usize,
    /// Longest chunk, bytes.
    pub max_chunk: usize,
    /// Segment of chunk offsets.
    pub offsets: Vec<u8>,
    /// Segment of chunks.
    pub data: Vec<u8>,
}

/// What a plane of `rans` or `huffman` has more.
#[derive(Debug)]
pub struct EncodedTiles {
    /// Layout.
    pub layout: Layout,
    /// Shift of layout `pair`.
    pub shift: u32,
    /// Width of a tile, columns.
    pub tile: usize,
    /// Table.
    pub table: TableChoice,
    /// Segment of the side plane; empty in layout `byte`.
    pub side: Vec<u8>,
}

impl EncodedPlane {
    /// A plane that is stored as it is.
    pub fn raw() -> Self {
        Self {
            coder: Coder::Raw,
            filter: Filter::None,
            tiles: None,
            zstd_chunk: None,
            chunks: 0,
            max_chunk: 0,
            offsets: Vec::new(),
            data: Vec::new(),
        }
    }

    /// The plane as a reader finds it: what [`Plane::new`] takes. `symbols` are those that it was encoded from.
    pub fn source<'a>(&'a self, symbols: &Symbols<'a>) -> PlaneSource<'a> {
        PlaneSource {
            coder: self.coder,
            filter: self.filter,
            matrix: (symbols.count, symbols.rows, symbols.cols),
            data: if self.coder == Coder::Raw { bytemuck::cast_slice(symbols.data) } else { &self.data },
            offsets: &self.offsets,
            zstd_chunk: self.zstd_chunk.unwrap_or(0),
            max_chunk: self.max_chunk,
            tiles: self.tiles.as_ref().map(|t| TileFields {
                layout: t.layout,
                shift: t.shift,
                tile: t.tile,
                side: &t.side,
                table: &t.table.table,
            }),
        }
    }

    /// Bytes that it takes in the file, its own table included.
    pub fn stored_bytes(&self) -> usize {
        let tiles = self
            .tiles
            .as_ref()
            .map_or(0, |t| t.side.len() + if t.table.is_new { t.table.table.to_bytes().len() } else { 0 });
        self.offsets.len() + self.data.len() + tiles
    }
}

#[cfg(test)]
mod tests;
