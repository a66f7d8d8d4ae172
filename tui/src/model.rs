//! What is known of a file from its index: read once, shared by the state and the workers, never changed.

pub mod compare;
pub mod filter;
pub mod heat;
pub mod map;
pub mod order;
pub mod rates;
pub mod statements;
pub mod totals;
pub mod tree;
pub mod widths;
pub mod words;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use wcodec::{Container, OpenOptions, Result, TensorInfo};

use self::totals::Totals;
use self::tree::Tree;
use self::widths::Widths;

/// A container's index, arranged for looking at.
#[derive(Debug)]
pub struct FileModel {
    /// As the user gave it.
    pub path: PathBuf,
    /// The open file.
    pub container: Container,
    /// The stored tensors in file order; all indices of tensors are places here.
    pub tensors: Vec<TensorInfo>,
    /// Names of tied tensors and of those that hold their data.
    pub aliases: Vec<(String, String)>,
    /// Tensors in natural order of their names: `layers.9` before `layers.10`.
    pub natural: Vec<usize>,
    /// Tensors by module path, in natural order.
    pub tree: Tree,
    /// Sums over all tensors.
    pub totals: Totals,
    /// How wide columns of a table of all tensors are.
    pub widths: Widths,
    /// Tells whether the file on disk is still this one.
    pub stamp: Stamp,
}

impl FileModel {
    /// Opens a container that is not trusted, and reads its index.
    ///
    /// # Errors
    /// It cannot be read, or is no sound container.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    /// Opens a container, [trusted](OpenOptions::trusted) or not, and reads its index.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(path: &Path, trusted: bool) -> Result<Self> {
        let stamp = Stamp::of(path);
        let container = Container::open_with(path, &OpenOptions { trusted, ..OpenOptions::default() })?;
        let tensors = container.infos()?;
        let aliases = container.aliases().iter().map(|(a, t)| (a.clone(), t.clone())).collect();
        let natural = order::natural_order(&tensors);
        let tree = Tree::new(&tensors, &natural);
        let totals = Totals::of(&tensors);
        let widths = Widths::of(&tensors, &tree);
        Ok(Self { path: path.to_owned(), container, tensors, aliases, natural, tree, totals, widths, stamp })
    }

    /// The place of a tensor, or of the one that an alias is tied to.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.container.reader().find(name)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.container.file_len()
    }
}

/// What tells one file from another at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    length: Option<u64>,
    modified: Option<SystemTime>,
    /// Where files have numbers: another file at the same path has another one.
    number: Option<u64>,
}

impl Stamp {
    /// That of the file which is there now.
    pub fn of(path: &Path) -> Self {
        let meta = std::fs::metadata(path).ok();
        Self {
            length: meta.as_ref().map(std::fs::Metadata::len),
            modified: meta.as_ref().and_then(|m| m.modified().ok()),
            number: meta.as_ref().and_then(number_of),
        }
    }
}

#[cfg(unix)]
fn number_of(meta: &std::fs::Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(meta))
}

#[cfg(not(unix))]
fn number_of(_: &std::fs::Metadata) -> Option<u64> {
    None
}
