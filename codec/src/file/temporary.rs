//! Temporary files: of whom they are is in their names, they are locked by who writes them, and removed by the next writer where their
//! process has ended and nobody has them locked.
//!
//! A process that is killed leaves its temporary file behind. Its lock goes with it, and so does the process itself: only where both are
//! gone nobody writes to the file. A lock alone would not tell on file systems of networks that lock for one machine only, and what
//! another machine or another container wrote is never removed. Two races are left. A file that was just created may be found before
//! it is locked: its writer then sees that its name is gone, and takes another one. And what was locked may not be what has the name now:
//! a remover looks again.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::Result;
use std::path::Path;

use tempfile::NamedTempFile;

use super::owner::Owner;
use super::place;

const PREFIX: &str = ".wcodec-";
const SUFFIX: &str = ".part";
/// Letters and digits behind the owner.
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

/// What the names of all temporary things of this process begin with.
pub(super) fn prefix() -> String {
    format!("{PREFIX}{}-", Owner::own())
}

fn make(folder: &Path) -> Result<NamedTempFile> {
    let prefix = prefix();
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX).rand_bytes(RANDOM);
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

/// Removes the temporary files of a folder that nobody writes any more, and ends what was begun with its folders. What cannot be removed
/// stays: it is in nobody's way.
pub(super) fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if owner_of(&name, SUFFIX).is_some_and(|owner| owner.has_ended()) {
            remove_abandoned(&entry.path());
        } else if owner_of(&name, place::SUFFIX).is_some_and(|owner| owner.has_ended()) {
            place::recover(&entry.path());
        }
    }
}

/// Whose a temporary file or folder of this name is; nothing where it is none.
pub(super) fn owner_of(name: &OsStr, suffix: &str) -> Option<Owner> {
    let (owner, random) = name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(suffix)?.rsplit_once('-')?;
    let is_random = random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric());
    Owner::parse(owner).filter(|_| is_random)
}

/// Keeps a finished file that could not be given its name: one that cannot be written to is not swept.
pub(super) fn keep(made: NamedTempFile) -> Option<std::path::PathBuf> {
    let (file, path) = made.keep().ok()?;
    let mut permissions = file.metadata().ok()?.permissions();
    permissions.set_readonly(true);
    file.set_permissions(permissions).ok();
    Some(path)
}

fn remove_abandoned(name: &Path) {
    // Asked before opening, which would wait for a writer if this were a pipe.
    if !std::fs::symlink_metadata(name).is_ok_and(|m| m.is_file() && !m.permissions().readonly()) {
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

    /// The name of a file of a process of this machine that has ended.
    fn left() -> String {
        let own = Owner::own().to_string();
        let (process, begin) = own.rsplit_once('-').unwrap();
        format!("{PREFIX}{process}-{}-aB3dE6{SUFFIX}", begin.parse::<u64>().unwrap() + 1)
    }

    #[test]
    fn only_what_nobody_writes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let written = create(dir.path()).unwrap();
        // As a killed process leaves it, and what only looks so: of other machines, of a process that runs, and of nobody known.
        std::fs::write(dir.path().join(left()), b"lost").unwrap();
        let others = [
            ".wcodec-0123456789abcdef-1-1-aB3dE6.part".to_owned(),
            ".wcodec-0000000000000000-1-1-aB3dE6.part".to_owned(),
            format!("{}aB3dE6.part", prefix()),
            ".wcodec-notes-of-mine.part".to_owned(),
            ".wcodec-aB3dE6.part".to_owned(),
            left().replace("aB3dE6", "aB-dE6"),
            left().replace(".part", ""),
            left().replacen('.', "", 1),
            "a.part".to_owned(),
        ];
        for other in &others {
            std::fs::write(dir.path().join(other), b"mine").unwrap();
        }
        let (linked, held) = (left().replace("aB3dE6", "linked"), left().replace("aB3dE6", "locked"));
        #[cfg(unix)]
        std::os::unix::fs::symlink("a.part", dir.path().join(&linked)).unwrap();
        let held = File::create_new(dir.path().join(held)).unwrap();
        held.lock().unwrap();
        let second = create(dir.path()).unwrap();
        let there = names(dir.path());
        assert!(!there.contains(&left().into()), "{there:?}");
        for other in &others {
            assert!(there.contains(&other.into()), "{other} is gone");
        }
        assert!(!cfg!(unix) || there.contains(&linked.into()));
        assert!(written.path().exists() && second.path().exists());
        drop((written, second));
        assert_eq!(names(dir.path()).len(), others.len() + 1 + usize::from(cfg!(unix)));
    }

    #[test]
    fn files_that_got_no_name_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let kept = keep(make(dir.path()).unwrap()).unwrap();
        let old = dir.path().join(left());
        std::fs::rename(kept, &old).unwrap();
        sweep(dir.path());
        assert!(old.exists());
    }

    #[test]
    fn a_file_that_was_found_before_it_was_locked_is_taken_anew() {
        let dir = tempfile::tempdir().unwrap();
        // Removed before it is locked.
        let made = make(dir.path()).unwrap();
        remove_abandoned(made.path());
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
        remove_abandoned(made.path());
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
