//! Quantizes weights to symbols and scales.

use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView2};

use super::granularity::Granularity;
use super::weight::Weight;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::matrix::{SymbolPlanes, Weights};
use crate::scheme::reader::{RUN, Reader, view_of};
use crate::tensor::{AlignedBytes, Dtype, try_vec};

/// The largest symbol.
pub const MAX_SYMBOL: f32 = 127.0;

/// Advice on non-finite weights.
pub(crate) const NOT_FINITE_ADVICE: &str =
    "int8 needs finite weights: repair the checkpoint, or exclude the tensor so that it is stored raw";

/// A quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Symbols, `[rows, cols]`.
    pub symbols: Array2<i8>,
    /// Scales, row by row; see [`Granularity::scales`].
    pub scales: Array1<f32>,
}

/// Quantizes a matrix of any memory order, with all cores.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input): an element is not finite; the message names its row and column. The
/// operating system refuses memory or threads.
///
/// ```
/// use ndarray::array;
/// use wcodec::scheme::int8::{quantize, Granularity};
/// let q = quantize(array![[0.5f32, -1.0], [0.0, 0.0]].view(), Granularity::Row).unwrap();
/// assert_eq!(q.symbols, array![[64, -127], [0, 0]]);
/// assert_eq!(q.scales, array![1.0 / 127.0, 1.0]);
/// ```
pub fn quantize<T: Weight>(weights: ArrayView2<'_, T>, granularity: Granularity) -> Result<Quantized> {
    quantize_with(weights, granularity, &Pool::new(None)?, &Cancel::new())
}

