//! Weights become levels and scales.

use half::{bf16, f16};
use ndarray::ArrayView2;

use super::Steps;
use super::trellis::{Branches, Costs, Viterbi};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::int8::{Granularity, Weight};
use crate::scheme::matrix::{SymbolPlanes, Weights};
use crate::scheme::reader::{Reader, view_of};
use crate::tensor::{AlignedBytes, Dtype, try_vec};

/// What to do about weights that are not finite.
pub(crate) const NOT_FINITE_ADVICE: &str =
    "rate needs finite weights: repair the checkpoint, or exclude the tensor so that it is stored raw";

/// Largest magnitude of a level's number, so that symbols are within [-127, 126].
const MOST: f32 = 126.0;
/// And of one that a trellis may choose: there, half of it is stored, with a bit that the path gives.
const MOST_OF_TRELLIS: f32 = 124.0;
/// Elements whose errors are added as f32.
const RUN: usize = 256;

/// Quantizes a matrix.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input): a weight that is not finite. Memory or threads that the operating system does not give; or
/// `cancel` was used.
pub(crate) fn symbols(weights: &Weights<'_>, steps: Steps, pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
    match weights.dtype {
        Dtype::F32 => of_type::<f32>(weights, steps, pool, cancel),
        Dtype::F16 => of_type::<f16>(weights, steps, pool, cancel),
        Dtype::BF16 => of_type::<bf16>(weights, steps, pool, cancel),
        other => Err(Error::input(format!("scheme rate does not take {other}")).advice("use scheme lossless or raw")),
    }
}

fn of_type<T: Weight>(weights: &Weights<'_>, steps: Steps, pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
    let mut copy = AlignedBytes::default();
    quantize(view_of::<T>(weights, &mut copy)?, steps, pool, cancel)
}

/// Sums over rows.
#[derive(Clone, Copy, Default)]
struct Sums {
    squares: f64,
    errors: f64,
}

fn quantize<T: Weight>(weights: ArrayView2<'_, T>, steps: Steps, pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
    let (rows, cols) = weights.dim();
    let mut symbols: Vec<i8> = try_vec(rows * cols)?;
    let mut scales: Vec<f32> = try_vec(rows)?;
    let reader = Reader::new(&weights);
    let step = reader.whole_panels((pool.piece(rows * cols) / cols).max(1)).next_multiple_of(GROUP);
    let branches = steps.trellis.map(|tile| branches_of(&reader, (rows, cols), tile, steps)).transpose()?;
    let pieces = symbols.chunks_mut(step * cols).zip(scales.chunks_mut(step)).enumerate();
    let sums = pool.each(pieces, cancel, |(i, (symbols, scales))| {
        let mut work = Rows {
            reader: reader.clone(),
            steps,
            branches: branches.as_ref(),
            viterbi: Viterbi::default(),
            weights: Vec::new(),
            facts: [Facts::default(); GROUP],
            scaled: Vec::new(),
        };
        let mut sums = Sums::default();
        let groups = symbols.chunks_mut(GROUP * cols).zip(scales.chunks_mut(GROUP)).enumerate();
        for (g, (symbols, scales)) in groups {
            cancel.check()?;
            let found = work.quantize(i * step + g * GROUP, symbols, scales)?;
            sums = Sums { squares: sums.squares + found.squares, errors: sums.errors + found.errors };
        }
        Ok(sums)
    })?;
    let total = |of: fn(&Sums) -> f64| sums.iter().map(of).sum::<f64>();
    let (squares, errors) = (total(|s| s.squares), total(|s| s.errors));
    let error = if errors == 0.0 { 0.0 } else { (errors / squares).sqrt() };
    Ok(SymbolPlanes {
        planes: vec![symbols],
        scales: Some((Granularity::Row, scales)),
        error: Some(error),
        ..Default::default()
    })
}

/// Rows that are quantized together, which a trellis takes side by side.
const GROUP: usize = 16;
/// What a bit costs a trellis, in squares of its step: a little less than what the slope of the rate-distortion curve says was best or as
/// good on models of several kinds.
const LAMBDA: f32 = 0.2;
/// Rows by which a trellis learns what its levels cost.
const SAMPLE_ROWS: usize = 64;
/// A trellis pays where not more than one in so many rows has a larger step because of its largest weight.
const MOST_LIMITED: usize = 8;
const SAMPLE: usize = 1 << 16;

/// What is known of a row before its levels are chosen.
#[derive(Clone, Copy, Default)]
struct Facts {
    squares: f64,
    largest: f32,
    step: f32,
}

