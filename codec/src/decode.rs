//! Decodes containers to tensors.

mod ahead;
mod bytes;
mod checkpoint;
mod chunk;
mod container;
mod joined;
mod options;
mod rest;
mod rows;
mod stream;
mod tensor;
mod whole;

pub use ahead::{AheadOptions, Reads};
#[cfg(test)]
pub(crate) use bytes::PlaneBytes;
pub(crate) use bytes::TensorBytes;
pub use checkpoint::{decode, write_safetensors};
pub use chunk::{ChunkInfo, ChunkSize};
pub use container::Container;
pub use options::DecodeOptions;
pub(crate) use whole::Pass;
