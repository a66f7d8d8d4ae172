//! Decoding on a device from compressed bytes that stay in the host's memory.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::device::Device;
use super::disk::{self, Disk, Job, Reads};
use super::footprint::Sizes;
use super::options::GpuOptions;
use super::piece::Piece;
use super::plan::{Method, TensorPlan, Times};
use super::ring::{SLOTS, Slots};
use super::shared::{Shared, Work};
use super::stream::{Event, Stream};
use super::task::{Factor, Target, Vectors, checked_rows};
use super::upload::read_plans;
use crate::cancel::Cancel;
use crate::decode::{Container, DecodeOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Dtype;

/// Compressed tensors in pinned host memory, or in their file. Each decoding sends them to the device, in a ring of bounded size, while those
/// before them are decoded: the device holds no more than the ring and the output.
///
/// Of [those in the file](Self::with_disk) the host holds another ring alone: threads read them when they are prefetched, compare them with
/// their hashes and send them on. A launch waits until the bytes are there, and is an error where they are not what was written.
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
    homes: Vec<Home>,
    slot_bytes: usize,
    /// Pinned memory of a slot for bytes from the file; 0 where there are none.
    pinned_bytes: usize,
    disk: Option<Disk>,
    ring: Arc<Ring>,
    /// Locked while work is put into streams, so that its order is that of the slots' changes.
    turns: Mutex<Turns>,
    batches: AtomicU64,
}

/// Where a tensor's compressed bytes are.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// From there on in the images.
    Memory(usize),
    File,
}

/// Memory that compressed bytes pass through, and the stream that they do it in. Whoever fills a slot keeps it.
#[derive(Debug)]
struct Ring {
    images: PinnedBuffer,
    slots: [Slot; SLOTS],
    copies: Stream,
}

#[derive(Debug)]
struct Slot {
    buffer: DeviceBuffer,
    /// What comes from the file goes here first.
    pinned: PinnedBuffer,
    /// The last copies into it.
    copied: Event,
    /// The last decoding from it.
    decoded: Event,
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turns {
    slots: Slots,
    /// Those that were begun last, of each slot.
    jobs: [Option<Arc<Job>>; SLOTS],
    /// Groups that are to be read as soon as slots are free, in this order.
    wanted: VecDeque<(Arc<Groups>, usize)>,
}

/// The groups of a batch.
#[derive(Debug)]
struct Groups {
    batch: u64,
    all: Vec<Group>,
}

/// Pieces of targets that share a slot, and what to copy for them.
#[derive(Debug, Default)]
struct Group {
    pieces: Vec<TargetPiece>,
    /// Ranges of the images, each with its place in the slot.
    copies: Vec<(Range<usize>, usize)>,
    /// What comes from the file.
    reads: Reads,
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
        Self::with_disk(device, container, names, &[], options)
    }

