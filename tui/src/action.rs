//! Events of the inspector: keys, sizes, time, and reports of workers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crossterm::event::{KeyEvent, MouseEvent};

use wcodec::ErrorKind;

use crate::encode::Progress;
use crate::estimate::Would;
use crate::model::FileModel;
use crate::stats::{Fetch, StatsReport};
use crate::timing::TimingReport;

/// One thing that happened.
#[derive(Debug)]
pub enum Action {
    /// A key was pressed.
    Key(KeyEvent),
    /// The mouse was used, if it is captured.
    Mouse(MouseEvent),
    /// Text was pasted.
    Paste(String),
    /// The terminal has so many columns and rows.
    Resize(u16, u16),
    /// Time passed: a quarter of a second, about.
    Tick,
    /// A worker has something to say.
    Report(Report),
}

/// A report of a worker.
#[derive(Debug)]
pub enum Report {
    /// Statistics of a tensor, a verdict on it, or how far they are.
    Stats(StatsReport),
    /// Timings, or why there are none.
    Timing(TimingReport),
    /// The file changed on disk.
    FileChanged,
    /// The file was read again: the new one, or why it could not be read.
    Reloaded(Result<Arc<FileModel>, String>),
    /// Estimates of the tensors of a checkpoint, encoded, or their progress.
    Estimate {
        /// The file that is meant.
        generation: u64,
        /// The estimates, by the places of tensors.
        found: Fetch<Arc<HashMap<usize, Would>>>,
    },
    /// The progress of an encoding.
    Encoding(Progress),
    /// An encoding ended.
    Encoded {
        /// The file that was to be written.
        out: PathBuf,
        /// Its bytes, or why it was not written.
        done: Result<u64, (ErrorKind, String)>,
    },
    /// Something to tell the user, such as where a file was written.
    Message(String),
    /// Something that went wrong.
    Error(String),
}
