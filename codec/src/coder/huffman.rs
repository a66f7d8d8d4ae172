//! Coder `huffman`: a canonical prefix code, one bit stream per lane. `FORMAT.md` section 7.

use super::LANES;
use super::histogram::SYMBOLS;
use super::table::CodeTable;
use crate::error::{Error, Result};

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod avx512;

/// Bytes at the start of a body that say how the lanes' lengths follow.
const LEAST_BYTES: usize = 4;
/// Unused bits before the first code, which let a kernel keep the next code at bit 2.
const LEAD: usize = 2;

/// Encodes bodies with one table.
pub struct Encoder {
    /// Code in the low half, length in the high half.
    codes: [u32; SYMBOLS],
}

impl Encoder {
    /// Prepares `table`.
    pub fn new(table: &CodeTable) -> Self {
        let codes = table.codes();
        Self { codes: std::array::from_fn(|s| u32::from(codes[s]) | u32::from(table.lengths()[s]) << 16) }
    }

    /// Appends the body for `symbols` (`[step][lane]`, at most 4,096 steps; each must be in the table).
    pub fn encode(&self, symbols: &[u8], out: &mut Vec<u8>) {
        let steps = symbols.as_chunks::<LANES>().0;
        let mut lengths = [0u32; LANES];
        for step in steps {
            for lane in 0..LANES {
                lengths[lane] += self.codes[step[lane] as usize] >> 16;
            }
        }
        let (least, most) = lengths.iter().fold((u32::MAX, 0), |(a, b), &n| (a.min(n), b.max(n)));
        let wide = most - least > 0xFF;
        out.extend_from_slice(&(least as u16).to_le_bytes());
        out.extend_from_slice(&u16::from(wide).to_le_bytes());
        for n in lengths {
            out.extend_from_slice(&((n - least) as u16).to_le_bytes()[..1 + usize::from(wide)]);
        }
        let (mut window, mut filled) = (0u64, LEAD);
        for lane in 0..LANES {
            for step in steps {
                let code = self.codes[step[lane] as usize];
                window |= u64::from(code & 0xFFFF) << filled;
                filled += (code >> 16) as usize;
                if filled >= 32 {
                    out.extend_from_slice(&(window as u32).to_le_bytes());
                    window >>= 32;
                    filled -= 32;
                }
            }
        }
        if filled > 0 {
            out.extend_from_slice(&(window as u32).to_le_bytes());
        }
    }
}

/// Decodes bodies with one table.
pub struct HuffmanDecoder {
    /// Symbol and length for the next [`INDEX_BITS`] bits, whatever the longest code.
    lookup: Box<[u16; 1 << INDEX_BITS]>,
    /// The same, as vectors look it up.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    wide: Box<[u32; 1 << INDEX_BITS]>,
}

/// Longest code of any table, so that an index into the look-up needs no check.
const INDEX_BITS: u32 = 12;

impl HuffmanDecoder {
    /// Prepares `table`.
    pub fn new(table: &CodeTable) -> Self {
        let (entries, mask) = (table.lookup(), (1 << table.bits()) - 1);
        Self {
            lookup: Box::new(std::array::from_fn(|i| entries[i & mask])),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            wide: Box::new(std::array::from_fn(|i| entries[i & mask].into())),
        }
    }

    /// The reference decoder: fills `symbols` (`[step][lane]`), and returns the bit at which each lane ended.
    pub fn decode_reference(&self, body: &[u8], symbols: &mut [u8]) -> Result<[usize; LANES]> {
        let (bounds, bits) = split_body(body)?;
        let mask = self.lookup.len() - 1;
        let steps = symbols.as_chunks_mut::<LANES>().0;
        Ok(std::array::from_fn(|lane| {
            let mut at = bounds[lane];
            for step in steps.iter_mut() {
                // 12 bits at any position lie in three bytes; beyond the end the stream is zeros.
                let byte = |i: usize| usize::from(bits.get(at / 8 + i).copied().unwrap_or(0));
                let next = (byte(0) | byte(1) << 8 | byte(2) << 16) >> (at % 8) & mask;
                let entry = self.lookup[next];
                step[lane] = (entry >> 8) as u8;
                at += usize::from(entry & 0xFF);
            }
            at
        }))
    }