    /// As [`new`](Self::new), but the tensors `on_disk`, some of `names`, stay in the file, which is kept open: they are read each time that they
    /// are decoded, by `options.readers` threads. Pinned memory for them is as large as the ring, and a little more.
    ///
    /// With [`GpuOptions::verify`] all that is read is compared with hashes, each time; of tensors that do not fit a slot, which are read in
    /// parts, whole segments are compared now, and parts later with what was read first.
    ///
    /// # Errors
    /// As for [`new`](Self::new); and the container is in memory.
    pub fn with_disk(
        device: &Device,
        container: &Container,
        names: &[String],
        on_disk: &[String],
        options: &GpuOptions,
    ) -> Result<Self> {
        let names = container.stored_names(names)?;
        let on_disk: HashSet<String> = match on_disk {
            [] => HashSet::new(),
            some => container.stored_names(some)?.into_iter().collect(),
        };
        let sizes = Sizes::new(container, &names)?;
        let slot_bytes = sizes.slot(0..names.len(), options.ring);
        let (mut in_memory, mut in_file, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (name, &size) in names.iter().zip(sizes.images()) {
            if on_disk.contains(name) {
                in_file.push(name.clone());
            } else {
                in_memory.push(name.clone());
                bytes.push(size);
            }
        }
        let mut images = PinnedBuffer::new(device, bytes.iter().sum())?;
        let mut image_at = Vec::with_capacity(names.len());
        let mut at = 0;
        let read = read_plans(container, &in_memory, &bytes, options, &mut |read| {
            image_at.extend(read.begins().iter().map(|begin| at + begin));
            read.fill(0, &mut images[at..at + read.len()])?;
            at += read.len();
            Ok(())
        })?;
        let (disk, planned) = match in_file.is_empty() {
            true => (None, Vec::new()),
            false => open_disk(container, &in_file, slot_bytes, options).map(|(disk, plans)| (Some(disk), plans))?,
        };
        let margin = disk::margin(planned.iter().map(|plan| plan.planes.len()));
        let pinned_bytes = disk.as_ref().map_or(0, |_| slot_bytes.next_multiple_of(disk::PAGE) + margin);
        // In the order of the names.
        let (mut read, mut planned) = (read.into_iter().zip(image_at), planned.into_iter());
        let (mut plans, mut homes) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for name in &names {
            let next = match on_disk.contains(name) {
                true => planned.next().map(|plan| (plan, Home::File)),
                false => read.next().map(|(plan, at)| (plan, Home::Memory(at))),
            };
            let (plan, home) = next.expect("a plan of each tensor");
            plans.push(plan);
            homes.push(home);
        }
        let copies = Stream::new(device)?;
        // Kernels that begin early read compressed bytes early, before an event that they are to wait for.
        let options = &GpuOptions { overlap: false, ..options.clone() };
        let shared = Shared::new(device, container, plans, options, &copies)?;
        copies.synchronize()?;
        let slot = || -> Result<Slot> {
            let buffer = DeviceBuffer::new(device, slot_bytes)?;
            let pinned = PinnedBuffer::new(device, pinned_bytes)?;
            Ok(Slot { buffer, pinned, copied: Event::new(device)?, decoded: Event::new(device)? })
        };
        let slots = [slot()?, slot()?, slot()?, slot()?];
        let ring = Arc::new(Ring { images, slots, copies });
        let (turns, batches) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { shared, homes, slot_bytes, pinned_bytes, disk, ring, turns, batches })))
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
        // SAFETY: as the caller promises.
        unsafe { self.decode_until(targets, stream, &Cancel::new()) }
    }

    /// As [`decode`](Self::decode); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// As for [`decode`](Self::decode).
    ///
    /// # Errors
    /// As for [`decode`](Self::decode), and `cancel` was used.
    pub unsafe fn decode_until(&self, targets: &[Target], stream: &Stream, cancel: &Cancel) -> Result<()> {
        let batch = self.batch(&decoded(targets))?;
        // SAFETY: as the caller promises.
        unsafe { batch.launch_until(stream, cancel) }
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
        for group in &batch.groups.all {
            (0..SLOTS).try_for_each(|slot| self.0.work(group, slot).map(drop))?;
        }
        Ok(batch)
    }

    fn batch(&self, targets: &[(Target, Option<Times>)]) -> Result<HostBatch> {
        let all = self.0.groups(targets)?;
        let batch = self.0.batches.fetch_add(1, Ordering::Relaxed);
        Ok(HostBatch { inner: self.0.clone(), groups: Arc::new(Groups { batch, all }) })
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

    /// Pinned host memory that it holds, in bytes: compressed tensors, and what those in the file pass through.
    pub fn host_bytes(&self) -> usize {
        self.0.ring.images.len() + self.ring_bytes()
    }

    /// Of [`host_bytes`](Self::host_bytes), those that tensors in the file pass through.
    pub fn ring_bytes(&self) -> usize {
        SLOTS * self.0.pinned_bytes
    }

    /// Whether tensors in the file are read beside the system's page cache; nothing where there are none.
    pub fn is_direct(&self) -> Option<bool> {
        self.0.disk.as_ref().map(Disk::is_direct)
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

/// The file of a container, and the plans of its tensors `names`, after all checks that need no coded bytes.
fn open_disk(
    container: &Container,
    names: &[String],
    slot_bytes: usize,
    options: &GpuOptions,
) -> Result<(Disk, Vec<TensorPlan>)> {
    let read =
        DecodeOptions { threads: options.threads, verify: options.verify, cancel: options.cancel.clone(), isa: None };
    let pool = container.pool(options.threads)?;
    let plans = pool.each(names, &options.cancel, |name| {
        let (tensor, tables) = container.structure_of(name, &read)?;
        TensorPlan::of(&tensor, tables.into_iter()).map_err(|e| container.reader().name(e))
    })?;
    // nvCOMP is not safe on frames that are damaged.
    let frames = |plan: &TensorPlan| plan.planes.iter().any(|m| matches!(m, Method::Zstd { .. }));
    let verify = options.verify || (!container.trusted() && plans.iter().any(frames));
    let disk = Disk::new(container, options.readers, options.direct, verify)?;
    let in_parts: Vec<&TensorPlan> = plans.iter().filter(|p| verify && p.image.len > slot_bytes).collect();
    pool.each(in_parts, &options.cancel, |plan| {
        let segments = plan.tensor.planes.iter().flat_map(|p| [p.offsets.as_ref(), Some(&p.data), p.side.as_ref()]);
        let scales = plan.tensor.symbol_scales().map(|s| &s.segment);
        segments.flatten().chain(scales).try_for_each(|segment| {
            options.cancel.check()?;
            disk.check_segment(segment).map_err(|e| e.tensor(plan.name()))
        })
    })?;
    Ok((disk, plans))
}

impl Inner {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the targets into groups that fill a slot each, and joins what lies together to one copy.
    fn groups(&self, targets: &[(Target, Option<Times>)]) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for (target, times) in targets {
            let tensor = self.shared.find(&target.name)?;
            let plan = &self.shared.plans[tensor];
            let mut left = checked_rows(plan, target.rows.as_ref())?;
            let begin = left.start;
            let home = self.homes[tensor];
            let whole = left.len() == plan.rows() && plan.image.len <= self.slot_bytes;
            let head = match (home, &self.disk) {
                // Of what is copied as a whole nothing is asked.
                (Home::File, Some(disk)) if !whole => Some(disk.head(plan)?),
                _ => None,
            };
            let image = match (home, &head) {
                (Home::Memory(at), _) => &self.ring.images[at..at + plan.image.len],
                (Home::File, Some(head)) => &head[..],
                (Home::File, None) => &[],
            };
            loop {
                let room = self.slot_bytes - groups.last().map_or(self.slot_bytes, |g| g.bytes);
                // What is read as a whole can be compared with its hash.
                let fits = if whole && head.is_none() && matches!(home, Home::File) && plan.image.len > room {
                    None
                } else {
                    Piece::fitting(plan, image, &left, room)
                };
                let Some((rows, piece)) = fits else {
                    groups.push(Group::default());
                    continue;
                };
                if groups.is_empty() {
                    groups.push(Group::default());
                }
                let times = times.map(|t| t.from((rows.start - begin) as u32));
                let last = groups.last_mut().expect("made above");
                let next = rows.end;
                match home {
                    Home::Memory(at) => last.copy(&piece, at),
                    Home::File => {
                        let fetches = disk::fetches(plan, &piece, last.bytes);
                        if last.reads.add(fetches, self.pinned_bytes).is_err() {
                            groups.push(Group::default());
                            continue;
                        }
                    }
                }
                last.add(target, times, rows, piece);
                left.start = next;
                if left.is_empty() {
                    break;
                }
            }
        }
        if let Some(disk) = &self.disk {
            groups.iter().try_for_each(|group| disk.check_parts(&group.reads))?;
        }
        Ok(groups)
    }

    /// The launches that decode a group from a slot; kernels are loaded by the first call.
    fn work<'a>(&self, group: &'a Group, slot: usize) -> Result<&'a Work> {
        if let Some(work) = group.work[slot].get() {
            return Ok(work);
        }
        let base = self.ring.slots[slot].buffer.ptr();
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

    /// Begins to fill a slot for a group.
    fn begin(&self, turns: &mut Turns, groups: &Arc<Groups>, i: usize, slot: usize) -> Result<()> {
        let group = &groups.all[i];
        // What was begun for others, and is wanted no more, still writes there.
        if let Some(job) = turns.jobs[slot].take() {
            job.stop();
        }
        match &self.disk {
            Some(disk) if !group.reads.fetches.is_empty() => {
                let filling = Filling { ring: self.ring.clone(), groups: groups.clone(), group: i, slot };
                // SAFETY: The pinned memory of each slot is as large as groups are made for, and kept by `Filling`. Nobody else writes there:
                // the job before has ended, and the next one begins when this one has.
                turns.jobs[slot] = Some(unsafe { disk.fill(filling) });
                Ok(())
            }
            _ => self.ring.copy(group, slot),
        }
        .inspect_err(|_| turns.slots.release(slot))
    }

    /// Begins to read what is wanted next, as far as slots are free.
    fn begin_wanted(&self, turns: &mut Turns) -> Result<()> {
        while let Some((groups, i)) = turns.wanted.front().cloned() {
            let Some(slot) = turns.slots.take_free((groups.batch, i)) else { break };
            turns.wanted.pop_front();
            self.begin(turns, &groups, i, slot)?;
        }
        Ok(())
    }
}

