//! Products with the experts that tokens are routed to.

use std::sync::Arc;

use wcodec_kernels::abi::{self, Parameters};

use super::Inner;
use crate::error::Result;
use crate::gpu::buffer::DeviceBuffer;
use crate::gpu::device::Device;
use crate::gpu::groups::split;
use crate::gpu::kernel::Kernel;
use crate::gpu::plan::RoutedLaunch;
use crate::gpu::shared::Bytes;
use crate::gpu::stream::Stream;
use crate::gpu::work_item::{ProductItem, ResultOrder, WorkItem};

/// Slots have so many times the vectors that an expert has routes, on the average. 128 experts of 768x2048 and 8 for each token (one H200, 4 bits): slots of
/// 8 take 400 us with 64 tokens, and those of 32 take 463; with 128 tokens 570 and 492.
const SPARE: usize = 2;

/// Matrices of experts, to multiply with those that tokens are routed to. It keeps the decoder's memory alive, and so does a graph that captures it.
#[derive(Debug)]
pub struct Routed {
    held: Arc<Held>,
    experts: usize,
    launches: Vec<(Kernel, RoutedLaunch)>,
    overlap: bool,
}

/// The memory that launches read.
#[derive(Debug)]
struct Held {
    inner: Arc<Inner>,
    /// The items of all experts, for each launch.
    table: DeviceBuffer,
}

/// Vectors to multiply with routed experts, and where the results go. Addresses are the device's.
#[derive(Clone, Copy, Debug)]
pub struct RoutedVectors {
    /// Address of the first vector.
    pub x: u64,
    /// From one vector to the next, elements.
    pub x_stride: usize,
    /// Address of a `u32` for each position: which of the vectors is multiplied there, as [`Routes::rows`](crate::gpu::Routes::rows). 0 if vectors lie by
    /// position.
    pub rows: u64,
    /// Address of experts with positions, as [`Routes::slots`](crate::gpu::Routes::slots).
    pub slots: u64,
    /// The number of slots.
    pub slot_count: usize,
    /// The most vectors of a slot: [`Routes::most`](crate::gpu::Routes::most).
    pub most: usize,
    /// Address of the results, which lie by position: for each the results of all matrices of its expert, side by side.
    pub y: u64,
}

impl Routed {
    /// The most vectors of a slot.
    pub const MOST: usize = 32;

    pub(super) fn new(inner: &Arc<Inner>, experts: &[Vec<ProductItem>]) -> Result<Self> {
        let (shared, tensors) = (&inner.shared, &inner.shared.tensors);
        let each = experts.iter().map(|items| {
            let wanted = shared.products(items, ResultOrder::ByVector)?;
            let wanted = wanted.into_iter().map(|(item, product)| (item, Some(product))).collect();
            let (items, others) = split(tensors, &inner.homes, wanted, |i| inner.addresses(i))?;
            if let Some((item, _)) = others.first() {
                return Err(coded!(NO_PRODUCT, "routed experts are multiplied with where they are on the device")
                    .tensor(&item.name)
                    .advice("keep it there, or decode it"));
            }
            if let Some(item) = items.iter().find(|item| item.product.is_some_and(|p| p.bias != 0 || p.part != 0)) {
                return Err(coded!(NO_PRODUCT, "routed experts have neither biases nor gates")
                    .tensor(item.plan.name())
                    .advice("leave them to the caller"));
            }
            Ok(items)
        });
        let experts: Vec<Vec<WorkItem<'_>>> = each.collect::<Result<_>>()?;
        let mut launches = shared.prepare_routed(&experts)?;
        let bytes: Vec<u8> =
            launches.iter().flat_map(|(_, launch)| &launch.table).flat_map(|item| item.as_bytes()).copied().collect();
        let table = DeviceBuffer::new(shared.device(), bytes.len())?;
        // A stream of its own: others may be being captured.
        table.upload(0, &bytes, &Stream::new(shared.device())?)?;
        let mut at = table.ptr();
        for (_, launch) in &mut launches {
            launch.params.stash = at;
            at += (launch.table.len() * size_of::<abi::ProductItem>()) as u64;
            launch.table = Vec::new();
        }
        let held = Arc::new(Held { inner: inner.clone(), table });
        Ok(Self { held, experts: experts.len(), launches, overlap: shared.overlaps(Bytes::Stay) })
    }

