//! Choices that drive mutations: the bytes of an input, and after its end random numbers derived from it.

use super::super::Rng;

/// Decisions, the same for the same bytes.
pub struct Choices<'a> {
    bytes: &'a [u8],
    pub then: Rng,
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        // Inputs that differ anywhere continue differently.
        let seed =
            bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h: u64, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        Self { bytes, then: Rng(seed) }
    }

    /// The next byte of the input, or a random one after its end.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&first, rest)) => {
                self.bytes = rest;
                first
            }
            None => self.then.next() as u8,
        }
    }

    fn two_bytes(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        match n {
            0..=1 => 0,
            2..=256 => usize::from(self.byte()) % n,
            257..=65_536 => self.two_bytes() % n,
            _ => (self.two_bytes() | self.two_bytes() << 16) % n,
        }
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `all`, which is not empty.
    pub fn one<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        &all[self.below(all.len())]
    }

    /// A number of any size.
    pub fn number(&mut self) -> u64 {
        (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }
}
