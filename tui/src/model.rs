//! A file as its index tells it: read once, shared by the state and the workers, never changed.

pub mod compare;
pub mod filter;
pub mod heat;
pub mod map;
pub mod order;
pub mod original;
pub mod rates;
pub mod statements;
pub mod totals;
pub mod tree;

pub use self::compare::{Compared, Comparison, Relation};
pub use self::filter::Filter;
pub use self::heat::{Heat, HeatCell};
pub use self::map::{FileMap, Kind, Region};
pub use self::order::Sort;
pub use self::original::Original;
pub use self::rates::{Group, Rates};
pub use self::totals::{Totals, Widths};
pub use self::tree::Tree;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use wcodec::container::{HEADER_BYTES, Header};
use wcodec::{Code, Container, OpenOptions, Result, TensorInfo};

/// Endings of files of models.
const ENDINGS: [&str; 3] = [".wcodec", ".safetensors", ".gguf"];

/// The contents of a file.
#[derive(Debug)]
pub enum Content {
    /// A container, open.
    Container(Box<Container>),
    /// A checkpoint or a GGUF file, whose headers were read.
    Original(Box<Original>),
    /// A container that was cut off: its header. The index, which names the tensors, was behind the cut.
    Cut(Header, u64),
}

/// A container's index, or the header of another file, arranged for looking at.
#[derive(Debug)]
pub struct FileModel {
    /// As the user gave it.
    pub path: PathBuf,
    /// The open file.
    pub content: Content,
    /// Text that belongs to the whole.
    pub metadata: BTreeMap<String, String>,
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
    /// The widths of columns of a table of all tensors.
    pub widths: Widths,
    /// Tells whether the file on disk is still this one.
    pub stamp: Stamp,
    // Worked out when they are first looked at, so that no view waits for what another one shows.
    heat: OnceLock<Heat>,
    map: OnceLock<FileMap>,
    rates: OnceLock<Rates>,
}

impl FileModel {
    /// Opens a container that is not trusted, and reads its index.
    ///
    /// # Errors
    /// It cannot be read, or is no sound container.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    /// Opens a container that may have been cut off, or a checkpoint or a GGUF file.
    ///
    /// # Errors
    /// As for [`open`](Self::open); a container whose header is whole opens however much of the rest is missing.
    pub fn open_any(path: &Path, trusted: bool) -> Result<Self> {
        if Original::is_one(path) {
            return Self::of(path, Stamp::of(path), Content::Original(Box::new(Original::open(path)?)));
        }
        Self::open_with(path, trusted).or_else(|e| {
            let (header, length) = cut_header(path).ok_or(e)?;
            Self::of(path, Stamp::of(path), Content::Cut(header, length))
        })
    }

