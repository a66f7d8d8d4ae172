//! The staging folder in which a folder is filled before it gets its name, and to which the folder that it replaces is
//! moved.
//!
//! It is a hidden folder beside the output, owned by the process in its name. `lock` is locked by that process, `name`
//! has the name of the target folder, `new` is filled, and `old` exists for a moment on file systems that cannot
//! exchange two folders. `names` is written before the exchange, and lists the files of the replaced folder that may be
//! removed: everything else goes back to the folder. `finished` keeps it from being removed. The next process that
//! writes to the parent folder completes or undoes the work of a killed one: see [`recover`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::{Path, PathBuf};

use super::temporary;

pub(super) const SUFFIX: &str = ".folder";
const LOCK: &str = "lock";
const NAME: &str = "name";
const NAMES: &str = "names";
const NEW: &str = "new";
const OLD: &str = "old";
const FINISHED: &str = "finished";
/// Bytes that are compared at once.
const PIECE: usize = 1 << 16;

/// Names of files in a folder that is replaced.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
pub(crate) struct Names {
    /// Files that are replaced.
    replaced: BTreeSet<String>,
    /// Files that the new folder has, too, unchanged.
    kept: BTreeSet<String>,
    /// The inode number of the new folder.
    number: u64,
}

impl Names {
    /// `ours` and the files of the new folder are replaced; `kept` are in both.
    pub(crate) fn new(replaced: BTreeSet<String>, kept: BTreeSet<String>) -> Self {
        Self { replaced, kept, number: 0 }
    }
}

/// The staging folder of this process. It is removed with its content when this is dropped, unless it is to stay.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    target: PathBuf,
    _lock: File,
    stays: bool,
}

impl Place {
    /// Creates one beside the folder `target`, after cleaning up those of ended processes.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        let parent = super::folder_of(target);
        temporary::sweep(parent);
        let prefix = temporary::prefix();
        let path = tempfile::Builder::new().prefix(&prefix).suffix(SUFFIX).tempdir_in(parent)?.keep();
        let made = || -> Result<File> {
            let lock = File::options().read(true).write(true).create_new(true).open(path.join(LOCK))?;
            // On file systems without locks the name is enough.
            lock.try_lock().ok();
            let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
            std::fs::write(path.join(NAME), name.as_encoded_bytes())?;
            std::fs::create_dir(path.join(NEW))?;
            Ok(lock)
        };
        match made() {
            Ok(lock) => Ok(Self { path, target: target.to_owned(), _lock: lock, stays: false }),
            Err(e) => {
                std::fs::remove_dir_all(&path).ok();
                Err(e)
            }
        }
    }

    /// The folder that is filled.
    pub(crate) fn new_folder(&self) -> PathBuf {
        self.path.join(NEW)
    }

    /// Renames the new folder to its final name, which at most an empty folder may have.
    pub(crate) fn put(&self) -> Result<()> {
        // A folder can be renamed only over an empty one.
        std::fs::rename(self.new_folder(), &self.target)?;
        sync(super::folder_of(&self.target));
        Ok(())
    }

    /// Exchanges the new folder with the one that has the name, and removes the replaced files of the latter. Returns
    /// the names of files that stay here, because the new folder has something with that name.
    pub(crate) fn exchange(&self, names: Names) -> Result<Vec<OsString>> {
        let names = self.record(names)?;
        let (new, old) = (self.new_folder(), self.path.join(OLD));
        let replaced = if exchange(&new, &self.target).is_ok() {
            new
        } else {
            std::fs::rename(&self.target, &old)?;
            if let Err(e) = std::fs::rename(&new, &self.target) {
                // If the name was taken in this moment, the old folder stays here and the error says so.
                std::fs::rename(&old, &self.target).ok();
                return Err(e);
            }
            old
        };
        sync(super::folder_of(&self.target));
        Ok(clear(&replaced, &self.target, &names))
    }

    /// Records which files of the replaced folder may be removed.
    pub(crate) fn record(&self, mut names: Names) -> Result<Names> {
        names.number = number(&self.new_folder())?;
        let record = serde_json::to_vec(&names).map_err(Error::other)?;
        let mut file = File::create(self.path.join(NAMES))?;
        file.write_all(&record)?;
        file.sync_all()?;
        sync(&self.new_folder());
        sync(&self.path);
        Ok(names)
    }

    /// Keeps everything; returns the path.
    pub(crate) fn keep(&mut self) -> &Path {
        self.stays = true;
        File::create(self.path.join(FINISHED)).ok();
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A finished file in it that could not even get its own name is the user's work.
        if !self.stays && temporary::has_kept(&self.new_folder()) {
            self.keep();
        }
        if !self.stays {
            end(&self.path, &self.target);
        }
    }
}

