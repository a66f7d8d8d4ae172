//! Matrix views of tensors.

use crate::coder::{BLOCK_COLS, TILE_ROWS};
use crate::container::MatrixEntry;
use crate::error::Result;

/// The fewest columns at which a 3-D tensor is taken for a stack of expert matrices `[experts, out, in]`; with fewer it
/// is taken for the kernel of a convolution `[out, in, kernel]`.
const STACK_COLS: usize = 64;

/// The matrix view of a tensor that is not empty; `transposed`: it has inputs before outputs.
///
/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input): only matrices can be transposed.
pub fn matrix_of(shape: &[usize], transposed: bool) -> Result<MatrixEntry> {
    let rest = |from: usize| shape[from..].iter().product::<usize>();
    let (count, rows, cols, row_axis) = match (shape, transposed) {
        (&[rows, cols], false) => (1, rows, cols, 0),
        (&[cols, rows], true) => (1, rows, cols, 1),
        (_, true) => {
            return Err(coded!(NOT_A_MATRIX, "only matrices can be transposed, not shape {shape:?}")
                .advice("narrow the pattern given to transpose"));
        }
        (&[count, rows, cols], _) if cols >= STACK_COLS => (count, rows, cols, 0),
        ([], _) => (1, 1, 1, 0),
        (&[n], _) => (1, 1, n, 0),
        (&[rows, ..], _) => (1, rows, rest(1), 0),
    };
    Ok(MatrixEntry { count, rows, cols, row_axis })
}

/// Another view of bytes in rows that tiles would pad to many times their size, such as the `[n, 1]` of 4-bit
/// checkpoints: rows of 1,024 to 4,096 columns, if the number of bytes allows.
pub fn fold_narrow(matrix: MatrixEntry) -> MatrixEntry {
    let n = matrix.count * matrix.rows * matrix.cols;
    if matrix.cols >= 256 && matrix.rows >= 16 {
        return matrix;
    }
    let cols = (1024..=4096).rev().step_by(64).find(|c| n.is_multiple_of(*c) && n / c >= 16);
    cols.map_or(matrix, |cols| MatrixEntry { count: 1, rows: n / cols, cols, row_axis: 0 })
}

/// Another view of matrices that tiles would pad, such as the weights of convolutions: the view that needs the least
/// padding, or the widest of several. Matrices of layers, which are decoded by rows, keep their own view unless they
/// are narrower than a block.
pub fn fold_padded(matrix: MatrixEntry, is_layer: bool) -> MatrixEntry {
    let n = matrix.count * matrix.rows * matrix.cols;
    if matrix.row_axis != 0 || is_layer && matrix.cols >= BLOCK_COLS {
        return matrix;
    }
    let padded = |m: &MatrixEntry| m.count * m.rows.next_multiple_of(TILE_ROWS) * m.cols.next_multiple_of(BLOCK_COLS);
    let folded = (1..=16).map(|blocks| blocks * BLOCK_COLS).filter(|cols| n.is_multiple_of(*cols));
    let folded = folded.map(|cols| MatrixEntry { count: 1, rows: n / cols, cols, row_axis: 0 });
    folded.rev().chain([matrix]).min_by_key(padded).unwrap_or(matrix)
}
