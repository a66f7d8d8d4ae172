//! Bytes of a device's memory on their way to the host.

use super::buffer::{PinnedBuffer, refuse_capture};
use super::device::Device;
use super::stream::{Event, Stream};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::copy_with;

/// Bytes that are copied from the device at once.
const PIECE: usize = 32 << 20;

/// Copies memory of a device to memory of the host that is not pinned, as fast as the host's threads write it: piece after piece goes
/// to pinned memory, and from there on while the next one comes.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, DeviceBuffer, Fetcher, Stream};
/// use wcodec::{Cancel, Pool};
/// if gpu::available().is_err() {
///     return Ok(()); // this example needs a GPU
/// }
/// let device = Device::new(0)?;
/// let stream = Stream::new(&device)?;
/// let buffer = DeviceBuffer::new(&device, 100_000)?;
/// buffer.fill(7, &stream)?;
/// let mut bytes = vec![0; 100_000];
/// let mut fetcher = Fetcher::new(&device, bytes.len())?;
/// // SAFETY: the buffer is alive, and nothing writes to it after the stream's work.
/// unsafe { fetcher.fetch(buffer.ptr(), &mut bytes, &stream, &Pool::new(None)?, &Cancel::new())? };
/// assert!(bytes.iter().all(|&b| b == 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fetcher {
    stream: Stream,
    /// Whom the copies wait for.
    before: Event,
    halves: [(PinnedBuffer, Event); 2],
}

impl Fetcher {
    /// For runs of at most `largest` bytes (more are fine, but no faster): up to 64 MiB of pinned memory.
    ///
    /// # Errors
    /// The system does not give so much memory that is pinned.
    pub fn new(device: &Device, largest: usize) -> Result<Self> {
        let size = largest.clamp(1, PIECE);
        let half = || -> Result<_> { Ok((PinnedBuffer::new(device, size)?, Event::new(device)?)) };
        Ok(Self { stream: Stream::new(device)?, before: Event::new(device)?, halves: [half()?, half()?] })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Copies what is at the device's address `from` to `out`, after the work that is in the stream `after`, and waits for it.
    ///
    /// # Safety
    /// There are as many bytes as `out` has. They stay there until this returns, and nothing writes to them but the work that is in
    /// the stream now.
    ///
    /// # Errors
    /// The stream is being captured, work in it failed, or `cancel` was used.
    pub unsafe fn fetch(
        &mut self,
        from: u64,
        out: &mut [u8],
        after: &Stream,
        pool: &Pool,
        cancel: &Cancel,
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        refuse_capture(after)?;
        self.before.record(after)?;
        self.stream.wait(&self.before)?;
        // SAFETY: as the caller promises.
        let fetched = unsafe { self.pieces(from, out, pool, cancel) };
        if fetched.is_err() {
            // A copy may be under way that reads what the caller is about to free.
            self.stream.synchronize().ok();
        }
        fetched
    }

    /// # Safety
    /// Conditions of [`fetch`](Self::fetch); the bytes stay there until the stream's work is done.
    unsafe fn pieces(&mut self, from: u64, out: &mut [u8], pool: &Pool, cancel: &Cancel) -> Result<()> {
        let (size, length) = (self.halves[0].0.len(), out.len());
        let begin = |halves: &mut [(PinnedBuffer, Event); 2], i: usize| {
            let (pinned, copied) = &mut halves[i % 2];
            let bytes = size.min(length - i * size);
            // SAFETY: as the caller promises. The half is not touched before its event was reached.
            unsafe { pinned.download_async(from + (i * size) as u64, bytes, &self.stream)? };
            copied.record(&self.stream)
        };
        begin(&mut self.halves, 0)?;
        for (i, piece) in out.chunks_mut(size).enumerate() {
            if (i + 1) * size < length {
                begin(&mut self.halves, i + 1)?;
            }
            let (pinned, copied) = &self.halves[i % 2];
            copied.synchronize()?;
            copy_with(&pinned[..piece.len()], piece, pool, cancel)?;
        }
        Ok(())
    }
}
