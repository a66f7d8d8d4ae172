//! Samples of a checkpoint, and its encoding, each on a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use wcodec::{Code, EncodeOptions, ErrorKind, Scheme, encode};

use super::{PAUSE, Task, every, tell};
use crate::action::{Action, Report};
use crate::encode::Progress;
use crate::estimate::estimate;
use crate::model::FileModel;
use crate::stats::Fetch;

/// Both threads. Dropping it cancels what they do and waits for them, so that no unfinished file is left.
#[derive(Debug)]
pub struct Encoder {
    sender: Sender<Action>,
    sampling: Option<Task>,
    encoding: Option<Task>,
}

impl Encoder {
    /// Reports go to `sender`.
    pub fn new(sender: Sender<Action>) -> Self {
        Self { sender, sampling: None, encoding: None }
    }

    /// Finds out what encoding would give, instead of what is being found out.
    pub fn estimate(&mut self, file: Arc<FileModel>, generation: u64) {
        self.sampling = None;
        let sender = self.sender.clone();
        self.sampling = Task::start("samples", &self.sender, move |cancel| {
            let report = |found| {
                tell(&sender, Report::Estimate { generation, found });
            };
            match estimate(&file, cancel, &mut every(PAUSE, |part| report(Fetch::Running(part)))) {
                Ok(found) => report(Fetch::Ready(Arc::new(found))),
                Err(e) if e.kind() == ErrorKind::Cancelled => {}
                Err(e) => report(Fetch::Failed(e.to_string())),
            }
        });
    }

    /// Encodes a checkpoint to a file that is not there yet, unless one is being encoded.
    pub fn encode(&mut self, file: Arc<FileModel>, out: PathBuf, scheme: Scheme) {
        if self.encoding.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let sender = self.sender.clone();
        self.encoding = Task::start("encode", &self.sender, move |cancel| {
            let options = EncodeOptions { scheme, cancel: cancel.clone(), ..EncodeOptions::default() };
            let mut progress = every(PAUSE, |progress| {
                tell(&sender, Report::Encoding(progress));
            });
            let checkpoint = match file.original() {
                Some(original) => original.checkpoint(),
                None => Err(Code::ENCODED_OR_NOT.error("it is encoded already").advice("name a checkpoint")),
            };
            let done = checkpoint.and_then(|checkpoint| {
                encode(checkpoint, &out, &options, &mut |e| {
                    progress(Progress { tensor: e.tensor.to_owned(), done: e.done, total: e.total });
                    cancel.check()
                })
            });
            let done = match done {
                Ok(_) => Ok(std::fs::metadata(&out).map_or(0, |m| m.len())),
                Err(e) => Err((e.kind(), e.to_string())),
            };
            tell(&sender, Report::Encoded { out, done });
        });
    }

    /// Gives the encoding up.
    pub fn cancel(&self) {
        self.encoding.iter().for_each(|task| task.cancel.cancel());
    }
}
