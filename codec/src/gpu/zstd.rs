//! Planes of coder `zstd`: nvCOMP decodes the frames of many tensors at once, in batches whose scratch is bounded; then
//! filters are undone and symbols dequantized.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::kernel::Kernel;
use super::nvcomp::{DeviceBatch, Nvcomp};
use super::options::GpuOptions;
use super::plan::{ElementBits, Limits, Method, filter_code};
use super::stream::{Event, Stream};
use super::work_item::{
    UTIL_THREADS, WorkItem, bits_batches, bits_item, elements_of, grid_for, symbols_batch, symbols_item,
};
use crate::coder::Filter;
use crate::error::Result;

/// Alignment of the parts of the scratch; nvCOMP wants 16 at most.
const ALIGN: usize = 256;
/// Bytes that a frame takes in nvCOMP's arrays: five of 8 bytes, and the statuses.
const ENTRY: usize = 5 * 8 + 4;

/// The frames of a plane, or of some of its rows, and what becomes of them.
#[derive(Clone, Debug)]
pub(super) struct FrameRun {
    /// Addresses as in [`abi::Frames`]; `output` and `first` are set when frames are put into a batch.
    item: abi::Frames,
    /// The address that decoded bytes go to themselves; otherwise they go to scratch, and from there by `symbols`.
    direct: Option<u64>,
    symbols: abi::Symbols,
    /// The bits of elements that the symbols are, where they are not all.
    bits: Option<ElementBits>,
    kind: OutputKind,
    filter: Filter,
    cols: usize,
    elements: usize,
}

impl FrameRun {
    pub fn new(item: &WorkItem<'_>) -> Result<Self> {
        let &Method::Zstd { chunk, frames, filter, bits } = item.method else { unreachable!("a plane of coder zstd") };
        let elements = elements_of(item);
        let first = elements.start / chunk;
        let last = elements.end.div_ceil(chunk).min(frames);
        let all_rows = elements.len() == item.plan.elements();
        Ok(Self {
            item: abi::Frames {
                data: item.addresses.data,
                offsets: item.addresses.offsets,
                output: 0,
                decoded: item.plan.elements() as u64,
                status: item.status,
                frame_begin: first as u64,
                frames: u32::try_from(last - first)
                    .map_err(|_| coded!(GPU_LIMITS, "too many frames").advice("decode it on the CPU"))?,
                chunk: chunk as u32,
                first: 0,
                reserved: 0,
            },
            direct: (all_rows && bits.is_none() && item.kind == OutputKind::Int8 && !item.plan.tensor.transposed())
                .then_some(item.out),
            symbols: symbols_item(item, 0, elements),
            bits,
            kind: item.kind,
            filter,
            cols: item.plan.matrix.2,
            elements: item.plan.elements(),
        })
    }

    /// Decoded bytes of `n` frames from the one at `from` on.
    fn bytes(&self, from: u64, n: u64) -> u64 {
        let chunk = u64::from(self.item.chunk);
        ((from + n) * chunk).min(self.item.decoded) - from * chunk
    }
}

/// nvCOMP, and the scratch for one batch.
#[derive(Debug)]
pub(super) struct Zstd {
    nvcomp: Arc<Nvcomp>,
    kernels: [Kernel; 5],
    scratch: DeviceBuffer,
    turns: Mutex<Turns>,
    /// Decoded bytes and frames of a batch at most.
    most_bytes: u64,
    most_frames: u64,
    temp_bytes: usize,
    longest: usize,
}

/// Whose turn it is with the scratch: work in another stream waits until that before it is done.
#[derive(Debug)]
struct Turns {
    /// Scratch of work that is done at once.
    streams: Turn,
    /// The capture that was under way last: its number, and its scratch. Graphs run at any time, also beside each other, so that
    /// each has its own; it keeps it.
    captured: Option<(u64, Weak<DeviceBuffer>, Turn)>,
}

#[derive(Debug)]
struct Turn {
    done: Event,
    /// Whether there was work before; in a capture there is nothing else to wait for.
    taken: bool,
}

impl Turn {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self { done: Event::new(device)?, taken: false })
    }

    /// Does `work`, which puts something into `stream`, behind the work before.
    fn take(&mut self, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.taken {
            stream.wait(&self.done)?;
        }
        let worked = work();
        // Also where only a part of it was put there.
        self.done.record(stream)?;
        self.taken = true;
        worked
    }
}

