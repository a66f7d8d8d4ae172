//! Coders turn a plane of 8-bit symbols into bytes. `FORMAT.md` sections 3 to 8.
//!
//! The scalar decoders here are the reference ("oracle"): SIMD and GPU decoders match them byte for byte, on valid and
//! on damaged input alike.

use crate::named::named;

mod chunk;
mod chunk_format;
pub mod filter;
pub mod histogram;
mod huffman;
mod isa;
mod pair;
pub mod plane;
mod quad;
mod rans;
mod rare;
mod split;
pub mod table;
pub mod tile;
pub mod zstd;

pub use isa::Isa;

named! {
    /// The entropy coder of a plane.
    Coder, "coder" {
        /// Interleaved rANS: smallest, and fast everywhere.
        Rans = "rans",
        /// Length-limited Huffman: the fastest on a GPU, about 1 % larger.
        Huffman = "huffman",
        /// Independent zstd frames, which every platform can read.
        Zstd = "zstd",
        /// Not coded.
        Raw = "raw",
    }
}

impl Coder {
    /// Whether the coder works on tiles of a matrix: it has layouts, tables, lanes and a trellis, and decodes on a GPU
    /// without nvCOMP. Other coders take bytes.
    ///
    /// ```
    /// use wcodec::Coder;
    /// assert!(Coder::Huffman.is_tiled() && !Coder::Zstd.is_tiled());
    /// ```
    pub fn is_tiled(self) -> bool {
        match self {
            Self::Rans | Self::Huffman => true,
            Self::Zstd | Self::Raw => false,
        }
    }
}

named! {
    /// The meaning of one coded symbol (coders `rans` and `huffman`).
    Layout, "layout" {
        /// One int8 symbol.
        Byte = "byte",
        /// The high parts of two neighbours; signs and low bits go uncoded into the side plane.
        Pair = "pair",
        /// 8 bits of a wider element; its other bits go uncoded into the side plane.
        Split = "split",
        /// The high parts of four neighbours; signs and low bits go uncoded into the side plane. Coder `huffman` only.
        Quad = "quad",
    }
}

impl Layout {
    /// The layouts that a caller may ask for when encoding; schemes choose the others.
    pub const CHOICES: &'static [Self] = &[Layout::Byte, Layout::Pair, Layout::Quad];

    /// The layouts in [`CHOICES`](Self::CHOICES) that `coder` supports. Coders of bytes ignore the layout.
    ///
    /// ```
    /// use wcodec::{Coder, Layout};
    /// assert!(Layout::choices(Coder::Huffman).contains(&Layout::Quad));
    /// assert!(!Layout::choices(Coder::Rans).contains(&Layout::Quad));
    /// ```
    pub fn choices(coder: Coder) -> &'static [Self] {
        match coder {
            Coder::Rans => &[Layout::Byte, Layout::Pair],
            Coder::Huffman | Coder::Zstd | Coder::Raw => Self::CHOICES,
        }
    }

    /// Whether coded symbols leave bits of elements over, which are stored in a side plane.
    pub(crate) fn has_side(self) -> bool {
        match self {
            Self::Byte => false,
            Self::Pair | Self::Split | Self::Quad => true,
        }
    }

    /// Whether `coder`, one of tiles, can code its symbols.
    pub(crate) fn is_of(self, coder: Coder) -> bool {
        match self {
            Self::Byte | Self::Pair | Self::Split => coder.is_tiled(),
            Self::Quad => coder == Coder::Huffman,
        }
    }

    /// Whether its tables are for no other layout.
    pub(crate) fn has_own_tables(self) -> bool {
        match self {
            Self::Byte | Self::Pair | Self::Split => false,
            Self::Quad => true,
        }
    }

    /// Whether elements may be predicted from their neighbours.
    pub(crate) fn is_predicted(self) -> bool {
        match self {
            Self::Byte | Self::Pair | Self::Split => true,
            Self::Quad => false,
        }
    }

    /// Whether patches store by how much elements exceed the values of symbols in every scheme, and not in `rate` only.
    pub(crate) fn always_has_changes(self) -> bool {
        match self {
            Self::Byte | Self::Pair | Self::Split => false,
            Self::Quad => true,
        }
    }
}

named! {
    /// A transform that is undone after decoding: either lossless prediction, used only where it makes a plane smaller,
    /// or a trellis, which the scheme asks for.
    Filter, "filter" {
        /// No prediction.
        None = "none",
        /// Difference to the neighbour on the left.
        Left = "left",
        /// Difference to the neighbour above.
        Up = "up",
        /// Symbols are the path through a trellis with twice as many levels; scheme `rate` only.
        Trellis = "trellis",
    }
}

/// Lanes of a tile: one warp, two AVX-512 or four AVX2 vectors.
pub const LANES: usize = 32;
/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Columns of a block, the unit in which lanes take turns.
pub const BLOCK_COLS: usize = 64;
