//! Kernels: functions of loaded modules, launched as often as wanted.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, PoisonError};

use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::{result, sys};
use wcodec_kernels::Module;

use super::device::Device;
use super::driver;
use super::module::{Code, Function};
use super::stream::Stream;
use crate::error::Result;

impl Device {
    /// A kernel of ours. The module is loaded by the first call that needs it: machine code for the device, or else PTX, which
    /// the driver compiles ([`DeviceInfo::kernels`](super::DeviceInfo::kernels)).
    pub fn kernel(&self, module: Module, name: &str) -> Result<Kernel> {
        Ok(Kernel { device: self.clone(), function: self.function(Code::Module(module), name)? })
    }

    /// A kernel in other PTX. A text is loaded once, whatever the number of calls.
    pub fn kernel_in(&self, ptx: &'static str, name: &str) -> Result<Kernel> {
        Ok(Kernel { device: self.clone(), function: self.function(Code::Text(ptx), name)? })
    }
}

/// A function that a device runs. Clones are the same kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    device: Device,
    function: Arc<Function>,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// The device that it is loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lets launches ask for `bytes` bytes of dynamic shared memory. Bytes allowed before stay allowed.
    ///
    /// # Errors
    /// The device has not so much for a block.
    pub fn max_shared(&self, bytes: u32) -> Result<()> {
        let mut allowed = self.function.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= *allowed {
            return Ok(());
        }
        let most = self.device.shared_memory_per_block();
        if bytes > most {
            return Err(coded!(
                INPUT_BUG,
                "kernel '{}' was to have {bytes} bytes of shared memory a block, and GPU {} ({}) has {most}",
                self.name(),
                self.device.ordinal(),
                self.device.name()
            ));
        }
        let _scope = self.device.enter_uncaptured()?;
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: The function is loaded as long as the device is there.
        unsafe { result::function::set_function_attribute(self.function.raw, attribute, bytes as i32) }
            .map_err(|e| driver::error_about(&self.about(), "cuFuncSetAttribute", e))?;
        *allowed = bytes;
        Ok(())
    }

    /// Blocks of `threads` threads and `smem` bytes of dynamic shared memory that a multiprocessor runs at once.
    pub fn occupancy(&self, threads: u32, smem: u32) -> Result<u32> {
        let _scope = self.device.enter_uncaptured()?;
        let raw = self.function.raw;
        // SAFETY: The function is loaded as long as the device is there.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(raw, threads as i32, smem as usize) }
                .map_err(|e| driver::error_about(&self.about(), "cuOccupancyMaxActiveBlocksPerMultiprocessor", e))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Puts a launch into the stream: `grid` blocks of `threads` threads, each block with `smem` bytes of dynamic shared
    /// memory. `params` is the bytes of the kernel's one parameter, which are copied. With `overlap`, devices of compute
    /// capability 9.0 and later may begin before the work before it has ended; the kernel waits for it by itself.
    ///
    /// Neither allocates nor waits, and can be captured. A grid without blocks does nothing.
    ///
    /// # Safety
    /// The kernel may do with these parameters what it does: all memory that it reaches by them is alive until the work
    /// is done (if the stream is being captured, until the last time that the graph runs) and is not used meanwhile in
    /// a way that conflicts. A kernel that was launched with `overlap` waits before it reads what work before it writes.
    ///
    /// # Errors
    /// The parameter has another size, the stream is another device's, or the driver refuses the launch, as for too much
    /// shared memory ([`max_shared`](Self::max_shared)).
    pub unsafe fn launch(
        &self,
        grid: u32,
        threads: u32,
        smem: u32,
        params: &[u8],
        stream: &Stream,
        overlap: bool,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_clusters(grid, 1, threads, smem, params, stream, overlap) }
    }

    /// As [`launch`](Self::launch), where each `cluster` blocks are a cluster, which devices of compute capability 9.0 and later know. The grid is
    /// a multiple of it.
    ///
    /// # Safety
    /// Conditions of [`launch`](Self::launch).
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch); and the device has no such clusters.
    #[allow(clippy::too_many_arguments, reason = "those of `launch`, which are what a launch has, and one more")]
    pub unsafe fn launch_clusters(
        &self,
        grid: u32,
        cluster: u32,
        threads: u32,
        smem: u32,
        params: &[u8],
        stream: &Stream,
        overlap: bool,
    ) -> Result<()> {
        if params.len() != self.function.parameters {
            return Err(coded!(
                INPUT_BUG,
                "{} takes {} bytes of parameters, not {}",
                self.about(),
                self.function.parameters,
                params.len()
            ));
        }
        let raw = stream.for_device(&self.device)?;
        if grid == 0 {
            return Ok(());
        }
        let attribute =
            |id| sys::CUlaunchAttribute { id, pad: [0; 4], value: sys::CUlaunchAttributeValue { pad: [0; 64] } };
        let mut attributes = [attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE); 2];
        let mut used = 0;
        if overlap && self.device.compute_capability() >= (9, 0) {
            let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[used] = attribute(id);
            attributes[used].value.programmaticStreamSerializationAllowed = 1;
            used += 1;
        }
        if cluster > 1 {
            attributes[used] = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
            attributes[used].value.clusterDim =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
            used += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: smem,
            hStream: raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: used as u32,
        };
        let mut pointers = [params.as_ptr().cast_mut().cast::<c_void>()];
        let _scope = self.device.enter()?;
        // SAFETY: The function is loaded, the parameter has the size that the driver reads, and the rest is as the
        // caller promises.
        unsafe { sys::cuLaunchKernelEx(&config, self.function.raw, pointers.as_mut_ptr(), ptr::null_mut()) }
            .result()
            .map_err(|e| driver::error_about(&self.about(), "cuLaunchKernelEx", e))
    }

    fn about(&self) -> String {
        format!("kernel '{}'", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{DeviceBuffer, Event, PinnedBuffer};

    #[test]
    fn everything_can_be_used_from_every_thread() {
        fn check<T: Send + Sync>() {}
        check::<Device>();
        check::<Stream>();
        check::<Event>();
        check::<DeviceBuffer>();
        check::<PinnedBuffer>();
        check::<Kernel>();
    }
}
