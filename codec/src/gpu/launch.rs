//! Puts the decoding of planned tensors into a stream.

use cudarc::driver::result;
use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};

use super::device::Device;
use super::driver::DriverResult;
use super::plan::{Limits, Method, TilesJob, TilesLaunch, tiles_launches};
use super::stream::Stream;
use super::task::{DecodeTask, UTIL_THREADS, elements_of, symbols_batch, symbols_item};
use super::zstd::{FrameRun, Zstd};
use crate::error::{Error, Result};

/// Work that only needs to be launched.
#[derive(Debug, Default)]
pub(super) struct Work {
    tiles: Vec<(super::kernel::Kernel, TilesLaunch)>,
    raw: Vec<(u64, u64, usize)>,
    symbols: Vec<(super::kernel::Kernel, Box<abi::SymbolsBatch>, u32)>,
    frames: Vec<FrameRun>,
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

    /// Turns jobs into launches. Loads the kernels that they need, so that launching neither allocates nor waits.
    pub fn prepare(&self, jobs: &[DecodeTask<'_>]) -> Result<Work> {
        let mut work = Work::default();
        let mut tiles = Vec::new();
        let mut symbols = Vec::new();
        for job in jobs.iter().filter(|j| j.plan.elements() > 0 && !j.rows.is_empty()) {
            match &job.plan.method {
                Method::Tiles(t) => {
                    let strips = (job.plan.strip_of(job.rows.start), job.plan.strip_of(job.rows.end));
                    debug_assert_eq!(job.plan.first_row(strips.0), job.rows.start);
                    tiles.push(TilesJob {
                        tensor: job.plan,
                        tiles: t,
                        image: job.image,
                        table: job.table,
                        status: job.status,
                        out: job.out,
                        kind: job.kind,
                        strips,
                    });
                }
                Method::Raw => {
                    let (data, elements) = (job.image.data, elements_of(job));
                    if job.kind == OutputKind::Int8 && !job.plan.tensor.transposed() {
                        work.raw.push((job.out, data.wrapping_add(elements.start as u64), elements.len()));
                    } else {
                        symbols.push(symbols_item(job, data, elements));
                    }
                }
                Method::Zstd { .. } => work.frames.push(FrameRun::new(job)?),
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
        Ok(work)
    }

    /// Puts the work into the stream.
    ///
    /// # Safety
    /// The addresses of the jobs are of memory that is large enough and lives until the work is done, images are as
    /// planned, and nothing else writes there meanwhile.
    pub unsafe fn launch(&self, work: &Work, zstd: Option<&Zstd>, stream: &Stream, overlap: bool) -> Result<()> {
        for (kernel, l) in &work.tiles {
            // SAFETY: as the caller promises; the kernels wait for the work before them.
            unsafe { kernel.launch(l.grid, l.threads, l.shared, l.params.as_bytes(), stream, overlap)? };
        }
        for (kernel, batch, grid) in &work.symbols {
            // SAFETY: likewise.
            unsafe { kernel.launch(*grid, UTIL_THREADS, 0, batch.as_bytes(), stream, overlap)? };
        }
        for &(to, from, bytes) in &work.raw {
            let _scope = self.device.enter()?;
            // SAFETY: likewise.
            unsafe { result::memcpy_dtod_async(to, from, bytes, stream.for_device(&self.device)?) }
                .named("cuMemcpyDtoDAsync")?;
        }
        if !work.frames.is_empty() {
            let zstd = zstd.ok_or_else(|| Error::device("planes of coder zstd were planned without nvCOMP"))?;
            // SAFETY: likewise.
            unsafe { zstd.launch(&work.frames, self.limits, stream)? };
        }
        Ok(())
    }
}
