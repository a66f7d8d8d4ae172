//! Whole containers: header, index, and every operation on them.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use wcodec_fuzz::common::fuzz::container::TARGET;
use wcodec_fuzz::{mutate, run};

fuzz_target!(|data: &[u8]| run(&TARGET, data));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(&TARGET, data, size, max_size, seed)
});
