//! Samples of a checkpoint, and its encoding, each on a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use wcodec::{Cancel, Code, EncodeOptions, ErrorKind, Scheme, encode};

use crate::action::{Action, Report};
use crate::encode::Progress;
use crate::estimate::estimate;
use crate::model::FileModel;
use crate::stats::Fetch;

/// Progress is told of no more often than this.
const PAUSE: Duration = Duration::from_millis(50);

/// Both threads. Dropping it cancels what they do and waits for them, so that no unfinished file is left.
#[derive(Debug)]
pub struct Encoder {
    sender: Sender<Action>,
    sampling: Option<(Cancel, JoinHandle<()>)>,
    encoding: Option<(Cancel, JoinHandle<()>)>,
}

impl Encoder {
    /// Reports go to `sender`.
    pub fn new(sender: Sender<Action>) -> Self {
        Self { sender, sampling: None, encoding: None }
    }

    /// Finds out what encoding would give, instead of what is being found out.
    pub fn estimate(&mut self, file: Arc<FileModel>, generation: u64) {
        stop(self.sampling.take());
        let (cancel, sender) = (Cancel::new(), self.sender.clone());
        let flag = cancel.clone();
        let work = move || {
            let mut last = Instant::now();
            let tell = sender.clone();
            let found = estimate(&file, &flag, &mut |part| {
                if last.elapsed() >= PAUSE {
                    last = Instant::now();
                    report(&tell, Report::Estimate { generation, found: Fetch::Running(part) });
                }
            });
            let found = match found {
                Ok(found) => Fetch::Ready(Arc::new(found)),
                Err(e) if e.kind() == ErrorKind::Cancelled => return,
                Err(e) => Fetch::Failed(e.to_string()),
            };
            report(&sender, Report::Estimate { generation, found });
        };
        self.sampling = self.start("samples", work).map(|thread| (cancel, thread));
    }

    /// Encodes a checkpoint to a file that is not there yet, unless one is being encoded.
    pub fn encode(&mut self, file: Arc<FileModel>, out: PathBuf, scheme: Scheme) {
        if self.encoding.as_ref().is_some_and(|(_, thread)| !thread.is_finished()) {
            return;
        }
        let (cancel, sender) = (Cancel::new(), self.sender.clone());
        let options = EncodeOptions { scheme, cancel: cancel.clone(), ..EncodeOptions::default() };
        let work = move || {
            let mut last: Option<Instant> = None;
            let tell = sender.clone();
            let done = file.original().map_or_else(
                || Err(Code::ENCODED_OR_NOT.error("it is encoded already").advice("name a checkpoint")),
                |o| o.checkpoint(),
            );
            let done = done.and_then(|checkpoint| {
                encode(checkpoint, &out, &options, &mut |e| {
                    if last.is_none_or(|t| t.elapsed() >= PAUSE) {
                        last = Some(Instant::now());
                        let progress = Progress { tensor: e.tensor.to_owned(), done: e.done, total: e.total };
                        report(&tell, Report::Encoding(progress));
                    }
                    options.cancel.check()
                })
            });
            let bytes = || std::fs::metadata(&out).map_or(0, |m| m.len());
            report(
                &sender,
                Report::Encoded { done: done.map(|_| bytes()).map_err(|e| (e.kind(), e.to_string())), out },
            );
        };
        self.encoding = self.start("encode", work).map(|thread| (cancel, thread));
    }

    /// Gives the encoding up.
    pub fn cancel(&self) {
        if let Some((cancel, _)) = &self.encoding {
            cancel.cancel();
        }
    }

    fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
        match thread::Builder::new().name(name.to_owned()).spawn(work) {
            Ok(thread) => Some(thread),
            Err(e) => {
                report(&self.sender, Report::Error(format!("{name}: {e}")));
                None
            }
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        stop(self.sampling.take());
        stop(self.encoding.take());
    }
}

/// Ends a thread, which is within half a second.
fn stop(running: Option<(Cancel, JoinHandle<()>)>) {
    if let Some((cancel, thread)) = running {
        cancel.cancel();
        let _ = thread.join();
    }
}

/// A receiver that is gone has left the program.
fn report(sender: &Sender<Action>, report: Report) {
    let _ = sender.send(Action::Report(report));
}
