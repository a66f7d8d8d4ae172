//! A loaded nvCOMP.

use std::error::Error as _;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::family::{self, Family, Version};
use super::find::{self, Candidate, ENVIRONMENT, Surroundings};
use super::result::check;
use super::sys::{self, Decoder, Encoder, Options};
use crate::coder::zstd::MAX_CHUNK;
use crate::error::{Error, Result};
use crate::gpu::device::Device;

/// nvCOMP's "take the type from the data", the default of ANS from 6.0 on.
const TYPE_FROM_DATA: u32 = 0xFF;

/// nvCOMP, loaded. It is never unloaded: CUDA's runtime, which it contains, does not survive that.
#[derive(Debug)]
pub struct Nvcomp {
    path: PathBuf,
    version: Version,
    cudart: Option<(u32, u32)>,
    family: Family,
    zstd: Decoder,
    ans: Decoder,
    ans_encoder: Encoder,
}

/// Chunks to decompress: their number, and the addresses of six arrays on the device, with an element for each. Every
/// chunk, output and scratch that begins at a multiple of 16 suits every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBatch {
    /// Number of chunks.
    pub count: usize,
    /// 8 bytes each: addresses of the compressed chunks.
    pub compressed: u64,
    /// 8 bytes each: their lengths.
    pub compressed_bytes: u64,
    /// 8 bytes each: bytes that the outputs have room for.
    pub capacity: u64,
    /// 8 bytes each: written, lengths of what was decompressed.
    pub actual: u64,
    /// 8 bytes each: addresses of the outputs.
    pub output: u64,
    /// 4 bytes each: written, see [`status_name`](super::status_name).
    pub statuses: u64,
}

/// Chunks to compress: their number, and the addresses of five arrays on the device, with an element for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressBatch {
    /// Number of chunks.
    pub count: usize,
    /// Bytes of the largest chunk.
    pub max_chunk: usize,
    /// 8 bytes each: addresses of the chunks.
    pub input: u64,
    /// 8 bytes each: their lengths.
    pub input_bytes: u64,
    /// 8 bytes each: addresses of the outputs, each with room for [`Nvcomp::ans_compress_bound`] bytes.
    pub output: u64,
    /// 8 bytes each: written, lengths of what was compressed.
    pub output_bytes: u64,
    /// 4 bytes each: written from 5.0 on, see [`status_name`](super::status_name).
    pub statuses: u64,
}

/// The ways in which ANS is used. The data are bytes either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AnsMode {
    /// nvCOMP's defaults.
    #[default]
    Standard,
    /// Type and number of states are told in advance and chunks are not validated, which selects faster kernels. From 6.0
    /// on.
    Specialised,
}

/// The numbers that addresses have to be multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignments {
    /// Compressed chunks.
    pub input: usize,
    /// Decompressed chunks.
    pub output: usize,
    /// Scratch.
    pub temp: usize,
}

impl Nvcomp {
    /// Loads the library at `explicit`, which may also be a folder that has it, such as a `site-packages`; without that,
    /// the one that the environment variable WCODEC_NVCOMP names; without that, the first that works of: what the
    /// system's loader finds, `folders` (such as Python's `sys.path`), the active Python environment, Debian's folders.
    ///
    /// `driver` is the version of CUDA that the driver implements; a library for a newer major version is refused.
    ///
    /// No call of CUDA is made, so this works without a GPU.
    ///
    /// # Errors
    /// [`ErrorKind::Device`](crate::ErrorKind::Device): there is none, or it is refused.
    pub fn load(explicit: Option<&Path>, folders: &[PathBuf], driver: Option<(u32, u32)>) -> Result<Arc<Self>> {
        Self::load_from(explicit, folders, driver, &Surroundings::of_process())
    }

