//! The ring that compressed bytes pass through on their way from the host's memory or the file to the device.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cancel::Cancel;
use crate::error::{ErrorKind, Result};
use crate::gpu::buffer::{DeviceBuffer, PinnedBuffer};
use crate::gpu::device::Device;
use crate::gpu::disk::{self, Disk, Job, Reads};
use crate::gpu::groups::Group;
use crate::gpu::ring::{SLOTS, Slots};
use crate::gpu::shared::Work;
use crate::gpu::stream::{Event, Stream};

/// A ring of slots on the device, and the order in which groups of work fill them.
#[derive(Debug)]
pub struct Streaming {
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Pinned memory of a slot for bytes from the file; 0 where there are none.
    pub pinned_bytes: usize,
    pub disk: Option<Disk>,
    ring: Arc<Ring>,
    /// Locked while work is put into streams, so that its order is that of the slots' changes.
    turns: Mutex<Turns>,
    batches: AtomicU64,
}

/// Memory that compressed bytes pass through, and the stream that they do it in. The job that fills a slot keeps it.
#[derive(Debug)]
struct Ring {
    packed_tensors: Arc<PinnedBuffer>,
    slots: [Slot; SLOTS],
    copies: Stream,
}

#[derive(Debug)]
struct Slot {
    buffer: DeviceBuffer,
    /// Bytes from the file come here first.
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
pub struct Groups {
    batch: u64,
    pub all: Vec<Group>,
    /// The launches that decode each group, from each slot.
    pub work: Vec<[OnceLock<Work>; SLOTS]>,
}

impl Groups {
    /// Whether some of them come from the file, so that launching them waits.
    pub fn wait(&self) -> bool {
        self.all.iter().any(|group| !group.reads.fetches.is_empty())
    }
}

impl Streaming {
    /// A ring of slots of so many bytes. `packed_tensors` is the host's memory that copies read, and `copies` the stream for them.
    pub fn new(
        device: &Device,
        packed_tensors: Arc<PinnedBuffer>,
        disk: Option<Disk>,
        (slot_bytes, pinned_bytes): (usize, usize),
        copies: Stream,
    ) -> Result<Self> {
        let slot = || -> Result<Slot> {
            let buffer = DeviceBuffer::new(device, slot_bytes)?;
            let pinned = PinnedBuffer::new(device, pinned_bytes)?;
            Ok(Slot { buffer, pinned, copied: Event::new(device)?, decoded: Event::new(device)? })
        };
        let slots = [slot()?, slot()?, slot()?, slot()?];
        let ring = Arc::new(Ring { packed_tensors, slots, copies });
        Ok(Self { slot_bytes, pinned_bytes, disk, ring, turns: Mutex::default(), batches: AtomicU64::new(0) })
    }

    /// The groups of a new batch.
    pub fn batch(&self, all: Vec<Group>) -> Arc<Groups> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let work = all.iter().map(|_| Default::default()).collect();
        Arc::new(Groups { batch, all, work })
    }

