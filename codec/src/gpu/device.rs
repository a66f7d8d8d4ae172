//! Devices, and the contexts that calls happen in.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};
use wcodec_kernels::abi::TABLE_AT;

use super::driver::{self, DriverResult};
use super::info::{DeviceInfo, device_infos};
use super::module::{Code, Function, Modules};
use super::selftest;
use crate::error::Result;

/// Every device that can run the kernels. This makes a context on each, which takes a few hundred MB of its memory:
/// [`device_infos`] does not.
///
/// # Errors
/// As [`available`](super::available), or all devices are too old.
pub fn devices() -> Result<Vec<Device>> {
    let infos = device_infos()?;
    let (good, bad): (Vec<_>, Vec<_>) = infos.iter().map(|i| (i, i.supported())).partition(|(_, s)| s.is_ok());
    if good.is_empty()
        && let Some((_, reason)) = bad.into_iter().next()
    {
        reason?;
    }
    good.into_iter().map(|(info, _)| Device::new(info.ordinal)).collect()
}

/// A GPU, with its primary context. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: sys::CUdevice,
    context: sys::CUcontext,
    driver_version: (u32, u32),
    info: DeviceInfo,
    modules: Mutex<Modules>,
    /// Whether kernels of many vectors run there, once that was asked.
    many: OnceLock<bool>,
}

// SAFETY: The driver's contexts can be made current on every thread, also on several at once.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(_scope) = Scope::enter(self.context, Capture::LeftAlone) {
            // SAFETY: Every `Kernel` holds the device, so none of them is left.
            unsafe { self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).unload() };
        }
        // SAFETY: The context was retained once, by `Device::new`.
        unsafe { result::primary_ctx::release(self.handle) }.ok();
    }
}

impl Device {
    /// Device number `ordinal` of those that CUDA_VISIBLE_DEVICES leaves. If it is in use already, the same one is
    /// returned, with the kernels that were loaded.
    ///
    /// # Errors
    /// As [`available`](super::available), or there is no such device, or it is too old.
    pub fn new(ordinal: usize) -> Result<Self> {
        static IN_USE: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|d| d.strong_count() > 0);
        if let Some(inner) = in_use.iter().filter_map(Weak::upgrade).find(|d| d.info.ordinal == ordinal) {
            return Ok(Self(inner));
        }
        let driver_version = driver::driver_version()?;
        let (handle, info) = DeviceInfo::read(ordinal)?;
        info.supported()?;
        let reserved = Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK;
        // SAFETY: The handle is a device's.
        let reserved = unsafe { result::device::get_attribute(handle, reserved) }.unwrap_or(0);
        if reserved > TABLE_AT as c_int {
            return Err(coded!(
                SHARED_MEMORY,
                "{} keeps {reserved} bytes of a block's shared memory for itself",
                info.name
            )
            .advice("this wcodec's kernels do not fit it: decode on the CPU, or look for a newer wcodec"));
        }
        // SAFETY: The handle is a device's.
        let context = unsafe { result::primary_ctx::retain(handle) }.named("cuDevicePrimaryCtxRetain")?;
        let inner =
            Arc::new(Inner { handle, context, driver_version, info, modules: Mutex::default(), many: OnceLock::new() });
        in_use.push(Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// The facts that the driver tells of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Number among the devices that CUDA_VISIBLE_DEVICES leaves.
    pub fn ordinal(&self) -> usize {
        self.0.info.ordinal
    }

    /// The maker's name of it.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Major and minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.info.compute_capability
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.info.multiprocessors
    }

    /// Most bytes of shared memory that a block can ask for.
    pub fn shared_memory_per_block(&self) -> u32 {
        self.0.info.shared_memory_per_block
    }

    /// Bytes of shared memory that the blocks on a multiprocessor share.
    pub fn shared_memory_per_multiprocessor(&self) -> u32 {
        self.0.info.shared_memory_per_multiprocessor
    }

