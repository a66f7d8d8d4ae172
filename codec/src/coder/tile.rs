//! Geometry of tiles: the elements that each chunk holds. `FORMAT.md` section 3.

use std::ops::Range;

use super::{BLOCK_COLS, Coder, LANES, Layout, TILE_ROWS};
use crate::error::Result;

/// The widest tile, columns: its chunk has at most 16 KiB, so that several fit the shared memory of any GPU.
pub const MAX_TILE: usize = 1024;

/// The unit of chunk offsets, bytes.
pub const OFFSET_UNIT: usize = 4;

/// The division of `count` matrices of `rows` x `cols` symbols into tiles of 16 rows x `tile` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileGeometry {
    count: usize,
    rows: usize,
    cols: usize,
    tile: usize,
}

/// The elements of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePosition {
    /// Index of the strip, counted over all matrices.
    pub strip: usize,
    /// First column in the matrix.
    pub col: usize,
    /// Width in columns, padding included: a multiple of 64.
    pub width: usize,
}

impl TileGeometry {
    /// # Errors
    /// `tile` is not a multiple of 64 from 64 to 1,024, or the padded size does not fit.
    pub fn new(count: usize, rows: usize, cols: usize, tile: usize) -> Result<Self> {
        if tile == 0 || !tile.is_multiple_of(BLOCK_COLS) || tile > MAX_TILE {
            return Err(coded!(BAD_CODER_NUMBER, "tile width {tile} is not a multiple of 64 from 64 to 1024"));
        }
        // A zero counts as one here, because partial products must fit as well.
        let padded = rows
            .max(1)
            .checked_next_multiple_of(TILE_ROWS)
            .zip(cols.max(1).checked_next_multiple_of(BLOCK_COLS))
            .and_then(|(r, c)| r.checked_mul(c))
            .and_then(|n| n.checked_mul(count.max(1)))
            .filter(|&n| n <= isize::MAX as usize);
        if padded.is_none() {
            return Err(coded!(BAD_SIZES, "{count} matrices of {rows} x {cols} are too large"));
        }
        Ok(Self { count, rows, cols, tile })
    }

    /// Matrices.
    pub fn count(&self) -> usize {
        self.count
    }
    /// Rows of a matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns of a matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Width of a full tile, columns.
    pub fn tile(&self) -> usize {
        self.tile
    }
    /// Elements without padding.
    pub fn elements(&self) -> usize {
        self.count * self.rows * self.cols
    }
    /// Elements with padding.
    pub fn padded_elements(&self) -> usize {
        self.strips() * TILE_ROWS * self.padded_cols()
    }
    /// Columns with padding.
    pub fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(BLOCK_COLS)
    }
    /// Strips of one matrix.
    pub fn strips_per_matrix(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }
    /// Strips of all matrices.
    pub fn strips(&self) -> usize {
        self.count * self.strips_per_matrix()
    }
    /// Tiles of a strip.
    pub fn tiles(&self) -> usize {
        self.padded_cols().div_ceil(self.tile)
    }
    /// Chunks of the plane.
    pub fn chunks(&self) -> usize {
        self.strips() * self.tiles()
    }
    /// The position of chunk `index`.
    pub fn position(&self, index: usize) -> TilePosition {
        let (strip, tile) = (index / self.tiles(), index % self.tiles());
        let col = tile * self.tile;
        TilePosition { strip, col, width: self.tile.min(self.padded_cols() - col) }
    }
    /// The matrix that chunk `index` belongs to, and the rows and columns of it that the chunk holds, without padding.
    pub fn cells(&self, index: usize) -> (usize, Range<usize>, Range<usize>) {
        let TilePosition { strip, col, width } = self.position(index);
        let (matrix, row) = (strip / self.strips_per_matrix(), strip % self.strips_per_matrix() * TILE_ROWS);
        (matrix, row..(row + TILE_ROWS).min(self.rows), col..(col + width).min(self.cols))
    }
    /// Elements of `strip` in the row-major array of all matrices, without padding.
    pub fn strip_elements(&self, strip: usize) -> Range<usize> {
        let (matrix, s) = (strip / self.strips_per_matrix(), strip % self.strips_per_matrix());
        let first = s * TILE_ROWS;
        let last = (first + TILE_ROWS).min(self.rows);
        let base = matrix * self.rows;
        (base + first) * self.cols..(base + last) * self.cols
    }
}

