//! Schemes turn a tensor into planes of symbols, and symbols back into values. `FORMAT.md` section 2.
//!
//! Scheme `raw` keeps a tensor's bytes and needs no code.

use int8::Granularity;
use rate::Rate;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::named::named;
use crate::pool::Pool;
use crate::tensor::Dtype;

mod columns;
mod fields;
pub mod int8;
pub mod lossless;
mod matrix;
pub mod rate;
mod reader;

pub(crate) use columns::{Columns, is_factor};
pub use fields::Fields;
pub(crate) use fields::{check_planes, join};
pub use matrix::{Levels, SymbolPlanes, Weights};

named! {
    /// The name of a scheme in files.
    SchemeKind, "scheme" {
        /// Int8 symbols and scales.
        Int8 = "int8",
        /// Levels at uniform steps, whose size is chosen to meet a target of bits, and 16-bit scales.
        Rate = "rate",
        /// The bits of floats, sorted by their information.
        Lossless = "lossless",
        /// The unchanged bytes.
        Raw = "raw",
    }
}

/// The name in files of scheme `rate` where columns have factors: earlier readers refuse the tensor by it.
pub const COLUMNS: &str = "columns";

/// The criterion by which [`verify`](crate::verify()) judges a tensor equal to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equality {
    /// The decoded values equal the source, bit for bit.
    Bits,
    /// The scheme is a function of the weights alone: encoding the source again gives the same symbols and scales.
    Again,
    /// The decoded values are as far from the source as the file says.
    Error,
}

impl SchemeKind {
    /// The scheme that files call `name`: `rate` has a second name there, [`COLUMNS`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): there is none of this name.
    pub fn from_file(name: &str) -> Result<Self> {
        if name == COLUMNS { Ok(SchemeKind::Rate) } else { Self::from_name(name) }
    }

    /// The name in files, of scheme `rate` also for tensors whose columns have factors.
    pub(crate) fn name_in_file(self, columns: bool) -> &'static str {
        if columns { COLUMNS } else { self.name() }
    }

    /// Whether the file stores symbols that are converted to values, rather than the elements themselves.
    pub fn makes_symbols(self) -> bool {
        matches!(self, SchemeKind::Int8 | SchemeKind::Rate)
    }

    /// The offset added to symbols before they are multiplied by their scale: levels of scheme `rate` are at half
    /// steps.
    pub fn offset(self) -> f32 {
        if self == SchemeKind::Rate { 0.5 } else { 0.0 }
    }

    /// The dtype in which scales are stored, if there are any.
    pub fn scale_dtype(self) -> Dtype {
        match self {
            SchemeKind::Rate => Dtype::BF16,
            SchemeKind::Int8 | SchemeKind::Lossless | SchemeKind::Raw => Dtype::F32,
        }
    }

    /// Bits of what a plane of whole elements holds: of a symbol, or of the element itself.
    pub fn bits(self, dtype: Dtype) -> u32 {
        if self.makes_symbols() { 8 } else { 8 * dtype.size() as u32 }
    }

    /// The criterion by which a tensor is judged equal to its source.
    pub fn equality(self) -> Equality {
        match self {
            SchemeKind::Int8 => Equality::Again,
            SchemeKind::Rate => Equality::Error,
            SchemeKind::Lossless | SchemeKind::Raw => Equality::Bits,
        }
    }
}

/// The encoding of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Int8 symbols and scales.
    Int8(Granularity),
    /// Levels at uniform steps, for a target of bits per weight.
    Rate(Rate),
    /// The bits of floats, sorted by their information.
    Lossless,
    /// The unchanged bytes.
    Raw,
}

impl Scheme {
    /// The kind, whose name files use.
    pub fn kind(self) -> SchemeKind {
        match self {
            Scheme::Int8(_) => SchemeKind::Int8,
            Scheme::Rate(_) => SchemeKind::Rate,
            Scheme::Lossless => SchemeKind::Lossless,
            Scheme::Raw => SchemeKind::Raw,
        }
    }

    /// # Errors
    /// The format does not allow the parameters.
    pub fn check(self) -> Result<Self> {
        if let Scheme::Int8(granularity) = self {
            granularity.check()?;
        }
        Ok(self)
    }

    /// Whether it makes symbols of tensors with this dtype and shape; others are stored raw.
    pub fn takes(self, dtype: Dtype, shape: &[usize]) -> bool {
        match self {
            Scheme::Int8(_) | Scheme::Rate(_) => shape.len() >= 2 && dtype.is_quantizable() && !shape.contains(&0),
            Scheme::Lossless => shape.len() >= 2 && lossless::planes_of(dtype).is_some() && !shape.contains(&0),
            Scheme::Raw => false,
        }
    }

    /// Computes the symbols of a matrix that it [takes](Self::takes).
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): weights that have no symbols, such as non-finite ones. The
    /// operating system refuses memory or threads; or `cancel` was used.
    ///
    /// ```
    /// use wcodec::scheme::{Scheme, Weights};
    /// use wcodec::{Cancel, Dtype, Granularity, Pool};
    /// let floats = [0.5f32, -1.0, 0.0, 0.0];
    /// let bytes = bytemuck::cast_slice(&floats);
    /// let weights = Weights { dtype: Dtype::F32, bytes, rows: 2, cols: 2, transposed: false };
    /// let made = Scheme::Int8(Granularity::Row).symbols(&weights, &Pool::new(None)?, &Cancel::new())?;
    /// assert_eq!(made.planes, [[64, -127, 0, 0]]);
    /// assert_eq!(made.scales, Some((Granularity::Row, vec![1.0 / 127.0, 1.0])));
    /// # Ok::<(), wcodec::Error>(())
    /// ```
    pub fn symbols(self, weights: &Weights<'_>, pool: &Pool, cancel: &Cancel) -> Result<SymbolPlanes> {
        match self {
            Scheme::Int8(granularity) => int8::symbols(weights, granularity, pool, cancel),
            Scheme::Rate(_) => {
                Err(coded!(BAD_LEVELS, "scheme rate makes symbols for steps")
                    .advice("encode the tensor, which finds them"))
            }
            Scheme::Lossless => lossless::split(weights, pool, cancel),
            Scheme::Raw => {
                Err(coded!(DECODED_DTYPE, "scheme raw makes no symbols").advice("store the bytes as they are"))
            }
        }
    }
}
