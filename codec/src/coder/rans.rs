//! Coder `rans`: 32 interleaved rANS states sharing one stream of 16-bit words. `FORMAT.md` section 6.

use super::LANES;
use super::histogram::SYMBOLS;
use super::table::FrequencyTable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::{Layout, tile::symbols_per_block};
use crate::error::Result;

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod avx512;

mod tails;

use tails::Tails;

/// Lower bound of a state between steps.
const LOW: u32 = 1 << 16;
/// Bytes of the states at the start of a body.
const STATE_BYTES: usize = LANES * 4;

/// The values that the encoder needs for a step with a symbol, so that it divides by multiplying.
#[derive(Clone, Copy, Default)]
struct Step {
    /// ceil(2^64 / f).
    reciprocal: u64,
    /// A state at or above this emits a word first. It fits, as f < 2^bits.
    limit: u32,
    /// start, corrected where the reciprocal of 1 is one too small.
    bias: u32,
    /// 2^bits - f.
    complement: u32,
}

/// Encodes bodies with one table.
pub struct Encoder {
    steps: [Step; SYMBOLS],
    /// The cost of each symbol, in units of 1 / [`tails::BIT`] bits.
    costs: [u32; SYMBOLS],
}

impl Encoder {
    /// Prepares `table`.
    pub fn new(table: &FrequencyTable) -> Self {
        let bits = table.bits();
        let starts = table.starts();
        let steps = std::array::from_fn(|s| {
            let (f, start) = (u32::from(table.frequencies()[s]), u32::from(starts[s]));
            let complement = (1 << bits) - f;
            match f {
                0 => Step::default(),
                // 2^64 / 1 does not fit: the quotient comes out as x - 1, which the bias corrects.
                1 => Step { reciprocal: u64::MAX, limit: 1 << (32 - bits), bias: start + complement, complement },
                _ => Step { reciprocal: u64::MAX / u64::from(f) + 1, limit: f << (32 - bits), bias: start, complement },
            }
        });
        let costs = table.frequencies().map(|f| tails::cost(bits, f.into()));
        Self { steps, costs }
    }

    /// Appends the body for `symbols` (`[step][lane]`; each must be in the table) and the lanes' tails. `words` is
    /// scratch.
    pub fn encode(&self, symbols: &[u8], tails: &[u32; LANES], words: &mut Vec<u16>, out: &mut Vec<u8>) {
        let mut costs = [0; LANES];
        for step in symbols.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                costs[lane] += self.costs[step[lane] as usize];
            }
        }
        let tails = Tails::choose(tails, &costs);
        let mut x = tails.states();
        // The decoder reads words in the opposite order, so they are written from the end to the front.
        words.clear();
        words.resize(symbols.len(), 0);
        let mut at = words.len();
        for step in symbols.as_chunks::<LANES>().0.iter().rev() {
            for lane in (0..LANES).rev() {
                let s = &self.steps[step[lane] as usize];
                let mut state = x[lane];
                let emit = state >= s.limit;
                // Writing always, and advancing only if a word was emitted, has no branch to mispredict. The slot
                // exists: at most one word is emitted per symbol.
                words[at - 1] = state as u16;
                at -= usize::from(emit);
                state >>= u32::from(emit) * 16;
                let quotient = ((u128::from(state) * u128::from(s.reciprocal)) >> 64) as u32;
                x[lane] = state.wrapping_add(s.bias).wrapping_add(quotient.wrapping_mul(s.complement));
            }
        }
        x.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
        words[at..].iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
        tails.write((words.len() - at) % 2 == 1, out);
    }
}

/// Decodes bodies with one table.
pub struct RansDecoder {
    bits: u32,
    /// Per slot: frequency in bits 0 to 11, symbol in bits 12 to 19, slot - start in bits 20 to 31. The two numbers are
    /// at the ends, where one instruction extracts each.
    lookup: Vec<u32>,
}

impl RansDecoder {
    /// Prepares `table`.
    pub fn new(table: &FrequencyTable) -> Self {
        let mut lookup = Vec::with_capacity(1 << table.bits());
        for (s, &f) in table.frequencies().iter().enumerate() {
            lookup.extend((0..u32::from(f)).map(|k| k << 20 | (s as u32) << 12 | u32::from(f)));
        }
        Self { bits: table.bits(), lookup }
    }

    /// log2 of the slots.
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code))]
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// One entry per slot.
    #[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code))]
    pub fn lookup(&self) -> &[u32] {
        &self.lookup
    }

    /// The reference decoder: fills `symbols` (`[step][lane]`) and returns how the stream ended.
    ///
    /// `body` holds the states and words; any bytes decode to some symbols.
    pub fn decode(&self, body: &[u8], symbols: &mut [u8]) -> Result<Ending> {
        let (mut x, words) = split_body(body)?;
        let mut words = words.iter().map(|w| u16::from_le_bytes(*w));
        let mut used = 0;
        for step in symbols.as_chunks_mut::<LANES>().0 {
            for (symbol, x) in step.iter_mut().zip(&mut x) {
                let e = self.lookup[(*x & ((1 << self.bits) - 1)) as usize];
                *symbol = (e >> 12) as u8;
                *x = (e & 0xFFF).wrapping_mul(*x >> self.bits).wrapping_add(e >> 20);
                if *x < LOW {
                    *x = *x << 16 | u32::from(words.next().unwrap_or(0));
                    used += 1;
                }
            }
        }
        Ok(Ending { states: x, words_used: used })
    }
}

