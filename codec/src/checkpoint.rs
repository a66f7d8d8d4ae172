//! Sources to encode: `.safetensors` files, sharded checkpoint folders, tensors in memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::cancel::Cancel;
use crate::error::{Code, Error, Result};
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

/// A tensor of a [`Source`].
#[derive(Clone, Debug, PartialEq)]
pub struct SourceTensor {
    /// Its name, unique in the source.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Name of the tensor that holds the data, if this one is tied to it.
    pub alias_of: Option<String>,
    /// The source's description, if it has a dtype that this crate does not know: the tensor is then a list of bytes.
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
    /// The tensors, in the order in which they are to be stored.
    fn tensors(&self) -> &[SourceTensor];
    /// Row-major little-endian bytes of a tensor, by index in [`tensors`](Self::tensors). Called on the thread that
    /// began the operation; `pool` may be used for parallel work.
    ///
    /// # Errors
    /// The tensor cannot be read, or `cancel` was used.
    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>>;
    /// [`read_with`](Self::read_with) on all cores.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn read(&self, index: usize) -> Result<SourceBytes<'_>> {
        self.read_with(index, &Pool::new(None)?, &Cancel::new())
    }
    /// Levels that were chosen for a tensor of scheme `rate` and are stored unchanged; `None` to let the scheme choose
    /// them. Called after the tensor was read, on the same thread.
    ///
    /// # Errors
    /// They cannot be computed or read, or `cancel` was used.
    fn levels_with(&self, _index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<Option<Levels>> {
        Ok(None)
    }
    /// Text that belongs to the checkpoint as a whole.
    fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    /// The model's `config` and `files`, as the index keeps them.
    fn model(&self) -> Option<serde_json::Value> {
        None
    }
    /// The file or folder, for error messages.
    fn path(&self) -> Option<&Path> {
        None
    }
    /// The files that are read, or belong to those: the output must not be one of them.
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
    /// The index of the shards, `config.json`, the tokenizer's files.
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
    /// A file is missing, damaged or of an unknown dtype, or there is only the uncompressed rest of a model; the
    /// message names the file.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_rest(path)?;
        refuse_rest(&checkpoint)?;
        Ok(checkpoint)
    }

    /// Opens a file or a folder whose data may have been truncated, for inspection: [`missing`](Self::missing) has the
    /// number of bytes that a tensor lacks, and reading those is an error.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), except that files may be shorter than their headers say.
    pub fn open_cut(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_any(path, true)?;
        refuse_rest(&checkpoint)?;
        Ok(checkpoint)
    }

    /// Opens a file or a folder that may be the uncompressed rest of a model, for callers that also have the container.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
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
                    return Err(Error::missing(Code::NO_SHARD, "a shard of the checkpoint is missing", &file)
                        .advice("download it, or complete the copy of the checkpoint"));
                }
                checkpoint.add_file(&file, cut, |name, taken| {
                    // Tensors that the index does not list are read from the file that has them.
                    let Some(place) = wanted.as_ref().and_then(|w| w.get(name)).filter(|place| **place != shard) else {
                        return Ok(true);
                    };
                    if taken.contains(name) {
                        let what = format!(
                            "it is in '{place}', as the index says, and in '{shard}', from which transformers reads it"
                        );
                        return Err(coded!(SHARDS_DISAGREE, what)
                            .file(path)
                            .tensor(name)
                            .advice("download the checkpoint again"));
                    }
                    Ok(false)
                })?;
            }
            if let Some((name, shard)) = wanted.iter().flatten().find(|(n, _)| !checkpoint.names.contains(*n)) {
                return Err(coded!(SHARDS_DISAGREE, "the index puts it into '{shard}', where it is not")
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

    /// The file that has a tensor, by index in [`tensors`](Source::tensors).
    pub fn file_of(&self, index: usize) -> &Path {
        self.files[self.places[index].file].path()
    }

    /// The `.safetensors` files.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(InputFile::path)
    }

    /// The number of a tensor's bytes that its file lacks, by index: 0 unless the file was truncated.
    pub fn missing(&self, index: usize) -> u64 {
        let Place { file, offset, length } = self.places[index];
        offset.saturating_add(length as u64).saturating_sub(self.files[file].length()).min(length as u64)
    }

    /// Offset and length of a tensor's bytes in [its file](Self::file_of), by index.
    pub fn range_of(&self, index: usize) -> (u64, u64) {
        let Place { offset, length, .. } = self.places[index];
        (offset, length as u64)
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(InputFile::length).sum()
    }

    /// Some bytes of a tensor, by index, from `offset` within the tensor on.
    ///
    /// # Errors
    /// They are not in the tensor or not in the file, or `cancel` was used.
    pub fn read_part(&self, index: usize, offset: u64, length: usize, cancel: &Cancel) -> Result<AlignedBytes> {
        let Place { file, offset: begin, length: all } = self.places[index];
        let name = &self.tensors[index].name;
        if offset.checked_add(length as u64).is_none_or(|end| end > all as u64) {
            return Err(coded!(INPUT_BUG, "{length} bytes from {offset} on are not in it").tensor(name));
        }
        self.files[file].read(begin + offset, length, cancel).map_err(|e| e.tensor(name))
    }

    /// Adds a file's tensors. `wanted` decides whether a tensor is taken, given its name and the names taken so far.
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
                return Err(coded!(SHARDS_DISAGREE, "it is in two shards, '{first}' and '{second}'")
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

/// The name of a file without its folder, for messages.
fn own_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Refuses a checkpoint that is the rest of a model: most of the model would be missing without notice.
fn refuse_rest(checkpoint: &Checkpoint) -> Result<()> {
    for path in checkpoint.shards().filter(|p| p.file_name().is_some_and(|n| n == REST_FILE)) {
        if let Some(name) = container_of(folder_of(path)) {
            let what = format!("it has only what is not compressed of a model, whose other weights are in '{name}'");
            return Err(coded!(COMPRESSED_SOURCE, what)
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
    /// An empty source.
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

    /// Adds another name for a tensor added before.
    pub fn alias(&mut self, name: String, target: String) -> Result<()> {
        let Some(&at) = self.names.get(&target) else {
            return Err(coded!(INPUT_BUG, "an alias of '{target}', which is not there").tensor(&name));
        };
        let SourceTensor { dtype, shape, alias_of, .. } = self.tensors[at].clone();
        let alias_of = Some(alias_of.unwrap_or(target));
        self.add(SourceTensor { name, dtype, shape, alias_of, opaque: None }, Cow::Borrowed(&[]))
    }

    /// Sets the text that belongs to the checkpoint as a whole.
    pub fn set_metadata(&mut self, metadata: BTreeMap<String, String>) {
        self.metadata = metadata;
    }

    fn add(&mut self, tensor: SourceTensor, data: Cow<'a, [u8]>) -> Result<()> {
        if tensor.name.is_empty() || self.names.insert(tensor.name.clone(), self.tensors.len()).is_some() {
            return Err(coded!(INPUT_BUG, "the name of a tensor is empty or not unique").tensor(&tensor.name));
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
        // The target of an alias is never an alias itself.
        let target = self.tensors[index].alias_of.as_ref().map_or(index, |target| self.names[target]);
        Ok(SourceBytes::Borrowed(&self.data[target]))
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }
}
