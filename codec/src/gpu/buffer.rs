//! Memory: of the device, and of the host where the device can reach it.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use cudarc::driver::{result, sys};

use super::device::Device;
use super::driver::{self, DriverResult};
use super::stream::Stream;
use crate::error::{Error, Result};

/// Memory of a device, freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Device,
    ptr: sys::CUdeviceptr,
    len: usize,
}

impl DeviceBuffer {
    /// `bytes` bytes, of unknown contents. The start is a multiple of 256.
    ///
    /// # Errors
    /// The device has not so much memory left.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let mut ptr = 0;
        if bytes > 0 {
            let _scope = device.enter_uncaptured()?;
            // SAFETY: Memory of the device is bytes, all of whose values are valid.
            ptr = unsafe { result::malloc_sync(bytes) }.or_else(|e| match driver::code(e) {
                driver::OUT_OF_MEMORY => Err(out_of_memory(device, bytes)),
                _ => Err(e).named("cuMemAlloc"),
            })?;
        }
        Ok(Self { device: device.clone(), ptr, len: bytes })
    }

    /// Address on the device; 0 if there are no bytes.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies `bytes` to `offset`, after the work that is in the stream, and waits until that is done.
    ///
    /// # Errors
    /// They do not fit there, or the stream is being captured.
    pub fn upload(&self, offset: usize, bytes: &[u8], stream: &Stream) -> Result<()> {
        let (to, raw) = self.place(offset, bytes.len(), stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        refuse_capture(stream)?;
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: The range is in the buffer, and `bytes` is borrowed until the copy is done.
        unsafe {
            result::memcpy_htod_async(to, bytes, raw).named("cuMemcpyHtoDAsync")?;
            result::stream::synchronize(raw).named("cuStreamSynchronize")
        }
    }

    /// Begins to copy `range` of `from` to `offset`, after the work that is in the stream. Can be captured.
    ///
    /// # Safety
    /// `from` stays alive, and `range` of it unchanged, until the copy is done; if the stream is being captured, until
    /// the last time that the graph runs. The buffer stays alive as long.
    ///
    /// # Errors
    /// The range is not in `from`, or does not fit there.
    pub unsafe fn upload_async(
        &self,
        offset: usize,
        from: &PinnedBuffer,
        range: Range<usize>,
        stream: &Stream,
    ) -> Result<()> {
        let bytes = from
            .get(range.clone())
            .ok_or_else(|| coded!(INPUT_BUG, "bytes {range:?} of a pinned buffer of {}", from.len()))?;
        let (to, raw) = self.place(offset, bytes.len(), stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _scope = self.device.enter()?;
        // SAFETY: The ranges are in the buffers, which the caller keeps.
        unsafe { result::memcpy_htod_async(to, bytes, raw) }.named("cuMemcpyHtoDAsync")
    }

    /// Copies the bytes at `offset` to `bytes`, after the work that is in the stream.
    ///
    /// # Errors
    /// There are not so many, the stream is being captured, or work before it failed.
    pub fn download(&self, offset: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let (from, raw) = self.place(offset, bytes.len(), stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        refuse_capture(stream)?;
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: The range is in the buffer, and `bytes` is borrowed until the copy is done.
        unsafe {
            result::memcpy_dtoh_async(bytes, from, raw).named("cuMemcpyDtoHAsync")?;
            result::stream::synchronize(raw).named("cuStreamSynchronize")
        }
    }

    /// Begins to set every byte to `value`, after the work that is in the stream. Can be captured, in which case the
    /// buffer must live as long as the graph.
    pub fn fill(&self, value: u8, stream: &Stream) -> Result<()> {
        let (to, raw) = self.place(0, self.len, stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let _scope = self.device.enter()?;
        // SAFETY: The range is the buffer, which waits for work that uses it before it is freed.
        unsafe { result::memset_d8_async(to, value, self.len, raw) }.named("cuMemsetD8Async")
    }

    /// Address of `bytes` bytes from `offset` on, and the stream's handle.
    fn place(&self, offset: usize, bytes: usize, stream: &Stream) -> Result<(sys::CUdeviceptr, sys::CUstream)> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(coded!(INPUT_BUG, "{bytes} bytes at {offset} of a device buffer of {}", self.len));
        }
        Ok((self.ptr + offset as u64, stream.for_device(&self.device)?))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        if let Ok(_scope) = self.device.enter_uncaptured() {
            // SAFETY: The memory was allocated by `new` and is freed once. The driver waits for work that uses it.
            unsafe { result::free_sync(self.ptr) }.ok();
        }
    }
}

/// Copies bytes of a device's memory, after the work that is in the stream, and waits until that is done.
///
/// # Safety
/// There are so many bytes at the device's address `from`, and nobody changes them meanwhile.
///
/// # Errors
/// The stream is being captured, or work before it failed.
pub(super) unsafe fn read_device(from: u64, bytes: &mut [u8], stream: &Stream) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    refuse_capture(stream)?;
    let device = stream.device();
    let raw = stream.for_device(device)?;
    let _scope = device.enter_uncaptured()?;
    // SAFETY: as the caller promises; `bytes` is borrowed until the copy is done.
    unsafe {
        result::memcpy_dtoh_async(bytes, from, raw).named("cuMemcpyDtoHAsync")?;
        result::stream::synchronize(raw).named("cuStreamSynchronize")
    }
}

