//! Reads the file again, and writes new ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use wcodec::text::safe_path;
use wcodec::{OutputFile, OutputKind};

use super::{start, tell};
use crate::action::{Action, Report};
use crate::model::{FileModel, Original};

/// Names that are tried before an export gives up.
const MOST_NAMES: usize = 1000;

/// Does what is short and touches files, each on a thread of its own that ends with it.
#[derive(Debug)]
pub struct Files {
    sender: Sender<Action>,
    reading: Arc<AtomicBool>,
}

impl Files {
    /// Reports go to `sender`.
    pub fn new(sender: Sender<Action>) -> Self {
        Self { sender, reading: Arc::default() }
    }

    /// Reads a file, which is trusted or not, unless that is being done.
    pub fn reload(&self, path: PathBuf, trusted: bool) {
        if self.reading.swap(true, Ordering::SeqCst) {
            return;
        }
        let reading = self.reading.clone();
        self.work("reload", move || {
            // A container that was cut off meanwhile is no reason to forget what was read before.
            let open = if Original::is_one(&path) { FileModel::open_any } else { FileModel::open_with };
            let read = open(&path, trusted).map(Arc::new).map_err(|e| e.to_string());
            reading.store(false, Ordering::SeqCst);
            Report::Reloaded(read)
        });
    }

    /// Writes a text to a new file, under this name or, if that is taken, one like it.
    pub fn export(&self, path: PathBuf, text: String) {
        self.work("export", move || match write_new(&path, text.as_bytes()) {
            Ok(written) => Report::Message(format!("written to {}", safe_path(&written))),
            Err(why) => Report::Error(why),
        });
    }

    fn work(&self, name: &str, job: impl FnOnce() -> Report + Send + 'static) {
        let sender = self.sender.clone();
        if start(name, &self.sender, move || tell(&sender, job())).is_none() {
            self.reading.store(false, Ordering::SeqCst);
        }
    }
}

/// Writes a file that is there as a whole or not at all, never over another one: `a.json`, else `a-1.json` and so on. Says where.
///
/// # Errors
/// The folder cannot be written to, or every name is taken.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    for n in 0..MOST_NAMES {
        let name = numbered(path, n);
        let written = OutputFile::create(&name, OutputKind::Other, &[], false).and_then(|out| {
            out.write_all(bytes)?;
            out.finish()
        });
        match written {
            Ok(()) => return Ok(name),
            // Taken, if only since a moment ago.
            Err(_) if name.symlink_metadata().is_ok() => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Err(format!("{}: this name and all like it are taken", safe_path(path)))
}

/// `a.timing-2.json` for `a.timing.json` and 2.
fn numbered(path: &Path, n: usize) -> PathBuf {
    if n == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{n}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}
