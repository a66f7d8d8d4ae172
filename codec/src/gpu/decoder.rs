//! Decoding on a device, wherever compressed bytes are: on the device, in the host's memory, or in the file.

mod batch;
mod load;
mod lookup;
mod routed;
mod streaming;

use std::collections::HashSet;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::batch::Batch;
pub use self::lookup::Lookup;
pub use self::routed::{Routed, RoutedVectors};
use self::streaming::Streaming;
use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::device::Device;
use super::disk::Disk;
use super::groups::{Sources, Wanted, split};
use super::options::GpuOptions;
use super::plan::{PlaneAddresses, TensorPlan};
use super::residency::{Home, Residency};
use super::ring::SLOTS;
use super::shared::{Bytes, Shared};
use super::stream::{Event, Stream};
use super::work_item::{DecodeItem, ProductItem, ResultOrder};
use crate::cancel::Cancel;
use crate::decode::Container;
use crate::error::Result;
use crate::tensor::Dtype;

/// Compressed tensors that a device decodes as often as wanted, whatever the [`Residency`] of each.
///
/// Tensors on the device only need to be launched. Those in pinned memory of the host, and those in the file, are sent
/// to the device each time, in a ring of bounded size, while those before them are decoded: the device holds no more of
/// them than the ring. The host holds no more of tensors in the file than another ring: threads read them when they are
/// prefetched, compare them with their hashes and send them on. A launch waits until the bytes are there, and is an
/// error where they are not what was written.
///
/// [`GpuDecoder`] and [`HostDecoder`] are decoders all of whose tensors are on the device, or on the host and in the file.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, DeviceBuffer, GpuOptions, Residency, Stream, DecodeItem, TensorDecoder};
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
/// let residency = |name: &str| if name.contains("mlp") { Residency::Host } else { Residency::Device };
/// let decoder = TensorDecoder::new(&device, &Container::open(&out)?, &[], &residency, &GpuOptions::default())?;
/// let name = "model.layers.0.mlp.up_proj.weight";
/// let weights = DeviceBuffer::new(&device, decoder.output_bytes(name, Dtype::BF16)?)?;
/// let item = DecodeItem { name: name.into(), out: weights.ptr(), dtype: Dtype::BF16, rows: None };
/// // SAFETY: the buffer is as large as the tensor and outlives the work, which `check` waits for.
/// unsafe { decoder.decode(&[item], &stream)? };
/// decoder.check(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TensorDecoder(Arc<Inner>);

/// The state that a decoder shares with its batches, and with the graphs that captured them.
#[derive(Debug)]
struct Inner {
    shared: Shared,
    homes: Vec<Home>,
    /// Tensors that stay on the device.
    packed_tensors: DeviceBuffer,
    host: Option<HostTensors>,
    streaming: Option<Arc<Streaming>>,
}

/// Tensors that stay in the host's memory.
#[derive(Debug)]
struct HostTensors {
    memory: Arc<PinnedBuffer>,
    /// The address by which kernels read them.
    address: u64,
    /// Follows all work that reads them from there, so that the memory is not freed before.
    readers: Stream,
    reader: Mutex<Event>,
}

impl HostTensors {
    /// Keeps the memory until what is in the stream now is done.
    fn read_by(&self, stream: &Stream) -> Result<()> {
        let event = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        event.record(stream)?;
        self.readers.wait(&event)
    }
}

impl Drop for HostTensors {
    fn drop(&mut self) {
        self.readers.synchronize().ok();
    }
}

impl Inner {
    /// The addresses of the parts of a packed tensor that a kernel can read where it stays, by the tensor's number; for a tensor in the file
    /// no place at all.
    fn addresses(&self, i: usize) -> Vec<PlaneAddresses> {
        let packed = &self.shared.tensors.plans[i].packed;
        match (self.homes[i], &self.host) {
            (Home::Device(at), _) => packed.at(self.packed_tensors.ptr() + at as u64),
            (Home::Host(at), Some(host)) => packed.at(host.address + at as u64),
            _ => packed.at(0),
        }
    }

    fn is_resident(&self, i: usize) -> bool {
        matches!(self.homes[i], Home::Device(_))
    }

    /// The places that groups get their bytes from.
    fn sources<'a>(&'a self, streaming: &'a Streaming) -> Sources<'a> {
        Sources {
            homes: &self.homes,
            packed_tensors: self.host.as_ref().map_or(&[], |host| &host.memory[..]),
            disk: streaming.disk.as_ref(),
            slot: streaming.slot_bytes,
            pinned: streaming.pinned_bytes,
        }
    }
}