/// The demand of a plan's tensors, which a batch has to fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Decoded bytes of all.
    pub bytes: usize,
    /// Frames of all.
    pub frames: usize,
    /// Largest decoded frame.
    pub longest: usize,
    /// Smallest decoded bytes of a frame, the last of a plane aside.
    pub shortest: usize,
    pub planes: usize,
}

/// Scratch that is enough for any number of frames, where less is not asked for.
const MOST: usize = 3 << 29;
/// The most that nvCOMP's versions have asked for: so many bytes for each decoded one, and so many more.
pub(super) const FACTOR: usize = 3;
pub(super) const LEAST: usize = 16 << 20;

/// Bytes that the scratch may take.
pub(super) fn budget(device: Option<&Device>, options: &GpuOptions) -> usize {
    options.zstd_scratch.unwrap_or_else(|| device.map_or(MOST, |d| MOST.min(d.info().memory as usize / 16)))
}

/// Bytes of the scratch for `demand`, within `budget` or for one frame where that takes more.
pub(super) fn scratch_bytes(nvcomp: &Nvcomp, demand: Demand, budget: usize) -> Result<usize> {
    Ok(Size::within(nvcomp, demand, budget)?.total)
}

/// The memory that a batch takes.
struct Size {
    /// Decoded bytes and frames.
    bytes: usize,
    frames: usize,
    /// Bytes for nvCOMP, and in all.
    temp: usize,
    total: usize,
}

impl Size {
    fn within(nvcomp: &Nvcomp, demand: Demand, budget: usize) -> Result<Self> {
        let size = |bytes: usize| -> Result<Size> {
            let frames = demand.frames.min(bytes.div_ceil(demand.shortest.max(1)) + demand.planes);
            // So many frames, the last ones of their planes short, cannot have more.
            let bytes = bytes.min(frames * demand.longest);
            let temp = nvcomp.zstd_temp_bytes(frames, demand.longest, bytes)?;
            let parts = [temp, bytes, frames * ENTRY];
            let total = parts.iter().map(|n| n.next_multiple_of(ALIGN) + ALIGN).sum();
            Ok(Size { bytes, frames, temp, total })
        };
        let all = demand.bytes.max(demand.longest);
        let mut best = size(all)?;
        if best.total > budget && all > demand.longest {
            // Only nvCOMP can say how much it wants: the largest batch that fits is searched for, and then the smallest that makes
            // no more batches, since equal ones fill the device alike.
            let (mut fits, mut too_much) = (demand.longest, all);
            while too_much - fits > (all / 64).max(demand.longest) {
                let middle = fits + (too_much - fits) / 2;
                if size(middle)?.total <= budget { fits = middle } else { too_much = middle }
            }
            let batches = all.div_ceil(fits);
            best = size((all.div_ceil(batches) + demand.longest).min(fits))?;
        }
        Ok(best)
    }
}

impl Demand {
    pub fn add(&mut self, elements: usize, chunk: usize, frames: usize) {
        self.bytes += elements;
        self.frames += frames;
        self.planes += 1;
        self.longest = self.longest.max(chunk.min(elements));
        self.shortest = if self.shortest == 0 { chunk } else { self.shortest.min(chunk) };
    }
}

impl Zstd {
    /// Scratch for batches within `budget` bytes, or for one frame where that takes more.
    pub fn new(device: &Device, nvcomp: Arc<Nvcomp>, demand: Demand, budget: usize) -> Result<Self> {
        let kernel = |name| device.kernel(Module::Util, name);
        let kernels = [
            kernel("wcodec_frames")?,
            kernel("wcodec_frames_check")?,
            kernel("wcodec_unfilter")?,
            kernel("wcodec_dequantize")?,
            kernel("wcodec_fields")?,
        ];
        let best = {
            let _scope = device.enter_uncaptured()?;
            Size::within(&nvcomp, demand, budget)?
        };
        let scratch = DeviceBuffer::new(device, best.total)?;
        let turns = Mutex::new(Turns { streams: Turn::new(device)?, captured: None });
        Ok(Self {
            nvcomp,
            kernels,
            scratch,
            turns,
            most_bytes: best.bytes as u64,
            most_frames: best.frames as u64,
            temp_bytes: best.temp,
            longest: demand.longest,
        })
    }

