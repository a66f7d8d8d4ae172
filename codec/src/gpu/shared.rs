//! The device's half of what decoders need wherever compressed bytes are: memory of tables and statuses, nvCOMP, and launches.

use wcodec_kernels::abi;

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::kernel::Kernel;
use super::launch::{Launcher, Launches, Lookups};
use super::nvcomp::Nvcomp;
use super::options::GpuOptions;
use super::plan::{Method, ProductOutput, RoutedLaunch, TensorPlan};
use super::stream::Stream;
use super::tensors::Tensors;
use super::work_item::{DecodeItem, ProductItem, ResultOrder, RowIds, Vectors, WorkItem};
use super::zstd::{self, FrameRun, Zstd};
use crate::decode::Container;
use crate::error::Result;

/// Work that only needs to be launched.
#[derive(Debug, Default)]
pub(super) struct Work {
    launches: Launches,
    frames: Vec<FrameRun>,
    /// Whether its kernels may begin while the work before them ends.
    overlap: bool,
}

impl Work {
    /// The most vectors that its products take.
    pub fn most_vectors(&self) -> usize {
        self.launches.most_vectors
    }
}

/// When the compressed bytes of work are in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bytes {
    /// From the beginning on.
    Stay,
    /// When an event in the stream was reached. Kernels that begin early would read them before that.
    Arrive,
}

/// Planned tensors, and the memory of a device that decoding them takes besides compressed bytes.
#[derive(Debug)]
pub(super) struct Shared {
    pub tensors: Tensors,
    tables: DeviceBuffer,
    /// One of each plane.
    statuses: DeviceBuffer,
    launcher: Launcher,
    zstd: Option<Zstd>,
    overlap: bool,
}

impl Shared {
    pub fn new(
        device: &Device,
        container: &Container,
        plans: Vec<TensorPlan>,
        options: &GpuOptions,
        stream: &Stream,
    ) -> Result<Self> {
        let (mut tensors, needs) = Tensors::new(container, plans);
        let zstd = if needs.zstd.frames > 0 {
            let nvcomp = Nvcomp::load_for(device, options.nvcomp.as_deref(), &options.nvcomp_folders)?;
            Some(Zstd::new(device, nvcomp, needs.zstd, zstd::budget(Some(device), options))?)
        } else {
            None
        };
        let tables = DeviceBuffer::new(device, needs.tables.len() * 4)?;
        tables.upload(0, bytemuck::cast_slice(&needs.tables), stream)?;
        let statuses = DeviceBuffer::new(device, needs.planes * 4)?;
        statuses.fill(0xFF, stream)?;
        tensors.place(tables.ptr(), statuses.ptr());
        let launcher = Launcher::new(device);
        Ok(Self { tensors, tables, statuses, launcher, zstd, overlap: options.overlap })
    }

    /// As [`Tensors::products`], for this device.
    pub fn products(&self, items: &[ProductItem], order: ResultOrder) -> Result<Vec<(DecodeItem, ProductOutput)>> {
        self.tensors.products(items, order, |dtype| self.launcher.multiplies(dtype))
    }

    /// As [`Tensors::most_vectors`], for this device.
    pub fn most_vectors(&self, name: &str) -> Result<usize> {
        self.tensors.most_vectors(name, self.launcher.product_limits()?)
    }

    /// Turns the products of each expert into launches for any routes, and loads their kernels.
    pub fn prepare_routed(&self, experts: &[Vec<WorkItem<'_>>]) -> Result<Vec<(Kernel, RoutedLaunch)>> {
        self.launcher.prepare_routed(experts)
    }

    /// Whether kernels may begin while the work before them ends.
    pub fn overlaps(&self, bytes: Bytes) -> bool {
        self.overlap && bytes == Bytes::Stay
    }

    /// Turns the items of one tensor into launches that gather rows, and loads their kernels.
    pub fn prepare_lookup(&self, items: &[WorkItem<'_>]) -> Result<Lookups> {
        self.launcher.prepare_lookup(items)
    }

    /// Puts the gathering of rows into the stream.
    ///
    /// # Safety
    /// Conditions of [`launch`](Self::launch): `out` has room for as many rows as there are indices, which are not
    /// changed meanwhile.
    pub unsafe fn look_up(&self, work: &Lookups, ids: RowIds, out: u64, bytes: Bytes, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.look_up(work, ids, out, stream, self.overlaps(bytes)) }
    }

    /// Turns work items into launches. Loads the kernels that they need, so that launching neither allocates nor waits.
    pub fn prepare(&self, items: &[WorkItem<'_>], bytes: Bytes) -> Result<Work> {
        let some = items.iter().filter(|t| t.plan.elements() > 0 && !t.rows.is_empty());
        let (frames, others): (Vec<_>, Vec<_>) = some.partition(|t| matches!(t.method, Method::Zstd { .. }));
        let frames = frames.into_iter().map(FrameRun::new).collect::<Result<_>>()?;
        Ok(Work { launches: self.launcher.prepare(&others)?, frames, overlap: self.overlaps(bytes) })
    }

    /// Puts the work into the stream.
    ///
    /// # Safety
    /// The addresses of the items are of memory that is large enough and lives until the work is done, packed tensors are as
    /// planned, and nothing else writes there meanwhile.
    pub unsafe fn launch(&self, work: &Work, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.launch(&work.launches, stream, work.overlap)? };
        if !work.frames.is_empty() {
            let zstd = self.zstd.as_ref();
            let zstd = zstd.ok_or_else(|| coded!(DEVICE_BUG, "planes of coder zstd were planned without nvCOMP"))?;
            // SAFETY: likewise.
            unsafe { zstd.launch(&work.frames, self.launcher.limits(), stream)? };
        }
        Ok(())
    }

    /// Puts the work, which is products, into the stream.
    ///
    /// # Safety
    /// Conditions of [`launch`](Self::launch); `vectors` are of memory that is large enough, and lives until the work
    /// is done.
    pub unsafe fn multiply(&self, work: &Work, vectors: &Vectors, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.multiply(&work.launches, vectors, stream, work.overlap) }
    }

    /// Waits for the stream, and reports what was found damaged since the last call.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let mut statuses = vec![abi::STATUS_GOOD; self.statuses.len() / 4];
        self.statuses.download(0, bytemuck::cast_slice_mut(&mut statuses), stream)?;
        let Some(damage) = self.tensors.damage(&statuses) else { return Ok(()) };
        self.statuses.fill(0xFF, stream)?;
        Err(damage)
    }

    pub fn device_bytes(&self) -> usize {
        self.tables.len() + self.statuses.len() + self.zstd.as_ref().map_or(0, Zstd::scratch_bytes)
    }

    pub fn device(&self) -> &Device {
        self.launcher.device()
    }
}