    /// Numbers and addresses of the slots.
    pub fn slots(&self) -> impl Iterator<Item = (usize, u64)> {
        self.ring.slots.iter().map(|slot| slot.buffer.ptr()).enumerate()
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to fill a slot for a group.
    fn begin(&self, turns: &mut Turns, groups: &Arc<Groups>, i: usize, slot: usize) -> Result<()> {
        let group = &groups.all[i];
        // A job that was begun for others, and is wanted no more, still writes there.
        if let Some(job) = turns.jobs[slot].take() {
            job.stop();
        }
        match &self.disk {
            Some(disk) if !group.reads.fetches.is_empty() => {
                let filling = Filling { ring: self.ring.clone(), groups: groups.clone(), group: i, slot };
                // SAFETY: The pinned memory of each slot is as large as groups are made for, and kept by `Filling`. No
                // other job writes there: the job before has ended, and the next one begins when this one has.
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

    /// Begins to fill slots for groups, as far as there are free ones; where there is a file, others follow as soon as slots are free.
    pub fn prefetch(&self, groups: &Arc<Groups>) -> Result<()> {
        let batch = groups.batch;
        let mut turns = self.turns();
        for i in 0..groups.all.len() {
            if turns.slots.held((batch, i)).is_some() || turns.is_wanted(batch, i) {
                continue;
            }
            if self.disk.is_some() {
                turns.wanted.push_back((groups.clone(), i));
                continue;
            }
            let Some(slot) = turns.slots.take_free((batch, i)) else { break };
            self.begin(&mut turns, groups, i, slot)?;
        }
        self.begin_wanted(&mut turns)
    }

    /// Has `launch` put the decoding of each group into the stream, from a slot that it is told by number and address, behind the copies to it.
    pub fn run(
        &self,
        groups: &Arc<Groups>,
        stream: &Stream,
        cancel: &Cancel,
        mut launch: impl FnMut(usize, (usize, u64)) -> Result<()>,
    ) -> Result<()> {
        let mut turns = self.turns();
        if self.disk.is_some() {
            turns.come_first(groups);
            self.begin_wanted(&mut turns)?;
        }
        for i in 0..groups.all.len() {
            let holder = (groups.batch, i);
            let slot = match turns.slots.held(holder) {
                Some(slot) => slot,
                None => {
                    turns.wanted.retain(|(groups, j)| (groups.batch, *j) != holder);
                    let slot = turns.slots.take(holder);
                    self.begin(&mut turns, groups, i, slot)?;
                    slot
                }
            };
            if let Some(job) = &turns.jobs[slot]
                && let Err(e) = job.wait(cancel)
            {
                if e.kind() != ErrorKind::Cancelled {
                    // The next launch has it read again.
                    turns.slots.release(slot);
                }
                return Err(e);
            }
            stream.wait(&self.ring.slots[slot].copied)?;
            // The slot is not written again before `decoded` was reached.
            let launched = launch(i, (slot, self.ring.slots[slot].buffer.ptr()));
            // Also where only a part of it was launched: that part reads the slot.
            self.ring.slots[slot].decoded.record(stream)?;
            turns.slots.release(slot);
            launched?;
            // A failure there is another batch's, which begins it again itself, and tells.
            let _ = self.begin_wanted(&mut turns);
        }
        Ok(())
    }

    /// Gives the slots of groups back that are launched no more.
    pub fn forget(&self, groups: &Groups) {
        let mut turns = self.turns();
        turns.slots.forget(groups.batch);
        turns.wanted.retain(|(others, _)| others.batch != groups.batch);
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        let turns = self.turns.get_mut().unwrap_or_else(PoisonError::into_inner);
        turns.wanted.clear();
        turns.jobs.iter().flatten().for_each(|job| job.stop());
    }
}

impl Turns {
    fn is_wanted(&self, batch: u64, i: usize) -> bool {
        self.wanted.iter().any(|(groups, j)| (groups.batch, *j) == (batch, i))
    }

    /// Has a batch's groups read before all that is wanted for others.
    fn come_first(&mut self, groups: &Arc<Groups>) {
        let batch = groups.batch;
        let all = 0..groups.all.len();
        if !all.clone().any(|i| self.slots.held((batch, i)).is_some() || self.is_wanted(batch, i)) {
            // It was not foreseen, so what was foreseen is not what comes.
            self.wanted.clear();
        }
        self.wanted.retain(|(groups, _)| groups.batch != batch);
        let missing: Vec<usize> = all.filter(|&i| self.slots.held((batch, i)).is_none()).collect();
        missing.into_iter().rev().for_each(|i| self.wanted.push_front((groups.clone(), i)));
    }
}

impl Ring {
    /// Puts the copies for a group into the copying stream, behind the last decoding from the slot.
    fn copy(&self, group: &Group, slot: usize) -> Result<()> {
        let slot = &self.slots[slot];
        self.copies.wait(&slot.decoded)?;
        for (range, place) in &group.copies {
            // SAFETY: the packed tensors are never changed; they and the slots are freed after the copying stream was waited for.
            unsafe { slot.buffer.upload_async(*place, &self.packed_tensors, range.clone(), &self.copies)? };
        }
        for fetch in &group.reads.fetches {
            // SAFETY: nobody writes to a slot's pinned memory before `copied` was reached, and it is freed as the packed tensors are.
            unsafe { slot.buffer.upload_async(fetch.place, &slot.pinned, group.reads.memory(fetch), &self.copies)? };
        }
        slot.copied.record(&self.copies)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Copies may still read the packed tensors, if they are of a batch that was never launched.
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
