//! Patches: the elements of a chunk that its symbols cannot represent. `FORMAT.md` section 3.

use crate::coder::chunk_format::ChunkFormat;
use crate::coder::pair::{fold, with_high};
use crate::coder::{BLOCK_COLS, LANES, TILE_ROWS};
use crate::error::Result;

/// An element whose value differs from the one that the chunk's symbols give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Patch {
    pub position: u16,
    pub value: i8,
    /// The value minus the one that the symbols give; 0 if patches do not store it.
    pub change: i8,
}

/// Sorts the patches and appends them as a list.
pub fn put(patches: &mut [Patch], out: &mut Vec<u8>) {
    patches.sort_unstable();
    out.extend_from_slice(&(patches.len() as u32).to_le_bytes());
    for patch in patches {
        out.extend_from_slice(&patch.position.to_le_bytes());
        out.extend_from_slice(&[patch.value as u8, patch.change as u8]);
    }
}

/// The patches of `tile`, of `width` columns, which is coded as pairs (`symbols`, `[step][lane]`): those of its
/// escapes, and of the elements at the positions in `more`.
pub fn of_pairs(format: ChunkFormat, tile: &[i8], width: usize, symbols: &[u8], more: &[(u16, i8)]) -> Vec<Patch> {
    let shift = format.shift;
    let patch = |position, value| {
        let change = if format.changes { value - coded(position, value, symbols, shift) } else { 0 };
        Patch { position, value, change }
    };
    let mut patches: Vec<Patch> = more.iter().map(|&(position, value)| patch(position, value)).collect();
    // Few elements need a patch, so most tiles are only scanned, in memory order.
    for (at, &q) in tile.iter().enumerate() {
        if fold(q) >> shift > 15 {
            patches.push(patch(position_of(at / width, at % width), q));
        }
    }
    patches
}

/// The value that the symbols give for an element whose true value is `q`.
fn coded(position: u16, q: i8, symbols: &[u8], shift: u32) -> i8 {
    let (block, lane, element) = (usize::from(position) / 1024, usize::from(position) / 32 % 32, position % 32);
    let symbol = symbols[(block * 16 + usize::from(element) / 2) * LANES + lane];
    let high = symbol >> (element % 2 * 4) & 15;
    with_high(high, q, shift)
}

/// The position of an element in its chunk, counted in the order in which lanes decode: a kernel that holds a block's
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

/// Applies the patches of a chunk, up to the first invalid one.
pub fn apply(format: ChunkFormat, patches: &[[u8; 4]], width: usize, out: &mut [i8], stride: usize) -> Result<()> {
    let mut next = 0;
    for &[low, high, value, change] in patches {
        let position = usize::from(u16::from_le_bytes([low, high]));
        if position < next || position >= TILE_ROWS * width || (!format.changes && change != 0) {
            return Err(coded!(BAD_CHUNK, "a patch at position {position} of a tile of {width} columns"));
        }
        let (row, col) = place_of(position);
        let (element, value, change) = (&mut out[row * stride + col], value as i8, change as i8);
        if format.changes && element.checked_add(change) != Some(value) {
            let what = format!("a patch at position {position} that changes {element} by {change} to {value}");
            return Err(coded!(BAD_CHUNK, what));
        }
        *element = value;
        next = position + 1;
    }
    Ok(())
}
