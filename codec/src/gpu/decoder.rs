//! Decoding on a device from compressed bytes that stay there.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use wcodec_kernels::abi;

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::footprint::Sizes;
use super::launch::{Launcher, Work};
use super::nvcomp::Nvcomp;
use super::plan::{Method, Places, TensorPlan};
use super::stream::Stream;
use super::table::device_table;
use super::task::{DecodeTask, checked_rows};
use super::upload::{Stage, read_plans};
use super::zstd::{self, Demand, Zstd};
use crate::cancel::Cancel;
use crate::coder::Layout;
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// How to decode on a device.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Threads that read and check the file; all cores where absent.
    pub threads: Option<usize>,
    /// Whether to compare the hashes of segments before they are sent to the device.
    pub verify: bool,
    /// Device memory, in bytes, that a batch of zstd frames may take besides input and output: nvCOMP wants three times
    /// what it decodes. A single frame may take more. Where absent, a sixteenth of the device's memory, but 1.5 GiB at most; no more
    /// is taken than the frames need.
    pub zstd_scratch: Option<usize>,
    /// Device memory, in bytes, for compressed bytes that are on their way from the host ([`HostDecoder`](super::HostDecoder)).
    pub ring: usize,
    /// Where nvCOMP is; searched for where absent (see [`Nvcomp::load`]). Needed for planes of coder `zstd` only.
    pub nvcomp: Option<PathBuf>,
    /// Folders to search for nvCOMP, such as Python's `site-packages`.
    pub nvcomp_folders: Vec<PathBuf>,
    /// Whether kernels may begin while the work before them in the stream ends (programmatic dependent launch, compute
    /// capability 9.0 and later). They wait before they write.
    pub overlap: bool,
    /// Stops the making of a decoder, from another thread.
    pub cancel: Cancel,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            threads: None,
            verify: true,
            zstd_scratch: None,
            ring: 128 << 20,
            nvcomp: None,
            nvcomp_folders: Vec::new(),
            overlap: true,
            cancel: Cancel::new(),
        }
    }
}

/// A tensor to decode, and where to.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the tensor, or of an alias.
    pub name: String,
    /// Device address of the first element; the output is contiguous and row-major in the tensor's shape. Multiples of 16
    /// bytes are faster.
    pub out: u64,
    /// What to write: `F32`, `F16` or `BF16` for scheme `int8`, `I8` for its symbols; the tensor's own dtype for scheme `raw`.
    pub dtype: Dtype,
    /// Rows to decode, counted through all matrices (of a tensor that is stored raw and not as matrices, entries of its first
    /// dimension); all where absent. Ranges begin and end at multiples of 16 rows of a matrix, or at its end; `out` is then the
    /// address of their first element.
    pub rows: Option<Range<usize>>,
}