/// States and words of a body.
pub fn split_body(body: &[u8]) -> Result<([u32; LANES], &[[u8; 2]])> {
    if body.len() < STATE_BYTES || !body.len().is_multiple_of(4) {
        return Err(coded!(BAD_CHUNK, "a rans chunk body of {} bytes", body.len()));
    }
    let (states, words) = body.split_at(STATE_BYTES);
    let states = states.as_chunks::<4>().0;
    Ok((std::array::from_fn(|l| u32::from_le_bytes(states[l])), words.as_chunks::<2>().0))
}

/// Copies the words of a body, followed by zeros, so that a block that begins anywhere up to their end can be decoded
/// without bounds checks, and one more vector can be read.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_words(words: &[[u8; 2]], layout: Layout, copy: &mut Vec<u16>) {
    copy.resize(words.len() + symbols_per_block(layout) * LANES + LANES, 0);
    let (stream, pad) = copy.split_at_mut(words.len());
    // x86-64 is little-endian, as the words are.
    bytemuck::cast_slice_mut(stream).copy_from_slice(words.as_flattened());
    pad.fill(0);
}

/// The state of a chunk's decoder at the end of its words.
pub struct Ending {
    /// The lanes' states after the last step.
    pub states: [u32; LANES],
    /// Words taken, including zeros beyond the end.
    pub words_used: usize,
}

impl Ending {
    /// The lanes' tails, and whether the body ends as a valid one does: the format's free check.
    pub fn tails(&self, body: &[u8]) -> ([u32; LANES], Result<()>) {
        // If words were taken beyond the end, nothing is left, and the tails are missing.
        let behind = body.get(STATE_BYTES + 2 * self.words_used..).unwrap_or(&[]);
        let (tails, good) = tails::read(&self.states, behind);
        let verdict =
            if good { Ok(()) } else { Err(coded!(BAD_CHUNK, "a rans stream does not end where its encoder began")) };
        (tails, verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::histogram::Histogram;
    use proptest::prelude::*;

    fn histogram(symbols: &[u8]) -> Histogram {
        let mut h = [0; SYMBOLS];
        symbols.iter().for_each(|&s| h[s as usize] += 1);
        h
    }

    proptest! {
        #[test]
        fn streams_round_trip(
            steps in 0usize..70,
            spread in prop_oneof![Just(1u32), Just(2), Just(16), Just(256)],
            seed: u64,
            bits in 11u32..13,
        ) {
            let mut r = seed | 1;
            let mut next = || { r ^= r << 13; r ^= r >> 7; r ^= r << 17; (r >> 32) as u32 };
            let symbols: Vec<u8> = (0..steps * LANES).map(|_| ((next() % spread) & next() & 0xFF) as u8).collect();
            let tails: [u32; LANES] = std::array::from_fn(|_| next());
            let table = FrequencyTable::from_histogram(bits, &histogram(&symbols));
            let mut body = Vec::new();
            Encoder::new(&table).encode(&symbols, &tails, &mut Vec::new(), &mut body);
            let mut got = vec![0; symbols.len()];
            let end = RansDecoder::new(&table).decode(&body, &mut got).unwrap();
            prop_assert_eq!(&got, &symbols);
            let (got, verdict) = end.tails(&body);
            prop_assert_eq!(got, tails);
            verdict.unwrap();
        }
    }

    #[test]
    fn reciprocals_divide_exactly() {
        for f in 2u32..4096 {
            let reciprocal = u64::MAX / u64::from(f) + 1;
            for x in [0, 1, f - 1, f, f + 1, 12_345_678, u32::MAX / f * f, u32::MAX / f * f - 1, u32::MAX] {
                let q = ((u128::from(x) * u128::from(reciprocal)) >> 64) as u32;
                assert_eq!(q, x / f, "{x} / {f}");
            }
        }
    }

    #[test]
    fn streams_that_end_early_or_late_are_noticed() {
        let symbols: Vec<u8> = (0..LANES * 40).map(|i| (i * i % 251) as u8).collect();
        let table = FrequencyTable::from_histogram(12, &histogram(&symbols));
        let mut body = Vec::new();
        Encoder::new(&table).encode(&symbols, &[0; LANES], &mut Vec::new(), &mut body);
        let decoder = RansDecoder::new(&table);
        let verdict = |body: &[u8]| {
            let mut out = vec![0; symbols.len()];
            decoder.decode(body, &mut out).and_then(|e| e.tails(body).1)
        };
        verdict(&body).unwrap();
        assert!(verdict(&body[..body.len() - 4]).is_err());
        assert!(verdict(&[&body[..], &[0; 4]].concat()).is_err());
        assert!(verdict(&body[..STATE_BYTES - 4]).is_err());
        assert!(verdict(&body[..body.len() - 1]).is_err());
    }
}
