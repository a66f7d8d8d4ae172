//! Patches: the elements of a chunk that its symbols cannot say. `FORMAT.md` section 3.

use crate::coder::pair::fold;
use crate::coder::{BLOCK_COLS, TILE_ROWS};
use crate::error::{Error, Result};

/// An element that is not what the chunk's symbols say: its position and its value.
pub type Patch = (u16, u8);

/// Appends the list of patches of `tile`, of `width` columns: those of its escapes, and `more`.
pub fn put(tile: &[i8], width: usize, shift: u32, more: &[Patch], out: &mut Vec<u8>) {
    let count_at = out.len();
    out.extend_from_slice(&[0; 4]);
    // Few elements need one, so most tiles are only looked through, in memory order; those found are put in order after.
    let mut found: Vec<Patch> = more.to_vec();
    for (at, &q) in tile.iter().enumerate() {
        if fold(q) >> shift > 15 {
            found.push((position_of(at / width, at % width), q as u8));
        }
    }
    found.sort_unstable();
    for (position, value) in found {
        out.extend_from_slice(&position.to_le_bytes());
        out.extend_from_slice(&[value, 0]);
    }
    let count = ((out.len() - count_at) / 4 - 1) as u32;
    out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
}

/// Position of an element in its chunk, counted in the order in which lanes decode: a kernel that holds a block's
/// elements in registers meets the patches in this order.
fn position_of(row: usize, col: usize) -> u16 {
    let (block, in_block) = (col / BLOCK_COLS, col % BLOCK_COLS);
    let lane = row % 8 * 4 + in_block / 16;
    // A tile has at most 16 blocks of 1,024 elements.
    (block * 1024 + lane * 32 + row / 8 * 16 + in_block % 16) as u16
}

/// Row and column of a patch: the inverse of [`position_of`].
pub fn place_of(position: usize) -> (usize, usize) {
    let (block, lane, element) = (position / 1024, position / 32 % 32, position % 32);
    (lane / 4 + element / 16 * 8, block * BLOCK_COLS + lane % 4 * 16 + element % 16)
}

/// Applies the patches of a chunk, as far as they are valid.
pub fn apply(patches: &[[u8; 4]], width: usize, out: &mut [i8], stride: usize) -> Result<()> {
    let mut next = 0;
    for &[low, high, value, zero] in patches {
        let position = usize::from(u16::from_le_bytes([low, high]));
        if position < next || position >= TILE_ROWS * width || zero != 0 {
            return Err(Error::corrupt(format!("a patch at position {position} of a tile of {width} columns")));
        }
        let (row, col) = place_of(position);
        out[row * stride + col] = value as i8;
        next = position + 1;
    }
    Ok(())
}
