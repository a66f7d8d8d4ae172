//! The driver's library: whether it is there, and what its errors mean.

use std::error::Error as _;
use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use libloading::Library;

use crate::error::{Code, Error, Result};

/// The oldest driver, by the version of CUDA that it implements: that of the compiler of the kernels' images.
const OLDEST: (u32, u32) = (12, 4);

/// Every function of the driver that is called here. All of them are in the oldest driver. cudarc looks a function up
/// when it is first called and panics if there is none, so they are looked for before anything is called.
const FUNCTIONS: [&str; 46] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncGetParamInfo",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphRetainUserObject",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
];

/// The reason why the driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unusable {
    code: Code,
    message: String,
    advice: String,
}

impl Unusable {
    fn new(code: Code, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { code, message: message.into(), advice: advice.into() }
    }
}

impl From<Unusable> for Error {
    fn from(reason: Unusable) -> Self {
        reason.code.error(reason.message).advice(reason.advice)
    }
}

/// Whether there is an NVIDIA GPU whose driver can be used.
///
/// Cheap: the answer is found once and kept.
///
/// # Errors
/// [`ErrorKind::Device`](crate::ErrorKind::Device) with the reason and what to do: there is no driver, it is too old, it
/// does not work, or there is no GPU.
pub fn available() -> Result<()> {
    driver_version().map(drop)
}

/// The version of CUDA, major and minor, that the driver implements.
///
/// # Errors
/// As [`available`].
pub fn driver_version() -> Result<(u32, u32)> {
    static DRIVER: OnceLock<Result<(u32, u32), Unusable>> = OnceLock::new();
    DRIVER.get_or_init(start).clone().map_err(Error::from)
}

/// Loads the driver's library and initializes it.
fn start() -> Result<(u32, u32), Unusable> {
    load()?;
    // SAFETY: `load` has found the library under one of the names that this tries, so it does not panic. The library
    // is NVIDIA's, and its initialization has no preconditions.
    let library = unsafe { sys::culib() };
    // SAFETY: The symbol is only looked for; its address is not used.
    let has = |name: &str| unsafe { library.get::<*const ()>(name.as_bytes()).is_ok() };
    check_functions(&["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"], has)?;
    let mut version: c_int = 0;
    // SAFETY: The function is there, works before `cuInit`, and writes the one number that it is given.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    result.map_err(|e| refused("cuDriverGetVersion", e))?;
    let version = check_version(version)?;
    check_functions(&FUNCTIONS, has)?;
    result::init().map_err(|e| refused("cuInit", e))?;
    match result::device::get_count().map_err(|e| refused("cuDeviceGetCount", e))? {
        1.. => Ok(version),
        _ => Err(refused("cuDeviceGetCount", DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE))),
    }
}

/// Finds the driver's library under the names that cudarc tries.
fn load() -> Result<(), Unusable> {
    let usual = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    let mut reason = format!("{usual} was not found");
    for name in ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates) {
        // SAFETY: The library is NVIDIA's driver, whose initialization has no preconditions.
        match unsafe { Library::new(&name) } {
            Ok(library) => {
                // Kept loaded, so that cudarc gets the same one.
                std::mem::forget(library);
                return Ok(());
            }
            Err(e) if name == usual => reason = e.source().map_or_else(|| e.to_string(), ToString::to_string),
            Err(_) => {}
        }
    }
    Err(Unusable::new(
        Code::NO_DRIVER,
        format!("the NVIDIA driver's library cannot be loaded: {reason}"),
        "install NVIDIA driver 550 or later, or use a machine with an NVIDIA GPU; start a container with its GPUs, as by \
         --gpus all",
    ))
}

fn check_functions(names: &[&str], has: impl Fn(&str) -> bool) -> Result<(), Unusable> {
    let missing: Vec<&str> = names.iter().copied().filter(|n| !has(n)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Unusable::new(
        Code::DRIVER_INCOMPLETE,
        format!("the NVIDIA driver's library has no {}", missing.join(", ")),
        "install a current NVIDIA driver; see that no other libcuda is in the library path",
    ))
}

/// The version as major and minor, unless it is too old.
fn check_version(version: c_int) -> Result<(u32, u32), Unusable> {
    let version = u32::try_from(version).unwrap_or(0);
    let version = (version / 1000, version % 1000 / 10);
    if version >= OLDEST {
        return Ok(version);
    }
    Err(Unusable::new(
        Code::DRIVER_TOO_OLD,
        format!(
            "the NVIDIA driver is too old: it implements CUDA {}.{}, and {}.{} is needed",
            version.0, version.1, OLDEST.0, OLDEST.1
        ),
        "install NVIDIA driver 550 or later",
    ))
}

