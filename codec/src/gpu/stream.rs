//! Streams: queues of work of a device, and the events in them.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::device::Device;
use super::driver::DriverResult;
use crate::error::Result;

/// A queue of work that the device does in order.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: sys::CUstream,
    owned: bool,
}

// SAFETY: The driver's streams can be used from every thread, also from several at once.
unsafe impl Send for Stream {}
// SAFETY: As above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the legacy default stream.
    pub fn new(device: &Device) -> Result<Self> {
        let _scope = device.enter_uncaptured()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).named("cuStreamCreate")?;
        Ok(Self { device: device.clone(), raw, owned: true })
    }

    /// The caller's stream, as torch's current one; null is the legacy default stream. It is not destroyed.
    ///
    /// # Safety
    /// `raw` is null or a stream of the device's primary context, and lives at least as long as the result.
    pub unsafe fn from_raw(device: &Device, raw: *mut c_void) -> Self {
        Self { device: device.clone(), raw: raw.cast(), owned: false }
    }

    /// The driver's handle.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// The device that does the work.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for all work that is in the stream.
    ///
    /// # Errors
    /// Some of the work failed, or the stream is being captured.
    pub fn synchronize(&self) -> Result<()> {
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: The stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.named("cuStreamSynchronize")
    }

    /// Whether all work that was put into the stream is done.
    ///
    /// # Errors
    /// Some of the work failed, or the stream is being captured.
    pub fn is_done(&self) -> Result<bool> {
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: The stream is alive.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => result.result().named("cuStreamQuery").map(|()| true),
        }
    }

    /// Lets work that is put into this stream from now on wait for what `event` recorded last.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _scope = self.device.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: The stream and the event are alive.
        unsafe { result::stream::wait_event(self.raw, event.raw, flags) }.named("cuStreamWaitEvent")
    }

    /// Whether work put into the stream becomes part of a CUDA graph instead of being done.
    pub fn is_capturing(&self) -> Result<bool> {
        let _scope = self.device.enter()?;
        // SAFETY: The stream is alive.
        let status = unsafe { result::stream::is_capturing(self.raw) }.named("cuStreamIsCapturing")?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The handle, for work on `device`.
    pub(super) fn for_device(&self, device: &Device) -> Result<sys::CUstream> {
        if self.device != *device {
            let (a, b) = (self.device.ordinal(), device.ordinal());
            return Err(coded!(INPUT_BUG, "a stream of GPU {a} is used for GPU {b}")
                .advice("use a stream of the GPU that holds the data"));
        }
        Ok(self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(_scope) = self.device.enter_uncaptured() {
            // SAFETY: The stream was created by `new` and is destroyed once. Work that is in it is done all the same.
            unsafe { result::stream::destroy(self.raw) }.ok();
        }
    }
}

/// A mark in a stream that others can wait for.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: sys::CUevent,
}

// SAFETY: The driver's events can be used from every thread, also from several at once.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    /// An event without time, the cheaper kind.
    pub fn new(device: &Device) -> Result<Self> {
        Self::create(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that notes when it was reached, for [`elapsed_ms`](Self::elapsed_ms).
    pub fn with_timing(device: &Device) -> Result<Self> {
        Self::create(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create(device: &Device, flags: sys::CUevent_flags) -> Result<Self> {
        let _scope = device.enter_uncaptured()?;
        let raw = result::event::create(flags).named("cuEventCreate")?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Marks the end of the work that is in the stream now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let raw = stream.for_device(&self.device)?;
        let _scope = self.device.enter()?;
        // SAFETY: The event and the stream are alive and of the same context.
        unsafe { result::event::record(self.raw, raw) }.named("cuEventRecord")
    }

    /// Waits until the marked work is done. An event that was never recorded is done.
    pub fn synchronize(&self) -> Result<()> {
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: The event is alive.
        unsafe { result::event::synchronize(self.raw) }.named("cuEventSynchronize")
    }

    /// Milliseconds from `start` to this event. Both were recorded and have been reached.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        let _scope = self.device.enter_uncaptured()?;
        // SAFETY: Both events are alive.
        unsafe { result::event::elapsed(start.raw, self.raw) }.named("cuEventElapsedTime")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_scope) = self.device.enter_uncaptured() {
            // SAFETY: The event was created by `create` and is destroyed once. The driver keeps what still waits for it.
            unsafe { result::event::destroy(self.raw) }.ok();
        }
    }
}