    /// [`Nvcomp::load`], for this device's driver.
    ///
    /// # Errors
    /// As [`Nvcomp::load`].
    pub fn load_for(device: &Device, explicit: Option<&Path>, folders: &[PathBuf]) -> Result<Arc<Self>> {
        Self::load(explicit, folders, Some(device.driver_version()))
    }

    fn load_from(
        explicit: Option<&Path>,
        folders: &[PathBuf],
        driver: Option<(u32, u32)>,
        surroundings: &Surroundings,
    ) -> Result<Arc<Self>> {
        let search = find::search(explicit, folders, surroundings);
        let mut refused = Vec::new();
        for candidate in &search.candidates {
            match Self::open(candidate.path(), driver) {
                Ok(nvcomp) => return Ok(Arc::new(nvcomp)),
                // That a name is not found says nothing; that it is found and cannot be loaded does.
                Err(e) => match candidate {
                    Candidate::Name(name) if e.starts_with(name) => {}
                    _ => refused.push(format!("{}: {e}", candidate.path().display())),
                },
            }
        }
        Err(not_loaded(search.insisted.as_deref(), &refused, driver))
    }

    /// The library at `path`, or why it is refused.
    fn open(path: &Path, driver: Option<(u32, u32)>) -> Result<Self, String> {
        let library = open_library(path).map_err(|e| e.source().map_or_else(|| e.to_string(), ToString::to_string))?;
        let (mut version, mut cudart) = (None, None);
        // SAFETY: A library of this name is nvCOMP, and it is never unloaded.
        if let Some(get_properties) = unsafe { sys::get_properties(&library) } {
            let mut properties = sys::Properties::default();
            // SAFETY: The function writes this structure, which is the same in all versions, and makes no call of CUDA.
            let status = unsafe { get_properties(&mut properties) };
            if status != 0 {
                return Err(format!("nvcompGetProperties returned {status}"));
            }
            version = Some(Version::from_number(properties.version));
            cudart = Some(family::cuda_version(properties.cudart_version));
        }
        let family = family::decide(version, &["Zstd", "ANS"].map(|f| sys::symbols(&library, f)))?;
        family::check_driver(cudart, driver)?;
        // SAFETY: Version and symbols agree that this is the family, and the library is never unloaded.
        let (zstd, ans, ans_encoder) = unsafe {
            (
                Decoder::load(&library, family, "Zstd")?,
                Decoder::load(&library, family, "ANS")?,
                Encoder::load(&library, family, "ANS")?,
            )
        };
        let version = version.unwrap_or(Version::SILENT);
        Ok(Self { path: path.to_owned(), version, cudart, family, zstd, ans, ans_encoder })
    }

    /// The version. 3.0.0 stands for any that does not say.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library as the system's loader was asked for it: a path or, if it is where the loader searches, a name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The interface.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Version of CUDA, major and minor, that the library is built for. 3.0 does not say.
    pub fn cudart_version(&self) -> Option<(u32, u32)> {
        self.cudart
    }

    /// Bytes of scratch that [`Nvcomp::zstd_decompress`] needs for `count` frames of at most `max_chunk` decoded bytes each
    /// and `total` in all. Batches of less need no more.
    ///
    /// Up to 4.x the device's context has to be current ([`Device::bind`]).
    ///
    /// # Errors
    /// The sizes contradict each other, chunks are larger than 16 MiB, or nvCOMP refused.
    pub fn zstd_temp_bytes(&self, count: usize, max_chunk: usize, total: usize) -> Result<usize> {
        self.temp_bytes("Zstd", &self.zstd, Options::default(), (count, max_chunk, total))
    }

