//! K types: 256 weights per block, in groups of 16 or 32 whose scales are quantized, too.

use super::blocks::{half, int};

/// The two-bit code of a weight: each byte holds those of weights that are 32 apart.
fn pair(codes: &[u8], i: usize) -> u8 {
    codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// The four-bit code of a weight of `Q4_K` and `Q5_K`: each byte holds those of weights that are 32 apart.
fn nibble(codes: &[u8], i: usize) -> u8 {
    codes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// Six-bit scale and minimum of a group: 12 bytes hold those of eight groups.
fn scale_and_least(packed: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => {
            let low = packed[group + 4];
            (low & 15 | packed[group - 4] >> 2 & 48, low >> 4 | packed[group] >> 2 & 48)
        }
    }
}

pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, least) = (half(block, 80), half(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let scale = scales[i / 16];
        *value = d * int(scale & 15, 0) * int(pair(codes, i), 0) - least * int(scale >> 4, 0);
    }
}

pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (mask, codes, packed, d) = (&block[..32], &block[32..96], &block[96..108], half(block, 108));
    let scales: [f32; 16] = std::array::from_fn(|group| {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        d * int(low | (packed[8 + group % 4] >> (group / 4 * 2) & 3) << 4, 32)
    });
    for (i, value) in out.iter_mut().enumerate() {
        // A set bit adds nothing; a clear one adds -4.
        let high = if mask[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
        *value = scales[i / 16] * int(pair(codes, i), high);
    }
}

pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin, packed, codes) = (half(block, 0), half(block, 2), &block[4..16], &block[16..]);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, least) = scale_and_least(packed, group);
        let (scale, least) = (d * int(scale, 0), dmin * int(least, 0));
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * int(nibble(codes, group * 32 + i), 0) - least;
        }
    }
}

pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let (mask, codes) = (&block[16..48], &block[48..]);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, least) = scale_and_least(packed, group);
        let (scale, least) = (d * int(scale, 0), dmin * int(least, 0));
        for (i, value) in values.iter_mut().enumerate() {
            let code = nibble(codes, group * 32 + i) | (mask[i] >> group & 1) << 4;
            *value = scale * int(code, 0) - least;
        }
    }
}

pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (i, value) in out.iter_mut().enumerate() {
        let code = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15 | pair(high, i) << 4;
        *value = d * f32::from(scales[i / 16].cast_signed()) * int(code, 32);
    }
}