impl Turns {
    fn is_wanted(&self, batch: u64, i: usize) -> bool {
        self.wanted.iter().any(|(groups, j)| (groups.batch, *j) == (batch, i))
    }
}

impl Ring {
    /// Puts the copies for a group into the copying stream, behind the last decoding from the slot.
    fn copy(&self, group: &Group, slot: usize) -> Result<()> {
        let slot = &self.slots[slot];
        self.copies.wait(&slot.decoded)?;
        for (range, place) in &group.copies {
            // SAFETY: the images are never changed; they and the slots are freed after the copying stream was waited for.
            unsafe { slot.buffer.upload_async(*place, &self.images, range.clone(), &self.copies)? };
        }
        for fetch in &group.reads.fetches {
            // SAFETY: nobody writes to a slot's pinned memory before `copied` was reached, and it is freed as the images are.
            unsafe { slot.buffer.upload_async(fetch.place, &slot.pinned, group.reads.memory(fetch), &self.copies)? };
        }
        slot.copied.record(&self.copies)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Copies may still read the images, if they are of a batch that was never launched.
        self.copies.synchronize().ok();
    }
}

/// A slot that is filled from the file.
struct Filling {
    ring: Arc<Ring>,
    groups: Arc<Groups>,
    group: usize,
    slot: usize,
}

