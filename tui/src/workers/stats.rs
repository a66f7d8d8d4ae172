//! Statistics and verdicts, found on two threads of their own.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use wcodec::{Cancel, Checkpoint, ErrorKind};

use super::{PAUSE, every, start, tell};
use crate::action::{Action, Report};
use crate::model::FileModel;
use crate::stats::compute::compute;
use crate::stats::control::Control;
use crate::stats::verify::{reason, verify};
use crate::stats::{Fetch, Found, LayerStats, StatsEffect, StatsReport, Verdict};

/// Does [`StatsEffect`]s: one thread computes statistics, the other verifies. Neither the calls nor dropping it wait; the threads end
/// with what they are at, within a piece of a tensor, or a segment of one that is being verified.
#[derive(Debug)]
pub struct StatsWorker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    reference: Option<Arc<Checkpoint>>,
}

#[derive(Debug)]
struct Queue {
    file: Arc<FileModel>,
    generation: u64,
    sender: Sender<Action>,
    statistics: Lane,
    verdicts: Lane,
    over: bool,
}

/// The work of a thread: what it is at, and what comes then.
#[derive(Debug, Default)]
struct Lane {
    running: Option<Job>,
    waiting: VecDeque<Job>,
}

/// A tensor for a thread.
#[derive(Clone, Debug)]
struct Job {
    tensor: usize,
    /// Whether it can wait: nobody looks at it.
    patient: bool,
    /// The work is about the file of the queue, unless this is used.
    cancel: Cancel,
}

impl StatsWorker {
    /// Starts the threads. The file is of generation 0.
    pub fn new(file: Arc<FileModel>, reference: Option<Arc<Checkpoint>>, sender: Sender<Action>) -> Self {
        let (statistics, verdicts, to) = (Lane::default(), Lane::default(), sender.clone());
        let queue = Mutex::new(Queue { file, generation: 0, sender, statistics, verdicts, over: false });
        let shared = Arc::new(Shared { queue, wake: Condvar::new(), reference });
        let (computes, verifies) = (shared.clone(), shared.clone());
        start("statistics", &to, move || {
            let work = |file: &FileModel, tensor, control: &mut Control<'_>| {
                compute(file, tensor, computes.reference.as_deref(), control).map(Arc::new)
            };
            computes.work(|queue| &mut queue.statistics, work, Queue::report_stats);
        });
        start("verify", &to, move || verifies.work(|queue| &mut queue.verdicts, verify, Queue::report_verdict));
        Self { shared }
    }

    /// Takes something on that is about the file of a generation: nothing about an older one.
    pub fn handle(&self, generation: u64, effect: StatsEffect) {
        let mut queue = self.shared.lock();
        match effect {
            StatsEffect::Cancel => queue.cancel(),
            _ if generation != queue.generation => {}
            StatsEffect::Compute(tensor) => queue.want(tensor),
            StatsEffect::Entropies(tensors) => {
                let waiting = &mut queue.statistics.waiting;
                let known: HashSet<usize> = waiting.iter().filter(|job| job.patient).map(|job| job.tensor).collect();
                waiting.extend(tensors.into_iter().filter(|t| !known.contains(t)).map(Job::that_waits));
            }
            StatsEffect::Verify(tensors) => queue.want_verdicts(&tensors),
        }
        drop(queue);
        self.shared.wake.notify_all();
    }

    /// Goes on with another file; what is going on is dropped.
    pub fn set_file(&self, file: Arc<FileModel>, generation: u64) {
        let mut queue = self.shared.lock();
        queue.cancel();
        queue.file = file;
        queue.generation = generation;
    }
}

impl Drop for StatsWorker {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.over = true;
        queue.cancel();
        drop(queue);
        self.shared.wake.notify_all();
    }
}

impl Job {
    fn that_waits(tensor: usize) -> Self {
        Self { tensor, patient: true, cancel: Cancel::new() }
    }
}

impl Lane {
    /// The work that is under way, unless it was stopped.
    fn running(&mut self) -> Option<&mut Job> {
        self.running.as_mut().filter(|job| !job.cancel.is_cancelled())
    }

    /// Gives all work up; the tensors of it that somebody may have heard of.
    fn cancel(&mut self) -> Vec<usize> {
        let running = self.running.take().filter(|job| !job.cancel.is_cancelled());
        running.iter().for_each(|job| job.cancel.cancel());
        running.into_iter().chain(self.waiting.drain(..)).map(|job| job.tensor).collect()
    }
}

