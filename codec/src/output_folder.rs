//! Folders of compressed models that appear only once they are complete.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::checkpoint::container_of;
use crate::error::{Code, Error, Result};
use crate::file::{Names, Place, folder_of, is_same_file, is_there};

/// A folder that appears under its name once it is complete, or not at all; it may replace a compressed model with that
/// name.
///
/// Until then it is filled in a hidden folder beside it. If the file system can exchange two folders, one of the two
/// models exists at every moment, whatever ends the process. If it cannot, or if a process is killed before it has
/// removed the replaced model, the next process that writes to the parent folder restores order.
///
/// Files that do not belong to a model stay in the folder.
#[derive(Debug)]
pub struct OutputFolder {
    target: PathBuf,
    inputs: Vec<PathBuf>,
    overwrite: bool,
    ours: BTreeSet<String>,
    place: Place,
}

/// An existing folder with the name.
enum Found {
    /// Nothing, or an empty folder.
    Nothing,
    /// A compressed model whose container has this name.
    Model(String),
}

impl OutputFolder {
    /// Creates a folder to fill. `inputs` are the files and folders that the work reads, `ours` the names of files that
    /// a model's folder may have and that are replaced with it.
    ///
    /// # Errors
    /// The target is not a compressed model, or one that may not be replaced, or one that contains an input or other
    /// folders; or the parent folder is not writable.
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

    /// The folder to fill.
    pub fn path(&self) -> PathBuf {
        self.place.new_folder()
    }

