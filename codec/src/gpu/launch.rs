//! Puts the decoding of planned tensors into a stream, but for planes of coder `zstd`, which is nvCOMP's.

use cudarc::driver::result;
use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};

use super::device::Device;
use super::driver::DriverResult;
use super::plan::{Limits, LookupLaunch, MOST_VECTORS, Method, ProductLaunch, ProductTiles, TilesItem, TilesLaunch};
use super::plan::{RoutedLaunch, most_vectors, product_launches, routed_launches, tiles_launches};
use super::stream::Stream;
use super::work_item::{
    Activation, Epilogue, RowIds, UTIL_THREADS, Vectors, WorkItem, bits_batches, bits_item, elements_of, symbols_batch,
    symbols_item,
};
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Launches that are ready, by kernel.
#[derive(Debug)]
pub(super) struct Launches {
    tiles: Vec<(super::kernel::Kernel, TilesLaunch)>,
    raw: Vec<(u64, u64, usize)>,
    symbols: Vec<(super::kernel::Kernel, Box<abi::SymbolsBatch>, u32)>,
    bits: Vec<(super::kernel::Kernel, Box<abi::FieldsSymbolsBatch>, u32)>,
    /// For each of [`MOST_VECTORS`].
    products: [Vec<(super::kernel::Kernel, ProductLaunch)>; MOST_VECTORS.len()],
    /// The most vectors that products have launches for.
    pub most_vectors: usize,
}

impl Default for Launches {
    fn default() -> Self {
        Self {
            tiles: Vec::new(),
            raw: Vec::new(),
            symbols: Vec::new(),
            bits: Vec::new(),
            products: Default::default(),
            most_vectors: Vectors::MOST,
        }
    }
}

/// Says that a call has more vectors than its products take.
pub(super) fn too_many_vectors(count: usize, most: usize) -> Error {
    coded!(BAD_VECTORS, "{count} vectors for products that take {most} at most")
        .advice("decode the weights for so many")
}

/// The launches that gather rows of a tensor, in the order of its planes.
#[derive(Debug)]
pub(super) struct Lookups(Vec<(super::kernel::Kernel, LookupLaunch)>);

impl Lookups {
    /// Checks that rows can be gathered by these indices.
    ///
    /// # Errors
    /// As of [`LookupLaunch::at`].
    pub fn check(&self, ids: RowIds, out: u64) -> Result<()> {
        self.0.iter().try_for_each(|(_, launch)| launch.at(ids, out).map(drop))
    }
}

/// The device and its limits, for launches.
#[derive(Debug)]
pub(super) struct Launcher {
    device: Device,
    limits: Limits,
}

