//! Invalid containers: whatever the bytes are, the result is an error or the right tensor.

#[path = "../common/allocator.rs"]
mod allocator;
#[path = "../common/mod.rs"]
mod common;

mod bits;
mod chunks;
mod frames;
mod index;
mod opening;
mod resealed;
mod tables;
mod truncation;

#[global_allocator]
static ALLOCATOR: allocator::Limited = allocator::Limited;

/// The samples must have the features that the tests damage.
#[test]
fn samples_cover_the_format() {
    let samples: Vec<_> = common::samples::all().into_iter().chain(common::samples::all_layers()).collect();
    common::samples::assert_coverage(&samples);
}