/// The sum of the squares of row `r`.
///
/// # Errors
/// An element that is not finite.
pub(super) fn row_squares(row: &[f32], r: usize) -> Result<f64> {
    // In f64: squares of f32 leave f32's range. Several sums, which no addition waits for.
    let mut sums = [0f64; 8];
    let (runs, rest) = row.as_chunks::<8>();
    for run in runs {
        sums.iter_mut().zip(run).for_each(|(sum, &w)| *sum += f64::from(w) * f64::from(w));
    }
    let squares = sums.iter().sum::<f64>() + rest.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>();
    if squares.is_finite() {
        return Ok(squares);
    }
    let at = row.iter().position(|w| !w.is_finite()).unwrap_or(0);
    Err(Error::input(format!("{} at row {r}, column {at}", row[at])).advice(NOT_FINITE_ADVICE))
}

/// # Errors
/// An element that is not finite.
fn facts(row: &[f32], r: usize, steps: Steps) -> Result<Facts> {
    let squares = row_squares(row, r)?;
    let largest = f32::from_bits(row.iter().fold(0, |m, w| m.max(w.to_bits() & 0x7FFF_FFFF)));
    let rms = (squares / row.len().max(1) as f64).sqrt();
    let most = if steps.trellis.is_some() { MOST_OF_TRELLIS } else { MOST };
    let wanted = (f64::from(steps.factor) * rms) as f32;
    // Rounded up, so that the largest weight keeps its level.
    let least = largest / (most + 0.5);
    Ok(Facts { squares, largest, step: bf16_above(wanted.max(least).max(f32::MIN_POSITIVE)) })
}

/// The next bf16 that is not smaller than a positive number.
fn bf16_above(value: f32) -> f32 {
    let rounded = f32::from_bits((value.to_bits() + 0xFFFF) & 0xFFFF_0000);
    if rounded.is_finite() { rounded } else { bf16::MAX.to_f32() }
}

/// Takes rows to levels and scales, a group at a time.
struct Rows<'a, 'v, T> {
    reader: Reader<'a, 'v, T>,
    steps: Steps,
    branches: Option<&'a Branches>,
    viterbi: Viterbi,
    weights: Vec<f32>,
    facts: [Facts; GROUP],
    /// A row of a group after the other, in steps.
    scaled: Vec<f32>,
}

impl<T: Weight> Rows<'_, '_, T> {
    /// Rows from `first` on, as many as there are scales.
    fn quantize(&mut self, first: usize, symbols: &mut [i8], scales: &mut [f32]) -> Result<Sums> {
        let cols = symbols.len() / scales.len();
        self.weights.clear();
        for r in 0..scales.len() {
            let row = self.reader.run(first + r, 0, cols)?;
            self.facts[r] = facts(row, first + r, self.steps)?;
            self.weights.extend_from_slice(row);
        }
        self.choose(cols, symbols);
        let mut sums = Sums::default();
        let rows = symbols.chunks_mut(cols).zip(scales).zip(self.weights.chunks(cols)).zip(&self.facts);
        for (((symbols, scale), weights), facts) in rows {
            *scale = if facts.largest == 0.0 { 0.0 } else { best_scale::<T>(weights, symbols, facts) };
            if *scale == 0.0 {
                symbols.fill(0);
            }
            sums.squares += facts.squares;
            sums.errors += if *scale == 0.0 { facts.squares } else { error::<T>(weights, symbols, *scale) };
        }
        Ok(sums)
    }

    /// Chooses levels for the rows' steps.
    fn choose(&mut self, cols: usize, symbols: &mut [i8]) {
        let rows = symbols.chunks_mut(cols).zip(self.weights.chunks(cols)).zip(&self.facts);
        let (Some(tile), Some(branches)) = (self.steps.trellis, self.branches) else {
            rows.for_each(|((symbols, weights), facts)| round_all(weights, facts.step, symbols));
            return;
        };
        self.scaled.clear();
        for ((_, weights), facts) in rows {
            self.scaled.extend(weights.iter().map(|w| w / facts.step));
        }
        self.viterbi.levels(&self.scaled, cols, tile, branches, symbols);
    }
}

/// The levels that are nearest: the number of whole steps below a magnitude, folded for weights below 0.
fn round_all(weights: &[f32], step: f32, symbols: &mut [i8]) {
    for (q, w) in symbols.iter_mut().zip(weights) {
        let x = w / step;
        let m = x.abs().min(MOST) as i8;
        *q = if x.is_sign_negative() { !m } else { m };
    }
}

