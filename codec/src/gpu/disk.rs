//! Compressed bytes that are read from the file each time that they are wanted: which bytes those are, how they lie in memory, and the threads
//! that read and check them. No device is touched here.

use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::packed_rows::PackedRows;
use super::plan::TensorPlan;
use crate::cancel::Cancel;
use crate::container::{Hash, Segment, hash};
use crate::decode::Container;
use crate::error::{Error, Result};
pub(super) use crate::file::PAGE;
use crate::file::{Handle, InputFile, Readers, pages};
use crate::tensor::AlignedBytes;

/// Bytes that a thread reads at once.
const PIECE: u64 = 1 << 20;
/// Time after which a thread that waits looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// An open file of compressed tensors, and threads that read it.
#[derive(Debug)]
pub struct Disk {
    file: Arc<InputFile>,
    readers: Readers,
    direct: bool,
    verify: bool,
    /// Segments, by their places, that were compared with their hashes as a whole.
    sound: Mutex<HashSet<u64>>,
}

/// Bytes of a segment that go to a slot.
#[derive(Debug)]
pub struct Fetch {
    /// Name of the tensor.
    tensor: String,
    segment: Segment,
    /// Their place in the file.
    file: Range<u64>,
    /// Their place in the device's slot.
    pub place: usize,
    /// Their hash: as the container says of a whole segment, otherwise as it was when they were read first, which was after the whole
    /// segment was compared.
    hash: OnceLock<Hash>,
}

/// The bytes of the file that a slot is filled with.
#[derive(Debug, Default)]
pub struct Reads {
    pub fetches: Vec<Fetch>,
    /// Whole pages of the file, none twice, each with its place in memory.
    extents: Vec<(Range<u64>, usize)>,
    /// Bytes of memory that they take.
    pub bytes: usize,
}

impl Fetch {
    fn is_whole(&self) -> bool {
        self.file == (self.segment.offset..self.segment.end())
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        (self.file.end - self.file.start) as usize
    }

    /// Bytes of memory that its pages take.
    fn pages(&self) -> usize {
        let around = pages(&self.file);
        (around.end - around.start) as usize
    }

    fn named(&self, e: Error) -> Error {
        e.tensor(&self.tensor)
    }
}

/// Memory, in bytes, that slots need beside what the device's have, where tensors have so many planes: each part begins and ends with whole
/// pages.
pub fn margin(planes: impl Iterator<Item = usize>) -> usize {
    2 * PAGE * planes.map(|planes| 1 + 3 * planes).max().unwrap_or(0).max(32)
}

/// The bytes of the file that a piece of a tensor needs; they go to `at` of a slot.
pub fn fetches(plan: &TensorPlan, piece: &PackedRows, at: usize) -> Vec<Fetch> {
    let (tensor, packed) = (&plan.tensor, &plan.packed);
    let planes = tensor.planes.iter().zip(&packed.planes).flat_map(|(stored, place)| {
        [
            (&place.offsets, stored.offsets.as_ref()),
            (&place.data, Some(&stored.data)),
            (&place.side, stored.side.as_ref()),
        ]
    });
    let scales = (&packed.scales, tensor.symbol_scales().map(|s| &s.segment));
    let parts: Vec<(&Range<usize>, &Segment)> =
        [scales].into_iter().chain(planes).filter_map(|(range, segment)| Some((range, segment?))).collect();
    let mut fetches = Vec::new();
    for (range, place) in &piece.copies {
        for &(part, segment) in &parts {
            let (begin, end) = (range.start.max(part.start), range.end.min(part.end));
            if begin >= end {
                continue;
            }
            let from = segment.offset + (begin - part.start) as u64;
            let place = at + place + (begin - range.start);
            let file = from..from + (end - begin) as u64;
            let (tensor, segment, hash) = (tensor.name.clone(), *segment, OnceLock::new());
            let fetch = Fetch { tensor, segment, file, place, hash };
            if fetch.is_whole() {
                fetch.hash.get_or_init(|| segment.hash);
            }
            fetches.push(fetch);
        }
    }
    fetches
}

