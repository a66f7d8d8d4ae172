//! Scheme `int8`: symbols in [-127, 127] and one f32 scale per row, block or tensor.
//!
//! `scale = max|w| / 127`, `q = round_half_even(w / scale)`, `w' = q * scale`, all in f32 arithmetic, which NumPy and
//! torch repeat bit for bit.

use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView2, Axis};
use rayon::prelude::*;

use crate::error::{Error, Result};

/// Largest symbol.
pub const MAX_SYMBOL: f32 = 127.0;
/// Columns of a block where none is asked for.
pub const DEFAULT_BLOCK: usize = 128;

/// What to do about weights that are not finite.
pub(crate) const NOT_FINITE_ADVICE: &str =
    "int8 needs finite weights: repair the checkpoint, or exclude the tensor so that it is stored raw";

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Granularity {
    /// Those of a row (an output channel).
    #[default]
    Row,
    /// All of the tensor.
    Tensor,
    /// So many neighbours in a row, a multiple of 16; the last block of a row may be shorter.
    Block(usize),
}

impl Granularity {
    /// # Errors
    /// A block length that is not a positive multiple of 16.
    pub fn check(self) -> Result<Self> {
        match self {
            Granularity::Block(n) if n == 0 || n % 16 != 0 => {
                Err(Error::format(format!("blocks of scales have a multiple of 16 columns, not {n}")))
            }
            _ => Ok(self),
        }
    }

    /// Scales of a row of `cols` columns; 0 where rows share one.
    pub fn scales_per_row(self, cols: usize) -> usize {
        match self {
            Granularity::Row => 1,
            Granularity::Tensor => 0,
            Granularity::Block(n) => cols.div_ceil(n),
        }
    }

    /// Scales of `rows` rows of `cols` columns.
    pub fn scales(self, rows: usize, cols: usize) -> usize {
        match self {
            Granularity::Tensor => 1,
            _ => rows * self.scales_per_row(cols),
        }
    }

    /// Columns that share a scale.
    pub fn columns(self, cols: usize) -> usize {
        match self {
            Granularity::Block(n) => n,
            _ => cols.max(1),
        }
    }
}

impl std::fmt::Display for Granularity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Granularity::Row => f.write_str("row"),
            Granularity::Tensor => f.write_str("tensor"),
            Granularity::Block(n) => write!(f, "block {n}"),
        }
    }
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Element types that the scheme takes: `f32`, [`half::f16`], [`half::bf16`].
pub trait Weight: private::Sealed + Copy + Send + Sync + bytemuck::Pod {
    /// Exactly the same value.
    fn to_f32(self) -> f32;
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Weight for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Weight for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        // A scale from a damaged file may be NaN. Rounding could carry that to infinity, so it is cut off and made quiet.
        let nan = u32::from(value.is_nan()).wrapping_neg();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(((rounded & !nan) | (quiet & nan)) as u16)
    }
}

/// A quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Symbols, `[rows, cols]`.
    pub symbols: Array2<i8>,
    /// Scales, row by row; see [`Granularity::scales`].
    pub scales: Array1<f32>,
}

/// The scale for elements whose largest magnitude is `largest`.
#[inline]
pub fn scale_of(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { (largest / MAX_SYMBOL).max(f32::MIN_POSITIVE) }
}

/// Rounds to the nearest integer, ties to even, and clamps to a symbol.
///
/// Adding 1.5 * 2^23 leaves the integer in the low bits of the mantissa, rounded by the hardware's own mode; unlike
/// `round_ties_even` this vectorizes on every x86-64.
#[inline(always)]
fn round(value: f32) -> i8 {
    const MAGIC: f32 = 12_582_912.0;
    (value.clamp(-MAX_SYMBOL, MAX_SYMBOL) + MAGIC).to_bits() as i8
}