    /// The most vectors of a slot that suit so many tokens with so many routes. Slots are small while experts have few routes each: those that have more
    /// are decoded again for each slot, which costs less than what large slots cost all others.
    pub fn most(&self, tokens: usize, routes: usize) -> usize {
        most_of_a_slot(self.launches.iter().map(|(_, launch)| launch.vectors), tokens, routes, self.experts)
    }

    /// Puts the products into the stream. Neither allocates nor waits, and can be captured. Rows of an expert with a damaged chunk give NaN, and
    /// [`check`](super::TensorDecoder::check) tells. Results of slots of as many vectors at most are the same bits whatever other routes there are, if there
    /// are up to 12 slots, or if there are more.
    ///
    /// # Safety
    /// Vectors, routes and results are on the decoder's device, large enough, alive until the work is done (if the stream is being captured, until
    /// the last time that the graph runs), and not changed (results: not used) by other work meanwhile. Slots are of routes to these experts, and have
    /// [`RoutedVectors::most`] vectors at most.
    ///
    /// # Errors
    /// Slots have more vectors than [`MOST`](Self::MOST).
    pub unsafe fn multiply(&self, vectors: &RoutedVectors, stream: &Stream) -> Result<()> {
        let takes = |(_, launch): &&(Kernel, RoutedLaunch)| launch.takes(vectors.most, vectors.slot_count);
        let Some((kernel, launch)) = self.launches.iter().find(takes) else {
            return Err(coded!(
                BAD_VECTORS,
                "{} vectors of an expert, which takes {} at most",
                vectors.most,
                Self::MOST
            )
            .advice("route fewer to a slot"));
        };
        if stream.is_capturing()? {
            stream.keep(self.held.clone())?;
        }
        let (params, grid) = launch.at(vectors)?;
        let &RoutedLaunch { cluster, threads, shared, .. } = launch;
        // SAFETY: as the caller promises; the kernel waits for the work before it.
        unsafe { kernel.launch_clusters(grid, cluster, threads, shared, params.as_bytes(), stream, self.overlap) }
    }

    /// Bytes that it holds on the device, besides the decoder's.
    pub fn device_bytes(&self) -> usize {
        self.held.table.len()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.held.inner.shared.device()
    }
}

/// The size of slots for so many tokens and routes to so many experts: one of `sizes`, which ascend.
fn most_of_a_slot(sizes: impl Iterator<Item = usize> + Clone, tokens: usize, routes: usize, experts: usize) -> usize {
    let suits = |most: usize| tokens <= most || routes * SPARE <= most * experts;
    sizes.clone().find(|&most| suits(most)).or(sizes.max()).unwrap_or(Routed::MOST)
}

impl RoutedLaunch {
    /// Parameters and blocks of the launch for these vectors.
    ///
    /// # Errors
    /// There are too many blocks.
    pub(in crate::gpu) fn at(&self, vectors: &RoutedVectors) -> Result<(abi::ProductBatch, u32)> {
        let &RoutedVectors { x, x_stride, rows, slots, slot_count, y, .. } = vectors;
        let grid = u32::try_from(slot_count).ok().and_then(|slots| slots.checked_mul(self.blocks));
        let grid = grid
            .filter(|&grid| i32::try_from(grid).is_ok())
            .ok_or_else(|| coded!(LAUNCH_TOO_LARGE, "too much for one launch").advice("route fewer tokens at once"))?;
        let x_stride = x_stride as u64;
        let params = abi::ProductBatch {
            x,
            x_stride,
            y,
            vector: self.params.vector & u32::from(x.is_multiple_of(16) && x_stride.is_multiple_of(8)),
            gain: rows,
            arrivals: slots,
            ..*self.params
        };
        Ok((params, grid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_small_while_experts_have_few_routes() {
        let most = |tokens, each, experts| most_of_a_slot([8, 8, 32, 32].into_iter(), tokens, tokens * each, experts);
        for (tokens, each, experts, wanted) in [
            (1, 8, 128, 8),
            (8, 2, 8, 8),
            (64, 8, 128, 8),
            (65, 8, 128, 32),
            (16, 2, 8, 8),
            (17, 2, 8, 32),
            (512, 8, 128, 32),
        ] {
            assert_eq!(most(tokens, each, experts), wanted, "{tokens} tokens, {each} of {experts} experts each");
        }
    }
}
