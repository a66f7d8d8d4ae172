//! Converts codes and scales to values, as transformers does it: products in float32, rounded once.

use half::{bf16, f16};

use super::pair::{Form, Grid, MX_BYTES, MX_GROUP};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::{AlignedBytes, Dtype};

/// The values of the 16 codes of MXFP4.
const FP4: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Bytes of values that one thread computes at once.
const PIECE: usize = 1 << 20;

/// An element type of the result.
trait Element: bytemuck::Pod + Send {
    fn rounded(value: f32) -> Self;
}

impl Element for f32 {
    fn rounded(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    fn rounded(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    fn rounded(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// An FP8 code as a number.
pub fn fp8(dtype: Dtype, code: u8) -> f32 {
    let small = |exponent: i32, mantissa: u8, bits: i32, bias: i32| {
        let (sign, mantissa) = (if code & 0x80 == 0 { 1.0 } else { -1.0 }, f32::from(mantissa));
        // Exact, because all of them are normal float32 numbers.
        let scale = |power: i32| f32::from_bits(((power + 127) as u32) << 23);
        match exponent {
            0 => sign * mantissa * scale(1 - bias - bits),
            _ => sign * (scale(exponent - bias) + mantissa * scale(exponent - bias - bits)),
        }
    };
    let e4m3 = |bias| small(i32::from(code >> 3 & 15), code & 7, 3, bias);
    match dtype {
        Dtype::F8_E5M2 => f16::from_bits(u16::from(code) << 8).to_f32(),
        Dtype::F8_E4M3 if code & 0x7f == 0x7f => f32::NAN,
        Dtype::F8_E4M3 => e4m3(7),
        // These types have no negative zero; its code is their only NaN.
        _ if code == 0x80 => f32::NAN,
        Dtype::F8_E4M3FNUZ => e4m3(8),
        _ => small(i32::from(code >> 2 & 31), code & 3, 2, 16),
    }
}

/// A power of 2 in the encoding of MX formats.
fn power(code: u8) -> f32 {
    // The smallest is subnormal, and the largest exceeds float32: infinity.
    f32::from_bits(if code == 0 { 1 << 22 } else { u32::from(code) << 23 })
}

/// Scales as numbers.
pub fn scales(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
            .collect(),
        // Stored as plain bytes they have no NaN.
        Dtype::U8 => bytes.iter().map(|&b| power(b)).collect(),
        _ => bytes.iter().map(|&b| if b == 255 { f32::NAN } else { power(b) }).collect(),
    }
}

/// The values of codes, as `F32`, `F16` or `BF16`.
pub fn dequantize(
    (codes, of): (&[u8], Dtype),
    scales: &[f32],
    form: Form,
    dtype: Dtype,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<AlignedBytes> {
    match dtype {
        Dtype::F32 => made::<f32>(codes, of, scales, form, pool, cancel),
        Dtype::F16 => made::<f16>(codes, of, scales, form, pool, cancel),
        _ => made::<bf16>(codes, of, scales, form, pool, cancel),
    }
}

fn made<T: Element>(
    codes: &[u8],
    of: Dtype,
    scales: &[f32],
    form: Form,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<AlignedBytes> {
    let size = std::mem::size_of::<T>();
    match form {
        Form::Fp8(grid) => {
            let mut out = AlignedBytes::zeroed(codes.len() * size)?;
            let table: Vec<f32> = (0..=255).map(|code| fp8(of, code)).collect();
            let rows = (PIECE / (grid.cols * size).max(1)).max(1);
            let pieces = bytemuck::cast_slice_mut::<u8, T>(&mut out).chunks_mut(rows * grid.cols).enumerate();
            pool.each(pieces, cancel, |(i, out)| {
                for (at, out) in out.chunks_mut(grid.cols).enumerate() {
                    let row = i * rows + at;
                    fp8_row(&codes[row * grid.cols..][..grid.cols], &table, scales, &grid, row, out);
                }
                Ok(())
            })?;
            Ok(out)
        }
        Form::Mxfp4 { outputs, groups, .. } => {
            let mut out = AlignedBytes::zeroed(codes.len() * 2 * size)?;
            if out.is_empty() {
                return Ok(out);
            }
            // The result holds, one after the other, all outputs of one group of inputs.
            let pieces = bytemuck::cast_slice_mut::<u8, T>(&mut out).chunks_mut(MX_GROUP * outputs).enumerate();
            pool.each(pieces, cancel, |(i, out)| {
                let (matrix, group) = (i / groups, i % groups);
                for output in 0..outputs {
                    let at = (matrix * outputs + output) * groups + group;
                    for (k, &byte) in codes[at * MX_BYTES..][..MX_BYTES].iter().enumerate() {
                        for (k, code) in [(2 * k, byte & 15), (2 * k + 1, byte >> 4)] {
                            out[k * outputs + output] = T::rounded(FP4[usize::from(code)] * scales[at]);
                        }
                    }
                }
                Ok(())
            })?;
            Ok(out)
        }
    }
}

fn fp8_row<T: Element>(codes: &[u8], table: &[f32], scales: &[f32], grid: &Grid, row: usize, out: &mut [T]) {
    let scales = grid.of_row(scales, row / grid.rows, row % grid.rows);
    let blocks = codes.chunks(grid.block.1).zip(out.chunks_mut(grid.block.1));
    for ((codes, out), &scale) in blocks.zip(scales) {
        out.iter_mut().zip(codes).for_each(|(out, &code)| *out = T::rounded(table[usize::from(code)] * scale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_fp8_are_numbers_of_their_formats() {
        // Checks them by their definitions, independently of the decoder: in ascending order, the values are those of
        // the codes.
        for (dtype, codes, largest, smallest) in [
            (Dtype::F8_E4M3, 0x7e, 448.0, 2f32.powi(-9)),
            (Dtype::F8_E5M2, 0x7b, 57344.0, 2f32.powi(-16)),
            (Dtype::F8_E4M3FNUZ, 0x7f, 240.0, 2f32.powi(-10)),
            (Dtype::F8_E5M2FNUZ, 0x7f, 57344.0, 2f32.powi(-17)),
        ] {
            let found: Vec<f32> = (0..=codes).map(|code| fp8(dtype, code)).collect();
            assert!(found.is_sorted_by(|a, b| a < b), "{dtype}");
            assert_eq!((found[0], found[1], found[usize::from(codes)]), (0.0, smallest, largest), "{dtype}");
            let finite = (1..=codes).all(|code| fp8(dtype, code | 0x80) == -fp8(dtype, code));
            assert!(finite, "{dtype}");
            // With few bits, each is a multiple of the smallest.
            assert!(found.iter().all(|f| (f / smallest).fract() == 0.0), "{dtype}");
        }
        let nan = |dtype| (0..=255).filter(|&code| fp8(dtype, code).is_nan()).collect::<Vec<u8>>();
        assert_eq!(nan(Dtype::F8_E4M3), [0x7f, 0xff]);
        assert_eq!(nan(Dtype::F8_E5M2), [0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff]);
        assert_eq!(nan(Dtype::F8_E4M3FNUZ), [0x80]);
        assert_eq!(nan(Dtype::F8_E5M2FNUZ), [0x80]);
        assert!(fp8(Dtype::F8_E4M3, 0x80).is_sign_negative() && fp8(Dtype::F8_E5M2, 0x7c) == f32::INFINITY);
        assert_eq!(fp8(Dtype::F8_E4M3, 0x3c), 1.5);
        assert_eq!(fp8(Dtype::F8_E4M3FNUZ, 0xc2), -1.25);
        assert_eq!(fp8(Dtype::F8_E5M2FNUZ, 0x45), 2.5);
    }

    #[test]
    fn scales_of_all_dtypes_are_numbers() {
        assert_eq!(scales(Dtype::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(scales(Dtype::F64, &0.1f64.to_le_bytes()), [0.1]);
        assert_eq!(scales(Dtype::BF16, &bf16::from_f32(0.375).to_le_bytes()), [0.375]);
        assert_eq!(scales(Dtype::F16, &f16::from_f32(-3.0).to_le_bytes()), [-3.0]);
        assert_eq!(
            scales(Dtype::U8, &[127, 128, 120, 0, 255]),
            [1.0, 2.0, 1.0 / 128.0, f32::from_bits(1 << 22), f32::INFINITY]
        );
        let exponents = scales(Dtype::F8_E8M0, &[127, 1, 255]);
        assert_eq!(exponents[..2], [1.0, f32::MIN_POSITIVE]);
        assert!(exponents[2].is_nan());
    }

    #[test]
    fn blocks_have_their_scales_and_products_are_rounded_once() {
        let (rows, cols) = (5, 7);
        let grid = Grid { count: 2, rows, cols, block: (2, 3), scale_cols: 3, scales: 9 };
        let codes: Vec<u8> = (0..2 * rows * cols).map(|i| (i * 37 % 251) as u8 & 0x7d).collect();
        let scales: Vec<f32> = (0..18).map(|i| 0.37 + i as f32 * 0.171).collect();
        let pool = Pool::new(Some(2)).unwrap();
        let go = Cancel::new();
        let made = |dtype| dequantize((&codes, Dtype::F8_E4M3), &scales, Form::Fp8(grid), dtype, &pool, &go).unwrap();
        let (single, brain) = (made(Dtype::F32), made(Dtype::BF16));
        let (single, brain): (&[f32], &[bf16]) = (bytemuck::cast_slice(&single), bytemuck::cast_slice(&brain));
        for (i, &code) in codes.iter().enumerate() {
            let (matrix, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
            let want = fp8(Dtype::F8_E4M3, code) * scales[matrix * 9 + row / 2 * 3 + col / 3];
            assert_eq!((single[i], brain[i]), (want, bf16::from_f32(want)), "{i}");
        }
    }

    #[test]
    fn mxfp4_is_stored_with_inputs_as_rows() {
        let (count, outputs, groups) = (2, 3, 2);
        let bytes: Vec<u8> = (0..count * outputs * groups * MX_BYTES).map(|i| (i * 91 % 256) as u8).collect();
        let powers: Vec<u8> = (0..count * outputs * groups).map(|i| 120 + i as u8).collect();
        let form = Form::Mxfp4 { count, outputs, groups };
        let pool = Pool::new(Some(2)).unwrap();
        let scales = scales(Dtype::U8, &powers);
        let made = dequantize((&bytes, Dtype::U8), &scales, form, Dtype::BF16, &pool, &Cancel::new()).unwrap();
        let made: &[bf16] = bytemuck::cast_slice(&made);
        for (matrix, output, input) in
            (0..count).flat_map(|m| (0..outputs).flat_map(move |o| (0..groups * MX_GROUP).map(move |i| (m, o, i))))
        {
            let block = (matrix * outputs + output) * groups + input / MX_GROUP;
            let byte = bytes[block * MX_BYTES + input % MX_GROUP / 2];
            let code = if input % 2 == 0 { byte & 15 } else { byte >> 4 };
            let want = FP4[usize::from(code)] * 2f32.powi(i32::from(powers[block]) - 127);
            let at = (matrix * groups * MX_GROUP + input) * outputs + output;
            assert_eq!(made[at].to_f32(), want);
        }
    }
}
