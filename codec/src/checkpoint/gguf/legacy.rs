//! Types with 32 weights per block: `Q4_0` to `Q8_0`, and `IQ4_NL`, which has the layout of `Q4_0`.

use super::blocks::{half, int};

/// The values of the 16 codes of `IQ4_NL` and `IQ4_XS`: steps are finer near zero.
pub(super) const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The two codes of each of 16 bytes: low nibbles first, then high ones.
fn halves(codes: &[u8], i: usize) -> u8 {
    let byte = codes[i % 16];
    if i < 16 { byte & 15 } else { byte >> 4 }
}

/// The five-bit code of a weight: four bits from the codes, and one from a mask.
fn five(mask: &[u8], codes: &[u8], i: usize) -> u8 {
    halves(codes, i) | (mask[i / 8] >> (i % 8) & 1) << 4
}

pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * int(halves(&block[2..], i), 8);
    }
}

pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, least) = (half(block, 0), half(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * int(halves(&block[4..], i), 0) + least;
    }
}

pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * int(five(&block[2..6], &block[6..], i), 16);
    }
}

pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, least) = (half(block, 0), half(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * int(five(&block[4..8], &block[8..], i), 0) + least;
    }
}

pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (value, code) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(code.cast_signed());
    }
}

pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * f32::from(UNEVEN[usize::from(halves(&block[2..], i))]);
    }
}
