//! Puts the decoding of planned tensors into a stream, but for planes of coder `zstd`, which is nvCOMP's.

use cudarc::driver::result;
use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};

use super::device::Device;
use super::driver::DriverResult;
use super::plan::{Limits, Method, TilesJob, TilesLaunch, tiles_launches};
use super::stream::Stream;
use super::task::{DecodeTask, UTIL_THREADS, elements_of, part_item, parts_batches, symbols_batch, symbols_item};
use crate::error::Result;

/// What only needs to be launched.
#[derive(Debug, Default)]
pub(super) struct Launches {
    tiles: Vec<(super::kernel::Kernel, TilesLaunch)>,
    raw: Vec<(u64, u64, usize)>,
    symbols: Vec<(super::kernel::Kernel, Box<abi::SymbolsBatch>, u32)>,
    parts: Vec<(super::kernel::Kernel, Box<abi::FieldsSymbolsBatch>, u32)>,
}

/// What a device needs for launches.
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
        };
        Self { device: device.clone(), limits }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Turns tasks, which are not empty, into launches, and loads their kernels.
    pub fn prepare(&self, tasks: &[&DecodeTask<'_>]) -> Result<Launches> {
        let mut work = Launches::default();
        let mut tiles = Vec::new();
        let mut symbols = Vec::new();
        let mut parts = Vec::new();
        for task in tasks {
            match task.method {
                Method::Tiles(t) => {
                    let strips = (task.plan.strip_of(task.rows.start), task.plan.strip_of(task.rows.end));
                    debug_assert_eq!(task.plan.first_row(strips.0), task.rows.start);
                    tiles.push(TilesJob {
                        tensor: task.plan,
                        tiles: t,
                        image: task.image,
                        table: task.table,
                        status: task.status,
                        out: task.out,
                        kind: task.kind,
                        strips,
                    });
                }
                Method::Raw { part: Some(part) } => {
                    let item = symbols_item(task, task.image.data, elements_of(task));
                    parts.push(part_item(*part, task.kind, item));
                }
                Method::Raw { part: None } => {
                    let (data, elements) = (task.image.data, elements_of(task));
                    if task.kind == OutputKind::Int8 && !task.plan.tensor.transposed() {
                        work.raw.push((task.out, data.wrapping_add(elements.start as u64), elements.len()));
                    } else {
                        symbols.push(symbols_item(task, data, elements));
                    }
                }
                Method::Zstd { .. } => unreachable!("a plane of coder zstd"),
            }
        }
        tiles.sort_by_key(TilesJob::key);
        for jobs in tiles.chunk_by(|a, b| a.key() == b.key()) {
            for launch in tiles_launches(jobs, self.limits)? {
                let kernel = self.device.kernel(launch.module, &launch.kernel)?;
                kernel.max_shared(launch.shared)?;
                work.tiles.push((kernel, launch));
            }
        }
        for items in symbols.chunks(abi::MAX_ITEMS) {
            let (batch, grid) = symbols_batch(items, self.limits);
            work.symbols.push((self.device.kernel(Module::Util, "wcodec_dequantize")?, batch, grid));
        }
        for (batch, grid) in parts_batches(parts, self.limits) {
            work.parts.push((self.device.kernel(Module::Util, "wcodec_fields")?, batch, grid));
        }
        Ok(work)
    }

    /// Puts launches into the stream.
    ///
    /// # Safety
    /// As for `Shared::launch`.
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
        for (kernel, batch, grid) in &work.parts {
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
