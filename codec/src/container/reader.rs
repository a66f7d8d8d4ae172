//! Opens and reads containers.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rayon::prelude::*;

use super::ahead::ReadAhead;
use super::hash::{Hasher, hash};
use super::header::{HEADER_BYTES, Header, MAGIC};
use super::index::{Index, TensorEntry};
use super::memory::MemoryFile;
use super::names::Names;
use super::segment::{Segment, check_layout};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::InputFile;
use crate::foreign;
use crate::names::near;
use crate::pool::Pool;
use crate::tensor::{AlignedBytes, Dtype, check_bytes, out_of_memory};
use crate::trust::OpenOptions;

/// Bytes of a file in memory that one thread copies at once.
const PIECE: usize = 2 << 20;

/// The length from which several threads check an index, bytes.
const LARGE_INDEX: u64 = 4 << 20;

/// The storage of a container's bytes.
#[derive(Debug)]
enum Storage {
    File(Arc<InputFile>),
    Memory(MemoryFile),
}

/// Bytes of a segment that are hashed at once, if the segment itself is not needed.
const COMPARED: u64 = 16 << 20;

/// An open container. Opening reads the header and the index, whatever the size of the file; segments are read when
/// they are asked for.
#[derive(Debug)]
pub struct Reader {
    storage: Storage,
    /// The read-ahead of some segments.
    ahead: RwLock<Option<Arc<ReadAhead>>>,
    header: Header,
    index: Arc<Index>,
    names: Names,
    trusted: bool,
    /// Whether this process wrote it, to memory that is not shared.
    ours: bool,
}

