//! Decoding on GPUs, into memory that the caller has.

mod batch;
mod decoder;
mod epilogue;
mod fetch;
mod graph;
mod info;
mod lookup;
mod norm;
mod quantize;
mod route;
mod sizes;
mod verify;

use std::ops::Range;
use std::path::PathBuf;

use pyo3::prelude::*;
use wcodec::gpu::{DecodeItem, Device, GpuOptions, ProductItem, ProductPart, Stream};
use wcodec::{Cancel, Dtype, Result};

pub use batch::DecodeBatch;
pub use decoder::TensorDecoder;
pub use epilogue::Epilogue;
pub use fetch::{Fetchers, OnDevice};
pub use graph::{DeviceMemory, gpu_capture, gpu_end, gpu_follow, gpu_keep};
pub use info::{gpu_available, gpu_devices, gpu_driver, gpu_kernels, nvcomp_info, residencies, ring_slots};
pub use lookup::RowLookup;
pub use norm::GpuNorms;
pub use quantize::GpuQuantizer;
pub use route::{GpuRouter, RoutedProducts};
pub use sizes::DeviceSizes;
pub use verify::verify_on_gpu;

/// Options for decoding on a GPU; the keys of the dictionary are the fields.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    threads: Option<usize>,
    verify: bool,
    zstd_scratch: Option<usize>,
    ring: Option<usize>,
    readers: Option<usize>,
    direct: Option<bool>,
    nvcomp: Option<PathBuf>,
    nvcomp_folders: Vec<PathBuf>,
}

impl Options {
    /// The crate's options.
    pub fn build(self, cancel: Cancel) -> GpuOptions {
        let defaults = GpuOptions::default();
        GpuOptions {
            threads: self.threads,
            verify: self.verify,
            zstd_scratch: self.zstd_scratch,
            ring: self.ring.unwrap_or(defaults.ring),
            readers: self.readers,
            direct: self.direct.unwrap_or(defaults.direct),
            nvcomp: self.nvcomp,
            nvcomp_folders: self.nvcomp_folders,
            cancel,
            ..defaults
        }
    }
}

/// Name, address and dtype of an output, and the rows that it is for, counted over the first dimension.
pub type PyDecodeItem = (String, u64, String, Option<(usize, usize)>);

/// The crate's items; `rows_of` counts rows as the decoder does.
fn decode_items(
    items: Vec<PyDecodeItem>,
    rows_of: impl Fn(&str, Range<usize>) -> Result<Range<usize>>,
) -> Result<Vec<DecodeItem>> {
    let item = |(name, out, dtype, rows): PyDecodeItem| {
        let rows = rows.map(|(begin, end)| rows_of(&name, begin..end)).transpose()?;
        Ok(DecodeItem { name, out, dtype: Dtype::from_name(&dtype)?, rows })
    };
    items.into_iter().map(item).collect()
}

/// Name of a matrix to multiply with, its rows, counted over the first dimension, the address of its bias, and which vector is its first.
pub type PyProductItem = (String, Option<(usize, usize)>, u64, usize);

/// The crate's items for vectors of `dtype`; `gated`: gate and up projections in turn.
fn product_items(
    items: Vec<PyProductItem>,
    dtype: &str,
    gated: bool,
    rows_of: impl Fn(&str, Range<usize>) -> Result<Range<usize>>,
) -> Result<Vec<ProductItem>> {
    let item = |(i, (name, rows, bias, vector)): (usize, PyProductItem)| {
        let rows = rows.map(|(begin, end)| rows_of(&name, begin..end)).transpose()?;
        let part = match (gated, i % 2) {
            (false, _) => ProductPart::Result,
            (true, 0) => ProductPart::Gate,
            (true, _) => ProductPart::Up,
        };
        Ok(ProductItem { name, dtype: Dtype::from_name(dtype)?, rows, bias, part, vector })
    };
    items.into_iter().enumerate().map(item).collect()
}

/// The caller's stream.
fn crate_stream(device: &Device, raw: usize) -> Stream {
    // SAFETY: The Python half hands over torch's current stream of this device. Torch's streams live as long as the
    // process, and torch uses the primary context.
    unsafe { Stream::from_raw(device, raw as *mut _) }
}

/// The error with the container's file.
fn named(path: Option<&PathBuf>, e: wcodec::Error) -> wcodec::Error {
    match path {
        Some(path) => e.file(path),
        None => e,
    }
}
