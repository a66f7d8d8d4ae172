//! The thread that decodes again and again and says how long it takes.
//!
//! [`timing`](crate::timing) says what is timed.

mod decoders;
mod tally;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::decoders::{CpuDecoder, Decoder, GpuTimer, Refusal};
use self::tally::Tally;
use super::{PAUSE, tell};
use crate::action::{Action, Report};
use crate::model::FileModel;
use crate::timing::{Gpu, Lane, TimingEffect, TimingReport};

/// Time between two measurements of the copy to a device.
const BETWEEN_COPIES: Duration = Duration::from_secs(1);
/// The time that dropping a worker waits for its thread, which ends when the tensor that it decodes is done.
const PATIENCE: Duration = Duration::from_secs(1);

/// Decodes on a thread of its own. Nothing here waits for that, but dropping: a second at most.
#[derive(Debug)]
pub struct TimingWorker {
    orders: Option<Sender<Order>>,
    ended: Mutex<Receiver<()>>,
    /// The last order's number: work for another one ends.
    latest: Arc<AtomicU64>,
    sender: Sender<Action>,
}

/// An order to the thread.
enum Order {
    File(Arc<FileModel>),
    Start { number: u64, run: u64, lane: Lane, tensors: Arc<[usize]> },
}

impl TimingWorker {
    /// A worker for a file, which does nothing yet. Reports go to `sender`. nvCOMP is looked for in `nvcomp_folders`, too.
    pub fn new(file: Arc<FileModel>, nvcomp_folders: Vec<PathBuf>, sender: Sender<Action>) -> Self {
        let (orders, received) = mpsc::channel();
        let (alive, ended) = mpsc::channel::<()>();
        let latest = Arc::new(AtomicU64::new(0));
        let (to, last) = (sender.clone(), latest.clone());
        let engine = Engine { file, nvcomp_folders, sender: to, latest: last, sound: Vec::new() };
        let spawned = thread::Builder::new().name("timing".into()).spawn(move || {
            // Dropped when the thread ends, however it does.
            let _alive = alive;
            engine.serve(&received);
        });
        if let Err(e) = spawned {
            tell(&sender, Report::Error(format!("cannot start the thread for timings: {e}")));
        }
        Self { orders: Some(orders), ended: Mutex::new(ended), latest, sender }
    }

    /// Does what the state asks for, or begins to.
    pub fn handle(&self, effect: TimingEffect) {
        match effect {
            TimingEffect::Probe => probe(&self.sender),
            TimingEffect::Stop => drop(self.next()),
            TimingEffect::Start { run, lane, tensors } => {
                let number = self.next();
                if !self.order(Order::Start { number, run, lane, tensors }) {
                    let why = "the thread for timings ended".to_owned();
                    tell(&self.sender, Report::Timing(TimingReport::Failed { run, lane, why }));
                }
            }
        }
    }

    /// Stops, and decodes another file from now on.
    pub fn set_file(&self, file: Arc<FileModel>) {
        self.next();
        self.order(Order::File(file));
    }

    /// Ends what is going on; the number of what comes now.
    fn next(&self) -> u64 {
        self.latest.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn order(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }
}

impl Drop for TimingWorker {
    fn drop(&mut self) {
        self.next();
        self.orders.take();
        // Until then, so that no thread uses a GPU while the process ends.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(PATIENCE).ok();
    }
}

/// Looks for devices on a thread of its own: a GPU's driver may take seconds to start.
fn probe(sender: &Sender<Action>) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    tell(sender, Report::Timing(TimingReport::Cores(cores)));
    let to = sender.clone();
    let look = move || {
        let gpu = |info: wcodec::gpu::DeviceInfo| Gpu {
            refused: info.supported().err().map(|e| e.to_string()),
            ordinal: info.ordinal,
            name: info.name,
        };
        let found = wcodec::gpu::device_infos().map(|infos| infos.into_iter().map(gpu).collect());
        tell(&to, Report::Timing(TimingReport::Gpus(found.map_err(|e| e.to_string()))));
    };
    if let Err(e) = thread::Builder::new().name("devices".into()).spawn(look) {
        tell(sender, Report::Timing(TimingReport::Gpus(Err(format!("cannot start a thread to look for GPUs: {e}")))));
    }
}

/// All that the thread works with.
struct Engine {
    file: Arc<FileModel>,
    nvcomp_folders: Vec<PathBuf>,
    sender: Sender<Action>,
    latest: Arc<AtomicU64>,
    /// Which of the file's tensors were compared with their hashes.
    sound: Vec<bool>,
}