impl Reads {
    /// Adds what a piece needs, unless all would take more than `capacity` bytes.
    ///
    /// # Errors
    /// It would; the piece is given back.
    pub fn add(&mut self, fetches: Vec<Fetch>, capacity: usize) -> std::result::Result<(), Vec<Fetch>> {
        let bytes: usize = fetches.iter().map(Fetch::pages).sum();
        let before: usize = self.fetches.iter().map(Fetch::pages).sum();
        if before + bytes > capacity {
            return Err(fetches);
        }
        self.fetches.extend(fetches);
        // Pages that lie together are read together.
        let mut ranges: Vec<Range<u64>> = self.fetches.iter().map(|f| pages(&f.file)).collect();
        ranges.sort_unstable_by_key(|r| r.start);
        (self.extents, self.bytes) = (Vec::new(), 0);
        for range in ranges {
            match self.extents.last_mut() {
                Some((last, _)) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => self.extents.push((range, 0)),
            }
        }
        for (range, at) in &mut self.extents {
            *at = self.bytes;
            self.bytes += (range.end - range.start) as usize;
        }
        Ok(())
    }

    /// The place in memory of bytes that are fetched.
    pub fn memory(&self, fetch: &Fetch) -> Range<usize> {
        let i = self.extents.partition_point(|(range, _)| range.start <= fetch.file.start) - 1;
        let (range, at) = &self.extents[i];
        let begin = at + (fetch.file.start - range.start) as usize;
        begin..begin + fetch.len()
    }

    /// The parts that threads read: places in the file and in memory.
    fn pieces(&self) -> Vec<(Range<u64>, usize)> {
        let cut = |(range, at): &(Range<u64>, usize)| {
            let (range, at) = (range.clone(), *at);
            let starts = range.clone().step_by(PIECE as usize);
            starts.map(move |begin| (begin..(begin + PIECE).min(range.end), at + (begin - range.start) as usize))
        };
        self.extents.iter().flat_map(cut).collect()
    }
}

/// Memory that is filled from the file, and what becomes of it.
pub trait Slot: Send + Sync {
    /// The bytes that it is filled with.
    fn reads(&self) -> &Reads;

    /// Waits until nobody uses the memory any more. Called by each thread that is about to write there.
    fn free(&self) -> Result<()>;

    /// The memory: as many bytes as are read, at an address that is a multiple of a page.
    fn memory(&self) -> *mut u8;

    /// Takes what was read and checked.
    fn filled(&self) -> Result<()>;
}

