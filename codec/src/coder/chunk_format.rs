//! The parts of a chunk, their sizes, and the positions of its elements, shared by encoders and decoders, vector code
//! included. `FORMAT.md` sections 3 and 6.

use super::tile::{raw_body_bytes, side_bytes, symbols_per_block};
use super::{BLOCK_COLS, Coder, Layout, TILE_ROWS};

/// The properties that all chunks of a plane share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    pub coder: Coder,
    pub layout: Layout,
    pub shift: u32,
    /// Whether patches store by how much elements exceed the values that the symbols give.
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

    /// Symbols that a lane decodes for a tile of `width` columns, including those in its tail.
    pub fn steps(self, width: usize) -> usize {
        width / BLOCK_COLS * symbols_per_block(self.layout)
    }

    /// The number of each lane's last symbols that make up its tail.
    pub fn symbols_in_tail(self) -> usize {
        if self.coder == Coder::Rans && self.layout == Layout::Byte { 4 } else { 0 }
    }

    /// Bytes of the side plane that belong to a tile of `width` columns.
    pub fn side_bytes(self, width: usize) -> usize {
        side_bytes(self.coder, self.layout, self.shift, width)
    }

    /// The longest chunk of a tile of `width` columns: an uncoded one, since patches may not make a coded chunk longer.
    pub fn longest(self, width: usize) -> usize {
        (TILE_ROWS * width).max(raw_body_bytes(self.coder, self.layout, width))
    }
}

/// The offset of the four elements of word `k` of `lane` within block `block` of a row-major tile with rows `stride`
/// apart.
#[inline(always)]
pub fn word_at(block: usize, k: usize, lane: usize, stride: usize) -> usize {
    (lane / 4 + k / 4 * 8) * stride + block * BLOCK_COLS + lane % 4 * 16 + k % 4 * 4
}