/// A run that is under way.
struct Run<'a> {
    engine: &'a mut Engine,
    number: u64,
    run: u64,
    lane: Lane,
    tally: Tally,
    reported: Option<Instant>,
}

impl Engine {
    fn serve(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::File(file) => {
                    self.file = file;
                    self.sound.clear();
                }
                Order::Start { number, run, lane, tensors } => {
                    let sizes = |i: &usize| self.file.tensors.get(*i).map(|t| (*i, t.original_bytes));
                    let tally = Tally::new(tensors.iter().filter_map(sizes));
                    self.sound.resize(self.file.tensors.len(), false);
                    let mut run = Run { engine: &mut self, number, run, lane, tally, reported: None };
                    if let Err(why) = run.go() {
                        let (run, lane) = (run.run, run.lane);
                        tell(&self.sender, Report::Timing(TimingReport::Failed { run, lane, why }));
                    }
                }
            }
        }
    }
}

impl Run<'_> {
    /// Decodes until somebody wants it to end, or nothing is left that can be decoded.
    fn go(&mut self) -> Result<(), String> {
        let file = self.engine.file.clone();
        match self.lane {
            Lane::Cpu(threads) => {
                self.verify(threads);
                let places = self.tally.places();
                let made = CpuDecoder::new(&file, places, threads);
                self.rounds(&mut made.ok_or_else(|| self.tally.reason())?)
            }
            Lane::Gpu(ordinal) => {
                while !self.stopped() {
                    let places = self.tally.places();
                    if places.is_empty() {
                        return Err(self.tally.reason());
                    }
                    self.report(true);
                    match GpuTimer::new(&file, &places, ordinal, &self.engine.nvcomp_folders) {
                        Ok(mut timer) => {
                            (0..places.len()).for_each(|slot| self.tally.set_bytes(slot, timer.output_bytes(slot)));
                            return self.rounds(&mut timer);
                        }
                        // A tensor that cannot be decoded there is left out; the rest is tried again.
                        Err(Refusal::Tensors(slots)) => self.tally.leave_out(slots),
                        Err(Refusal::Device(why)) => return Err(why),
                    }
                }
                Ok(())
            }
        }
    }

    fn stopped(&self) -> bool {
        self.engine.latest.load(Ordering::Relaxed) != self.number
    }

    /// Decodes every tensor once with its hashes compared, unless that was done. Those that are damaged are left out.
    fn verify(&mut self, threads: usize) {
        let mut damaged = Vec::new();
        for (slot, place) in self.tally.places().into_iter().enumerate() {
            if self.stopped() {
                return;
            }
            let sound = self.engine.sound.get(place).copied().unwrap_or(false);
            match if sound { Ok(()) } else { decoders::verify(&self.engine.file, place, threads) } {
                Ok(()) => {
                    if let Some(sound) = self.engine.sound.get_mut(place) {
                        *sound = true;
                    }
                }
                Err(why) => damaged.push((slot, why.into())),
            }
            self.tally.verified(slot + 1);
            self.report(false);
        }
        self.tally.leave_out(damaged);
    }

    /// Goes round until somebody wants it to end.
    fn rounds(&mut self, decoder: &mut dyn Decoder) -> Result<(), String> {
        let (count, group) = (self.tally.len(), decoder.group().max(1));
        let mut ms = Vec::with_capacity(group);
        let mut copied: Option<Instant> = None;
        // Work that is done but once, such as starting threads and loading kernels, is not part of a round.
        decoder.decode(0..group.min(count), &mut ms)?;
        self.tally.begin();
        loop {
            for begin in (0..count).step_by(group) {
                if self.stopped() {
                    return Ok(());
                }
                ms.clear();
                decoder.decode(begin..(begin + group).min(count), &mut ms)?;
                ms.iter().enumerate().for_each(|(i, &ms)| self.tally.add(begin + i, ms));
                self.report(false);
            }
            self.tally.end_round();
            if copied.is_none_or(|t| t.elapsed() >= BETWEEN_COPIES) {
                if let Some(speed) = decoder.copy() {
                    self.tally.copied(speed);
                }
                copied = Some(Instant::now());
            }
            self.report(false);
        }
    }

    /// Says how far it is, unless that was just done.
    fn report(&mut self, now: bool) {
        if !now && self.reported.is_some_and(|t| t.elapsed() < PAUSE) {
            return;
        }
        // A run that was stopped meanwhile has nothing to say.
        if self.stopped() {
            return;
        }
        self.reported = Some(Instant::now());
        let progress = self.tally.progress();
        let report = TimingReport::Progress { run: self.run, lane: self.lane, progress };
        if !tell(&self.engine.sender, Report::Timing(report)) {
            // The receiver is gone.
            self.engine.latest.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