impl Reader {
    /// Opens an untrusted file.
    ///
    /// # Errors
    /// `FORMAT.md` section 10; each names the file and the byte.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `FORMAT.md` section 10; each names the file and the byte. [`ErrorKind::Input`](crate::ErrorKind::Input): the
    /// index is too large for an untrusted file.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self> {
        Self::new(Storage::File(Arc::new(InputFile::open(path)?)), options).map_err(|e| e.file(path))
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
        Self::new(Storage::Memory(MemoryFile::of(bytes)), options)
    }

    /// Opens a container that this process wrote to memory, and therefore trusts.
    pub(crate) fn of(file: MemoryFile) -> Result<Self> {
        let options = OpenOptions { trusted: true, ..Default::default() };
        Ok(Self { ours: true, ..Self::new(Storage::Memory(file), &options)? })
    }

    /// Whether this process wrote it, to memory that is not shared.
    pub(crate) fn is_ours(&self) -> bool {
        self.ours
    }

    /// Fills `out` with the container's bytes from `offset` on, unchecked.
    pub(crate) fn copy(&self, offset: u64, out: &mut [u8], cancel: &Cancel) -> Result<()> {
        match &self.storage {
            Storage::Memory(f) if f.read(offset, out) => Ok(()),
            storage => {
                let bytes = storage.read(offset, out.len() as u64, false, cancel).map_err(|e| self.name(e))?;
                out.copy_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn new(storage: Storage, options: &OpenOptions) -> Result<Self> {
        Self::checked(storage, options).map_err(Error::of_container)
    }

    fn checked(storage: Storage, options: &OpenOptions) -> Result<Self> {
        let length = storage.length();
        let head = storage.read(0, length.min(foreign::HEAD_BYTES as u64), false, &options.cancel)?;
        let path = if let Storage::File(file) = &storage { file.path() } else { Path::new("") };
        if let Some(format) = foreign::known_as(path, &head, length).filter(|_| !head.starts_with(&MAGIC)) {
            return Err(
                coded!(NOT_A_CONTAINER, "this is {}, not a wcodec container", format.what).advice(format.advice)
            );
        }
        let header = Header::from_bytes(&head[..head.len().min(HEADER_BYTES)], length)?;
        options.check_index(header.index_length)?;
        let opened = || checked_index(&storage, &header, &options.cancel);
        let pool = (header.index_length >= LARGE_INDEX).then(|| Pool::new(None));
        let (index, names) = match pool {
            Some(Ok(pool)) => pool.run(opened)?,
            _ => opened(),
        }?;
        let (ahead, index, trusted) = (RwLock::default(), Arc::new(index), options.trusted);
        Ok(Self { storage, ahead, header, index, names, trusted, ours: false })
    }

    /// Whether it was opened as [trusted](OpenOptions::trusted).
    pub fn trusted(&self) -> bool {
        self.trusted
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index, shared, for callers that keep it longer than the file.
    pub(crate) fn shared_index(&self) -> Arc<Index> {
        self.index.clone()
    }

    /// The index as stored, unknown keys included.
    ///
    /// # Errors
    /// It cannot be read, or differs from the one read when the file was opened.
    pub fn index_json(&self) -> Result<String> {
        let bytes = read_index(&self.storage, &self.header, &Cancel::new()).map_err(|e| self.name(e))?;
        let text = String::from_utf8(bytes.to_vec());
        text.map_err(|e| self.name(coded!(BAD_INDEX, "the index is not UTF-8: {e}")))
    }

    /// The path of the file; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.storage {
            Storage::File(f) => Some(f.path()),
            Storage::Memory(_) => None,
        }
    }

    /// The tensor with this name, or the one that the name is an alias of.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input) if there is none; the error suggests the closest name.
    pub fn tensor(&self, name: &str) -> Result<&TensorEntry> {
        self.place(name).map(|i| &self.index.tensors[i])
    }

    /// The position of [`tensor`](Self::tensor) in the index.
    pub fn place(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| {
            let advice = match self.near(name) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("it has {} tensors; see `wcodec inspect`", self.index.tensors.len()),
            };
            self.name(coded!(NO_TENSOR, "no tensor '{name}'").advice(advice))
        })
    }

    /// As [`place`](Self::place), but `None` instead of an error.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(&self.index, name)
    }

    /// The closest name to one that does not exist, aliases included: see [`near`](crate::names::near).
    pub fn near(&self, name: &str) -> Option<&str> {
        let stored = self.index.tensors.iter().map(|t| t.name.as_str());
        near(name, stored.chain(self.index.aliases.keys().map(String::as_str)))
    }

    /// The bytes of a segment; `verify` compares them with its hash. All threads read if this is called on a thread of
    /// a pool.
    ///
    /// # Errors
    /// They cannot be read, their hash does not match, or `cancel` was used.
    pub fn segment_with(&self, segment: &Segment, verify: bool, cancel: &Cancel) -> Result<AlignedBytes> {
        let bytes = self.read(segment.offset, segment.length, cancel)?;
        if verify && hash(&bytes) != segment.hash {
            return Err(self.name(segment.differs()));
        }
        Ok(bytes)
    }

    /// Compares a segment with its hash, holding little of it in memory.
    ///
    /// # Errors
    /// It cannot be read, the hash does not match, or `cancel` was used.
    pub(crate) fn check_segment(&self, segment: &Segment, cancel: &Cancel) -> Result<()> {
        if segment.length <= COMPARED {
            return self.segment_with(segment, true, cancel).map(drop);
        }
        let ahead = self.ahead();
        let direct = ahead.as_ref().is_some_and(|a| a.covers(segment.offset));
        let mut hasher = Hasher::default();
        for begin in (0..segment.length).step_by(COMPARED as usize) {
            let length = COMPARED.min(segment.length - begin);
            let read = self.storage.read(segment.offset + begin, length, direct, cancel);
            hasher.update(&read.map_err(|e| self.name(e))?);
        }
        if hasher.hash() == segment.hash { Ok(()) } else { Err(self.name(segment.differs())) }
    }

    /// Bytes of the container, from read-ahead if it has them.
    fn read(&self, offset: u64, length: u64, cancel: &Cancel) -> Result<AlignedBytes> {
        let read = match self.ahead().filter(|a| a.covers(offset)) {
            Some(ahead) => match ahead.take(offset, length, cancel) {
                Some(read) => read,
                None => self.storage.read(offset, length, true, cancel),
            },
            None => self.storage.read(offset, length, false, cancel),
        };
        read.map_err(|e| self.name(e))
    }

    /// The read-ahead of segments, if there is one.
    pub(crate) fn ahead(&self) -> Option<Arc<ReadAhead>> {
        self.ahead.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or removes the read-ahead of segments.
    pub(crate) fn set_ahead(&self, ahead: Option<Arc<ReadAhead>>) {
        let before = std::mem::replace(&mut *self.ahead.write().unwrap_or_else(PoisonError::into_inner), ahead);
        // Its threads end here, outside the lock, so that others do not wait for them.
        drop(before);
    }

    /// The open file; `None` in memory.
    pub(crate) fn file(&self) -> Option<&Arc<InputFile>> {
        match &self.storage {
            Storage::File(f) => Some(f),
            Storage::Memory(_) => None,
        }
    }

    /// [`segment_with`](Self::segment_with), without cancellation.
    ///
    /// # Errors
    /// They cannot be read, or their hash does not match.
    pub fn segment(&self, segment: &Segment, verify: bool) -> Result<AlignedBytes> {
        self.segment_with(segment, verify, &Cancel::new())
    }

    /// Some bytes of a segment, not compared with any hash.
    pub(crate) fn part(&self, segment: &Segment, range: Range<u64>, cancel: &Cancel) -> Result<AlignedBytes> {
        if range.start > range.end || range.end > segment.length {
            return Err(self.name(
                coded!(SEGMENT_LENGTH, "bytes {range:?} of a segment of {}", segment.length).offset(segment.offset),
            ));
        }
        self.read(segment.offset + range.start, range.end - range.start, cancel)
    }

    /// Adds the file's name to `error`, and advice if the file is to blame.
    pub fn name(&self, error: Error) -> Error {
        let error = error.of_container();
        match self.path() {
            Some(p) => error.file(p),
            None => error,
        }
    }

    /// Checks that padding between segments is zero.
    ///
    /// # Errors
    /// The offset of the first byte that is not.
    pub fn check_padding(&self) -> Result<()> {
        let mut ends: Vec<(u64, u64)> = self
            .index
            .tables
            .iter()
            .map(|t| &t.data)
            .chain(self.index.tensors.iter().flat_map(all_segments))
            .filter(|s| s.length > 0)
            .map(|s| (s.offset, s.length))
            .collect();
        ends.push((self.header.index_offset, 0));
        ends.sort_unstable();
        let mut end = HEADER_BYTES as u64;
        for (offset, length) in ends {
            let padding = self.storage.read(end, offset - end, false, &Cancel::new()).map_err(|e| self.name(e))?;
            if let Some(at) = padding.iter().position(|&b| b != 0) {
                return Err(self.name(coded!(PADDING, "padding between segments is not zero").offset(end + at as u64)));
            }
            end = offset + length;
        }
        Ok(())
    }
}