    /// Bytes of scratch on the device.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.len()
    }

    /// Puts the decoding of all frames into the stream, behind what uses the scratch in others.
    ///
    /// # Safety
    /// Conditions of `Shared::launch`.
    pub unsafe fn launch(&self, all: &[FrameRun], limits: Limits, stream: &Stream) -> Result<()> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let Turns { streams, captured } = &mut *turns;
        let run = |scratch: &DeviceBuffer| {
            // SAFETY: as the caller promises; work that uses this scratch takes turns.
            unsafe { Batches { zstd: self, scratch: scratch.ptr() }.launch(all, limits, stream) }
        };
        let Some(number) = stream.capture()? else {
            return streams.take(stream, || run(&self.scratch));
        };
        let there =
            captured.as_ref().filter(|(last, ..)| *last == number).and_then(|(_, scratch, _)| scratch.upgrade());
        let scratch = match there {
            Some(scratch) => scratch,
            None => {
                let scratch = Arc::new(DeviceBuffer::new(stream.device(), self.scratch.len())?);
                stream.keep(scratch.clone())?;
                *captured = Some((number, Arc::downgrade(&scratch), Turn::new(stream.device())?));
                scratch
            }
        };
        let (.., turn) = captured.as_mut().expect("made above");
        turn.take(stream, || run(&scratch))
    }
}

/// Work on one scratch, which begins at this address.
struct Batches<'a> {
    zstd: &'a Zstd,
    scratch: u64,
}