/// Of the row's step and the scale that is best for its levels by least squares the one with the smaller error; 0 where that is the best.
fn best_scale<T: Weight>(weights: &[f32], symbols: &[i8], facts: &Facts) -> f32 {
    let (mut products, mut squares, mut farthest) = (0f64, 0f64, 0f32);
    for (weights, symbols) in weights.chunks(RUN).zip(symbols.chunks(RUN)) {
        // Levels are below 2^7 and the weights of a run near each other: f32 is enough for a run.
        let (mut product, mut square) = (0f32, 0f32);
        for (w, &q) in weights.iter().zip(symbols) {
            let level = f32::from(q) + 0.5;
            product += (w / facts.step) * level;
            square += level * level;
            farthest = farthest.max(level.abs());
        }
        products += f64::from(product);
        squares += f64::from(square);
    }
    let steps = facts.squares / (f64::from(facts.step) * f64::from(facts.step));
    let fitted = bf16::from_f32((products / squares * f64::from(facts.step)) as f32).to_f32();
    let error = |scale: f32| {
        let s = f64::from(scale) / f64::from(facts.step);
        steps - 2.0 * s * products + s * s * squares
    };
    let mut best = 0f32;
    for scale in [fitted, facts.step] {
        if scale >= f32::MIN_POSITIVE && error(scale) < error(best) {
            best = scale;
        }
    }
    // The weights are finite, and so is what they become.
    while !T::from_f32(farthest * best).to_f32().is_finite() {
        best = f32::from_bits(best.to_bits() - 0x1_0000);
    }
    best
}

/// Squares of what the values differ by from the weights; the scale is not 0.
pub(super) fn error<T: Weight>(weights: &[f32], symbols: &[i8], scale: f32) -> f64 {
    let run = |(weights, symbols): (&[f32], &[i8])| {
        let differ = |(w, &q): (&f32, &i8)| T::from_f32((f32::from(q) + 0.5) * scale).to_f32() - w;
        // Over the scale, so that squares are in range.
        let sum: f32 = weights.iter().zip(symbols).map(differ).map(|d| (d / scale) * (d / scale)).sum();
        if sum.is_finite() {
            return f64::from(sum) * f64::from(scale) * f64::from(scale);
        }
        // Values and weights of other signs, both near the largest f32, or a scale that is far from what the weights are.
        let value = |q: i8| f64::from(T::from_f32((f32::from(q) + 0.5) * scale).to_f32());
        weights.iter().zip(symbols).map(|(w, &q)| (value(q) - f64::from(*w)).powi(2)).sum()
    };
    weights.chunks(RUN).zip(symbols.chunks(RUN)).map(run).sum()
}

/// Some rows of a matrix, evenly spread.
fn sample(rows: usize, cols: usize) -> impl Iterator<Item = usize> {
    let count = (SAMPLE / cols.max(1)).clamp(1, SAMPLE_ROWS).min(rows).max(1);
    (0..rows).step_by(rows.div_ceil(count).max(1))
}

/// What a trellis chooses among, by what levels cost in some of the rows.
fn branches_of<T: Weight>(
    reader: &Reader<'_, '_, T>,
    (rows, cols): (usize, usize),
    tile: usize,
    steps: Steps,
) -> Result<Branches> {
    let mut reader = reader.clone();
    let mut scaled = Vec::new();
    for r in sample(rows, cols) {
        let row = reader.run(r, 0, cols)?;
        let facts = facts(row, r, steps)?;
        scaled.extend(row.iter().map(|w| w / facts.step));
    }
    Ok(Branches::new(&Costs::fitted(&scaled, cols, tile, LAMBDA), LAMBDA))
}

/// Whether the largest weights of many rows leave a trellis no room for steps of `factor` times their root mean square.
///
/// # Errors
/// As for [`symbols`].
pub(crate) fn is_too_fine_for_a_trellis(weights: &Weights<'_>, factor: f32) -> Result<bool> {
    match weights.dtype {
        Dtype::F32 => is_too_fine::<f32>(weights, factor),
        Dtype::F16 => is_too_fine::<f16>(weights, factor),
        _ => is_too_fine::<bf16>(weights, factor),
    }
}

fn is_too_fine<T: Weight>(weights: &Weights<'_>, factor: f32) -> Result<bool> {
    let mut copy = AlignedBytes::default();
    let view = view_of::<T>(weights, &mut copy)?;
    let mut reader = Reader::new(&view);
    let (mut limited, mut all) = (0, 0);
    for r in sample(weights.rows, weights.cols) {
        let row = reader.run(r, 0, weights.cols)?;
        let rms = (row_squares(row, r)? / row.len() as f64).sqrt() as f32;
        let largest = row.iter().fold(0f32, |m, w| m.max(w.abs()));
        limited += usize::from(factor * rms * (MOST_OF_TRELLIS + 0.5) < largest);
        all += 1;
    }
    Ok(limited * MOST_LIMITED > all)
}
