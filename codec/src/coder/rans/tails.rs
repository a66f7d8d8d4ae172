//! Tails: 32 bits of each lane that fill up its last state, and the bits of them that do not fit. `FORMAT.md` section
//! 6.

use crate::coder::LANES;

/// A bit, in the units of [`cost`].
pub const BIT: u32 = 1 << 16;
/// The most by which the sum of costs may be too small, as each step rounds. Overestimating a lane's length slightly
/// loses little.
const MARGIN: u32 = BIT / 16;
/// The fewest bits of a tail that a state holds.
const FEWEST: u32 = 15;

/// The cost of a symbol of frequency `f` out of 2^`bits`: `bits` - log2 `f`, in units of 1 / [`BIT`] bits, rounded up.
/// Integers make every machine write the same bytes.
pub fn cost(bits: u32, f: u32) -> u32 {
    if f == 0 {
        return 0;
    }
    let integer_log = f.ilog2();
    // The fraction of log2, bit by bit: squaring a number from 1 to 2 doubles its logarithm.
    let mut log = integer_log;
    let mut y = u64::from(f) << (31 - integer_log);
    for _ in 0..BIT.ilog2() {
        y = (y * y) >> 31;
        let two = y >> 32;
        log = log << 1 | two as u32;
        y >>= two;
    }
    bits * BIT - log
}

/// The lanes' tails, and the number of bits of each that its state holds.
pub struct Tails {
    tails: [u32; LANES],
    held: [u32; LANES],
}

impl Tails {
    /// Lets states hold as many bits of `tails` as fit without a further word, given the cost of the lanes' symbols.
    pub fn choose(tails: &[u32; LANES], costs: &[u32; LANES]) -> Self {
        let held = std::array::from_fn(|lane| {
            // The decoder's first state would be 2^used for a tail of all ones, and has 32 bits; a word has 16.
            let used = (BIT * 6 / 10 + MARGIN + costs[lane]) % (16 * BIT);
            (FEWEST + (16 * BIT - used) / BIT).min(2 * FEWEST)
        });
        Self { tails: *tails, held }
    }

    /// The states that the encoder begins with.
    pub fn states(&self) -> [u32; LANES] {
        std::array::from_fn(|lane| 2 << self.held[lane] | self.tails[lane] & ((1 << self.held[lane]) - 1))
    }

    /// Appends the other bits of the tails, and zeros up to a multiple of 4 bytes; `odd` says whether the words before
    /// end in the middle of such a multiple.
    pub fn write(&self, odd: bool, out: &mut Vec<u8>) {
        let begin = out.len();
        let (mut window, mut filled) = (0u64, 0);
        for (tail, held) in self.tails.iter().zip(self.held) {
            window |= u64::from(tail >> held) << filled;
            filled += 32 - held;
            while filled >= 16 {
                out.extend_from_slice(&(window as u16).to_le_bytes());
                window >>= 16;
                filled -= 16;
            }
        }
        if filled > 0 {
            out.extend_from_slice(&(window as u16).to_le_bytes());
        }
        let length = usize::from(odd) * 2 + out.len() - begin;
        out.resize(out.len() + length.next_multiple_of(4) - length, 0);
    }
}

/// Most bytes that the lanes' parts take.
const MOST: usize = LANES * (32 - FEWEST as usize) / 8;

/// Reads the tails from the states after the last step and the bytes after the last word; also returns whether a valid
/// body ends so.
#[inline]
pub fn read(states: &[u32; LANES], bytes: &[u8]) -> ([u32; LANES], bool) {
    // Padded once per tile: with zeros after the end, the start of a lane's part is one load without a bounds check.
    let mut stream = [0u8; MOST + 8];
    let known = bytes.len().min(MOST + 4);
    stream[..known].copy_from_slice(&bytes[..known]);
    let four = |at: usize| u32::from_le_bytes(*stream[at / 8..].first_chunk().expect("within the zeros"));
    let mut at = 0;
    let mut good = true;
    let tails = std::array::from_fn(|lane| {
        let x = states[lane];
        let held = 2 * FEWEST - x.leading_zeros().min(FEWEST);
        good &= x >> held == 2;
        // At most 7 bits before it and 17 of its own; those of later lanes are shifted out.
        let rest = four(at) >> (at % 8);
        at += (32 - held) as usize;
        x & ((1 << held) - 1) | rest << held
    });
    let left = (bytes.len() * 8).wrapping_sub(at);
    // Fewer than 32 bits, and all zero: they lie in at most five bytes.
    let zeros = || four(at) >> (at % 8) == 0 && four((at + 32).min(8 * (MOST + 4))) == 0;
    (tails, good && left < 32 && zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_logarithms() {
        for f in 1u32..4096 {
            let got = f64::from(cost(12, f)) / f64::from(BIT);
            let exact = 12.0 - f64::from(f).log2();
            assert!(got >= exact - 1e-9 && got < exact + 2.0 / f64::from(BIT), "{f}: {got} {exact}");
        }
        assert_eq!(cost(12, 0), 0);
        assert_eq!(cost(11, 1), 11 * BIT);
    }

    #[test]
    fn any_share_is_read_back() {
        let tails: [u32; LANES] = std::array::from_fn(|i| (i as u32).wrapping_mul(0x9E37_79B9) ^ 0x1234_5678);
        for shift in 0..16 {
            let held = std::array::from_fn(|i| FEWEST + (i as u32 * 7 + shift) % 16);
            let t = Tails { tails, held };
            for odd in [false, true] {
                let mut bytes = Vec::new();
                t.write(odd, &mut bytes);
                assert_eq!((bytes.len() + usize::from(odd) * 2) % 4, 0);
                assert_eq!(read(&t.states(), &bytes), (tails, true));
                let mut short = bytes.clone();
                short.truncate(bytes.len() - 4);
                assert!(!read(&t.states(), &short).1);
                bytes.extend([0; 4]);
                assert!(!read(&t.states(), &bytes).1);
                let mut states = t.states();
                states[5] |= 1 << held[5];
                assert!(!read(&states, &bytes[..bytes.len() - 4]).1);
            }
        }
    }
}
