//! One chunk: a tile of 16 rows, its symbols, patches and body. `FORMAT.md` sections 3, 6 and 7.

mod decode;
mod encode;
mod patches;
mod quads;

pub use decode::{Chunk, ChunkDecoder, Scratch, TOGETHER, Tails};
pub use encode::ChunkEncoder;
