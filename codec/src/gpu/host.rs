//! Decoding on a device from compressed bytes that stay in the host's memory.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::decoder::{GpuOptions, Shared, Target, image_bytes, read_plans, stored_names};
use super::device::Device;
use super::stream::{Event, Stream};
use crate::decode::Container;
use crate::error::Result;
use crate::tensor::Dtype;

/// Parts of the ring: while one is decoded, the next ones are filled.
const SLOTS: usize = 4;

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
pub struct HostDecoder {
    shared: Shared,
    images: PinnedBuffer,
    image_at: Vec<usize>,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    copies: Stream,
    begun: Event,
    slots: Vec<Slot>,
    slot_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    buffer: DeviceBuffer,
    copied: Event,
    decoded: Event,
}

/// Targets whose images share a slot, and what to copy for them.
#[derive(Default)]
struct Group {
    targets: Range<usize>,
    /// Ranges of the images, each with its place in the slot.
    copies: Vec<(Range<usize>, usize)>,
    /// Place of each target's image in the slot.
    places: Vec<usize>,
    bytes: usize,
}

impl HostDecoder {
    /// Reads the tensors `names` (all that are there if empty) and checks them. `options.ring` bounds the device memory for compressed
    /// bytes, unless a single tensor needs more.
    ///
    /// # Errors
    /// Memory is too small, a tensor is damaged, or nvCOMP is needed and not there.
    pub fn new(device: &Device, container: &Container, names: &[String], options: &GpuOptions) -> Result<Self> {
        let names = stored_names(container, names)?;
        let mut images = PinnedBuffer::new(device, image_bytes(container, &names)?)?;
        let mut image_at = Vec::with_capacity(names.len());
        let (mut at, mut longest) = (0, 0);
        let plans = read_plans(container, &names, options, &mut |plan, parts| {
            image_at.push(at);
            plan.image.fill(parts, &mut images[at..at + plan.image.len]);
            at += plan.image.len;
            longest = longest.max(plan.image.len);
            Ok(())
        })?;
        let copies = Stream::new(device)?;
        // Kernels that begin early read compressed bytes early, before an event that they are to wait for.
        let options = &GpuOptions { overlap: false, ..options.clone() };
        let shared = Shared::new(device, container, plans, options, &copies)?;
        copies.synchronize()?;
        let slot_bytes = longest.max(options.ring / SLOTS).min(at.max(longest));
        let slot = |_| -> Result<Slot> {
            let buffer = DeviceBuffer::new(device, slot_bytes)?;
            Ok(Slot { buffer, copied: Event::new(device)?, decoded: Event::new(device)? })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        let ring = Mutex::new(Ring { copies, begun: Event::new(device)?, slots, slot_bytes });
        Ok(Self { shared, images, image_at, ring })
    }

    /// Puts copying and decoding of `targets` into the stream: the copies run on a stream of their own, and nothing waits on the
    /// host. Targets in the order of the container are copied in the largest pieces.
    ///
    /// # Safety
    /// As for [`GpuDecoder::decode`](super::GpuDecoder::decode); and calls are of one stream, or wait for each other: they
    /// share the ring.
    ///
    /// # Errors
    /// A tensor was not planned or cannot be had as the dtype. Damage is found by [`check`](Self::check).
    pub unsafe fn decode(&self, targets: &[Target], stream: &Stream) -> Result<()> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = self.groups(targets, ring.slot_bytes)?;
        // Slots may be in use by what was put into the stream before.
        ring.begun.record(stream)?;
        ring.copies.wait(&ring.begun)?;
        for (i, group) in groups.iter().enumerate() {
            let slot = &ring.slots[i % SLOTS];
            if i >= SLOTS {
                ring.copies.wait(&slot.decoded)?;
            }
            for (range, place) in &group.copies {
                // SAFETY: the images are never changed, and live as the buffers do.
                unsafe { slot.buffer.upload_async(*place, &self.images, range.clone(), &ring.copies)? };
            }
            slot.copied.record(&ring.copies)?;
            stream.wait(&slot.copied)?;
            let jobs = targets[group.targets.clone()]
                .iter()
                .zip(&group.places)
                .map(|(t, &place)| self.shared.job(t, |_| slot.buffer.ptr() + place as u64))
                .collect::<Result<Vec<_>>>()?;
            let work = self.shared.prepare(&jobs)?;
            // SAFETY: as the caller promises; the slot is not written before `decoded` was reached.
            unsafe { self.shared.launch(&work, stream)? };
            slot.decoded.record(stream)?;
        }
        Ok(())
    }

    /// Cuts the targets into groups that fit a slot, and joins images that follow each other to one copy.
    fn groups(&self, targets: &[Target], slot_bytes: usize) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            let tensor = self.shared.find(&target.name)?;
            let (at, len) = (self.image_at[tensor], self.shared.plans[tensor].image.len);
            if groups.last().is_none_or(|g| g.bytes + len > slot_bytes) {
                groups.push(Group { targets: i..i, ..Default::default() });
            }
            let group = groups.last_mut().expect("made above");
            group.places.push(group.bytes);
            match group.copies.last_mut() {
                Some((range, _)) if range.end == at => range.end = at + len,
                _ => group.copies.push((at..at + len, group.bytes)),
            }
            group.targets.end = i + 1;
            group.bytes += len;
        }
        Ok(groups)
    }

    /// Waits for the stream and says whether all that was decoded since the last call was sound.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt), which names the tensor and its first damaged chunk.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        self.shared.check(stream)
    }

    /// Bytes that decoding `name` to `dtype` writes.
    pub fn output_bytes(&self, name: &str, dtype: Dtype) -> Result<usize> {
        self.shared.output_bytes(name, dtype)
    }

    /// Names of the tensors, in the order in which their bytes lie.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shared.plans.iter().map(|p| p.name.as_str())
    }

    /// Pinned host memory that it holds, in bytes.
    pub fn host_bytes(&self) -> usize {
        self.images.len()
    }

    /// Device memory that it holds, in bytes: the ring, decoding tables, scratch.
    pub fn device_bytes(&self) -> usize {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        SLOTS * ring.slot_bytes + self.shared.device_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.shared.device()
    }
}
