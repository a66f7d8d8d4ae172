//! The fuzz bodies of the tests (`codec/tests/common/fuzz`) as targets of cargo-fuzz.

use std::sync::LazyLock;

use wcodec::Pool;

#[path = "../../tests/common/mod.rs"]
pub mod common;

use common::Rng;
use common::fuzz::Target;

/// The pool that bodies run on: calls of the library then stay on one thread, and need not wake another one each time.
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(None).unwrap());

/// Passes `data` to the body of `target`.
pub fn run(target: &Target, data: &[u8]) {
    POOL.run(|| (target.body)(data)).unwrap();
}

/// Mutates the first `size` bytes of `data` in place and returns the new length. Half of the mutations are libFuzzer's
/// own.
pub fn mutate(target: &Target, data: &mut [u8], size: usize, longest: usize, seed: u32) -> usize {
    if seed & 1 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, longest);
    }
    let input = &data[..size];
    let mut out = (target.mutate)(&mut Rng(seed.into()), input, input);
    out.truncate(longest);
    data[..out.len()].copy_from_slice(&out);
    out.len()
}
