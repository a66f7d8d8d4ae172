//! Filters that are undone after decoding: lossless prediction, and the trellis. `FORMAT.md` section 4.

use super::{Filter, Isa};

pub mod trellis;

/// Filters `rows` rows of `width` bytes, `stride` apart, in place: each byte becomes the difference to its neighbour
/// or, for the trellis, the symbol of its level.
pub fn apply(filter: Filter, bytes: &mut [i8], stride: usize, width: usize) {
    match filter {
        Filter::None => {}
        Filter::Left => {
            for row in bytes.chunks_mut(stride) {
                for i in (1..width.min(row.len())).rev() {
                    row[i] = row[i].wrapping_sub(row[i - 1]);
                }
            }
        }
        Filter::Up => {
            let rows = bytes.len().div_ceil(stride.max(1));
            for r in (1..rows).rev() {
                let (above, row) = bytes.split_at_mut(r * stride);
                let above = &above[(r - 1) * stride..];
                row.iter_mut().zip(above).take(width).for_each(|(b, a)| *b = b.wrapping_sub(*a));
            }
        }
        Filter::Trellis => bytes.chunks_mut(stride).for_each(|row| {
            let width = width.min(row.len());
            trellis::symbols_of(&mut row[..width]);
        }),
    }
}

/// Undoes [`apply`] with the instructions of `isa` where they are faster.
///
/// # Panics
/// `stride` is 0, or this machine lacks `isa`.
pub fn undo(filter: Filter, bytes: &mut [i8], stride: usize, width: usize, isa: Isa) {
    match filter {
        Filter::None => {}
        Filter::Left => {
            for row in bytes.chunks_mut(stride) {
                let mut sum = 0i8;
                for b in row.iter_mut().take(width) {
                    sum = sum.wrapping_add(*b);
                    *b = sum;
                }
            }
        }
        Filter::Up => {
            let rows = bytes.len().div_ceil(stride.max(1));
            for r in 1..rows {
                let (above, row) = bytes.split_at_mut(r * stride);
                let above = &above[(r - 1) * stride..];
                row.iter_mut().zip(above).take(width).for_each(|(b, a)| *b = b.wrapping_add(*a));
            }
        }
        Filter::Trellis => trellis::undo(bytes, stride, width, isa),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filters_undo(mut bytes in prop::collection::vec(any::<i8>(), 0..300), width in 1usize..20, extra in 0usize..5) {
            let stride = width + extra;
            let before = bytes.clone();
            for f in [Filter::None, Filter::Left, Filter::Up] {
                apply(f, &mut bytes, stride, width);
                undo(f, &mut bytes, stride, width, Isa::Scalar);
                prop_assert_eq!(&bytes, &before);
            }
        }
    }

    #[test]
    fn ramps_become_constant() {
        let mut b: Vec<i8> = (0..12).collect();
        apply(Filter::Left, &mut b, 4, 4);
        assert_eq!(b, [0, 1, 1, 1, 4, 1, 1, 1, 8, 1, 1, 1]);
        undo(Filter::Left, &mut b, 4, 4, Isa::Scalar);
        apply(Filter::Up, &mut b, 4, 4);
        assert_eq!(b, [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]);
    }
}
