//! Scheme `rate`: entropy-constrained scalar quantization (P. A. Chou, T. Lookabaugh and R. M. Gray, IEEE Trans. Acoustics,
//! Speech and Signal Processing 37(1), 1989), optionally trellis-coded (M. W. Marcellin and T. R. Fischer, IEEE Trans.
//! Communications 38(1), 1990), which video coding calls dependent quantization (VVC: H. Schwarz, T. Nguyen, D. Marpe and
//! T. Wiegand, Data Compression Conference, 2019). Levels are at uniform steps, whose size is chosen to meet a target of
//! bits per weight; each row has a 16-bit scale. `FORMAT.md` section 2.
//!
//! Levels are at half steps, so that none is 0: signs are raw bits, none of which is wasted on a zero, and magnitudes
//! are coded. At low rates a uniform quantizer followed by an entropy coder is within a quarter of a bit of any code's
//! limit, and with a trellis within a tenth (H. Gish and J. N. Pierce, IEEE Trans. Information Theory 14(5), 1968; T.
//! R. Fischer and M. Wang, the same 38(2), 1992). Steps are proportional to the root mean square of the row, with the
//! same factor for all rows of a model: from weights alone, this is the best rule known for models of every kind.

use super::columns::Columns;
use crate::error::Result;

mod distortion;
mod given;
mod quantize;
pub(crate) mod trellis;

pub(crate) use distortion::NOT_FINITE_ADVICE;
pub(crate) use given::given;
pub(crate) use quantize::symbols;

/// The largest magnitude of a symbol that writers use, which keeps symbols within [-127, 126]. The lossless forms of
/// the format can take the signs of these away.
pub const LARGEST_MAGNITUDE: u8 = 126;
/// Its counterpart for a trellis, whose symbols become twice as fine by a bit of the path.
pub const LARGEST_TRELLIS_MAGNITUDE: u8 = 62;
/// The Lagrange multiplier of the trellis: the cost of a bit, in squared fine steps. A little less than the slope of the
/// rate-distortion curve suggests was best, or as good, on models of several kinds.
pub const TRELLIS_RATE_WEIGHT: f64 = 0.2;

/// Bits per weight, in thousandths: 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits(u16);

impl Bits {
    /// The fewest.
    pub const LEAST: f64 = 1.0;
    /// As many as there are where a caller asks for none.
    pub const DEFAULT: f64 = 4.0;
    /// The most.
    pub const MOST: f64 = 8.0;

    /// # Errors
    /// Fewer than 1, more than 8, or NaN.
    ///
    /// ```
    /// use wcodec::scheme::rate::Bits;
    /// assert_eq!(Bits::new(3.5)?.get(), 3.5);
    /// assert!(Bits::new(0.9).is_err() && Bits::new(f64::NAN).is_err());
    /// # Ok::<(), wcodec::Error>(())
    /// ```
    pub fn new(bits: f64) -> Result<Self> {
        if (Self::LEAST..=Self::MOST).contains(&bits) {
            Ok(Self((bits * 1000.0).round() as u16))
        } else {
            Err(coded!(BAD_NUMBER, "{bits} bits per weight").advice(format!(
                "ask for {} to {}",
                Self::LEAST,
                Self::MOST
            )))
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

/// The parameters of scheme `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bits per weight, counting everything that is stored for the weights: symbols, signs, scales, tables, offsets,
    /// padding.
    pub bits: Bits,
    /// Whether levels are chosen by a trellis: a smaller error at the same bits, for more encoding time and a little
    /// more decoding time.
    pub trellis: bool,
}

/// The quantization of a matrix's rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps<'a> {
    /// The step between levels, relative to the size of the row ([`quantize`]); with a trellis, the step between the
    /// levels of both quantizers together.
    pub factor: f32,
    /// With a trellis: the number of columns after which it restarts, the width of a tile.
    pub trellis: Option<usize>,
    /// Factors of columns: weights are divided by them, and their quotients are quantized.
    pub columns: Option<Columns<'a>>,
}

impl Steps<'_> {
    /// The steps that take as many bits without a trellis, by plain rounding.
    fn rounded(self) -> Self {
        let factor = if self.trellis.is_some() { 2.0 * self.factor } else { self.factor };
        Self { factor, trellis: None, ..self }
    }
}
