//! Instruction sets that decoders can use.

use crate::error::Result;
use crate::named::named;

named! {
    /// Instruction set of the CPU decoders. All of them decode to the same bytes.
    Isa, "instruction set" {
        /// Portable code: the reference.
        Scalar = "scalar",
        /// x86-64 AVX2, with the popcnt and bmi2 that come with it.
        Avx2 = "avx2",
        /// x86-64 AVX-512 (F, BW, VL), with the same extensions.
        Avx512 = "avx512",
    }
}

impl Isa {
    /// Whether this machine supports it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("popcnt")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.is_available()
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The instruction sets of this machine, slowest first.
    ///
    /// ```
    /// assert_eq!(wcodec::Isa::available()[0], wcodec::Isa::Scalar);
    /// ```
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().copied().filter(|i| i.is_available()).collect()
    }

    /// The fastest instruction set of this machine, or the one that the environment variable `WCODEC_ISA` names.
    ///
    /// # Errors
    /// The variable names an instruction set that does not exist or that this machine lacks.
    pub fn best() -> Result<Isa> {
        match std::env::var("WCODEC_ISA") {
            Ok(name) => Isa::from_name(&name).and_then(Isa::require).map_err(|e| {
                coded!(ENVIRONMENT, "WCODEC_ISA: {}", e.message()).advice("unset it, or name another one")
            }),
            Err(_) => Ok(*Isa::available().last().expect("scalar is always there")),
        }
    }

    /// Returns `self`, or an error if this machine lacks it.
    pub fn require(self) -> Result<Isa> {
        if self.is_available() {
            return Ok(self);
        }
        let have: Vec<_> = Isa::available().iter().map(|i| i.name()).collect();
        Err(coded!(ENVIRONMENT, "this machine has no {self}").advice(format!("it has: {}", have.join(" "))))
    }
}