/// The tile width that the writer uses if none is asked for.
///
/// Each chunk costs its lanes' states or lengths and its own offset, whatever its width, so wide tiles are smaller. A
/// GPU decodes the symbols of a lane one after the other, so narrow tiles are faster if a plane has too few chunks to
/// fill the device.
///
/// ```
/// use wcodec::Coder;
/// use wcodec::coder::tile::default_tile;
/// use wcodec::Layout::{Pair, Quad};
/// assert_eq!(default_tile(Coder::Rans, Pair, 2048, 2048), 192);
/// assert_eq!(default_tile(Coder::Rans, Pair, 2048, 64), 64);
/// assert_eq!(default_tile(Coder::Huffman, Pair, 5632, 2048), 256);
/// assert_eq!(default_tile(Coder::Huffman, Quad, 5632, 2048), 256);
/// ```
pub fn default_tile(coder: Coder, layout: Layout, rows: usize, cols: usize) -> usize {
    const LARGE: usize = 32 << 20;
    match layout {
        Layout::Byte | Layout::Pair | Layout::Split => {}
        // Lanes have two streams, and both lengths are stored.
        Layout::Quad => return wide_tile(rows, cols),
    }
    let elements = rows.saturating_mul(cols);
    let target = match elements {
        LARGE.. => 512,
        _ if coder == Coder::Rans => 192,
        _ => 256,
    };
    equal_tiles(cols, target)
}

/// The tile width where the fixed bytes per tile weigh more than in scheme `int8` with layouts of one stream, such as
/// at low rates.
///
/// Each warp of a GPU decodes one tile: matrices of up to some millions of weights need many tiles to fill the device,
/// and a launch that cannot fill it takes as long as one tile does. Only for smaller matrices do bytes matter more.
/// Scheme `rate` decides otherwise in small files ([`rate_tile`]).
///
/// ```
/// use wcodec::coder::tile::wide_tile;
/// assert_eq!(wide_tile(128, 2048), 512);
/// assert_eq!(wide_tile(256, 2048), 256);
/// assert_eq!(wide_tile(5632, 2048), 256);
/// assert_eq!(wide_tile(4096, 4096), 512);
/// ```
pub fn wide_tile(rows: usize, cols: usize) -> usize {
    const SMALL: usize = 1 << 19;
    const LARGE: usize = 16 << 20;
    let target = if (SMALL..LARGE).contains(&rows.saturating_mul(cols)) { 256 } else { 512 };
    equal_tiles(cols, target)
}

/// The tile width of scheme `rate`, in a file with `weights` quantized weights.
///
/// Each tile has some fixed bytes: at the widths that are fast on a GPU they are 0.03 to 0.1 bits per weight of a small
/// matrix, and up to a tenth of the KL divergence. So tiles are wide in small files: all of coder `rans`, which is for
/// size, and those of small matrices with coder `huffman`. On an H200 products of one token with matrices of up to
/// 1.8 million weights take about as long as a launch, and in an engine longer than bf16's whatever the width is.
///
/// ```
/// use wcodec::Coder::{Huffman, Rans};
/// use wcodec::coder::tile::rate_tile;
/// assert_eq!([rate_tile(Rans, 576, 576, 1 << 27), rate_tile(Huffman, 576, 1536, 1 << 27)], [576, 768]);
/// assert_eq!([rate_tile(Rans, 2048, 2048, 1 << 30), rate_tile(Huffman, 2048, 2048, 1 << 27)], [256, 256]);
/// ```
pub fn rate_tile(coder: Coder, rows: usize, cols: usize, weights: usize) -> usize {
    const SMALL_FILE: usize = 1 << 29;
    const SMALL_MATRIX: usize = 1 << 22;
    const WIDEST: usize = 768;
    let small = coder == Coder::Rans || rows.saturating_mul(cols) < SMALL_MATRIX;
    if weights < SMALL_FILE && small { equal_tiles(cols, WIDEST) } else { wide_tile(rows, cols) }
}