/// What all tensors of a plan share on a device.
#[derive(Debug)]
pub(super) struct Shared {
    pub plans: Vec<TensorPlan>,
    names: HashMap<String, usize>,
    tables: DeviceBuffer,
    /// Place of each tensor's table in `tables`.
    table_at: Vec<Option<usize>>,
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
        let mut places: HashMap<(usize, Layout), usize> = HashMap::new();
        let mut words: Vec<u32> = Vec::new();
        let mut demand = Demand::default();
        let table_at = plans
            .iter()
            .map(|p| match &p.method {
                Method::Tiles(t) => Some(*places.entry((t.table_number, t.tiling.layout)).or_insert_with(|| {
                    let at = words.len() * 4;
                    words.extend(device_table(&t.table, t.tiling.layout));
                    at
                })),
                Method::Zstd { chunk, frames, .. } => {
                    demand.add(p.elements(), *chunk, *frames);
                    None
                }
                Method::Raw => None,
            })
            .collect();
        let zstd = if demand.frames > 0 {
            let nvcomp = Nvcomp::load_for(device, options.nvcomp.as_deref(), &options.nvcomp_folders)?;
            Some(Zstd::new(device, nvcomp, demand, zstd::budget(Some(device), options))?)
        } else {
            None
        };
        let tables = DeviceBuffer::new(device, words.len() * 4)?;
        tables.upload(0, bytemuck::cast_slice(&words), stream)?;
        let statuses = DeviceBuffer::new(device, plans.len() * 4)?;
        statuses.fill(0xFF, stream)?;
        let mut names: HashMap<String, usize> =
            plans.iter().enumerate().map(|(i, p)| (p.name().to_owned(), i)).collect();
        for (alias, name) in container.aliases() {
            if let Some(&i) = names.get(name) {
                names.insert(alias.clone(), i);
            }
        }
        let launcher = Launcher::new(device);
        Ok(Self { plans, names, tables, table_at, statuses, launcher, zstd, overlap: options.overlap })
    }

    pub fn find(&self, name: &str) -> Result<usize> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::input(format!("no tensor '{name}' was planned for the device"))
                .advice("name it when the decoder is made")
        })
    }

    /// The job that does `target`, whose image is at what `image` says of the tensor's number.
    pub fn job(&self, target: &Target, image: impl Fn(usize) -> Places) -> Result<DecodeTask<'_>> {
        let i = self.find(&target.name)?;
        let plan = &self.plans[i];
        let kind = plan.output(target.dtype)?;
        let rows = checked_rows(plan, target.rows.as_ref())?;
        if !target.out.is_multiple_of(kind.bytes() as u64) {
            return Err(Error::input(format!("an output at {:#x} for {}", target.out, target.dtype))
                .tensor(plan.name())
                .advice("outputs begin at multiples of their elements' size"));
        }
        Ok(DecodeTask {
            plan,
            image: image(i),
            table: self.table_at[i].map_or(0, |at| self.tables.ptr() + at as u64),
            status: self.statuses.ptr() + 4 * i as u64,
            out: target.out,
            kind,
            rows,
        })
    }

    pub fn prepare(&self, jobs: &[DecodeTask<'_>]) -> Result<Work> {
        self.launcher.prepare(jobs)
    }

    /// # Safety
    /// As for [`Launcher::launch`].
    pub unsafe fn launch(&self, work: &Work, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.launch(work, self.zstd.as_ref(), stream, self.overlap) }
    }

    /// Waits for the stream, and reports what was found damaged since the last call.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let mut statuses = vec![abi::STATUS_GOOD; self.plans.len()];
        self.statuses.download(0, bytemuck::cast_slice_mut(&mut statuses), stream)?;
        let Some(bad) = statuses.iter().position(|&s| s != abi::STATUS_GOOD) else { return Ok(()) };
        self.statuses.fill(0xFF, stream)?;
        let plan = &self.plans[bad];
        let others = statuses.iter().filter(|&&s| s != abi::STATUS_GOOD).count() - 1;
        let more = if others > 0 { format!("; {others} other tensors are damaged too") } else { String::new() };
        Err(Error::corrupt(format!("chunk {} does not decode on the GPU{more}", statuses[bad]))
            .tensor(plan.name())
            .offset(plan.tensor.plane().data.offset)
            .advice("restore the file, or encode the model again"))
    }

    pub fn output_bytes(&self, name: &str, dtype: Dtype) -> Result<usize> {
        let plan = &self.plans[self.find(name)?];
        Ok(plan.output_bytes(plan.output(dtype)?))
    }

    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.plans[self.find(name)?].rows_of(first)
    }

    pub fn device_bytes(&self) -> usize {
        self.tables.len() + self.statuses.len() + self.zstd.as_ref().map_or(0, Zstd::scratch_bytes)
    }

    pub fn device(&self) -> &Device {
        self.launcher.device()
    }
}

/// Compressed tensors in device memory, ready to be decoded there as often as wanted.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, DeviceBuffer, GpuDecoder, GpuOptions, Stream, Target};
/// use wcodec::{Checkpoint, Container, Dtype, EncodeOptions, encode};
/// # let dir = tempfile::tempdir().unwrap();
/// # let out = dir.path().join("model.wcodec");
/// # let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
/// # encode(&Checkpoint::open(&model)?, &out, &EncodeOptions::default(), &mut |_| Ok(()))?;
/// if gpu::available().is_err() {
///     return Ok(()); // this example needs a GPU
/// }
/// let device = Device::new(0)?;
/// let stream = Stream::new(&device)?;
/// let name = "model.layers.0.mlp.up_proj.weight";
/// let decoder = GpuDecoder::new(&device, &Container::open(&out)?, &[name.to_owned()], &GpuOptions::default())?;
/// let weights = DeviceBuffer::new(&device, decoder.output_bytes(name, Dtype::BF16)?)?;
/// let target = Target { name: name.into(), out: weights.ptr(), dtype: Dtype::BF16, rows: None };
/// // SAFETY: the buffer is as large as the tensor and outlives the work, which `check` waits for.
/// unsafe { decoder.decode(&[target], &stream)? };
/// decoder.check(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuDecoder(Arc<Inner>);

