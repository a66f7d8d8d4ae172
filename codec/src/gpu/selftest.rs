//! Tries on a device what kernels rely on and no specification promises.

use wcodec_kernels::Module;
use wcodec_kernels::abi::{ManySelftest, Parameters};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::stream::Stream;
use crate::error::Result;

/// Threads of the kernel, and bytes of shared memory: a matrix of 4 KiB from 2 KiB on, and a word of each warp.
const THREADS: u32 = 128;
const SHARED: u32 = 8 << 10;

/// Whether kernels of many vectors run on a device, and its tensor cores multiply subnormal numbers exactly, which they rely on.
pub(super) fn multiplies_many(device: &Device) -> Result<bool> {
    if device.compute_capability() < Module::Huffmanmany.oldest() {
        return Ok(false);
    }
    let kernel = device.kernel(Module::Huffmanmany, "wcodec_many_selftest")?;
    // A stream of its own: others may be being captured.
    let stream = Stream::new(device)?;
    let result = DeviceBuffer::new(device, 4)?;
    result.fill(0, &stream)?;
    let params = ManySelftest { result: result.ptr() };
    // SAFETY: The buffer lives until `download` has waited for the stream.
    unsafe { kernel.launch(1, THREADS, SHARED, params.as_bytes(), &stream, false)? };
    let mut exact = [0; 4];
    result.download(0, &mut exact, &stream)?;
    Ok(u32::from_ne_bytes(exact) == 1)
}
