//! Random numbers for tests.

/// A small generator whose numbers never change, as golden files require: SplitMix64.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A bell curve within -1 to 1, from integers, so that it is the same on every machine.
    pub fn bell(&mut self) -> f32 {
        let n = self.next();
        let sum = (n & 0xFFFF) + (n >> 16 & 0xFFFF) + (n >> 32 & 0xFFFF) + (n >> 48);
        (sum as f32 - 131_070.0) / 131_072.0
    }
}
