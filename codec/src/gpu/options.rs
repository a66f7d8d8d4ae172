//! Options of decoders on a device.

use std::path::PathBuf;

use crate::cancel::Cancel;

/// Options for decoding on a device.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Threads that read and check the file; all cores where absent.
    pub threads: Option<usize>,
    /// Whether to compare the hashes of segments before they are sent to the device.
    pub verify: bool,
    /// Device memory, in bytes, that a batch of zstd frames may take besides input and output: nvCOMP wants three times
    /// what it decodes. A single frame may take more. If absent, a sixteenth of the device's memory, but 1.5 GiB at
    /// most; no more is taken than the frames need.
    pub zstd_scratch: Option<usize>,
    /// Device memory, in bytes, for compressed bytes that are on their way from the host ([`HostDecoder`](super::HostDecoder)).
    pub ring: usize,
    /// Threads that read tensors which stay in the file ([`HostDecoder::with_disk`](super::HostDecoder::with_disk)); 16 where absent.
    pub readers: Option<usize>,
    /// Whether these are read beside the system's page cache, where file and system allow it: what pays where they are more than the cache can
    /// hold.
    pub direct: bool,
    /// The place of nvCOMP, which is searched for if absent (see [`Nvcomp::load`](super::nvcomp::Nvcomp::load)). Needed for planes of coder `zstd` only.
    pub nvcomp: Option<PathBuf>,
    /// Folders to search for nvCOMP, such as Python's `site-packages`.
    pub nvcomp_folders: Vec<PathBuf>,
    /// Whether kernels may begin while the work before them in the stream ends (programmatic dependent launch, compute
    /// capability 9.0 and later). They wait before they write.
    pub overlap: bool,
    /// Stops the making of a decoder, from another thread.
    pub cancel: Cancel,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            threads: None,
            verify: true,
            zstd_scratch: None,
            ring: 128 << 20,
            readers: None,
            direct: true,
            nvcomp: None,
            nvcomp_folders: Vec::new(),
            overlap: true,
            cancel: Cancel::new(),
        }
    }
}
