//! Layout `pair`: splitting symbols into a coded high part and the side plane. `FORMAT.md` section 3.

/// The sign bits of the four elements in a u32.
const SIGNS: u32 = 0x8080_8080;

/// Magnitude with the sign folded away: 0 to 127.
#[inline(always)]
pub fn fold(q: i8) -> u8 {
    (q ^ (q >> 7)) as u8
}

/// The element with the given high part, and with the sign and low bits of `q`, which symbols do not hold.
pub fn with_high(high: u8, q: i8, shift: u32) -> i8 {
    let folded = high << shift | fold(q) & ((1 << shift) - 1);
    if q < 0 { !(folded as i8) } else { folded as i8 }
}

/// Mask of the low `shift` bits of each byte.
#[inline(always)]
pub const fn low_mask(shift: u32) -> u32 {
    ((1 << shift) - 1) * 0x0101_0101
}

/// Four elements taken apart: their two coded symbols (in bytes 0 and 2), and their signs and low bits (`A_k` of
/// `FORMAT.md` section 3).
#[inline(always)]
pub fn split(elements: u32, shift: u32) -> (u32, u32) {
    let sign = elements & SIGNS;
    // Spread the sign over its byte to fold the element: q ^ (q >> 7).
    let folded = elements ^ ((sign >> 7) * 0xFF);
    let high = (folded >> shift) & ((0x7F >> shift) * 0x0101_0101);
    // Bytes of 16 or more become 15: adding 0x70 carries into their top bit.
    let large = (high + 0x7070_7070) & SIGNS;
    let high = (high | ((large >> 7) * 0xFF)) & 0x0F0F_0F0F;
    (high | high >> 4, sign | (folded & low_mask(shift)))
}

/// The side words of a lane and block from its eight words of signs and low bits. `FORMAT.md` section 3 has the table;
/// `shift + 1` words are used, the others stay 0.
#[inline(always)]
pub fn pack_side(a: &[u32; 8], shift: u32) -> [u32; 4] {
    let low = low_mask(shift);
    let mut s = [0u32; 4];
    for (k, &a) in a.iter().enumerate() {
        let k32 = k as u32;
        match shift {
            0 => s[0] |= a.rotate_right(k32),
            1 => s[k / 4] |= a.rotate_right(2 * (k32 % 4)),
            2 => {
                s[0] |= (a & SIGNS).rotate_right(k32);
                s[1 + k / 4] |= (a & low).rotate_right(2 * (k32 % 4));
            }
            _ => s[k / 2] |= a.rotate_right(4 * (k32 % 2)),
        }
    }
    s
}

/// The position of the signs and low bits of word `k` of a lane and block: the side word, and the left rotation that
/// brings them into place. The inverse of [`pack_side`].
#[inline(always)]
pub fn side_places(shift: u32, k: usize) -> [(usize, u32); 2] {
    let k32 = k as u32;
    match shift {
        0 => [(0, k32); 2],
        1 => [(k / 4, 2 * (k32 % 4)); 2],
        2 => [(0, k32), (1 + k / 4, 2 * (k32 % 4))],
        _ => [(k / 2, 4 * (k32 % 2)); 2],
    }
}

/// Four elements from two coded symbols, the word that has their signs in place, and the one that has their low bits.
#[inline(always)]
pub fn join(s0: u8, s1: u8, sign: u32, low: u32, shift: u32) -> u32 {
    let both = u32::from(s0) | u32::from(s1) << 16;
    let high = (both | both << 4) & 0x0F0F_0F0F;
    let v = high << shift | (low & low_mask(shift));
    v ^ (((sign & SIGNS) >> 7) * 0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn side_and_high_parts_restore_every_element(q in prop::array::uniform32(any::<i8>()), shift in 0u32..4) {
            let words: [u32; 8] = std::array::from_fn(|k| {
                u32::from_le_bytes(std::array::from_fn(|b| q[4 * k + b] as u8))
            });
            let side = pack_side(&words.map(|w| split(w, shift).1), shift);
            prop_assert!(side[shift as usize + 1..].iter().all(|&w| w == 0));
            for k in 0..8 {
                let high = |b: usize| (fold(q[4 * k + b]) >> shift).min(15);
                let (s0, s1) = (high(0) | high(1) << 4, high(2) | high(3) << 4);
                let symbols = split(words[k], shift).0;
                prop_assert_eq!((symbols as u8, (symbols >> 16) as u8), (s0, s1));
                let [sign, low] = side_places(shift, k).map(|(word, left)| side[word].rotate_left(left));
                let got = join(s0, s1, sign, low, shift).to_le_bytes();
                for b in 0..4 {
                    if fold(q[4 * k + b]) >> shift <= 15 {
                        prop_assert_eq!(got[b] as i8, q[4 * k + b]);
                    }
                }
            }
        }
    }
}