/// [`quantize`] with the given threads.
///
/// # Errors
/// Those of [`quantize`]; or `cancel` was used.
pub fn quantize_with<T: Weight>(
    weights: ArrayView2<'_, T>,
    granularity: Granularity,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Quantized> {
    granularity.check()?;
    let (rows, cols) = weights.dim();
    let mut symbols: Vec<i8> = try_vec(rows * cols)?;
    let mut scales: Vec<f32> = try_vec(granularity.scales(rows, cols))?;
    if symbols.is_empty() {
        scales.fill(1.0);
        return Ok(assemble((rows, cols), symbols, scales));
    }
    let reader = Reader::new(&weights);
    let step = reader.whole_panels((pool.piece(rows * cols) / cols).max(1));
    let shared = match granularity {
        Granularity::Tensor => {
            let largest = pool.each((0..rows).step_by(step), cancel, |first| {
                let mut reader = reader.clone();
                (first..rows.min(first + step))
                    .try_fold(0f32, |largest, r| Ok(largest.max(reader.largest_magnitude(r, 0, cols, cancel)?)))
            })?;
            scales[0] = scale_of(largest.into_iter().fold(0.0, f32::max));
            Some(scales[0])
        }
        _ => None,
    };
    let (columns, per_row) = (granularity.columns(cols), granularity.scales_per_row(cols));
    // The only scale of a tensor is already known.
    let mut rest = &mut scales[..if shared.is_some() { 0 } else { rows * per_row }];
    let pieces = symbols.chunks_mut(step * cols).enumerate().map(|(i, symbols)| {
        let count = symbols.len() / cols * per_row;
        (i * step, symbols, rest.split_off_mut(..count).expect("as many as there are rows"))
    });
    pool.each(pieces, cancel, |(first, symbols, scales)| {
        let mut reader = reader.clone();
        for (i, symbols) in symbols.chunks_mut(cols).enumerate() {
            let scales = if per_row == 0 { &mut [][..] } else { &mut scales[i * per_row..][..per_row] };
            reader.quantize_row(first + i, columns, shared, symbols, scales, cancel)?;
        }
        Ok(())
    })?;
    Ok(assemble((rows, cols), symbols, scales))
}

/// The scale for elements whose largest magnitude is `largest`, which is finite.
///
/// ```
/// use wcodec::scheme::int8::scale_of;
/// assert_eq!(scale_of(127.0), 1.0);
/// // With the nearest quotient the largest weights would decode to infinity.
/// assert_eq!(scale_of(f32::MAX), (f32::MAX / 127.0).next_down());
/// ```
#[inline]
pub fn scale_of(largest: f32) -> f32 {
    if largest == 0.0 {
        return 1.0;
    }
    let scale = (largest / MAX_SYMBOL).max(f32::MIN_POSITIVE);
    if (scale * MAX_SYMBOL).is_finite() { scale } else { scale.next_down() }
}

fn assemble(shape: (usize, usize), symbols: Vec<i8>, scales: Vec<f32>) -> Quantized {
    let symbols = Array2::from_shape_vec(shape, symbols).expect("made with that many elements");
    Quantized { symbols, scales: Array1::from_vec(scales) }
}

impl<T: Weight> Reader<'_, '_, T> {
    /// The largest magnitude of `length` elements of row `r` from column `col` on.
    fn largest_magnitude(&mut self, r: usize, col: usize, length: usize, cancel: &Cancel) -> Result<f32> {
        let mut largest = 0f32;
        for at in (col..col + length).step_by(RUN) {
            cancel.check()?;
            let run = self.run(r, at, RUN.min(col + length - at))?;
            largest = largest.max(largest_magnitude(run, r, at)?);
        }
        Ok(largest)
    }

    /// Quantizes row `r`: each `columns` columns have one of `scales`, or all have `shared`.
    fn quantize_row(
        &mut self,
        r: usize,
        columns: usize,
        shared: Option<f32>,
        symbols: &mut [i8],
        scales: &mut [f32],
        cancel: &Cancel,
    ) -> Result<()> {
        if columns <= RUN {
            let step = RUN / columns * columns;
            for (i, symbols) in symbols.chunks_mut(step).enumerate() {
                let weights = self.run(r, i * step, symbols.len())?;
                for (j, (w, q)) in weights.chunks(columns).zip(symbols.chunks_mut(columns)).enumerate() {
                    let block = i * step / columns + j;
                    let scale = match shared {
                        Some(scale) => scale,
                        None => {
                            scales[block] = scale_of(largest_magnitude(w, r, block * columns)?);
                            scales[block]
                        }
                    };
                    round_all(w, scale, q);
                }
            }
            return Ok(());
        }
        for (block, symbols) in symbols.chunks_mut(columns).enumerate() {
            let begin = block * columns;
            let scale = match shared {
                Some(scale) => scale,
                None => {
                    scales[block] = scale_of(self.largest_magnitude(r, begin, symbols.len(), cancel)?);
                    scales[block]
                }
            };
            for (i, symbols) in symbols.chunks_mut(RUN).enumerate() {
                cancel.check()?;
                round_all(self.run(r, begin + i * RUN, symbols.len())?, scale, symbols);
            }
        }
        Ok(())
    }
}

fn largest_magnitude(weights: &[f32], row: usize, col: usize) -> Result<f32> {
    // As integers, the bits of magnitudes have the order of the floats, with infinity and NaN above all others.
    let bits = weights.iter().fold(0, |m, w| m.max(w.to_bits() & 0x7FFF_FFFF));
    if bits < f32::INFINITY.to_bits() {
        return Ok(f32::from_bits(bits));
    }
    let at = weights.iter().position(|w| !w.is_finite()).unwrap_or(0);
    Err(coded!(NOT_FINITE_WEIGHTS, "{} at row {row}, column {}", weights[at], col + at).advice(NOT_FINITE_ADVICE))
}

fn round_all(weights: &[f32], scale: f32, symbols: &mut [i8]) {
    symbols.iter_mut().zip(weights).for_each(|(q, w)| *q = round(w / scale));
}

/// Rounds to the nearest integer, ties to even, and clamps to a symbol.
///
/// Adding 1.5 * 2^23 leaves the integer in the low bits of the mantissa, rounded in the hardware's own mode; unlike
/// `round_ties_even` this vectorizes on every x86-64.
#[inline(always)]
fn round(value: f32) -> i8 {
    const MAGIC: f32 = 12_582_912.0;
    (value.clamp(-MAX_SYMBOL, MAX_SYMBOL) + MAGIC).to_bits() as i8
}

/// [`quantize_with`], for weights as bytes.
pub(in crate::scheme) fn symbols(
    weights: &Weights<'_>,
    granularity: Granularity,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<SymbolPlanes> {
    let Quantized { symbols, scales } = match weights.dtype {
        Dtype::F32 => quantize_bytes::<f32>(weights, granularity, pool, cancel),
        Dtype::F16 => quantize_bytes::<f16>(weights, granularity, pool, cancel),
        Dtype::BF16 => quantize_bytes::<bf16>(weights, granularity, pool, cancel),
        other => Err(coded!(INPUT_BUG, "int8 does not take {other}")),
    }?;
    let (symbols, scales) = (symbols.into_raw_vec_and_offset().0, scales.into_raw_vec_and_offset().0);
    Ok(SymbolPlanes { planes: vec![symbols], scales: Some((granularity, scales)), ..Default::default() })
}

fn quantize_bytes<T: Weight>(
    weights: &Weights<'_>,
    granularity: Granularity,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Quantized> {
    let mut copy = AlignedBytes::default();
    let view = view_of::<T>(weights, &mut copy)?;
    quantize_with(view, granularity, pool, cancel)
}
