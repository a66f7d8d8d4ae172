//! Threads that do effects and report with actions.

pub mod encode;
pub mod files;
pub mod stats;
pub mod timing;
pub mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use wcodec::{Checkpoint, Scheme};

use self::encode::Encoder;
use self::files::Files;
use self::stats::StatsWorker;
use self::timing::TimingWorker;
use self::watch::Watch;
use crate::action::Action;
use crate::model::FileModel;
use crate::stats::StatsEffect;
use crate::timing::TimingEffect;

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

    /// Statistics, verdicts.
    pub fn stats(&self, effect: StatsEffect) {
        self.stats.handle(effect);
    }

    /// Timings.
    pub fn timing(&self, effect: TimingEffect) {
        self.timing.handle(effect);
    }

    /// Samples a checkpoint.
    pub fn estimate(&mut self, generation: u64) {
        self.encoder.estimate(self.file.clone(), generation);
    }

    /// Encodes a checkpoint.
    pub fn encode(&mut self, out: PathBuf, scheme: Scheme) {
        self.encoder.encode(self.file.clone(), out, scheme);
    }

    /// Gives that up.
    pub fn cancel_encode(&self) {
        self.encoder.cancel();
    }

    /// Reads the file again.
    pub fn reload(&self) {
        self.files.reload(self.file.path.clone(), self.file.container().is_ok_and(wcodec::Container::trusted));
    }

    /// Writes a new file.
    pub fn export(&self, path: PathBuf, text: String) {
        self.files.export(path, text);
    }
}