/// Memory that is being filled.
pub struct Job {
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Tasks that are not done yet, of those that read or those that check.
    left: usize,
    /// Tasks, among those, that are being done.
    running: usize,
    /// Whether all was taken, or what went wrong.
    result: Option<Result<()>>,
    /// Whether a task has failed, also when its error was handed out already: then nothing is taken any more.
    failed: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({:?})", self.state())
    }
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the memory was filled and taken.
    ///
    /// # Errors
    /// It cannot be read, is not what was written, or the device refused it; or `cancel` was used, and the job goes on.
    pub fn wait(&self, cancel: &Cancel) -> Result<()> {
        let mut state = self.state();
        loop {
            if let Some(result) = state.result.take() {
                // A later call finds it done, too.
                if result.is_ok() {
                    state.result = Some(Ok(()));
                }
                return result;
            }
            cancel.check()?;
            state = self.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends it: when this returns, nobody touches its memory.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let mut state = self.state();
        while state.running > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does a task, unless the job was ended; whether it was the last of its kind.
    fn run(&self, work: impl FnOnce() -> Result<()>) -> bool {
        {
            let mut state = self.state();
            if self.stopped.load(Ordering::Acquire) || state.failed || state.result.is_some() {
                return false;
            }
            state.running += 1;
        }
        // One that panics has failed, and nobody waits for it.
        let panicked = |_| Err(coded!(DEVICE_BUG, "a thread that reads weights panicked").advice("report this"));
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
        let mut state = self.state();
        state.running -= 1;
        state.left -= 1;
        if let Err(e) = done {
            state.failed = true;
            state.result.get_or_insert(Err(e));
        }
        let last = state.left == 0 && !state.failed && !self.stopped.load(Ordering::Acquire);
        drop(state);
        self.changed.notify_all();
        last
    }
}

/// The state that the tasks of a job share.
struct Filling<S> {
    job: Arc<Job>,
    slot: S,
    file: Arc<InputFile>,
    direct: bool,
    verify: bool,
}

impl Disk {
    /// For the file of a container, whose tensors are read by `threads` threads, 16 where absent. `direct`: beside the system's page cache, where
    /// that can be; `verify`: comparing all that is read with hashes.
    ///
    /// # Errors
    /// The container is in memory, or the system gives no thread.
    pub fn new(container: &Container, threads: Option<usize>, direct: bool, verify: bool) -> Result<Self> {
        let file = container.reader().file().cloned().ok_or_else(|| {
            coded!(DISK_NEEDS_A_FILE, "a container in memory cannot be read from disk")
                .advice("save it, and open the file")
        })?;
        let direct = direct && file.is_direct();
        Ok(Self { file, readers: Readers::new(threads)?, direct, verify, sound: Mutex::default() })
    }

    /// Whether it reads beside the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Compares those segments with their hashes of which a part will be read, once: parts have no hashes.
    ///
    /// # Errors
    /// They are damaged, or cannot be read.
    pub fn check_parts(&self, reads: &Reads) -> Result<()> {
        let parts = reads.fetches.iter().filter(|f| self.verify && !f.is_whole());
        parts.into_iter().try_for_each(|f| self.check_segment(&f.segment).map_err(|e| f.named(e)))
    }

    /// Compares a segment with its hash, once.
    pub fn check_segment(&self, segment: &Segment) -> Result<()> {
        let sound = || self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if sound().contains(&segment.offset) {
            return Ok(());
        }
        let mut hasher = crate::container::Hasher::default();
        for begin in (segment.offset..segment.end()).step_by(PIECE as usize) {
            let length = PIECE.min(segment.end() - begin) as usize;
            hasher.update(&self.read(begin, length)?);
        }
        if hasher.hash() != segment.hash {
            return Err(segment.differs().file(self.file.path()));
        }
        sound().insert(segment.offset);
        Ok(())
    }

    fn read(&self, offset: u64, length: usize) -> Result<AlignedBytes> {
        let go = Cancel::new();
        if self.direct { self.file.read_direct(offset, length, &go) } else { self.file.read(offset, length, &go) }
    }

    /// The bytes of a packed tensor up to the last that says where its chunks lie. All others are zeros, for which the system has no memory yet.
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    pub fn head(&self, plan: &TensorPlan) -> Result<AlignedBytes> {
        let places = &plan.packed.planes;
        let mut head = AlignedBytes::zeroed(places.iter().map(|p| p.offsets.end).max().unwrap_or(0))?;
        for (place, stored) in places.iter().zip(&plan.tensor.planes) {
            let Some(segment) = &stored.offsets else { continue };
            let bytes = self.read(segment.offset, segment.length as usize).map_err(|e| e.tensor(plan.name()))?;
            if hash(&bytes) != segment.hash {
                return Err(segment.differs().file(self.file.path()).tensor(plan.name()));
            }
            head[place.offsets.clone()].copy_from_slice(&bytes);
        }
        Ok(head)
    }

    /// Begins to fill a slot. The memory is written to until the job is done or was [stopped](Job::stop).
    ///
    /// # Safety
    /// The slot's memory is as large as its [`Reads`] say, and nobody else touches it until then, but [`Slot::filled`].
    pub unsafe fn fill<S: Slot + 'static>(&self, slot: S) -> Arc<Job> {
        let pieces = slot.reads().pieces();
        let state = State { left: pieces.len(), running: 0, result: None, failed: false };
        let job = Arc::new(Job { state: Mutex::new(state), changed: Condvar::new(), stopped: AtomicBool::new(false) });
        let (file, direct, verify) = (self.file.clone(), self.direct, self.verify);
        let filling = Arc::new(Filling { job: job.clone(), slot, file, direct, verify });
        let handle = self.readers.handle();
        let tasks = pieces.into_iter().map(|(range, at)| {
            let (filling, handle) = (filling.clone(), handle.clone());
            Box::new(move || {
                if filling.job.run(|| filling.read(&range, at)) {
                    filling.check_all(&handle);
                }
            }) as Box<dyn FnOnce() + Send>
        });
        self.readers.add(tasks, false);
        job
    }
}

