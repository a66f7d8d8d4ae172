//! What encoders and decoders of chunks, the vector code among them, know of one: its parts and their sizes, and where its elements are.
//! `FORMAT.md` sections 3 and 6.

use super::tile::{raw_body_bytes, side_bytes, symbols_per_block};
use super::{BLOCK_COLS, Coder, Layout, TILE_ROWS};

/// What all chunks of a plane have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    pub coder: Coder,
    pub layout: Layout,
    pub shift: u32,
    /// Patches say by how much elements exceed what the symbols say.
    pub changes: bool,
}

impl ChunkFormat {
    /// Whether chunks begin with a list of patches.
    pub fn has_patches(self) -> bool {
        match self.layout {
            Layout::Pair => self.shift < 3,
            Layout::Quad => true,
            Layout::Byte | Layout::Split => false,
        }
    }

    /// Symbols that a lane of a tile of `width` columns decodes, those in its tail included.
    pub fn steps(self, width: usize) -> usize {
        width / BLOCK_COLS * symbols_per_block(self.layout)
    }

    /// How many symbols of each lane, its last ones, are its tail.
    pub fn symbols_in_tail(self) -> usize {
        if self.coder == Coder::Rans && self.layout == Layout::Byte { 4 } else { 0 }
    }

    /// Bytes of the side plane that belong to a tile of `width` columns.
    pub fn side_bytes(self, width: usize) -> usize {
        side_bytes(self.coder, self.layout, self.shift, width)
    }

    /// Longest chunk of a tile of `width` columns: what is not coded, and patches only where they leave it shorter than that.
    pub fn longest(self, width: usize) -> usize {
        (TILE_ROWS * width).max(raw_body_bytes(self.coder, self.layout, width))
    }
}

/// Where the four elements of word `k` of `lane` begin in block `block` of a row-major tile with rows `stride` apart.
#[inline(always)]
pub fn word_at(block: usize, k: usize, lane: usize, stride: usize) -> usize {
    (lane / 4 + k / 4 * 8) * stride + block * BLOCK_COLS + lane % 4 * 16 + k % 4 * 4
}