impl TensorDecoder {
    /// Slots of the ring: while one is decoded, the next ones are filled.
    pub const SLOTS: usize = SLOTS;

    /// Reads the tensors `names` (all that are there if empty), checks them, and brings each to its `residency`, of which it is asked by the
    /// names of stored tensors. `options.ring` bounds the device memory for compressed bytes on their way, unless four strips of sixteen rows
    /// need more: a tensor that does not fit a slot is sent in pieces.
    ///
    /// Tensors that stay in the file, which is kept open, are read each time that they are decoded, by `options.readers` threads. Pinned memory
    /// for them is as large as the ring, and a little more. With [`GpuOptions::verify`] all that is read is compared with hashes, each time; of
    /// tensors that do not fit a slot, which are read in parts, whole segments are compared now, and parts later with what was read first.
    ///
    /// # Errors
    /// Memory is too small, a tensor is damaged, nvCOMP is needed and not there, or tensors are to stay in the file of a container in memory.
    pub fn new(
        device: &Device,
        container: &Container,
        names: &[String],
        residency: &dyn Fn(&str) -> Residency,
        options: &GpuOptions,
    ) -> Result<Self> {
        load::load(device, container, names, residency, options).map(|inner| Self(Arc::new(inner)))
    }

    /// Puts copying and decoding of `items` into the stream: launches only, in as few as their kinds allow, and copies on a stream of the
    /// decoder's own; nothing waits on the host but for the file. Targets in the order of the container are copied in the largest pieces; of a
    /// item with `rows`, no more is copied than these need.
    ///
    /// # Safety
    /// Each `out` is the address of memory on the decoder's device that holds [`output_bytes`](Self::output_bytes) (or the share of
    /// the rows that are asked for), stays alive until the work is done (if the stream is being captured, until the last time that
    /// the graph runs), and is not used by other work meanwhile.
    ///
    /// # Errors
    /// A tensor was not planned or cannot be had as the dtype, or the stream is being captured and bytes are not on the device. Damage is found
    /// by [`check`](Self::check).
    pub unsafe fn decode(&self, items: &[DecodeItem], stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.decode_until(items, stream, &Cancel::new()) }
    }

    /// As [`decode`](Self::decode); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// Conditions of [`decode`](Self::decode).
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode), and `cancel` was used.
    pub unsafe fn decode_until(&self, items: &[DecodeItem], stream: &Stream, cancel: &Cancel) -> Result<()> {
        let batch = self.batch(decoded(items))?;
        // SAFETY: as the caller promises.
        unsafe { batch.launch_until(stream, cancel) }
    }

    /// Puts the decoding of ranges of rows of one tensor into the stream, one after the other from [`DecodeItem::out`] on, as for the rows of an
    /// embedding: the same as `decode` with an item for each, in less of the CPU's time where bytes are on the device. Ranges are as in
    /// [`DecodeItem::rows`], which is not looked at; they may come in any order, and more than once.
    ///
    /// # Safety
    /// Conditions of [`decode`](Self::decode), with memory for all rows at `out`.
    ///
    /// # Errors
    /// Those of `decode`; and rows that cannot be decoded by themselves.
    pub unsafe fn decode_runs(&self, item: &DecodeItem, runs: &[Range<usize>], stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.decode_runs_until(item, runs, stream, &Cancel::new()) }
    }

    /// As [`decode_runs`](Self::decode_runs); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// Conditions of [`decode_runs`](Self::decode_runs).
    ///
    /// # Errors
    /// Those of [`decode_runs`](Self::decode_runs), and `cancel` was used.
    pub unsafe fn decode_runs_until(
        &self,
        item: &DecodeItem,
        runs: &[Range<usize>],
        stream: &Stream,
        cancel: &Cancel,
    ) -> Result<()> {
        let (inner, tensors) = (&*self.0, &self.0.shared.tensors);
        let batch = if inner.is_resident(tensors.find(&item.name)?) {
            let work = inner.shared.prepare(&tensors.runs(item, runs, |i| inner.addresses(i))?, Bytes::Stay)?;
            Batch::new(self.0.clone(), work, None)
        } else {
            self.batch(decoded(&tensors.run_items(item, runs)?))?
        };
        // SAFETY: as the caller promises.
        unsafe { batch.launch_until(stream, cancel) }
    }

    /// Does what [`decode`](Self::decode) does before it copies and launches, for items that are decoded again and again, or whose
    /// bytes are to be on their way before they are wanted.
    pub fn prepare(&self, items: &[DecodeItem]) -> Result<Batch> {
        self.batch(decoded(items))?.prepared()
    }

    /// Prepares products of vectors with `items`, which all read the same vectors: what a linear layer does, without its weight being
    /// written anywhere. Results are the same bits whatever else is launched, and wherever compressed bytes are; of one vector, which is
    /// multiplied in integers, they may be others than beside other vectors, and beside up to 8, 16, 32, 64 and 128 vectors they may be others, too.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode); and a tensor is stored in a way that no kernel multiplies with
    /// ([`can_fuse`](Self::can_fuse)), or vectors are of a dtype that none of the device's does.
    pub fn prepare_products(&self, items: &[ProductItem]) -> Result<Batch> {
        self.prepare_products_in(ResultOrder::ByMatrix, items)
    }

    /// As [`prepare_products`](Self::prepare_products), with results in this order.
    ///
    /// # Errors
    /// Those of [`prepare_products`](Self::prepare_products).
    pub fn prepare_products_in(&self, order: ResultOrder, items: &[ProductItem]) -> Result<Batch> {
        let items = self.0.shared.products(items, order)?;
        self.batch(items.into_iter().map(|(item, product)| (item, Some(product))).collect())?.prepared()
    }

    /// Prepares products of vectors with routed experts: which experts, and which vectors for each, a [`Router`](super::Router) says on the device.
    /// Each expert has as many matrices, which all read the same vectors, and whose results lie side by side.
    ///
    /// # Errors
    /// Those of [`prepare_products`](Self::prepare_products); bytes are not on the device, kernels of many vectors do not multiply with some of the
    /// matrices, or experts are not of one shape and stored alike.
    pub fn prepare_routed(&self, experts: &[Vec<ProductItem>]) -> Result<Routed> {
        Routed::new(&self.0, experts)
    }

    /// The batch of items, which are decoded, or multiplied with where they have products.
    fn batch(&self, wanted: Vec<Wanted>) -> Result<Batch> {
        let (inner, tensors) = (&*self.0, &self.0.shared.tensors);
        let (items, others) = split(tensors, &inner.homes, wanted, |i| inner.addresses(i))?;
        let resident = inner.shared.prepare(&items, Bytes::Stay)?;
        let groups = match &inner.streaming {
            Some(streaming) if !others.is_empty() => {
                let groups = inner.sources(streaming).groups(tensors, &others)?;
                Some((streaming.clone(), streaming.batch(groups)))
            }
            _ => None,
        };
        Ok(Batch::new(self.0.clone(), resident, groups))
    }

    /// The reason why no kernel multiplies vectors with a tensor as it is stored; none if one does.
    ///
    /// # Errors
    /// The tensor was not planned.
    pub fn can_fuse(&self, name: &str) -> Result<Option<String>> {
        self.0.shared.tensors.can_fuse(name)
    }

    /// The most vectors that products with a tensor take on this device: 0 where none multiplies with it ([`can_fuse`](Self::can_fuse)), 16, or as many as
    /// the kernels of many vectors that there are for it. A batch takes as many as each of its tensors does. The first call for a device tries whether
    /// these kernels work there.
    ///
    /// # Errors
    /// The tensor was not planned, or the device fails.
    pub fn most_vectors(&self, name: &str) -> Result<usize> {
        self.0.shared.most_vectors(name)
    }

    /// [`can_fuse`](Self::can_fuse) by its former name.
    ///
    /// # Errors
    /// Those of [`can_fuse`](Self::can_fuse).
    pub fn unfused(&self, name: &str) -> Result<Option<String>> {
        self.can_fuse(name)
    }

    /// Prepares the gathering of rows of `name`, as an embedding does it: the indices lie in the device's memory.
    /// The host waits for them only for a tensor in the file, of which it has to know what to read.
    ///
    /// # Errors
    /// The tensor was not planned, is stored in a way that no kernel does that for ([`can_look_up`](Self::can_look_up)), or cannot be had as the
    /// dtype, which is one of floats of 16 or 32 bits.
    pub fn prepare_lookup(&self, name: &str, dtype: Dtype) -> Result<Lookup> {
        Lookup::new(&self.0, name, dtype)
    }

    /// The reason why no kernel gathers rows of a tensor by indices on the device; none if one does.
    ///
    /// # Errors
    /// The tensor was not planned.
    pub fn can_look_up(&self, name: &str) -> Result<Option<String>> {
        self.0.shared.tensors.can_look_up(name)
    }

    /// [`can_look_up`](Self::can_look_up) by its former name.
    ///
    /// # Errors
    /// Those of [`can_look_up`](Self::can_look_up).
    pub fn no_lookup(&self, name: &str) -> Result<Option<String>> {
        self.can_look_up(name)
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
        self.0.shared.tensors.output_bytes(name, dtype)
    }

    /// The rows of `name`, as in [`DecodeItem::rows`], that are entries `first` of its first dimension.
    ///
    /// # Errors
    /// The tensor was not planned, has no such entries, or they are not rows of it.
    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.0.shared.tensors.rows_of(name, first)
    }

    /// The place of a tensor's compressed bytes.
    ///
    /// # Errors
    /// The tensor was not planned.
    pub fn residency(&self, name: &str) -> Result<Residency> {
        Ok(match self.0.homes[self.0.shared.tensors.find(name)?] {
            Home::Device(_) => Residency::Device,
            Home::Host(_) => Residency::Host,
            Home::Disk => Residency::Disk,
        })
    }

    /// Names of the tensors, in the order in which their bytes lie.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.shared.tensors.plans.iter().map(TensorPlan::name)
    }

    /// Pinned host memory that it holds, in bytes: compressed tensors, and what those in the file pass through.
    pub fn host_bytes(&self) -> usize {
        self.0.host.as_ref().map_or(0, |host| host.memory.len()) + self.ring_bytes()
    }

    /// Bytes, among [`host_bytes`](Self::host_bytes), that tensors in the file pass through.
    pub fn ring_bytes(&self) -> usize {
        SLOTS * self.0.streaming.as_ref().map_or(0, |streaming| streaming.pinned_bytes)
    }

    /// Whether tensors in the file are read beside the system's page cache; nothing where there are none.
    pub fn is_direct(&self) -> Option<bool> {
        self.0.streaming.as_ref()?.disk.as_ref().map(Disk::is_direct)
    }

    /// Device memory that it holds, in bytes: compressed tensors, the ring, decoding tables, scratch.
    pub fn device_bytes(&self) -> usize {
        let ring = SLOTS * self.0.streaming.as_ref().map_or(0, |streaming| streaming.slot_bytes);
        self.0.packed_tensors.len() + ring + self.0.shared.device_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.0.shared.device()
    }
}