impl<S: Slot + 'static> Filling<S> {
    /// Reads some pages.
    fn read(&self, range: &Range<u64>, at: usize) -> Result<()> {
        let read = || {
            self.slot.free()?;
            self.file.check_unchanged()?;
            // SAFETY: The slot's memory is large enough, and no two tasks have a byte of it in common.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(self.slot.memory().add(at), (range.end - range.start) as usize)
            };
            self.file.read_pages(range.start, memory, self.direct)
        };
        read().map_err(|e| {
            let mut all = self.slot.reads().fetches.iter();
            match all.find(|f| f.file.start < range.end && f.file.end > range.start) {
                Some(f) => f.named(e.offset(f.file.start.max(range.start))),
                None => e,
            }
        })
    }

    /// Has all that was read compared with its hashes, and then taken.
    fn check_all(self: &Arc<Self>, readers: &Handle) {
        let count = if self.verify { self.slot.reads().fetches.len() } else { 0 };
        self.job.state().left = count.max(1);
        if count == 0 {
            self.finish(|| Ok(()));
            return;
        }
        // Not behind what is to be read for others, who wait longer.
        let tasks = (0..count).map(|i| {
            let this = self.clone();
            Box::new(move || this.finish(|| this.check(i))) as Box<dyn FnOnce() + Send>
        });
        readers.add(tasks, true);
    }

    /// Does a task that checks; the last one hands the memory on.
    fn finish(&self, check: impl FnOnce() -> Result<()>) {
        if !self.job.run(check) {
            return;
        }
        self.job.state().left = 1;
        // A writer may have been at work meanwhile.
        let taken = || self.file.check_unchanged().and_then(|()| self.slot.filled());
        if self.job.run(|| taken().map_err(|e| self.slot.reads().fetches[0].named(e))) {
            self.job.state().result = Some(Ok(()));
            self.job.changed.notify_all();
        }
    }

    fn check(&self, i: usize) -> Result<()> {
        let reads = self.slot.reads();
        let fetch = &reads.fetches[i];
        let range = reads.memory(fetch);
        // SAFETY: The slot's memory is large enough; all that is written there was written before.
        let bytes = unsafe { std::slice::from_raw_parts(self.slot.memory().add(range.start), range.len()) };
        let computed = hash(bytes);
        if *fetch.hash.get_or_init(|| computed) == computed {
            return Ok(());
        }
        let differs = fetch.segment.differs();
        let differs = if fetch.is_whole() {
            differs
        } else {
            coded!(READ_AGAIN, "{} bytes of a segment are not those that were read before", fetch.len())
                .offset(fetch.file.start)
                .advice("restore the file, or encode the model again; see whether the disk is sound")
        };
        Err(fetch.named(differs.file(self.file.path())))
    }
}

#[cfg(test)]
pub mod tests;
