//! Native half of the Python package `wcodec`: a thin, private module `wcodec._native`.
//!
//! It holds no policy. Names, defaults and documentation that users see live in `pyext/python/wcodec`; this crate turns
//! Python objects into the crate's types, releases the interpreter while native code works, and turns errors into the
//! exceptions of `wcodec._errors`. Structured results travel as JSON, because every consumer builds dataclasses of them.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod arrays;
mod container;
mod encode;
mod errors;
mod files;
mod gguf;
mod gpu;
mod layers;
mod levels;
mod options;
mod progress;
mod quantized;
mod rounding;
mod source;
mod text;
mod tui;

/// Native half of the package `wcodec`; use the package instead.
#[pyo3::pymodule]
mod _native {
    use wcodec::scheme::rate;

    #[pymodule_export]
    use crate::container::{Comparison, Container, Facts, Reads, compare, matching};
    #[pymodule_export]
    use crate::encode::{encode, encode_to_bytes, encode_to_container, rate_bits};
    #[pymodule_export]
    use crate::errors::error_codes;
    #[pymodule_export]
    use crate::files::{Folder, Output, check_output, checkpoint, reads_direct};
    #[pymodule_export]
    use crate::gguf::Gguf;
    #[pymodule_export]
    use crate::gpu::{DecodeBatch, DeviceMemory, DeviceSizes, Epilogue, GpuNorms, RowLookup, TensorDecoder};
    #[pymodule_export]
    use crate::gpu::{GpuQuantizer, GpuRouter, RoutedProducts};
    #[pymodule_export]
    use crate::gpu::{
        gpu_available, gpu_capture, gpu_devices, gpu_driver, gpu_end, gpu_follow, gpu_keep, gpu_kernels, nvcomp_info,
        residencies, ring_slots, verify_on_gpu,
    };
    #[pymodule_export]
    use crate::layers::{instruction_sets, is_legacy, layer_decode, layer_encode, legacy_decode, legacy_encode};
    #[pymodule_export]
    use crate::options::{check_encode_options, encoding_facts, rate_tile};
    #[pymodule_export]
    use crate::quantized::{quantized_checkpoint, quantized_container};
    #[pymodule_export]
    use crate::rounding::round_columns;
    #[pymodule_export]
    use crate::rounding::trellis::trellis_columns;
    #[pymodule_export]
    use crate::text::{ascii_json, safe, safe_lines};
    #[pymodule_export]
    use crate::tui::tui_main;

    #[pymodule_export]
    const LARGEST_SYMBOL: u8 = rate::LARGEST_MAGNITUDE;
    #[pymodule_export]
    const LARGEST_TRELLIS_MAGNITUDE: u8 = rate::LARGEST_TRELLIS_MAGNITUDE;
    #[pymodule_export]
    const MAGNITUDES: usize = crate::rounding::MAGNITUDES;
    #[pymodule_export]
    const PRODUCT_VECTORS: usize = wcodec::gpu::Vectors::MOST;
    #[pymodule_export]
    const MOST_ROUTES: usize = wcodec::gpu::Routes::MOST;
    #[pymodule_export]
    const PRODUCT_VECTORS_SQUARED: usize = wcodec::gpu::Vectors::MOST_SQUARED;
    #[pymodule_export]
    const QUANTIZED_KEY: &str = wcodec::QUANTIZED_KEY;
    #[pymodule_export]
    const REST_KEY: &str = wcodec::REST_KEY;
    #[pymodule_export]
    const ROUNDED_COLUMNS: usize = crate::rounding::COLUMNS;
    #[pymodule_export]
    const TILE_ROWS: usize = wcodec::coder::TILE_ROWS;
    #[pymodule_export]
    const TRELLIS_RATE_WEIGHT: f64 = rate::TRELLIS_RATE_WEIGHT;
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
