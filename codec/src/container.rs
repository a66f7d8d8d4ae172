//! The container: header, segments, index. `FORMAT.md` sections 1 and 2.
//!
//! This module stores ids and bytes and knows no algorithm: names of schemes and coders are strings to it.

mod header;
mod index;
mod memory;
mod names;
mod reader;
mod segment;
pub(crate) mod texts;
mod writer;

pub use header::{HEADER_BYTES, Header, MAGIC, VERSION};
pub use index::{Hash, Index, MatrixEntry, PlaneEntry, Quality, ScalesEntry, TableEntry, TensorEntry};
pub(crate) use memory::{Bytes, MemoryFile, Sink};
pub use reader::Reader;
pub use segment::Segment;
pub use writer::Writer;

/// XXH3-64 of `bytes`.
pub fn hash(bytes: &[u8]) -> Hash {
    Hash(xxhash_rust::xxh3::xxh3_64(bytes))
}

/// [`hash()`] of bytes that come one part after the other.
#[derive(Default)]
pub(crate) struct Hasher(xxhash_rust::xxh3::Xxh3Default);

impl Hasher {
    /// Adds the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all parts.
    pub fn hash(&self) -> Hash {
        Hash(self.0.digest())
    }
}
