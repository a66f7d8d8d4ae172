//! Types whose weights are quantized in blocks: the size of a block, and its decoder.

use half::f16;

use super::{iq, k, legacy, small};

/// A type of GGUF.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Weights of a block.
    pub elements: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Decodes whole blocks: float32 products and sums in the order in which llama.cpp computes them.
    pub decode: fn(&[u8], &mut [f32]),
}

/// Decodes consecutive blocks.
fn each<const BYTES: usize, const ELEMENTS: usize>(
    blocks: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (block, values) in blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        one(block, values);
    }
}

macro_rules! types {
    ($($name:literal $elements:literal $bytes:literal $decode:path,)*) => {
        impl Blocks {
            /// The type with this name; `None` if its blocks cannot be decoded.
            pub fn of(kind: &str) -> Option<Self> {
                match kind {
                    $($name => Some(Self {
                        elements: $elements,
                        bytes: $bytes,
                        decode: |blocks, out| each::<$bytes, $elements>(blocks, out, $decode),
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

types! {
    "Q4_0" 32 18 legacy::q4_0,
    "Q4_1" 32 20 legacy::q4_1,
    "Q5_0" 32 22 legacy::q5_0,
    "Q5_1" 32 24 legacy::q5_1,
    "Q8_0" 32 34 legacy::q8_0,
    "IQ4_NL" 32 18 legacy::iq4_nl,
    "Q2_K" 256 84 k::q2_k,
    "Q3_K" 256 110 k::q3_k,
    "Q4_K" 256 144 k::q4_k,
    "Q5_K" 256 176 k::q5_k,
    "Q6_K" 256 210 k::q6_k,
    "IQ2_XXS" 256 66 iq::iq2_xxs,
    "IQ2_XS" 256 74 iq::iq2_xs,
    "IQ2_S" 256 82 iq::iq2_s,
    "IQ3_XXS" 256 98 iq::iq3_xxs,
    "IQ3_S" 256 110 iq::iq3_s,
    "IQ1_S" 256 50 iq::iq1_s,
    "IQ1_M" 256 56 iq::iq1_m,
    "IQ4_XS" 256 136 iq::iq4_xs,
    "TQ1_0" 256 54 small::tq1_0,
    "TQ2_0" 256 66 small::tq2_0,
    "MXFP4" 32 17 small::mxfp4,
    "NVFP4" 64 36 small::nvfp4,
}

/// The float16 that begins at a byte.
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A code minus the code of zero, exactly.
pub(super) fn int(code: u8, zero: i16) -> f32 {
    f32::from(i16::from(code) - zero)
}
