//! What is encoded: `.safetensors` files, sharded checkpoint folders, tensors in memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::{InputFile, folder_of};
use crate::pool::Pool;
use crate::scheme::Levels;
use crate::tensor::{AlignedBytes, Dtype, TensorView};

mod config;
mod gguf;
mod header;
mod quantized;
mod shards;

use config::{CONFIG, read_model};
pub(crate) use config::{REST_FILE, container_in, container_of, is_whole};
pub use gguf::{Gguf, GgufSource, GgufTensor};
pub use header::Opaque;
use header::read_header;
pub use quantized::{Dequantized, Quantization, QuantizedTensor};
use shards::{Shards, find_shards};

/// A tensor that a [`Source`] has.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceTensor {
    /// Its name, unique in the source.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Name of the tensor that holds the data, where this one is tied to it.
    pub alias_of: Option<String>,
    /// What the source says, where it is of a dtype that this crate knows nothing of: then it is a list of bytes.
    pub opaque: Option<Opaque>,
}

/// Bytes of a tensor, borrowed from the source or read for the caller.
#[derive(Debug)]
pub enum SourceBytes<'a> {
    /// The source holds them.
    Borrowed(&'a [u8]),
    /// Read from a file.
    Owned(AlignedBytes),
}

impl std::ops::Deref for SourceBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            SourceBytes::Borrowed(b) => b,
            SourceBytes::Owned(b) => b,
        }
    }
}

/// Named tensors whose bytes are read one at a time.
pub trait Source: Sync {
    /// What there is, in the order in which it is to be stored.
    fn tensors(&self) -> &[SourceTensor];
    /// Row-major little-endian bytes of a tensor, by its place in [`tensors`](Self::tensors). Called on the thread that began the
    /// operation; `pool` is there for what can be done in parallel.
    ///
    /// # Errors
    /// The tensor cannot be read, or `cancel` was used.
    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>>;
    /// [`read_with`](Self::read_with), with all cores.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn read(&self, index: usize) -> Result<SourceBytes<'_>> {
        self.read_with(index, &Pool::new(None)?, &Cancel::new())
    }
    /// Levels that were chosen for a tensor of scheme `rate`, which are then stored as they are; nothing where that is left to the scheme.
    /// Called after the tensor was read, on the same thread.
    ///
    /// # Errors
    /// They cannot be had, or `cancel` was used.
    fn levels_with(&self, _index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<Option<Levels>> {
        Ok(None)
    }
    /// Text that belongs to the whole.
    fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    /// `config` and `files` of the model, as the index keeps them.
    fn model(&self) -> Option<serde_json::Value> {
        None
    }
    /// The file or folder, for errors.
    fn path(&self) -> Option<&Path> {
        None
    }
    /// The files that are read, or that belong to what is: none of them may be the output.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// A checkpoint on disk: one `.safetensors` file, or a folder with one, or with several and their index.
///
/// Opening reads headers only; files are read piece by piece and never mapped.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<InputFile>,
    /// The index of the shards, `config.json`, the tokenizer's.
    others: Vec<PathBuf>,
    tensors: Vec<SourceTensor>,
    places: Vec<Place>,
    names: HashSet<String>,
    metadata: BTreeMap<String, String>,
    model: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    offset: u64,
    length: usize,
}

