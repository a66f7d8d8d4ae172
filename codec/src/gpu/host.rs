//! Decoding on a device from compressed bytes that stay in the host's memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::device::Device;
use super::footprint::Sizes;
use super::options::GpuOptions;
use super::piece::Piece;
use super::plan::Times;
use super::ring::{SLOTS, Slots};
use super::shared::{Shared, Work};
use super::stream::{Event, Stream};
use super::task::{Factor, Target, Vectors, checked_rows};
use super::upload::read_plans;
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Compressed tensors in pinned host memory. Each decoding sends them to the device, in a ring of bounded size, while those
/// before them are decoded: the device holds no more than the ring and the output.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, DeviceBuffer, GpuOptions, HostDecoder, Stream, Target};
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
/// let decoder = HostDecoder::new(&device, &Container::open(&out)?, &[], &GpuOptions::default())?;
/// let weights = DeviceBuffer::new(&device, decoder.output_bytes(name, Dtype::BF16)?)?;
/// let target = Target { name: name.into(), out: weights.ptr(), dtype: Dtype::BF16, rows: None };
/// // SAFETY: the buffer is as large as the tensor and outlives the work, which `check` waits for.
/// unsafe { decoder.decode(&[target], &stream)? };
/// decoder.check(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HostDecoder(Arc<Inner>);

/// What a decoder shares with its batches.
#[derive(Debug)]
struct Inner {
    shared: Shared,
    images: PinnedBuffer,
    image_at: Vec<usize>,
    ring: [Slot; SLOTS],
    slot_bytes: usize,
    copies: Stream,
    /// Locked while work is put into streams, so that its order is that of the slots' changes.
    slots: Mutex<Slots>,
    batches: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    buffer: DeviceBuffer,
    /// The last copies into it.
    copied: Event,
    /// The last decoding from it.
    decoded: Event,
}

/// Pieces of targets that share a slot, and what to copy for them.
#[derive(Debug, Default)]
struct Group {
    pieces: Vec<TargetPiece>,
    /// Ranges of the images, each with its place in the slot.
    copies: Vec<(Range<usize>, usize)>,
    bytes: usize,
    /// Launches that decode it from each slot.
    work: [OnceLock<Work>; SLOTS],
}

/// Rows of a target, all or some.
#[derive(Debug)]
struct TargetPiece {
    target: Target,
    /// Where it is to be multiplied with.
    times: Option<Times>,
    rows: Range<usize>,
    piece: Piece,
    /// Its place in the slot.
    at: usize,
}

impl HostDecoder {
    /// Slots of the ring: while one is decoded, the next ones are filled.
    pub const SLOTS: usize = SLOTS;

