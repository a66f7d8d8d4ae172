//! Opening and reading containers.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::MemoryFile;
use super::header::{HEADER_BYTES, Header};
use super::index::{Index, TensorEntry};
use super::segment::{Segment, check_layout};
use super::{Hash, hash};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::InputFile;
use crate::tensor::{AlignedBytes, Dtype, check_bytes, out_of_memory};

/// Bytes of a file in memory that one thread copies at once.
const PIECE: usize = 2 << 20;

/// Where the bytes are.
#[derive(Debug)]
enum Storage {
    File(InputFile),
    Memory(MemoryFile),
}

/// An open container. Opening reads the header and the index, whatever the size of the file; segments are read when
/// they are asked for.
#[derive(Debug)]
pub struct Reader {
    storage: Storage,
    header: Header,
    index: Index,
    places: HashMap<String, usize>,
    /// Whether this process has written it, to memory that nobody else has.
    ours: bool,
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// `FORMAT.md` section 10; each names the file and the place.
    pub fn open(path: &Path) -> Result<Self> {
        Self::new(Storage::File(InputFile::open(path)?)).map_err(|e| e.file(path))
    }

    /// Opens a container in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::new(Storage::Memory(MemoryFile::of(bytes)))
    }

    /// Opens a container that was written to memory.
    pub(crate) fn of(file: MemoryFile) -> Result<Self> {
        Ok(Self { ours: true, ..Self::new(Storage::Memory(file))? })
    }

    /// Whether this process has written it, to memory that nobody else has.
    pub(crate) fn is_ours(&self) -> bool {
        self.ours
    }

    /// Fills `out` with the container's bytes from `offset` on, whatever they are.
    pub(crate) fn copy(&self, offset: u64, out: &mut [u8], cancel: &Cancel) -> Result<()> {
        match &self.storage {
            Storage::Memory(f) if f.read(offset, out) => Ok(()),
            storage => {
                let bytes = storage.read(offset, out.len() as u64, cancel).map_err(|e| self.name(e))?;
                out.copy_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn new(storage: Storage) -> Result<Self> {
        Self::checked(storage).map_err(Error::of_container)
    }

    fn checked(storage: Storage) -> Result<Self> {
        let length = storage.length();
        let head = storage.read(0, HEADER_BYTES.min(length as usize) as u64, &Cancel::new())?;
        let header = Header::from_bytes(&head, length)?;
        let bytes = storage.read(header.index_offset, header.index_length, &Cancel::new())?;
        if hash(&bytes).0 != header.index_hash {
            return Err(Error::corrupt("the index's hash does not match")
                .offset(header.index_offset)
                .advice("restore the file, or encode the model again"));
        }
        let index = Index::from_bytes(&bytes).map_err(|e| e.offset(header.index_offset))?;
        let places = check_index(&index)?;
        let segments = index.tables.iter().map(|t| &t.data).chain(index.tensors.iter().flat_map(all_segments));
        check_layout(segments.map(|s| (s.offset, s.length)).collect(), header.index_offset)?;
        Ok(Self { storage, header, index, places, ours: false })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index as stored, unknown keys included.
    pub fn index_json(&self) -> Result<String> {
        let bytes = self.storage.read(self.header.index_offset, self.header.index_length, &Cancel::new())?;
        let text = String::from_utf8(bytes.to_vec());
        text.map_err(|e| self.name(Error::format(format!("the index is not UTF-8: {e}"))))
    }

    /// The path of the file; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.storage {
            Storage::File(f) => Some(f.path()),
            Storage::Memory(_) => None,
        }
    }

    /// The tensor of this name, or the one that it is an alias of.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input) where there is none; names that are close are suggested.
    pub fn tensor(&self, name: &str) -> Result<&TensorEntry> {
        self.place(name).map(|i| &self.index.tensors[i])
    }

    /// Where [`tensor`](Self::tensor) is in the index.
    pub fn place(&self, name: &str) -> Result<usize> {
        self.places.get(name).copied().ok_or_else(|| {
            let last = name.rsplit('.').next().unwrap_or(name);
            let like: Vec<_> =
                self.index.tensors.iter().map(|t| t.name.as_str()).filter(|n| n.contains(last)).take(3).collect();
            let advice = match like[..] {
                [] => format!("it has {} tensors; see `wcodec inspect`", self.index.tensors.len()),
                _ => format!("did you mean {}?", like.join(", ")),
            };
            self.name(Error::input(format!("no tensor '{name}'")).advice(advice))
        })
    }

    /// The bytes of a segment; `verify` compares them with its hash. Read by all threads where one of a pool calls this.
    ///
    /// # Errors
    /// They cannot be read, their hash does not match, or `cancel` was used.
    pub fn segment_with(&self, segment: &Segment, verify: bool, cancel: &Cancel) -> Result<AlignedBytes> {
        let bytes = self.storage.read(segment.offset, segment.length, cancel).map_err(|e| self.name(e))?;
        if verify && hash(&bytes) != segment.hash {
            return Err(self.name(
                Error::corrupt(format!("the hash of a segment of {} bytes does not match", segment.length))
                    .offset(segment.offset)
                    .advice("restore the file, or encode the model again; other tensors are still readable"),
            ));
        }
        Ok(bytes)
    }

    /// [`segment_with`](Self::segment_with), with nobody to stop it.
    ///
    /// # Errors
    /// They cannot be read, or their hash does not match.
    pub fn segment(&self, segment: &Segment, verify: bool) -> Result<AlignedBytes> {
        self.segment_with(segment, verify, &Cancel::new())
    }

    /// Some bytes of a segment, which nothing is compared with.
    pub(crate) fn part(&self, segment: &Segment, range: Range<u64>, cancel: &Cancel) -> Result<AlignedBytes> {
        if range.start > range.end || range.end > segment.length {
            return Err(self.name(
                Error::corrupt(format!("bytes {range:?} of a segment of {}", segment.length)).offset(segment.offset),
            ));
        }
        self.storage.read(segment.offset + range.start, range.end - range.start, cancel).map_err(|e| self.name(e))
    }

    /// Names the file in `error` and, where the file is to blame, says what to do.
    pub fn name(&self, error: Error) -> Error {
        let error = error.of_container();
        match self.path() {
            Some(p) => error.file(p),
            None => error,
        }
    }

    /// Where padding between segments is not zero.
    ///
    /// # Errors
    /// The place of the first such byte.
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
            let padding = self.storage.read(end, offset - end, &Cancel::new()).map_err(|e| self.name(e))?;
            if let Some(at) = padding.iter().position(|&b| b != 0) {
                return Err(self.name(Error::corrupt("padding between segments is not zero").offset(end + at as u64)));
            }
            end = offset + length;
        }
        Ok(())
    }
}

