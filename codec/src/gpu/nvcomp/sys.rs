//! nvCOMP's functions, declared as each family has them. All pointers but those to sizes, options and alignments are
//! addresses on the device.

use std::ffi::{c_int, c_void};

use libloading::Library;

use super::family::{ExportedSymbols, Family};

/// `nvcompProperties_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Properties {
    pub version: u32,
    pub cudart_version: u32,
}
const _: () = assert!(size_of::<Properties>() == 8);

/// `nvcompAlignmentRequirements_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AlignmentRequirements {
    pub input: usize,
    pub output: usize,
    pub temp: usize,
}
const _: () = assert!(size_of::<AlignmentRequirements>() == 24);

/// Options of every format from 5.0 on: 64 bytes **by value**.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// For decompression the backend, for compression the format's variant.
    pub first: u32,
    pub data_type: u32,
    pub max_sub_chunk_count: u8,
    pub states_per_lane: u8,
    /// ANS: `histogram_reduction_log2` of compression, `skip_validate` of decompression.
    pub last: u8,
    pub padding: u8,
    pub reserved: [u32; 13],
}
const _: () = assert!(size_of::<Options>() == 64 && align_of::<Options>() == 4);

/// Options of compression in 3.0 and 4.x: a structure of one or two `int`s, by value. Both sizes travel in one integer
/// register in the ABIs of x86-64 and AArch64, as this does; 0 is the default.
pub type SmallOptions = u64;

/// `nvcompStatus_t`; not an enum, since minor versions add codes.
pub type Status = c_int;
/// `cudaStream_t`, the same as `CUstream`.
pub type RawStream = *mut c_void;

type Pointers = *const *const c_void;
type MutPointers = *const *mut c_void;

pub type GetProperties = unsafe extern "C" fn(*mut Properties) -> Status;
pub type GetAlignments = unsafe extern "C" fn(Options, *mut AlignmentRequirements) -> Status;

pub type TempA = unsafe extern "C" fn(usize, usize, *mut usize, usize) -> Status;
pub type TempB = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize) -> Status;
pub type TempC = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize, RawStream) -> Status;

pub type DecompressA = unsafe extern "C" fn(
    Pointers,
    *const usize,
    *const usize,
    *mut usize,
    usize,
    *mut c_void,
    usize,
    MutPointers,
    *mut Status,
    RawStream,
) -> Status;
pub type DecompressBC = unsafe extern "C" fn(
    Pointers,
    *const usize,
    *const usize,
    *mut usize,
    usize,
    *mut c_void,
    usize,
    MutPointers,
    Options,
    *mut Status,
    RawStream,
) -> Status;

pub type CompressTempA = unsafe extern "C" fn(usize, usize, SmallOptions, *mut usize, usize) -> Status;
pub type BoundA = unsafe extern "C" fn(usize, SmallOptions, *mut usize) -> Status;
pub type BoundBC = unsafe extern "C" fn(usize, Options, *mut usize) -> Status;
pub type CompressA = unsafe extern "C" fn(
    Pointers,
    *const usize,
    usize,
    usize,
    *mut c_void,
    usize,
    MutPointers,
    *mut usize,
    SmallOptions,
    RawStream,
) -> Status;
pub type CompressBC = unsafe extern "C" fn(
    Pointers,
    *const usize,
    usize,
    usize,
    *mut c_void,
    usize,
    MutPointers,
    *mut usize,
    Options,
    *mut Status,
    RawStream,
) -> Status;

/// Decompression of one format.
#[derive(Clone, Copy, Debug)]
pub enum Decoder {
    A { temp: TempA, decompress: DecompressA },
    B { temp: TempB, decompress: DecompressBC, alignments: GetAlignments },
    C { temp: TempC, decompress: DecompressBC, alignments: GetAlignments },
}

/// Compression of one format.
#[derive(Clone, Copy, Debug)]
pub enum Encoder {
    A { temp: CompressTempA, bound: BoundA, compress: CompressA },
    B { temp: TempB, bound: BoundBC, compress: CompressBC },
    C { temp: TempC, bound: BoundBC, compress: CompressBC },
}

/// A function of the library, of type `T`.
///
/// # Safety
/// `T` is the function's type, and the library stays loaded as long as it is called.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: as the caller promises.
    match unsafe { library.get::<T>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(format!("the library has no {name}")),
    }
}

/// The symbols that tell the families apart.
pub fn symbols(library: &Library, format: &str) -> ExportedSymbols {
    ExportedSymbols::new(ExportedSymbols::SUFFIXES.map(|suffix| {
        let name = format!("nvcompBatched{format}DecompressGetTempSize{suffix}");
        // SAFETY: the address is not used.
        unsafe { function::<*const c_void>(library, &name) }.is_ok()
    }))
}

/// `nvcompGetProperties`, which 3.0 has not.
///
/// # Safety
/// The library is nvCOMP and stays loaded.
pub unsafe fn get_properties(library: &Library) -> Option<GetProperties> {
    // SAFETY: the type is the same in all versions that have the function.
    unsafe { function(library, "nvcompGetProperties") }.ok()
}

impl Decoder {
    /// The functions of `format`, spelled as in their names.
    ///
    /// # Safety
    /// The library is nvCOMP of this family and stays loaded.
    pub unsafe fn load(library: &Library, family: Family, format: &str) -> Result<Self, String> {
        let name = |rest: &str| format!("nvcompBatched{format}Decompress{rest}");
        // SAFETY: the types are those of the family.
        unsafe {
            Ok(match family {
                Family::A => Self::A {
                    temp: function(library, &name("GetTempSizeEx"))?,
                    decompress: function(library, &name("Async"))?,
                },
                Family::B => Self::B {
                    temp: function(library, &name("GetTempSizeAsync"))?,
                    decompress: function(library, &name("Async"))?,
                    alignments: function(library, &name("GetRequiredAlignments"))?,
                },
                Family::C => Self::C {
                    temp: function(library, &name("GetTempSize"))?,
                    decompress: function(library, &name("Async"))?,
                    alignments: function(library, &name("GetRequiredAlignments"))?,
                },
            })
        }
    }
}

impl Encoder {
    /// The functions of `format`, spelled as in their names.
    ///
    /// # Safety
    /// Conditions of [`Decoder::load`].
    pub unsafe fn load(library: &Library, family: Family, format: &str) -> Result<Self, String> {
        let name = |rest: &str| format!("nvcompBatched{format}Compress{rest}");
        // SAFETY: the types are those of the family.
        unsafe {
            Ok(match family {
                Family::A => Self::A {
                    temp: function(library, &name("GetTempSizeEx"))?,
                    bound: function(library, &name("GetMaxOutputChunkSize"))?,
                    compress: function(library, &name("Async"))?,
                },
                Family::B => Self::B {
                    temp: function(library, &name("GetTempSizeAsync"))?,
                    bound: function(library, &name("GetMaxOutputChunkSize"))?,
                    compress: function(library, &name("Async"))?,
                },
                Family::C => Self::C {
                    temp: function(library, &name("GetTempSize"))?,
                    bound: function(library, &name("GetMaxOutputChunkSize"))?,
                    compress: function(library, &name("Async"))?,
                },
            })
        }
    }
}
