//! Quantizes weights to levels and scales.

use half::{bf16, f16};

use super::distortion::{RUN, Sums, row_squares};
use super::trellis::{Branches, Costs, Viterbi};
use super::{LARGEST_MAGNITUDE, LARGEST_TRELLIS_MAGNITUDE, Steps, TRELLIS_RATE_WEIGHT};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::columns::divide;
use crate::scheme::int8::{Granularity, Weight};
use crate::scheme::matrix::{SymbolPlanes, Weights};
use crate::scheme::reader::{Reader, view_of};
use crate::tensor::{AlignedBytes, Dtype, try_vec};

/// The largest magnitude of a level's index.
const MOST: f32 = LARGEST_MAGNITUDE as f32;
/// Its counterpart for a trellis, whose symbols store half the index and a bit of the path.
const MOST_OF_TRELLIS: f32 = 2.0 * LARGEST_TRELLIS_MAGNITUDE as f32;

/// Quantizes a matrix, and returns whether levels are paths through a trellis: if it has no room, weights are rounded
/// even if one was requested. `check` is called before paths are searched.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input): a weight that is not finite; those of `check`. The operating system
/// refuses memory or threads; or `cancel` was used.
pub(crate) fn symbols(
    weights: &Weights<'_>,
    steps: Steps<'_>,
    check: &dyn Fn() -> Result<()>,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<(SymbolPlanes, bool)> {
    match weights.dtype {
        Dtype::F32 => of_type::<f32>(weights, steps, check, pool, cancel),
        Dtype::F16 => of_type::<f16>(weights, steps, check, pool, cancel),
        Dtype::BF16 => of_type::<bf16>(weights, steps, check, pool, cancel),
        other => Err(coded!(BAD_LEVELS, "scheme rate does not take {other}").advice("use scheme lossless or raw")),
    }
}

fn of_type<T: Weight>(
    weights: &Weights<'_>,
    steps: Steps<'_>,
    check: &dyn Fn() -> Result<()>,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<(SymbolPlanes, bool)> {
    let mut copy = AlignedBytes::default();
    let view = view_of::<T>(weights, &mut copy)?;
    let reader = Reader::new(&view);
    let branches = match steps.trellis {
        Some(tile) => branches_of(&reader, view.dim(), tile, steps)?,
        None => None,
    };
    let steps = match branches {
        Some(_) => check().map(|()| steps)?,
        // If symbols have no room for levels twice as fine, rounding to the available levels is better.
        None => steps.rounded(),
    };
    Ok((quantize(&reader, view.dim(), steps, branches.as_ref(), pool, cancel)?, branches.is_some()))
}

fn quantize<T: Weight>(
    reader: &Reader<'_, '_, T>,
    (rows, cols): (usize, usize),
    steps: Steps<'_>,
    branches: Option<&Branches>,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<SymbolPlanes> {
    let mut symbols: Vec<i8> = try_vec(rows * cols)?;
    let mut scales: Vec<f32> = try_vec(rows)?;
    let step = reader.whole_panels((pool.piece(rows * cols) / cols).max(1)).next_multiple_of(GROUP);
    let pieces = symbols.chunks_mut(step * cols).zip(scales.chunks_mut(step)).enumerate();
    let sums = pool.each(pieces, cancel, |(i, (symbols, scales))| {
        let mut work = Rows {
            reader: reader.clone(),
            steps,
            branches,
            viterbi: Viterbi::default(),
            weights: Vec::new(),
            quotients: Vec::new(),
            facts: [Facts::default(); GROUP],
            scaled: Vec::new(),
        };
        let mut sums = Sums::default();
        let groups = symbols.chunks_mut(GROUP * cols).zip(scales.chunks_mut(GROUP)).enumerate();
        for (g, (symbols, scales)) in groups {
            cancel.check()?;
            sums = sums + work.quantize(i * step + g * GROUP, symbols, scales)?;
        }
        Ok(sums)
    })?;
    Ok(SymbolPlanes {
        planes: vec![symbols],
        scales: Some((Granularity::Row, scales)),
        error: Some(sums.into_iter().sum::<Sums>().relative()),
        ..Default::default()
    })
}

/// Rows that are quantized together; a trellis processes them in parallel.
const GROUP: usize = 16;
const LAMBDA: f32 = TRELLIS_RATE_WEIGHT as f32;
/// Rows from which a trellis estimates the bits of its levels.
const SAMPLE_ROWS: usize = 64;
/// A trellis pays only if at most one in this many rows has its step enlarged for its largest weight.
const MOST_LIMITED: usize = 8;
const SAMPLE: usize = 1 << 16;

/// Measurements of a row, made before its levels are chosen. Of columns with factors they are those of the quotients.
#[derive(Clone, Copy, Default)]
struct Facts {
    squares: f64,
    /// The sum of the squared weights.
    source_squares: f64,
    largest: f32,
    step: f32,
    /// Whether the step is larger than requested, because of the largest weight.
    limited: bool,
}

/// Measures a row `r`, whose elements are the weights, or their quotients by the factors of columns; `source_squares` is
/// the sum of the squared weights, where these are others.
///
/// The step is in proportion to the root mean square of the weights themselves. That of the quotients would be decided by
/// the few columns whose inputs are tens of times larger than others: matrices that have some would get far larger steps
/// than matrices that have none.
///
/// # Errors
/// An element is not finite.
fn facts(row: &[f32], r: usize, source_squares: Option<f64>, steps: Steps<'_>) -> Result<Facts> {
    let squares = row_squares(row, r)?;
    let largest = f32::from_bits(row.iter().fold(0, |m, w| m.max(w.to_bits() & 0x7FFF_FFFF)));
    let most = if steps.trellis.is_some() { MOST_OF_TRELLIS } else { MOST };
    let source_squares = source_squares.unwrap_or(squares);
    let size = (source_squares / row.len().max(1) as f64).sqrt();
    let wanted = (f64::from(steps.factor) * size) as f32;
    // Rounded up, so that the largest weight keeps its level.
    let least = largest / (most + 0.5);
    let step = bf16_above(wanted.max(least).max(f32::MIN_POSITIVE));
    Ok(Facts { squares, source_squares, largest, step, limited: wanted < least })
}

/// The smallest bf16 that is not less than a positive number.
fn bf16_above(value: f32) -> f32 {
    let rounded = f32::from_bits((value.to_bits() + 0xFFFF) & 0xFFFF_0000);
    if rounded.is_finite() { rounded } else { bf16::MAX.to_f32() }
}

/// Converts rows to levels and scales, a group at a time.
struct Rows<'a, 'v, T> {
    reader: Reader<'a, 'v, T>,
    steps: Steps<'a>,
    branches: Option<&'a Branches>,
    viterbi: Viterbi,
    weights: Vec<f32>,
    /// The weights divided by the factors of their columns, if these have some.
    quotients: Vec<f32>,
    facts: [Facts; GROUP],
    /// The rows of a group, one after the other, in units of steps.
    scaled: Vec<f32>,
}

impl<T: Weight> Rows<'_, '_, T> {
    /// Quantizes rows from `first` on, one for each scale.
    fn quantize(&mut self, first: usize, symbols: &mut [i8], scales: &mut [f32]) -> Result<Sums> {
        let cols = symbols.len() / scales.len();
        self.weights.clear();
        self.quotients.clear();
        for r in 0..scales.len() {
            let row = self.reader.run(first + r, 0, cols)?;
            self.weights.extend_from_slice(row);
            self.facts[r] = match self.steps.columns {
                None => facts(row, first + r, None, self.steps)?,
                Some(columns) => {
                    let squares = row_squares(row, first + r)?;
                    divide(row, columns.of_row(first + r), &mut self.quotients);
                    facts(&self.quotients[r * cols..], first + r, Some(squares), self.steps)?
                }
            };
        }
        self.choose(cols, symbols);
        let mut sums = Sums::default();
        let rows = symbols.chunks_mut(cols).zip(scales).zip(self.weights.chunks(cols)).zip(&self.facts).enumerate();
        for (r, (((symbols, scale), weights), facts)) in rows {
            let factors = self.steps.columns.map(|columns| columns.of_row(first + r));
            let scaled = if factors.is_some() { &self.quotients[r * cols..][..cols] } else { weights };
            *scale = if facts.largest == 0.0 { 0.0 } else { best_scale::<T>(scaled, symbols, facts, factors) };
            if *scale == 0.0 {
                symbols.fill(0);
            }
            sums = sums + Sums::of_row::<T>(weights, facts.source_squares, symbols, *scale, factors);
        }
        Ok(sums)
    }

    /// Chooses levels, given the rows' steps.
    fn choose(&mut self, cols: usize, symbols: &mut [i8]) {
        let weights = if self.steps.columns.is_some() { &self.quotients } else { &self.weights };
        let rows = symbols.chunks_mut(cols).zip(weights.chunks(cols)).zip(&self.facts);
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

/// The nearest levels: the number of whole steps below a magnitude, folded for negative weights.
fn round_all(weights: &[f32], step: f32, symbols: &mut [i8]) {
    for (q, w) in symbols.iter_mut().zip(weights) {
        let x = w / step;
        let m = x.abs().min(MOST) as i8;
        *q = if x.is_sign_negative() { !m } else { m };
    }
}

/// The better of two scales by squared error: the row's step, or the least-squares fit to its levels; 0 if that is
/// better still. Weights are the quotients where columns have factors: the error of a quotient counts as much as that of
/// any other, so that factors decide how much a column's error counts.
fn best_scale<T: Weight>(weights: &[f32], symbols: &[i8], facts: &Facts, factors: Option<&[f32]>) -> f32 {
    let (mut products, mut squares, mut farthest) = (0f64, 0f64, 0f32);
    for (weights, symbols) in weights.chunks(RUN).zip(symbols.chunks(RUN)) {
        // Levels are below 2^7 and the weights of a run similar in size: f32 is precise enough for a run.
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
    // The weights are finite, so their values must be, too: the one that is farthest from 0, and what it is made of.
    let (level, factor) = factors.map_or((farthest, 1.0), |factors| farthest_value(symbols, factors));
    let finite =
        |scale: f32| (farthest * scale).is_finite() && T::from_f32(level * scale * factor).to_f32().is_finite();
    while !finite(best) {
        best = f32::from_bits(best.to_bits() - 0x1_0000);
    }
    // Among factors that differ by far there may be no scale for the row.
    if best < f32::MIN_POSITIVE { 0.0 } else { best }
}

/// The magnitude of a level and the factor of its column whose product is the largest.
fn farthest_value(symbols: &[i8], factors: &[f32]) -> (f32, f32) {
    let values = symbols.iter().zip(factors).map(|(&q, &factor)| ((f32::from(q) + 0.5).abs(), factor));
    values
        .fold((0.0, 0.0), |a, b| if f64::from(b.0) * f64::from(b.1) > f64::from(a.0) * f64::from(a.1) { b } else { a })
}

/// Some rows of a matrix, evenly spread.
fn sample(rows: usize, cols: usize) -> impl Iterator<Item = usize> {
    let count = (SAMPLE / cols.max(1)).clamp(1, SAMPLE_ROWS).min(rows).max(1);
    (0..rows).step_by(rows.div_ceil(count).max(1))
}

/// The branches of a trellis, by the bits of levels in a sample of rows; `None` if the largest weights of many of these
/// rows leave it no room for its steps.
fn branches_of<T: Weight>(
    reader: &Reader<'_, '_, T>,
    (rows, cols): (usize, usize),
    tile: usize,
    steps: Steps<'_>,
) -> Result<Option<Branches>> {
    let mut reader = reader.clone();
    let (mut scaled, mut limited, mut all) = (Vec::new(), 0, 0);
    let mut quotients = Vec::new();
    for r in sample(rows, cols) {
        let mut row = reader.run(r, 0, cols)?;
        let mut source_squares = None;
        if let Some(columns) = steps.columns {
            source_squares = Some(row_squares(row, r)?);
            quotients.clear();
            divide(row, columns.of_row(r), &mut quotients);
            row = &quotients;
        }
        let facts = facts(row, r, source_squares, steps)?;
        scaled.extend(row.iter().map(|w| w / facts.step));
        limited += usize::from(facts.limited);
        all += 1;
    }
    let has_room = limited * MOST_LIMITED <= all;
    Ok(has_room.then(|| Branches::new(&Costs::fitted(&scaled, cols, tile, LAMBDA), LAMBDA)))
}