    /// The fast decoder: four lanes at a time, several codes per refill. Equals
    /// [`decode_reference`](Self::decode_reference) on every input.
    pub fn decode(&self, body: &[u8], symbols: &mut [u8]) -> Result<[usize; LANES]> {
        const GROUP: usize = 4;
        let (bounds, bits) = split_body(body)?;
        let steps = symbols.as_chunks_mut::<LANES>().0;
        let mut ends = [0; LANES];
        for lane in (0..LANES).step_by(GROUP) {
            let mut at: [usize; GROUP] = std::array::from_fn(|i| bounds[lane + i]);
            // Four codes of at most 12 bits fit the 57 bits that a refill at any bit position gives.
            for four in steps.chunks_mut(4) {
                let mut windows: [u64; GROUP] = std::array::from_fn(|i| load_bits(bits, at[i]));
                for step in four {
                    for i in 0..GROUP {
                        let entry = self.lookup[windows[i] as usize % (1 << INDEX_BITS)];
                        step[lane + i] = (entry >> 8) as u8;
                        windows[i] >>= entry & 0xFF;
                        at[i] += usize::from(entry & 0xFF);
                    }
                }
            }
            ends[lane..lane + GROUP].copy_from_slice(&at);
        }
        Ok(ends)
    }
}

/// At least 57 bits from bit `at` on; zeros beyond the end.
#[inline(always)]
fn load_bits(bytes: &[u8], at: usize) -> u64 {
    let byte = at / 8;
    let word = match bytes.get(byte..byte + 8) {
        Some(b) => u64::from_le_bytes(b.try_into().expect("eight bytes")),
        None => {
            let rest = bytes.get(byte..).unwrap_or(&[]);
            rest.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b))
        }
    };
    word >> (at % 8)
}

/// Where each lane's codes begin and the last one's end, in bits from the start of the words; and the words.
fn split_body(body: &[u8]) -> Result<([usize; LANES + 1], &[u8])> {
    let short = || Error::corrupt(format!("a huffman chunk body of {} bytes", body.len()));
    let (head, rest) = body.split_first_chunk::<LEAST_BYTES>().ok_or_else(short)?;
    let [least, wide] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
    if wide > 1 {
        return Err(Error::corrupt(format!("a huffman chunk whose lengths are stored in way {wide}")));
    }
    let width = 1 + usize::from(wide);
    let (excess, bits) = rest.split_at_checked(LANES * width).ok_or_else(short)?;
    if bits.is_empty() || !bits.len().is_multiple_of(4) {
        return Err(short());
    }
    let mut bounds = [LEAD; LANES + 1];
    for (lane, excess) in excess.chunks_exact(width).enumerate() {
        let excess = excess.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
        bounds[lane + 1] = bounds[lane] + usize::from(least) + excess;
    }
    Ok((bounds, bits))
}

