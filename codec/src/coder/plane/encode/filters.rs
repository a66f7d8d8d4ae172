//! Chooses the filters to try, and defines the gain that a filter must bring.

use crate::cancel::Cancel;
use crate::coder::filter;
use crate::coder::histogram::{Histogram, entropy};
use crate::coder::plane::encoded::{EncodedPlane, SymbolMatrices};
use crate::coder::tile::TileGeometry;
use crate::coder::{Filter, TILE_ROWS};
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::try_vec;

/// Strips sampled to decide whether a filter may pay, bytes sampled of each, and the gain in bits per symbol that is
/// worth a try. A filter costs every decoder, so it is used only where it makes the plane smaller by a real share.
const FILTER_SAMPLE: usize = 16;
const FILTER_SAMPLE_BYTES: usize = 1 << 20;
const FILTER_GAIN: f64 = 0.1;
const FILTER_SHARE: f64 = 0.99;

/// The plane to keep, of several encodings of one plane, the unfiltered one first.
///
/// # Errors
/// The first error among them.
pub fn best(planes: impl Iterator<Item = Result<EncodedPlane>>) -> Result<Option<EncodedPlane>> {
    let mut best: Option<EncodedPlane> = None;
    for plane in planes {
        let plane = plane?;
        match &best {
            Some(b) if plane.stored_bytes() as f64 >= b.stored_bytes() as f64 * FILTER_SHARE => {}
            _ => best = Some(plane),
        }
    }
    Ok(best)
}

/// Filters that make the entropy of a sample of strips smaller; none where they are not `allowed`.
pub fn worth_trying(symbols: &SymbolMatrices<'_>, allowed: bool, pool: &Pool, cancel: &Cancel) -> Result<Vec<Filter>> {
    if !allowed {
        return Ok(Vec::new());
    }
    let strip = TILE_ROWS * symbols.cols;
    let step = symbols.data.len().div_ceil(strip).div_ceil(FILTER_SAMPLE);
    let entropies = pool.each([Filter::None, Filter::Left, Filter::Up], cancel, |f| {
        let mut h: Histogram = [0; 256];
        for rows in symbols.data.chunks(strip).step_by(step) {
            cancel.check()?;
            // Long rows are sampled at their beginning.
            let rows = rows.chunks(symbols.cols).take((FILTER_SAMPLE_BYTES / symbols.cols).max(1));
            let mut rows =
                rows.flat_map(|row| &row[..row.len().min(FILTER_SAMPLE_BYTES)]).copied().collect::<Vec<i8>>();
            filter::apply(f, &mut rows, symbols.cols, symbols.cols);
            rows.iter().for_each(|&q| h[q as u8 as usize] += 1);
        }
        Ok(entropy(&h))
    })?;
    let pays = |&(i, _): &(usize, Filter)| entropies[i] < entropies[0] - FILTER_GAIN;
    Ok([Filter::None, Filter::Left, Filter::Up].into_iter().enumerate().filter(pays).map(|(_, f)| f).collect())
}

/// `symbols` after `filter`, tile by tile.
pub fn filtered_tiles(
    symbols: &SymbolMatrices<'_>,
    geometry: &TileGeometry,
    filter: Filter,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Vec<i8>> {
    let mut data: Vec<i8> = try_vec(symbols.data.len())?;
    let mut rest = &mut data[..];
    let strips: Vec<(usize, &mut [i8])> = (0..geometry.strips())
        .map(|strip| {
            let elements = geometry.strip_elements(strip);
            (elements.start, rest.split_off_mut(..elements.len()).expect("strips fill the plane"))
        })
        .collect();
    pool.each(strips, cancel, |(begin, rows)| {
        rows.copy_from_slice(&symbols.data[begin..begin + rows.len()]);
        for col in (0..symbols.cols).step_by(geometry.tile()) {
            let width = geometry.tile().min(symbols.cols - col);
            filter::apply(filter, &mut rows[col..], symbols.cols, width);
        }
        Ok(())
    })?;
    Ok(data)
}