    /// Reads the tensors `names` (all that are there if empty) and checks them. `options.ring` bounds the device memory for compressed
    /// bytes, unless four strips of sixteen rows need more: a tensor that does not fit a slot is sent in pieces.
    ///
    /// # Errors
    /// Memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        let names = container.stored_names(names)?;
        let sizes = Sizes::new(container, &names)?;
        let mut images = PinnedBuffer::new(device, sizes.images().iter().sum())?;
        let mut image_at = Vec::with_capacity(names.len());
        let mut at = 0;
        let plans = read_plans(container, &names, sizes.images(), options, &mut |read| {
            image_at.extend(read.begins().iter().map(|begin| at + begin));
            read.fill(0, &mut images[at..at + read.len()])?;
            at += read.len();
            Ok(())
        })?;
        let copies = Stream::new(device)?;
        // Kernels that begin early read compressed bytes early, before an event that they are to wait for.
        let options = &GpuOptions { overlap: false, ..options.clone() };
        let shared = Shared::new(device, container, plans, options, &copies)?;
        copies.synchronize()?;
        let slot_bytes = sizes.slot(0..names.len(), options.ring);
        let slot = || -> Result<Slot> {
            let buffer = DeviceBuffer::new(device, slot_bytes)?;
            Ok(Slot { buffer, copied: Event::new(device)?, decoded: Event::new(device)? })
        };
        let ring = [slot()?, slot()?, slot()?, slot()?];
        let (slots, batches) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { shared, images, image_at, ring, slot_bytes, copies, slots, batches })))
    }

    /// Puts copying and decoding of `targets` into the stream: the copies run on a stream of their own, and nothing waits on the
    /// host. Targets in the order of the container are copied in the largest pieces; of a target with `rows`, no more is copied than
    /// these need.
    ///
    /// # Safety
    /// As for [`GpuDecoder::decode`](super::GpuDecoder::decode).
    ///
    /// # Errors
    /// A tensor was not planned or cannot be had as the dtype, or the stream is being captured. Damage is found by
    /// [`check`](Self::check).
    pub unsafe fn decode(&self, targets: &[Target], stream: &Stream) -> Result<()> {
        let batch = self.batch(&decoded(targets))?;
        // SAFETY: as the caller promises.
        unsafe { batch.launch(stream) }
    }

    /// Does what [`decode`](Self::decode) does before it copies and launches, for targets that are decoded again and again, or whose
    /// bytes are to be on their way before they are wanted.
    pub fn prepare(&self, targets: &[Target]) -> Result<HostBatch> {
        self.prepared(&decoded(targets))
    }

    /// As [`GpuDecoder::prepare_products`](super::GpuDecoder::prepare_products).
    pub fn prepare_products(&self, factors: &[Factor]) -> Result<HostBatch> {
        let factors = self.0.shared.factors(factors)?;
        self.prepared(&factors.into_iter().map(|(target, times)| (target, Some(times))).collect::<Vec<_>>())
    }

    /// As [`GpuDecoder::unfused`](super::GpuDecoder::unfused).
    pub fn unfused(&self, name: &str) -> Result<Option<String>> {
        self.0.shared.unfused(name)
    }

    fn prepared(&self, targets: &[(Target, Option<Times>)]) -> Result<HostBatch> {
        let batch = self.batch(targets)?;
        for group in &batch.groups {
            (0..SLOTS).try_for_each(|slot| self.0.work(group, slot).map(drop))?;
        }
        Ok(batch)
    }

    fn batch(&self, targets: &[(Target, Option<Times>)]) -> Result<HostBatch> {
        let groups = self.0.groups(targets)?;
        let id = self.0.batches.fetch_add(1, Ordering::Relaxed);
        Ok(HostBatch { inner: self.0.clone(), id, groups })
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
    /// As for [`GpuDecoder::rows_of`](super::GpuDecoder::rows_of).
    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.0.shared.rows_of(name, first)
    }

    /// Names of the tensors, in the order in which their bytes lie.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.shared.plans.iter().map(|p| p.name())
    }

    /// Pinned host memory that it holds, in bytes.
    pub fn host_bytes(&self) -> usize {
        self.0.images.len()
    }

    /// Device memory that it holds, in bytes: the ring, decoding tables, scratch.
    pub fn device_bytes(&self) -> usize {
        SLOTS * self.0.slot_bytes + self.0.shared.device_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.0.shared.device()
    }
}

/// Targets that are decoded.
fn decoded(targets: &[Target]) -> Vec<(Target, Option<Times>)> {
    targets.iter().map(|target| (target.clone(), None)).collect()
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the targets into groups that fill a slot each, and joins what lies together to one copy.
    fn groups(&self, targets: &[(Target, Option<Times>)]) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for (target, times) in targets {
            let tensor = self.shared.find(&target.name)?;
            let plan = &self.shared.plans[tensor];
            let at = self.image_at[tensor];
            let image = &self.images[at..at + plan.image.len];
            let mut left = checked_rows(plan, target.rows.as_ref())?;
            let begin = left.start;
            loop {
                let room = self.slot_bytes - groups.last().map_or(self.slot_bytes, |g| g.bytes);
                let Some((rows, piece)) = Piece::fitting(plan, image, &left, room) else {
                    groups.push(Group::default());
                    continue;
                };
                if groups.is_empty() {
                    groups.push(Group::default());
                }
                left.start = rows.end;
                let times = times.map(|t| t.from((rows.start - begin) as u32));
                groups.last_mut().expect("made above").add(target, times, rows, piece, at);
                if left.is_empty() {
                    break;
                }
            }
        }
        Ok(groups)
    }

    /// The launches that decode a group from a slot; kernels are loaded by the first call.
    fn work<'a>(&self, group: &'a Group, slot: usize) -> Result<&'a Work> {
        if let Some(work) = group.work[slot].get() {
            return Ok(work);
        }
        let base = self.ring[slot].buffer.ptr();
        let mut tasks = Vec::new();
        for p in &group.pieces {
            for mut task in self.shared.tasks(&p.target, |_| p.piece.at(base + p.at as u64))? {
                task.out += ((p.rows.start - task.rows.start) * task.plan.row_bytes(task.kind)) as u64;
                task.rows = p.rows.clone();
                task.times = p.times;
                tasks.push(task);
            }
        }
        let work = self.shared.prepare(&tasks)?;
        Ok(group.work[slot].get_or_init(|| work))
    }

    /// Puts the copies for a group into the copying stream, behind the last decoding from the slot.
    fn copy(&self, group: &Group, slot: usize) -> Result<()> {
        let slot = &self.ring[slot];
        self.copies.wait(&slot.decoded)?;
        for (range, place) in &group.copies {
            // SAFETY: the images are never changed; they and the slots are freed after the copying stream was waited for.
            unsafe { slot.buffer.upload_async(*place, &self.images, range.clone(), &self.copies)? };
        }
        slot.copied.record(&self.copies)
    }
}