impl disk::Slot for Filling {
    fn reads(&self) -> &Reads {
        &self.groups.all[self.group].reads
    }

    fn free(&self) -> Result<()> {
        self.ring.slots[self.slot].copied.synchronize()
    }

    fn memory(&self) -> *mut u8 {
        self.ring.slots[self.slot].pinned.address()
    }

    fn filled(&self) -> Result<()> {
        self.ring.copy(&self.groups.all[self.group], self.slot)
    }
}

impl Group {
    /// Copies a piece of the target whose image is at `image` of all.
    fn copy(&mut self, piece: &Piece, image: usize) {
        for (part, place) in &piece.copies {
            let (from, to) = (image + part.start..image + part.end, self.bytes + place);
            match self.copies.last_mut() {
                Some((last, place)) if last.end == from.start && *place + last.len() == to => last.end = from.end,
                _ => self.copies.push((from, to)),
            }
        }
    }

    /// Adds rows of a target, behind what is there.
    fn add(&mut self, target: &Target, times: Option<Times>, rows: Range<usize>, piece: Piece) {
        let at = self.bytes;
        self.bytes += piece.len;
        self.pieces.push(TargetPiece { target: target.clone(), times, rows, piece, at });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let turns = self.turns.get_mut().unwrap_or_else(PoisonError::into_inner);
        turns.wanted.clear();
        turns.jobs.iter().flatten().for_each(|job| job.stop());
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
    groups: Arc<Groups>,
}

impl HostBatch {
    /// Begins to copy the batch's bytes into free slots of the ring, as far as there are some, on the decoder's own stream: each
    /// copy waits, on the device, for the last decoding from its slot. Returns at once. What is on the device already, or on its
    /// way, is not copied again; a batch that is never launched gives its slots back when it is dropped, and to launches that find
    /// no other.
    ///
    /// Where some of the decoder's tensors are in the file, what finds no slot now is begun as soon as one is free.
    pub fn prefetch(&self) -> Result<()> {
        let (inner, batch) = (&*self.inner, self.groups.batch);
        let mut turns = inner.turns();
        for i in 0..self.groups.all.len() {
            if turns.slots.held((batch, i)).is_some() || turns.is_wanted(batch, i) {
                continue;
            }
            if inner.disk.is_some() {
                turns.wanted.push_back((self.groups.clone(), i));
                continue;
            }
            let Some(slot) = turns.slots.take_free((batch, i)) else { break };
            inner.begin(&mut turns, &self.groups, i, slot)?;
        }
        inner.begin_wanted(&mut turns)
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
        unsafe { self.launch_until(stream, &Cancel::new()) }
    }

