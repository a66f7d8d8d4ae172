//! Looks whether the file on disk is still the one that was read.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::tell;
use crate::action::{Action, Report};
use crate::model::{FileModel, Stamp};

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
