//! Levels that were chosen beforehand, as by GPTQ-style error feedback (E. Frantar, S. Ashkboos, T. Hoefler and D.
//! Alistarh, "GPTQ", International Conference on Learning Representations, 2023).

use half::{bf16, f16};

use super::distortion::{Sums, row_squares};
use crate::cancel::Cancel;
use crate::coder::filter::trellis;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::columns::{Columns, is_factor};
use crate::scheme::int8::{Granularity, Weight};
use crate::scheme::matrix::{Levels, SymbolPlanes, Weights};
use crate::scheme::reader::{Reader, view_of};
use crate::tensor::{AlignedBytes, Dtype};

/// Checks levels that were given for `weights`, and measures their error. `tile`: columns after which a trellis
/// restarts, if levels are paths through one. `matrix_rows`: rows of a matrix, which shares factors of columns.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input): levels do not fit the matrix, scales are not finite or not bf16
/// values, levels are not a path through the trellis; or a weight is not finite. The operating system refuses memory or
/// threads, or `cancel` was used.
pub(crate) fn given(
    weights: &Weights<'_>,
    levels: Levels,
    (tile, matrix_rows): (usize, usize),
    pool: &Pool,
    cancel: &Cancel,
) -> Result<SymbolPlanes> {
    let (rows, cols) = (weights.rows, weights.cols);
    if levels.symbols.len() != rows * cols || levels.scales.len() != rows {
        let what = format!(
            "{} levels and {} scales for {rows} rows of {cols} columns",
            levels.symbols.len(),
            levels.scales.len()
        );
        return Err(
            coded!(BAD_LEVELS, what).advice("give a level for each weight and a scale for each row of the matrix")
        );
    }
    if let Some(row) =
        levels.scales.iter().position(|s| !s.is_finite() || *s < 0.0 || bf16::from_f32(*s).to_f32() != *s)
    {
        let what = format!("the scale of row {row} is {}", levels.scales[row]);
        return Err(coded!(BAD_LEVELS, what).advice("scales are finite values of bf16 that are not below 0"));
    }
    if let Some(factors) = &levels.columns {
        check_factors(factors, rows / matrix_rows * cols)?;
    }
    let tile = (tile, matrix_rows);
    match weights.dtype {
        Dtype::F32 => of_type::<f32>(weights, levels, tile, pool, cancel),
        Dtype::F16 => of_type::<f16>(weights, levels, tile, pool, cancel),
        _ => of_type::<bf16>(weights, levels, tile, pool, cancel),
    }
}

/// Checks the factors of columns, of which there are to be `count`.
fn check_factors(factors: &[f32], count: usize) -> Result<()> {
    if factors.len() != count {
        let what = format!("{} factors for {count} columns", factors.len());
        return Err(coded!(BAD_LEVELS, what).advice("give a factor for each column of each matrix"));
    }
    match factors.iter().position(|&f| !is_factor(f) || bf16::from_f32(f).to_f32() != f) {
        None => Ok(()),
        Some(at) => Err(coded!(BAD_LEVELS, "the factor of column {at} is {}", factors[at])
            .advice("factors of columns are finite values of bf16 above 0")),
    }
}

fn of_type<T: Weight>(
    weights: &Weights<'_>,
    levels: Levels,
    (tile, matrix_rows): (usize, usize),
    pool: &Pool,
    cancel: &Cancel,
) -> Result<SymbolPlanes> {
    let mut copy = AlignedBytes::default();
    let view = view_of::<T>(weights, &mut copy)?;
    let reader = Reader::new(&view);
    let cols = weights.cols;
    let columns = levels.columns.as_deref().map(|factors| Columns::new(factors, matrix_rows, cols, 0));
    let step = reader.whole_panels((pool.piece(levels.symbols.len()) / cols).max(1));
    let sums = pool.each((0..weights.rows).step_by(step), cancel, |first| {
        let (mut reader, mut path) = (reader.clone(), Vec::new());
        (first..weights.rows.min(first + step)).try_fold(Sums::default(), |sums, r| {
            cancel.check()?;
            let (symbols, scale) = (&levels.symbols[r * cols..][..cols], levels.scales[r]);
            if levels.trellis {
                check_path(symbols, tile, &mut path).map_err(|col| not_a_path(r, col))?;
            }
            let row = reader.run(r, 0, cols)?;
            let factors = columns.map(|columns| columns.of_row(r));
            Ok(sums + Sums::of_row::<T>(row, row_squares(row, r)?, symbols, scale, factors))
        })
    })?;
    let error = sums.into_iter().sum::<Sums>().relative();
    if !error.is_finite() {
        return Err(coded!(BAD_LEVELS, "levels become values that are not finite, or weights of 0 others")
            .advice("give smaller scales"));
    }
    Ok(SymbolPlanes {
        planes: vec![levels.symbols],
        scales: Some((Granularity::Row, levels.scales)),
        columns: levels.columns,
        error: Some(error),
        ..Default::default()
    })
}

/// # Errors
/// The first column at which a row's levels are not a path.
fn check_path(levels: &[i8], tile: usize, path: &mut Vec<i8>) -> std::result::Result<(), usize> {
    for (i, levels) in levels.chunks(tile).enumerate() {
        path.clear();
        path.extend_from_slice(levels);
        trellis::symbols_of(path);
        trellis::levels_of(path);
        if let Some(at) = path.iter().zip(levels).position(|(a, b)| a != b) {
            return Err(i * tile + at);
        }
    }
    Ok(())
}

fn not_a_path(row: usize, col: usize) -> Error {
    coded!(BAD_LEVELS, "the level at row {row}, column {col} is none that the trellis can be at")
        .advice("choose levels by the trellis of FORMAT.md section 4, which restarts at each tile, or give them without a trellis")
}