/// The free check of the format: each lane ends where the next begins, and the last one in the last word.
pub fn check_ends(body: &[u8], ends: &[usize; LANES]) -> Result<()> {
    let (bounds, bits) = split_body(body)?;
    let last = ends[LANES - 1];
    let joined = bounds[1..] == ends[..];
    let lead_clear = bits.first().is_none_or(|b| b & 3 == 0);
    let tail_clear = last.div_ceil(32) * 4 == bits.len() && load_bits(bits, last) == 0;
    if joined && lead_clear && tail_clear {
        return Ok(());
    }
    Err(Error::corrupt("a lane of a huffman stream does not have its length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table_of(symbols: &[u8], bits: u32) -> CodeTable {
        let mut h = [0; SYMBOLS];
        symbols.iter().for_each(|&s| h[s as usize] += 1);
        CodeTable::from_histogram(bits, &h)
    }

    fn decode_both(d: &HuffmanDecoder, body: &[u8], n: usize) -> (Vec<u8>, [usize; LANES]) {
        let (mut a, mut b) = (vec![0; n], vec![1; n]);
        let (ends, fast) = (d.decode_reference(body, &mut a).unwrap(), d.decode(body, &mut b).unwrap());
        assert_eq!(a, b);
        assert_eq!(ends, fast);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if crate::coder::Isa::Avx512.is_available() {
            let mut c = vec![2; n];
            assert_eq!(super::avx512::decode(d, body, &mut c, &mut vec![9; 7]).unwrap(), ends);
            assert_eq!(a, c);
        }
        (a, ends)
    }

    proptest! {
        #[test]
        fn streams_round_trip(symbols in prop::collection::vec(any::<u8>(), 0..2000), keep in 0u8..=255, bits in 8u32..13) {
            let mut symbols: Vec<u8> = symbols.iter().map(|s| s & keep).collect();
            symbols.truncate(symbols.len() / LANES * LANES);
            let table = table_of(&symbols, bits);
            let mut body = Vec::new();
            Encoder::new(&table).encode(&symbols, &mut body);
            let (got, ends) = decode_both(&HuffmanDecoder::new(&table), &body, symbols.len());
            prop_assert_eq!(got, symbols);
            check_ends(&body, &ends).unwrap();
        }

        #[test]
        fn decoders_agree_on_garbage(body in prop::collection::vec(any::<u8>(), 18..200), steps in 0usize..40, wide in 0u8..2, bits in 8u32..13) {
            let mut body: Vec<u8> = body.iter().cycle().take(body.len() * 4).copied().collect();
            body[2..4].copy_from_slice(&[wide, 0]);
            let table = table_of(&body, bits);
            decode_both(&HuffmanDecoder::new(&table), &body, steps * LANES);
        }
    }

    #[test]
    fn lanes_of_very_different_lengths_round_trip() {
        // One symbol that takes a bit in all lanes but the last, and every other symbol there.
        let steps = 512;
        let mut symbols = vec![0u8; LANES * steps];
        for (i, s) in symbols.iter_mut().enumerate().filter(|(i, _)| i % LANES == LANES - 1) {
            *s = (i / LANES % 256) as u8;
        }
        let table = table_of(&symbols, 12);
        let mut body = Vec::new();
        Encoder::new(&table).encode(&symbols, &mut body);
        assert_eq!(body[2..4], [1, 0]);
        let (got, ends) = decode_both(&HuffmanDecoder::new(&table), &body, symbols.len());
        assert_eq!(got, symbols);
        check_ends(&body, &ends).unwrap();
        body[2] = 2;
        assert!(HuffmanDecoder::new(&table).decode(&body, &mut symbols).is_err());
    }

    #[test]
    fn ends_that_do_not_join_are_noticed() {
        let symbols: Vec<u8> = (0..LANES * 20).map(|i| (i * 7 % 64) as u8).collect();
        let table = table_of(&symbols, 12);
        let mut good = Vec::new();
        Encoder::new(&table).encode(&symbols, &mut good);
        for at in [0, 4, 33, 36, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= if at == good.len() - 1 { 0x80 } else { 1 };
            let mut out = vec![0; symbols.len()];
            let ends = HuffmanDecoder::new(&table).decode(&bad, &mut out).unwrap();
            assert!(check_ends(&bad, &ends).is_err(), "byte {at}");
        }
        let mut long = good.clone();
        long.extend([0; 4]);
        let (_, ends) = decode_both(&HuffmanDecoder::new(&table), &long, symbols.len());
        assert!(check_ends(&long, &ends).is_err());
    }
}
