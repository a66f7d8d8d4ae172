//! Scheme `rate`: levels at uniform steps, whose size is chosen for a number of bits per weight, and a scale of 16 bits for each row.
//! `FORMAT.md` section 2.
//!
//! Levels are at halves of a step, so that none is 0: signs are raw bits, which no zero wastes, and magnitudes are what is coded. At low rates a
//! uniform quantizer with an entropy coder behind it is within a quarter of a bit of what any code can do, and with a trellis within a tenth
//! (H. Gish and J. N. Pierce, IEEE Trans. Information Theory 14(5), 1968; T. R. Fischer and M. Wang, the same 38(2), 1992). Steps go by the root mean
//! square of the row, for all rows of a model alike: that is the best that is known from weights alone of models of every kind.

use crate::error::{Error, Result};

mod distortion;
mod given;
mod quantize;
pub(crate) mod trellis;

pub(crate) use distortion::NOT_FINITE_ADVICE;
pub(crate) use given::given;
pub(crate) use quantize::symbols;

/// Bits per weight, in thousandths: 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits(u16);

impl Bits {
    /// # Errors
    /// Fewer than 1, more than 8, or no number.
    ///
    /// ```
    /// use wcodec::scheme::rate::Bits;
    /// assert_eq!(Bits::new(3.5)?.get(), 3.5);
    /// assert!(Bits::new(0.9).is_err() && Bits::new(f64::NAN).is_err());
    /// # Ok::<(), wcodec::Error>(())
    /// ```
    pub fn new(bits: f64) -> Result<Self> {
        if (1.0..=8.0).contains(&bits) {
            Ok(Self((bits * 1000.0).round() as u16))
        } else {
            Err(Error::input(format!("{bits} bits per weight")).advice("ask for 1 to 8"))
        }
    }

    /// Bits per weight.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl std::fmt::Display for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// What is asked of scheme `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bits per weight, everything that is stored for the weights counted: symbols, signs, scales, tables, offsets, padding.
    pub bits: Bits,
    /// Whether levels are chosen by a trellis: less error at the same bits, for more time to encode, and a little to decode.
    pub trellis: bool,
}

/// How the rows of a matrix are quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps {
    /// The step between levels, over the root mean square of the row; with a trellis between the levels of both quantizers.
    pub factor: f32,
    /// With a trellis: columns after which it restarts, the width of a tile.
    pub trellis: Option<usize>,
}

impl Steps {
    /// Those of as many bits that levels are rounded to: without a trellis.
    fn rounded(self) -> Self {
        let factor = if self.trellis.is_some() { 2.0 * self.factor } else { self.factor };
        Self { factor, trellis: None }
    }
}