impl Checkpoint {
    /// Opens a file or a folder.
    ///
    /// # Errors
    /// Something is missing, damaged or of an unknown dtype, or only what is not compressed of a model is there; the message names
    /// the file.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_rest(path)?;
        refuse_rest(&checkpoint)?;
        Ok(checkpoint)
    }

    /// Opens a file or a folder of which data may have been cut off, to look at what is there: [`missing`](Self::missing) says what a tensor
    /// lacks, and reading that is an error.
    ///
    /// # Errors
    /// As for [`open`](Self::open), but for files that are too short for their headers.
    pub fn open_cut(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_any(path, true)?;
        refuse_rest(&checkpoint)?;
        Ok(checkpoint)
    }

    /// Opens a file or a folder that may be what is not compressed of a model, for those who have the container, too.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_rest(path: &Path) -> Result<Self> {
        Self::open_any(path, false)
    }

    fn open_any(path: &Path, cut: bool) -> Result<Self> {
        let mut checkpoint = Self {
            path: path.to_owned(),
            files: Vec::new(),
            others: Vec::new(),
            tensors: Vec::new(),
            places: Vec::new(),
            names: HashSet::new(),
            metadata: BTreeMap::new(),
            model: None,
        };
        let folder;
        if path.is_dir() {
            folder = path;
            let Shards { names, index, wanted } = find_shards(path)?;
            checkpoint.others.extend(index);
            for shard in names {
                let file = path.join(&shard);
                if !file.is_file() {
                    return Err(Error::missing("a shard of the checkpoint is missing", &file)
                        .advice("download it, or complete the copy of the checkpoint"));
                }
                checkpoint.add_file(&file, cut, |name, taken| {
                    // Tensors that the index does not mention are taken where they are.
                    let Some(place) = wanted.as_ref().and_then(|w| w.get(name)).filter(|place| **place != shard) else {
                        return Ok(true);
                    };
                    if taken.contains(name) {
                        let what = format!(
                            "it is in '{place}', as the index says, and in '{shard}', from which transformers reads it"
                        );
                        return Err(Error::format(what)
                            .file(path)
                            .tensor(name)
                            .advice("download the checkpoint again"));
                    }
                    Ok(false)
                })?;
            }
            if let Some((name, shard)) = wanted.iter().flatten().find(|(n, _)| !checkpoint.names.contains(*n)) {
                return Err(Error::format(format!("the index puts it into '{shard}', where it is not"))
                    .file(path)
                    .tensor(name)
                    .advice("download the checkpoint again"));
            }
        } else {
            folder = folder_of(path);
            checkpoint.add_file(path, cut, |_, _| Ok(true))?;
        }
        if let Some((config, files)) = read_model(folder)? {
            checkpoint.others.push(folder.join(CONFIG));
            checkpoint.others.extend(files.iter().map(|name| folder.join(name)));
            checkpoint.model = Some(serde_json::json!({ "config": config, "files": files }));
        }
        Ok(checkpoint)
    }

    /// The file that has a tensor, by its place in [`tensors`](Source::tensors).
    pub fn file_of(&self, index: usize) -> &Path {
        self.files[self.places[index].file].path()
    }

    /// The `.safetensors` files.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(InputFile::path)
    }

    /// How many of a tensor's bytes its file lacks, by its place: 0 unless it was cut off.
    pub fn missing(&self, index: usize) -> u64 {
        let Place { file, offset, length } = self.places[index];
        offset.saturating_add(length as u64).saturating_sub(self.files[file].length()).min(length as u64)
    }

    /// Where a tensor's bytes are in [its file](Self::file_of), and how many, by its place.
    pub fn range_of(&self, index: usize) -> (u64, u64) {
        let Place { offset, length, .. } = self.places[index];
        (offset, length as u64)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(InputFile::length).sum()
    }

    /// Some bytes of a tensor, by its place and from so many bytes behind its beginning on.
    ///
    /// # Errors
    /// They are not in the tensor or not in the file, or `cancel` was used.
    pub fn read_part(&self, index: usize, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        let Place { file, offset: begin, length: all } = self.places[index];
        let name = &self.tensors[index].name;
        if offset.checked_add(length as u64).is_none_or(|end| end > all as u64) {
            return Err(Error::input(format!("{length} bytes from {offset} on are not in it")).tensor(name));
        }
        self.files[file].read(begin + offset, length, cancel).map_err(|e| e.tensor(name))
    }

    /// `wanted` says of a tensor of the file, and of the names that other files have given, whether it is taken.
    fn add_file(
        &mut self,
        path: &Path,
        cut: bool,
        wanted: impl Fn(&str, &HashSet<String>) -> Result<bool>,
    ) -> Result<()> {
        let file = InputFile::open(path)?;
        let (start, header) = read_header(&file, cut).map_err(|e| e.file(path))?;
        let header::Header { known: header, mut opaque } = header;
        for name in header.offset_keys() {
            if !wanted(&name, &self.names)? {
                continue;
            }
            let info = header.info(&name).expect("the header names it");
            let dtype = Dtype::from_name(&format!("{:?}", info.dtype)).map_err(|e| e.file(path).tensor(&name))?;
            let (begin, end) = info.data_offsets;
            if !self.names.insert(name.clone()) {
                let at = self.tensors.iter().position(|t| t.name == name).expect("its name was taken");
                let (first, second) = (own_name(self.file_of(at)), own_name(path));
                return Err(Error::format(format!("it is in two shards, '{first}' and '{second}'"))
                    .file(path)
                    .tensor(&name)
                    .advice("download the checkpoint again"));
            }
            self.places.push(Place { file: self.files.len(), offset: start + begin as u64, length: end - begin });
            let opaque = opaque.remove(&name);
            self.tensors.push(SourceTensor { name, dtype, shape: info.shape.clone(), alias_of: None, opaque });
        }
        for (key, value) in header.metadata().iter().flatten() {
            self.metadata.insert(key.clone(), value.clone());
        }
        self.files.push(file);
        Ok(())
    }
}

