//! Entropy-coded weights for large language models.
//!
//! It turns a checkpoint into a container whose tensors are int8 symbols and scales, entropy-coded in small chunks that
//! a GPU, or a CPU's vector units, decode independently. `codec/FORMAT.md` is the normative format.
//!
//! ```
//! # fn main() -> wcodec::Result<()> {
//! use wcodec::{Checkpoint, Container, DecodeOptions, EncodeOptions, encode, verify};
//! # let dir = tempfile::tempdir().unwrap();
//! # let out = dir.path().join("model.wcodec");
//! # let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
//! let source = Checkpoint::open(&model)?; // a .safetensors file or a checkpoint folder
//! let report = encode(&source, &out, &EncodeOptions::default(), &mut |_| Ok(()))?;
//! println!("{:.3} x smaller, {:.2} bits/weight", report.ratio(), report.bits_per_weight());
//!
//! let container = Container::open(&out)?;
//! assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(()))?.ok());
//! let symbols = container.symbols("model.layers.0.mlp.up_proj.weight", &DecodeOptions::default())?;
//! assert_eq!(symbols.len(), 512 * 192);
//! # Ok(())
//! # }
//! ```
//!
//! # Components
//! - [`Checkpoint`], [`MemorySource`]: sources to encode.
//! - [`encode`](encode()), [`Container`], [`decode`](decode()), [`extract`](extract()), [`verify`](verify()),
//!   [`compare`](compare()): the operations.
//! - [`OutputFile`], [`OutputFolder`]: their outputs.
//! - [`scheme`]: weights to symbols. [`coder`]: symbols to bytes. [`container`]: positions of bytes. These three do not
//!   depend on each other.
//! - [`layer`], [`legacy`]: single matrices without a file.
//! - [`names`], [`text`]: shared by the programs: the order of names, and the display of text from files.
//!
//! # Errors
//! Files are assumed hostile: whatever their bytes are, the result is either the right tensor or an [`Error`] that says
//! what is wrong, where, and what to do.

// Code that tests share refers to the crate by its name.
#[cfg(test)]
extern crate self as wcodec;

// First: its macro is for all others.
#[macro_use]
mod error;

mod cancel;
mod checkpoint;
pub mod coder;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
pub mod container;
mod decode;
mod encode;
mod extract;
mod file;
mod foreign;
pub mod gpu;
mod info;
pub mod layer;
pub mod legacy;
mod named;
pub mod names;
mod narrow;
mod output_folder;
mod pool;
mod progress;
pub mod scheme;
mod stored;
mod tensor;
pub mod text;
mod trust;
mod verify;

pub use cancel::Cancel;
pub use checkpoint::{
    Checkpoint, Dequantized, Gguf, GgufSource, GgufTensor, MemorySource, Opaque, Quantization, QuantizedTensor, Source,
    SourceBytes, SourceTensor,
};
pub use coder::{Coder, Filter, Isa, Layout};
pub use container::AheadFacts;
pub use container::metadata::{CALIBRATION_KEY, PLAN_KEY, QUALITY_KEY, QUANTIZED_KEY, REST_KEY};
pub use decode::{AheadOptions, ChunkInfo, ChunkSize, Container, DecodeOptions, Reads, decode, write_safetensors};
pub use encode::{EncodeOptions, EncodeReport, Optimize, Rule, encode, encode_to_container, encode_to_vec, rate_bits};
pub use error::{Code, Error, ErrorKind, Result};
pub use extract::{extract, extract_to, join_to};
pub use file::{OutputFile, OutputKind, read_small, reads_direct};
pub use info::{PlaneInfo, SegmentInfo, TensorInfo, TensorInfos};
pub use narrow::{Cut, narrow};
pub use output_folder::OutputFolder;
pub use pool::Pool;
pub use progress::{Progress, ProgressEvent};
pub use scheme::int8::Granularity;
pub use scheme::rate::{Bits, Rate};
pub use scheme::{Levels, Scheme, SchemeKind};
pub use tensor::{AlignedBytes, Dtype, TensorView};
pub use trust::OpenOptions;
pub use verify::{
    CompareStatus, ComparedTensor, Comparisons, VerifiedTensor, VerifyReport, VerifyStatus, compare, error_fits, verify,
};

/// The README's example, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