/// Targets that are decoded.
fn decoded(items: &[DecodeItem]) -> Vec<Wanted> {
    items.iter().map(|item| (item.clone(), None)).collect()
}

/// A [`TensorDecoder`] all of whose tensors are in the device's memory, ready to be decoded there as often as wanted.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, DeviceBuffer, GpuDecoder, GpuOptions, Stream, DecodeItem};
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
/// let item = DecodeItem { name: name.into(), out: weights.ptr(), dtype: Dtype::BF16, rows: None };
/// // SAFETY: the buffer is as large as the tensor and outlives the work, which `check` waits for.
/// unsafe { decoder.decode(&[item], &stream)? };
/// decoder.check(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuDecoder(TensorDecoder);

impl GpuDecoder {
    /// Reads the tensors `names` (all that are there if empty), checks them and sends them to the device, compressed.
    ///
    /// # Errors
    /// The device's memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        TensorDecoder::new(device, container, names, &|_| Residency::Device, options).map(Self)
    }
}

impl Deref for GpuDecoder {
    type Target = TensorDecoder;

    fn deref(&self) -> &TensorDecoder {
        &self.0
    }
}

impl From<GpuDecoder> for TensorDecoder {
    fn from(decoder: GpuDecoder) -> Self {
        decoder.0
    }
}