impl Batches<'_> {
    fn symbols_at(&self) -> u64 {
        self.scratch + self.zstd.temp_bytes.next_multiple_of(ALIGN) as u64
    }

    fn arrays_at(&self) -> u64 {
        self.symbols_at() + (self.zstd.most_bytes as usize).next_multiple_of(ALIGN) as u64
    }

    /// # Safety
    /// Conditions of `Shared::launch`; and nothing else uses this scratch meanwhile.
    unsafe fn launch(&self, all: &[FrameRun], limits: Limits, stream: &Stream) -> Result<()> {
        let mut batch: Vec<FrameRun> = Vec::new();
        let (mut frames, mut bytes) = (0u64, 0u64);
        for whole in all {
            let mut left = whole.clone();
            while left.item.frames > 0 {
                let n = self.fitting(&left, frames, bytes);
                if n == 0 {
                    // SAFETY: as the caller promises.
                    unsafe { self.launch_batch(&batch, bytes, limits, stream)? };
                    batch.clear();
                    (frames, bytes) = (0, 0);
                    continue;
                }
                let from = left.item.frame_begin;
                let taken = left.bytes(from, n);
                let mut part = left.clone();
                part.item.frames = n as u32;
                part.item.first = frames as u32;
                // Everything begins at multiples of 16 in the scratch.
                let at = self.symbols_at() + bytes;
                part.item.output = match part.direct {
                    Some(out) => out + from * u64::from(left.item.chunk),
                    None => at,
                };
                batch.push(part);
                frames += n;
                bytes = (bytes + taken).next_multiple_of(16);
                left.item.frame_begin += n;
                left.item.frames -= n as u32;
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.launch_batch(&batch, bytes, limits, stream) }
    }

    /// The number of these frames that fit the batch still.
    fn fitting(&self, left: &FrameRun, frames: u64, bytes: u64) -> u64 {
        let capacity = self.zstd.most_bytes.saturating_sub(bytes);
        let chunk = u64::from(left.item.chunk);
        let all = u64::from(left.item.frames);
        let by_bytes = if left.bytes(left.item.frame_begin, all) <= capacity { all } else { capacity / chunk };
        by_bytes.min(self.zstd.most_frames - frames)
    }

    unsafe fn launch_batch(&self, parts: &[FrameRun], bytes: u64, limits: Limits, stream: &Stream) -> Result<()> {
        let Some(last) = parts.last() else { return Ok(()) };
        debug_assert!(bytes <= self.zstd.most_bytes.next_multiple_of(16) && self.zstd.longest > 0);
        let groups: Vec<_> = parts.chunks(abi::MAX_ITEMS).map(|group| self.frames_batch(group)).collect();
        let batch_of_frames = DeviceBatch {
            count: (last.item.first + last.item.frames) as usize,
            compressed: self.array(0, 0),
            compressed_bytes: self.array(1, 0),
            capacity: self.array(2, 0),
            actual: self.array(3, 0),
            output: self.array(4, 0),
            statuses: self.array(5, 0),
        };
        // SAFETY: the arrays are in the scratch, which the caller leaves to us; frames were checked when they were planned.
        unsafe {
            for group in &groups {
                let grid = grid_for(group.frames.into(), limits);
                self.zstd.kernels[0].launch(grid, UTIL_THREADS, 0, group.as_bytes(), stream, false)?;
            }
            {
                let _scope = stream.device().enter()?;
                self.zstd.nvcomp.zstd_decompress(&batch_of_frames, self.scratch, self.zstd.temp_bytes, stream.raw())?;
            }
            for group in &groups {
                let grid = grid_for(group.frames.into(), limits);
                self.zstd.kernels[1].launch(grid, UTIL_THREADS, 0, group.as_bytes(), stream, false)?;
            }
        }
        for group in parts.chunks(abi::MAX_ITEMS) {
            self.launch_filters(group, limits, stream)?;
            self.launch_symbols(group, limits, stream)?;
        }
        Ok(())
    }

    /// Address of entry `i` of one of nvCOMP's arrays: their entries have 8 bytes, those of the last 4.
    fn array(&self, number: u64, i: u32) -> u64 {
        self.arrays_at() + number * self.zstd.most_frames * 8 + u64::from(i) * if number == 5 { 4 } else { 8 }
    }

    /// The parameters of the kernel that fills, and checks, the entries of at most [`abi::MAX_ITEMS`] planes.
    fn frames_batch(&self, parts: &[FrameRun]) -> Box<abi::FramesBatch> {
        let (first, last) = (parts[0].item.first, parts[parts.len() - 1].item);
        let mut batch = Box::new(abi::FramesBatch {
            count: parts.len() as u32,
            frames: last.first + last.frames - first,
            compressed: self.array(0, first),
            compressed_bytes: self.array(1, first),
            capacity: self.array(2, first),
            actual: self.array(3, first),
            outputs: self.array(4, first),
            statuses: self.array(5, first),
            ..Default::default()
        });
        for (to, part) in batch.items.iter_mut().zip(parts) {
            *to = abi::Frames { first: part.item.first - first, ..part.item };
        }
        batch
    }

    fn launch_filters(&self, parts: &[FrameRun], limits: Limits, stream: &Stream) -> Result<()> {
        let mut batch = Box::new(abi::FilteredBatch::default());
        for part in parts.iter().filter(|p| p.filter != Filter::None) {
            let (cols, chunk) = (part.cols as u64, u64::from(part.item.chunk));
            let per_frame = match part.filter {
                Filter::Up => cols.div_ceil(32),
                _ => chunk.div_ceil(cols) + 1,
            };
            batch.items[batch.count as usize] = abi::Filtered {
                symbols: part.item.output.wrapping_sub(part.item.frame_begin * chunk),
                elements: part.elements as u64,
                cols,
                chunk,
                chunk_begin: part.item.frame_begin,
                cost_begin: batch.cost,
                filter: filter_code(part.filter).into(),
                reserved: 0,
            };
            batch.count += 1;
            batch.cost += per_frame * u64::from(part.item.frames);
        }
        if batch.count == 0 {
            return Ok(());
        }
        // SAFETY: it works on what was just decoded.
        unsafe {
            self.zstd.kernels[2].launch(
                grid_for(batch.cost * 32, limits),
                UTIL_THREADS,
                0,
                batch.as_bytes(),
                stream,
                false,
            )
        }
    }

    fn launch_symbols(&self, parts: &[FrameRun], limits: Limits, stream: &Stream) -> Result<()> {
        let items = parts.iter().filter(|p| p.direct.is_none()).filter_map(|p| {
            let chunk = u64::from(p.item.chunk);
            let from = p.item.frame_begin * chunk;
            let (begin, end) = (from, from + p.bytes(p.item.frame_begin, p.item.frames.into()));
            let (begin, end) = (begin.max(p.symbols.begin), end.min(p.symbols.end));
            let symbols = p.item.output.wrapping_sub(from);
            let aligned = symbols % 16 == 0 && begin % 16 == 0 && (end - begin) % 16 == 0;
            let vector = u32::from(p.symbols.vector == 1 && aligned);
            (begin < end).then_some((p, abi::Symbols { symbols, begin, end, vector, ..p.symbols }))
        });
        let (mut symbols, mut joined) = (Vec::new(), Vec::new());
        for (p, item) in items {
            match p.bits {
                None => symbols.push(item),
                Some(bits) => joined.push(bits_item(bits, p.kind, item)),
            }
        }
        if !symbols.is_empty() {
            let (batch, grid) = symbols_batch(&symbols, limits);
            // SAFETY: it reads what was just decoded and writes where the caller wants it.
            unsafe { self.zstd.kernels[3].launch(grid, UTIL_THREADS, 0, batch.as_bytes(), stream, false)? };
        }
        for (batch, grid) in bits_batches(joined, limits) {
            // SAFETY: likewise.
            unsafe { self.zstd.kernels[4].launch(grid, UTIL_THREADS, 0, batch.as_bytes(), stream, false)? };
        }
        Ok(())
    }
}
