//! Counts quads.

use super::{ESCAPE, QUAD, highs};
use crate::cancel::Cancel;
use crate::coder::histogram::Histogram;
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::try_vec;

/// The high parts that are counted for an element, [`ESCAPE`] included.
pub const HIGHS: usize = ESCAPE + 1;
/// The number of quads that are counted.
pub const COUNTED: usize = HIGHS.pow(QUAD as u32);
/// The weight of each element's high part in an index, as in a positional number; the first element's is 1.
pub const PLACES: [usize; QUAD] = [1, HIGHS, HIGHS * HIGHS, HIGHS * HIGHS * HIGHS];

/// The index of four high parts among the quads counted.
#[inline(always)]
pub fn place_of(highs: [usize; QUAD]) -> usize {
    highs[0] + HIGHS * (highs[1] + HIGHS * (highs[2] + HIGHS * highs[3]))
}

/// The four high parts at an index.
pub fn highs_at(place: usize) -> [usize; QUAD] {
    PLACES.map(|unit| place / unit % HIGHS)
}

/// Counts of the quads of a plane at one shift.
pub struct QuadCounts(Vec<u64>);

impl QuadCounts {
    /// Counts the quads of a row-major matrix of `cols` columns. The missing elements of a row's last quad are 0, the
    /// value of padding.
    pub fn count(symbols: &[i8], cols: usize, shift: u32, pool: &Pool, cancel: &Cancel) -> Result<Self> {
        let mut sum: Vec<u64> = try_vec(COUNTED)?;
        if cols == 0 {
            return Ok(Self(sum));
        }
        // Whole rows, or parts of one that begin with a quad.
        let piece = pool.piece(symbols.len()).next_multiple_of(QUAD);
        let rows = symbols.chunks((piece / cols).max(1) * cols);
        let pieces: Vec<&[i8]> =
            if cols < piece { rows.collect() } else { rows.flat_map(|r| r.chunks(piece)).collect() };
        let parts = pool.each(pieces, cancel, |rows| {
            let mut h: Vec<u32> = try_vec(COUNTED)?;
            for row in rows.chunks(cols) {
                let (quads, rest) = row.as_chunks::<QUAD>();
                for &quad in quads {
                    h[place_of(highs(quad, shift))] += 1;
                }
                if !rest.is_empty() {
                    let quad = std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0));
                    h[place_of(highs(quad, shift))] += 1;
                }
            }
            Ok(h)
        })?;
        for part in parts {
            sum.iter_mut().zip(part).for_each(|(n, more)| *n += u64::from(more));
        }
        Ok(Self(sum))
    }

    /// The expected counts of `quads` quads with independent elements distributed as in `histogram`.
    pub fn expected(histogram: &Histogram, quads: f64, shift: u32) -> Self {
        Self(expected(&single(histogram, shift), quads).collect())
    }

    /// The expected counts of `factor` times as many quads. They include rare quads that are lacking here, because each of
    /// them takes a slot of a table from the others. The elements of a quad are treated as independent, which they
    /// nearly are.
    pub fn times(&self, factor: f64) -> Self {
        let mut single = [0u64; HIGHS];
        self.iter().for_each(|(place, n)| highs_at(place).iter().for_each(|&high| single[high] += n));
        let alone = expected(&single, self.quads() as f64 * factor);
        let scaled = |(n, alone): (&u64, u64)| if *n > 0 { (*n as f64 * factor).round() as u64 } else { alone };
        Self(self.0.iter().zip(alone).map(scaled).collect())
    }

    /// Adds quads of padding, which is 0.
    pub fn add_padding(&mut self, quads: u64) {
        self.0[0] += quads;
    }

    /// Indices and counts of the quads that occur.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|&(_, n)| n > 0)
    }

    /// The number of quads counted.
    pub fn quads(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of elements that are escapes.
    pub fn escapes(&self) -> u64 {
        // The counts of an element's escapes lie together.
        let of_element = |unit: usize| self.0.chunks(unit * HIGHS).flat_map(move |quads| &quads[unit * ESCAPE..]);
        PLACES.iter().flat_map(|&unit| of_element(unit)).sum()
    }
}

/// The counts of single elements' high parts, from counts of their symbols.
pub fn single(histogram: &Histogram, shift: u32) -> [u64; HIGHS] {
    let mut single = [0; HIGHS];
    for (symbol, &n) in (0..=u8::MAX).zip(histogram) {
        single[highs([symbol as i8; QUAD], shift)[0]] += n;
    }
    single
}

/// The expected count of each quad, of `quads` in all, with independent elements.
fn expected(single: &[u64; HIGHS], quads: f64) -> impl Iterator<Item = u64> {
    let all: u64 = single.iter().sum();
    let shares = single.map(|n| if all > 0 { n as f64 / all as f64 } else { 0.0 });
    (0..COUNTED)
        .map(move |place| (quads * highs_at(place).iter().map(|&high| shares[high]).product::<f64>()).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::histogram::count_bytes;

    #[test]
    fn rows_end_with_padding_and_large_parts_are_escapes() {
        let pool = Pool::new(None).unwrap();
        let symbols: Vec<i8> = vec![0, 1, -1, -2, 5, 127, -128, 3, 3, 3, 8, 7];
        let counts = QuadCounts::count(&symbols, 6, 0, &pool, &Cancel::new()).unwrap();
        let found: Vec<_> = counts.iter().map(|(place, n)| (highs_at(place), n)).collect();
        assert_eq!(found, [([8, 7, 0, 0], 1), ([5, 8, 0, 0], 1), ([0, 1, 0, 1], 1), ([8, 3, 3, 3], 1),]);
        assert_eq!((counts.quads(), counts.escapes()), (4, 3));
        assert!((0..COUNTED).all(|place| place_of(highs_at(place)) == place));
    }

    #[test]
    fn each_element_may_be_an_escape() {
        let mut counts = QuadCounts((0..COUNTED as u64).collect());
        counts.add_padding(1000);
        let of = |place: usize| highs_at(place).iter().filter(|&&high| high == ESCAPE).count() as u64;
        assert_eq!(counts.escapes(), counts.iter().map(|(place, n)| n * of(place)).sum::<u64>());
    }

    #[test]
    fn independent_elements_occur_as_expected() {
        let symbols: Vec<i8> =
            (0..1 << 16).map(|i: i32| (i.wrapping_mul(i).wrapping_mul(7919) >> 7 & 3) as i8).collect();
        let histogram = count_bytes(bytemuck::cast_slice(&symbols));
        let expected = QuadCounts::expected(&histogram, 16384.0, 0);
        let places = |n: usize| [n % 4, n / 4 % 4, n / 16 % 4, n / 64];
        for n in 0..256 {
            let product: f64 = places(n).iter().map(|&h| histogram[h] as f64 / 65536.0).product();
            assert_eq!(expected.0[place_of(places(n))], (product * 16384.0).round() as u64);
        }
        assert!(expected.quads().abs_diff(16384) < 128);
    }
}
