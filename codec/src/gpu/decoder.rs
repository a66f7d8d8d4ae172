//! Decoding on a device from compressed bytes that stay there.

use std::ops::Range;
use std::sync::Arc;

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::footprint::Sizes;
use super::launch::Lookups;
use super::options::GpuOptions;
use super::plan::{Places, TensorPlan};
use super::shared::{Shared, Work};
use super::stream::Stream;
use super::task::{DecodeTask, Factor, RowIds, Target, Vectors};
use super::upload::{Stage, read_plans};
use crate::decode::Container;
use crate::error::Result;
use crate::tensor::Dtype;

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

impl Inner {
    /// Where the parts of a tensor's image are, by the tensor's number.
    fn image(&self, i: usize) -> Vec<Places> {
        self.shared.plans[i].image.at(self.images.ptr() + self.image_at[i] as u64)
    }
}

impl GpuDecoder {
    /// Reads the tensors `names` (all that are there if empty), checks them and sends them to the device, compressed.
    ///
    /// # Errors
    /// The device's memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        let names = container.stored_names(names)?;
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

    /// Puts the decoding of ranges of rows of one tensor into the stream, one behind the other from [`Target::out`] on, as for the rows of an
    /// embedding: the same as `decode` with a target for each, in less of the CPU's time. Ranges are as in [`Target::rows`], which is not
    /// looked at; they may come in any order, and more than once.
    ///
    /// # Safety
    /// As for [`decode`](Self::decode), with memory for all rows at `out`.
    ///
    /// # Errors
    /// As for `decode`; and rows that cannot be decoded by themselves.
    pub unsafe fn decode_runs(&self, target: &Target, runs: &[Range<usize>], stream: &Stream) -> Result<()> {
        let (shared, image) = (&self.0.shared, |i| self.0.image(i));
        let work = shared.prepare(&shared.runs(target, runs, image)?)?;
        // SAFETY: as the caller promises.
        unsafe { Batch { work, inner: self.0.clone() }.launch(stream) }
    }

    /// Does what [`decode`](Self::decode) does before it launches, for targets that are decoded again and again.
    pub fn prepare(&self, targets: &[Target]) -> Result<Batch> {
        let (shared, image) = (&self.0.shared, |i| self.0.image(i));
        let tasks = targets.iter().map(|t| shared.tasks(t, image)).collect::<Result<Vec<_>>>()?.concat();
        Ok(Batch { work: shared.prepare(&tasks)?, inner: self.0.clone() })
    }

    /// Prepares products of vectors with `factors`, which all read the same vectors: what a linear layer does, without its weight being
    /// written anywhere. Results are the same bits whatever else is launched, and wherever compressed bytes are; of one vector, which is
    /// multiplied in whole numbers, they may be others than beside other vectors.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode); and a tensor is stored in a way that no kernel multiplies with
    /// ([`unfused`](Self::unfused)), or vectors are of a dtype that none of the device's does.
    pub fn prepare_products(&self, factors: &[Factor]) -> Result<Batch> {
        let (shared, image) = (&self.0.shared, |i| self.0.image(i));
        let mut tasks = Vec::new();
        for (target, times) in shared.factors(factors)? {
            tasks.extend(shared.tasks(&target, image)?.into_iter().map(|t| DecodeTask { times: Some(times), ..t }));
        }
        Ok(Batch { work: shared.prepare(&tasks)?, inner: self.0.clone() })
    }

    /// Why a tensor cannot be multiplied with as it is stored; nothing if it can.
    ///
    /// # Errors
    /// The tensor was not planned.
    pub fn unfused(&self, name: &str) -> Result<Option<String>> {
        self.0.shared.unfused(name)
    }

    /// Prepares the looking up of rows of `name`, as an embedding does it: their numbers lie in the device's memory, and nobody waits for them.
    ///
    /// # Errors
    /// The tensor was not planned, is stored in a way that no kernel does that for ([`no_lookup`](Self::no_lookup)), or cannot be had as the
    /// dtype, which is one of floats of 16 or 32 bits.
    pub fn prepare_lookup(&self, name: &str, dtype: Dtype) -> Result<Lookup> {
        let work = self.0.shared.prepare_lookup(name, dtype, |i| self.0.image(i))?;
        Ok(Lookup { work, inner: self.0.clone() })
    }

    /// Why rows of a tensor cannot be looked up by numbers on the device; nothing if they can.
    ///
    /// # Errors
    /// The tensor was not planned.
    pub fn no_lookup(&self, name: &str) -> Result<Option<String>> {
        self.0.shared.no_lookup(name)
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

    /// Puts the products of a batch of [`prepare_products`](GpuDecoder::prepare_products) into the stream. Neither allocates nor waits; a CUDA
    /// graph can capture it. Rows with a damaged chunk give NaN, and [`check`](GpuDecoder::check) tells.
    ///
    /// # Safety
    /// Vectors, results and biases are on the decoder's device, large enough, alive until the work is done, and not changed (results: not used)
    /// by other work meanwhile.
    ///
    /// # Errors
    /// There are more than [`Vectors::MOST`].
    pub unsafe fn multiply(&self, vectors: &Vectors, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            stream.keep(self.inner.clone())?;
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.shared.multiply(&self.work, vectors, stream) }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }
}

/// Rows of a matrix, to be looked up again and again. It keeps the decoder's memory alive, and so does a graph that captures it.
#[derive(Debug)]
pub struct Lookup {
    work: Lookups,
    inner: Arc<Inner>,
}

impl Lookup {
    /// Puts the looking up into the stream: rows of these numbers are written from `out` on, one behind the other, each as it is decoded with
    /// all others. Neither allocates nor waits; a CUDA graph can capture it. Numbers that are of no row, negative ones too, give NaN, and so do
    /// chunks that are damaged, which [`GpuDecoder::check`] tells.
    ///
    /// # Safety
    /// Numbers and output are on the decoder's device, large enough, alive until the work is done (if the stream is being captured, until the
    /// last time that the graph runs), and not changed (output: not used) by other work meanwhile.
    ///
    /// # Errors
    /// There are more than some hundred million numbers, or something does not begin at a multiple of its elements' size.
    pub unsafe fn look_up(&self, ids: RowIds, out: u64, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            stream.keep(self.inner.clone())?;
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.shared.look_up(&self.work, ids, out, stream) }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }
}
