//! Puts the decoding of planned tensors into a stream.

use std::ops::Range;

use cudarc::driver::result;
use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};

use super::device::Device;
use super::driver::DriverResult;
use super::plan::{Limits, Method, Places, TensorPlan, TilesJob, TilesLaunch, tiles_launches};
use super::stream::Stream;
use super::zstd::{Frames, Zstd};
use crate::coder::TILE_ROWS;
use crate::error::{Error, Result};

/// A tensor to decode: which, from where, to where. All addresses are the device's.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    pub plan: &'a TensorPlan,
    /// Where the tensor's image is.
    pub image: Places,
    /// Address of its decoding table; 0 where it has none.
    pub table: u64,
    /// Address of its status.
    pub status: u64,
    /// Address of the output's first element.
    pub out: u64,
    pub kind: OutputKind,
    /// Rows of all matrices.
    pub rows: Range<usize>,
}

/// Rows of a target as the kernels can decode them: whole strips.
pub(super) fn checked_rows(plan: &TensorPlan, rows: Option<&Range<usize>>) -> Result<Range<usize>> {
    let all = 0..plan.rows();
    let Some(rows) = rows else { return Ok(all) };
    let refuse = |what: String, advice: &str| Err(Error::input(what).tensor(plan.name()).advice(advice));
    if rows.start > rows.end || rows.end > all.end {
        return refuse(format!("rows {rows:?} of a tensor with {} rows", all.end), "ask for rows that it has");
    }
    if plan.tensor.transposed() {
        return refuse("rows of a transposed matrix".to_owned(), "decode it as a whole");
    }
    if *rows == all {
        return Ok(all);
    }
    let per = plan.matrix.1.max(1);
    let edge = |row: usize| row == all.end || (row % per).is_multiple_of(TILE_ROWS);
    if !(edge(rows.start) && edge(rows.end)) {
        let what = format!("rows {rows:?} do not begin and end at strips of {TILE_ROWS} rows of a matrix");
        return refuse(what, "widen the range");
    }
    Ok(rows.clone())
}

/// Work that only needs to be launched.
#[derive(Debug, Default)]
pub(super) struct Work {
    tiles: Vec<(super::kernel::Kernel, TilesLaunch)>,
    raw: Vec<(u64, u64, usize)>,
    symbols: Vec<(super::kernel::Kernel, Box<abi::SymbolsBatch>, u32)>,
    frames: Vec<Frames>,
}

/// Threads of the kernels in module `util`.
pub(super) const UTIL_THREADS: u32 = 256;

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
    pub fn prepare(&self, jobs: &[Job<'_>]) -> Result<Work> {
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
                Method::Zstd { .. } => work.frames.push(Frames::new(job)?),
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

/// Elements of the plane that a job writes.
pub(super) fn elements_of(job: &Job<'_>) -> Range<usize> {
    if job.rows.len() == job.plan.rows() {
        return 0..job.plan.elements();
    }
    job.rows.start * job.plan.matrix.2..job.rows.end * job.plan.matrix.2
}

/// An item of `wcodec_dequantize`: `symbols` is the address at which element 0 of the plane would lie.
pub(super) fn symbols_item(job: &Job<'_>, symbols: u64, elements: Range<usize>) -> abi::Symbols {
    let cols = job.plan.matrix.2;
    let aligned = cols.is_multiple_of(16) && symbols.is_multiple_of(16) && elements.start.is_multiple_of(16);
    abi::Symbols {
        symbols,
        begin: elements.start as u64,
        end: elements.end as u64,
        cols: cols as u64,
        row_begin: job.rows.start as u64,
        output: job.plan.place(&job.image, job.out, job.kind),
        cost_begin: 0,
        kind: job.kind as u32,
        vector: u32::from(aligned && elements.len().is_multiple_of(16) && job.plan.is_vector(job.out, job.kind)),
    }
}

/// A launch of `wcodec_dequantize`, and its grid.
pub(super) fn symbols_batch(items: &[abi::Symbols], limits: Limits) -> (Box<abi::SymbolsBatch>, u32) {
    let mut batch = Box::new(abi::SymbolsBatch { count: items.len() as u32, ..Default::default() });
    for (to, item) in batch.items.iter_mut().zip(items) {
        *to = abi::Symbols { cost_begin: batch.cost, ..*item };
        batch.cost += (item.end - item.begin).div_ceil(16);
    }
    let grid = grid_for(batch.cost, limits);
    (batch, grid)
}

/// Blocks of [`UTIL_THREADS`] threads for so many threads' worth of work, as many as the device holds at most.
pub(super) fn grid_for(threads: u64, limits: Limits) -> u32 {
    threads.div_ceil(u64::from(UTIL_THREADS)).clamp(1, limits.multiprocessors as u64 * 8) as u32
}
