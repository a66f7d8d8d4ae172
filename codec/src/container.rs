//! The container: header, segments, index. `FORMAT.md` sections 1 and 2.
//!
//! This module stores ids and bytes and knows no algorithms: names of schemes and coders are plain strings to it.

mod ahead;
mod hash;
mod header;
mod index;
mod memory;
pub(crate) mod metadata;
mod names;
mod reader;
mod segment;
pub(crate) mod texts;
mod writer;

pub use ahead::AheadFacts;
pub(crate) use ahead::{ReadAhead, Span};
pub(crate) use hash::Hasher;
pub use hash::{Hash, hash};
pub use header::{HEADER_BYTES, Header, LATER_VERSION, MAGIC, VERSION};
pub(crate) use index::OPAQUE;
pub use index::{Index, MatrixEntry, PlaneEntry, Quality, ScalesEntry, TableEntry, TensorEntry};
pub(crate) use memory::{Bytes, MemoryFile, Sink};
pub use reader::Reader;
pub use segment::Segment;
pub use writer::Writer;
