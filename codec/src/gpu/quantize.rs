//! Levels of weights with error feedback: rounding of some columns, and the paths of a trellis through them.

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, Parameters};

use super::device::Device;
use super::kernel::Kernel;
use super::stream::Stream;
use crate::error::Result;

/// Threads for each row of weights, where survivors of a trellis are extended.
const STATES: usize = 4;

/// Columns of weights, as kernels work on them.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSizes {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns, at most [`Quantizer::COLUMNS`].
    pub columns: usize,
    /// The distance of rows of `feed`, elements.
    pub stride: usize,
}

/// Weights to round, column by column. Addresses are the device's. Numbers are `F32`, and an array has one row of the
/// matrix' rows for each column.
#[derive(Clone, Copy, Debug)]
pub struct RoundColumns {
    /// The numbers of rows and columns.
    pub sizes: ColumnSizes,
    /// Address of the weights, in steps of their rows.
    pub x: u64,
    /// Address of the sums that errors of earlier columns add to them.
    pub carry: u64,
    /// Address of the share of each column's error that each later one gets.
    pub feed: u64,
    /// Address of 130 costs, of each magnitude behind two places that are never chosen; 0 to round to the nearest level.
    pub prices: u64,
    /// Address of an `I8` for each weight, for its symbol n, which stands for n + 1/2.
    pub levels: u64,
    /// Address of a number for each weight, for its error.
    pub errors: u64,
}

/// Weights through which the four survivors of a trellis go on. Addresses are the device's. Numbers are `F32`, and an
/// array has one row of the matrix' rows for each column, or for each of a column's survivors.
#[derive(Clone, Copy, Debug)]
pub struct TrellisColumns {
    /// The numbers of rows and columns.
    pub sizes: ColumnSizes,
    /// Address of the weights, in fine steps of their rows.
    pub x: u64,
    /// Address of the sums that errors of earlier columns add to them, for each survivor.
    pub added: u64,
    /// Address of the cost of an error in each column.
    pub weights: u64,
    /// Address of the share of each column's error that each later one gets; 0 if they get none.
    pub feed: u64,
    /// Address of 260 costs, of each symbol from -128 on.
    pub prices: u64,
    /// Address of the survivors' costs.
    pub costs: u64,
    /// Address of an `I8` for each weight and survivor, for the symbols of its path.
    pub symbols: u64,
    /// Address of an `I64` for each survivor, for the state that its path comes from.
    pub origin: u64,
    /// Address of a number for each survivor, for its cost behind these columns.
    pub sums: u64,
}

/// The kernels that choose levels of weights, on a device.
#[derive(Clone, Debug)]
pub struct Quantizer {
    round: Kernel,
    trellis: Kernel,
}

impl Quantizer {
    /// The most columns of a launch.
    pub const COLUMNS: usize = abi::QUANTIZE_COLUMNS;

    /// Loads them.
    ///
    /// # Errors
    /// The driver loads none of their images.
    pub fn new(device: &Device) -> Result<Self> {
        let kernel = |name| device.kernel(Module::Quantize, name);
        Ok(Self { round: kernel("wcodec_round_columns")?, trellis: kernel("wcodec_trellis_columns")? })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.round.device()
    }

    /// Puts the rounding of columns into the stream. Neither allocates nor waits, and can be captured.
    ///
    /// # Safety
    /// The memory at all addresses is alive until the work is done, is as large as the sizes say, and nothing else writes
    /// to it meanwhile.
    ///
    /// # Errors
    /// More than [`Self::COLUMNS`] columns, or rows than a launch takes.
    pub unsafe fn round(&self, columns: &RoundColumns, stream: &Stream) -> Result<()> {
        let Some((params, grid, threads)) = round_launch(columns)? else { return Ok(()) };
        // SAFETY: as the caller promises.
        unsafe { self.round.launch(grid, threads, 0, params.as_bytes(), stream, false) }
    }

    /// Puts the extension of survivors into the stream. Neither allocates nor waits, and can be captured.
    ///
    /// # Safety
    /// Conditions of [`round`](Self::round).
    ///
    /// # Errors
    /// Those of [`round`](Self::round).
    pub unsafe fn trellis(&self, columns: &TrellisColumns, stream: &Stream) -> Result<()> {
        let Some((params, grid, threads)) = trellis_launch(columns)? else { return Ok(()) };
        // SAFETY: as the caller promises.
        unsafe { self.trellis.launch(grid, threads, 0, params.as_bytes(), stream, false) }
    }
}

/// Rows, columns and stride as kernels take them, and the blocks of threads for `each` threads a row; nothing where there
/// is no weight.
fn checked(sizes: &ColumnSizes, each: usize) -> Result<Option<([u32; 3], u32)>> {
    let &ColumnSizes { rows, columns, stride } = sizes;
    if columns > abi::QUANTIZE_COLUMNS {
        return Err(coded!(LAUNCH_TOO_LARGE, "{columns} columns, where a launch takes {}", abi::QUANTIZE_COLUMNS)
            .advice("quantize fewer columns at once"));
    }
    if rows == 0 || columns == 0 {
        return Ok(None);
    }
    let too_large =
        || coded!(LAUNCH_TOO_LARGE, "{rows} rows are too many for one launch").advice("quantize fewer rows at once");
    let number = |n: usize| i32::try_from(n).map(|n| n as u32).map_err(|_| too_large());
    let grid = number(rows.checked_mul(each).ok_or_else(too_large)?.div_ceil(abi::QUANTIZE_THREADS))?;
    Ok(Some(([number(rows)?, number(columns)?, number(stride)?], grid)))
}

/// Parameters, blocks, and threads of a block.
pub(super) fn round_launch(call: &RoundColumns) -> Result<Option<(abi::RoundBatch, u32, u32)>> {
    let &RoundColumns { ref sizes, x, carry, feed, prices, levels, errors } = call;
    let Some(([rows, columns, stride], grid)) = checked(sizes, 1)? else { return Ok(None) };
    let params = abi::RoundBatch { x, carry, feed, prices, levels, errors, rows, columns, stride, reserved: 0 };
    Ok(Some((params, grid, abi::QUANTIZE_THREADS as u32)))
}

/// Parameters, blocks, and threads of a block.
pub(super) fn trellis_launch(call: &TrellisColumns) -> Result<Option<(abi::TrellisBatch, u32, u32)>> {
    let &TrellisColumns { ref sizes, x, added, weights, feed, prices, costs, symbols, origin, sums } = call;
    let Some(([rows, columns, stride], grid)) = checked(sizes, STATES)? else { return Ok(None) };
    let params = abi::TrellisBatch {
        x,
        added,
        weights,
        feed,
        prices,
        costs,
        symbols,
        origin,
        sums,
        rows,
        columns,
        stride,
        reserved: 0,
    };
    Ok(Some((params, grid, abi::QUANTIZE_THREADS as u32)))
}