fn all_segments(tensor: &TensorEntry) -> impl Iterator<Item = &Segment> {
    tensor.segments().map(|(_, s)| s)
}

/// Checks names, aliases and table numbers; returns where each name is.
fn check_index(index: &Index) -> Result<HashMap<String, usize>> {
    let mut places = HashMap::with_capacity(index.tensors.len() + index.aliases.len());
    for (i, t) in index.tensors.iter().enumerate() {
        if t.name.is_empty() || places.insert(t.name.clone(), i).is_some() {
            return Err(Error::format("the name of a tensor is empty or not unique").tensor(&t.name));
        }
        let dtype = Dtype::from_name(&t.dtype).map_err(|e| e.tensor(&t.name).advice("upgrade wcodec"))?;
        check_bytes(&t.shape, dtype).map_err(|e| e.tensor(&t.name))?;
        for p in &t.planes {
            if p.table.is_some_and(|table| table >= index.tables.len()) {
                return Err(Error::format("a plane names a table that is not there").tensor(&t.name));
            }
        }
    }
    for (alias, target) in &index.aliases {
        // An alias of an alias is no tensor's name.
        let place = places.get(target).copied().filter(|&i| index.tensors[i].name == *target);
        let Some(place) = place else {
            return Err(Error::format(format!("an alias of '{target}', which is not there")).tensor(alias));
        };
        if alias.is_empty() || places.insert(alias.clone(), place).is_some() {
            return Err(Error::format("the name of an alias is empty or not unique").tensor(alias));
        }
    }
    Ok(places)
}

impl Storage {
    fn length(&self) -> u64 {
        match self {
            Storage::File(f) => f.length(),
            Storage::Memory(f) => f.length(),
        }
    }

    fn read(&self, offset: u64, length: u64, cancel: &Cancel) -> Result<AlignedBytes> {
        let length = usize::try_from(length).map_err(|_| out_of_memory(usize::MAX))?;
        match self {
            Storage::File(f) => f.read(offset, length, cancel),
            Storage::Memory(f) => {
                let beyond = || Error::format("bytes beyond the end of the container").offset(offset);
                // Asked first: what a damaged index says need not fit into memory.
                if offset.checked_add(length as u64).is_none_or(|end| end > f.length()) {
                    return Err(beyond());
                }
                let mut bytes = AlignedBytes::zeroed(length)?;
                let read = |(i, piece): (usize, &mut [u8])| {
                    cancel.check()?;
                    if f.read(offset + (i * PIECE) as u64, piece) { Ok(()) } else { Err(beyond()) }
                };
                // In parallel as from files, and only where this is a thread of a pool.
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

impl Hash {
    /// Compares a hash of decoded bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
    pub fn check(self, decoded: &[u8]) -> Result<()> {
        if hash(decoded) == self {
            return Ok(());
        }
        Err(Error::corrupt("the decoded bytes do not match their hash").advice("encode the model again"))
    }
}
