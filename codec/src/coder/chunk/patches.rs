//! Patches: the elements of a chunk that its symbols cannot say. `FORMAT.md` section 3.

use crate::coder::chunk_format::ChunkFormat;
use crate::coder::pair::fold;
use crate::coder::{BLOCK_COLS, LANES, TILE_ROWS};
use crate::error::{Error, Result};

/// An element that is not what the chunk's symbols say: its position and its value.
pub type Patch = (u16, u8);

/// Appends the list of patches of `tile`, of `width` columns, which is coded as `symbols` (`[step][lane]`): those of its escapes, and `more`.
pub fn put(format: ChunkFormat, tile: &[i8], width: usize, symbols: &[u8], more: &[Patch], out: &mut Vec<u8>) {
    let shift = format.shift;
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
        let change = if format.changes { (value as i8) - coded(position, value as i8, symbols, shift) } else { 0 };
        out.extend_from_slice(&[value, change as u8]);
    }
    let count = ((out.len() - count_at) / 4 - 1) as u32;
    out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
}

/// What the symbols make of the element that is to be `q`: sign and low bits are not theirs to say.
fn coded(position: u16, q: i8, symbols: &[u8], shift: u32) -> i8 {
    let (block, lane, element) = (usize::from(position) / 1024, usize::from(position) / 32 % 32, position % 32);
    let symbol = symbols[(block * 16 + usize::from(element) / 2) * LANES + lane];
    let high = symbol >> (element % 2 * 4) & 15;
    let folded = high << shift | fold(q) & ((1 << shift) - 1);
    if q < 0 { !(folded as i8) } else { folded as i8 }
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
pub fn apply(format: ChunkFormat, patches: &[[u8; 4]], width: usize, out: &mut [i8], stride: usize) -> Result<()> {
    let mut next = 0;
    for &[low, high, value, change] in patches {
        let position = usize::from(u16::from_le_bytes([low, high]));
        if position < next || position >= TILE_ROWS * width || (!format.changes && change != 0) {
            return Err(Error::corrupt(format!("a patch at position {position} of a tile of {width} columns")));
        }
        let (row, col) = place_of(position);
        let (element, value, change) = (&mut out[row * stride + col], value as i8, change as i8);
        if format.changes && element.checked_add(change) != Some(value) {
            let what = format!("a patch at position {position} that changes {element} by {change} to {value}");
            return Err(Error::corrupt(what));
        }
        *element = value;
        next = position + 1;
    }
    Ok(())
}
