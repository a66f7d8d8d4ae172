//! Coder `huffman`: a canonical prefix code, one bit stream per lane. `FORMAT.md` section 7.

use super::LANES;
use super::table::{CodeTable, SYMBOLS};
use crate::error::{Error, Result};

/// Bytes of the lanes' offsets at the start of a body.
pub const OFFSET_BYTES: usize = LANES * 2;
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

    /// Appends the body for `symbols` (`[step][lane]`; each must be in the table), or nothing and `false` where a
    /// lane's offset does not fit 16 bits.
    pub fn encode(&self, symbols: &[u8], out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        out.resize(begin + OFFSET_BYTES, 0);
        let (mut window, mut filled) = (0u64, LEAD);
        let mut written = 0usize;
        let steps = symbols.as_chunks::<LANES>().0;
        for lane in 0..LANES {
            let Ok(offset) = u16::try_from(written * 32 + filled - LEAD) else {
                out.truncate(begin);
                return false;
            };
            out[begin + 2 * lane..][..2].copy_from_slice(&offset.to_le_bytes());
            for step in steps {
                let code = self.codes[step[lane] as usize];
                window |= u64::from(code & 0xFFFF) << filled;
                filled += (code >> 16) as usize;
                if filled >= 32 {
                    out.extend_from_slice(&(window as u32).to_le_bytes());
                    window >>= 32;
                    filled -= 32;
                    written += 1;
                }
            }
        }
        if filled > 0 {
            out.extend_from_slice(&(window as u32).to_le_bytes());
        }
        true
    }
}

/// Decodes bodies with one table.
pub struct Decoder {
    /// Symbol and length for the next [`INDEX_BITS`] bits, whatever the longest code.
    lookup: Box<[u16; 1 << INDEX_BITS]>,
}

/// Longest code of any table, so that an index into the look-up needs no check.
const INDEX_BITS: u32 = 12;

/// Where the codes of a lane begin and end, in bits from the start of the words.
fn lane_bits(offsets: &[[u8; 2]], lane: usize) -> usize {
    usize::from(u16::from_le_bytes(offsets[lane])) + LEAD
}

impl Decoder {
    /// Prepares `table`.
    pub fn new(table: &CodeTable) -> Self {
        let (entries, mask) = (table.lookup(), (1 << table.bits()) - 1);
        Self { lookup: Box::new(std::array::from_fn(|i| entries[i & mask])) }
    }

    /// The reference decoder: fills `symbols` (`[step][lane]`), and returns the bit at which each lane ended.
    pub fn decode_reference(&self, body: &[u8], symbols: &mut [u8]) -> Result<[usize; LANES]> {
        let (offsets, bits) = split_body(body)?;
        let mask = self.lookup.len() - 1;
        let steps = symbols.as_chunks_mut::<LANES>().0;
        Ok(std::array::from_fn(|lane| {
            let mut at = lane_bits(offsets, lane);
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
        let (offsets, bits) = split_body(body)?;
        let steps = symbols.as_chunks_mut::<LANES>().0;
        let mut ends = [0; LANES];
        for lane in (0..LANES).step_by(GROUP) {
            let mut at: [usize; GROUP] = std::array::from_fn(|i| lane_bits(offsets, lane + i));
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

/// Offsets and bits of a body.
fn split_body(body: &[u8]) -> Result<(&[[u8; 2]], &[u8])> {
    if body.len() < OFFSET_BYTES || !body.len().is_multiple_of(4) {
        return Err(Error::corrupt(format!("a huffman chunk body of {} bytes", body.len())));
    }
    let (offsets, bits) = body.split_at(OFFSET_BYTES);
    Ok((offsets.as_chunks::<2>().0, bits))
}

/// The free check of the format: each lane ends where the next begins, and the last one in the last word.
pub fn check_ends(body: &[u8], ends: &[usize; LANES]) -> Result<()> {
    let (offsets, bits) = split_body(body)?;
    let last = ends[LANES - 1];
    let joined = (1..LANES).all(|l| ends[l - 1] == lane_bits(offsets, l)) && lane_bits(offsets, 0) == LEAD;
    let lead_clear = bits.first().is_none_or(|b| b & 3 == 0);
    let tail_clear = last.div_ceil(32) * 4 == bits.len() && load_bits(bits, last) == 0;
    if joined && lead_clear && tail_clear {
        return Ok(());
    }
    Err(Error::corrupt("a lane of a huffman stream does not end where the next one begins"))
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

    fn decode_both(d: &Decoder, body: &[u8], n: usize) -> (Vec<u8>, [usize; LANES]) {
        let (mut a, mut b) = (vec![0; n], vec![1; n]);
        let (ends, fast) = (d.decode_reference(body, &mut a).unwrap(), d.decode(body, &mut b).unwrap());
        assert_eq!(a, b);
        assert_eq!(ends, fast);
        (a, ends)
    }

    proptest! {
        #[test]
        fn streams_round_trip(symbols in prop::collection::vec(any::<u8>(), 0..2000), keep in 0u8..=255, bits in 11u32..13) {
            let mut symbols: Vec<u8> = symbols.iter().map(|s| s & keep).collect();
            symbols.truncate(symbols.len() / LANES * LANES);
            let table = table_of(&symbols, bits);
            let mut body = Vec::new();
            prop_assert!(Encoder::new(&table).encode(&symbols, &mut body));
            let (got, ends) = decode_both(&Decoder::new(&table), &body, symbols.len());
            prop_assert_eq!(got, symbols);
            check_ends(&body, &ends).unwrap();
        }

        #[test]
        fn decoders_agree_on_garbage(body in prop::collection::vec(any::<u8>(), 16..200), steps in 0usize..40) {
            let body: Vec<u8> = body.iter().cycle().take(body.len() * 4).copied().collect();
            let table = table_of(&body, 12);
            decode_both(&Decoder::new(&table), &body, steps * LANES);
        }
    }

    #[test]
    fn offsets_beyond_16_bits_are_declined() {
        let mut symbols = vec![0u8; LANES * 512];
        symbols.iter_mut().enumerate().for_each(|(i, s)| *s = (i % 256) as u8);
        let mut out = vec![1, 2, 3];
        assert!(!Encoder::new(&table_of(&symbols, 12)).encode(&symbols, &mut out));
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn ends_that_do_not_join_are_noticed() {
        let symbols: Vec<u8> = (0..LANES * 20).map(|i| (i * 7 % 64) as u8).collect();
        let table = table_of(&symbols, 12);
        let mut good = Vec::new();
        Encoder::new(&table).encode(&symbols, &mut good);
        for at in [0, 2, 33, OFFSET_BYTES, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= if at == good.len() - 1 { 0x80 } else { 1 };
            let mut out = vec![0; symbols.len()];
            let ends = Decoder::new(&table).decode(&bad, &mut out).unwrap();
            assert!(check_ends(&bad, &ends).is_err(), "byte {at}");
        }
        let mut long = good.clone();
        long.extend([0; 4]);
        let (_, ends) = decode_both(&Decoder::new(&table), &long, symbols.len());
        assert!(check_ends(&long, &ends).is_err());
    }
}
