//! Ternary weights, `TQ1_0` and `TQ2_0`, and the 4-bit floating-point types `MXFP4` and `NVFP4`.

use super::blocks::{half, int};

/// Twice the values of the 16 codes of E2M1; scales are halved to compensate.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    // Five weights per byte, as the base-3 digits of a fraction of 256: the first digit is the highest.
    let digit = |byte: u8, power: u8| {
        let rest = byte.wrapping_mul([1, 3, 9, 27, 81][usize::from(power)]);
        d * int(((u16::from(rest) * 3) >> 8) as u8, 1)
    };
    for (i, value) in out.iter_mut().enumerate() {
        *value = match i {
            0..160 => digit(block[i % 32], (i / 32) as u8),
            160..240 => digit(block[32 + i % 16], ((i - 160) / 16) as u8),
            _ => digit(block[48 + i % 4], ((i - 240) / 4) as u8),
        };
    }
}

pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * int(block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, 1);
    }
}

pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half of two to the power of the byte minus 127, by its bits; the smallest two are subnormal.
    let d = f32::from_bits(match block[0] {
        e @ 0..2 => 0x0020_0000 << e,
        e => u32::from(e - 1) << 23,
    });
    for (i, value) in out.iter_mut().enumerate() {
        let code = block[1 + i % 16] >> (i / 16 * 4) & 15;
        *value = d * f32::from(E2M1[usize::from(code)]);
    }
}

/// Half the value of an unsigned E4M3 scale. The sign bit is ignored, and NaN is zero.
fn e4m3_half(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    match (code, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * f32::from_bits((127 - 10) << 23),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 127 - 8) << 23),
    }
}

pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let scales: [f32; 4] = std::array::from_fn(|group| e4m3_half(block[group]));
    for (i, value) in out.iter_mut().enumerate() {
        let code = block[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15;
        *value = scales[i / 16] * f32::from(E2M1[usize::from(code)]);
    }
}
