//! Folders of compressed models that appear when they are complete.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::checkpoint::container_of;
use crate::error::{Error, Result};
use crate::file::{Names, Place, folder_of, is_same_file, is_there};

/// A folder that appears under its name when it is complete, or not at all, in the place of a compressed model that has the name.
///
/// Until then it is filled in a hidden folder beside it. Where the file system can exchange two folders, one of the two models is there at
/// every moment, whatever ends the process. Otherwise, and where a process is killed before it has removed what it replaced, the next
/// one that writes to the folder around it puts everything in order.
///
/// Files that such a model does not have stay in the folder.
#[derive(Debug)]
pub struct OutputFolder {
    target: PathBuf,
    inputs: Vec<PathBuf>,
    overwrite: bool,
    ours: BTreeSet<String>,
    place: Place,
}

/// What is there already.
enum Found {
    /// Nothing, or an empty folder.
    Nothing,
    /// A compressed model whose container has this name.
    Model(String),
}

impl OutputFolder {
    /// Begins a folder. `inputs` are the files and folders that the work reads, `ours` the names of files that a model's folder may have and
    /// that are replaced with it.
    ///
    /// # Errors
    /// There is something else than a compressed model, or one that may not be replaced, or one that holds an input or other folders; or the
    /// folder around it cannot be written.
    pub fn create(
        target: &Path,
        inputs: Vec<PathBuf>,
        ours: impl IntoIterator<Item = String>,
        overwrite: bool,
    ) -> Result<Self> {
        let target = absolute(target)?;
        let ours = ours.into_iter().collect();
        look(&target, &inputs, overwrite)?;
        let place = Place::create(&target).map_err(|e| Error::io("create a folder beside it", &target, e))?;
        Ok(Self { target, inputs, overwrite, ours, place })
    }

    /// The folder that is to be filled.
    pub fn path(&self) -> PathBuf {
        self.place.new_folder()
    }

    /// Gives the folder its name.
    ///
    /// # Errors
    /// The file system refuses, or somebody took the name meanwhile. What was made then stays if it was the file system.
    pub fn finish(mut self) -> Result<()> {
        // Once more, since others may have been at work meanwhile.
        let put = match look(&self.target, &self.inputs, self.overwrite)? {
            Found::Nothing => self.place.put().map(|()| Vec::new()),
            Found::Model(container) => {
                let names = self.carry(container)?;
                self.place.exchange(names)
            }
        };
        let target = &self.target;
        match put {
            Ok(left) if left.is_empty() => Ok(()),
            Ok(left) => {
                let what = left.iter().map(|n| n.display().to_string()).collect::<Vec<_>>().join(", ");
                let kept = self.place.keep().display().to_string();
                Err(Error::input(format!(
                    "the model was replaced, and what appeared in the folder meanwhile is not in it: {what}"
                ))
                .file(target)
                .advice(format!("it is in '{kept}'")))
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory
                ) =>
            {
                Err(Error::io("rename the finished folder", target, ErrorKind::AlreadyExists.into()))
            }
            Err(e) => {
                let kept = self.place.keep().display().to_string();
                Err(Error::io("rename the finished folder", target, e)
                    .instead(format!("it is complete, as 'new' in '{kept}': give it the name yourself")))
            }
        }
    }

    /// Has the new folder what stays of the old one.
    fn carry(&self, container: String) -> Result<Names> {
        let new = self.path();
        let mut replaced = self.ours.clone();
        replaced.insert(container);
        replaced.extend(entries(&new)?.into_iter().filter_map(|n| n.into_string().ok()));
        let mut kept = BTreeSet::new();
        for name in entries(&self.target)?.into_iter().filter_map(|n| n.into_string().ok()) {
            if replaced.contains(&name) {
                continue;
            }
            let (from, to) = (self.target.join(&name), new.join(&name));
            // Where there are no links, as a copy.
            let linked = std::fs::hard_link(&from, &to).or_else(|_| {
                std::fs::copy(&from, &to)?;
                std::fs::File::open(&to)?.sync_all()
            });
            linked.map_err(|e| Error::io("keep the file", &from, e))?;
            kept.insert(name);
        }
        Ok(Names::new(replaced, kept))
    }
}