    /// As [`launch`](Self::launch); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// As for [`HostDecoder::decode`].
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and `cancel` was used.
    pub unsafe fn launch_until(&self, stream: &Stream, cancel: &Cancel) -> Result<()> {
        // SAFETY: as the caller promises.
        self.run(stream, cancel, |work| unsafe { self.inner.shared.launch(work, stream) })
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
        unsafe { self.multiply_until(vectors, stream, &Cancel::new()) }
    }

    /// As [`multiply`](Self::multiply); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    ///
    /// # Errors
    /// As for [`multiply`](Self::multiply), and `cancel` was used.
    pub unsafe fn multiply_until(&self, vectors: &Vectors, stream: &Stream, cancel: &Cancel) -> Result<()> {
        // SAFETY: as the caller promises.
        self.run(stream, cancel, |work| unsafe { self.inner.shared.multiply(work, vectors, stream) })
    }

    /// Runs what decodes a group behind its copies.
    fn run(&self, stream: &Stream, cancel: &Cancel, launch: impl Fn(&Work) -> Result<()>) -> Result<()> {
        if stream.is_capturing()? {
            return Err(Error::input("decoding from the host's memory cannot be part of a CUDA graph")
                .advice("launch it outside of the capture, or keep the compressed bytes on the device"));
        }
        let (inner, batch) = (&*self.inner, self.groups.batch);
        let mut turns = inner.turns();
        if inner.disk.is_some() {
            self.come_first(&mut turns);
            inner.begin_wanted(&mut turns)?;
        }
        for (i, group) in self.groups.all.iter().enumerate() {
            let holder = (batch, i);
            let slot = match turns.slots.held(holder) {
                Some(slot) => slot,
                None => {
                    turns.wanted.retain(|(groups, j)| (groups.batch, *j) != holder);
                    let slot = turns.slots.take(holder);
                    inner.begin(&mut turns, &self.groups, i, slot)?;
                    slot
                }
            };
            if let Some(job) = &turns.jobs[slot]
                && let Err(e) = job.wait(cancel)
            {
                if e.kind() != ErrorKind::Cancelled {
                    // Whoever asks again has it read again.
                    turns.slots.release(slot);
                }
                return Err(e);
            }
            let work = inner.work(group, slot)?;
            stream.wait(&inner.ring.slots[slot].copied)?;
            // The slot is not written again before `decoded` was reached.
            let launched = launch(work);
            // Also where only a part of it was launched: that part reads the slot.
            inner.ring.slots[slot].decoded.record(stream)?;
            turns.slots.release(slot);
            launched?;
            // What fails there is of another batch, which begins it again itself, and tells.
            let _ = inner.begin_wanted(&mut turns);
        }
        Ok(())
    }

    /// Has the batch's groups read before all that is wanted for others.
    fn come_first(&self, turns: &mut Turns) {
        let batch = self.groups.batch;
        let all = 0..self.groups.all.len();
        if !all.clone().any(|i| turns.slots.held((batch, i)).is_some() || turns.is_wanted(batch, i)) {
            // It was not foreseen, so what was foreseen is not what comes.
            turns.wanted.clear();
        }
        turns.wanted.retain(|(groups, _)| groups.batch != batch);
        let missing: Vec<usize> = all.filter(|&i| turns.slots.held((batch, i)).is_none()).collect();
        missing.into_iter().rev().for_each(|i| turns.wanted.push_front((self.groups.clone(), i)));
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }

    /// Slots of the ring that it takes; with more than the ring has, which is 4, it cannot be prefetched as a whole.
    pub fn slots(&self) -> usize {
        self.groups.all.len()
    }

    /// Whether some of it comes from the file, so that launching it waits.
    pub fn waits(&self) -> bool {
        self.groups.all.iter().any(|group| !group.reads.fetches.is_empty())
    }
}

impl Drop for HostBatch {
    fn drop(&mut self) {
        let batch = self.groups.batch;
        let mut turns = self.inner.turns();
        turns.slots.forget(batch);
        turns.wanted.retain(|(groups, _)| groups.batch != batch);
    }
}
