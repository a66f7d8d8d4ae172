//! A tensor decoded piece by piece, so that one of a gigabyte takes little memory and can be given up at any time.

use wcodec::{Container, DecodeOptions, Dtype, Result, TensorInfo};

use super::control::Control;

/// Decoded bytes of a piece, about. Large enough to keep all cores at work, small enough to stop at once.
const PIECE: usize = 4 << 20;
/// Strips of so many rows are decoded together; pieces end where strips do.
const STRIP: usize = 16;

/// The part of a tensor that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Its symbols, in the order of its matrices: for scheme `int8`, or elements of 8 bits.
    Symbols,
    /// Its values in its own dtype, in the order of the tensor.
    Values,
}

/// Gives `work` one piece after the other: its first element, and its bytes.
///
/// Hashes are not compared: verifying does that, and would have to hold the whole tensor.
///
/// # Errors
/// The tensor is damaged, or `work` says so, or `control` says to stop.
pub fn pieces(
    container: &Container,
    info: &TensorInfo,
    want: Want,
    control: &mut Control<'_>,
    work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let options = DecodeOptions { verify: false, ..DecodeOptions::default() };
    let int8 = info.makes_symbols;
    control.cancel.check()?;
    if info.elements == 0 {
        return Ok(());
    }
    let (Some((&rows, rest)), 0) = (info.shape.split_first(), info.row_axis) else {
        // A scalar has no rows, and those of a transposed tensor lie across all strips: it is decoded once.
        match want {
            Want::Symbols if int8 => {
                let symbols = container.symbols(&info.name, &options)?;
                work(0, &symbols.into_iter().map(|s| s as u8).collect::<Vec<u8>>())?;
            }
            _ => work(0, &container.read(&info.name, &options)?)?,
        }
        return control.advance(info.elements);
    };
    let dtype = match want {
        Want::Symbols if int8 => Dtype::I8,
        _ => info.dtype,
    };
    let per_row = rest.iter().fold(1usize, |n, &d| n.saturating_mul(d)).max(1);
    let step = (PIECE / per_row.saturating_mul(dtype.size())).max(1).next_multiple_of(STRIP);
    let mut at = 0;
    while at < rows {
        let end = at.saturating_add(step).min(rows);
        let bytes = container.read_rows(&info.name, at..end, Some(dtype), &options)?;
        work((at * per_row) as u64, &bytes)?;
        control.advance(((end - at) * per_row) as u64)?;
        at = end;
    }
    Ok(())
}
