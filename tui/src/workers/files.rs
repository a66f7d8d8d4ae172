//! Reads the file again, writes new ones, and looks whether the file on disk is still the one that was read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use wcodec::text::safe_path;
use wcodec::{OutputFile, OutputKind};

use super::{start, tell};
use crate::action::{Action, Report};
use crate::model::{FileModel, Original, Stamp};

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

/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports once for each change of the file. Dropping it ends its thread.
#[derive(Debug)]
pub struct Watch {
    files: Option<Sender<(PathBuf, Stamp)>>,
}

impl Watch {
    /// Watches a file; reports go to `sender`. Where no thread can be had, nothing is watched: `r` reads the file all the same.
    pub fn new(file: &FileModel, sender: Sender<Action>) -> Self {
        let (files, receiver) = channel();
        let seen = (file.path.clone(), file.stamp);
        let thread = thread::Builder::new().name("watch".to_owned());
        let started = thread.spawn(move || watch(seen, &receiver, &sender, INTERVAL));
        Self { files: started.is_ok().then_some(files) }
    }

    /// Watches another file, or the same one that was read again.
    pub fn set_file(&self, file: &FileModel) {
        if let Some(files) = &self.files {
            // If the thread is gone, so is its receiver.
            let _ = files.send((file.path.clone(), file.stamp));
        }
    }
}

fn watch(mut seen: (PathBuf, Stamp), files: &Receiver<(PathBuf, Stamp)>, sender: &Sender<Action>, interval: Duration) {
    loop {
        match files.recv_timeout(interval) {
            Ok(file) => seen = file,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let now = Stamp::of(&seen.0);
                if now != seen.1 {
                    seen.1 = now;
                    if !tell(sender, Report::FileChanged) {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "1").unwrap();
        let (files, receiver) = channel();
        let (sender, reports) = channel();
        let seen = (path.clone(), Stamp::of(&path));
        let thread = thread::spawn(move || watch(seen, &receiver, &sender, Duration::from_millis(5)));
        let long = Duration::from_millis(200);
        assert!(reports.recv_timeout(long).is_err());
        for change in ["12", "123", ""] {
            std::fs::write(&path, change).unwrap();
            assert!(matches!(reports.recv_timeout(10 * long), Ok(Action::Report(Report::FileChanged))));
            // The file is emptied before it is written, which may be seen as a change of its own.
            while reports.recv_timeout(long).is_ok() {}
        }
        std::fs::remove_file(&path).unwrap();
        assert!(reports.recv_timeout(10 * long).is_ok());
        assert!(reports.recv_timeout(long).is_err());
        files.send((path.clone(), Stamp::of(&path))).unwrap();
        assert!(reports.recv_timeout(long).is_err());
        drop(files);
        thread.join().unwrap();
    }
}
