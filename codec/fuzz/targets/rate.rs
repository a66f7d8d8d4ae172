//! Scheme `rate`: weights, steps and levels of any bits, encoded and decoded, and damaged files of them.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use wcodec_fuzz::common::fuzz::rate::TARGET;
use wcodec_fuzz::{mutate, run};

fuzz_target!(|data: &[u8]| run(&TARGET, data));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(&TARGET, data, size, max_size, seed)
});
