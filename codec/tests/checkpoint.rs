//! Invalid input, and output that cannot be written: a clear error, and nothing left behind.

#[path = "common/allocator.rs"]
mod allocator;
mod common;

#[path = "checkpoint/input.rs"]
mod input;
#[path = "checkpoint/output.rs"]
mod output;
#[path = "checkpoint/places.rs"]
mod places;
#[path = "checkpoint/quantized.rs"]
mod quantized;
#[path = "checkpoint/rest.rs"]
mod rest;
#[path = "checkpoint/shards.rs"]
mod shards;

#[global_allocator]
static ALLOCATOR: allocator::Limited = allocator::Limited;

use std::collections::BTreeMap;
use std::path::Path;

/// Names and bytes of the files in `folder`; subfolders by name only.
fn listing(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            let bytes = if e.path().is_file() { std::fs::read(e.path()).unwrap() } else { Vec::new() };
            (e.file_name().into_string().unwrap(), bytes)
        })
        .collect()
}
