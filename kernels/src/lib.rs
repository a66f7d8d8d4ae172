//! The GPU kernels of wcodec, as text: PTX that the driver compiles for the device in the machine.
//!
//! The crate has no dependencies and needs neither a GPU nor a CUDA toolkit. It holds
//! - `cuda/`: the kernels' source, self-contained CUDA C++;
//! - `ptx/`: what [`ptx`] returns, made from `cuda/` by `compile.py --write` and checked in;
//! - `emulate` (feature `emulate`, for tests): the same source compiled for the CPU, where every access to memory and
//!   every meeting of threads is checked.
//!
//! ```
//! use wcodec_kernels::{Module, ptx};
//! assert!(ptx(Module::Rans, (8, 6)).contains(".target sm_80"));
//! assert!(ptx(Module::Rans, (12, 0)).contains(".target sm_90"));
//! ```
//!
//! # Changing a kernel
//! `compile.py` compiles with NVRTC, which comes as two Python wheels; no other part of CUDA is needed:
//!
//! ```text
//! pip install nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-nvrtc==13.5.37
//! python kernels/compile.py --write     # source -> ptx/
//! python kernels/compile.py --check     # ptx/ is what the source gives, and every kernel compiles for every GPU
//! python kernels/compile.py --report    # registers and spills of every kernel
//! ```
//!
//! # Why PTX is shipped
//! People who decode have a driver; a compiler (NVRTC) they have only by luck, in a version of its own. PTX needs neither: the
//! driver compiles it for the device, once, and keeps the result in its cache on disk. It costs a few megabytes in the repository,
//! and the check that it is what the source gives is `make test`'s. It comes from NVRTC 12.4 so that drivers from 550 (early
//! 2024) take it: PTX of a CUDA 13 compiler would ask for driver 580. PTX for 9.0 serves later devices too.

pub mod abi;

#[cfg(feature = "emulate")]
pub mod emulate;

/// The GPU code that is loaded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// Decoding of rANS chunks.
    Rans,
    /// Decoding of Huffman chunks.
    Huffman,
    /// What belongs to no coder.
    Util,
}

impl Module {
    /// Every module.
    pub const ALL: [Module; 3] = [Module::Rans, Module::Huffman, Module::Util];

    /// The name in file names and messages.
    pub fn name(self) -> &'static str {
        match self {
            Module::Rans => "rans",
            Module::Huffman => "huffman",
            Module::Util => "util",
        }
    }
}

/// The lowest compute capability that the kernels run on.
pub const OLDEST: (u32, u32) = (7, 5);

macro_rules! targets {
    ($name:literal) => {
        [
            include_str!(concat!("../ptx/", $name, ".sm_75.ptx")),
            include_str!(concat!("../ptx/", $name, ".sm_80.ptx")),
            include_str!(concat!("../ptx/", $name, ".sm_90.ptx")),
        ]
    };
}

static RANS: [&str; 3] = targets!("rans");
static HUFFMAN: [&str; 3] = targets!("huffman");
static UTIL: [&str; 3] = targets!("util");

/// The PTX of a module for a device of this compute capability: of the targets 7.5, 8.0 and 9.0 the last one that the
/// device can run. For a device older than [`OLDEST`] it is the first, and the driver will refuse it.
pub fn ptx(module: Module, compute_capability: (u32, u32)) -> &'static str {
    let target = match compute_capability {
        (9.., _) => 2,
        (8, _) => 1,
        _ => 0,
    };
    match module {
        Module::Rans => RANS[target],
        Module::Huffman => HUFFMAN[target],
        Module::Util => UTIL[target],
    }
}
