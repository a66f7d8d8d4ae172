//! Routes of tokens to experts: sorted by expert on the device for products with routed experts, whose results are added up by token.

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, Parameters};

use super::device::Device;
use super::kernel::Kernel;
use super::stream::Stream;
use super::work_item::RowIds;
use crate::coder::LANES;
use crate::error::Result;
use crate::tensor::Dtype;

/// Bytes of shared memory of a block that sorts routes: the expert of each, and a word for each warp.
const SHARED: usize = abi::TABLE_AT + 4 * abi::MOST_ROUTES + 4 * abi::MOST_EXPERTS / LANES;

/// Routes to sort, and where their order goes. Addresses are the device's.
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    /// The number of the expert of each route, those of a token side by side. Numbers out of range, negative ones too, are of no expert.
    pub ids: RowIds,
    /// Routes that read the same row of vectors: as many as a token has, or 1 where each has a row.
    pub each: usize,
    /// Address of an `i32` for each number, the index of that expert, where numbers are not the indices; -1 is for experts that are elsewhere. 0 for
    /// none.
    pub places: u64,
    /// The number of these.
    pub named: usize,
    /// The number of experts.
    pub experts: usize,
    /// Routes of a slot, at most: what the kernel takes that multiplies. An expert with more routes has several slots.
    pub most: usize,
    /// Address of a `u32` for each route, for the row of vectors at each position.
    pub rows: u64,
    /// Address of an `i32` for each route, for its position, or -1.
    pub positions: u64,
    /// Address, a multiple of 16, of 16 bytes for each of [`slot_count`](Self::slot_count) slots: an expert, the position of its first route, and how
    /// many there are from there on.
    pub slots: u64,
}

impl Routes {
    /// The most routes of a call.
    pub const MOST: usize = abi::MOST_ROUTES;

    /// The most slots that routes can take: what products are launched for.
    pub fn slot_count(&self) -> usize {
        // With so many experts that have routes; fewer would have more slots each, but fewer in all.
        let experts = self.experts.min(self.ids.count);
        experts + (self.ids.count - experts) / self.most.max(1)
    }
}

/// Results of routed experts to add up. Addresses are the device's; vectors of an array lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Combination {
    /// Dtype of all vectors: `F16` or `BF16`.
    pub dtype: Dtype,
    /// Number of tokens.
    pub tokens: usize,
    /// Routes of a token.
    pub each: usize,
    /// Elements of a vector.
    pub cols: usize,
    /// Address of a result for each position.
    pub y: u64,
    /// Address of a factor for each route, `F32` or of the vectors' dtype; 0 if all are 1.
    pub shares: u64,
    /// Dtype of these.
    pub share_dtype: Dtype,
    /// Address of the position of each route, as [`Routes::positions`].
    pub positions: u64,
    /// Address of a vector for each token: the sum of its routes' results, times their factors, in the order of the routes, rounded once.
    pub out: u64,
}

/// The kernels around products with routed experts, on a device.
#[derive(Clone, Debug)]
pub struct Router {
    route: Kernel,
    combine: Kernel,
}

impl Router {
    /// Loads them.
    ///
    /// # Errors
    /// The driver loads none of their images.
    pub fn new(device: &Device) -> Result<Self> {
        let kernel = |name| device.kernel(Module::Route, name);
        Ok(Self { route: kernel("wcodec_route")?, combine: kernel("wcodec_route_combine")? })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.route.device()
    }

    /// Puts the sorting of routes into the stream. Neither allocates nor waits, and can be captured.
    ///
    /// # Safety
    /// The memory at all addresses is alive until the work is done, is as large as the routes, numbers and slots that are told of, and nothing else
    /// writes to it meanwhile.
    ///
    /// # Errors
    /// There are more than [`Routes::MOST`] routes, or more experts than 1,024.
    pub unsafe fn route(&self, routes: &Routes, stream: &Stream) -> Result<()> {
        let Some((params, threads, shared)) = route_launch(routes)? else { return Ok(()) };
        // SAFETY: as the caller promises; the kernel waits for the work before it.
        unsafe { self.route.launch(1, threads, shared, params.as_bytes(), stream, true) }
    }

