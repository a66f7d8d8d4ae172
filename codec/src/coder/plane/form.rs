//! The description of a plane, without its bytes.

use crate::coder::chunk_format::ChunkFormat;
use crate::coder::quad::MOST_SHIFT;
use crate::coder::tile::{TileGeometry, side_bytes};
use crate::coder::{Coder, Filter, Layout, zstd};
use crate::error::Result;

/// The coding of symbols as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Symbols are stored uncoded.
    Raw,
    /// Independent frames of zstd.
    Zstd {
        /// Decoded bytes of a frame; the last one may have fewer.
        chunk: usize,
        /// Filter to undo after decoding.
        filter: Filter,
    },
    /// Tiles of `rans` or `huffman`.
    Tiles(Tiling),
}

/// The tiling of a plane, and the coding of its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// `rans` or `huffman`.
    pub coder: Coder,
    /// The meaning of one coded symbol.
    pub layout: Layout,
    /// Uncoded low bits of layout `pair`, 0 to 3, or of layout `quad`, 0 to 4; uncoded bits of layout `split`: 8, 16 or
    /// 24; 0 in layout `byte`.
    pub shift: u32,
    /// Width of a tile, columns.
    pub tile: usize,
    /// Filter to undo after decoding.
    pub filter: Filter,
    /// Whether patches store, besides the element, by how much it exceeds the value that the symbols give.
    pub changes: bool,
}

impl Tiling {
    /// The tiles of matrices with the given count, rows and columns.
    ///
    /// # Errors
    /// The tile width is not allowed, or the matrices are too large.
    pub fn geometry(&self, (count, rows, cols): (usize, usize, usize)) -> Result<TileGeometry> {
        TileGeometry::new(count, rows, cols, self.tile)
    }

    /// The properties that each chunk's decoder needs.
    pub(in crate::coder) fn chunk_format(&self) -> ChunkFormat {
        let Tiling { coder, layout, shift, changes, .. } = *self;
        ChunkFormat { coder, layout, shift, changes }
    }

    /// Bytes of the side plane that belong to a tile of `width` columns.
    pub fn side_bytes(&self, width: usize) -> usize {
        side_bytes(self.coder, self.layout, self.shift, width)
    }
}

impl Coding {
    /// Bytes that an element of the plane decodes to: a symbol, joined with its uncoded bytes in layout `split`.
    pub fn element_bytes(&self) -> usize {
        match self {
            Coding::Tiles(t) if t.layout == Layout::Split => 1 + t.shift as usize / 8,
            _ => 1,
        }
    }

    /// The coder.
    pub fn coder(&self) -> Coder {
        match self {
            Coding::Raw => Coder::Raw,
            Coding::Zstd { .. } => Coder::Zstd,
            Coding::Tiles(t) => t.coder,
        }
    }

    /// The filter.
    pub fn filter(&self) -> Filter {
        match *self {
            Coding::Raw => Filter::None,
            Coding::Zstd { filter, .. } | Coding::Tiles(Tiling { filter, .. }) => filter,
        }
    }
}

/// The shape of a plane's symbols, and their coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneForm {
    /// Matrices, rows, columns. Planes that are not matrices have one row.
    pub matrix: (usize, usize, usize),
    /// The coding of symbols as bytes.
    pub coding: Coding,
    /// Length of the longest chunk, bytes; 0 if the plane is not coded.
    pub max_chunk: usize,
}

impl PlaneForm {
    /// The number of symbols.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): the count overflows.
    pub fn elements(&self) -> Result<usize> {
        let (count, rows, cols) = self.matrix;
        crate::tensor::element_count(&[count, rows, cols])
    }

    /// Checks that the parts fit each other, and counts the chunks, the units of independent decoding.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): they do not.
    pub fn chunks(&self) -> Result<usize> {
        match self.coding {
            Coding::Raw => Ok(1),
            Coding::Zstd { chunk, filter } => {
                zstd::check_chunk(chunk)?;
                if !zstd::filter_allowed(filter, chunk, self.matrix.2) {
                    return Err(coded!(BAD_CODER_NUMBER, "filter 'up' needs chunks of whole rows"));
                }
                Ok(self.elements()?.div_ceil(chunk))
            }
            Coding::Tiles(t) => {
                let (fits, most) = match t.layout {
                    Layout::Byte | Layout::Pair => (t.shift <= 3, "0 to 3"),
                    Layout::Split => (matches!(t.shift, 8 | 16 | 24), "8, 16 or 24"),
                    Layout::Quad => (t.shift <= MOST_SHIFT, "0 to 4"),
                };
                if !t.layout.is_of(t.coder) {
                    return Err(coded!(BAD_COMBINATION, "layout {} with coder {}", t.layout, t.coder));
                }
                if !t.layout.is_predicted() && !matches!(t.filter, Filter::None | Filter::Trellis) {
                    return Err(coded!(BAD_COMBINATION, "layout {} with filter {}", t.layout, t.filter));
                }
                if !fits {
                    return Err(coded!(BAD_CODER_NUMBER, "shift {} is not {most}", t.shift));
                }
                Ok(t.geometry(self.matrix)?.chunks())
            }
        }
    }
}
