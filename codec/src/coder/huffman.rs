//! Coder `huffman`: a canonical prefix code with one bit stream per lane, or two in layout `quad`. `FORMAT.md` section
//! 7.

use super::LANES;
use super::quad::{QUADS, Quad, index_of};
use super::table::{CodeTable, QuadTable, SYMBOLS};
use crate::error::Result;

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod avx512;

/// Bytes at the start of a body that define the encoding of the lanes' lengths.
const LEAST_BYTES: usize = 4;
/// Unused bits before the first code, which let a kernel keep the next code at bit 2.
const LEAD: usize = 2;

/// A symbol that a code stands for.
pub trait Symbol: Copy + Default + 'static {
    /// Its index in the alphabet.
    fn place(self) -> usize;
    /// The symbol of a lookup-table entry.
    fn of_entry(entry: u32) -> Self;
    /// Writes the symbols of 16 entries, in the order of the vector's lanes.
    ///
    /// # Safety
    /// AVX-512 F must be available, and `to` must have room for 16 symbols.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn store(entries: std::arch::x86_64::__m512i, to: *mut Self);
}

impl Symbol for u8 {
    #[inline(always)]
    fn place(self) -> usize {
        self.into()
    }
    #[inline(always)]
    fn of_entry(entry: u32) -> Self {
        (entry >> SYMBOL_AT) as u8
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(entries: std::arch::x86_64::__m512i, to: *mut Self) {
        // SAFETY: the caller guarantees both.
        unsafe { avx512::store_bytes(entries, to) }
    }
}

impl Symbol for Quad {
    #[inline(always)]
    fn place(self) -> usize {
        index_of(self)
    }
    #[inline(always)]
    fn of_entry(entry: u32) -> Self {
        (entry >> SYMBOL_AT) as Quad
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(entries: std::arch::x86_64::__m512i, to: *mut Self) {
        // SAFETY: the caller guarantees both.
        unsafe { avx512::store_quads(entries, to) }
    }
}

/// Encodes bodies with one table.
pub struct Encoder {
    /// Code in the low half, length in the high half.
    codes: Vec<u32>,
}

impl Encoder {
    /// Prepares `table`.
    pub fn new(table: &CodeTable) -> Self {
        let codes = table.codes();
        Self { codes: (0..SYMBOLS).map(|s| u32::from(codes[s]) | u32::from(table.lengths()[s]) << 16).collect() }
    }

    /// Prepares a table of quads.
    pub fn of_quads(table: &QuadTable) -> Self {
        let mut codes = vec![0; QUADS];
        table
            .codes()
            .for_each(|(quad, length, code)| codes[index_of(quad)] = u32::from(code) | u32::from(length) << 16);
        Self { codes }
    }

