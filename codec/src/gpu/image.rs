//! Which image of a module a device gets: machine code where there is some that it runs, else PTX.

use std::collections::BTreeSet;
use std::env;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use wcodec_kernels::{Image, Kind, Module};

use super::driver;
use super::info::DeviceInfo;
use crate::error::{Error, Result};

/// GPUs whose driver has refused machine code. The next module need not try again, and reports say what is used.
static REFUSED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The driver's answers to machine code that it does not run, where PTX may do.
const NOT_FOR_IT: [CUresult; 6] = [
    CUresult::CUDA_ERROR_INVALID_IMAGE,
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_INVALID_PTX,
    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    CUresult::CUDA_ERROR_INVALID_SOURCE,
    CUresult::CUDA_ERROR_NOT_SUPPORTED,
];

/// Why the driver has not loaded an image.
#[derive(Debug)]
pub(super) struct Refused {
    pub error: DriverError,
    /// The messages of its compiler.
    pub log: String,
}

impl Refused {
    fn not_for_it(&self) -> bool {
        NOT_FOR_IT.iter().any(|&e| driver::code(DriverError(e)) == driver::code(self.error))
    }

    /// An error about `image`, with what the compiler said.
    pub fn error(self, info: &DeviceInfo, image: &str) -> Error {
        let (major, minor) = info.compute_capability;
        let mut about =
            format!("kernels ({image}) for GPU {} ({}, compute capability {major}.{minor})", info.ordinal, info.name);
        for line in self.log.lines().map(str::trim).filter(|l| !l.is_empty()) {
            about.push_str("; ");
            about.push_str(line);
        }
        driver::error_about(&about, "cuModuleLoadDataEx", self.error)
    }
}

impl DeviceInfo {
    /// The images of kernels that it gets: of every module the one of this kind for this compute capability. If its
    /// driver has refused machine code of this process, that is PTX.
    ///
    /// # Errors
    /// The environment variable `WCODEC_KERNELS` has a value that there is not.
    pub fn kernels(&self) -> Result<&'static Image> {
        choose_by(wish().as_deref(), self, Module::Util)
    }
}

/// The wish of the environment: `ptx` leaves machine code alone, to see whether that is at fault, and for tests.
fn wish() -> Option<String> {
    env::var_os("WCODEC_KERNELS").map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty())
}

/// The image of `module` for a GPU: its machine code, unless its driver has refused some or PTX is wished for.
fn choose_by(wish: Option<&str>, info: &DeviceInfo, module: Module) -> Result<&'static Image> {
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner).contains(&info.ordinal);
    let code = match wish {
        Some("ptx") => None,
        Some(other) => {
            return Err(coded!(ENVIRONMENT, "WCODEC_KERNELS is '{other}'").advice("unset it, or set it to ptx"));
        }
        None if refused => None,
        None => wcodec_kernels::cubin(module, info.compute_capability),
    };
    Ok(code.unwrap_or_else(|| wcodec_kernels::ptx(module, info.compute_capability)))
}

/// Loads `module` by `load`, which is called with the image, and once more with PTX where the driver refuses machine code.
pub(super) fn load<M>(info: &DeviceInfo, module: Module, load: impl Fn(&[u8]) -> Result<M, Refused>) -> Result<M> {
    load_by(wish().as_deref(), info, module, load)
}

fn load_by<M>(
    wish: Option<&str>,
    info: &DeviceInfo,
    module: Module,
    load: impl Fn(&[u8]) -> Result<M, Refused>,
) -> Result<M> {
    let image = choose_by(wish, info, module)?;
    let error = |refused: Refused, image: &Image| refused.error(info, &image.to_string());
    match load(&decompressed(module, image)?) {
        Ok(loaded) => Ok(loaded),
        Err(refused) if image.kind == Kind::Cubin && refused.not_for_it() => {
            REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(info.ordinal);
            let text = wcodec_kernels::ptx(module, info.compute_capability);
            // If PTX does not load either, the driver's word about that is the one that its user can act on.
            load(&decompressed(module, text)?).map_err(|refused| error(refused, text))
        }
        Err(refused) => Err(error(refused, image)),
    }
}

