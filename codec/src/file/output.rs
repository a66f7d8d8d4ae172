//! Checks output paths, and writes files that appear only once they are complete.

use std::fs::{File, FileType};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf, is_separator};

use tempfile::NamedTempFile;

use super::behind::WriteBehind;
use super::folder::folder_of;
use super::temporary;
use crate::error::{Error, Result};

/// The kind of an output, which decides the extensions that its name may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputKind {
    /// A `.wcodec` file.
    Container,
    /// A `.safetensors` file.
    Safetensors,
    /// A report in JSON.
    Json,
    /// Lines of text.
    Log,
    /// Anything else: every extension is allowed.
    Other,
}

use OutputKind::{Container, Json, Log, Safetensors};

/// Extensions that identify a file format, and the outputs that may have them. Every output may have any other
/// extension, or none.
const ENDINGS: [(&[&str], &[OutputKind]); 9] = [
    (&["wcodec"], &[Container]),
    (&["safetensors"], &[Safetensors]),
    (&["json", "jsonl"], &[Json]),
    (&["txt", "log"], &[Json, Log]),
    // Weights.
    (&["bin", "pt", "pth", "ckpt", "pkl", "pickle", "gguf", "ggml", "onnx", "npz", "npy", "h5", "hdf5", "keras"], &[]),
    (&["msgpack", "pb", "tflite", "mlmodel", "mlpackage", "engine", "parquet", "arrow"], &[]),
    // Programs and documents.
    (&["py", "ipynb", "rs", "c", "h", "cpp", "cu", "so", "sh", "md", "rst", "html", "pdf", "csv", "tsv"], &[]),
    (&["toml", "yaml", "yml", "ini", "cfg", "xml", "jinja"], &[]),
    // Archives and pictures.
    (&["zip", "tar", "gz", "tgz", "bz2", "xz", "zst", "7z", "whl", "png", "jpg", "jpeg", "svg"], &[]),
];

impl OutputKind {
    /// The kind's name in messages, and the extension that it should have.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Container => ("a container", ".wcodec"),
            Safetensors => ("a safetensors file", ".safetensors"),
            Json => ("a report in JSON", ".json"),
            Log | Self::Other => ("a log", ".log"),
        }
    }

    /// Refuses a `path` that is one of the `inputs`, under whatever name, or has the extension of another format.
    ///
    /// ```
    /// use std::path::Path;
    /// use wcodec::OutputKind;
    /// let container = OutputKind::Container;
    /// assert!(container.check(Path::new("model.wcodec"), &[]).is_ok());
    /// assert!(container.check(Path::new("model-7.1b"), &[]).is_ok());
    /// assert!(container.check(Path::new("model.safetensors"), &[]).is_err());
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input).
    pub fn check(self, path: &Path, inputs: &[PathBuf]) -> Result<()> {
        if path.is_file() && inputs.iter().any(|input| input.is_file() && is_same_file(input, path)) {
            return Err(coded!(OUTPUT_IS_READ, "the output is one of the files that are read")
                .file(path)
                .advice("choose another name: what is read would be lost"));
        }
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let others = ENDINGS.iter().find(|(endings, _)| endings.iter().any(|e| ending == **e));
        if self != Self::Other && others.is_some_and(|(_, kinds)| !kinds.contains(&self)) {
            let (what, ending_of_kind) = self.words();
            return Err(coded!(OUTPUT_ENDING, "the ending .{} is not that of {what}", ending.display())
                .file(path)
                .advice(format!("let the name end in {ending_of_kind}")));
        }
        Ok(())
    }
}

/// Whether two paths lead to the same file or folder. A path that cannot be opened cannot have been read.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    same_file::is_same_file(a, b).unwrap_or(false)
}

/// A file that appears under its name once it is complete, or not at all.
///
/// Until then it is in the same folder, under a temporary name and locked. Files left there by a killed process are
/// removed by the next process that writes to the folder.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("report.json");
/// use wcodec::{OutputFile, OutputKind};
/// let out = OutputFile::create(&path, OutputKind::Json, &[], false)?;
/// out.write_all(b"{}")?;
/// assert!(!path.exists());
/// out.finish()?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"{}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OutputFile {
    temporary: NamedTempFile,
    path: PathBuf,
    overwrite: bool,
}