/// A file's own name, for messages.
fn own_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Refuses a checkpoint that is the rest of a model: most of the model would be left out silently.
fn refuse_rest(checkpoint: &Checkpoint) -> Result<()> {
    for path in checkpoint.shards().filter(|p| p.file_name().is_some_and(|n| n == REST_FILE)) {
        if let Some(name) = container_of(folder_of(path)) {
            let what = format!("it has only what is not compressed of a model, whose other weights are in '{name}'");
            return Err(Error::input(what)
                .file(path)
                .advice("name the original checkpoint, or decode that file first"));
        }
    }
    Ok(())
}

impl Source for Checkpoint {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        let Place { file, offset, length } = self.places[index];
        let bytes = pool.run(|| self.files[file].read(offset, length, cancel)).flatten();
        Ok(SourceBytes::Owned(bytes.map_err(|e| e.tensor(&self.tensors[index].name))?))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }

    fn model(&self) -> Option<serde_json::Value> {
        self.model.clone()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.shards().map(Path::to_owned).chain(self.others.iter().cloned()).collect()
    }
}

/// Tensors in memory.
///
/// ```
/// use wcodec::{Dtype, MemorySource, Source};
/// let weights = [1.0f32, -2.0];
/// let mut source = MemorySource::new();
/// source.push("w".into(), Dtype::F32, vec![1, 2], bytemuck::bytes_of(&weights).into()).unwrap();
/// source.alias("tied".into(), "w".into()).unwrap();
/// assert_eq!(source.tensors().len(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemorySource<'a> {
    tensors: Vec<SourceTensor>,
    data: Vec<Cow<'a, [u8]>>,
    names: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl<'a> MemorySource<'a> {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of row-major little-endian bytes.
    ///
    /// # Errors
    /// The name is empty or taken, or the bytes do not fit the shape.
    pub fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, data: Cow<'a, [u8]>) -> Result<()> {
        TensorView::new(dtype, &shape, &data).map_err(|e| e.tensor(&name))?;
        self.add(SourceTensor { name, dtype, shape, alias_of: None, opaque: None }, data)
    }

    /// Adds another name for a tensor that was added before.
    pub fn alias(&mut self, name: String, target: String) -> Result<()> {
        let Some(&at) = self.names.get(&target) else {
            return Err(Error::input(format!("an alias of '{target}', which is not there")).tensor(&name));
        };
        let SourceTensor { dtype, shape, alias_of, .. } = self.tensors[at].clone();
        let alias_of = Some(alias_of.unwrap_or(target));
        self.add(SourceTensor { name, dtype, shape, alias_of, opaque: None }, Cow::Borrowed(&[]))
    }

    /// Sets the text that belongs to the whole.
    pub fn set_metadata(&mut self, metadata: BTreeMap<String, String>) {
        self.metadata = metadata;
    }

    fn add(&mut self, tensor: SourceTensor, data: Cow<'a, [u8]>) -> Result<()> {
        if tensor.name.is_empty() || self.names.insert(tensor.name.clone(), self.tensors.len()).is_some() {
            return Err(Error::input("the name of a tensor is empty or not unique").tensor(&tensor.name));
        }
        self.tensors.push(tensor);
        self.data.push(data);
        Ok(())
    }
}

impl Source for MemorySource<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<SourceBytes<'_>> {
        // What an alias stands for is never one itself.
        let own = self.tensors[index].alias_of.as_ref().map_or(index, |target| self.names[target]);
        Ok(SourceBytes::Borrowed(&self.data[own]))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }
}
