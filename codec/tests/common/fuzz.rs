//! Fuzz bodies: whatever the bytes are, the library answers and does not panic, and all instruction sets agree.
//!
//! `codec/fuzz` has a target of cargo-fuzz for each (`make fuzz`), and `tests/fuzz.rs` runs all of them over mutations of their seeds.
//! An input's first bytes say how much of the rest is made right (hashes, lengths, sums) before the library gets it, so that
//! mutations are met by more than the first check; and what is asked of it then.

use super::Rng;

pub mod chunks;
pub mod container;
pub mod file;
pub mod gguf;
pub mod legacy;
mod mutate;
pub mod rate;
pub mod safetensors;
pub mod zstd;

pub use mutate::mutate;

/// What decodes to more bytes is left alone: a few of them may rightly become gigabytes, and small inputs say as much.
const LARGEST: u64 = 256 << 10;

/// A body, and where its inputs come from.
pub struct Target {
    /// Name of the target, and of its folders.
    pub name: &'static str,
    /// Takes any bytes; panics where the library does wrong.
    pub body: fn(&[u8]),
    /// Inputs to begin with, from samples and from the files in `tests/data`.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Another input, from one and some of another one.
    pub mutate: fn(&mut Rng, &[u8], &[u8]) -> Vec<u8>,
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    container::TARGET,
    chunks::TARGET,
    rate::TARGET,
    zstd::TARGET,
    safetensors::TARGET,
    gguf::TARGET,
    legacy::TARGET,
    file::TARGET,
];

/// The files in a folder of `tests/data`, in the order of their names.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|p| p.join("tests/data").join(folder));
    let folder = folder.into_iter().find(|p| p.is_dir()).expect("the repository has it");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|p| std::fs::read(p).unwrap()).collect()
}
