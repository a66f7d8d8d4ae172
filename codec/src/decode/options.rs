//! Options for decoders on the CPU.

use crate::cancel::Cancel;
use crate::coder::Isa;
use crate::error::Result;

/// Options for decoding.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Threads; all cores if absent.
    pub threads: Option<usize>,
    /// Instruction set; the fastest if absent (see [`Isa::best`]).
    pub isa: Option<Isa>,
    /// Whether to compare hashes. Otherwise damage is found only where it breaks a stream.
    pub verify: bool,
    /// Stops the work, from another thread.
    pub cancel: Cancel,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { threads: None, isa: None, verify: true, cancel: Cancel::new() }
    }
}

impl DecodeOptions {
    /// The instruction set to use.
    pub(crate) fn isa(&self) -> Result<Isa> {
        self.isa.map_or_else(Isa::best, Isa::require)
    }
}