/// The width of the fewest tiles of at most `target` columns, all about equally wide.
pub fn equal_tiles(cols: usize, target: usize) -> usize {
    // Equal tiles: 5 blocks under a target of 4 make 3 + 2 and not 4 + 1.
    let blocks = cols.div_ceil(BLOCK_COLS).max(1);
    let tiles = (blocks * BLOCK_COLS).div_ceil(target);
    blocks.div_ceil(tiles) * BLOCK_COLS
}

/// Coded symbols of a lane and block.
pub fn symbols_per_block(layout: Layout) -> usize {
    match layout {
        Layout::Byte | Layout::Split => 32,
        Layout::Pair => 16,
        Layout::Quad => 8,
    }
}

/// Side words of a lane and block: one for each uncoded bit of an element.
pub fn side_words(layout: Layout, shift: u32) -> usize {
    match layout {
        Layout::Byte => 0,
        Layout::Pair | Layout::Quad => shift as usize + 1,
        Layout::Split => shift as usize,
    }
}

/// Bytes of the side plane that belong to a tile of `width` columns.
pub fn side_bytes(coder: Coder, layout: Layout, shift: u32, width: usize) -> usize {
    let full = width / BLOCK_COLS * side_words(layout, shift) * LANES * 4;
    // The tails of rANS: one word a lane.
    full.saturating_sub(if coder == Coder::Rans { LANES * 4 } else { 0 })
}

/// Length in bytes of an uncoded tile's body.
pub fn raw_body_bytes(coder: Coder, layout: Layout, width: usize) -> usize {
    match (layout, coder) {
        (Layout::Byte, _) | (Layout::Split, Coder::Huffman) => TILE_ROWS * width,
        (Layout::Split, _) => TILE_ROWS * width + LANES * 4,
        (Layout::Pair, Coder::Rans) => TILE_ROWS * width / 2 + LANES * 4,
        (Layout::Pair | Layout::Quad, _) => TILE_ROWS * width / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_element_once() {
        for (count, rows, cols, tile) in [(1, 1, 1, 64), (2, 17, 130, 128), (1, 16, 640, 256), (3, 5, 64, 64)] {
            let g = TileGeometry::new(count, rows, cols, tile).unwrap();
            let mut seen = vec![0; g.elements()];
            for chunk in 0..g.chunks() {
                let p = g.position(chunk);
                assert!(p.width > 0 && p.width <= tile && p.width.is_multiple_of(64));
                for row in seen[g.strip_elements(p.strip)].chunks_mut(cols) {
                    let end = (p.col + p.width).min(cols);
                    row[p.col..end].iter_mut().for_each(|n| *n += 1);
                }
            }
            assert!(seen.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn default_tiles_are_legal_for_every_width() {
        for &coder in Coder::ALL {
            for cols in (0..5000).step_by(7) {
                for (rows, layout) in
                    [1, 16, 1000, 100_000].into_iter().flat_map(|r| Layout::ALL.iter().map(move |&l| (r, l)))
                {
                    let w = default_tile(coder, layout, rows, cols);
                    assert!(
                        w.is_multiple_of(64) && (64..=MAX_TILE).contains(&w),
                        "{coder} {layout} {rows} x {cols}: {w}"
                    );
                }
            }
        }
    }

    #[test]
    fn hostile_sizes_are_refused() {
        assert!(TileGeometry::new(1, usize::MAX, 1, 64).is_err());
        assert!(TileGeometry::new(1 << 40, 1 << 20, 1 << 20, 64).is_err());
        // Zero elements in all, but partial products that overflow.
        for (count, rows, cols) in [(1 << 40, 1 << 40, 0), (1 << 40, 0, 1 << 40), (0, 1 << 40, 1 << 40)] {
            assert!(TileGeometry::new(count, rows, cols, 64).is_err());
        }
        for tile in [0, 1, 63, 65, 1088] {
            assert!(TileGeometry::new(1, 1, 1, tile).is_err());
        }
    }
}
