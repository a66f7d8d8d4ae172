//! An open container: access to its contents, and state kept between calls.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::value::RawValue;

use super::options::DecodeOptions;
use crate::cancel::Cancel;
use crate::checkpoint::container_in;
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};
use crate::container::texts::IndexTexts;
use crate::container::{Index, Reader};
use crate::error::Result;
use crate::info::{TensorInfo, TensorInfos};
use crate::pool::Pool;
use crate::stored::StoredTensor;
use crate::trust::OpenOptions;

/// Bytes of a container that one thread copies at once.
const COPIED: usize = 2 << 20;

/// An open container. Opening reads header and index only.
///
/// Threads share it; each call reads the bytes that it needs.
#[derive(Debug)]
pub struct Container {
    pub(super) reader: Reader,
    /// Tables that were read already, and whether their hashes were compared.
    tables: Mutex<HashMap<usize, (Arc<Table>, bool)>>,
    pool: Mutex<Option<(Option<usize>, Arc<Pool>)>>,
    infos: OnceLock<TensorInfos>,
    texts: OnceLock<IndexTexts>,
    /// Indices of tensors all of whose segments were compared with their hashes.
    pub(super) sound: Mutex<HashSet<usize>>,
}

impl Container {
    /// Opens an untrusted file, or the one in the folder of a compressed model.
    ///
    /// # Errors
    /// It is not a container, is damaged, or has a newer version; the message names the file and the byte. The folder
    /// has no container, or several, and its `config.json` names none of them.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a file, or the one in a folder.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and an index that is too large for an untrusted file.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self> {
        if path.is_dir() {
            return Reader::open_with(&container_in(path)?, options).map(Self::new);
        }
        Reader::open_with(path, options).map(Self::new)
    }

    /// Opens an untrusted container in memory.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::from_bytes_with(bytes, &OpenOptions::default())
    }

    /// Opens a container in memory.
    ///
    /// # Errors
    /// Those of [`open_with`](Self::open_with).
    pub fn from_bytes_with(bytes: Vec<u8>, options: &OpenOptions) -> Result<Self> {
        Reader::from_bytes_with(bytes, options).map(Self::new)
    }

    pub(crate) fn new(reader: Reader) -> Self {
        Self {
            reader,
            tables: Mutex::default(),
            pool: Mutex::default(),
            infos: OnceLock::new(),
            texts: OnceLock::new(),
            sound: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> &Index {
        self.reader.index()
    }

    /// The underlying reader: header, index, segments.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Whether it was opened as [trusted](OpenOptions::trusted). Decoders to other memory, such as a GPU's, check this.
    pub fn trusted(&self) -> bool {
        self.reader.trusted()
    }

    /// Names of the stored tensors, in file order.
    pub fn names(&self) -> Vec<&str> {
        self.index().tensors.iter().map(|t| t.name.as_str()).collect()
    }

    /// Tied tensors, and the tensors that hold their data.
    pub fn aliases(&self) -> &BTreeMap<String, String> {
        &self.index().aliases
    }

    /// The name under which the data of `name` is stored: the name itself, or the one that it is an alias of.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn resolve(&self, name: &str) -> Result<&str> {
        Ok(&self.reader.tensor(name)?.name)
    }

    /// The tensors that hold the data of `names`, each once; all tensors if no name is given.
    ///
    /// # Errors
    /// There is no such tensor.
    pub(crate) fn stored_names(&self, names: &[String]) -> Result<Vec<String>> {
        if names.is_empty() {
            return Ok(self.names().into_iter().map(str::to_owned).collect());
        }
        let mut seen = HashSet::new();
        let stored = names.iter().map(|n| self.resolve(n)).collect::<Result<Vec<_>>>()?;
        Ok(stored.into_iter().filter(|n| seen.insert(*n)).map(str::to_owned).collect())
    }

    /// The index's description of a tensor.
    ///
    /// # Errors
    /// There is no such tensor, or its dtype is unknown.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let place = self.reader.place(name)?;
        let info = self.tensors().get(place).map_err(|e| self.reader.name(e))?;
        Ok(info.expect("a place of the index"))
    }

    /// The index's descriptions of all tensors.
    ///
    /// # Errors
    /// Those of [`TensorInfos::all`].
    pub fn infos(&self) -> Result<Vec<TensorInfo>> {
        self.tensors().all().map_err(|e| self.reader.name(e))
    }

    /// The index's descriptions of all tensors, each made on demand; they outlive the container.
    pub fn tensors(&self) -> &TensorInfos {
        self.infos.get_or_init(|| TensorInfos::new(self.reader.shared_index()))
    }

    /// Text that belongs to the file as a whole.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.index().metadata
    }

    /// The model's `config` and `files`, if the source had them. Each call parses them anew.
    ///
    /// # Errors
    /// The file's JSON cannot be read: it is too deep, or has a number beyond all bounds.
    pub fn model(&self) -> Result<Option<serde_json::Value>> {
        let parse = |text: &RawValue| {
            serde_json::from_str(text.get())
                .map_err(|e| self.reader.name(coded!(BAD_MODEL_RECORD, "the index's 'model' cannot be read: {e}")))
        };
        self.index().model.as_deref().map(parse).transpose()
    }

    /// The index as stored.
    pub fn index_json(&self) -> Result<String> {
        self.reader.index_json()
    }

    /// The index as text, cut into entries.
    pub(crate) fn index_texts(&self) -> Result<&IndexTexts> {
        if let Some(texts) = self.texts.get() {
            return Ok(texts);
        }
        let texts = IndexTexts::new(&self.index_json()?).map_err(|e| self.reader.name(e))?;
        Ok(self.texts.get_or_init(|| texts))
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.reader.header().file_length
    }

    /// Path of the file; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        self.reader.path()
    }

    /// Whether this process encoded it, to memory that is not shared, so that its bytes need no comparison with hashes.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.reader.is_ours()
    }

    /// Copies the container's bytes to `out`, which has [`file_len`](Self::file_len) bytes, with all threads.
    ///
    /// # Errors
    /// `out` is shorter or longer, the bytes cannot be read, or `cancel` was used.
    ///
    /// ```
    /// use wcodec::{Cancel, Container, Dtype, EncodeOptions, MemorySource, encode_to_container, encode_to_vec};
    /// let mut source = MemorySource::new();
    /// source.push("w".into(), Dtype::I8, vec![64, 64], vec![5; 4096].into())?;
    /// let (container, report) = encode_to_container(&source, &EncodeOptions::default(), &mut |_| Ok(()))?;
    /// let mut bytes = vec![0; report.stored_bytes as usize];
    /// container.copy_to(&mut bytes, &Cancel::new())?;
    /// assert_eq!(bytes, encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(()))?.0);
    /// # Ok::<(), wcodec::Error>(())
    /// ```
    pub fn copy_to(&self, out: &mut [u8], cancel: &Cancel) -> Result<()> {
        let (has, wants) = (self.file_len(), out.len());
        if wants as u64 != has {
            return Err(coded!(INPUT_BUG, "a container of {has} bytes is to be copied to {wants}")
                .advice("copy it to as many bytes as it has"));
        }
        let copy = |(i, piece): (usize, &mut [u8])| self.reader.copy((i * COPIED) as u64, piece, cancel);
        self.pool(None)?.each(out.chunks_mut(COPIED).enumerate(), cancel, copy).map(drop)
    }

    /// Major and minor version of the format.
    pub fn version(&self) -> (u16, u16) {
        self.reader.header().version
    }

    /// The program that wrote it.
    pub fn writer(&self) -> &str {
        &self.index().writer
    }

    /// Runs `work` on a tensor with the threads that `options` ask for; errors name the tensor and the file.
    pub(super) fn with_tensor<R: Send>(
        &self,
        name: &str,
        options: &DecodeOptions,
        work: impl FnOnce(&StoredTensor) -> Result<R> + Send,
    ) -> Result<R> {
        let tensor = self.stored(name)?;
        self.pool(options.threads)?.run(|| work(&tensor)).flatten().map_err(|e| self.reader.name(e.tensor(name)))
    }

    /// A tensor's properties and the positions of its bytes; nothing is read.
    ///
    /// # Errors
    /// There is no such tensor, or its entry contradicts itself.
    pub(crate) fn stored(&self, name: &str) -> Result<StoredTensor> {
        let entry = self.reader.tensor(name)?;
        StoredTensor::new(entry).map_err(|e| self.reader.name(e.tensor(name)))
    }

    /// A pool of `threads` threads. The last one is kept, because a container may be read in thousands of small calls.
    pub(crate) fn pool(&self, threads: Option<usize>) -> Result<Arc<Pool>> {
        let mut last = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((n, pool)) if *n == threads => Ok(pool.clone()),
            _ => {
                let pool = Arc::new(Pool::new(threads)?);
                *last = Some((threads, pool.clone()));
                Ok(pool)
            }
        }
    }

    /// Table `number`. Tables are kept, together with whether their hashes were compared.
    pub(crate) fn table(&self, number: usize, verify: bool) -> Result<Arc<Table>> {
        let lock = || self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((t, verified)) = lock().get(&number)
            && (*verified || !verify)
        {
            return Ok(t.clone());
        }
        let entry = &self.index().tables[number];
        let coder = Coder::from_name(&entry.coder).map_err(|e| e.code().error(e.message()).advice("upgrade wcodec"))?;
        let layout = entry.layout.as_deref().map(Layout::from_name).transpose();
        let layout = layout.map_err(|e| e.code().error(e.message()).advice("upgrade wcodec"))?;
        // The length is checked before the table is read: a table is small.
        let (least, most) = Table::stored_bytes(coder, layout);
        if most > 0 && !(least..=most).contains(&entry.data.length) {
            let has = if least == most { format!("{most}") } else { format!("at most {most}") };
            let what = format!("a {coder} table has {has} bytes, not {}", entry.data.length);
            return Err(coded!(BAD_TABLE, what).offset(entry.data.offset));
        }
        let bytes = self.reader.segment(&entry.data, verify)?;
        let table = Table::from_bytes(coder, layout, entry.bits, &bytes).map_err(|e| e.offset(entry.data.offset))?;
        let table = Arc::new(table);
        lock().insert(number, (table.clone(), verify));
        Ok(table)
    }
}
