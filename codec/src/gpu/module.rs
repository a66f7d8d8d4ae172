//! Modules: loaded once a device, and the functions in them.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute};
use wcodec_kernels::Module;

use super::driver::{self, DriverResult};
use super::image::{self, Refused};
use super::info::DeviceInfo;
use crate::error::Result;

/// Bytes of the compiler's messages that are kept.
const LOG: usize = 8 << 10;

/// The place of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Code {
    /// In a module of ours.
    Module(Module),
    /// In other PTX. The address of the text stands for the text.
    Text(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Module(Module),
    Text(usize),
}

/// The modules and kernels that a device has loaded.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: HashMap<Key, sys::CUmodule>,
    functions: HashMap<(Key, String), Arc<Function>>,
}

impl Modules {
    /// The kernel `name` in `code`, which is loaded if it is not.
    ///
    /// # Safety
    /// The device's context is current, and no function is used after [`unload`](Self::unload).
    pub unsafe fn function(&mut self, info: &DeviceInfo, code: Code, name: &str) -> Result<Arc<Function>> {
        let key = match code {
            Code::Module(module) => Key::Module(module),
            Code::Text(ptx) => Key::Text(ptx.as_ptr() as usize),
        };
        let key = (key, name.to_owned());
        if let Some(function) = self.functions.get(&key) {
            return Ok(Arc::clone(function));
        }
        let module = match self.modules.get(&key.0) {
            Some(module) => *module,
            None => {
                let module = match code {
                    Code::Module(module) => image::load(info, module, load)?,
                    Code::Text(ptx) => {
                        let text = CString::new(ptx).map_err(|_| coded!(INPUT_BUG, "PTX with a zero byte"))?;
                        load(text.as_bytes_with_nul()).map_err(|refused| refused.error(info, "PTX"))?
                    }
                };
                *self.modules.entry(key.0).or_insert(module)
            }
        };
        let c_name = CString::new(name).map_err(|_| coded!(INPUT_BUG, "a kernel's name with a zero byte"))?;
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
    pub unsafe fn unload(&mut self) {
        self.functions.clear();
        for (_, module) in self.modules.drain() {
            // SAFETY: It was loaded by `load` and is unloaded once.
            unsafe { result::module::unload(module) }.ok();
        }
    }
}

/// Loads an image into the current context: machine code, or PTX with a zero at its end, which is compiled for the device.
fn load(image: &[u8]) -> Result<sys::CUmodule, Refused> {
    debug_assert!(image.starts_with(b"\x7fELF") || image.ends_with(b"\0"));
    let mut log = vec![0u8; LOG];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size is passed in the pointer itself.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG)];
    let mut module: sys::CUmodule = ptr::null_mut();
    // SAFETY: The image is an ELF file, which says itself how long it is, or text that ends with a zero; there are two
    // options with two values, and the buffer is of the size given. The driver copies what it needs of the image.
    let result = unsafe {
        sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    match result.result() {
        Ok(()) => Ok(module),
        Err(error) => {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
            Err(Refused { error, log })
        }
    }
}

/// A kernel in a loaded module.
#[derive(Debug)]
pub(super) struct Function {
    pub raw: sys::CUfunction,
    pub name: String,
    /// Bytes of its parameters.
    pub parameters: usize,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub shared: Mutex<u32>,
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
            return Err(coded!(INPUT_BUG, "{about} has several parameters, and one structure was expected"));
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