/// The text of the index, compared with its hash.
fn read_index(storage: &Storage, header: &Header, cancel: &Cancel) -> Result<AlignedBytes> {
    let bytes = storage.read(header.index_offset, header.index_length, false, cancel)?;
    check_hash(&bytes, header)?;
    Ok(bytes)
}

fn check_hash(index: &[u8], header: &Header) -> Result<()> {
    if hash(index).0 == header.index_hash {
        return Ok(());
    }
    Err(coded!(HEADER_HASH, "the index's hash does not match")
        .offset(header.index_offset)
        .advice("restore the file, or encode the model again"))
}

/// The index and its names, after all checks that need nothing else of the file. On a thread of a pool, other threads
/// help.
fn checked_index(storage: &Storage, header: &Header, cancel: &Cancel) -> Result<(Index, Names)> {
    let bytes = storage.read(header.index_offset, header.index_length, false, cancel)?;
    let (hash, index) = both(|| check_hash(&bytes, header), || Index::from_bytes(&bytes));
    hash?;
    let index = index.map_err(|e| e.offset(header.index_offset))?;
    let names = || {
        drop(bytes);
        Names::of(&index)
    };
    let segments = || {
        check_tensors(&index)?;
        let segments = index.tables.iter().map(|t| &t.data).chain(index.tensors.iter().flat_map(all_segments));
        check_layout(segments.map(|s| (s.offset, s.length)).collect(), header.index_offset)
    };
    let (names, segments) = both(names, segments);
    let names = names?;
    segments?;
    Ok((index, names))
}

/// The results of both closures, which run in parallel on a thread of a pool.
fn both<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    if rayon::current_thread_index().is_some() { rayon::join(a, b) } else { (a(), b()) }
}

fn all_segments(tensor: &TensorEntry) -> impl Iterator<Item = &Segment> {
    tensor.segments().map(|(_, s)| s)
}

/// Checks dtypes, shapes and table numbers.
fn check_tensors(index: &Index) -> Result<()> {
    for t in &index.tensors {
        let dtype = Dtype::from_name(&t.dtype).map_err(|e| e.tensor(&t.name).advice("upgrade wcodec"))?;
        check_bytes(&t.shape, dtype).map_err(|e| e.tensor(&t.name))?;
        if t.planes.iter().any(|p| p.table.is_some_and(|table| table >= index.tables.len())) {
            return Err(coded!(BAD_NAMES, "a plane names a table that is not there").tensor(&t.name));
        }
    }
    Ok(())
}

impl Storage {
    fn length(&self) -> u64 {
        match self {
            Storage::File(f) => f.length(),
            Storage::Memory(f) => f.length(),
        }
    }

    /// `direct`: bypasses the system's page cache, if possible.
    fn read(&self, offset: u64, length: u64, direct: bool, cancel: &Cancel) -> Result<AlignedBytes> {
        let length = usize::try_from(length).map_err(|_| out_of_memory(usize::MAX))?;
        match self {
            Storage::File(f) if direct => f.read_direct(offset, length, cancel),
            Storage::File(f) => f.read(offset, length, cancel),
            Storage::Memory(f) => {
                let beyond = || coded!(BAD_SEGMENTS, "bytes beyond the end of the container").offset(offset);
                // Checked first, because a length from a damaged index may exceed memory.
                if offset.checked_add(length as u64).is_none_or(|end| end > f.length()) {
                    return Err(beyond());
                }
                let mut bytes = AlignedBytes::zeroed(length)?;
                let read = |(i, piece): (usize, &mut [u8])| {
                    cancel.check()?;
                    if f.read(offset + (i * PIECE) as u64, piece) { Ok(()) } else { Err(beyond()) }
                };
                // Copied in parallel, as files are read, but only on a thread of a pool.
                if length > PIECE && rayon::current_thread_index().is_some() {
                    bytes.par_chunks_mut(PIECE).enumerate().try_for_each(read)?;
                } else {
                    bytes.chunks_mut(PIECE).enumerate().try_for_each(read)?;
                }
                Ok(bytes)
            }
        }
    }
}