    /// Begins to decompress zstd frames: each a single frame with its content's size and without a dictionary.
    ///
    /// # Safety
    /// The device's context is current on this thread, and `stream` is a stream of it or null. The arrays have their
    /// elements, and what those and `temp` point to is memory of the device of the stated lengths; all of it stays until
    /// the work in the stream is done. The frames are what an encoder made, undamaged: nvCOMP does not promise to survive
    /// others. `temp_bytes` is at least what [`Nvcomp::zstd_temp_bytes`] gives for sizes that bound these frames.
    ///
    /// # Errors
    /// nvCOMP refused. Each frame's outcome is in the batch's statuses and lengths once the work is done.
    pub unsafe fn zstd_decompress(
        &self,
        batch: &DeviceBatch,
        temp: u64,
        temp_bytes: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.decompress("Zstd", &self.zstd, Options::default(), batch, (temp, temp_bytes), stream) }
    }

    /// The alignment that [`Nvcomp::zstd_decompress`] wants of addresses.
    ///
    /// # Errors
    /// nvCOMP refused.
    pub fn zstd_alignments(&self) -> Result<Alignments> {
        self.alignments("Zstd", &self.zstd, Options::default(), Alignments { input: 1, output: 1, temp: 8 })
    }

    /// Bytes of scratch that [`Nvcomp::ans_decompress`] needs; arguments as for [`Nvcomp::zstd_temp_bytes`].
    ///
    /// # Errors
    /// Those of [`Nvcomp::zstd_temp_bytes`], or this version has not the mode.
    pub fn ans_temp_bytes(&self, count: usize, max_chunk: usize, total: usize, mode: AnsMode) -> Result<usize> {
        self.temp_bytes("ANS", &self.ans, self.ans_options(mode)?, (count, max_chunk, total))
    }

    /// Begins to decompress what [`Nvcomp::ans_compress`] made in the same mode.
    ///
    /// # Safety
    /// Conditions of [`Nvcomp::zstd_decompress`], with [`Nvcomp::ans_temp_bytes`].
    ///
    /// # Errors
    /// nvCOMP refused, or this version has not the mode.
    pub unsafe fn ans_decompress(
        &self,
        batch: &DeviceBatch,
        mode: AnsMode,
        temp: u64,
        temp_bytes: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        let options = self.ans_options(mode)?;
        // SAFETY: as the caller promises.
        unsafe { self.decompress("ANS", &self.ans, options, batch, (temp, temp_bytes), stream) }
    }

    /// The alignment that [`Nvcomp::ans_decompress`] wants of addresses.
    ///
    /// # Errors
    /// nvCOMP refused, or this version has not the mode.
    pub fn ans_alignments(&self, mode: AnsMode) -> Result<Alignments> {
        let options = self.ans_options(mode)?;
        self.alignments("ANS", &self.ans, options, Alignments { input: 8, output: 1, temp: 4 })
    }

    /// Bytes of scratch that [`Nvcomp::ans_compress`] needs; arguments as for [`Nvcomp::zstd_temp_bytes`].
    ///
    /// # Errors
    /// Those of [`Nvcomp::ans_temp_bytes`].
    pub fn ans_compress_temp_bytes(
        &self,
        count: usize,
        max_chunk: usize,
        total: usize,
        mode: AnsMode,
    ) -> Result<usize> {
        let options = self.ans_compress_options(mode)?;
        check_sizes(count, max_chunk, total)?;
        let mut bytes = 0;
        // SAFETY: The result is written to a size of the host; nothing else is accessed.
        let status = unsafe {
            match self.ans_encoder {
                Encoder::A { temp, .. } => temp(count, max_chunk, 0, &mut bytes, total),
                Encoder::B { temp, .. } => temp(count, max_chunk, options, &mut bytes, total),
                Encoder::C { temp, .. } => temp(count, max_chunk, options, &mut bytes, total, ptr::null_mut()),
            }
        };
        check("nvcompBatchedANSCompressGetTempSize", status, self.version)?;
        Ok(bytes)
    }

    /// The most bytes that ANS makes of a chunk of `max_chunk`.
    ///
    /// # Errors
    /// nvCOMP refused, or this version has not the mode.
    pub fn ans_compress_bound(&self, max_chunk: usize, mode: AnsMode) -> Result<usize> {
        let options = self.ans_compress_options(mode)?;
        let mut bytes = 0;
        // SAFETY: The result is written to a size of the host; nothing else is accessed.
        let status = unsafe {
            match self.ans_encoder {
                Encoder::A { bound, .. } => bound(max_chunk, 0, &mut bytes),
                Encoder::B { bound, .. } | Encoder::C { bound, .. } => bound(max_chunk, options, &mut bytes),
            }
        };
        check("nvcompBatchedANSCompressGetMaxOutputChunkSize", status, self.version)?;
        Ok(bytes)
    }

    /// Begins to compress bytes with ANS.
    ///
    /// # Safety
    /// Conditions of [`Nvcomp::zstd_decompress`], with [`Nvcomp::ans_compress_temp_bytes`]; outputs have room for
    /// [`Nvcomp::ans_compress_bound`].
    ///
    /// # Errors
    /// nvCOMP refused, or this version has not the mode.
    pub unsafe fn ans_compress(
        &self,
        batch: &CompressBatch,
        mode: AnsMode,
        temp: u64,
        temp_bytes: usize,
        stream: *mut c_void,
    ) -> Result<()> {
        let options = self.ans_compress_options(mode)?;
        let CompressBatch { count, max_chunk, input, input_bytes, output, output_bytes, statuses } = *batch;
        if count == 0 {
            return Ok(());
        }
        check_arrays(&[input, input_bytes, output, output_bytes, statuses])?;
        let (from, to) = (input as *const *const c_void, output as *const *mut c_void);
        let (lengths, out_lengths) = (input_bytes as *const usize, output_bytes as *mut usize);
        let temp = temp as *mut c_void;
        // SAFETY: as the caller promises.
        let status = unsafe {
            match self.ans_encoder {
                Encoder::A { compress, .. } => {
                    compress(from, lengths, max_chunk, count, temp, temp_bytes, to, out_lengths, 0, stream)
                }
                Encoder::B { compress, .. } | Encoder::C { compress, .. } => {
                    let statuses = statuses as *mut i32;
                    compress(
                        from,
                        lengths,
                        max_chunk,
                        count,
                        temp,
                        temp_bytes,
                        to,
                        out_lengths,
                        options,
                        statuses,
                        stream,
                    )
                }
            }
        };
        check("nvcompBatchedANSCompressAsync", status, self.version)
    }

    fn temp_bytes(
        &self,
        format: &str,
        decoder: &Decoder,
        options: Options,
        (count, max_chunk, total): (usize, usize, usize),
    ) -> Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        check_sizes(count, max_chunk, total)?;
        let mut bytes = 0;
        // SAFETY: The result is written to a size of the host; nothing else is accessed.
        let status = unsafe {
            match *decoder {
                Decoder::A { temp, .. } => temp(count, max_chunk, &mut bytes, total),
                Decoder::B { temp, .. } => temp(count, max_chunk, options, &mut bytes, total),
                Decoder::C { temp, .. } => temp(count, max_chunk, options, &mut bytes, total, ptr::null_mut()),
            }
        };
        check(&format!("nvcompBatched{format}DecompressGetTempSize"), status, self.version)?;
        Ok(bytes)
    }

    /// # Safety
    /// Conditions of [`Nvcomp::zstd_decompress`].
    unsafe fn decompress(
        &self,
        format: &str,
        decoder: &Decoder,
        options: Options,
        batch: &DeviceBatch,
        (temp, temp_bytes): (u64, usize),
        stream: *mut c_void,
    ) -> Result<()> {
        let DeviceBatch { count, compressed, compressed_bytes, capacity, actual, output, statuses } = *batch;
        if count == 0 {
            return Ok(());
        }
        check_arrays(&[compressed, compressed_bytes, capacity, actual, output, statuses])?;
        let (from, to) = (compressed as *const *const c_void, output as *const *mut c_void);
        let (lengths, capacity, actual) =
            (compressed_bytes as *const usize, capacity as *const usize, actual as *mut usize);
        let (temp, statuses) = (temp as *mut c_void, statuses as *mut i32);
        // SAFETY: as the caller promises.
        let status = unsafe {
            match *decoder {
                Decoder::A { decompress, .. } => {
                    decompress(from, lengths, capacity, actual, count, temp, temp_bytes, to, statuses, stream)
                }
                Decoder::B { decompress, .. } | Decoder::C { decompress, .. } => {
                    decompress(from, lengths, capacity, actual, count, temp, temp_bytes, to, options, statuses, stream)
                }
            }
        };
        check(&format!("nvcompBatched{format}DecompressAsync"), status, self.version)
    }

    /// `in_headers` is what the headers of 4.1 and 4.2 say, which have no function for it.
    fn alignments(
        &self,
        format: &str,
        decoder: &Decoder,
        options: Options,
        in_headers: Alignments,
    ) -> Result<Alignments> {
        let (Decoder::B { alignments, .. } | Decoder::C { alignments, .. }) = *decoder else {
            let all = |n| Alignments { input: n, output: n, temp: n };
            // Older headers have one number for everything.
            return Ok(if (self.version.major, self.version.minor) < (4, 1) { all(8) } else { in_headers });
        };
        let mut requirements = sys::AlignmentRequirements::default();
        // SAFETY: The result is written to a structure of the host; nothing else is accessed.
        let status = unsafe { alignments(options, &mut requirements) };
        check(&format!("nvcompBatched{format}DecompressGetRequiredAlignments"), status, self.version)?;
        Ok(Alignments { input: requirements.input, output: requirements.output, temp: requirements.temp })
    }

    fn ans_options(&self, mode: AnsMode) -> Result<Options> {
        let data_type = if self.family == Family::C { TYPE_FROM_DATA } else { 0 };
        match mode {
            AnsMode::Standard => Ok(Options { data_type, ..Options::default() }),
            AnsMode::Specialised => self.specialised(Options { states_per_lane: 2, last: 1, ..Options::default() }),
        }
    }

    fn ans_compress_options(&self, mode: AnsMode) -> Result<Options> {
        match mode {
            AnsMode::Standard => Ok(Options::default()),
            AnsMode::Specialised => self.specialised(Options { states_per_lane: 2, ..Options::default() }),
        }
    }

    fn specialised(&self, options: Options) -> Result<Options> {
        if self.family == Family::C {
            return Ok(options);
        }
        Err(coded!(NVCOMP_TOO_OLD, "nvCOMP {} has no specialised ANS", self.version)
            .advice("install nvCOMP 6.0 or later"))
    }
}

