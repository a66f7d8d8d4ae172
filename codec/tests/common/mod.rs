//! Helpers of the hostile-input and stability tests.

// Every test binary compiles all of this and uses a part of it.
#![allow(dead_code)]

pub mod campaign;
pub mod fuzz;
pub mod gpu;
pub mod image;
pub mod newer;
mod rng;
pub mod safetensors;
pub mod samples;
pub mod zstd_frame;

pub use rng::Rng;
use wcodec::{Container, DecodeOptions, Error, Isa, OpenOptions, Result};

/// Options that decode with `isa`.
pub fn options(isa: Isa, verify: bool) -> DecodeOptions {
    DecodeOptions { isa: Some(isa), verify, ..Default::default() }
}

/// Options that compare hashes, or do not, with the fastest instruction set.
pub fn checked(verify: bool) -> DecodeOptions {
    DecodeOptions { verify, ..Default::default() }
}

/// Opens a container without the limits for untrusted files, to reach the code beyond them.
pub fn trusting(bytes: Vec<u8>) -> Result<Container> {
    Container::from_bytes_with(bytes, &OpenOptions { trusted: true, ..Default::default() })
}

/// Decoded bytes of every stored tensor of a sound container.
pub fn values(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let container = Container::from_bytes(bytes.to_vec()).unwrap();
    let read = |n: &str| container.read(n, &DecodeOptions::default()).unwrap().to_vec();
    container.names().into_iter().map(|n| (n.to_owned(), read(n))).collect()
}

/// Reads `name` with every instruction set, checks that they agree, and returns the result.
pub fn read_everywhere(container: &Container, name: &str, verify: bool) -> Result<Vec<u8>> {
    let read = |isa| container.read(name, &options(isa, verify)).map(|b| b.to_vec());
    let reference = read(Isa::Scalar);
    for isa in Isa::available().into_iter().skip(1) {
        match (&reference, read(isa)) {
            (Ok(a), Ok(b)) => assert!(*a == b, "'{name}': {isa} decodes other bytes than scalar"),
            (Err(a), Err(b)) => assert_eq!(a.kind(), b.kind(), "'{name}': scalar says '{a}', {isa} says '{b}'"),
            (Ok(_), Err(e)) => panic!("'{name}': scalar decodes, {isa} says '{e}'"),
            (Err(e), Ok(_)) => panic!("'{name}': {isa} decodes, scalar says '{e}'"),
        }
    }
    reference
}

/// The text of an error, which must not be empty.
pub fn text(e: &Error) -> String {
    assert!(!e.message().is_empty());
    e.to_string()
}