    /// Bytes of memory: free, and in all.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _scope = self.enter_uncaptured()?;
        let (free, total) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }

    /// The version of CUDA, major and minor, that the driver implements.
    pub fn driver_version(&self) -> (u32, u32) {
        self.0.driver_version
    }

    /// Whether kernels of many vectors run there, and give what they are meant to: the first call tries it.
    pub(super) fn multiplies_many(&self) -> Result<bool> {
        if let Some(answer) = self.0.many.get() {
            return Ok(*answer);
        }
        let answer = selftest::multiplies_many(self)?;
        Ok(*self.0.many.get_or_init(|| answer))
    }

    /// Makes the context current on this thread, and leaves it so. Not needed by anything here: it saves later calls
    /// from doing it, and it is for libraries that work in the current context.
    pub fn bind(&self) -> Result<()> {
        if result::ctx::get_current().named("cuCtxGetCurrent")? != Some(self.0.context) {
            // SAFETY: The context is retained as long as the device is.
            unsafe { result::ctx::set_current(self.0.context) }.named("cuCtxSetCurrent")?;
        }
        Ok(())
    }

    /// Waits for all work that the device was given in this process.
    ///
    /// # Errors
    /// Some of the work failed, or a CUDA graph is being captured.
    pub fn synchronize(&self) -> Result<()> {
        let _scope = self.enter_uncaptured()?;
        result::ctx::synchronize().named("cuCtxSynchronize")
    }

    /// The kernel `name` in `code`, which is loaded by the first call that needs it.
    pub(super) fn function(&self, code: Code, name: &str) -> Result<Arc<Function>> {
        let _scope = self.enter_uncaptured()?;
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: The context is current. Modules are unloaded when no clone of the device is left, and every `Kernel` has
        // one beside its function.
        unsafe { modules.function(&self.0.info, code, name) }
    }

    /// Makes the context current for one call.
    pub(super) fn enter(&self) -> Result<Scope> {
        Scope::enter(self.0.context, Capture::Meant)
    }

    /// Makes the context current for one call that is not meant for a CUDA graph, whatever is being captured.
    pub(super) fn enter_uncaptured(&self) -> Result<Scope> {
        Scope::enter(self.0.context, Capture::LeftAlone)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for Device {}

/// The relation of a call to a capture that is under way somewhere in the process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Capture {
    /// It can be a part of it.
    Meant,
    /// It has nothing to do with it and must not spoil it: a capture of the usual kind forbids every thread to allocate,
    /// to free, or to wait.
    LeftAlone,
}

/// While this lives, a context is current on this thread. Afterwards the thread is as it was, which matters to others:
/// the current context is what CUDA's runtime, and torch, take for the current device.
pub(super) struct Scope {
    context: Option<sys::CUcontext>,
    capture: Option<sys::CUstreamCaptureMode>,
    // Both are the thread's.
    _not_send: PhantomData<*const ()>,
}

impl Scope {
    fn enter(context: sys::CUcontext, capture: Capture) -> Result<Self> {
        let mut scope = Self { context: None, capture: None, _not_send: PhantomData };
        let current = result::ctx::get_current().named("cuCtxGetCurrent")?;
        if current != Some(context) {
            // SAFETY: The caller holds the device, and with it the context.
            unsafe { result::ctx::set_current(context) }.named("cuCtxSetCurrent")?;
            scope.context = Some(current.unwrap_or(ptr::null_mut()));
        }
        if capture == Capture::LeftAlone {
            let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            scope.capture = Some(exchange_capture_mode(relaxed).named("cuThreadExchangeStreamCaptureMode")?);
        }
        Ok(scope)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(mode) = self.capture {
            exchange_capture_mode(mode).ok();
        }
        if let Some(context) = self.context {
            // SAFETY: The context was current before; its owner has not destroyed it under a thread that uses it.
            unsafe { result::ctx::set_current(context) }.ok();
        }
    }
}

/// Sets what this thread may do during captures, and returns what it was.
fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode, result::DriverError> {
    // SAFETY: The function writes one of the three modes that there are.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_everything_is_an_error_with_advice() {
        let Err(reason) = driver::available() else { return };
        for e in [devices().err(), Device::new(0).err(), driver::driver_version().err()] {
            assert_eq!(e.expect("an error").to_string(), reason.to_string());
        }
    }
}
