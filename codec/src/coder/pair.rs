//! Layout `pair`: splitting symbols into a coded high part and the side plane. `FORMAT.md` section 3.

/// Where a u32 of four elements keeps its low `s` bits and its signs.
const SIGNS: u32 = 0x8080_8080;

/// Magnitude with the sign folded away: 0 to 127.
#[inline(always)]
pub fn fold(q: i8) -> u8 {
    (q ^ (q >> 7)) as u8
}

/// Mask of the low `shift` bits of each byte.
#[inline(always)]
pub const fn low_mask(shift: u32) -> u32 {
    ((1 << shift) - 1) * 0x0101_0101
}

/// The side words of a lane and block, from its eight words of four elements each. `FORMAT.md` section 3 has the
/// table; `shift + 1` words are returned, the others stay 0.
#[inline(always)]
pub fn pack_side(elements: &[u32; 8], shift: u32) -> [u32; 4] {
    let low = low_mask(shift);
    let a = elements.map(|e| {
        let sign = e & SIGNS;
        // Spread the sign over its byte to fold the element: q ^ (q >> 7).
        let folded = e ^ ((sign >> 7) * 0x7F);
        sign | (folded & low)
    });
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

/// Sign (bit 7) and low bits of word `k` of a lane and block: the inverse of [`pack_side`].
#[inline(always)]
pub fn unpack_side(side: &[u32; 4], shift: u32, k: usize) -> u32 {
    let low = low_mask(shift);
    let k32 = k as u32;
    match shift {
        0 => side[0].rotate_left(k32) & SIGNS,
        1 => side[k / 4].rotate_left(2 * (k32 % 4)) & (SIGNS | low),
        2 => (side[0].rotate_left(k32) & SIGNS) | (side[1 + k / 4].rotate_left(2 * (k32 % 4)) & low),
        _ => side[k / 2].rotate_left(4 * (k32 % 2)) & (SIGNS | low),
    }
}

/// Four elements from two coded symbols and their sign and low bits.
#[inline(always)]
pub fn join(s0: u8, s1: u8, side: u32, shift: u32) -> u32 {
    let (s0, s1) = (u32::from(s0), u32::from(s1));
    let high = (s0 & 15) | (s0 >> 4) << 8 | (s1 & 15) << 16 | (s1 >> 4) << 24;
    let sign = side & SIGNS;
    let v = high << shift | (side & !SIGNS);
    v ^ ((sign >> 7) * 0xFF)
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
            let side = pack_side(&words, shift);
            prop_assert!(side[shift as usize + 1..].iter().all(|&w| w == 0));
            for k in 0..8 {
                let high = |b: usize| (fold(q[4 * k + b]) >> shift).min(15);
                let (s0, s1) = (high(0) | high(1) << 4, high(2) | high(3) << 4);
                let got = join(s0, s1, unpack_side(&side, shift, k), shift).to_le_bytes();
                for b in 0..4 {
                    if fold(q[4 * k + b]) >> shift <= 15 {
                        prop_assert_eq!(got[b] as i8, q[4 * k + b]);
                    }
                }
            }
        }
    }
}