impl Queue {
    /// A tensor that somebody looks at comes first; one that was looked at before is given up.
    fn want(&mut self, tensor: usize) {
        let (lane, mut given_up) = (&mut self.statistics, Vec::new());
        if lane.waiting.front().is_some_and(|job| !job.patient) {
            given_up.extend(lane.waiting.pop_front().map(|job| job.tensor).filter(|&t| t != tensor));
        }
        match lane.running() {
            Some(job) if job.tensor == tensor => job.patient = false,
            running => {
                if let Some(&mut Job { tensor: before, patient, ref cancel }) = running {
                    cancel.cancel();
                    given_up.push(before);
                    // It can wait: it begins anew behind this one.
                    if patient {
                        lane.waiting.push_front(Job::that_waits(before));
                    }
                }
                lane.waiting.push_front(Job { patient: false, ..Job::that_waits(tensor) });
            }
        }
        given_up.into_iter().for_each(|tensor| self.report_stats(tensor, Fetch::Absent));
    }

    /// The tensors that were asked for last are verified first.
    fn want_verdicts(&mut self, tensors: &[usize]) {
        let new: HashSet<usize> = tensors.iter().copied().collect();
        let running = self.verdicts.running().map(|job| job.tensor);
        let waiting = &mut self.verdicts.waiting;
        waiting.retain(|job| !new.contains(&job.tensor));
        let wanted = tensors.iter().rev().filter(|&&tensor| running != Some(tensor));
        wanted.for_each(|&tensor| waiting.push_front(Job::that_waits(tensor)));
    }

    /// Stops everything, and says so of each tensor. Nothing more is said of them after.
    fn cancel(&mut self) {
        self.statistics.cancel().into_iter().for_each(|tensor| self.report_stats(tensor, Fetch::Absent));
        self.verdicts.cancel().into_iter().for_each(|tensor| self.report_verdict(tensor, Fetch::Absent));
    }

    fn report_stats(&self, tensor: usize, stats: Fetch<Arc<LayerStats>>) {
        let generation = self.generation;
        tell(&self.sender, Report::Stats(StatsReport { tensor, generation, found: Found::Stats(stats) }));
    }

    fn report_verdict(&self, tensor: usize, verdict: Fetch<Verdict>) {
        let generation = self.generation;
        tell(&self.sender, Report::Stats(StatsReport { tensor, generation, found: Found::Verdict(verdict) }));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do; none when all is over.
    fn next(&self, lane: fn(&mut Queue) -> &mut Lane) -> Option<(Job, Arc<FileModel>)> {
        let is_idle = |queue: &mut Queue| !queue.over && lane(queue).waiting.is_empty();
        let mut queue = self.wake.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let job = lane(&mut queue).waiting.pop_front()?;
        lane(&mut queue).running = Some(job.clone());
        Some((job, queue.file.clone()))
    }

    /// Speaks of a job, unless it was stopped: what was said of it then is the last word.
    fn speak(&self, job: &Job, say: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        if !job.cancel.is_cancelled() {
            say(&mut queue);
        }
    }

    /// Does one job after the other, and says how far each is.
    fn work<T>(
        &self,
        lane: fn(&mut Queue) -> &mut Lane,
        work: impl Fn(&FileModel, usize, &mut Control<'_>) -> wcodec::Result<T>,
        report: fn(&Queue, usize, Fetch<T>),
    ) {
        while let Some((job, file)) = self.next(lane) {
            let tensor = job.tensor;
            let mut progress = every(PAUSE, |part| {
                self.speak(&job, |queue| report(queue, tensor, Fetch::Running(part)));
            });
            let found = match work(&file, tensor, &mut Control::new(&job.cancel, &mut progress)) {
                Ok(found) => Fetch::Ready(found),
                Err(e) if e.kind() == ErrorKind::Cancelled => Fetch::Absent,
                Err(e) => Fetch::Failed(reason(&file, &e)),
            };
            self.speak(&job, |queue| {
                report(queue, tensor, found);
                // Whoever waited for this tensor has it now.
                if lane(queue).running.take().is_some_and(|job| !job.patient) {
                    lane(queue).waiting.retain(|job| job.tensor != tensor);
                }
            });
        }
    }
}
