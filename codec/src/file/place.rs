//! The place where a folder is filled before it gets its name, and where the one that it replaces goes.
//!
//! It is a hidden folder beside the output, of the process that its name says. `lock` is locked by it, `name` says which folder it is for,
//! `new` is filled, and `old` is there for a moment on file systems that cannot exchange two folders. `names` is written before the
//! exchange, and says which files of the replaced folder may be removed: everything else goes back to the folder. `finished` keeps
//! it from being removed. Whoever writes to the folder around it ends what a killed process began: see [`recover`].

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
    /// Those that are replaced.
    replaced: BTreeSet<String>,
    /// Those that the new folder has, too, as they are.
    kept: BTreeSet<String>,
    /// The number that the file system has for the new folder.
    number: u64,
}

impl Names {
    /// `ours` and what is in the new folder are replaced, and `kept` are in both.
    pub(crate) fn new(replaced: BTreeSet<String>, kept: BTreeSet<String>) -> Self {
        Self { replaced, kept, number: 0 }
    }
}

/// The place of this process. It is removed with everything in it when this is dropped, unless it is to stay.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    target: PathBuf,
    _lock: File,
    stays: bool,
}

impl Place {
    /// Makes one beside the folder `target`, after a look for those that others left there.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        let parent = super::folder_of(target);
        temporary::sweep(parent);
        let prefix = temporary::prefix();
        let path = tempfile::Builder::new().prefix(&prefix).suffix(SUFFIX).tempdir_in(parent)?.keep();
        let made = || -> Result<File> {
            let lock = File::options().read(true).write(true).create_new(true).open(path.join(LOCK))?;
            // Where there are no locks, the name says enough.
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

    /// Gives the new folder its name, which nothing has but perhaps an empty folder.
    pub(crate) fn put(&self) -> Result<()> {
        // A folder is never renamed over anything but an empty one.
        std::fs::rename(self.new_folder(), &self.target)?;
        sync(super::folder_of(&self.target));
        Ok(())
    }

    /// Puts the new folder in the place of the one that has the name, and removes the files of that that are replaced. The names of what is left
    /// of it here, because something of that name is in the new folder.
    pub(crate) fn exchange(&self, mut names: Names) -> Result<Vec<OsString>> {
        names.number = number(&self.new_folder())?;
        let record = serde_json::to_vec(&names).map_err(Error::other)?;
        let mut file = File::create(self.path.join(NAMES))?;
        file.write_all(&record)?;
        file.sync_all()?;
        sync(&self.new_folder());
        sync(&self.path);
        let (new, old) = (self.new_folder(), self.path.join(OLD));
        let replaced = if exchange(&new, &self.target).is_ok() {
            new
        } else {
            std::fs::rename(&self.target, &old)?;
            if let Err(e) = std::fs::rename(&new, &self.target) {
                // Unless somebody has taken the name in this moment: then it stays, and is told.
                std::fs::rename(&old, &self.target).ok();
                return Err(e);
            }
            old
        };
        sync(super::folder_of(&self.target));
        Ok(clear(&replaced, &self.target, &names))
    }

    /// Leaves everything as it is; says where.
    pub(crate) fn keep(&mut self) -> &Path {
        self.stays = true;
        File::create(self.path.join(FINISHED)).ok();
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
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

/// Ends what a process began that has ended: its place is removed. A folder that lost its name gets it back, and so does whatever else is
/// not to be removed.
pub(super) fn recover(place: &Path) {
    // No link, and nothing else.
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
        // Nothing was begun, or for a folder of another name than text, of which a hand has to take care.
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

/// The number that a file system has for a folder.
#[cfg(unix)]
fn number(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::symlink_metadata(folder)?.ino())
}

/// Where folders are not exchanged, it is always the same one.
#[cfg(not(unix))]
fn number(folder: &Path) -> Result<u64> {
    std::fs::symlink_metadata(folder).map(|_| 0)
}

/// Removes a place in which nothing of anybody is any more.
fn remove(place: &Path) {
    if [NEW, OLD].iter().all(|name| !is_there(&place.join(name)) || std::fs::remove_dir(place.join(name)).is_ok()) {
        for name in [NAMES, NAME, LOCK] {
            std::fs::remove_file(place.join(name)).ok();
        }
        std::fs::remove_dir(place).ok();
    }
}

/// Removes the files of a folder that was replaced, or is not needed; whatever else is in it goes to `target`. The names of what is left.
fn clear(folder: &Path, target: &Path, names: &Names) -> Vec<OsString> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let there = target.join(&name);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
        let text = name.to_str().unwrap_or_default();
        let gone = if is_file && (names.replaced.contains(text) || names.kept.contains(text) && is_copy(&path, &there))
        {
            std::fs::remove_file(&path)
        } else if is_there(&there) {
            Err(ErrorKind::AlreadyExists.into())
        } else {
            std::fs::rename(&path, &there)
        };
        if gone.is_err() {
            left.push(name);
        }
    }
    if left.is_empty() {
        std::fs::remove_dir(folder).ok();
    }
    left
}

/// Whether what is there is the same file, or has the same bytes.
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

/// Whether a name is taken, by whatever.
pub(crate) fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Makes the names in a folder durable, where folders can be opened.
fn sync(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().ok();
    }
}
