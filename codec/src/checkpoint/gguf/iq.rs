//! IQ types: 256 weights per block. All but `IQ4_XS` code eight or four weights at once, by an index into a grid of the
//! points that occur, with separate signs.

use super::blocks::{half, int};
use super::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::legacy::UNEVEN;

/// Magnitudes of the 2-bit types; no point has the fourth code.
const IQ2: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
/// Magnitudes of `IQ3_XXS`.
const IQ3: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// The shift of the points of the 1-bit types.
const DELTA: f32 = 0.125;

fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The sign given by a bit of a mask.
fn sign(mask: u8, bit: usize) -> f32 {
    if mask >> bit & 1 == 0 { 1.0 } else { -1.0 }
}

/// Eight signs from seven bits: the number of negative ones is even.
fn even(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// Eight weights of a 2-bit type.
fn eight(out: &mut [f32], scale: f32, point: u16, signs: u8) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * IQ2[usize::from(point >> (2 * i) & 3)] * sign(signs, i);
    }
}

/// The three-bit code of one weight of a point of four.
fn three(point: u16, i: usize) -> usize {
    usize::from(point >> (4 * i) & 7)
}

pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let places = &block[2 + 8 * group..];
        let more = word(places, 4);
        let scale = d * (0.5 + (more >> 28) as f32) * 0.25;
        for (l, values) in values.chunks_mut(8).enumerate() {
            eight(values, scale, IQ2_XXS[usize::from(places[l])], even(more >> (7 * l)));
        }
    }
}

pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, values) in out.chunks_mut(8).enumerate() {
        let code = short(block, 2 + 2 * n);
        let scale = d * (0.5 + int(block[66 + n / 4] >> (n % 4 / 2 * 4) & 15, 0)) * 0.25;
        eight(values, scale, IQ2_XS[usize::from(code & 511)], even(u32::from(code >> 9)));
    }
}

pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (places, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..]);
    for (n, values) in out.chunks_mut(8).enumerate() {
        let place = usize::from(places[n]) | usize::from(high[n / 4] >> (n % 4 * 2) & 3) << 8;
        let scale = d * (0.5 + int(scales[n / 4] >> (n % 4 / 2 * 4) & 15, 0)) * 0.25;
        eight(values, scale, IQ2_S[place], signs[n]);
    }
}

pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let places = &block[2..66];
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let more = word(block, 66 + 4 * group);
        let scale = d * (0.5 + (more >> 28) as f32) * 0.5;
        for (i, value) in values.iter_mut().enumerate() {
            let point = IQ3_XXS[usize::from(places[group * 8 + i / 4])];
            *value = scale * IQ3[three(point, i % 4)] * sign(even(more >> (7 * (i / 8))), i % 8);
        }
    }
}

pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (places, high, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..]);
    for (n, values) in out.chunks_mut(4).enumerate() {
        let place = usize::from(places[n]) | usize::from(high[n / 8] >> (n % 8) & 1) << 8;
        let scale = d * int(1 + 2 * (scales[n / 16] >> (n % 16 / 8 * 4) & 15), 0);
        for (i, value) in values.iter_mut().enumerate() {
            // Magnitudes are odd numbers.
            let magnitude = (1 + 2 * three(IQ3_S[place], i)) as f32;
            *value = scale * magnitude * sign(signs[n / 2], n % 2 * 4 + i);
        }
    }
}

/// Eight weights of a 1-bit type: -1, 0 or 1, each shifted.
fn ternary(out: &mut [f32], scale: f32, place: usize, shift: f32) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * (int((IQ1[place] >> (2 * i) & 3) as u8, 1) + shift);
    }
}

pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, values) in out.chunks_mut(8).enumerate() {
        let more = short(block, 34 + n / 4 * 2);
        let scale = d * f32::from(2 * (more >> 12 & 7) + 1);
        let place = usize::from(block[2 + n]) | usize::from(more >> (3 * (n % 4)) & 7) << 8;
        ternary(values, scale, place, if more & 0x8000 == 0 { DELTA } else { -DELTA });
    }
}

pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|i| short(block, 48 + 2 * i));
    // The block's scale is in the top four bits of the four words of scales.
    let d = scales.iter().enumerate().fold(0, |d, (i, word)| d | word >> 12 << (4 * i));
    let d = half::f16::from_bits(d).to_f32();
    for (n, values) in out.chunks_mut(8).enumerate() {
        let scale = d * f32::from(2 * (scales[n / 8] >> (n % 8 / 2 * 3) & 7) + 1);
        let more = block[32 + n / 2] >> (n % 2 * 4);
        let place = usize::from(block[n]) | usize::from(more & 7) << 8;
        ternary(values, scale, place, if more & 8 == 0 { DELTA } else { -DELTA });
    }
}

pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high, low, codes) = (half(block, 0), short(block, 2), &block[4..8], &block[8..]);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let six = low[group / 2] >> (group % 2 * 4) & 15 | ((high >> (2 * group) & 3) as u8) << 4;
        let scale = d * int(six, 32);
        for (i, value) in values.iter_mut().enumerate() {
            let code = codes[group * 16 + i % 16] >> (i / 16 * 4) & 15;
            *value = scale * f32::from(UNEVEN[usize::from(code)]);
        }
    }
}
