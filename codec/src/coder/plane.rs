//! A plane: all its chunks, encoded and decoded in parallel. `FORMAT.md` sections 2 to 8.

mod decode;
mod encode;
mod encoded;
mod form;

pub use super::chunk::Scratch;
pub(crate) use super::split::elements;
pub use decode::{Plane, PlaneSource, check_tiles};
pub use encode::{Draft, check_table_bits, check_tile_width, check_zstd_chunk, encode};
pub use encoded::{EncodedPlane, Filters, PlaneOptions, SymbolMatrices, TableChoice};
pub use form::{Coding, PlaneForm, Tiling};

#[cfg(test)]
mod tests;
