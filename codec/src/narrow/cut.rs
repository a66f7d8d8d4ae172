//! The requested parts of a tensor, and their positions in its matrices.

use std::ops::Range;

use crate::coder::TILE_ROWS;
use crate::coder::tile::TileGeometry;
use crate::container::MatrixEntry;
use crate::decode::{Container, DecodeOptions};
use crate::error::Result;
use crate::scheme::int8::Granularity;
use crate::stored::{StoredPlane, StoredTensor};
use crate::tensor::{AlignedBytes, element_count};

/// Bytes of a tensor that are read at once for cutting.
const AT_ONCE: usize = 16 << 20;

/// A part of a tensor, for [`narrow`](crate::narrow()): ranges of one of its dimensions, concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut<'a> {
    /// The name of the tensor in the container, which may be an alias.
    pub tensor: &'a str,
    /// The name of the part.
    pub name: &'a str,
    /// The dimension that is cut.
    pub axis: usize,
    /// The ranges that are kept, in this order; several if the tensor concatenates matrices that are each divided.
    pub ranges: Vec<Range<usize>>,
}

impl Cut<'_> {
    /// The shape of the part of a tensor of `shape`.
    pub(super) fn shape(&self, shape: &[usize]) -> Result<Vec<usize>> {
        let axis = self.axis;
        let Some(&length) = shape.get(axis) else {
            return Err(
                coded!(PARTS, "no dimension {axis}: the tensor has shape {shape:?}").advice("dimensions count from 0")
            );
        };
        let bad = |r: &&Range<usize>| r.start >= r.end || r.end > length;
        if let Some(range) = self.ranges.iter().find(bad) {
            let what = format!("{range:?} of dimension {axis}, which has {length}");
            return Err(coded!(PARTS, what).advice("ask for at least one, and for those that there are"));
        }
        let kept = self.ranges.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len())).filter(|&n| n > 0);
        let kept = kept.ok_or_else(|| coded!(PARTS, "a part without ranges").advice("name at least one"))?;
        let mut shape = shape.to_vec();
        shape[axis] = kept;
        element_count(&shape)?;
        Ok(shape)
    }

    /// The bytes of the part, row-major.
    pub(super) fn read(
        &self,
        container: &Container,
        tensor: &StoredTensor,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let shape = &tensor.shape;
        let size = tensor.dtype.size();
        let bytes = element_count(&self.shape(shape)?)?.saturating_mul(size);
        let mut out = AlignedBytes::zeroed(bytes)?;
        if bytes == 0 {
            return Ok(out);
        }
        let mut rest: &mut [u8] = &mut out;
        let mut put = |bytes: &[u8]| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            rest = later;
        };
        if self.axis == 0 {
            for range in &self.ranges {
                put(&container.read_rows(self.tensor, range.clone(), None, options)?);
            }
            return Ok(out);
        }
        let inner = element_count(&shape[self.axis + 1..])? * size;
        let run = shape[self.axis] * inner;
        let row = element_count(&shape[1..self.axis])? * run;
        let rows = (AT_ONCE / row.max(1)).max(1);
        for first in (0..shape[0]).step_by(rows) {
            let bytes = container.read_rows(self.tensor, first..(first + rows).min(shape[0]), None, options)?;
            for run in bytes.chunks_exact(run) {
                self.ranges.iter().for_each(|r| put(&run[r.start * inner..r.end * inner]));
            }
        }
        Ok(out)
    }
}

/// A part of a tensor's matrices.
#[derive(Clone, Debug)]
pub(super) struct MatrixCut {
    view: MatrixEntry,
    matrices: Vec<Range<usize>>,
    rows: Vec<Range<usize>>,
    cols: Vec<Range<usize>>,
}

impl MatrixCut {
    /// All of these matrices.
    pub fn uncut(view: MatrixEntry) -> Self {
        let all = |n: usize| std::iter::once(0..n).collect::<Vec<_>>();
        Self { view, matrices: all(view.count), rows: all(view.rows), cols: all(view.cols) }
    }