/// Quantizes a matrix of any memory order.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input) where an element is not finite: the message names its row and column.
///
/// ```
/// use ndarray::array;
/// use wcodec::scheme::int8::{quantize, Granularity};
/// let q = quantize(array![[0.5f32, -1.0], [0.0, 0.0]].view(), Granularity::Row).unwrap();
/// assert_eq!(q.symbols, array![[64, -127], [0, 0]]);
/// assert_eq!(q.scales, array![1.0 / 127.0, 1.0]);
/// ```
pub fn quantize<T: Weight>(weights: ArrayView2<'_, T>, granularity: Granularity) -> Result<Quantized> {
    granularity.check()?;
    let (rows, cols) = weights.dim();
    let mut symbols = Array2::zeros((rows, cols));
    let mut scales = Array1::ones(granularity.scales(rows, cols));
    if symbols.is_empty() {
        return Ok(Quantized { symbols, scales });
    }
    let shared = match granularity {
        Granularity::Tensor => {
            let largest = (0..rows)
                .into_par_iter()
                .map_init(Vec::new, |buffer, r| largest_magnitude(row(&weights, r, buffer), r, 0))
                .try_reduce(|| 0.0, |a, b| Ok(a.max(b)))?;
            scales[0] = scale_of(largest);
            Some(scales[0])
        }
        _ => None,
    };
    let columns = granularity.columns(cols);
    let per_row = granularity.scales_per_row(cols);
    let all = scales.as_slice_mut().expect("made contiguous");
    let quantize_row = |(r, symbols): (usize, &mut [i8]), scales: &mut [f32], buffer: &mut Vec<f32>| -> Result<()> {
        let weights = row(&weights, r, buffer);
        for (block, (w, q)) in weights.chunks(columns).zip(symbols.chunks_mut(columns)).enumerate() {
            let scale = match shared {
                Some(scale) => scale,
                None => {
                    scales[block] = scale_of(largest_magnitude(w, r, block * columns)?);
                    scales[block]
                }
            };
            q.iter_mut().zip(w).for_each(|(q, w)| *q = round(w / scale));
        }
        Ok(())
    };
    let rows_of_symbols = symbols.as_slice_mut().expect("made contiguous").par_chunks_mut(cols).enumerate();
    match per_row {
        0 => rows_of_symbols.try_for_each_init(Vec::new, |buffer, row| quantize_row(row, &mut [], buffer))?,
        n => rows_of_symbols
            .zip(all.par_chunks_mut(n))
            .try_for_each_init(Vec::new, |buffer, (row, scales)| quantize_row(row, scales, buffer))?,
    }
    Ok(Quantized { symbols, scales })
}

/// Row `r` as f32, in `buffer`.
fn row<'b, T: Weight>(weights: &ArrayView2<'_, T>, r: usize, buffer: &'b mut Vec<f32>) -> &'b [f32] {
    buffer.clear();
    let view = weights.index_axis(Axis(0), r);
    match view.to_slice() {
        Some(slice) => buffer.extend(slice.iter().map(|w| w.to_f32())),
        None => buffer.extend(view.iter().map(|w| w.to_f32())),
    }
    buffer
}

fn largest_magnitude(weights: &[f32], row: usize, col: usize) -> Result<f32> {
    // Magnitudes of floats order like the integers of their bits, infinity and NaN above all others.
    let bits = weights.iter().fold(0, |m, w| m.max(w.to_bits() & 0x7FFF_FFFF));
    if bits < f32::INFINITY.to_bits() {
        return Ok(f32::from_bits(bits));
    }
    let at = weights.iter().position(|w| !w.is_finite()).unwrap_or(0);
    Err(Error::input(format!("{} at row {row}, column {}", weights[at], col + at)).advice(NOT_FINITE_ADVICE))
}