/// Opens a library for good.
fn open_library(path: &Path) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // All symbols at once: one that is missing is an error here, rather than the end of the process later on.
    #[cfg(unix)]
    let library = {
        use libloading::os::unix::{Library as UnixLibrary, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: The user installed or named the library; its initializers are NVIDIA's.
        Library::from(unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let library = unsafe { Library::new(path) }?;
    Ok(ManuallyDrop::new(library))
}

fn check_sizes(count: usize, max_chunk: usize, total: usize) -> Result<()> {
    if max_chunk == 0 || max_chunk > MAX_CHUNK {
        return Err(coded!(INPUT_BUG, "chunks for nvCOMP have 1 to {MAX_CHUNK} bytes, not {max_chunk}"));
    }
    // A total that is too small would make nvCOMP write behind its scratch.
    if total < max_chunk || count.checked_mul(max_chunk).is_some_and(|most| total > most) {
        return Err(coded!(INPUT_BUG, "{count} chunks of at most {max_chunk} bytes cannot have {total} in all"));
    }
    Ok(())
}

/// Some versions end the process where an array is missing.
fn check_arrays(arrays: &[u64]) -> Result<()> {
    if arrays.contains(&0) {
        return Err(coded!(INPUT_BUG, "an array of a batch for nvCOMP has address 0"));
    }
    Ok(())
}

fn not_loaded(insisted: Option<&Path>, refused: &[String], driver: Option<(u32, u32)>) -> Error {
    let cuda = match driver {
        Some((major, _)) if major < 13 => "12",
        _ => "13",
    };
    let install = format!("pip install nvidia-libnvcomp-cu{cuda}");
    let reasons = refused.join("; ");
    match (insisted, refused) {
        (Some(path), []) => coded!(NO_NVCOMP, "there is no nvCOMP in {}", path.display())
            .advice(format!("{install}, and name its libnvcomp.so or leave the path and {ENVIRONMENT} away")),
        (Some(_), _) => coded!(NVCOMP_REFUSED, "nvCOMP cannot be used: {reasons}")
            .advice(format!("name another libnvcomp.so of 3.0 to 6.x, or `{install}`")),
        (None, []) => coded!(NO_NVCOMP, "nvCOMP, which decodes planes of coder zstd on a GPU, was not found")
            .advice(format!("{install}, or name its libnvcomp.so in {ENVIRONMENT}")),
        (None, _) => coded!(NVCOMP_REFUSED, "no nvCOMP that was found can be used: {reasons}").advice(install),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_is_not_there_is_said() {
        let root = tempfile::tempdir().expect("made");
        let load = |explicit: Option<&Path>, folders: &[PathBuf], driver| {
            let e = Nvcomp::load_from(explicit, folders, driver, &Surroundings::default()).expect_err("not there");
            assert_eq!(e.kind(), ErrorKind::Device);
            e.to_string()
        };
        let e = load(Some(root.path()), &[], None);
        assert!(e.contains(&format!("there is no nvCOMP in {}", root.path().display())), "{e}");
        let missing = root.path().join("libnvcomp.so.5");
        let e = load(Some(&missing), &[], None);
        assert!(e.starts_with("nvCOMP cannot be used: ") && e.contains("No such file"), "{e}");
        // Something else by that name.
        std::fs::write(&missing, "not a library").expect("written");
        for e in [load(Some(&missing), &[], None), load(Some(root.path()), &[], None)] {
            assert!(e.contains(&format!("{}: ", missing.display())) && e.contains("name another"), "{e}");
        }
    }

    #[test]
    fn advice_fits_the_driver() {
        for (driver, package) in [(Some((12, 4)), "cu12"), (Some((13, 0)), "cu13"), (None, "cu13")] {
            for refused in [vec![], vec!["libnvcomp.so.6: it is too new".to_owned()]] {
                let e = not_loaded(None, &refused, driver).to_string();
                assert!(e.contains(&format!("pip install nvidia-libnvcomp-{package}")), "{e}");
                assert!(refused.iter().all(|r| e.contains(r)), "{e}");
            }
        }
    }

    #[test]
    fn sizes_must_agree() {
        assert!(
            [(1, 1, 1), (3, 100, 250), (3, 100, 300), (3, 100, 100), (usize::MAX, 2, 5), (1, MAX_CHUNK, MAX_CHUNK)]
                .into_iter()
                .all(|(n, max, total)| check_sizes(n, max, total).is_ok())
        );
        // The last: number and size of chunks exchanged.
        let wrong = [(1, 0, 0), (3, 100, 301), (3, 100, 99), (1, MAX_CHUNK + 1, MAX_CHUNK + 1), (65_536, 1, 65_537)];
        for (n, max, total) in wrong {
            let e = check_sizes(n, max, total).expect_err("refused");
            assert_eq!(e.kind(), ErrorKind::Input);
        }
    }

    #[test]
    fn arrays_must_be_there() {
        assert!(check_arrays(&[1, 2, 3]).is_ok());
        assert_eq!(check_arrays(&[8, 0, 16]).expect_err("refused").kind(), ErrorKind::Input);
    }
}