    /// The position of a part; `None` if the matrix view differs from the tensor's own dimensions.
    pub fn of(tensor: &StoredTensor, cut: &Cut<'_>) -> Option<Self> {
        let view = tensor.matrix?;
        let mut part = Self::uncut(view);
        let axes = if (view.count, view.row_axis) == (1, 0) && tensor.shape == [view.rows, view.cols] {
            [Some(1), Some(2), None]
        } else if (view.count, view.row_axis) == (1, 1) && tensor.shape == [view.cols, view.rows] {
            [Some(2), Some(1), None]
        } else if view.row_axis == 0 && tensor.shape == [view.count, view.rows, view.cols] {
            [Some(0), Some(1), Some(2)]
        } else {
            return None;
        };
        let kept = [&mut part.matrices, &mut part.rows, &mut part.cols];
        kept.into_iter().nth(axes[cut.axis]?)?.clone_from(&cut.ranges);
        Some(part)
    }

    /// The matrix view of the part.
    pub fn matrix(&self) -> MatrixEntry {
        let [count, rows, cols] = [&self.matrices, &self.rows, &self.cols].map(|r| total(r));
        MatrixEntry { count, rows, cols, row_axis: self.view.row_axis }
    }

    /// The part's matrices, rows, columns.
    pub fn form(&self) -> (usize, usize, usize) {
        let m = self.matrix();
        (m.count, m.rows, m.cols)
    }

    /// The part's columns.
    pub fn cols(&self) -> usize {
        total(&self.cols)
    }

    /// The part's elements.
    pub fn elements(&self) -> usize {
        let (count, rows, cols) = self.form();
        count * rows * cols
    }

    /// The indices of the matrices that are kept.
    fn kept(&self) -> impl Iterator<Item = usize> {
        self.matrices.iter().cloned().flatten()
    }

    /// The strips, and the tiles of each, that make up exactly this part, in its order; `None` if there are none.
    pub fn tiles(&self, g: &TileGeometry) -> Option<(Vec<usize>, Vec<usize>)> {
        let aligned = |ranges: &[Range<usize>], step: usize| {
            let last = ranges.len() - 1;
            let fits = |(i, r): (usize, &Range<usize>)| {
                r.start.is_multiple_of(step) && (i == last || r.len().is_multiple_of(step))
            };
            ranges.iter().enumerate().all(fits)
        };
        if !aligned(&self.rows, TILE_ROWS) || !aligned(&self.cols, g.tile()) {
            return None;
        }
        let rows = self.rows.iter().flat_map(|r| r.start / TILE_ROWS..r.end.div_ceil(TILE_ROWS));
        let rows: Vec<usize> = rows.collect();
        let strips = self.kept().flat_map(|m| rows.iter().map(move |strip| m * g.strips_per_matrix() + strip));
        let tiles: Vec<usize> = self.cols.iter().flat_map(|r| r.start / g.tile()..r.end.div_ceil(g.tile())).collect();
        // The last tile includes padding after the last column, so its padded width must not change.
        let (count, rows, cols) = self.form();
        let new = TileGeometry::new(count, rows, cols, g.tile()).ok()?;
        let width = |g: &TileGeometry, tile: usize| g.position(tile).width;
        let same = tiles.len() == new.tiles() && width(g, *tiles.last()?) == width(&new, new.tiles() - 1);
        same.then(|| (strips.collect(), tiles))
    }

    /// Whether each tile of `tile` columns in the part begins where an old one began and follows it to its end.
    pub fn keeps_tiles(&self, tile: usize) -> bool {
        let last = self.cols.len() - 1;
        let fits = |(i, r): (usize, &Range<usize>)| {
            r.start.is_multiple_of(tile) && (i == last || r.len().is_multiple_of(tile))
        };
        self.cols.iter().enumerate().all(fits)
    }

    /// The part's elements of a plane, each a byte unless its layout is `split`.
    pub fn elements_of(
        &self,
        container: &Container,
        plane: &StoredPlane,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let size = plane.form.coding.element_bytes();
        let (rows, cols) = (self.view.rows, self.view.cols);
        let mut out = AlignedBytes::zeroed(self.elements().saturating_mul(size))?;
        let mut rest: &mut [u8] = &mut out;
        for matrix in self.kept() {
            for range in &self.rows {
                let (first, last) = (matrix * rows + range.start, matrix * rows + range.end);
                let bytes = container.read_part(plane, first * cols..last * cols, options)?;
                for row in bytes.chunks_exact(cols * size) {
                    for r in &self.cols {
                        let (now, later) = std::mem::take(&mut rest).split_at_mut(r.len() * size);
                        now.copy_from_slice(&row[r.start * size..r.end * size]);
                        rest = later;
                    }
                }
            }
        }
        Ok(out)
    }

