//! The GPU kernels of wcodec, compiled: machine code for the common GPUs, and PTX that the driver compiles for all others.
//!
//! The crate has no dependencies and needs neither a GPU nor a CUDA toolkit. It holds
//! - `cuda/`: the kernels' source, self-contained CUDA C++;
//! - `modules.txt`: the list of modules, compilers and GPUs;
//! - `images/`: what [`cubin`] and [`ptx`] return, made from `cuda/` by `compile.py --write` and compressed by zstd;
//!   `images.txt` has the hashes of sources and images, and tests compare both with the tree;
//! - `emulate` (feature `emulate`, for tests): the same source compiled for the CPU, where every access to memory and
//!   every meeting of threads is checked.
//!
//! ```
//! use wcodec_kernels::{Module, cubin, ptx};
//! assert_eq!(cubin(Module::Rans, (8, 6)).unwrap().to_string(), "cubin sm_86");
//! assert!(cubin(Module::Rans, (13, 0)).is_none());
//! assert_eq!(ptx(Module::Rans, (13, 0)).to_string(), "PTX sm_90");
//! ```
//!
//! # Changing a kernel
//! `make kernels`, or by hand: `compile.py` compiles with two versions of NVRTC, which come as Python wheels; no other part
//! of CUDA is needed.
//!
//! ```text
//! pip install zstandard
//! python kernels/compile.py --install   # the compilers, into target/nvrtc
//! python kernels/compile.py --write     # cuda/ -> images/, images.txt
//! python kernels/compile.py --check     # they are what the source gives
//! python kernels/compile.py --report    # registers and spills of every kernel
//! ```
//!
//! # Why both are shipped
//! People who decode have a driver; a compiler (NVRTC) they have only by luck, in a version of its own. Machine code is there at
//! once, but for one architecture; PTX runs on every later one, after the driver has compiled it, which takes seconds (it
//! keeps the result in its cache on disk). Both come from NVRTC 12.4 so that drivers from 550 (early 2024) take them: those of a
//! CUDA 13 compiler would ask for driver 580. Only what 12.4 does not know, 12.8 compiles; so new GPUs have new drivers.

pub mod abi;

#[cfg(feature = "emulate")]
pub mod emulate;

mod image;

pub use image::{Image, Kind};

macro_rules! modules {
    ($($variant:ident, $name:literal, $emulated:ident, $about:literal, [$($image:expr,)*];)*) => {
        /// The GPU code that is loaded at once.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Module {
            $(#[doc = $about] $variant,)*
        }

        impl Module {
            /// Every module.
            pub const ALL: [Module; [$($name),*].len()] = [$(Module::$variant),*];

            /// The name in file names and messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Module::$variant => $name,)*
                }
            }
        }

        /// Everything that is shipped of a module.
        pub fn images(module: Module) -> &'static [Image] {
            match module {
                $(Module::$variant => {
                    static IMAGES: &[Image] = &[$($image),*];
                    IMAGES
                })*
            }
        }
    };
}
// What build.rs makes of modules.txt and images.txt.
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The lowest compute capability that the kernels run on.
pub const OLDEST: (u32, u32) = (7, 5);

/// A module's machine code for a device of this compute capability: that of the same architecture, else that of the same
/// major version and the next lower minor one. There is none for architectures that came later, nor for the ones of Tegra
/// (Jetson), which run no machine code but their own; they need [`ptx`].
pub fn cubin(module: Module, compute_capability: (u32, u32)) -> Option<&'static Image> {
    image::cubin(images(module), compute_capability)
}

/// A module's PTX for a device of this compute capability: the last one that the device can run. For a device older than
/// [`OLDEST`] it is the first, and the driver will refuse it.
pub fn ptx(module: Module, compute_capability: (u32, u32)) -> &'static Image {
    image::ptx(images(module), compute_capability)
}