/// An error where a copy from or to pageable memory would become part of a CUDA graph.
pub(super) fn refuse_capture(stream: &Stream) -> Result<()> {
    if stream.is_capturing()? {
        return Err(coded!(CUDA_GRAPH, "a copy from or to pageable memory cannot be part of a CUDA graph")
            .advice("do it before the capture begins"));
    }
    Ok(())
}

fn out_of_memory(device: &Device, bytes: usize) -> Error {
    let about = format!("GPU {} ({})", device.ordinal(), device.name());
    out_of_memory_text(&about, bytes as u64, device.memory().ok())
}

/// `memory` is what is free, and in all.
fn out_of_memory_text(about: &str, bytes: u64, memory: Option<(u64, u64)>) -> Error {
    let left =
        memory.map_or(String::new(), |(free, total)| format!(", and {} of {} are free", grouped(free), grouped(total)));
    coded!(GPU_MEMORY, "{about} is out of memory: {} bytes were asked for{left}", grouped(bytes))
        .advice("end other programs that use it, as `nvidia-smi` lists them, or use a larger GPU")
}

/// Digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Memory of the host that stays where it is, so that devices copy from it while the host goes on. Freed when dropped.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Device,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory belongs to this alone, as in a Vec.
unsafe impl Send for PinnedBuffer {}
// SAFETY: As above; shared references only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `bytes` zeros. Slow: pinned memory is to be used again.
    ///
    /// # Errors
    /// The system does not give so much.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let mut ptr = NonNull::dangling();
        if bytes > 0 {
            let _scope = device.enter_uncaptured()?;
            // SAFETY: The memory is made valid by setting it, below.
            let raw =
                unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP) };
            let raw = raw.or_else(|e| match driver::code(e) {
                driver::OUT_OF_MEMORY => Err(coded!(
                    PINNED_MEMORY,
                    "the system is out of memory that can be pinned: {} bytes were asked for",
                    grouped(bytes as u64)
                )
                .advice("end other programs, or raise the limit of locked memory")),
                _ => Err(e).named("cuMemHostAlloc"),
            })?;
            ptr = NonNull::new(raw.cast()).ok_or_else(|| {
                coded!(PINNED_MEMORY, "cuMemHostAlloc returned no memory").advice("end other programs")
            })?;
            // SAFETY: There are so many bytes, and nobody else knows of them.
            unsafe { ptr.write_bytes(0, bytes) };
        }
        Ok(Self { device: device.clone(), ptr, len: bytes })
    }

    /// Address of the first byte, a multiple of a page, for those who write there while they know that nobody else uses it.
    pub(super) fn address(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The address by which kernels of its device read it, over the bus; 0 if there are no bytes.
    pub(super) fn device_address(&self) -> Result<u64> {
        let mut address = 0;
        if self.len > 0 {
            let _scope = self.device.enter_uncaptured()?;
            // SAFETY: The memory was allocated by `new`, with the flag that maps it, and the address is written to a place of its type.
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, self.ptr.as_ptr().cast(), 0) }
                .result()
                .named("cuMemHostGetDevicePointer")?;
        }
        Ok(address)
    }

    /// Begins to copy the `bytes` bytes at the device's address `from` to the beginning, after the work that is in the stream.
    ///
    /// # Safety
    /// There are so many bytes, which stay there and unchanged until the copy is done. Until then the buffer stays alive, and nobody
    /// touches it.
    ///
    /// # Errors
    /// They do not fit, or the stream is of another device.
    pub(super) unsafe fn download_async(&mut self, from: u64, bytes: usize, stream: &Stream) -> Result<()> {
        let raw = stream.for_device(&self.device)?;
        let length = self.len;
        let to =
            self.get_mut(..bytes).ok_or_else(|| coded!(INPUT_BUG, "{bytes} bytes for a pinned buffer of {length}"))?;
        let _scope = stream.device().enter_uncaptured()?;
        // SAFETY: as the caller promises; the bytes fit.
        unsafe { result::memcpy_dtoh_async(to, from, raw) }.named("cuMemcpyDtoHAsync")
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: There are so many bytes, set by `new`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As above, and this has them for itself.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if let Ok(_scope) = self.device.enter_uncaptured() {
            // SAFETY: The memory was allocated by `new` and is freed once.
            unsafe { result::free_host(self.ptr.as_ptr().cast()) }.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn out_of_memory_says_how_much() {
        let e = out_of_memory_text("GPU 0 (T4)", 17_179_869_184, Some((1_073_741_824, 15_843_721_216)));
        assert_eq!(e.kind(), ErrorKind::Device);
        let text = "GPU 0 (T4) is out of memory: 17,179,869,184 bytes were asked for, and 1,073,741,824 of \
                    15,843,721,216 are free";
        assert_eq!(e.message(), text);
        let e = out_of_memory_text("GPU 0 (T4)", 512, None);
        assert_eq!(e.message(), "GPU 0 (T4) is out of memory: 512 bytes were asked for");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 123_456, 1_234_567].map(grouped), ["0", "999", "1,000", "123,456", "1,234,567"]);
    }
}