    /// Opens a container, [trusted](OpenOptions::trusted) or not, and reads its index.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(path: &Path, trusted: bool) -> Result<Self> {
        let stamp = Stamp::of(path);
        let container = Container::open_with(path, &OpenOptions { trusted, ..OpenOptions::default() })?;
        Self::of(path, stamp, Content::Container(Box::new(container)))
    }

    fn of(path: &Path, stamp: Stamp, content: Content) -> Result<Self> {
        let (tensors, metadata, aliases) = match &content {
            Content::Container(c) => {
                let aliases = c.aliases().iter().map(|(a, t)| (a.clone(), t.clone())).collect();
                (c.infos()?, c.metadata().clone(), aliases)
            }
            Content::Original(o) => (o.infos()?, o.metadata(), Vec::new()),
            Content::Cut(..) => Default::default(),
        };
        let natural = order::natural_order(&tensors);
        let tree = Tree::new(&tensors, &natural);
        let totals = Totals::of(&tensors);
        let widths = Widths::of(&tensors);
        let (path, heat, map, rates) = (path.to_owned(), OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self { path, content, metadata, tensors, aliases, natural, tree, totals, widths, stamp, heat, map, rates })
    }

    /// Its tensors by layer and role.
    pub fn heat(&self) -> &Heat {
        self.heat.get_or_init(|| Heat::new(self))
    }

    /// Its ranges of bytes.
    pub fn map(&self) -> &FileMap {
        self.map.get_or_init(|| FileMap::new(self))
    }

    /// Its statements on its bits, and sums of them.
    pub fn rates(&self) -> &Rates {
        self.rates.get_or_init(|| Rates::new(self))
    }

    /// The model's name, as far as the path tells it: that of the file without its ending, or of the folder where the file has the name
    /// that all models' files have.
    pub fn name(&self) -> String {
        let last = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let whole = last(&self.path).unwrap_or_default();
        let stem = ENDINGS.iter().find_map(|e| whole.strip_suffix(e)).unwrap_or(&whole);
        let usual = ["model", "pytorch_model"].contains(&stem);
        let folder = || self.path.parent().filter(|_| usual).and_then(last);
        folder().or_else(|| (!stem.is_empty()).then(|| stem.to_owned())).unwrap_or_else(|| "model".to_owned())
    }

    /// The place of a tensor, or of the one that an alias is tied to.
    pub fn find(&self, name: &str) -> Option<usize> {
        match &self.content {
            Content::Container(container) => container.reader().find(name),
            _ => self.tensors.iter().position(|t| t.name == name),
        }
    }

    /// The tensor at a place.
    ///
    /// # Errors
    /// There is none.
    pub fn info(&self, tensor: usize) -> Result<&TensorInfo> {
        self.tensors.get(tensor).ok_or_else(|| Code::INPUT_BUG.error("there is no such tensor"))
    }

    /// [`find`](Self::find), for a name that a user gave.
    ///
    /// # Errors
    /// There is no such tensor; the message names the nearest one.
    pub fn place(&self, name: &str) -> Result<usize> {
        if let Content::Container(container) = &self.content {
            return container.reader().place(name);
        }
        self.find(name).ok_or_else(|| {
            let e = Code::INPUT_BUG.error("there is no such tensor").file(&self.path).tensor(name);
            match wcodec::names::near(name, self.tensors.iter().map(|t| t.name.as_str())) {
                Some(near) => e.advice(format!("did you mean '{near}'?")),
                None => e,
            }
        })
    }

    /// The container.
    ///
    /// # Errors
    /// The file is none.
    pub fn container(&self) -> Result<&Container> {
        match &self.content {
            Content::Container(container) => Ok(container),
            Content::Original(_) => Err(Code::ENCODED_OR_NOT
                .error("it is not encoded: there is nothing to decode")
                .file(&self.path)
                .advice("encode it first, with wcodec encode or the key E")),
            Content::Cut(..) => {
                Err(Code::FILE_LENGTH.error("it was cut off before its index").file(&self.path).advice("copy it again"))
            }
        }
    }

    /// The checkpoint or GGUF file, if it is one.
    pub fn original(&self) -> Option<&Original> {
        match &self.content {
            Content::Original(original) => Some(original),
            _ => None,
        }
    }

    /// The number of a tensor's bytes that are missing because the file was cut off.
    pub fn missing(&self, tensor: usize) -> u64 {
        self.original().map_or(0, |o| o.missing(tensor))
    }

    /// The message on a file of which a part is missing.
    pub fn cut(&self) -> Option<String> {
        match &self.content {
            Content::Container(_) => None,
            Content::Cut(header, length) => {
                let part = 100.0 * *length as f64 / header.file_length.max(1) as f64;
                Some(format!("cut off: {length} of {} bytes ({part:.1} %)", header.file_length))
            }
            Content::Original(original) => {
                let lacking = (0..self.tensors.len()).filter(|&i| original.missing(i) > 0).count();
                (lacking > 0).then(|| format!("cut off: {lacking} of {} tensors are not whole", self.tensors.len()))
            }
        }
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        match &self.content {
            Content::Container(container) => container.file_len(),
            Content::Original(original) => original.file_bytes(),
            Content::Cut(_, length) => *length,
        }
    }
}

/// The header of a container that is shorter than it says, and how long it is.
fn cut_header(path: &Path) -> Option<(Header, u64)> {
    let mut bytes = [0; HEADER_BYTES];
    // Asked before opening, which would wait for a writer if this were a pipe.
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.read_exact(&mut bytes).ok()?;
    // The file's length, as its header has it.
    let whole = u64::from_le_bytes(bytes[40..48].try_into().ok()?);
    let header = Header::from_bytes(&bytes, whole).ok()?;
    (length < whole).then_some((header, length))
}

/// Marks that tell one file from another at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    length: Option<u64>,
    modified: Option<SystemTime>,
    /// The file's number: another file at the same path has another one.
    number: Option<u64>,
}

impl Stamp {
    /// That of the file which is there now.
    pub fn of(path: &Path) -> Self {
        let meta = std::fs::metadata(path).ok();
        Self {
            length: meta.as_ref().map(std::fs::Metadata::len),
            modified: meta.as_ref().and_then(|m| m.modified().ok()),
            number: meta.as_ref().map(MetadataExt::ino),
        }
    }
}
