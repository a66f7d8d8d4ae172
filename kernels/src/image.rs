//! Compiled modules, and the choice of one for a device.

use std::fmt;

/// The kind of code in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Machine code of one architecture, an ELF file.
    Cubin,
    /// Text that the driver compiles, with a zero byte at its end.
    Ptx,
}

/// A compiled module, compressed.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Image {
    /// The kind of its code.
    pub kind: Kind,
    /// The compute capability that it was compiled for.
    pub capability: (u32, u32),
    /// Bytes after decompression.
    pub len: usize,
    /// The image as one zstd frame.
    pub zstd: &'static [u8],
}

/// In the usual form: `cubin sm_86`, `PTX sm_80`.
impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Cubin => "cubin",
            Kind::Ptx => "PTX",
        };
        write!(f, "{kind} sm_{}{}", self.capability.0, self.capability.1)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({self}, {} bytes)", self.len)
    }
}

/// Tegra's architectures: Orin and Thor (before CUDA 13). NVIDIA guarantees that machine code runs on later minor
/// versions only among desktop and server GPUs.
const TEGRA: [(u32, u32); 2] = [(8, 7), (10, 1)];

pub(crate) fn cubin(images: &'static [Image], device: (u32, u32)) -> Option<&'static Image> {
    let runs = |code: (u32, u32)| code == device || code.0 == device.0 && code < device && !TEGRA.contains(&device);
    images.iter().filter(|i| i.kind == Kind::Cubin && runs(i.capability)).max_by_key(|i| i.capability)
}

pub(crate) fn ptx(images: &'static [Image], device: (u32, u32)) -> &'static Image {
    let texts = || images.iter().filter(|i| i.kind == Kind::Ptx);
    let best = texts().filter(|i| i.capability <= device).max_by_key(|i| i.capability);
    best.or_else(|| texts().min_by_key(|i| i.capability)).expect("build.rs has found PTX of every module")
}

#[cfg(test)]
mod tests {
    use crate::{Module, OLDEST, cubin, ptx};

    #[test]
    fn every_device_has_its_images() {
        // Compute capability, the capability of the machine code that runs there, and that of the PTX that does.
        let devices = [
            ((7, 0), None, (7, 5)), // too old for both: the driver refuses it
            ((7, 5), Some((7, 5)), (7, 5)),
            ((8, 0), Some((8, 0)), (8, 0)),
            ((8, 6), Some((8, 6)), (8, 0)),
            ((8, 7), None, (8, 0)), // Orin
            ((8, 8), Some((8, 6)), (8, 0)),
            ((8, 9), Some((8, 6)), (8, 0)),
            ((9, 0), Some((9, 0)), (9, 0)),
            ((10, 0), Some((10, 0)), (9, 0)),
            ((10, 1), None, (9, 0)), // Thor, as CUDA 12 calls it
            ((10, 3), Some((10, 0)), (9, 0)),
            ((11, 0), None, (9, 0)), // Thor, as CUDA 13 calls it
            ((12, 0), Some((12, 0)), (9, 0)),
            ((12, 1), Some((12, 0)), (9, 0)),
            ((13, 0), None, (9, 0)),
        ];
        for module in Module::ALL {
            let oldest = if module == Module::Huffmanmany { (9, 0) } else { OLDEST };
            assert_eq!(module.oldest(), oldest);
            for (device, code, text) in devices {
                let runs = device >= oldest;
                assert_eq!(cubin(module, device).map(|i| i.capability), code.filter(|_| runs), "{device:?}");
                assert_eq!(ptx(module, device).capability, if runs { text } else { oldest }, "{device:?}");
            }
        }
    }

    #[test]
    fn images_have_names() {
        assert_eq!(cubin(Module::Util, (12, 1)).unwrap().to_string(), "cubin sm_120");
        assert!(format!("{:?}", ptx(Module::Util, (8, 9))).starts_with("Image(PTX sm_80, "));
    }
}