/// An image as the driver takes it.
fn decompressed(module: Module, image: &Image) -> Result<Vec<u8>> {
    let data = zstd::bulk::decompress(image.zstd, image.len).ok().filter(|data| {
        let complete = data.len() == image.len;
        complete && (image.kind == Kind::Cubin || data.ends_with(b"\0"))
    });
    data.ok_or_else(|| {
        let name = module.name();
        coded!(KERNELS_DAMAGED, "the kernels that wcodec comes with are damaged: {name}, {image}")
            .advice("install wcodec again")
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::ErrorKind;

    /// A GPU that no machine has, since what is known of one is kept for the process.
    fn info(ordinal: usize, compute_capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            name: "GPU of a test".into(),
            compute_capability,
            memory: 1 << 34,
            multiprocessors: 80,
            shared_memory_per_block: 98_304,
            shared_memory_per_multiprocessor: 98_304,
        }
    }

    const GOOD: CUresult = CUresult::CUDA_SUCCESS;
    const NO_BINARY: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;

    /// Loads by a driver that answers `code` to machine code and `text` to PTX. Returns what it was given, too.
    fn attempt(wish: Option<&str>, info: &DeviceInfo, code: CUresult, text: CUresult) -> (Result<Kind>, Vec<Kind>) {
        let seen = RefCell::new(Vec::new());
        let result = load_by(wish, info, Module::Util, |data| {
            let kind = if data.starts_with(b"\x7fELF") { Kind::Cubin } else { Kind::Ptx };
            seen.borrow_mut().push(kind);
            match if kind == Kind::Cubin { code } else { text } {
                GOOD => Ok(kind),
                e => Err(Refused { error: DriverError(e), log: "line 4: no\n".to_owned() }),
            }
        });
        (result, seen.into_inner())
    }

    fn chosen(info: &DeviceInfo) -> String {
        choose_by(None, info, Module::Rans).unwrap().to_string()
    }

    #[test]
    fn devices_get_machine_code_and_others_ptx() {
        let (result, seen) = attempt(None, &info(1001, (8, 6)), GOOD, NO_BINARY);
        assert_eq!((result.unwrap(), seen), (Kind::Cubin, vec![Kind::Cubin]));
        let (result, seen) = attempt(None, &info(1002, (13, 0)), NO_BINARY, GOOD);
        assert_eq!((result.unwrap(), seen), (Kind::Ptx, vec![Kind::Ptx]));
    }

    #[test]
    fn ptx_can_be_wished_for() {
        let gpu = info(1003, (9, 0));
        let (result, seen) = attempt(Some("ptx"), &gpu, GOOD, GOOD);
        assert_eq!((result.unwrap(), seen), (Kind::Ptx, vec![Kind::Ptx]));
        let (result, seen) = attempt(Some("fast"), &gpu, GOOD, GOOD);
        assert_eq!(result.unwrap_err().to_string(), "WCODEC_KERNELS is 'fast' (unset it, or set it to ptx) [I321]");
        assert_eq!(seen, []);
    }

    #[test]
    fn refused_machine_code_is_replaced_by_ptx_for_the_device() {
        for (i, code) in NOT_FOR_IT.into_iter().enumerate() {
            let gpu = info(1010 + i, (8, 9));
            assert_eq!(chosen(&gpu), "cubin sm_86");
            let (result, seen) = attempt(None, &gpu, code, GOOD);
            assert_eq!((result.unwrap(), seen), (Kind::Ptx, vec![Kind::Cubin, Kind::Ptx]));
            // Reports say so, and the next module does not try again.
            assert_eq!(chosen(&gpu), "PTX sm_80");
            assert_eq!(attempt(None, &gpu, code, GOOD).1, [Kind::Ptx]);
        }
        assert_eq!(chosen(&info(1030, (8, 9))), "cubin sm_86");
    }

    #[test]
    fn what_the_driver_says_of_the_last_image_is_the_error() {
        // Without a driver errors have no names, and asking for them would panic.
        if driver::available().is_err() {
            return;
        }
        let gpu = info(1040, (9, 0));
        let (result, seen) = attempt(None, &gpu, CUresult::CUDA_ERROR_OUT_OF_MEMORY, GOOD);
        assert_eq!((result.unwrap_err().kind(), seen), (ErrorKind::Device, vec![Kind::Cubin]));
        assert_eq!(chosen(&gpu), "cubin sm_90");
        let (result, seen) = attempt(None, &gpu, NO_BINARY, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
        let text = result.unwrap_err().to_string();
        let begin = "kernels (PTX sm_90) for GPU 1040 (GPU of a test, compute capability 9.0); line 4: no: ";
        assert!(text.starts_with(begin) && text.contains("550"), "{text}");
        assert_eq!(seen, [Kind::Cubin, Kind::Ptx]);
    }

    #[test]
    fn damaged_images_are_an_error_and_take_no_memory() {
        let good = wcodec_kernels::ptx(Module::Util, (8, 0));
        assert_eq!(decompressed(Module::Util, good).unwrap().len(), good.len);
        let mut short = *good;
        short.len -= 1;
        let mut cut = *good;
        cut.zstd = &good.zstd[..good.zstd.len() / 2];
        let mut long = *good;
        long.len += 1;
        for image in [short, cut, long] {
            let e = decompressed(Module::Util, &image).unwrap_err();
            assert_eq!(
                e.to_string(),
                "the kernels that wcodec comes with are damaged: util, PTX sm_80 (install wcodec again) [D106]"
            );
        }
    }
}
