//! Schemes: how a tensor becomes planes of symbols, and what they are turned back by. `FORMAT.md` section 2.
//!
//! Scheme `raw` keeps a tensor's bytes and needs no code.

use int8::Granularity;

use crate::error::Result;
use crate::named::named;
use crate::tensor::Dtype;

pub mod int8;

named! {
    /// What a scheme is called in files.
    SchemeKind, "scheme" {
        /// Int8 symbols and scales.
        Int8 = "int8",
        /// The bytes as they are.
        Raw = "raw",
    }
}

impl SchemeKind {
    /// Whether what is stored are symbols that become values, and not the elements themselves.
    pub fn makes_symbols(self) -> bool {
        self == SchemeKind::Int8
    }

    /// Bits of what a plane of all of an element holds: of a symbol, or of the element itself.
    pub fn bits(self, dtype: Dtype) -> u32 {
        if self.makes_symbols() { 8 } else { 8 * dtype.size() as u32 }
    }
}

/// How weights are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Int8 symbols and scales.
    Int8(Granularity),
    /// The bytes as they are.
    Raw,
}

impl Scheme {
    /// What it is called in files.
    pub fn kind(self) -> SchemeKind {
        match self {
            Scheme::Int8(_) => SchemeKind::Int8,
            Scheme::Raw => SchemeKind::Raw,
        }
    }

    /// # Errors
    /// Parameters that the format does not have.
    pub fn check(self) -> Result<Self> {
        if let Scheme::Int8(granularity) = self {
            granularity.check()?;
        }
        Ok(self)
    }
}
