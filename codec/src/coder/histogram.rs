//! Counts symbols.

use super::pair::fold;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::try_vec;

/// The number of 8-bit symbols.
pub const SYMBOLS: usize = 256;

/// The number of occurrences of each symbol.
pub type Histogram = [u64; SYMBOLS];

/// Elements counted at once: few enough for 32-bit counts.
const PART: usize = 1 << 20;

/// Counts bytes.
pub fn count_bytes(bytes: &[u8]) -> Histogram {
    let mut sum = [0; SYMBOLS];
    for part in bytes.chunks(PART) {
        // Four tables, because in a run of one symbol each increment would wait for the store before it.
        let mut h = [[0u32; SYMBOLS]; 4];
        let mut quads = part.chunks_exact(4);
        for q in &mut quads {
            for (t, &b) in h.iter_mut().zip(q) {
                t[b as usize] += 1;
            }
        }
        for &b in quads.remainder() {
            h[0][b as usize] += 1;
        }
        sum.iter_mut().enumerate().for_each(|(i, n)| *n += h.iter().map(|t| u64::from(t[i])).sum::<u64>());
    }
    sum
}

/// [`count_bytes`] on all threads.
pub(crate) fn count_bytes_with(bytes: &[u8], pool: &Pool, cancel: &Cancel) -> Result<Histogram> {
    let parts = pool.each(bytes.chunks(pool.piece(bytes.len())), cancel, |part| Ok(count_bytes(part)))?;
    let mut sum = [0; SYMBOLS];
    parts.iter().for_each(|part| sum.iter_mut().zip(part).for_each(|(n, more)| *n += more));
    Ok(sum)
}

/// Order-0 entropy in bits per symbol: the lower bound for any static code of single symbols.
///
/// ```
/// let mut h = [0; 256];
/// (h[0], h[1]) = (5, 5);
/// assert_eq!(wcodec::coder::histogram::entropy(&h), 1.0);
/// ```
pub fn entropy(histogram: &Histogram) -> f64 {
    entropy_of(histogram)
}

/// [`entropy`] of counts over an alphabet of any size.
pub(crate) fn entropy_of(histogram: &[u64]) -> f64 {
    let n: u64 = histogram.iter().sum();
    let bits: f64 = histogram.iter().filter(|&&c| c > 0).map(|&c| c as f64 * (n as f64 / c as f64).log2()).sum();
    if n == 0 { 0.0 } else { bits / n as f64 }
}

/// Joint counts of neighbouring folded symbols, from which the coded symbols of layout `pair` follow for any shift.
pub struct PairHistogram(Vec<u64>);

const SIDE: usize = 128;

impl PairHistogram {
    /// Counts the pairs of a row-major matrix of `cols` columns. A lone last column is paired with 0, the value of
    /// padding.
    pub fn count(symbols: &[i8], cols: usize, pool: &Pool, cancel: &Cancel) -> Result<Self> {
        let mut sum: Vec<u64> = try_vec(SIDE * SIDE)?;
        if cols == 0 {
            return Ok(Self(sum));
        }
        // Whole rows, or parts of one that begin with a pair.
        let piece = pool.piece(symbols.len()).next_multiple_of(2);
        let rows = symbols.chunks((piece / cols).max(1) * cols);
        let pieces: Vec<&[i8]> =
            if cols < piece { rows.collect() } else { rows.flat_map(|r| r.chunks(piece)).collect() };
        let parts = pool.each(pieces, cancel, |rows| {
            let mut h: Vec<u32> = try_vec(SIDE * SIDE)?;
            for row in rows.chunks(cols) {
                let mut pairs = row.chunks_exact(2);
                for p in &mut pairs {
                    h[fold(p[0]) as usize * SIDE + fold(p[1]) as usize] += 1;
                }
                for &q in pairs.remainder() {
                    h[fold(q) as usize * SIDE] += 1;
                }
            }
            Ok(h)
        })?;
        for part in parts {
            sum.iter_mut().zip(part).for_each(|(n, more)| *n += u64::from(more));
        }
        Ok(Self(sum))
    }

    /// Adds pairs of padding, which is 0.
    pub fn add_padding(&mut self, pairs: u64) {
        self.0[0] += pairs;
    }

    /// Counts of the high parts at `shift`.
    pub fn highs(&self, shift: u32) -> HighPairs {
        let mut pairs = HighPairs(Box::new([[0; HIGHS]; HIGHS]));
        for (i, &n) in self.0.iter().enumerate().filter(|(_, n)| **n > 0) {
            pairs.0[((i / SIDE) >> shift).min(ESCAPE)][((i % SIDE) >> shift).min(ESCAPE)] += n;
        }
        pairs
    }
}

/// The index under which an escape's high part is counted; symbols have no such value.
pub const ESCAPE: usize = 16;
/// The number of high parts, [`ESCAPE`] included.
pub const HIGHS: usize = ESCAPE + 1;

/// Joint counts of neighbouring high parts, with all escapes alike: `[first][second]`.
pub struct HighPairs(Box<[[u64; HIGHS]; HIGHS]>);

impl HighPairs {
    /// First part, second part, and count.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        self.0.iter().enumerate().flat_map(|(a, row)| row.iter().enumerate().map(move |(b, &n)| (a, b, n)))
    }

    /// Counts of the coded symbols, where every escape is coded with 15.
    pub fn symbols(&self) -> Histogram {
        let mut h = [0; SYMBOLS];
        self.iter().for_each(|(a, b, n)| h[a.min(15) | b.min(15) << 4] += n);
        h
    }

    /// The number of elements that are escapes.
    pub fn escapes(&self) -> u64 {
        self.iter().map(|(a, b, n)| n * (u64::from(a == ESCAPE) + u64::from(b == ESCAPE))).sum()
    }
}