    /// Appends the body for `symbols` (`[step][stream]`, at most 4,096 steps; each must be in the table).
    pub fn encode<S: Symbol, const N: usize>(&self, symbols: &[S], out: &mut Vec<u8>) {
        let steps = symbols.as_chunks::<N>().0;
        let mut lengths = [0u32; N];
        for step in steps {
            for stream in 0..N {
                lengths[stream] += self.codes[step[stream].place()] >> 16;
            }
        }
        let unit = put_lengths(&lengths, out);
        let (mut window, mut filled) = (0u64, LEAD);
        let mut put = |bits: u32, n: usize, out: &mut Vec<u8>| {
            window |= u64::from(bits) << filled;
            filled += n;
            while filled >= 32 {
                out.extend_from_slice(&(window as u32).to_le_bytes());
                window >>= 32;
                filled -= 32;
            }
        };
        let least = *lengths.iter().min().expect("there are streams");
        for stream in 0..N {
            for step in steps {
                let code = self.codes[step[stream].place()];
                put(code & 0xFFFF, (code >> 16) as usize, out);
            }
            let padding = (lengths[stream] - least).next_multiple_of(unit) - (lengths[stream] - least);
            put(0, padding as usize, out);
        }
        if filled > 0 {
            out.extend_from_slice(&(window as u32).to_le_bytes());
        }
    }
}

/// Appends the encoding of the streams' lengths in bits and returns its unit: by how much each length exceeds the
/// shortest one is stored in units of so many bits, rounded up.
fn put_lengths<const N: usize>(lengths: &[u32; N], out: &mut Vec<u8>) -> u32 {
    let (least, most) = lengths.iter().fold((u32::MAX, 0), |(a, b), &n| (a.min(n), b.max(n)));
    out.extend_from_slice(&(least as u16).to_le_bytes());
    if N == LANES {
        let wide = most - least > 0xFF;
        out.extend_from_slice(&u16::from(wide).to_le_bytes());
        for n in lengths {
            out.extend_from_slice(&((n - least) as u16).to_le_bytes()[..1 + usize::from(wide)]);
        }
        return 1;
    }
    let log = (0..).find(|log| (most - least).div_ceil(1 << log) <= MOST_UNITS).expect("a shift that leaves nothing");
    out.extend_from_slice(&(log as u16).to_le_bytes());
    let units = |n: u32| (n - least).div_ceil(1 << log) as u8;
    out.extend(lengths.as_chunks::<2>().0.iter().map(|[first, second]| units(*first) | units(*second) << 4));
    1 << log
}

/// The most units by which a stream's length exceeds the shortest one.
const MOST_UNITS: u32 = 15;
/// The largest log2 of a unit's bits; more are never needed.
const MOST_UNIT: u16 = 8;

/// Decodes bodies with one table.
pub struct HuffmanDecoder {
    /// Symbol (from bit [`SYMBOL_AT`] on) and length for the next [`INDEX_BITS`] bits, whatever the longest code.
    lookup: Box<[u32; 1 << INDEX_BITS]>,
}

/// The bit at which the symbol begins in an entry.
const SYMBOL_AT: u32 = 16;

/// The longest code of any table, so that indexing the lookup table needs no check.
const INDEX_BITS: u32 = 12;

impl HuffmanDecoder {
    /// Prepares `table`.
    pub fn new(table: &CodeTable) -> Self {
        let (entries, mask) = (table.lookup(), (1 << table.bits()) - 1);
        let entry = |e: u16| u32::from(e >> 8) << SYMBOL_AT | u32::from(e & 0xFF);
        Self { lookup: Box::new(std::array::from_fn(|i| entry(entries[i & mask]))) }
    }

    /// Prepares a table of quads.
    pub fn of_quads(table: &QuadTable) -> Self {
        let (entries, mask) = (table.lookup(), (1 << table.bits()) - 1);
        Self { lookup: Box::new(std::array::from_fn(|i| entries[i & mask])) }
    }

    /// The reference decoder: fills `symbols` (`[step][stream]`) and returns the bit at which each stream ended.
    pub fn decode_reference<S: Symbol, const N: usize>(&self, body: &[u8], symbols: &mut [S]) -> Result<[usize; N]> {
        let Body { begins, bits, .. } = Body::<N>::new(body)?;
        let mask = self.lookup.len() - 1;
        let steps = symbols.as_chunks_mut::<N>().0;
        Ok(std::array::from_fn(|stream| {
            let mut at = begins[stream];
            for step in steps.iter_mut() {
                // 12 bits at any position lie in three bytes; beyond the end the stream is zeros.
                let byte = |i: usize| usize::from(bits.get(at / 8 + i).copied().unwrap_or(0));
                let next = (byte(0) | byte(1) << 8 | byte(2) << 16) >> (at % 8) & mask;
                let entry = self.lookup[next];
                step[stream] = S::of_entry(entry);
                at += (entry & 0xFF) as usize;
            }
            at
        }))
    }

