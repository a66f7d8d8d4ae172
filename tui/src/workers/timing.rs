//! The thread that decodes again and again and says how long it takes.
//!
//! [`timing`](crate::timing) says what is timed.

mod decoders;
mod tally;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use wcodec::Cancel;

use self::decoders::{CpuDecoder, Decoder, GpuTimer, Refusal};
use self::tally::Tally;
use super::{PAUSE, join_within, tell};
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
    file: Arc<FileModel>,
    /// Which of its tensors were compared with their hashes.
    sound: Arc<[AtomicBool]>,
    nvcomp_folders: Vec<PathBuf>,
    sender: Sender<Action>,
    /// The run that began last.
    last: Option<(Cancel, JoinHandle<()>)>,
}

impl TimingWorker {
    /// A worker for a file, which does nothing yet. Reports go to `sender`. nvCOMP is looked for in `nvcomp_folders`, too.
    pub fn new(file: Arc<FileModel>, nvcomp_folders: Vec<PathBuf>, sender: Sender<Action>) -> Self {
        Self { sound: none_sound(&file), file, nvcomp_folders, sender, last: None }
    }

    /// Does what the state asks for, or begins to.
    pub fn handle(&mut self, effect: TimingEffect) {
        match effect {
            TimingEffect::Probe => probe(&self.sender),
            TimingEffect::Stop => self.stop(),
            TimingEffect::Start { run, lane, tensors } => self.start(run, lane, &tensors),
        }
    }

    /// Stops, and decodes another file from now on.
    pub fn set_file(&mut self, file: Arc<FileModel>) {
        self.stop();
        (self.sound, self.file) = (none_sound(&file), file);
    }

    fn stop(&self) {
        self.last.iter().for_each(|(cancel, _)| cancel.cancel());
    }

    /// Begins a run, as soon as the one before has ended.
    fn start(&mut self, number: u64, lane: Lane, tensors: &[usize]) {
        self.stop();
        let (before, cancel) = (self.last.take(), Cancel::new());
        let sizes = |i: &usize| self.file.tensors.get(*i).map(|t| (*i, t.original_bytes));
        let mut run = Run {
            file: self.file.clone(),
            sound: self.sound.clone(),
            nvcomp_folders: self.nvcomp_folders.clone(),
            sender: self.sender.clone(),
            cancel: cancel.clone(),
            number,
            lane,
            tally: Tally::new(tensors.iter().filter_map(sizes)),
            reported: None,
        };
        let sender = self.sender.clone();
        let failed = move |why| {
            tell(&sender, Report::Timing(TimingReport::Run { run: number, lane, found: Err(why) }));
        };
        let report = failed.clone();
        let started = thread::Builder::new().name("timing".to_owned()).spawn(move || {
            before.map(|(_, thread)| thread.join());
            run.go().unwrap_or_else(report);
        });
        match started {
            Ok(thread) => self.last = Some((cancel, thread)),
            Err(e) => failed(format!("cannot start the thread for timings: {e}")),
        }
    }
}

impl Drop for TimingWorker {
    fn drop(&mut self) {
        self.stop();
        // Until then, so that no thread uses a GPU while the process ends.
        self.last.take().into_iter().for_each(|(_, thread)| join_within(thread, PATIENCE));
    }
}

fn none_sound(file: &FileModel) -> Arc<[AtomicBool]> {
    file.tensors.iter().map(|_| AtomicBool::new(false)).collect()
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

/// A run that is under way.
struct Run {
    file: Arc<FileModel>,
    sound: Arc<[AtomicBool]>,
    nvcomp_folders: Vec<PathBuf>,
    sender: Sender<Action>,
    cancel: Cancel,
    number: u64,
    lane: Lane,
    tally: Tally,
    reported: Option<Instant>,
}

impl Run {
    /// Decodes until somebody wants it to end, or nothing is left that can be decoded.
    fn go(&mut self) -> Result<(), String> {
        let file = self.file.clone();
        match self.lane {
            Lane::Cpu(threads) => {
                self.verify(threads);
                let made = CpuDecoder::new(&file, self.tally.places(), threads);
                self.rounds(&mut made.ok_or_else(|| self.tally.reason())?)
            }
            Lane::Gpu(ordinal) => {
                while !self.cancel.is_cancelled() {
                    let places = self.tally.places();
                    if places.is_empty() {
                        return Err(self.tally.reason());
                    }
                    self.report(true);
                    match GpuTimer::new(&file, &places, ordinal, &self.nvcomp_folders) {
                        Ok(mut timer) => {
                            let layers = self.tally.layers.iter_mut().enumerate();
                            layers.for_each(|(slot, layer)| layer.bytes = timer.output_bytes(slot));
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

    /// Decodes every tensor once with its hashes compared, unless that was done. Those that are damaged are left out.
    fn verify(&mut self, threads: usize) {
        let mut damaged = Vec::new();
        for (slot, place) in self.tally.places().into_iter().enumerate() {
            if self.cancel.is_cancelled() {
                return;
            }
            if !self.sound[place].load(Ordering::Relaxed) {
                match decoders::verify(&self.file, place, threads) {
                    Ok(()) => self.sound[place].store(true, Ordering::Relaxed),
                    Err(why) => damaged.push((slot, why.into())),
                }
            }
            self.tally.next.done.0 = slot + 1;
            self.report(false);
        }
        self.tally.leave_out(damaged);
    }

    /// Goes round until somebody wants it to end.
    fn rounds<D: Decoder>(&mut self, decoder: &mut D) -> Result<(), String> {
        let (count, group) = (self.tally.layers.len(), D::GROUP);
        let mut ms = Vec::with_capacity(group);
        let mut copied: Option<Instant> = None;
        // Work that is done but once, such as starting threads and loading kernels, is not part of a round.
        decoder.decode(0..group.min(count), &mut ms)?;
        self.tally.begin();
        loop {
            for begin in (0..count).step_by(group) {
                if self.cancel.is_cancelled() {
                    return Ok(());
                }
                ms.clear();
                decoder.decode(begin..(begin + group).min(count), &mut ms)?;
                ms.iter().enumerate().for_each(|(i, &ms)| self.tally.add(begin + i, ms));
                self.report(false);
            }
            self.tally.end_round();
            if copied.is_none_or(|t| t.elapsed() >= BETWEEN_COPIES) {
                self.tally.next.copy_gb_per_s = decoder.copy().or(self.tally.next.copy_gb_per_s);
                copied = Some(Instant::now());
            }
            self.report(false);
        }
    }

    /// Says how far it is, unless that was just done.
    fn report(&mut self, now: bool) {
        // A run that was stopped meanwhile has nothing to say.
        if self.cancel.is_cancelled() || !now && self.reported.is_some_and(|t| t.elapsed() < PAUSE) {
            return;
        }
        self.reported = Some(Instant::now());
        let progress = self.tally.progress();
        let report = TimingReport::Run { run: self.number, lane: self.lane, found: Ok(progress) };
        if !tell(&self.sender, Report::Timing(report)) {
            // The receiver is gone.
            self.cancel.cancel();
        }
    }
}