/// A [`TensorDecoder`] all of whose tensors are in pinned host memory, or in their file.
#[derive(Debug)]
pub struct HostDecoder(TensorDecoder);

impl HostDecoder {
    /// Slots of the ring: while one is decoded, the next ones are filled.
    pub const SLOTS: usize = SLOTS;

    /// Reads the tensors `names` (all that are there if empty) to pinned memory, and checks them.
    ///
    /// # Errors
    /// Memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        Self::with_disk(device, container, names, &[], options)
    }

    /// As [`new`](Self::new), but the tensors `on_disk`, some of `names`, stay in the file.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); and the container is in memory.
    pub fn with_disk(
        device: &Device,
        container: &Container,
        names: &[String],
        on_disk: &[String],
        options: &GpuOptions,
    ) -> Result<Self> {
        let on_disk = match on_disk {
            [] => Vec::new(),
            some => container.stored_names(some)?,
        };
        let on_disk: HashSet<&str> = on_disk.iter().map(String::as_str).collect();
        let residency = |name: &str| if on_disk.contains(name) { Residency::Disk } else { Residency::Host };
        TensorDecoder::new(device, container, names, &residency, options).map(Self)
    }
}

impl Deref for HostDecoder {
    type Target = TensorDecoder;

    fn deref(&self) -> &TensorDecoder {
        &self.0
    }
}

impl From<HostDecoder> for TensorDecoder {
    fn from(decoder: HostDecoder) -> Self {
        decoder.0
    }
}