    /// Renames the folder to its final path.
    ///
    /// # Errors
    /// The file system refuses, or the name has been taken meanwhile. If the file system refuses, the result is kept.
    pub fn finish(mut self) -> Result<()> {
        // Checked again, because the name may have been taken meanwhile.
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
                Err(coded!(
                    WRITTEN_MEANWHILE,
                    "the model was replaced, and what appeared in the folder meanwhile is not in it: {what}"
                )
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

    /// Copies to the new folder the files of the old one that stay.
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
            // Copied on file systems without hard links.
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

/// The path without links, `.` and `..`; its last component need not exist.
fn absolute(target: &Path) -> Result<PathBuf> {
    let other =
        || coded!(NOT_REPLACED, "there is something else than a folder").file(target).advice("choose another name");
    let Some(name) = target.file_name() else {
        // `.`, `..`, or the root.
        return std::fs::canonicalize(target).map_err(|e| Error::io("look at the output", target, e));
    };
    let parent = folder_of(target);
    if !parent.is_dir() {
        return Err(Error::missing(Code::NOT_FOUND, "there is no such folder", parent).advice("make it first"));
    }
    let path = std::fs::canonicalize(parent).map_err(|e| Error::io("look at the output", target, e))?.join(name);
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.is_dir() => Err(other()),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("look at the output", target, e)),
        _ => Ok(path),
    }
}

/// Determines what has the name; an error unless a finished folder may replace it.
fn look(target: &Path, inputs: &[PathBuf], overwrite: bool) -> Result<Found> {
    if !is_there(target) {
        return Ok(Found::Nothing);
    }
    let refuse = |code: Code, what: String, advice: &str| Err(code.error(what).file(target).advice(advice));
    if !std::fs::symlink_metadata(target).is_ok_and(|m| m.is_dir()) {
        return refuse(Code::NOT_REPLACED, "there is something else than a folder".to_owned(), "choose another name");
    }
    let present = entries(target)?;
    let container = container_of(target);
    if container.is_none() && !present.is_empty() {
        return refuse(
            Code::NOT_REPLACED,
            "there is something else than a compressed model, which is not replaced".to_owned(),
            "choose another name, or empty the folder",
        );
    }
    if target.parent().is_none() || is_same_file(target, Path::new(".")) {
        return refuse(
            Code::WORKING_FOLDER,
            "a folder cannot be replaced while it is the one that the command runs in".to_owned(),
            "give the name of a new folder in it, or run the command elsewhere",
        );
    }
    let Some(container) = container else { return Ok(Found::Nothing) };
    if let Some(input) = held(target, inputs) {
        return refuse(
            Code::OUTPUT_IS_READ,
            format!("the folder holds what is read, which would be lost: '{}'", input.display()),
            "choose another name",
        );
    }
    if !overwrite {
        return Err(Error::io("create the output", target, ErrorKind::AlreadyExists.into()));
    }
    for name in present {
        if !std::fs::symlink_metadata(target.join(&name)).is_ok_and(|m| m.is_file()) {
            return refuse(
                Code::OUTPUT_HOLDS_MORE,
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
    let folder_handle = handle(folder);
    // Inputs may be other names of the same files.
    let files: HashSet<_> = entries(folder)
        .unwrap_or_default()
        .iter()
        .map(|name| folder.join(name))
        // Opening a pipe would block.
        .filter(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file()))
        .filter_map(|path| handle(&path))
        .collect();
    let is_held = |input: &&PathBuf| {
        let Ok(path) = std::fs::canonicalize(input) else { return false };
        let around = path.ancestors().any(|p| p.is_dir() && folder_handle.is_some() && handle(p) == folder_handle);
        around || path.is_file() && handle(&path).is_some_and(|h| files.contains(&h))
    };
    inputs.iter().find(is_held).map(PathBuf::as_path)
}

fn entries(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let list = |e| Error::io("list the folder", folder, e);
    std::fs::read_dir(folder).map_err(list)?.map(|entry| entry.map(|e| e.file_name()).map_err(list)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"quantization_config": {"quant_method": "wcodec", "file": "m.wcodec"}}"#;

    fn create(target: &Path, inputs: &[&Path], overwrite: bool) -> Result<OutputFolder> {
        let inputs = inputs.iter().map(|p| p.to_path_buf()).collect();
        OutputFolder::create(target, inputs, ["config.json", "old.txt"].map(str::to_owned), overwrite)
    }

    fn fill(folder: &OutputFolder, text: &str) {
        std::fs::write(folder.path().join("m.wcodec"), text).unwrap();
        std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    }

    fn put(target: &Path, text: &str, overwrite: bool) {
        let folder = create(target, &[], overwrite).unwrap();
        fill(&folder, text);
        assert!(!target.join("m.wcodec").exists() || overwrite);
        folder.finish().unwrap();
        assert_eq!(std::fs::read_to_string(target.join("m.wcodec")).unwrap(), text);
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = entries(folder).unwrap().into_iter().map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A staging folder as a killed process leaves it, with the name of an ended process.
    fn abandoned(folder: OutputFolder) -> PathBuf {
        let place = folder.path().parent().unwrap().to_owned();
        std::mem::forget(folder);
        let name = place.file_name().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = name.split('-').collect();
        let begin = (parts[3].parse::<u64>().unwrap() + 1).to_string();
        let ended = place.with_file_name(name.replace(&format!("-{}-", parts[3]), &format!("-{begin}-")));
        std::fs::rename(&place, &ended).unwrap();
        // Its lock disappeared with it.
        let lock = std::fs::read(ended.join("lock")).unwrap();
        std::fs::remove_file(ended.join("lock")).unwrap();
        std::fs::write(ended.join("lock"), lock).unwrap();
        ended
    }

    #[test]
    fn a_model_is_replaced_and_what_is_not_of_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        put(&target, "first", false);
        std::fs::write(target.join("NOTES.md"), "mine").unwrap();
        std::fs::write(target.join("old.txt"), "of the first").unwrap();
        assert_eq!(create(&target, &[], false).unwrap_err().kind(), crate::ErrorKind::Io);
        put(&target, "second", true);
        assert_eq!(names(&target), ["NOTES.md", "config.json", "m.wcodec"]);
        assert_eq!(std::fs::read_to_string(target.join("NOTES.md")).unwrap(), "mine");
        // Without `finish`, nothing happens.
        let folder = create(&target, &[], true).unwrap();
        fill(&folder, "third");
        drop(folder);
        assert_eq!(std::fs::read_to_string(target.join("m.wcodec")).unwrap(), "second");
        assert_eq!(names(dir.path()), ["out"]);
        // An empty folder counts as none.
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        put(&dir.path().join("empty"), "first", false);
    }

    #[test]
    fn what_is_not_a_model_or_holds_an_input_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let refused = |target: &Path, inputs: &[&Path]| create(target, inputs, true).unwrap_err().to_string();
        put(&target, "first", false);
        let (input, source) = (dir.path().join("input"), dir.path().join("source"));
        std::fs::write(&input, "weights").unwrap();
        std::fs::create_dir_all(target.join("a/b")).unwrap();
        std::fs::write(target.join("a/b/weights"), "weights").unwrap();
        let held = "what is read, which would be lost";
        for name in ["a", "a/b", "a/b/weights", "m.wcodec", "."] {
            assert!(refused(&target, &[&target.join(name)]).contains(held), "{name}");
        }
        assert!(refused(&target, &[&input]).contains("'a', which is no file of a compressed model"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(target.join("a/b"), &source).unwrap();
            assert!(refused(&target, &[&source.join("weights")]).contains(held));
            assert!(refused(&source, &[]).contains("something else than a folder"));
        }
        std::fs::remove_dir_all(target.join("a")).unwrap();
        std::fs::hard_link(&input, target.join("weights")).unwrap();
        assert!(refused(&target, &[&input]).contains(held));
        std::fs::remove_file(target.join("weights")).unwrap();
        assert!(create(&target, &[&input], true).is_ok());
        // A user's folder, a file, a missing parent folder.
        std::fs::remove_file(target.join("config.json")).unwrap();
        assert!(refused(&target, &[]).contains("something else than a compressed model, which is not replaced"));
        assert!(refused(&input, &[]).contains("something else than a folder"));
        assert!(refused(&dir.path().join("no/out"), &[]).contains("no such folder"));
        assert!(create(Path::new("."), &[], true).is_err());
    }

    #[test]
    fn what_appears_meanwhile_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let folder = create(&target, &[], false).unwrap();
        fill(&folder, "first");
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("precious"), "days of work").unwrap();
        assert!(folder.finish().unwrap_err().to_string().contains("something else"));
        assert_eq!((names(&target), names(dir.path())), (vec!["precious".to_owned()], vec!["out".to_owned()]));
        std::fs::remove_dir_all(&target).unwrap();
        // A model that another process wrote meanwhile.
        let folder = create(&target, &[], false).unwrap();
        fill(&folder, "second");
        put(&target, "first", false);
        assert_eq!(folder.finish().unwrap_err().kind(), crate::ErrorKind::Io);
        assert_eq!(std::fs::read_to_string(target.join("m.wcodec")).unwrap(), "first");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_next_writer_ends_what_a_killed_one_began() {
        let dir = tempfile::tempdir().unwrap();
        let (target, other) = (dir.path().join("out"), dir.path().join("other"));
        let text = || std::fs::read_to_string(target.join("m.wcodec")).unwrap();
        put(&target, "first", false);
        std::fs::write(target.join("NOTES.md"), "mine").unwrap();
        let begun = || {
            let folder = create(&target, &[], true).unwrap();
            fill(&folder, "second");
            folder
        };
        let recover = |place: &Path| {
            drop(create(&other, &[], false).unwrap());
            assert!(!place.exists(), "{:?}", names(place));
            assert_eq!((names(dir.path()), names(&target).len()), (vec!["out".to_owned()], 3));
        };
        // Killed while the folder was being filled.
        recover(&abandoned(begun()));
        assert_eq!(text(), "first");
        // Killed between two renames, on a file system without an exchange.
        let place = abandoned(begun());
        std::fs::rename(&target, place.join("old")).unwrap();
        recover(&place);
        assert_eq!(text(), "first");
        // Killed before the exchange, and after it.
        for exchanged in [false, true] {
            let folder = begun();
            let names = folder.carry("m.wcodec".to_owned()).unwrap();
            folder.place.record(names).unwrap();
            let place = abandoned(folder);
            if exchanged {
                let spare = dir.path().join("spare");
                std::fs::rename(&target, &spare).unwrap();
                std::fs::rename(place.join("new"), &target).unwrap();
                std::fs::rename(spare, place.join("new")).unwrap();
            }
            recover(&place);
            assert_eq!(text(), if exchanged { "second" } else { "first" });
        }
        // An unknown file goes back, and one whose name is taken stays where it is.
        let folder = begun();
        folder
            .place
            .record(Names::new(["m.wcodec", "config.json"].map(str::to_owned).into(), BTreeSet::new()))
            .unwrap();
        let place = abandoned(folder);
        std::fs::rename(place.join("new"), place.join("old")).unwrap();
        std::fs::write(place.join("old/late"), "mine").unwrap();
        std::fs::write(place.join("old/NOTES.md"), "mine, later").unwrap();
        drop(create(&other, &[], false).unwrap());
        assert!(target.join("late").exists());
        assert_eq!(std::fs::read_to_string(place.join("old/NOTES.md")).unwrap(), "mine, later");
        // Staging folders of another machine and of a running process.
        let running = begun();
        let foreign = dir.path().join(".wcodec-0123456789abcdef-1-1-aB3dE6.folder");
        std::fs::create_dir(&foreign).unwrap();
        drop(create(&other, &[], false).unwrap());
        assert!(foreign.exists() && running.path().join("m.wcodec").exists());
    }
}
