//! Temporary files: locked by who writes them, removed by the next writer where nobody has them locked any more.
//!
//! A process that is killed leaves its temporary file behind, and its lock goes with it. So whoever gets the lock of such a file knows
//! that nobody writes to it. Two races are left. A file that was just created may be found before it is locked: its writer then sees
//! that its name is gone, and takes another one. And what was locked may not be what has the name now: a remover looks again.
//!
//! On file systems without locks nothing is removed. On those of a network that lock for one machine only, machines should not
//! write to one folder at the same time.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::Result;
use std::path::Path;

use tempfile::NamedTempFile;

const PREFIX: &str = ".wcodec-";
const SUFFIX: &str = ".part";
/// Letters and digits between them.
const RANDOM: usize = 6;
/// How often a name is taken anew.
const ATTEMPTS: usize = 16;

/// A new file in `folder`, locked, after a look for those that others left there. It is removed when it is dropped.
pub(super) fn create(folder: &Path) -> Result<NamedTempFile> {
    sweep(folder);
    let mut made = make(folder)?;
    for _ in 1..ATTEMPTS {
        if claim(made.as_file(), made.path()) {
            break;
        }
        made = make(folder)?;
    }
    // Where a file system gives a file another number at each look, removers do not know it again either.
    Ok(made)
}

fn make(folder: &Path) -> Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
    // Opened here: the process's umask decides who may read it, and errors do not name a file that nobody knows.
    builder.make_in(folder, |part| File::options().read(true).write(true).create_new(true).open(part))
}

/// Locks a file that was just created; false if a remover was faster.
fn claim(file: &File, name: &Path) -> bool {
    match file.try_lock() {
        Ok(()) => is_at(file, name),
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

/// Removes the temporary files of a folder that nobody has locked. What cannot be removed stays: it is in nobody's way.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(&entry.file_name()) {
            remove_abandoned(&entry.path());
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let middle = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    middle.is_some_and(|m| m.len() == RANDOM && m.bytes().all(|b| b.is_ascii_alphanumeric()))
}

fn remove_abandoned(name: &Path) {
    // Asked before opening, which would wait for a writer if this were a pipe.
    if !std::fs::symlink_metadata(name).is_ok_and(|m| m.is_file()) {
        return;
    }
    // For writing, too: some file systems of networks lock nothing else.
    if let Ok(file) = File::options().read(true).write(true).open(name)
        && file.try_lock().is_ok()
        && is_at(&file, name)
    {
        std::fs::remove_file(name).ok();
    }
}

/// Whether an open file is what a name stands for.
fn is_at(file: &File, name: &Path) -> bool {
    let open = file.try_clone().and_then(same_file::Handle::from_file);
    matches!((open, same_file::Handle::from_path(name)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect()
    }

    #[test]
    fn only_what_nobody_writes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let written = create(dir.path()).unwrap();
        // As a killed process leaves it, and what only looks so.
        std::fs::write(dir.path().join(".wcodec-aB3dE6.part"), b"lost").unwrap();
        let others =
            [".wcodec-notes-of-mine.part", ".wcodec-aB3dE6", "wcodec-aB3dE6.part", ".wcodec-aB-dE6.part", "a.part"];
        for other in others {
            std::fs::write(dir.path().join(other), b"mine").unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink("a.part", dir.path().join(".wcodec-linked.part")).unwrap();
        let second = create(dir.path()).unwrap();
        let left = names(dir.path());
        assert!(!left.contains(&".wcodec-aB3dE6.part".into()), "{left:?}");
        for other in others {
            assert!(left.contains(&other.into()), "{other} is gone");
        }
        assert!(dir.path().join("a.part").exists());
        assert!(!cfg!(unix) || left.contains(&".wcodec-linked.part".into()));
        assert!(written.path().exists() && second.path().exists());
        drop((written, second));
        assert_eq!(names(dir.path()).len(), others.len() + usize::from(cfg!(unix)));
    }

    #[test]
    fn a_file_that_was_found_before_it_was_locked_is_taken_anew() {
        let dir = tempfile::tempdir().unwrap();
        // Removed before it is locked.
        let made = make(dir.path()).unwrap();
        sweep(dir.path());
        assert!(!made.path().exists() && !claim(made.as_file(), made.path()));
        // Found by a remover that has not come to removing it yet.
        let made = make(dir.path()).unwrap();
        let remover = File::open(made.path()).unwrap();
        remover.lock().unwrap();
        assert!(!claim(made.as_file(), made.path()));
        // The name is another file's.
        let made = make(dir.path()).unwrap();
        std::fs::remove_file(made.path()).unwrap();
        std::fs::write(made.path(), b"another").unwrap();
        assert!(!claim(made.as_file(), made.path()));
        let made = make(dir.path()).unwrap();
        assert!(claim(made.as_file(), made.path()));
        sweep(dir.path());
        assert!(made.path().exists());
    }

    #[test]
    fn writers_that_come_at_the_same_time_leave_each_other_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let folder = dir.path();
                scope.spawn(move || {
                    for i in 0..200 {
                        let made = create(folder).unwrap();
                        made.persist_noclobber(folder.join(format!("{thread}-{i}"))).unwrap();
                    }
                });
            }
        });
        let left = names(dir.path());
        assert_eq!(left.len(), 800, "{left:?}");
    }
}