/// Writes `symbols[i] * scale` for a run of a row that begins at column `col`, into elements of the target type.
///
/// `scales` are those of the row (or the tensor's one), `columns` as [`Granularity::columns`] says.
#[inline]
pub fn dequantize_run<T: Weight>(symbols: &[i8], col: usize, scales: &[f32], columns: usize, out: &mut [T]) {
    let mut done = 0;
    while done < symbols.len() {
        let block = (col + done) / columns;
        let end = ((block + 1) * columns - col).min(symbols.len());
        let scale = scales[block];
        out[done..end].iter_mut().zip(&symbols[done..end]).for_each(|(o, &q)| *o = T::from_f32(f32::from(q) * scale));
        done = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};
    use proptest::prelude::*;

    /// The definition, word for word.
    fn reference(weights: &[f32]) -> (Vec<i8>, f32) {
        let largest = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
        let scale = if largest == 0.0 { 1.0 } else { (largest / 127.0).max(f32::MIN_POSITIVE) };
        (weights.iter().map(|w| (w / scale).round_ties_even().clamp(-127.0, 127.0) as i8).collect(), scale)
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            bits in prop::collection::vec(prop_oneof![any::<u32>(), 0u32..0x0100_0000, 0x3F00_0000u32..0x4000_0000], 1..200),
            cols in 1usize..40,
        ) {
            let data: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).filter(|f| f.is_finite()).collect();
            let rows = data.len() / cols;
            let w = Array2::from_shape_vec((rows, cols), data[..rows * cols].to_vec()).unwrap();
            let q = quantize(w.view(), Granularity::Row).unwrap();
            for r in 0..rows {
                let (symbols, scale) = reference(w.row(r).as_slice().unwrap());
                prop_assert_eq!(q.symbols.row(r).to_vec(), symbols);
                prop_assert_eq!(q.scales[r], scale);
            }
            let q = quantize(w.view(), Granularity::Block(16)).unwrap();
            let blocks: Vec<_> = w.outer_iter().flat_map(|r| r.to_vec().chunks(16).map(reference).collect::<Vec<_>>()).collect();
            prop_assert_eq!(q.scales.to_vec(), blocks.iter().map(|b| b.1).collect::<Vec<_>>());
            prop_assert_eq!(q.symbols.iter().copied().collect::<Vec<_>>(), blocks.iter().flat_map(|b| b.0.clone()).collect::<Vec<_>>());
            let q = quantize(w.view(), Granularity::Tensor).unwrap();
            let (symbols, scale) = reference(w.as_slice().unwrap());
            prop_assert_eq!(q.symbols.iter().copied().collect::<Vec<_>>(), symbols);
            prop_assert!(rows == 0 || q.scales[0] == scale);
        }

        #[test]
        fn bf16_rounds_like_half(bits: u32) {
            let f = f32::from_bits(bits);
            prop_assert_eq!(<bf16 as Weight>::from_f32(f).to_bits(), bf16::from_f32(f).to_bits());
            let exact = <bf16 as Weight>::to_f32(bf16::from_f32(f));
            prop_assert_eq!(exact.to_bits(), bf16::from_f32(f).to_f32().to_bits());
        }
    }

    #[test]
    fn any_memory_order_gives_the_same_symbols() {
        let w = Array2::from_shape_fn((7, 30), |(r, c)| (r as f32 - 3.0) * 0.3 + (c as f32).sin());
        let q = quantize(w.view(), Granularity::Row).unwrap();
        let transposed = w.t().as_standard_layout().to_owned();
        assert_eq!(quantize(transposed.t(), Granularity::Row).unwrap(), q);
        let wide = Array2::from_shape_fn((7, 60), |(r, c)| if c % 2 == 0 { w[[r, c / 2]] } else { f32::NAN });
        assert_eq!(quantize(wide.slice(ndarray::s![.., ..;2]), Granularity::Row).unwrap(), q);
    }

    #[test]
    fn halves_round_to_even_and_tiny_rows_get_the_smallest_normal_scale() {
        let q = quantize(array![[127.0f32, 0.5, 1.5, 2.5, -0.5, -1.5]].view(), Granularity::Row).unwrap();
        assert_eq!(q.symbols, array![[127, 0, 2, 2, 0, -2]]);
        let tiny = f32::from_bits(40);
        let q = quantize(array![[tiny, -tiny]].view(), Granularity::Row).unwrap();
        assert_eq!((q.scales[0], q.symbols), (f32::MIN_POSITIVE, array![[0, 0]]));
        assert_eq!(quantize(array![[-0.0f32]].view(), Granularity::Row).unwrap().scales[0], 1.0);
    }

    #[test]
    fn what_is_not_finite_is_refused_with_its_place() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for g in [Granularity::Row, Granularity::Tensor, Granularity::Block(16)] {
                let mut w = Array2::<f32>::zeros((3, 40));
                w[[2, 33]] = bad;
                let e = quantize(w.view(), g).unwrap_err().to_string();
                assert!(e.contains("row 2, column 33"), "{e}");
            }
        }
        assert!(quantize(array![[f16::NAN]].view(), Granularity::Row).is_err());
        assert!(quantize(array![[1f32]].view(), Granularity::Block(24)).is_err());
    }

    #[test]
    fn dequantized_runs_may_begin_anywhere() {
        let symbols: Vec<i8> = (-50..50).collect();
        let scales: Vec<f32> = (1..=4).map(|i| i as f32 * 0.37).collect();
        let mut whole = vec![0f32; 64];
        dequantize_run(&symbols[..64], 0, &scales, 16, &mut whole);
        for begin in [0, 5, 16, 31, 63] {
            let mut part = vec![0f32; 64 - begin];
            dequantize_run(&symbols[begin..64], begin, &scales, 16, &mut part);
            assert_eq!(part, whole[begin..]);
        }
        assert_eq!(whole[17], -33.0 * (2.0 * 0.37f32));
    }
}
