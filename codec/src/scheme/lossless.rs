//! Scheme `lossless`: the bits of floats, sorted into planes of 8 bits by their information. `FORMAT.md` section 2.
//!
//! The exponents of trained weights hold about 2.6 bits of information; signs and mantissas are incompressible. So the
//! exponent is a coded plane. The rest are planes that a writer codes only where that pays, as in a bf16 checkpoint
//! that was saved as f32.

use rayon::prelude::*;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::fields::{Fields, gather};
use crate::scheme::matrix::{SymbolPlanes, Weights};
use crate::tensor::{Dtype, try_vec};

/// Columns that are transposed at once: each row contributes one cache line.
const TURNED_COLS: usize = 32;

/// The planes of elements of `dtype`, the coded one first; `None` for dtypes that the scheme does not support.
///
/// ```
/// use wcodec::{Dtype, scheme::lossless::planes_of};
/// let planes = planes_of(Dtype::BF16).expect("floats");
/// assert_eq!(planes[0].runs(), [[7, 8]]);
/// assert_eq!(planes[1].runs(), [[15, 1], [0, 7]]);
/// assert!(planes_of(Dtype::I32).is_none());
/// ```
pub fn planes_of(dtype: Dtype) -> Option<Vec<Fields>> {
    let planes: &[&[[u32; 2]]] = match dtype {
        // The exponent; sign and mantissa.
        Dtype::BF16 => &[&[[7, 8]], &[[15, 1], [0, 7]]],
        // Sign, exponent and two bits of the mantissa: the latter are not quite noise, and this way each plane is whole
        // bytes.
        Dtype::F16 => &[&[[8, 8]], &[[0, 8]]],
        Dtype::F32 => &[&[[23, 8]], &[[31, 1], [16, 7]], &[[8, 8]], &[[0, 8]]],
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => &[&[[0, 8]]],
        _ => return None,
    };
    Some(planes.iter().map(|runs| Fields::known(runs)).collect())
}

/// Copies some columns of a matrix of `cols` columns, one column after the other; `elements` has its rows, with `bytes`
/// bytes for each element.
pub(crate) fn columns(elements: &[u8], bytes: usize, cols: usize, first: usize, out: &mut [u8]) {
    let rows = elements.len() / (cols * bytes);
    out.par_chunks_mut(TURNED_COLS * rows * bytes).enumerate().for_each(|(i, out)| {
        let col = first + i * TURNED_COLS;
        for (row, elements) in elements.chunks_exact(cols * bytes).enumerate() {
            for (column, e) in out.chunks_exact_mut(rows * bytes).zip(elements[col * bytes..].chunks_exact(bytes)) {
                column[row * bytes..][..bytes].copy_from_slice(e);
            }
        }
    });
}

/// The planes of a matrix's elements, taken row by row or, if `transposed`, column by column.
///
/// # Errors
/// The operating system refuses memory or threads, or `cancel` was used.
pub(super) fn split(weights: &Weights<'_>, pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
    let Weights { dtype, bytes, rows, cols, transposed, .. } = *weights;
    let fields = planes_of(dtype)
        .ok_or_else(|| coded!(DECODED_DTYPE, "scheme lossless does not take {dtype}").advice("use scheme raw"))?;
    let size = dtype.size();
    let mut turned: Vec<u8>;
    let bytes = if transposed {
        // The stored matrix has the columns as rows.
        turned = try_vec(bytes.len())?;
        cancel.check()?;
        pool.run(|| columns(bytes, size, rows, 0, &mut turned))?;
        &turned[..]
    } else {
        bytes
    };
    let planes = fields.iter().map(|fields| {
        let mut symbols: Vec<i8> = try_vec(rows * cols)?;
        let piece = pool.piece(rows * cols).max(1);
        pool.each(symbols.chunks_mut(piece).zip(bytes.chunks(piece * size)), cancel, |(symbols, elements)| {
            gather(elements, size, fields, symbols);
            Ok(())
        })?;
        Ok(symbols)
    });
    let planes = planes.collect::<Result<_>>()?;
    Ok(SymbolPlanes { planes, fields, ..Default::default() })
}