/// Exchanges two folders.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Cleans up after an ended process: removes its staging folder. A folder that lost its name gets it back, and so does
/// everything else that must not be removed.
pub(super) fn recover(place: &Path) {
    // A real folder, not a link or anything else.
    if !std::fs::symlink_metadata(place).is_ok_and(|m| m.is_dir()) || is_there(&place.join(FINISHED)) {
        return;
    }
    let lock = match File::options().read(true).write(true).open(place.join(LOCK)) {
        Ok(lock) if lock.try_lock().is_err() => return,
        Ok(lock) => Some(lock),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(_) => return,
    };
    let name = std::fs::read(place.join(NAME)).ok().and_then(|name| String::from_utf8(name).ok());
    let is_name = |n: &String| Path::new(n).file_name() == Some(OsStr::new(n));
    match name.filter(is_name) {
        Some(name) => end(place, &super::folder_of(place).join(name)),
        // Nothing was begun, or the target's name is not text, which needs manual repair.
        None if !is_there(&place.join(OLD)) && !is_there(&place.join(NAMES)) => remove(place),
        None => {}
    }
    drop(lock);
}

fn end(place: &Path, target: &Path) {
    let (new, old) = (place.join(NEW), place.join(OLD));
    let names = std::fs::read(place.join(NAMES)).ok().and_then(|text| serde_json::from_slice::<Names>(&text).ok());
    if is_there(&old) && !is_there(target) {
        std::fs::rename(&old, target).ok();
    }
    let is_new = match &names {
        // After the exchange it is the folder that was replaced.
        Some(names) => number(&new).is_ok_and(|n| n == names.number),
        None => !is_there(&place.join(NAMES)),
    };
    if is_new {
        std::fs::remove_dir_all(&new).ok();
    }
    if let Some(names) = names {
        for folder in [new, old].iter().filter(|folder| is_there(folder)) {
            clear(folder, target, &names);
        }
    }
    remove(place);
}

/// The inode number of a folder.
#[cfg(unix)]
fn number(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::symlink_metadata(folder)?.ino())
}

/// Constant on systems that do not exchange folders.
#[cfg(not(unix))]
fn number(folder: &Path) -> Result<u64> {
    std::fs::symlink_metadata(folder).map(|_| 0)
}

/// Removes a staging folder that holds nothing worth keeping.
fn remove(place: &Path) {
    if [NEW, OLD].iter().all(|name| !is_there(&place.join(name)) || std::fs::remove_dir(place.join(name)).is_ok()) {
        for name in [NAMES, NAME, LOCK] {
            std::fs::remove_file(place.join(name)).ok();
        }
        std::fs::remove_dir(place).ok();
    }
}

/// Removes the files of a folder that was replaced, or is not needed, and moves everything else to `target`. Returns
/// the names of files that stay.
fn clear(folder: &Path, target: &Path, names: &Names) -> Vec<OsString> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let moved = target.join(&name);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
        let text = name.to_str().unwrap_or_default();
        let cleared =
            if is_file && (names.replaced.contains(text) || names.kept.contains(text) && is_copy(&path, &moved)) {
                std::fs::remove_file(&path)
            } else if is_there(&moved) {
                Err(ErrorKind::AlreadyExists.into())
            } else {
                std::fs::rename(&path, &moved)
            };
        if cleared.is_err() {
            left.push(name);
        }
    }
    if left.is_empty() {
        std::fs::remove_dir(folder).ok();
    }
    left
}

/// Whether both paths are the same file, or have the same bytes.
fn is_copy(a: &Path, b: &Path) -> bool {
    let equal = || -> Result<bool> {
        if !std::fs::symlink_metadata(b)?.is_file() {
            return Ok(false);
        }
        if same_file::is_same_file(a, b)? {
            return Ok(true);
        }
        let (mut a, mut b) = (File::open(a)?, File::open(b)?);
        if a.metadata()?.len() != b.metadata()?.len() {
            return Ok(false);
        }
        let (mut first, mut second) = (vec![0; PIECE], vec![0; PIECE]);
        loop {
            let n = a.read(&mut first)?;
            if n == 0 {
                return Ok(true);
            }
            b.read_exact(&mut second[..n])?;
            if first[..n] != second[..n] {
                return Ok(false);
            }
        }
    };
    equal().unwrap_or(false)
}

/// Whether anything has this name.
pub(crate) fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Makes the names in a folder durable, on systems where folders can be opened.
fn sync(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().ok();
    }
}
