//! Runs the kernels on the CPU, for tests on machines without a GPU.
//!
//! The source in `cuda/` is compiled as C++, every GPU thread becomes a fiber, and a whole grid runs on the calling
//! thread, always in the same order. Behaviour that is undefined on a GPU is an error here that names the thread and
//! the source location: access outside shared memory or outside the ranges of global memory that the launch names,
//! misaligned access, races in shared memory, primitives that not all threads reach, waits for copies that were never
//! started. Only the first error is reported, and stores before it remain.
//!
//! ```
//! use wcodec_kernels::Module;
//! use wcodec_kernels::emulate::{Range, run};
//! let mut output = [0u32; 64];
//! let params = output.as_mut_ptr().expose_provenance().to_ne_bytes(); // the kernel's structure, byte by byte
//! let missing = run(Module::Util, "no such kernel", &params, 1, 32, 0, &[Range::write(&mut output)]);
//! assert_eq!(missing.unwrap_err(), "no kernel no such kernel in this module");
//! ```
//!
//! A kernel sees the addresses that the test writes into its parameters. [`Buffer`] provides memory with the alignment
//! of GPU allocations.

mod buffer;
#[cfg(test)]
mod tests;

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;

pub use buffer::Buffer;

use crate::Module;

/// Memory that a launch may access.
///
/// Kernels may load through the read-only cache (`ldg`) from memory that is lent for reading; memory that is lent for
/// writing can be read with ordinary loads.
#[derive(Debug)]
#[repr(C)]
pub struct Range<'a> {
    begin: usize,
    bytes: usize,
    writable: u64,
    // Not `Sync`: a launch stores through it.
    lent: PhantomData<(&'a mut [u8], *mut u8)>,
}

impl<'a> Range<'a> {
    /// Memory to load from.
    pub fn read<T: Plain>(memory: &'a [T]) -> Range<'a> {
        let begin = memory.as_ptr().expose_provenance();
        Range { begin, bytes: size_of_val(memory), writable: 0, lent: PhantomData }
    }

    /// Memory to store to.
    pub fn write<T: Plain>(memory: &'a mut [T]) -> Range<'a> {
        let begin = memory.as_mut_ptr().expose_provenance();
        Range { begin, bytes: size_of_val(memory), writable: 1, lent: PhantomData }
    }

    /// The address, as a kernel's parameters hold it.
    pub fn address(&self) -> u64 {
        self.begin as u64
    }
}

/// Numbers for which every bit pattern is a value.
pub trait Plain: sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($number:ty)*) => {$(
        impl sealed::Sealed for $number {}
        impl Plain for $number {}
    )*};
}
plain!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

/// Runs a kernel: `params` is the structure that it takes by value, `grid` is the number of blocks, `threads` the
/// threads of a block and `shared` the bytes of shared memory. The error describes the first fault.
pub fn run(
    module: Module,
    kernel: &str,
    params: &[u8],
    grid: u32,
    threads: u32,
    shared: u32,
    memory: &[Range<'_>],
) -> Result<(), String> {
    Launch::new(module, kernel).grid(grid).threads(threads).shared(shared).run(params, memory)
}

/// A launch with more options than [`run`] offers.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    unit: Unit,
    kernel: &'a str,
    grid: u32,
    threads: u32,
    shared: u32,
    seed: u64,
    races: bool,
    overlaps: bool,
    cluster: u32,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Module(Module),
    SelfTest,
    Plain,
}

