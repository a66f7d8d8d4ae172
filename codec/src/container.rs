//! The container: header, segments, index. `FORMAT.md` sections 1 and 2.
//!
//! This module stores ids and bytes and knows no algorithm: names of schemes and coders are strings to it.

mod header;
mod index;
mod memory;
mod reader;
mod segment;
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