/// The path without links, `.` and `..`, of what need not be there.
fn absolute(target: &Path) -> Result<PathBuf> {
    let other = || Error::input("there is something else than a folder").file(target).advice("choose another name");
    let Some(name) = target.file_name() else {
        // `.`, `..`, or the root.
        return std::fs::canonicalize(target).map_err(|e| Error::io("look at the output", target, e));
    };
    let parent = folder_of(target);
    if !parent.is_dir() {
        return Err(Error::missing("there is no such folder", parent).advice("make it first"));
    }
    let path = std::fs::canonicalize(parent).map_err(|e| Error::io("look at the output", target, e))?.join(name);
    match std::fs::symlink_metadata(&path) {
        Ok(found) if !found.is_dir() => Err(other()),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("look at the output", target, e)),
        _ => Ok(path),
    }
}

/// What is there, if a finished folder may take its name.
fn look(target: &Path, inputs: &[PathBuf], overwrite: bool) -> Result<Found> {
    if !is_there(target) {
        return Ok(Found::Nothing);
    }
    let refuse = |what: String, advice: &str| Err(Error::input(what).file(target).advice(advice));
    if !std::fs::symlink_metadata(target).is_ok_and(|m| m.is_dir()) {
        return refuse("there is something else than a folder".to_owned(), "choose another name");
    }
    let there = entries(target)?;
    let container = container_of(target);
    if container.is_none() && !there.is_empty() {
        return refuse(
            "there is something else than a compressed model, which is not replaced".to_owned(),
            "choose another name, or empty the folder",
        );
    }
    if target.parent().is_none() || is_same_file(target, Path::new(".")) {
        return refuse(
            "a folder cannot be replaced while it is the one that the command runs in".to_owned(),
            "give the name of a new folder in it, or run the command elsewhere",
        );
    }
    let Some(container) = container else { return Ok(Found::Nothing) };
    if let Some(input) = held(target, inputs) {
        return refuse(
            format!("the folder holds what is read, which would be lost: '{}'", input.display()),
            "choose another name",
        );
    }
    if !overwrite {
        return Err(Error::io("create the output", target, ErrorKind::AlreadyExists.into()));
    }
    for name in there {
        if !std::fs::symlink_metadata(target.join(&name)).is_ok_and(|m| m.is_file()) {
            return refuse(
                format!(
                    "the folder holds '{}', which is no file of a compressed model and would be lost",
                    name.display()
                ),
                "move it elsewhere, or choose another name",
            );
        }
    }
    Ok(Found::Model(container))
}

/// The first of the inputs that is in a folder at whatever depth, through whatever links, or that is the folder itself.
fn held<'a>(folder: &Path, inputs: &'a [PathBuf]) -> Option<&'a Path> {
    let handle = |path: &Path| same_file::Handle::from_path(path).ok();
    let own = handle(folder);
    // Another name of one of its files is the same file.
    let files: HashSet<_> = entries(folder)
        .unwrap_or_default()
        .iter()
        .map(|name| folder.join(name))
        // Opening a pipe would wait.
        .filter(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file()))
        .filter_map(|path| handle(&path))
        .collect();
    let is_held = |input: &&PathBuf| {
        let Ok(path) = std::fs::canonicalize(input) else { return false };
        let around = path.ancestors().any(|p| p.is_dir() && own.is_some() && handle(p) == own);
        around || path.is_file() && handle(&path).is_some_and(|h| files.contains(&h))
    };
    inputs.iter().find(is_held).map(PathBuf::as_path)
}

fn entries(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let list = |e| Error::io("list the folder", folder, e);
    std::fs::read_dir(folder).map_err(list)?.map(|entry| entry.map(|e| e.file_name()).map_err(list)).collect()
}