impl<'a> Launch<'a> {
    /// A launch of one block of one warp without shared memory.
    pub fn new(module: Module, kernel: &'a str) -> Launch<'a> {
        Launch::of(Unit::Module(module), kernel)
    }

    /// A launch of a kernel of `cuda/selftest.cu`, which is not shipped: tests compare the emulator with a GPU through
    /// it.
    pub fn selftest(kernel: &'a str) -> Launch<'a> {
        Launch::of(Unit::SelfTest, kernel)
    }

    /// A launch of a kernel of `cuda/plain.cu`, which is not shipped: a benchmark compares others with it.
    pub fn plain(kernel: &'a str) -> Launch<'a> {
        Launch::of(Unit::Plain, kernel)
    }

    fn of(unit: Unit, kernel: &'a str) -> Launch<'a> {
        Launch { unit, kernel, grid: 1, threads: 32, shared: 0, seed: 0, races: true, overlaps: false, cluster: 1 }
    }

    /// Sets the number of blocks.
    pub fn grid(self, grid: u32) -> Self {
        Launch { grid, ..self }
    }

    /// Sets the number of threads in a block, a multiple of 32.
    pub fn threads(self, threads: u32) -> Self {
        Launch { threads, ..self }
    }

    /// Sets the bytes of shared memory.
    pub fn shared(self, shared: u32) -> Self {
        Launch { shared, ..self }
    }

    /// Runs the threads in another order, the same for the same seed. With an odd seed the last block is first. A
    /// kernel's results must not depend on it.
    pub fn seed(self, seed: u64) -> Self {
        Launch { seed, ..self }
    }

    /// Whether races in shared memory are errors, which is the default. A kernel runs faster without race detection.
    pub fn races(self, races: bool) -> Self {
        Launch { races, ..self }
    }

    /// Whether the launch begins before the preceding one in the stream has ended (programmatic dependent launch): then
    /// stores before `overlap_wait`, and loads of memory that may be written, are errors.
    pub fn overlaps(self, overlaps: bool) -> Self {
        Launch { overlaps, ..self }
    }

    /// Sets the number of blocks in a cluster: they run side by side, and meet.
    pub fn cluster(self, cluster: u32) -> Self {
        Launch { cluster, ..self }
    }

    /// Runs the kernel.
    pub fn run(&self, params: &[u8], memory: &[Range<'_>]) -> Result<(), String> {
        let kernel = CString::new(self.kernel).map_err(|_| "the name of a kernel has no zero bytes".to_owned())?;
        let mut message = [0u8; 2048];
        let launch = RawLaunch {
            kernel: kernel.as_ptr(),
            params: params.as_ptr(),
            params_bytes: params.len(),
            ranges: memory.as_ptr(),
            range_count: memory.len(),
            message: message.as_mut_ptr().cast(),
            message_bytes: message.len(),
            seed: self.seed,
            grid: self.grid,
            threads: self.threads,
            shared: self.shared,
            races: self.races.into(),
            overlaps: self.overlaps.into(),
            cluster: self.cluster,
        };
        // SAFETY: all pointers are valid for their lengths during the call, which keeps none of them. Kernels access
        // only memory inside `memory`, and store only to ranges lent by `&mut`; exposing their provenance there lets
        // kernels have the addresses as numbers.
        let result = unsafe {
            match self.unit {
                Unit::Module(module) => entry(module)(&launch),
                Unit::SelfTest => simt_run_selftest(&launch),
                Unit::Plain => simt_run_plain(&launch),
            }
        };
        if result == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(message.len());
        Err(String::from_utf8_lossy(&message[..end]).into_owned())
    }
}

/// `simt::Launch` of `cuda/simt_engine.h`.
#[repr(C)]
struct RawLaunch<'a> {
    kernel: *const c_char,
    params: *const u8,
    params_bytes: usize,
    ranges: *const Range<'a>,
    range_count: usize,
    message: *mut c_char,
    message_bytes: usize,
    seed: u64,
    grid: u32,
    threads: u32,
    shared: u32,
    races: u32,
    overlaps: u32,
    cluster: u32,
}

macro_rules! modules {
    ($($variant:ident, $name:literal, $emulated:ident, $about:literal, [$($image:expr,)*];)*) => {
        unsafe extern "C" {
            $(fn $emulated(launch: *const RawLaunch<'_>) -> c_int;)*
        }

        /// The function that runs the kernels of a module.
        fn entry(module: Module) -> unsafe extern "C" fn(*const RawLaunch<'_>) -> c_int {
            match module {
                $(Module::$variant => $emulated,)*
            }
        }
    };
}
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

unsafe extern "C" {
    fn simt_run_selftest(launch: *const RawLaunch<'_>) -> c_int;
    fn simt_run_plain(launch: *const RawLaunch<'_>) -> c_int;
}
