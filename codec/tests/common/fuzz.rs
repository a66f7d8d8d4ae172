//! Fuzz bodies: whatever the bytes are, the library answers and does not panic, and all instruction sets agree.
//!
//! `codec/fuzz` has a cargo-fuzz target for each (`make fuzz`), and `tests/fuzz.rs` runs all of them over mutations of
//! their seeds. An input's first bytes decide how much of the rest is corrected (hashes, lengths, sums) before the
//! library gets it, so that mutations get past the first check; and which operations follow.

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

/// Inputs that decode to more bytes are skipped: a few bytes may legitimately become gigabytes, and small inputs test
/// as much.
const LARGEST: u64 = 256 << 10;

/// A body, and the source of its inputs.
pub struct Target {
    /// Name of the target, and of its folders.
    pub name: &'static str,
    /// Accepts any bytes; panics if the library misbehaves.
    pub body: fn(&[u8]),
    /// Initial inputs, from samples and from the files in `tests/data`.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes a new input from one input and parts of another one.
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