impl OutputFile {
    /// Creates a temporary file in the folder of `path`. `inputs` are the files that the work reads.
    ///
    /// # Errors
    /// `path` exists and is not a regular file, or `overwrite` is not set; it is one of the inputs; its name does not
    /// suit this kind; the folder is not writable.
    pub fn create(path: &Path, kind: OutputKind, inputs: &[PathBuf], overwrite: bool) -> Result<Self> {
        let replaced = check_place(path)?;
        kind.check(path, inputs)?;
        if replaced && !overwrite {
            return Err(exists(path));
        }
        let temporary =
            temporary::create(folder_of(path)).map_err(|e| Error::io("create a file in its folder", path, e))?;
        Ok(Self { temporary, path: path.to_owned(), overwrite })
    }

    /// The final path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, for a caller that writes on its own thread.
    ///
    /// # Errors
    /// The operating system refuses another handle.
    pub(crate) fn file(&self) -> Result<File> {
        self.temporary.as_file().try_clone().map_err(|e| Error::io("write", &self.path, e))
    }

    /// A writer to the file that has its own thread.
    ///
    /// # Errors
    /// The operating system refuses another handle.
    pub(crate) fn writer(&self) -> Result<WriteBehind> {
        Ok(WriteBehind::new(self.file()?))
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk is full, or the file system refuses.
    pub fn write_all(&self, bytes: &[u8]) -> Result<()> {
        self.temporary.as_file().write_all(bytes).map_err(|e| Error::io("write", &self.path, e))
    }

    /// Makes the bytes durable and renames the file to its final path.
    ///
    /// # Errors
    /// The file system refuses, or the path has been taken meanwhile.
    pub fn finish(self) -> Result<()> {
        let Self { temporary, path, overwrite } = self;
        temporary.as_file().sync_all().map_err(|e| Error::io("write", &path, e))?;
        let refused = if overwrite {
            // Checked again, because the path may have been taken meanwhile.
            check_place(&path)?;
            temporary.persist(&path).err()
        } else {
            match temporary.persist_noclobber(&path) {
                Ok(_) => None,
                Err(e) if e.error.kind() == ErrorKind::AlreadyExists => return Err(exists(&path)),
                // Some file systems can neither rename without replacing nor link. A check must suffice there.
                Err(_) if check_place(&path)? => return Err(exists(&path)),
                Err(e) => e.file.persist(&path).err(),
            }
        };
        if let Some(refused) = refused {
            let advice = temporary::keep(refused.file)
                .map(|kept| format!("it is complete, as '{}': give it the name yourself", kept.display()));
            let e = Error::io("rename the finished file", &path, refused.error);
            return Err(match advice {
                Some(advice) => e.instead(advice),
                None => e,
            });
        }
        // The rename is durable once its folder is. If folders cannot be opened, nothing can be done.
        if let Ok(folder) = File::open(folder_of(&path)) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

/// Whether `path` has a file that a rename would replace.
///
/// # Errors
/// It cannot be the name of a file, or something other than a file has it: a rename would destroy a pipe, a device or a
/// link.
fn check_place(path: &Path) -> Result<bool> {
    if path.as_os_str().is_empty() {
        return Err(coded!(OUTPUT_IS_FOLDER, "the output has no name").advice("name a file"));
    }
    let is_folder = path.as_os_str().as_encoded_bytes().last().is_some_and(|&b| is_separator(b.into()));
    if is_folder || path.is_dir() {
        return Err(coded!(OUTPUT_IS_FOLDER, "the output is a folder").file(path).advice("name a file in it"));
    }
    let kind = match std::fs::symlink_metadata(path) {
        Ok(kind) => kind.file_type(),
        // Creating the file will report the problem with its folder.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(false),
        Err(e) => return Err(Error::io("look at the output", path, e)),
    };
    if kind.is_file() {
        return Ok(true);
    }
    let advice = if kind.is_symlink() { "name the file that it points to" } else { "name a file" };
    Err(coded!(NOT_REPLACED, "the output is {}, which is not replaced", kind_of(kind)).file(path).advice(advice))
}

/// A description of something that is neither a file nor a folder.
fn kind_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    if kind.is_symlink() { "a symbolic link" } else { "no regular file" }
}

fn exists(path: &Path) -> Error {
    Error::io("create the output", path, ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;

    fn create(path: &Path, overwrite: bool) -> Result<OutputFile> {
        OutputFile::create(path, OutputKind::Other, &[], overwrite)
    }

    #[test]
    fn outputs_appear_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let f = create(&path, false).unwrap();
        f.writer().unwrap().write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(f);
        assert_eq!(count(), 0);
        let f = create(&path, false).unwrap();
        let mut w = f.writer().unwrap();
        w.write_all(b"whale").unwrap();
        w.seek(SeekFrom::Start(2)).unwrap();
        w.write_all(b"o").unwrap();
        w.flush().unwrap();
        f.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), count()), (b"whole".to_vec(), 1));
        assert!(create(&path, false).is_err());
        // The name was taken after the output was created.
        let other = dir.path().join("other");
        let f = create(&other, false).unwrap();
        std::fs::write(&other, b"mine").unwrap();
        assert!(f.finish().is_err());
        assert_eq!((std::fs::read(&other).unwrap(), count()), (b"mine".to_vec(), 2));
        create(&other, true).unwrap().finish().unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"");
        assert!(create(dir.path(), true).is_err());
        let lost = dir.path().join("none/x");
        let e = create(&lost, true).err().unwrap();
        assert_eq!(e.file_path(), Some(lost.as_path()));
        assert!(!e.to_string().contains(".part"), "{e}");
    }

    #[test]
    fn what_cannot_be_the_name_of_a_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for (name, what) in [("", "no name"), ("new/", "a folder"), (".", "a folder"), ("..", "a folder")] {
            let path = if name.is_empty() { PathBuf::new() } else { dir.path().join(name) };
            let e = create(&path, true).unwrap_err();
            assert!(e.to_string().contains(what), "{name}: {e}");
        }
        let e = create(&dir.path().join("x".repeat(300)), true).unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::Io, "{e}");
    }

    #[test]
    fn a_name_that_becomes_something_else_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let f = create(&path, true).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(f.finish().unwrap_err().to_string().contains("a folder"));
        #[cfg(unix)]
        {
            std::fs::remove_dir(&path).unwrap();
            let f = create(&path, true).unwrap();
            std::os::unix::fs::symlink("elsewhere", &path).unwrap();
            assert!(f.finish().unwrap_err().to_string().contains("a symbolic link"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn endings_of_other_formats_are_refused() {
        let refused = |kind: OutputKind, name: &str| kind.check(Path::new(name), &[]).is_err();
        for name in ["m.safetensors", "m.JSON", "m.bin", "m.pt", "m.gguf", "a/b.npy", "m.wcodec.txt", "x.h5", "x.py"] {
            assert!(refused(Container, name), "{name}");
        }
        for name in ["m.wcodec", "m.WCODEC", "m", "m.safetensors.wcodec", "llama-7.1b", "m.wcodec.bak", ".json", "m."] {
            assert!(!refused(Container, name), "{name}");
        }
        assert!(refused(Safetensors, "m.wcodec") && refused(Safetensors, "m.gguf") && !refused(Safetensors, "m.st"));
        assert!(refused(Json, "r.wcodec") && refused(Json, "r.safetensors") && refused(Json, "r.pt"));
        assert!(!refused(Json, "r.json") && !refused(Json, "r.txt") && !refused(Json, "r"));
        assert!(refused(Log, "m.wcodec") && refused(Log, "m.json") && !refused(Log, "m.log"));
        for (endings, kinds) in ENDINGS {
            for ending in endings {
                assert!(!refused(OutputKind::Other, &format!("m.{ending}")));
                for kind in [Container, Safetensors, Json, Log] {
                    assert_ne!(refused(kind, &format!("m.{ending}")), kinds.contains(&kind), "{ending}");
                }
            }
        }
        // Each extension has one meaning.
        let all: Vec<&str> = ENDINGS.iter().flat_map(|(endings, _)| endings.iter().copied()).collect();
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len());
    }
}
