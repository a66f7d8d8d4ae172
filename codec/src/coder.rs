//! Coders: how a plane of 8-bit symbols becomes bytes. `FORMAT.md` sections 3 to 8.
//!
//! The scalar decoders here are the reference ("oracle"): SIMD and GPU decoders equal them byte for byte, on valid and
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
    /// How a plane is entropy-coded.
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

named! {
    /// What one coded symbol stands for (coders `rans` and `huffman`).
    Layout, "layout" {
        /// One int8 symbol.
        Byte = "byte",
        /// The high parts of two neighbours; sign and low bits go uncoded into the side plane.
        Pair = "pair",
        /// 8 bits of a wider element; its other bits go uncoded into the side plane.
        Split = "split",
        /// The high parts of four neighbours; sign and low bits go uncoded into the side plane. Coder `huffman` only.
        Quad = "quad",
    }
}

impl Layout {
    /// Those that encoding can be asked for; the others come with a scheme.
    pub const CHOICES: &'static [Self] = &[Layout::Byte, Layout::Pair, Layout::Quad];

    /// Those of them that `coder` has. To coders of bytes they mean nothing.
    ///
    /// ```
    /// use wcodec::{Coder, Layout};
    /// assert!(Layout::choices(Coder::Huffman).contains(&Layout::Quad));
    /// assert!(!Layout::choices(Coder::Rans).contains(&Layout::Quad));
    /// ```
    pub fn choices(coder: Coder) -> &'static [Self] {
        match coder {
            Coder::Rans => &[Layout::Byte, Layout::Pair],
            _ => Self::CHOICES,
        }
    }
}

named! {
    /// What is undone after decoding: lossless prediction, used only where it makes a plane smaller; or a trellis, which a scheme asks for.
    Filter, "filter" {
        /// No prediction.
        None = "none",
        /// Difference to the neighbour on the left.
        Left = "left",
        /// Difference to the neighbour above.
        Up = "up",
        /// Symbols are the path through a trellis of twice as many levels; of scheme `rate`.
        Trellis = "trellis",
    }
}

/// Lanes of a tile: one warp, two AVX-512 or four AVX2 vectors.
pub const LANES: usize = 32;
/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Columns of a block, the unit in which lanes take turns.
pub const BLOCK_COLS: usize = 64;