impl Group {
    /// Adds rows of a target whose image is at `image` of all.
    fn add(&mut self, target: &Target, times: Option<Times>, rows: Range<usize>, piece: Piece, image: usize) {
        for (part, place) in &piece.copies {
            let (from, to) = (image + part.start..image + part.end, self.bytes + place);
            match self.copies.last_mut() {
                Some((last, place)) if last.end == from.start && *place + last.len() == to => last.end = from.end,
                _ => self.copies.push((from, to)),
            }
        }
        let at = self.bytes;
        self.bytes += piece.len;
        self.pieces.push(TargetPiece { target: target.clone(), times, rows, piece, at });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Copies may still read the images, if they are of a batch that was never launched.
        self.copies.synchronize().ok();
    }
}

/// Targets of a [`HostDecoder`] whose copies and launches are ready. It keeps the decoder's memory alive.
///
/// Decoding it takes two steps, of which the first is optional: [`prefetch`](Self::prefetch) copies, and
/// [`launch`](Self::launch) decodes what was copied and copies what was not. Several batches may be prefetched ahead; they are
/// best launched in the same order. A batch is sent in groups of at most a slot's bytes; each takes one of the ring's four slots
/// ([`slots`](Self::slots)), from prefetching to launching.
#[derive(Debug)]
pub struct HostBatch {
    inner: Arc<Inner>,
    id: u64,
    groups: Vec<Group>,
}

impl HostBatch {
    /// Begins to copy the batch's bytes into free slots of the ring, as far as there are some, on the decoder's own stream: each
    /// copy waits, on the device, for the last decoding from its slot. Returns at once. What is on the device already, or on its
    /// way, is not copied again; a batch that is never launched gives its slots back when it is dropped, and to launches that find
    /// no other.
    pub fn prefetch(&self) -> Result<()> {
        let mut slots = self.inner.slots();
        for (i, group) in self.groups.iter().enumerate() {
            let holder = (self.id, i);
            if slots.held(holder).is_some() {
                continue;
            }
            let Some(slot) = slots.take_free(holder) else { break };
            self.inner.copy(group, slot).inspect_err(|_| slots.release(slot))?;
        }
        Ok(())
    }

    /// Puts the decoding into the stream, behind the copies; what was not prefetched is copied first. Neither allocates nor waits on
    /// the host. Slots are free again as soon as they are decoded from.
    ///
    /// # Safety
    /// As for [`HostDecoder::decode`].
    ///
    /// # Errors
    /// The stream is being captured: replayed graphs would write to slots that others hold.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        self.run(stream, |work| unsafe { self.inner.shared.launch(work, stream) })
    }

    /// Puts the products of a batch of [`prepare_products`](HostDecoder::prepare_products) into the stream, behind the copies, as
    /// [`launch`](Self::launch) does for decoding.
    ///
    /// # Safety
    /// As for [`Batch::multiply`](super::Batch::multiply).
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and for [`Batch::multiply`](super::Batch::multiply).
    pub unsafe fn multiply(&self, vectors: &Vectors, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        self.run(stream, |work| unsafe { self.inner.shared.multiply(work, vectors, stream) })
    }

    /// Runs what decodes a group behind its copies.
    fn run(&self, stream: &Stream, launch: impl Fn(&Work) -> Result<()>) -> Result<()> {
        if stream.is_capturing()? {
            return Err(Error::input("decoding from the host's memory cannot be part of a CUDA graph")
                .advice("launch it outside of the capture, or keep the compressed bytes on the device"));
        }
        let inner = &*self.inner;
        let mut slots = inner.slots();
        for (i, group) in self.groups.iter().enumerate() {
            let holder = (self.id, i);
            let slot = match slots.held(holder) {
                Some(slot) => slot,
                None => {
                    let slot = slots.take(holder);
                    inner.copy(group, slot).inspect_err(|_| slots.release(slot))?;
                    slot
                }
            };
            let work = inner.work(group, slot)?;
            stream.wait(&inner.ring[slot].copied)?;
            // The slot is not written again before `decoded` was reached.
            let launched = launch(work);
            // Also where only a part of it was launched: that part reads the slot.
            inner.ring[slot].decoded.record(stream)?;
            slots.release(slot);
            launched?;
        }
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }

    /// Slots of the ring that it takes; with more than the ring has, which is 4, it cannot be prefetched as a whole.
    pub fn slots(&self) -> usize {
        self.groups.len()
    }
}

impl Drop for HostBatch {
    fn drop(&mut self) {
        self.inner.slots().forget(self.id);
    }
}
