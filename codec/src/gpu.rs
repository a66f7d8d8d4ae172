//! Decoding on NVIDIA GPUs.
//!
//! Nothing of CUDA is needed to build this crate, nor to use the rest of it: the driver is looked for when it is first
//! asked for. [`available`] says whether there is one that can be used, and if not, why and what to do.
//!
//! ```
//! # fn main() -> wcodec::Result<()> {
//! use wcodec::gpu::{self, Device, DeviceBuffer, Stream};
//! if let Err(e) = gpu::available() {
//!     println!("no GPU: {e}");
//!     return Ok(());
//! }
//! let device = Device::new(0)?;
//! let stream = Stream::new(&device)?;
//! let buffer = DeviceBuffer::new(&device, 5)?;
//! buffer.upload(0, b"hello", &stream)?;
//! let mut back = [0; 5];
//! buffer.download(0, &mut back, &stream)?;
//! assert_eq!(&back, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Sharing a GPU
//! A [`Device`] uses the device's primary context, which it shares with CUDA's runtime and so with torch. Every call
//! makes that context current for its own duration and leaves the thread as it was: another library in the process
//! keeps its current device.
//!
//! # CUDA graphs
//! Launches, [`Event`]s, [`DeviceBuffer::fill`] and [`DeviceBuffer::upload_async`] can be captured: they neither
//! allocate nor wait. Calls that allocate, free or wait leave a capture that is under way on another stream alone;
//! [`DeviceBuffer::upload`] and [`DeviceBuffer::download`] on a stream that is being captured are errors. A graph keeps
//! the memory of the decoders whose work it captured ([`Stream::keep`]): they can be dropped before it.

mod buffer;
mod capture;
mod decoder;
mod device;
mod disk;
mod driver;
#[cfg(test)]
mod emulated;
mod fetch;
mod footprint;
mod groups;
mod image;
mod info;
mod kernel;
mod launch;
mod module;
mod norm;
pub mod nvcomp;
mod options;
mod packed_rows;
mod plan;
mod quantize;
mod residency;
mod ring;
mod route;
mod selftest;
mod shared;
mod stream;
mod table;
mod tensors;
mod timing;
mod upload;
mod work_item;
mod zstd;

pub use buffer::{DeviceBuffer, PinnedBuffer};
pub use decoder::{Batch, GpuDecoder, HostDecoder, Lookup, Routed, RoutedVectors, TensorDecoder};
pub use device::{Device, devices};
pub use driver::{available, driver_version};
pub use fetch::Fetcher;
pub use footprint::{Footprint, Sizes};
pub use info::{DeviceInfo, device_infos};
pub use kernel::Kernel;
pub use norm::{Norm, NormKind, NormVectors, Norms};
pub use options::GpuOptions;
pub use quantize::{ColumnSizes, Quantizer, RoundColumns, TrellisColumns};
pub use residency::Residency;
pub use route::{Combination, Router, Routes};
pub use stream::{Event, Stream};
pub use timing::TimedDecoder;
pub use work_item::{Activation, DecodeItem, Epilogue, ProductItem, ProductPart, ResultOrder, RowIds, Vectors};

/// A [`DecodeItem`] by its former name.
pub type Target = DecodeItem;

/// A [`ProductItem`] by its former name.
pub type Factor = ProductItem;

/// A [`ProductPart`] by its former name.
pub type FactorPart = ProductPart;

/// An [`Epilogue`] by its former name.
pub type Around = Epilogue;

/// A [`Batch`] of a [`HostDecoder`].
pub type HostBatch = Batch;
