//! Temporary files: their names contain the owner, the writer keeps them locked, and the next writer removes them if
//! the owner has ended and nobody holds the lock.
//!
//! A killed process leaves its temporary file behind. Its lock disappears with the process: only if both are gone is
//! the file certainly not being written. A lock alone would not be enough on network file systems that lock for one
//! machine only, so files of another machine or container are never removed. Two races remain. A new file may be found
//! before it is locked: its writer then notices that the name is gone, and takes another one. And the locked file may
//! no longer be the one with the name: a remover checks again.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::Result;
use std::path::Path;

use tempfile::NamedTempFile;

use super::owner::Owner;
use super::place;

const PREFIX: &str = ".wcodec-";
const SUFFIX: &str = ".part";
/// Letters and digits after the owner.
const RANDOM: usize = 6;
/// The most attempts to find a free name.
const ATTEMPTS: usize = 16;

/// A new file in `folder`, locked, after cleaning up those of ended processes. It is removed when dropped.
pub(super) fn create(folder: &Path) -> Result<NamedTempFile> {
    sweep(folder);
    let mut made = make(folder)?;
    for _ in 1..ATTEMPTS {
        if claim(made.as_file(), made.path()) {
            break;
        }
        made = make(folder)?;
    }
    // On a file system whose inode numbers change with each look, removers cannot identify it either.
    Ok(made)
}

/// The common prefix of this process's temporary names.
pub(super) fn prefix() -> String {
    format!("{PREFIX}{}-", Owner::this_process())
}

fn make(folder: &Path) -> Result<NamedTempFile> {
    let prefix = prefix();
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX).rand_bytes(RANDOM);
    // Opened here, so that the umask decides on read access, and errors do not name a file that the user does not know.
    builder.make_in(folder, |part| File::options().read(true).write(true).create_new(true).open(part))
}

/// Locks a new file; returns false if a remover was faster.
fn claim(file: &File, name: &Path) -> bool {
    match file.try_lock() {
        Ok(()) => is_at(file, name),
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

/// Removes the temporary files of a folder that are no longer written, and recovers its staging folders. Files that
/// cannot be removed stay and do no harm.
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

/// The owner in the name of a temporary file or folder; `None` if it is not one.
pub(super) fn owner_of(name: &OsStr, suffix: &str) -> Option<Owner> {
    let (owner, random) = name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(suffix)?.rsplit_once('-')?;
    let is_random = random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric());
    Owner::parse(owner).filter(|_| is_random)
}

/// Keeps a finished file that could not be renamed: read-only files are not swept.
pub(super) fn keep(made: NamedTempFile) -> Option<std::path::PathBuf> {
    let (file, path) = made.keep().ok()?;
    let mut permissions = file.metadata().ok()?.permissions();
    permissions.set_readonly(true);
    file.set_permissions(permissions).ok();
    Some(path)
}

/// Whether a folder has a [kept](keep) file.
pub(super) fn has_kept(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let readonly = entry.metadata().is_ok_and(|m| m.is_file() && m.permissions().readonly());
        readonly && owner_of(&entry.file_name(), SUFFIX).is_some()
    })
}

fn remove_abandoned(name: &Path) {
    // Checked before opening, which would block on a pipe without a writer.
    if !std::fs::symlink_metadata(name).is_ok_and(|m| m.is_file() && !m.permissions().readonly()) {
        return;
    }
    // Opened for writing, too: some network file systems lock nothing else.
    if let Ok(file) = File::options().read(true).write(true).open(name)
        && file.try_lock().is_ok()
        && is_at(&file, name)
    {
        std::fs::remove_file(name).ok();
    }
}

/// Whether an open file is the one that has the name.
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

    /// The name of a temporary file of an ended process on this machine.
    fn left() -> String {
        let own = Owner::this_process().to_string();
        let (process, begin) = own.rsplit_once('-').unwrap();
        format!("{PREFIX}{process}-{}-aB3dE6{SUFFIX}", begin.parse::<u64>().unwrap() + 1)
    }

    #[test]
    fn only_what_nobody_writes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let written = create(dir.path()).unwrap();
        // A file as a killed process leaves it, and others that only look alike: of other machines, of a running
        // process, and of an unknown owner.
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
        // Found by a remover that has not removed it yet.
        let made = make(dir.path()).unwrap();
        let remover = File::open(made.path()).unwrap();
        remover.lock().unwrap();
        assert!(!claim(made.as_file(), made.path()));
        // Another file has the name.
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
