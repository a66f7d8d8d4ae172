//! Decoding on a GPU against the scalar CPU decoder, byte for byte. Without a GPU, these tests are skipped; those of
//! coder `zstd` also need nvCOMP (`WCODEC_NVCOMP` names it). With WCODEC_REQUIRE_GPU=1 a missing part is a failure.
//!
//! Data is new in every run. The seed is printed when a test fails; WCODEC_SEED=N repeats it.

mod common;

// The benchmark uses more of it.
#[allow(dead_code)]
#[path = "../benches/gpu/graph.rs"]
mod graph;

#[path = "gpu_decode/damage.rs"]
mod damage;
#[path = "gpu_decode/data.rs"]
mod data;
#[path = "gpu_decode/files.rs"]
mod files;
#[path = "gpu_decode/frames.rs"]
mod frames;
#[path = "gpu_decode/host.rs"]
mod host;
#[path = "gpu_decode/lookups.rs"]
mod lookups;
#[path = "gpu_decode/lossless.rs"]
mod lossless;
#[path = "gpu_decode/order.rs"]
mod order;
#[path = "gpu_decode/outputs.rs"]
mod outputs;
#[path = "gpu_decode/prefetch.rs"]
mod prefetch;
#[path = "gpu_decode/refusals.rs"]
mod refusals;
#[path = "gpu_decode/residencies.rs"]
mod residencies;
#[path = "gpu_decode/rig.rs"]
mod rig;
#[path = "gpu_decode/slices.rs"]
mod slices;
#[path = "gpu_decode/timed.rs"]
mod timed;
