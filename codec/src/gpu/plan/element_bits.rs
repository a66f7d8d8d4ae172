//! Elements that are put together of planes: which of their bits a plane holds, as the kernels are told.

use wcodec_kernels::abi::{self, MAX_RUNS, OutputKind};

use crate::error::Result;
use crate::scheme::Fields;

/// The bits of elements that a plane has, and when they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ElementBits {
    /// Planes of the tensor that are written before: the first one writes whole elements, 0 where it holds nothing, and the others add
    /// their bits.
    pub pass: u8,
    count: u8,
    /// As in [`abi::Fields`].
    runs: [u16; MAX_RUNS],
}

impl ElementBits {
    /// Those of a plane of these fields.
    ///
    /// # Errors
    /// More runs than kernels take.
    pub fn new(fields: &Fields, pass: usize) -> Result<Self> {
        let runs = fields.joined();
        if runs.len() > MAX_RUNS {
            return Err(coded!(GPU_LIMITS, "a plane of {} runs of bits of an element on a GPU", runs.len())
                .advice("encode the tensor again, or decode it on the CPU"));
        }
        let mut bits = Self { pass: pass as u8, count: runs.len() as u8, runs: [0; MAX_RUNS] };
        let mut above: u32 = runs.iter().map(|[_, width]| width).sum();
        for (to, [lowest, width]) in bits.runs.iter_mut().zip(runs) {
            above -= width;
            // All are below 32: elements have at most so many bits.
            *to = (lowest | above << 5 | (width - 1) << 10) as u16;
        }
        Ok(bits)
    }

    /// The fields that kernels are told, of elements of `kind`.
    pub fn fields(&self, kind: OutputKind) -> abi::Fields {
        abi::Fields {
            bytes: kind.bytes() as u8,
            adds: u8::from(self.pass > 0),
            count: self.count.into(),
            runs: self.runs,
        }
    }
}

/// The name of a plane's bits that kernels of their own put together: by the kind of float whose bits they are most often. `bytes` has an
/// element, and as many has what the plane decodes to.
pub fn common(fields: &Fields, bytes: usize) -> Option<OutputKind> {
    match (fields.joined().as_slice(), bytes) {
        ([[7, 8], [15, 1], [0, 7]], 2) => Some(OutputKind::BF16),
        ([[0, 16]], 2) => Some(OutputKind::F16),
        ([[23, 8], [31, 1], [0, 23]], 4) => Some(OutputKind::F32),
        _ => None,
    }
}

/// Whether a plane's bits are all of an element of `bytes` bytes, in their order.
pub fn is_whole(fields: &Fields, bytes: usize) -> bool {
    fields.joined() == [[0, 8 * bytes as u32]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(runs: &[[u32; 2]]) -> Fields {
        Fields::new(runs.to_vec()).unwrap()
    }

    #[test]
    fn runs_are_what_kernels_take_apart() {
        let bits = ElementBits::new(&fields(&[[23, 8], [31, 1], [16, 7], [8, 8]]), 2).unwrap();
        let told = bits.fields(OutputKind::F32);
        assert_eq!((told.bytes, told.adds, told.count), (4, 1, 3));
        let runs = told.runs[..3].iter().map(|r| [r & 31, r >> 5 & 31, (r >> 10) + 1]);
        assert_eq!(runs.collect::<Vec<_>>(), [[23, 16, 8], [31, 15, 1], [8, 0, 15]]);
        let all = ElementBits::new(&fields(&[[0, 32]]), 0).unwrap().fields(OutputKind::F32);
        assert_eq!((all.adds, all.count, all.runs[0]), (0, 1, 31 << 10));
    }

    #[test]
    fn common_bits_are_found_however_they_are_written() {
        assert_eq!(common(&fields(&[[7, 8], [15, 1], [0, 7]]), 2), Some(OutputKind::BF16));
        assert_eq!(common(&fields(&[[8, 8], [0, 8]]), 2), Some(OutputKind::F16));
        assert_eq!(common(&fields(&[[12, 4], [3, 9], [0, 3]]), 2), Some(OutputKind::F16));
        assert_eq!(common(&fields(&[[23, 8], [31, 1], [16, 7], [8, 8], [0, 8]]), 4), Some(OutputKind::F32));
        assert_eq!(common(&fields(&[[23, 8], [31, 1], [16, 7]]), 4), None);
        assert_eq!(common(&fields(&[[0, 8], [8, 8]]), 2), None);
        assert!(is_whole(&fields(&[[4, 4], [0, 4]]), 1) && !is_whole(&fields(&[[0, 4], [4, 4]]), 1));
    }

    #[test]
    fn too_many_runs_are_refused() {
        let scattered: Vec<[u32; 2]> = (0..16).map(|i| [i * 2 % 32, 1]).collect();
        assert!(ElementBits::new(&fields(&scattered[..8]), 0).is_ok());
        let e = ElementBits::new(&fields(&scattered), 0).unwrap_err();
        assert_eq!(
            e.to_string(),
            "a plane of 16 runs of bits of an element on a GPU (encode the tensor again, or decode it on the CPU) [U108]"
        );
    }
}
