//! Layout `split`: an element is a coded symbol and other bytes, which lie uncoded in the side plane. `FORMAT.md`
//! section 3.

use super::chunk::Tails;
use super::chunk_format::word_at;
use super::{BLOCK_COLS, Coder, LANES};

/// A tile's part of the side plane.
#[derive(Clone, Copy)]
pub struct Rest<'a> {
    pub coder: Coder,
    /// The side plane's words.
    pub side: &'a [u8],
    /// The part of it that the lanes' states hold, with coder `rans`.
    pub tails: &'a Tails,
    /// Columns of the tile, padding included.
    pub width: usize,
}

/// The location of elements: some columns of rows that are `stride` apart.
#[derive(Clone, Copy)]
pub struct Cells {
    pub rows: usize,
    /// First column, and the number of columns without padding.
    pub col: usize,
    pub cols: usize,
    pub stride: usize,
}

/// Writes elements of `bytes` bytes, 2 to 4, little-endian: the symbol on top, its uncoded bytes below. `symbols` and
/// `elements` both have the rows of `cells`.
pub fn join(symbols: &[i8], rest: Rest<'_>, bytes: usize, cells: Cells, elements: &mut [u8]) {
    match bytes {
        2 => join_rest::<1>(symbols, rest, cells, elements),
        3 => join_rest::<2>(symbols, rest, cells, elements),
        _ => join_rest::<3>(symbols, rest, cells, elements),
    }
}

fn join_rest<const R: usize>(symbols: &[i8], rest: Rest<'_>, cells: Cells, elements: &mut [u8]) {
    let words = rest.side.as_chunks::<4>().0;
    let blocks = rest.width / BLOCK_COLS;
    let ends = if rest.coder == Coder::Rans { words.len() } else { usize::MAX };
    for block in 0..blocks {
        for run in 0..2 * LANES {
            let (half, lane) = (run / LANES, run % LANES);
            let (row, col) = (lane / 4 + half * 8, block * BLOCK_COLS + lane % 4 * 16);
            if row >= cells.rows || col >= cells.cols {
                continue;
            }
            let mut beside = [[0u8; 16]; R];
            for (r, beside) in beside.iter_mut().enumerate() {
                for (k, four) in beside.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let word = ((block * R + r) * 8 + half * 4 + k) * LANES + lane;
                    // After the last word: the tails.
                    *four = if word < ends { words[word] } else { rest.tails[lane].to_le_bytes() };
                }
            }
            let n = (cells.cols - col).min(16);
            let at = row * cells.stride + cells.col + col;
            let out = &mut elements[at * (R + 1)..(at + n) * (R + 1)];
            if let (Ok(symbols), Ok(out)) =
                (<&[i8; 16]>::try_from(&symbols[at..at + n]), <&mut [u8; 32]>::try_from(&mut *out))
            {
                // Elements of two bytes, away from the edge: one vector.
                let elements: [u16; 16] = std::array::from_fn(|i| u16::from_le_bytes([beside[0][i], symbols[i] as u8]));
                out.copy_from_slice(bytemuck::cast_slice(&elements.map(u16::to_le)));
                continue;
            }
            for (i, (element, &symbol)) in out.chunks_exact_mut(R + 1).zip(&symbols[at..at + n]).enumerate() {
                for (byte, beside) in element.iter_mut().zip(beside.iter().rev()) {
                    *byte = beside[i];
                }
                element[R] = symbol as u8;
            }
        }
    }
}

/// Passes the elements to `take`, some at a time, from `symbols` and their uncoded bytes, the most significant first.
pub fn elements(symbols: &[i8], rest: &[Vec<i8>], take: &mut impl FnMut(&[u8])) {
    const RUN: usize = 4096;
    let bytes = rest.len() + 1;
    let mut buffer = vec![0u8; RUN * bytes];
    for begin in (0..symbols.len()).step_by(RUN) {
        let run = begin..symbols.len().min(begin + RUN);
        let out = &mut buffer[..run.len() * bytes];
        let parts = rest.iter().map(|r| &r[..]).rev().chain([symbols]);
        for (at, part) in parts.enumerate() {
            out.iter_mut().skip(at).step_by(bytes).zip(&part[run.clone()]).for_each(|(o, &b)| *o = b as u8);
        }
        take(out);
    }
}

/// Appends the side words of a tile with the uncoded bytes `rest`, the most significant first: a row-major tile of
/// `width` columns for each. With coder `rans`, the last word of each lane is its tail.
pub fn put_rest(coder: Coder, rest: &[Vec<i8>], width: usize, side: &mut Vec<u8>, tails: &mut Tails) {
    let begin = side.len();
    for block in 0..width / BLOCK_COLS {
        for tile in rest {
            for k in 0..8 {
                for lane in 0..LANES {
                    let at = word_at(block, k, lane, width);
                    side.extend_from_slice(bytemuck::cast_slice(&tile[at..at + 4]));
                }
            }
        }
    }
    if coder == Coder::Rans && side.len() > begin {
        let last = side.len() - LANES * 4;
        let words = side[last..].as_chunks::<4>().0;
        *tails = std::array::from_fn(|lane| u32::from_le_bytes(words[lane]));
        side.truncate(last);
    }
}