/// What a decoder shares with its batches, and with the graphs that captured them.
#[derive(Debug)]
struct Inner {
    shared: Shared,
    images: DeviceBuffer,
    image_at: Vec<usize>,
}

impl GpuDecoder {
    /// Reads the tensors `names` (all that are there if empty), checks them and sends them to the device, compressed.
    ///
    /// # Errors
    /// The device's memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        let names = stored_names(container, names)?;
        let stream = Stream::new(device)?;
        // Sizes are known from the index, so that memory is asked for once.
        let sizes = Sizes::new(container, &names)?;
        let total = sizes.images().iter().sum();
        let images = DeviceBuffer::new(device, total)?;
        let mut stage = Stage::new(device, total)?;
        let mut image_at = Vec::with_capacity(names.len());
        let mut at = 0;
        let plans = read_plans(container, &names, sizes.images(), options, &mut |read| {
            image_at.extend(read.begins().iter().map(|begin| at + begin));
            stage.send(read, &images, at, &stream)?;
            at += read.len();
            Ok(())
        })?;
        let shared = Shared::new(device, container, plans, options, &stream)?;
        stream.synchronize()?;
        Ok(Self(Arc::new(Inner { shared, images, image_at })))
    }

    /// Puts the decoding of `targets` into the stream: launches only, in as few as their kinds allow.
    ///
    /// # Safety
    /// Each `out` is the address of memory on the decoder's device that holds [`output_bytes`](Self::output_bytes) (or the share of
    /// the rows that are asked for), stays alive until the work is done (if the stream is being captured, until the last time that
    /// the graph runs), and is not used by other work meanwhile.
    ///
    /// # Errors
    /// A tensor was not planned or cannot be had as the dtype. Damage is found by [`check`](Self::check).
    pub unsafe fn decode(&self, targets: &[Target], stream: &Stream) -> Result<()> {
        let batch = self.prepare(targets)?;
        // SAFETY: as the caller promises.
        unsafe { batch.launch(stream) }
    }

    /// Does what [`decode`](Self::decode) does before it launches, for targets that are decoded again and again.
    pub fn prepare(&self, targets: &[Target]) -> Result<Batch> {
        let Inner { shared, images, image_at } = &*self.0;
        let jobs = targets
            .iter()
            .map(|t| shared.job(t, |i| shared.plans[i].image.at(images.ptr() + image_at[i] as u64)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Batch { work: shared.prepare(&jobs)?, inner: self.0.clone() })
    }

    /// Waits for the stream and says whether all that was decoded since the last call was sound.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt), which names the tensor and its first damaged chunk.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        self.0.shared.check(stream)
    }

    /// Bytes that decoding `name` to `dtype` writes.
    pub fn output_bytes(&self, name: &str, dtype: Dtype) -> Result<usize> {
        self.0.shared.output_bytes(name, dtype)
    }

    /// The rows of `name`, as in [`Target::rows`], that are entries `first` of its first dimension.
    ///
    /// # Errors
    /// The tensor was not planned, has no such entries, or they are not rows of it.
    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.0.shared.rows_of(name, first)
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.shared.plans.iter().map(TensorPlan::name)
    }

    /// Device memory that it holds, in bytes: compressed tensors, decoding tables, scratch.
    pub fn device_bytes(&self) -> usize {
        self.0.images.len() + self.0.shared.device_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.0.shared.device()
    }
}

/// Targets whose launches are ready. It keeps the decoder's memory alive, and so does a graph that captures it.
#[derive(Debug)]
pub struct Batch {
    work: Work,
    inner: Arc<Inner>,
}

impl Batch {
    /// Puts the launches into the stream. Neither allocates nor waits; a CUDA graph can capture it.
    ///
    /// # Safety
    /// As for [`GpuDecoder::decode`].
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // The driver waits for work that is done at once before it frees the memory; of graphs it knows nothing.
        if stream.is_capturing()? {
            stream.keep(self.inner.clone())?;
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.shared.launch(&self.work, stream) }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }
}

/// The tensors that hold the data of `names`, each once; all of the container where no name is given.
pub(super) fn stored_names(container: &Container, names: &[String]) -> Result<Vec<String>> {
    if names.is_empty() {
        return Ok(container.names().into_iter().map(str::to_owned).collect());
    }
    let mut seen = HashSet::new();
    let stored = names.iter().map(|n| container.resolve(n)).collect::<Result<Vec<_>>>()?;
    Ok(stored.into_iter().filter(|n| seen.insert(*n)).map(str::to_owned).collect())
}