impl Launcher {
    pub fn new(device: &Device) -> Self {
        let limits = Limits {
            multiprocessors: device.multiprocessors() as usize,
            shared_per_block: device.shared_memory_per_block() as usize,
            shared_per_multiprocessor: device.shared_memory_per_multiprocessor() as usize,
            many: false,
        };
        Self { device: device.clone(), limits }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The limits of launches of products. The first call for a device finds out whether kernels of many vectors run there.
    pub fn product_limits(&self) -> Result<Limits> {
        Ok(Limits { many: self.device.multiplies_many()?, ..self.limits })
    }

    /// Turns work items, which are not empty, into launches, and loads their kernels.
    pub fn prepare(&self, items: &[&WorkItem<'_>]) -> Result<Launches> {
        let mut work = Launches::default();
        let mut tiles = Vec::new();
        let mut symbols = Vec::new();
        let mut element_bits = Vec::new();
        let mut products = Vec::new();
        for item in items {
            match item.method {
                Method::Tiles(t) => {
                    let tiles_item = item.in_tiles(t);
                    match item.product {
                        Some(product) => products.push(ProductTiles { tiles: tiles_item, product }),
                        None => tiles.push(tiles_item),
                    }
                }
                Method::Raw { bits: Some(bits) } => {
                    let symbols = symbols_item(item, item.addresses.data, elements_of(item));
                    element_bits.push(bits_item(*bits, item.kind, symbols));
                }
                Method::Raw { bits: None } => {
                    let (data, elements) = (item.addresses.data, elements_of(item));
                    if item.kind == OutputKind::Int8 && !item.plan.tensor.transposed() {
                        work.raw.push((item.out, data.wrapping_add(elements.start as u64), elements.len()));
                    } else {
                        symbols.push(symbols_item(item, data, elements));
                    }
                }
                Method::Zstd { .. } => unreachable!("a plane of coder zstd"),
            }
        }
        products.sort_by_key(ProductTiles::key);
        let limits = if products.is_empty() { self.limits } else { self.product_limits()? };
        let each = products.iter().map(|item| most_vectors(item.tiles.tensor, limits));
        work.most_vectors = each.min().unwrap_or(Vectors::MOST);
        for items in products.chunk_by(|a, b| a.key() == b.key()) {
            let sizes = MOST_VECTORS.into_iter().take_while(|&vectors| vectors <= work.most_vectors);
            for (launches, vectors) in work.products.iter_mut().zip(sizes) {
                for launch in product_launches(items, vectors, limits)? {
                    let kernel = self.device.kernel(launch.module, &launch.kernel)?;
                    kernel.max_shared(launch.shared)?;
                    launches.push((kernel, launch));
                }
            }
        }
        tiles.sort_by_key(TilesItem::key);
        for items in tiles.chunk_by(|a, b| a.key() == b.key()) {
            for launch in tiles_launches(items, self.limits)? {
                let kernel = self.device.kernel(launch.module, &launch.kernel)?;
                kernel.max_shared(launch.shared)?;
                work.tiles.push((kernel, launch));
            }
        }
        for items in symbols.chunks(abi::MAX_ITEMS) {
            let (batch, grid) = symbols_batch(items, self.limits);
            work.symbols.push((self.device.kernel(Module::Util, "wcodec_dequantize")?, batch, grid));
        }
        for (batch, grid) in bits_batches(element_bits, self.limits) {
            work.bits.push((self.device.kernel(Module::Util, "wcodec_fields")?, batch, grid));
        }
        Ok(work)
    }

    /// Turns the items of one tensor, all of which are tiles, into launches that gather rows, and loads their kernels.
    pub fn prepare_lookup(&self, items: &[WorkItem<'_>]) -> Result<Lookups> {
        let mut in_tiles = Vec::with_capacity(items.len());
        for item in items {
            let Method::Tiles(tiles) = item.method else { unreachable!("`can_look_up` was asked") };
            in_tiles.push(item.in_tiles(tiles));
        }
        // Planes that add to others' bits come behind them.
        in_tiles.sort_by_key(TilesItem::key);
        let launches = in_tiles.iter().map(|item| {
            let launch = LookupLaunch::new(item, self.limits)?;
            let kernel = self.device.kernel(launch.module, &launch.kernel)?;
            kernel.max_shared(launch.most_shared())?;
            Ok((kernel, launch))
        });
        launches.collect::<Result<_>>().map(Lookups)
    }

    /// Turns the items of each expert, all of which are tiles to multiply with, into launches, and loads their kernels.
    pub fn prepare_routed(&self, experts: &[Vec<WorkItem<'_>>]) -> Result<Vec<(super::kernel::Kernel, RoutedLaunch)>> {
        fn in_tiles<'a>(item: &WorkItem<'a>) -> ProductTiles<'a> {
            match (item.method, item.product) {
                (Method::Tiles(tiles), Some(product)) => ProductTiles { tiles: item.in_tiles(tiles), product },
                _ => unreachable!("`can_fuse` was asked"),
            }
        }
        let experts: Vec<Vec<_>> = experts.iter().map(|items| items.iter().map(in_tiles).collect()).collect();
        let launches = routed_launches(&experts, self.product_limits()?)?;
        let with_kernel = launches.into_iter().map(|launch| {
            let kernel = self.device.kernel(launch.module, &launch.kernel)?;
            kernel.max_shared(launch.shared)?;
            Ok((kernel, launch))
        });
        with_kernel.collect()
    }

    /// Puts launches that gather rows into the stream.
    ///
    /// # Safety
    /// Conditions of `Shared::look_up`.
    pub unsafe fn look_up(&self, work: &Lookups, ids: RowIds, out: u64, stream: &Stream, overlap: bool) -> Result<()> {
        if ids.count == 0 {
            return Ok(());
        }
        for (kernel, launch) in &work.0 {
            let (params, grid, threads, shared) = launch.at(ids, out)?;
            // SAFETY: as the caller promises; the kernels wait for the work before them.
            unsafe { kernel.launch(grid, threads, shared, params.as_bytes(), stream, overlap)? };
        }
        Ok(())
    }

    /// Whether kernels of this device multiply vectors of this dtype.
    pub fn multiplies(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F16 || (dtype == Dtype::BF16 && self.device.compute_capability() >= (8, 0))
    }

    /// Puts launches of products into the stream.
    ///
    /// # Safety
    /// Conditions of `Shared::multiply`.
    pub unsafe fn multiply(&self, work: &Launches, vectors: &Vectors, stream: &Stream, overlap: bool) -> Result<()> {
        let size = MOST_VECTORS.iter().position(|&most| vectors.count <= most);
        let Some(which) = size.filter(|_| vectors.count <= work.most_vectors) else {
            return Err(too_many_vectors(vectors.count, work.most_vectors));
        };
        if vectors.count == 0 {
            return Ok(());
        }
        let epilogue = vectors.epilogue;
        if epilogue.squared != 0 && vectors.count > Vectors::MOST_SQUARED {
            let (count, most) = (vectors.count, Vectors::MOST_SQUARED);
            return Err(coded!(BAD_VECTORS, "{count} vectors for products behind a norm, which take {most} at most")
                .advice("write their norm first, and multiply with that"));
        }
        let Epilogue { squared, residual, scaled, stash, arrivals, .. } = epilogue;
        let gated = |launch: &ProductLaunch| launch.params.items.iter().any(|i| i.part != abi::PART_RESULT);
        if (stash == 0 || arrivals == 0) && work.products[which].iter().any(|(_, launch)| gated(launch)) {
            return Err(
                coded!(NO_FUSED_KERNEL, "gates and values have nowhere to meet").advice("set `stash` and `arrivals`")
            );
        }
        let usual = |gates| if gates { Activation::Silu } else { Activation::None };
        let later = |launch: &ProductLaunch| launch.params.items.iter().map(|i| i.vector).max().unwrap_or(0);
        for (kernel, launch) in &work.products[which] {
            let (x_stride, later) = (vectors.x_stride as u64, later(launch));
            if later > 0 && (squared | residual | scaled | stash) != 0 {
                return Err(coded!(
                    BAD_VECTORS,
                    "matrices of other vectors each, with more to be done than to multiply"
                )
                .advice("leave `epilogue` as it is by default"));
            }
            // Kernels count bytes from the first vector in 32 bits.
            if x_stride.saturating_mul(2 * (vectors.count as u64 + u64::from(later))) > u32::MAX.into() {
                return Err(coded!(BAD_VECTORS, "vectors {x_stride} elements apart").advice("copy them closer"));
            }
            let params = abi::ProductBatch {
                vectors: vectors.count as u32,
                x: vectors.x,
                x_stride,
                y: vectors.y,
                vector: launch.params.vector
                    & u32::from(
                        (vectors.x | squared).is_multiple_of(16)
                            && (vectors.count == 1 && later == 0 || x_stride.is_multiple_of(8)),
                    ),
                squared,
                epsilon: epilogue.epsilon.to_bits(),
                norm_factor: epilogue.norm_factor.to_bits(),
                share: (1.0 / launch.params.items[0].tiles.cols as f32).to_bits(),
                residual,
                scaled,
                gain: epilogue.gain,
                gain_scale: epilogue.gain_scale.to_bits(),
                // Kernels add it behind that product, which is exact.
                gain_offset: (epilogue.gain_offset * epilogue.gain_scale).to_bits(),
                residual_scale: epilogue.residual_scale.to_bits(),
                activation: epilogue.activation.unwrap_or(usual(gated(launch))) as u32,
                stash,
                arrivals,
                ..*launch.params
            };
            // SAFETY: as the caller promises; the kernels wait for the work before them.
            unsafe {
                let ProductLaunch { grid, cluster, threads, shared, .. } = *launch;
                kernel.launch_clusters(grid, cluster, threads, shared, params.as_bytes(), stream, overlap)?;
            }
        }
        Ok(())
    }

    /// Puts launches into the stream.
    ///
    /// # Safety
    /// Conditions of `Shared::launch`.
    pub unsafe fn launch(&self, work: &Launches, stream: &Stream, overlap: bool) -> Result<()> {
        for (kernel, l) in &work.tiles {
            // SAFETY: as the caller promises; the kernels wait for the work before them.
            unsafe { kernel.launch(l.grid, l.threads, l.shared, l.params.as_bytes(), stream, overlap)? };
        }
        for (kernel, batch, grid) in &work.symbols {
            // SAFETY: likewise.
            unsafe { kernel.launch(*grid, UTIL_THREADS, 0, batch.as_bytes(), stream, overlap)? };
        }
        // Behind the tiles: what they have written of elements is added to.
        for (kernel, batch, grid) in &work.bits {
            // SAFETY: likewise.
            unsafe { kernel.launch(*grid, UTIL_THREADS, 0, batch.as_bytes(), stream, overlap)? };
        }
        for &(to, from, bytes) in &work.raw {
            let _scope = self.device.enter()?;
            // SAFETY: likewise.
            unsafe { result::memcpy_dtod_async(to, from, bytes, stream.for_device(&self.device)?) }
                .named("cuMemcpyDtoDAsync")?;
        }
        Ok(())
    }
}
