//! Element types of weights.

use half::{bf16, f16};

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Element types that the scheme takes: `f32`, [`half::f16`], [`half::bf16`].
pub trait Weight: private::Sealed + Copy + Send + Sync + bytemuck::Pod {
    /// The exact value as f32.
    fn to_f32(self) -> f32;
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Weight for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Weight for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        // A scale from a damaged file may be NaN. Rounding could carry it to infinity, so it is truncated and made
        // quiet.
        let nan = u32::from(value.is_nan()).wrapping_neg();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(((rounded & !nan) | (quiet & nan)) as u16)
    }
}
