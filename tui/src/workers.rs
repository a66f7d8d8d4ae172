//! Threads that do effects and report with actions.

pub mod encode;
pub mod files;
pub mod stats;
pub mod timing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use wcodec::{Cancel, Checkpoint};

use self::encode::Encoder;
use self::files::{Files, Watch};
use self::stats::StatsWorker;
use self::timing::TimingWorker;
use crate::action::{Action, Report};
use crate::effect::Effect;
use crate::model::FileModel;

/// Progress is told of no more often than this: each report is a new picture.
const PAUSE: Duration = Duration::from_millis(50);

/// Reports; whether somebody listens. A receiver that is gone has left the program.
fn tell(sender: &Sender<Action>, report: Report) -> bool {
    sender.send(Action::Report(report)).is_ok()
}

/// Passes the first call on, and later ones that come so much after the last.
fn every<T>(pause: Duration, mut tell: impl FnMut(T)) -> impl FnMut(T) {
    let mut last: Option<Instant> = None;
    move |part| {
        if last.is_none_or(|at| at.elapsed() >= pause) {
            last = Some(Instant::now());
            tell(part);
        }
    }
}

/// Starts a thread. Where none can be had, that is reported.
fn start<T: Send + 'static>(
    name: &str,
    sender: &Sender<Action>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|e| tell(sender, Report::Error(format!("{name}: {e}")))).ok()
}

/// Waits for the end of a thread, but no longer than that.
pub fn join_within(thread: JoinHandle<()>, patience: Duration) {
    let begin = Instant::now();
    while !thread.is_finished() && begin.elapsed() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    if thread.is_finished() {
        let _ = thread.join();
    }
}

/// Work on a thread of its own that can be cancelled, which ends it within half a second. Dropping this does, and waits for the end.
#[derive(Debug)]
struct Task {
    cancel: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    /// Starts it, as [`start`] does.
    fn start(name: &str, sender: &Sender<Action>, work: impl FnOnce(&Cancel) + Send + 'static) -> Option<Self> {
        let cancel = Cancel::new();
        let flag = cancel.clone();
        let thread = start(name, sender, move || work(&flag))?;
        Some(Self { cancel, thread: Some(thread) })
    }

    fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.thread.take().map(JoinHandle::join);
    }
}

/// All of them. Dropping it ends their threads.
#[derive(Debug)]
pub struct Workers {
    file: Arc<FileModel>,
    files: Files,
    encoder: Encoder,
    stats: StatsWorker,
    timing: TimingWorker,
    watch: Watch,
}

impl Workers {
    /// Workers on a file, and on the reference to compare its values with; they report to `sender`. nvCOMP is looked for in
    /// `nvcomp_folders`, too.
    pub fn new(
        file: Arc<FileModel>,
        reference: Option<Arc<Checkpoint>>,
        nvcomp_folders: &[PathBuf],
        sender: &Sender<Action>,
    ) -> Self {
        Self {
            files: Files::new(sender.clone()),
            encoder: Encoder::new(sender.clone()),
            stats: StatsWorker::new(file.clone(), reference, sender.clone()),
            timing: TimingWorker::new(file.clone(), nvcomp_folders.to_vec(), sender.clone()),
            watch: Watch::new(&file, sender.clone()),
            file,
        }
    }

    /// Goes on with another file, if it is another one: the one of this generation.
    pub fn follow(&mut self, file: &Arc<FileModel>, generation: u64) {
        if !Arc::ptr_eq(&self.file, file) {
            self.file = file.clone();
            self.stats.set_file(file.clone(), generation);
            self.timing.set_file(file.clone());
            self.watch.set_file(file);
        }
    }

    /// Does an effect on the file of this generation, or has it done; those on the terminal are not theirs.
    pub fn perform(&mut self, effect: Effect, generation: u64) {
        match effect {
            Effect::Stats(generation, effect) => self.stats.handle(generation, effect),
            Effect::Timing(effect) => self.timing.handle(effect),
            Effect::Estimate => self.encoder.estimate(self.file.clone(), generation),
            Effect::Encode { out, scheme } => self.encoder.encode(self.file.clone(), out, scheme),
            Effect::CancelEncode => self.encoder.cancel(),
            Effect::Reload => {
                let trusted = self.file.container().is_ok_and(wcodec::Container::trusted);
                self.files.reload(self.file.path.clone(), trusted);
            }
            Effect::Export { path, text } => self.files.export(path, text),
            Effect::Quit(_) | Effect::Copy(_) | Effect::Redraw => {}
        }
    }
}