    /// The fast decoder: four streams at a time, several codes per refill. Equals
    /// [`decode_reference`](Self::decode_reference) on every input.
    pub fn decode<S: Symbol, const N: usize>(&self, body: &[u8], symbols: &mut [S]) -> Result<[usize; N]> {
        const GROUP: usize = 4;
        let Body { begins, bits, .. } = Body::<N>::new(body)?;
        let steps = symbols.as_chunks_mut::<N>().0;
        let mut ends = [0; N];
        for stream in (0..N).step_by(GROUP) {
            let mut at: [usize; GROUP] = std::array::from_fn(|i| begins[stream + i]);
            // Four codes of at most 12 bits fit in the 57 bits that a refill yields at any bit position.
            for four in steps.chunks_mut(4) {
                let mut windows: [u64; GROUP] = std::array::from_fn(|i| load_bits(bits, at[i]));
                for step in four {
                    for i in 0..GROUP {
                        let entry = self.lookup[windows[i] as usize % (1 << INDEX_BITS)];
                        step[stream + i] = S::of_entry(entry);
                        windows[i] >>= entry & 0xFF;
                        at[i] += (entry & 0xFF) as usize;
                    }
                }
            }
            ends[stream..stream + GROUP].copy_from_slice(&at);
        }
        Ok(ends)
    }
}

/// At least 57 bits starting at bit `at`; zeros beyond the end.
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

/// A body taken apart: for each of `N` streams the bits at which it begins and ends (exclusive), counted from the start
/// of the words; and the words.
struct Body<'a, const N: usize> {
    begins: [usize; N],
    ends: [usize; N],
    /// Bits of a unit: a stream ends within its last one.
    unit: usize,
    bits: &'a [u8],
}

impl<'a, const N: usize> Body<'a, N> {
    fn new(body: &'a [u8]) -> Result<Self> {
        let short = || coded!(BAD_CHUNK, "a huffman chunk body of {} bytes", body.len());
        let (head, rest) = body.split_first_chunk::<LEAST_BYTES>().ok_or_else(short)?;
        let [least, width_code] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
        let quads = N != LANES;
        if width_code > if quads { MOST_UNIT } else { 1 } {
            return Err(coded!(BAD_CHUNK, "a huffman chunk whose lengths are stored in way {width_code}"));
        }
        let width = if quads { 1 } else { 1 + usize::from(width_code) };
        let (excess, bits) = rest.split_at_checked(LANES * width).ok_or_else(short)?;
        if bits.is_empty() || !bits.len().is_multiple_of(4) {
            return Err(short());
        }
        let (mut begins, mut ends, mut at) = ([0; N], [0; N], LEAD);
        for stream in 0..N {
            let more = match (quads, width) {
                (true, _) => usize::from(excess[stream / 2] >> (stream % 2 * 4) & 15) << width_code,
                (_, 1) => usize::from(excess[stream]),
                _ => usize::from(u16::from_le_bytes([excess[2 * stream], excess[2 * stream + 1]])),
            };
            begins[stream] = at;
            at += usize::from(least) + more;
            ends[stream] = at;
        }
        Ok(Self { begins, ends, unit: if quads { 1 << width_code } else { 1 }, bits })
    }
}

/// The format's free check: each stream ends at the beginning of the next one, or less than a unit before it, and the
/// last stream ends in the last word.
pub fn check_ends<const N: usize>(body: &[u8], ends_read: &[usize; N]) -> Result<()> {
    let Body { ends, unit, bits, .. } = Body::<N>::new(body)?;
    let joined =
        ends.iter().zip(ends_read).all(|(end, ends_read)| end.checked_sub(*ends_read).is_some_and(|rest| rest < unit));
    let last = ends[N - 1];
    let lead_clear = bits.first().is_none_or(|b| b & 3 == 0);
    let tail_clear = last.div_ceil(32) * 4 == bits.len() && load_bits(bits, last) == 0;
    if joined && lead_clear && tail_clear {
        return Ok(());
    }
    Err(coded!(BAD_CHUNK, "a lane of a huffman stream does not have its length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::quad::{STREAMS, quad_at};
    use proptest::prelude::*;

    fn table_of(symbols: &[u8], bits: u32) -> CodeTable {
        let mut h = [0; SYMBOLS];
        symbols.iter().for_each(|&s| h[s as usize] += 1);
        CodeTable::from_histogram(bits, &h)
    }

    fn decode_both<S: Symbol + PartialEq + std::fmt::Debug, const N: usize>(
        d: &HuffmanDecoder,
        body: &[u8],
        n: usize,
    ) -> (Vec<S>, [usize; N]) {
        let (mut a, mut b) = (vec![S::default(); n], vec![S::of_entry(1 << SYMBOL_AT); n]);
        let (ends, fast) = (d.decode_reference(body, &mut a).unwrap(), d.decode(body, &mut b).unwrap());
        assert_eq!(a, b);
        assert_eq!(ends, fast);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if crate::coder::Isa::Avx512.is_available() {
            let mut c = vec![S::of_entry(2 << SYMBOL_AT); n];
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
            Encoder::new(&table).encode::<_, LANES>(&symbols, &mut body);
            let (got, ends) = decode_both::<u8, LANES>(&HuffmanDecoder::new(&table), &body, symbols.len());
            prop_assert_eq!(got, symbols);
            check_ends(&body, &ends).unwrap();
        }

        #[test]
        fn decoders_agree_on_garbage(body in prop::collection::vec(any::<u8>(), 18..200), steps in 0usize..40, wide in 0u8..2, bits in 8u32..13) {
            let mut body: Vec<u8> = body.iter().cycle().take(body.len() * 4).copied().collect();
            body[2..4].copy_from_slice(&[wide, 0]);
            let table = table_of(&body, bits);
            decode_both::<u8, LANES>(&HuffmanDecoder::new(&table), &body, steps * LANES);
        }

        #[test]
        fn streams_of_quads_round_trip(places in prop::collection::vec(0..QUADS, 0..2000), keep in 0..QUADS, bits in 8u32..13) {
            let mut quads: Vec<Quad> = places.iter().map(|p| quad_at(p & keep & 255)).collect();
            quads.truncate(quads.len() / STREAMS * STREAMS);
            let table = QuadTable::from_lengths(bits, (0..256).map(|i| (quad_at(i), 8)));
            let mut body = Vec::new();
            Encoder::of_quads(&table).encode::<_, STREAMS>(&quads, &mut body);
            let (got, ends) = decode_both::<Quad, STREAMS>(&HuffmanDecoder::of_quads(&table), &body, quads.len());
            prop_assert_eq!(got, quads);
            check_ends(&body, &ends).unwrap();
        }

        #[test]
        fn decoders_of_quads_agree_on_garbage(body in prop::collection::vec(any::<u8>(), 18..200), steps in 0usize..40, wide in 0u8..2, bits in 8u32..13) {
            let mut body: Vec<u8> = body.iter().cycle().take(body.len() * 4).copied().collect();
            body[2..4].copy_from_slice(&[wide, 0]);
            let lengths = (1..bits as u8).chain([bits as u8 - 1]);
            let codes = lengths.enumerate().map(|(i, length)| (quad_at(i * 97), length));
            decode_both::<Quad, STREAMS>(&HuffmanDecoder::of_quads(&QuadTable::from_lengths(bits, codes)), &body, steps * STREAMS);
        }
    }

    #[test]
    fn lanes_of_very_different_lengths_round_trip() {
        // A symbol with a 1-bit code in all lanes but the last, which has every other symbol.
        let steps = 512;
        let mut symbols = vec![0u8; LANES * steps];
        for (i, s) in symbols.iter_mut().enumerate().filter(|(i, _)| i % LANES == LANES - 1) {
            *s = (i / LANES % 256) as u8;
        }
        let table = table_of(&symbols, 12);
        let mut body = Vec::new();
        Encoder::new(&table).encode::<_, LANES>(&symbols, &mut body);
        assert_eq!(body[2..4], [1, 0]);
        let (got, ends) = decode_both::<u8, LANES>(&HuffmanDecoder::new(&table), &body, symbols.len());
        assert_eq!(got, symbols);
        check_ends(&body, &ends).unwrap();
        body[2] = 2;
        assert!(HuffmanDecoder::new(&table).decode::<_, LANES>(&body, &mut symbols).is_err());
    }

    #[test]
    fn ends_that_do_not_join_are_noticed() {
        let symbols: Vec<u8> = (0..LANES * 20).map(|i| (i * 7 % 64) as u8).collect();
        let table = table_of(&symbols, 12);
        let mut good = Vec::new();
        Encoder::new(&table).encode::<_, LANES>(&symbols, &mut good);
        for at in [0, 4, 33, 36, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= if at == good.len() - 1 { 0x80 } else { 1 };
            let mut out = vec![0u8; symbols.len()];
            let ends = HuffmanDecoder::new(&table).decode::<_, LANES>(&bad, &mut out).unwrap();
            assert!(check_ends(&bad, &ends).is_err(), "byte {at}");
        }
        let mut long = good.clone();
        long.extend([0; 4]);
        let (_, ends) = decode_both::<u8, LANES>(&HuffmanDecoder::new(&table), &long, symbols.len());
        assert!(check_ends(&long, &ends).is_err());
    }
}