/// Turns what the driver returns into an [`Error`].
pub(super) trait DriverResult<T> {
    /// The value, or an error of `call`, a function of the driver.
    fn named(self, call: &str) -> Result<T>;
}

impl<T> DriverResult<T> for Result<T, DriverError> {
    fn named(self, call: &str) -> Result<T> {
        self.map_err(|e| refused(call, e).into())
    }
}

/// The driver's number of an error. Drivers know more errors than cudarc does, so nothing here may look at its enum.
pub(super) fn code(e: DriverError) -> u32 {
    e.0 as u32
}

/// An error of `call` that happened to `about`.
pub(super) fn error_about(about: &str, call: &str, e: DriverError) -> Error {
    let reason = refused(call, e);
    reason.code.error(format!("{about}: {}", reason.message)).advice(reason.advice)
}

/// "Out of memory."
pub(super) const OUT_OF_MEMORY: u32 = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;

fn refused(call: &str, e: DriverError) -> Unusable {
    let text = |t: Result<&std::ffi::CStr, DriverError>| t.ok().map(|t| t.to_string_lossy().into_owned());
    let name = text(e.error_name()).unwrap_or_else(|| format!("error {}", code(e)));
    let what = text(e.error_string()).map_or(String::new(), |t| format!(", {t}"));
    Unusable::new(Code::DRIVER_CALL, format!("the NVIDIA driver's {call} failed: {name}{what}"), advice_for(code(e)))
}

/// Advice about an error of the driver.
fn advice_for(code: u32) -> &'static str {
    match code {
        OUT_OF_MEMORY => "free memory of the GPU, or use another one",
        3 | 4 => {
            "CUDA does not work in a process forked from one that used it, nor while a process ends: start processes \
             by spawning them"
        }
        34 => "that is the CUDA toolkit's stub and no driver: take its folder `stubs` out of the library path",
        46 => "another process has the GPU for itself: `nvidia-smi` shows which one",
        100 | 101 => {
            "see that `nvidia-smi` lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it; start a container with \
             its GPUs, as by --gpus all"
        }
        209 | 218 => "a newer wcodec or a newer NVIDIA driver may know this GPU",
        214 | 220 | 226 => "the GPU's hardware reported an error: restart the machine",
        221 => "install the driver completely: its library libnvidia-ptxjitcompiler is missing",
        222 => "install NVIDIA driver 550 or later",
        223 => "unset CUDA_DISABLE_PTX_JIT",
        700 | 702 | 710 | 714..=719 | 721 => {
            "a kernel failed, and the GPU cannot be used in this process any more: start the process again, with \
             CUDA_LAUNCH_BLOCKING=1 to see which kernel it is"
        }
        802 => "start the service nvidia-fabricmanager",
        803 => "the driver's library and its kernel module are of different versions: restart the machine",
        804 => "take the package cuda-compat out of the library path: this GPU cannot use it",
        805..=808 => "see that CUDA's Multi-Process Service runs",
        900..=908 => "that is not possible while a CUDA graph is captured: do it before",
        _ => "see `nvidia-smi` and the system's log for errors of the GPU",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn available_says_why_not_and_never_panics() {
        for _ in 0..2 {
            let Err(e) = available() else { return };
            assert_eq!(e.kind(), ErrorKind::Device);
            let text = e.without_code();
            assert!(text.contains("NVIDIA") && text.ends_with(')'), "no advice: {text}");
        }
    }

    #[test]
    fn old_drivers_are_refused_by_version() {
        assert_eq!(check_version(12_040), Ok((12, 4)));
        assert_eq!(check_version(13_020), Ok((13, 2)));
        let e = Error::from(check_version(12_030).unwrap_err());
        assert_eq!(
            e.to_string(),
            "the NVIDIA driver is too old: it implements CUDA 12.3, and 12.4 is needed (install NVIDIA driver 550 or later) [D103]"
        );
        assert!(check_version(0).is_err());
        assert!(check_version(-1).is_err());
    }

    #[test]
    fn missing_functions_are_named() {
        assert_eq!(check_functions(&FUNCTIONS, |_| true), Ok(()));
        let e = Error::from(check_functions(&FUNCTIONS, |n| n != "cuFuncGetParamInfo").unwrap_err());
        assert!(e.to_string().starts_with("the NVIDIA driver's library has no cuFuncGetParamInfo ("), "{e}");
    }

    #[test]
    fn the_list_of_functions_is_in_order() {
        assert!(FUNCTIONS.is_sorted());
    }
}