    /// Puts the addition of results into the stream. Neither allocates nor waits, and can be captured.
    ///
    /// # Safety
    /// Conditions of [`route`](Self::route), of vectors, shares and positions.
    ///
    /// # Errors
    /// Elements of another dtype, or too many for a launch.
    pub unsafe fn combine(&self, combination: &Combination, stream: &Stream) -> Result<()> {
        let Some((params, grid, threads)) = combine_launch(combination)? else { return Ok(()) };
        // SAFETY: as the caller promises; the kernel waits for the work before it.
        unsafe { self.combine.launch(grid, threads, 0, params.as_bytes(), stream, true) }
    }
}

/// Parameters, threads of the one block, and bytes of its shared memory; nothing where there are no routes.
pub(super) fn route_launch(routes: &Routes) -> Result<Option<(abi::RouteBatch, u32, u32)>> {
    let &Routes { ids, each, places, named, experts, most, rows, positions, slots } = routes;
    if ids.count > abi::MOST_ROUTES || experts > abi::MOST_EXPERTS || named >= 1 << 31 || each * most == 0 {
        let (limit, most) = (abi::MOST_EXPERTS, abi::MOST_ROUTES);
        return Err(coded!(
            BAD_VECTORS,
            "{} routes to {experts} experts, where {most} routes to {limit} can be sorted",
            ids.count
        )
        .advice("route fewer tokens at once"));
    }
    if ids.count == 0 || experts == 0 {
        return Ok(None);
    }
    let params = abi::RouteBatch {
        ids: ids.ptr,
        places,
        rows,
        positions,
        slots,
        routes: ids.count as u32,
        each: each as u32,
        wide: u32::from(ids.wide),
        named: named as u32,
        experts: experts as u32,
        most: most as u32,
        slot_count: routes.slot_count() as u32,
        reserved: 0,
    };
    // Few experts have more threads than they need, which read the numbers.
    let threads = experts.max(ids.count.min(256)).next_multiple_of(LANES);
    Ok(Some((params, threads as u32, SHARED as u32)))
}

/// Parameters, blocks, and threads of a block; nothing where there are no tokens.
pub(super) fn combine_launch(combination: &Combination) -> Result<Option<(abi::CombineBatch, u32, u32)>> {
    let &Combination { dtype, tokens, each, cols, y, shares, share_dtype, positions, out } = combination;
    let bf16 = match dtype {
        Dtype::F16 => 0,
        Dtype::BF16 => 1,
        other => {
            return Err(
                coded!(NO_FUSED_KERNEL, "no kernel adds up experts' results of {other}").advice("use F16 or BF16")
            );
        }
    };
    if share_dtype != dtype && share_dtype != Dtype::F32 {
        return Err(coded!(NO_FUSED_KERNEL, "no kernel multiplies experts' results of {dtype} by {share_dtype}")
            .advice("use F32, or the results' dtype"));
    }
    let blocks = cols.div_ceil(8 * abi::COMBINE_THREADS);
    let too_large = |_| coded!(LAUNCH_TOO_LARGE, "too much for one launch").advice("combine fewer tokens at once");
    let grid = i32::try_from(tokens.saturating_mul(blocks)).map_err(too_large)?;
    let results = tokens.saturating_mul(each);
    let (_, cols) = (i32::try_from(results).map_err(too_large)?, i32::try_from(cols).map_err(too_large)?);
    if grid == 0 {
        return Ok(None);
    }
    let params = abi::CombineBatch {
        y,
        shares,
        positions,
        out,
        cols: cols as u32,
        each: each as u32,
        bf16,
        wide: u32::from(share_dtype == Dtype::F32),
        vector: u32::from((y | out).is_multiple_of(16) && cols % 8 == 0),
        reserved: 0,
    };
    let threads = (cols as usize).div_ceil(8).next_multiple_of(LANES).min(abi::COMBINE_THREADS);
    Ok(Some((params, grid as u32, threads as u32)))
}
