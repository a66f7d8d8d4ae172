//! What there is to know of a plane besides its bytes.

use crate::coder::chunk_format::ChunkFormat;
use crate::coder::quad::MOST_SHIFT;
use crate::coder::tile::{TileGeometry, side_bytes};
use crate::coder::{Coder, Filter, Layout, zstd};
use crate::error::{Error, Result};

/// How symbols become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// They are stored as they are.
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

/// How tiles are cut and coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// `rans` or `huffman`.
    pub coder: Coder,
    /// What a coded symbol stands for.
    pub layout: Layout,
    /// Uncoded low bits of layout `pair`, 0 to 3, and of layout `quad`, 0 to 4; uncoded bits of layout `split`, 8, 16 or 24; 0 in layout `byte`.
    pub shift: u32,
    /// Width of a tile, columns.
    pub tile: usize,
    /// Filter to undo after decoding.
    pub filter: Filter,
    /// Whether patches say, besides what an element is, by how much that exceeds what the symbols say.
    pub changes: bool,
}

impl Tiling {
    /// How matrices, given by their number, rows and columns, are cut.
    ///
    /// # Errors
    /// A width that tiles do not have, or matrices that are too large.
    pub fn geometry(&self, (count, rows, cols): (usize, usize, usize)) -> Result<TileGeometry> {
        TileGeometry::new(count, rows, cols, self.tile)
    }

    /// What each chunk's decoder has to know.
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
    /// Bytes that an element of the plane is decoded to: a symbol, and what lies beside it in layout `split`.
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

/// A plane's symbols, and how they are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneForm {
    /// Matrices, rows, columns. Planes that are not matrices are one row.
    pub matrix: (usize, usize, usize),
    /// How symbols become bytes.
    pub coding: Coding,
    /// Length of the longest chunk, bytes; 0 in a plane that is not coded.
    pub max_chunk: usize,
}

impl PlaneForm {
    /// Symbols.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): more than can be counted.
    pub fn elements(&self) -> Result<usize> {
        let (count, rows, cols) = self.matrix;
        crate::tensor::element_count(&[count, rows, cols])
    }

    /// Bytes that all of it is decoded to.
    ///
    /// # Errors
    /// As for [`elements`](Self::elements).
    pub fn decoded_bytes(&self) -> Result<usize> {
        let bytes = self.elements()?.checked_mul(self.coding.element_bytes());
        bytes.ok_or_else(|| Error::format("the plane is too large"))
    }

    /// Checks that the parts fit each other, and counts the chunks: what can be decoded by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): they do not.
    pub fn chunks(&self) -> Result<usize> {
        match self.coding {
            Coding::Raw => Ok(1),
            Coding::Zstd { chunk, filter } => {
                zstd::check_chunk(chunk)?;
                if !zstd::filter_allowed(filter, chunk, self.matrix.2) {
                    return Err(Error::format("filter 'up' needs chunks of whole rows"));
                }
                Ok(self.elements()?.div_ceil(chunk))
            }
            Coding::Tiles(t) => {
                let (fits, most) = match t.layout {
                    Layout::Byte | Layout::Pair => (t.shift <= 3, "0 to 3"),
                    Layout::Split => (matches!(t.shift, 8 | 16 | 24), "8, 16 or 24"),
                    Layout::Quad => (t.shift <= MOST_SHIFT, "0 to 4"),
                };
                if t.layout == Layout::Quad && t.coder != Coder::Huffman {
                    return Err(Error::format(format!("layout quad with coder {}", t.coder)));
                }
                if t.layout == Layout::Quad && !matches!(t.filter, Filter::None | Filter::Trellis) {
                    return Err(Error::format(format!("layout quad with filter {}", t.filter)));
                }
                if !fits {
                    return Err(Error::format(format!("shift {} is not {most}", t.shift)));
                }
                Ok(t.geometry(self.matrix)?.chunks())
            }
        }
    }
}
