//! `--log`: what happens, with times, for those who look for a fault.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use wcodec::text::safe_path;

use crate::action::{Action, Report};
use crate::effect::Effect;
use crate::stats::{Fetch, Found, StatsEffect, StatsReport};
use crate::timing::{TimingEffect, TimingReport};

/// Writes lines with seconds since the start; does nothing where no file was asked for.
#[derive(Debug)]
pub struct Log {
    file: Option<File>,
    start: Instant,
}

impl Log {
    /// Appends to a file.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|p| OpenOptions::new().create(true).append(true).open(p)).transpose()?;
        Ok(Self { file, start: Instant::now() })
    }

    /// Writes a line. A full disk ends the log, not the program.
    pub fn line(&mut self, what: impl fmt::Display) {
        if let Some(file) = &mut self.file {
            let seconds = self.start.elapsed().as_secs_f64();
            if file.write_all(format!("{seconds:10.3} {what}\n").as_bytes()).is_err() {
                self.file = None;
            }
        }
    }

    /// Writes what happened, but for what comes many times a second.
    pub fn action(&mut self, action: &Action) {
        match action {
            Action::Tick => {}
            Action::Report(Report::Encoding(_) | Report::Timing(TimingReport::Run { found: Ok(_), .. })) => {}
            Action::Key(key) => self.line(format_args!("key {:?} {:?}", key.code, key.modifiers)),
            Action::Paste(text) => self.line(format_args!("paste of {} bytes", text.len())),
            Action::Mouse(_) | Action::Resize(..) => self.line(format_args!("{action:?}")),
            Action::Report(report) => match report {
                Report::Stats(StatsReport { tensor, found, .. }) => match found {
                    Found::Stats(stats) => self.line(format_args!("tensor {tensor}: statistics {}", stage(stats))),
                    Found::Verdict(Fetch::Ready(verdict)) => self.line(format_args!("tensor {tensor}: {verdict:?}")),
                    Found::Verdict(other) => self.line(format_args!("tensor {tensor}: verdict {}", stage(other))),
                },
                Report::Estimate { found, .. } => self.line(format_args!("estimates {}", stage(found))),
                Report::Encoded { out, done } => self.line(format_args!("{}: {done:?}", safe_path(out))),
                Report::Timing(report) => self.line(format_args!("{report:?}")),
                Report::Reloaded(Ok(file)) => {
                    self.line(format_args!("{} was read, {} tensors", safe_path(&file.path), file.tensors.len()));
                }
                Report::Reloaded(Err(text)) | Report::Error(text) => self.line(format_args!("error: {text}")),
                other => self.line(format_args!("{other:?}")),
            },
        }
    }

    /// Writes what is about to be done.
    pub fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Export { path, text } => {
                self.line(format_args!("export of {} bytes to {}", text.len(), safe_path(path)));
            }
            Effect::Stats(_, StatsEffect::Entropies(tensors)) => {
                self.line(format_args!("entropies of {} tensors", tensors.len()));
            }
            Effect::Stats(_, StatsEffect::Verify(tensors)) => {
                self.line(format_args!("verify {} tensors", tensors.len()));
            }
            Effect::Timing(TimingEffect::Start { run, lane, tensors }) => {
                self.line(format_args!("timing {run}: {lane}, {} tensors", tensors.len()));
            }
            _ => self.line(format_args!("{effect:?}")),
        }
    }
}

/// The progress of something, without its result.
fn stage<T>(of: &Fetch<T>) -> String {
    match of {
        Fetch::Absent => "absent".to_owned(),
        Fetch::Running(part) => format!("{:.0} %", 100.0 * part),
        Fetch::Ready(_) => "ready".to_owned(),
        Fetch::Failed(why) => format!("failed: {why}"),
    }
}
