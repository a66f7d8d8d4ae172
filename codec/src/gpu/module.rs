//! Kernels: loaded once a device, launched as often as wanted.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute};

use super::device::Device;
use super::driver::{self, DriverResult};
use super::stream::Stream;
use crate::error::{Error, Result};

/// Bytes of the compiler's messages that are kept.
const LOG: usize = 8 << 10;

/// The modules and kernels that a device has loaded. The address of a text stands for the text.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: HashMap<usize, sys::CUmodule>,
    functions: HashMap<(usize, String), Arc<Function>>,
}

impl Modules {
    /// The kernel `name` of the module `ptx`, loaded if it is not.
    ///
    /// # Safety
    /// The device's context is current, and no function is used after [`unload`](Self::unload).
    pub(super) unsafe fn function(&mut self, device: &Device, ptx: &'static str, name: &str) -> Result<Arc<Function>> {
        let key = (ptx.as_ptr() as usize, name.to_owned());
        if let Some(function) = self.functions.get(&key) {
            return Ok(Arc::clone(function));
        }
        let module = match self.modules.get(&key.0) {
            Some(module) => *module,
            None => *self.modules.entry(key.0).or_insert(load(device, ptx)?),
        };
        let c_name = CString::new(name).map_err(|_| Error::input("a kernel's name with a zero byte"))?;
        // SAFETY: The module is loaded, and stays so as the caller promises.
        let function = unsafe { Function::get(module, &c_name) }?;
        let function = Arc::new(function);
        self.functions.insert(key, Arc::clone(&function));
        Ok(function)
    }

    /// Unloads everything.
    ///
    /// # Safety
    /// The device's context is current, and no function is used any more.
    pub(super) unsafe fn unload(&mut self) {
        self.functions.clear();
        for (_, module) in self.modules.drain() {
            // SAFETY: It was loaded by `load` and is unloaded once.
            unsafe { result::module::unload(module) }.ok();
        }
    }
}

/// Compiles PTX for the current context's device and loads it.
fn load(device: &Device, ptx: &str) -> Result<sys::CUmodule> {
    let text = CString::new(ptx).map_err(|_| Error::input("PTX with a zero byte"))?;
    let mut log = vec![0u8; LOG];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size is passed in the pointer itself.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG)];
    let mut module: sys::CUmodule = ptr::null_mut();
    // SAFETY: The text ends with a zero, there are two options with two values, and the buffer is of the size given.
    let result = unsafe {
        sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    result.result().map_err(|e| refused(device, e, &log))?;
    Ok(module)
}

/// Why the module was refused, with what the compiler says.
fn refused(device: &Device, e: DriverError, log: &[u8]) -> Error {
    let (major, minor) = device.compute_capability();
    let mut about =
        format!("kernels for GPU {} ({}, compute capability {major}.{minor})", device.ordinal(), device.name());
    let log = CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy();
    for line in log.lines().map(str::trim).filter(|l| !l.is_empty()) {
        about.push_str("; ");
        about.push_str(line);
    }
    driver::error_about(&about, "cuModuleLoadDataEx", e)
}

/// A kernel in a loaded module.
#[derive(Debug)]
pub(super) struct Function {
    raw: sys::CUfunction,
    name: String,
    /// Bytes of its parameters.
    parameters: usize,
    /// Bytes of dynamic shared memory that a launch may ask for.
    shared: Mutex<u32>,
}

// SAFETY: The driver's functions can be used from every thread, also from several at once.
unsafe impl Send for Function {}
// SAFETY: As above.
unsafe impl Sync for Function {}

impl Function {
    /// # Safety
    /// The module is loaded, and its device's context is current.
    unsafe fn get(module: sys::CUmodule, name: &CStr) -> Result<Self> {
        let about = format!("kernel '{}'", name.to_string_lossy());
        // SAFETY: As the caller promises.
        let raw = unsafe { result::module::get_function(module, name.to_owned()) }
            .map_err(|e| driver::error_about(&about, "cuModuleGetFunction", e))?;
        let parameter = |index: usize| {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: The function was just found; the driver writes two numbers, or refuses the index.
            let result = unsafe { sys::cuFuncGetParamInfo(raw, index, &mut offset, &mut size) };
            result.result().is_ok().then_some(size)
        };
        if parameter(1).is_some() {
            return Err(Error::input(format!("{about} has several parameters, and one structure was expected")));
        }
        // SAFETY: The function was just found.
        let shared = unsafe {
            result::function::get_function_attribute(raw, Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        };
        let shared = u32::try_from(shared.named("cuFuncGetAttribute")?).unwrap_or(0);
        Ok(Self {
            raw,
            name: name.to_string_lossy().into_owned(),
            parameters: parameter(0).unwrap_or(0),
            shared: Mutex::new(shared),
        })
    }
}

/// A function that a device runs. Clones are the same kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    device: Device,
    function: Arc<Function>,
}

impl Kernel {
    pub(super) fn new(device: Device, function: Arc<Function>) -> Self {
        Self { device, function }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// The device that it is loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lets launches ask for `bytes` bytes of dynamic shared memory. What was allowed before stays allowed.
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
            return Err(Error::input(format!(
                "kernel '{}' was to have {bytes} bytes of shared memory a block, and GPU {} ({}) has {most}",
                self.name(),
                self.device.ordinal(),
                self.device.name()
            )));
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
        if params.len() != self.function.parameters {
            return Err(Error::input(format!(
                "{} takes {} bytes of parameters, not {}",
                self.about(),
                self.function.parameters,
                params.len()
            )));
        }
        let raw = stream.for_device(&self.device)?;
        if grid == 0 {
            return Ok(());
        }
        let mut overlapping = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        overlapping.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: smem,
            hStream: raw,
            attrs: &mut overlapping,
            numAttrs: u32::from(overlap && self.device.compute_capability() >= (9, 0)),
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