    /// The factors of the part's columns, given those of all columns of the tensor's matrices.
    pub fn columns(&self, all: &[f32]) -> Vec<f32> {
        let cols = || self.cols.iter().cloned().flatten();
        self.kept().flat_map(|matrix| cols().map(move |col| all[matrix * self.view.cols + col])).collect()
    }

    /// The scales of the part, and the elements that share one, given all scales of the tensor.
    ///
    /// # Errors
    /// A cut goes through blocks that cannot be made smaller.
    pub fn scales(&self, granularity: Granularity, all: &[f32]) -> Result<(Granularity, Vec<f32>)> {
        let per_row = granularity.scales_per_row(self.view.cols);
        if granularity == Granularity::Tensor {
            return Ok((granularity, all.to_vec()));
        }
        let rows =
            self.kept().flat_map(|m| self.rows.iter().cloned().flatten().map(move |row| m * self.view.rows + row));
        let Granularity::Block(block) = granularity else {
            return Ok((granularity, rows.map(|row| all[row]).collect()));
        };
        // The largest block that no border cuts.
        let inner = &self.cols[..self.cols.len() - 1];
        let borders = self.cols.iter().map(|r| r.start).chain(inner.iter().map(Range::len));
        let smaller = borders.fold(block, gcd);
        let new = Granularity::Block(smaller).check().map_err(|_| {
            coded!(NOT_DIVISIBLE, "columns {:?} of blocks of {block} that share a scale", self.cols)
                .advice("cut at multiples of 16 columns, or encode the model with scales per row")
        })?;
        let places: Vec<usize> =
            self.cols.iter().flat_map(|r| r.clone().step_by(smaller)).map(|col| col / block).collect();
        Ok((new, rows.flat_map(|row| places.iter().map(move |place| all[row * per_row + place])).collect()))
    }
}

fn total(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;

    fn part(cols: Vec<Range<usize>>) -> MatrixCut {
        MatrixCut { cols, ..MatrixCut::uncut(MatrixEntry { count: 1, rows: 2, cols: 320, row_axis: 0 }) }
    }

    #[test]
    fn blocks_of_scales_shrink_to_what_no_border_goes_through() {
        let all: Vec<f32> = (0..6).map(|i| i as f32).collect();
        for (cols, block, want) in [
            (vec![128..320], 128, vec![1.0, 2.0, 4.0, 5.0]),
            (vec![0..100], 128, vec![0.0, 3.0]),
            (vec![64..192], 64, vec![0.0, 1.0, 3.0, 4.0]),
            (vec![256..320, 0..64], 64, vec![2.0, 0.0, 5.0, 3.0]),
        ] {
            let found = part(cols.clone()).scales(Granularity::Block(128), &all).unwrap();
            assert_eq!(found, (Granularity::Block(block), want), "{cols:?}");
        }
        let e = part(vec![8..320]).scales(Granularity::Block(128), &all).unwrap_err();
        assert!(e.to_string().contains("multiples of 16"), "{e}");
    }

    #[test]
    fn tiles_are_those_that_end_where_the_part_ends() {
        let g = TileGeometry::new(1, 40, 320, 128).unwrap();
        let view = MatrixEntry { count: 1, rows: 40, cols: 320, row_axis: 0 };
        let of = |rows: Range<usize>, cols: Range<usize>| {
            MatrixCut { rows: vec![rows], cols: vec![cols], ..MatrixCut::uncut(view) }.tiles(&g)
        };
        assert_eq!(of(16..40, 0..320), Some((vec![1, 2], vec![0, 1, 2])));
        assert_eq!(of(0..20, 128..256), Some((vec![0, 1], vec![1])));
        assert_eq!(of(0..40, 128..320), Some((vec![0, 1, 2], vec![1, 2])));
        // The last tile would become narrower, or the range begins within a tile.
        for bad in [of(0..40, 0..192), of(0..40, 64..320), of(8..40, 0..320)] {
            assert_eq!(bad, None);
        }
        let several = MatrixCut { rows: vec![32..40, 0..16], cols: vec![256..320], ..MatrixCut::uncut(view) };
        assert_eq!(several.tiles(&g), None);
        let several = MatrixCut { rows: vec![16..32, 0..16], cols: vec![128..256, 0..100], ..MatrixCut::uncut(view) };
        assert_eq!(several.tiles(&g), Some((vec![1, 0], vec![1, 0])));
    }
}
