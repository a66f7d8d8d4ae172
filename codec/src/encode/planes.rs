//! Decides the planes in which a scheme's output is stored.

use crate::cancel::Cancel;
use crate::coder::histogram::{Histogram, count_bytes_with, entropy};
use crate::coder::plane::{Draft, Filters, PlaneOptions, SymbolMatrices, elements};
use crate::coder::tile::{MAX_TILE, equal_tiles};
use crate::coder::{Coder, Layout};
use crate::container::{Hash, Hasher, MatrixEntry, hash};
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::{Fields, SymbolPlanes};

/// The entropy, in bits per byte, from which on a plane counts as noise: coding it would cost every decoder a pass, and
/// save next to nothing.
const NOISE: f64 = 7.75;

/// A plane to encode.
pub struct PlaneInput {
    pub symbols: Vec<i8>,
    /// The uncoded bytes of the elements.
    pub beside: Vec<Vec<i8>>,
    /// The bits of an element that it holds; `None` if it holds whole elements.
    pub fields: Option<Fields>,
    /// The hash of its decoded bytes.
    pub hash: Hash,
    pub draft: Draft,
}

/// Symbols of a tensor with the view `matrix`, and the uncoded bytes of their elements.
pub fn matrices_of<'a>(matrix: &MatrixEntry, data: &'a [i8], beside: &'a [Vec<i8>]) -> SymbolMatrices<'a> {
    SymbolMatrices { count: matrix.count, rows: matrix.rows, cols: matrix.cols, data, beside }
}

/// The planes of `made`, and a lower bound on the bits of an element in them: the entropy of coded planes, and all bits
/// of uncoded ones.
pub fn planes_of(
    made: SymbolPlanes,
    matrix: &MatrixEntry,
    options: &PlaneOptions,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<(Vec<PlaneInput>, f64)> {
    let count = |plane: &[i8]| count_bytes_with(bytemuck::cast_slice(plane), pool, cancel);
    let mut planes = made.planes.into_iter();
    let mut fields = made.fields.into_iter();
    let first = planes.next().unwrap_or_default();
    let mut bits = match options.filters {
        Filters::Trellis => entropy(&symbols_of_levels(&count(&first)?)),
        _ => entropy(&count(&first)?),
    };
    let mut first_fields = fields.next();
    let tiles = options.coder.is_tiled();
    let (mut beside, mut others) = (Vec::new(), Vec::new());
    for (plane, fields) in planes.zip(fields) {
        let histogram = count(&plane)?;
        match kind_of(&histogram) {
            // Bits that no plane holds are 0.
            Content::Zeros => {}
            Content::Noise => {
                bits += 8.0;
                if tiles {
                    first_fields = first_fields.map(|first| first.and(fields));
                    beside.push(plane);
                } else {
                    others.push((plane, fields, Coder::Raw));
                }
            }
            Content::Data => {
                bits += entropy(&histogram);
                others.push((plane, fields, options.coder));
            }
        }
    }
    // A plane of whole elements stores no fields.
    let is_complete =
        first_fields.as_ref().is_some_and(|f| f.runs() == [[0, 8]]) && others.is_empty() && beside.is_empty();
    let layout = if beside.is_empty() { options.layout } else { Layout::Split };
    // In layout `byte` the states of rANS hold whole symbols, so each chunk wastes the bits by which symbols fall short
    // of 8.
    let tile = options
        .tile
        .or_else(|| (first_fields.is_some() && layout == Layout::Byte).then(|| equal_tiles(matrix.cols, MAX_TILE)));
    let options = &PlaneOptions { tile, ..options.clone() };
    let first_fields = first_fields.filter(|_| !is_complete);
    let mut inputs =
        vec![input(first, beside, first_fields, matrix, PlaneOptions { layout, ..options.clone() }, pool, cancel)?];
    for (plane, fields, coder) in others {
        let options = PlaneOptions { coder, ..options.clone() };
        inputs.push(input(plane, Vec::new(), Some(fields), matrix, options, pool, cancel)?);
    }
    Ok((inputs, bits))
}

/// The counts of trellis symbols, from counts of levels on the path: each symbol stands for two levels.
fn symbols_of_levels(levels: &Histogram) -> Histogram {
    let mut symbols: Histogram = [0; 256];
    for level in i8::MIN..=i8::MAX {
        symbols[(level >> 1) as u8 as usize] += levels[level as u8 as usize];
    }
    symbols
}

enum Content {
    Zeros,
    Noise,
    Data,
}

fn kind_of(histogram: &Histogram) -> Content {
    match entropy(histogram) {
        _ if histogram[1..].iter().all(|&n| n == 0) => Content::Zeros,
        bits if bits > NOISE => Content::Noise,
        _ => Content::Data,
    }
}

fn input(
    symbols: Vec<i8>,
    beside: Vec<Vec<i8>>,
    fields: Option<Fields>,
    matrix: &MatrixEntry,
    options: PlaneOptions,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<PlaneInput> {
    let hash = if beside.is_empty() {
        hash(bytemuck::cast_slice(&symbols))
    } else {
        let mut hasher = Hasher::default();
        elements(&symbols, &beside, &mut |bytes| hasher.update(bytes));
        hasher.hash()
    };
    let draft = Draft::new(&matrices_of(matrix, &symbols, &beside), &options, pool, cancel)?;
    Ok(PlaneInput { symbols, beside, fields, hash, draft })
}
