//! Statistics and verdicts, found on two threads of their own.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use wcodec::{Checkpoint, ErrorKind};

use super::{PAUSE, every, tell};
use crate::action::{Action, Report};
use crate::model::FileModel;
use crate::stats::compute::compute;
use crate::stats::control::Control;
use crate::stats::verify::{reason, verify};
use crate::stats::{Fetch, LayerStats, StatsEffect, StatsReport, Verdict};

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
    /// The tensor that somebody looks at.
    wanted: Option<usize>,
    /// Tensors whose statistics can wait.
    later: VecDeque<usize>,
    computing: Option<Running>,
    to_verify: VecDeque<usize>,
    verifying: Option<Running>,
    over: bool,
}

/// The work of a thread.
#[derive(Clone, Debug)]
struct Running {
    tensor: usize,
    /// Whether it may be put off for another.
    patient: bool,
    stop: Arc<AtomicBool>,
}

/// Work for a thread, and the file that it is about, which is the queue's unless it was stopped.
type StatsTask = (Running, Arc<FileModel>);

impl StatsWorker {
    /// Starts the threads. The file is of generation 0.
    pub fn new(file: Arc<FileModel>, reference: Option<Arc<Checkpoint>>, sender: Sender<Action>) -> Self {
        let queue = Queue {
            file,
            generation: 0,
            sender,
            wanted: None,
            later: VecDeque::new(),
            computing: None,
            to_verify: VecDeque::new(),
            verifying: None,
            over: false,
        };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), wake: Condvar::new(), reference });
        for (name, work) in [("statistics", Shared::compute as fn(&Shared)), ("verify", Shared::verify)] {
            let mine = shared.clone();
            let started = thread::Builder::new().name(name.to_owned()).spawn(move || work(&mine));
            if let Err(e) = started {
                tell(&shared.lock().sender, Report::Error(format!("no thread for statistics: {e}")));
            }
        }
        Self { shared }
    }

    /// Takes something on.
    pub fn handle(&self, effect: StatsEffect) {
        let mut queue = self.shared.lock();
        let now = queue.generation;
        match effect {
            StatsEffect::Compute { generation, tensor } if generation == now => queue.want(tensor),
            StatsEffect::Entropies { generation, tensors } if generation == now => {
                let known: HashSet<usize> = queue.later.iter().copied().collect();
                queue.later.extend(tensors.into_iter().filter(|t| !known.contains(t)));
            }
            StatsEffect::Verify { generation, tensors } if generation == now => queue.want_verdicts(tensors),
            StatsEffect::Cancel => queue.cancel(),
            _ => {}
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

impl Running {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_at(&self, tensor: usize) -> bool {
        self.tensor == tensor && !self.is_stopped()
    }
}

impl Queue {
    /// A tensor that somebody looks at comes first; one that was looked at before is given up.
    fn want(&mut self, tensor: usize) {
        if let Some(before) = self.wanted.take().filter(|&t| t != tensor) {
            self.report_stats(before, Fetch::Absent);
        }
        if let Some(running) = self.computing.as_mut().filter(|r| r.is_at(tensor)) {
            running.patient = false;
            return;
        }
        if let Some(running) = self.computing.clone().filter(|r| !r.is_stopped()) {
            running.stop();
            self.report_stats(running.tensor, Fetch::Absent);
            if running.patient {
                self.later.push_front(running.tensor);
            }
        }
        self.wanted = Some(tensor);
    }

    /// The tensors that were asked for last are verified first.
    fn want_verdicts(&mut self, tensors: Vec<usize>) {
        let new: HashSet<usize> = tensors.iter().copied().collect();
        let is_running = |t: &usize| self.verifying.as_ref().is_some_and(|r| r.is_at(*t));
        let before = self.to_verify.iter().copied().filter(|t| !new.contains(t));
        self.to_verify = tensors.iter().copied().filter(|t| !is_running(t)).chain(before).collect();
    }

    /// Stops everything, and says so of each tensor. Nothing more is said of them after.
    fn cancel(&mut self) {
        let computing = self.computing.take().filter(|r| !r.is_stopped());
        let verifying = self.verifying.take().filter(|r| !r.is_stopped());
        computing.iter().chain(&verifying).for_each(Running::stop);
        self.later.clear();
        for tensor in computing.map(|r| r.tensor).into_iter().chain(self.wanted.take()) {
            self.report_stats(tensor, Fetch::Absent);
        }
        let queued = std::mem::take(&mut self.to_verify);
        for tensor in verifying.map(|r| r.tensor).into_iter().chain(queued) {
            self.report_verdict(tensor, Fetch::Absent);
        }
    }

    fn report_stats(&self, tensor: usize, stats: Fetch<Arc<LayerStats>>) {
        let generation = self.generation;
        tell(&self.sender, Report::Stats(StatsReport::Stats { generation, tensor, stats }));
    }

    fn report_verdict(&self, tensor: usize, verdict: Fetch<Verdict>) {
        let generation = self.generation;
        tell(&self.sender, Report::Stats(StatsReport::Verdict { generation, tensor, verdict }));
    }

    fn start(&self, tensor: usize, patient: bool) -> StatsTask {
        (Running { tensor, patient, stop: Arc::default() }, self.file.clone())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do; none when all is over.
    fn next(&self, mut find: impl FnMut(&mut Queue) -> Option<StatsTask>) -> Option<StatsTask> {
        let mut queue = self.lock();
        loop {
            if queue.over {
                return None;
            }
            if let Some(task) = find(&mut queue) {
                return Some(task);
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Speaks of a task, unless it was stopped: what was said of it then is the last word.
    fn speak(&self, running: &Running, say: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        if !running.is_stopped() {
            say(&mut queue);
        }
    }

    /// The thread that computes.
    fn compute(&self) {
        let find = |queue: &mut Queue| {
            let (tensor, patient) = match queue.wanted.take() {
                Some(tensor) => (tensor, false),
                None => (queue.later.pop_front()?, true),
            };
            let task = queue.start(tensor, patient);
            queue.computing = Some(task.0.clone());
            Some(task)
        };
        let work = |file: &FileModel, tensor, control: &mut Control<'_>| {
            compute(file, tensor, self.reference.as_deref(), control).map(Arc::new)
        };
        self.work(find, work, Queue::report_stats, |queue, tensor| {
            // Whoever waited for this tensor has it now.
            if queue.computing.take().is_some_and(|r| !r.patient) {
                queue.later.retain(|&t| t != tensor);
            }
        });
    }

    /// The thread that verifies.
    fn verify(&self) {
        let find = |queue: &mut Queue| {
            let tensor = queue.to_verify.pop_front()?;
            let task = queue.start(tensor, true);
            queue.verifying = Some(task.0.clone());
            Some(task)
        };
        self.work(find, verify, Queue::report_verdict, |queue, _| queue.verifying = None);
    }

    /// Does one task after the other, and says how far each is.
    fn work<T>(
        &self,
        mut find: impl FnMut(&mut Queue) -> Option<StatsTask>,
        work: impl Fn(&FileModel, usize, &mut Control<'_>) -> wcodec::Result<T>,
        report: fn(&Queue, usize, Fetch<T>),
        done: impl Fn(&mut Queue, usize),
    ) {
        while let Some((running, file)) = self.next(&mut find) {
            let tensor = running.tensor;
            let mut progress = every(PAUSE, |part| {
                self.speak(&running, |queue| report(queue, tensor, Fetch::Running(part)));
            });
            let found = match work(&file, tensor, &mut Control::new(&running.stop, &mut progress)) {
                Ok(found) => Fetch::Ready(found),
                Err(e) if e.kind() == ErrorKind::Cancelled => Fetch::Absent,
                Err(e) => Fetch::Failed(reason(&file, &e)),
            };
            self.speak(&running, |queue| {
                report(queue, tensor, found);
                done(queue, tensor);
            });
        }
    }
}

#[cfg(test)]
mod tests;
