//! Scheme `int8`: symbols in [-127, 127] and one f32 scale per row, block or tensor.
//!
//! `scale = max|w| / 127`, `q = round_half_even(w / scale)`, `w' = q * scale`, all in f32 arithmetic, which NumPy and
//! torch reproduce bit for bit. A scale is 1 where all weights are 0, at least the smallest normal f32, and small
//! enough for `127 * scale` to be finite.

pub(super) mod granularity;
mod quantize;
mod values;
mod weight;

pub use granularity::{DEFAULT_BLOCK, Granularity};
pub(crate) use quantize::NOT_FINITE_ADVICE;
pub(super) use quantize::symbols;
pub use quantize::{MAX_SYMBOL, Quantized, quantize, quantize_with, scale_of};
pub use values::dequantize_run;
pub(crate) use values::{Scales, Suspects};
pub use weight::Weight;

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use ndarray::{Array2, array};
    use proptest::prelude::*;

    /// The definition, transcribed literally.
    fn reference(weights: &[f32]) -> (Vec<i8>, f32) {
        let largest = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
        let mut scale = if largest == 0.0 { 1.0 } else { (largest / 127.0).max(f32::MIN_POSITIVE) };
        if scale * 127.0 == f32::INFINITY {
            scale = f32::from_bits(scale.to_bits() - 1);
        }
        (weights.iter().map(|w| (w / scale).round_ties_even().clamp(-127.0, 127.0) as i8).collect(), scale)
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            bits in prop::collection::vec(prop_oneof![any::<u32>(), 0u32..0x0100_0000, 0x3F00_0000u32..0x4000_0000], 1..200),
            cols in 1usize..40,
        ) {
            let data: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).filter(|f| f.is_finite()).collect();
            let rows = data.len() / cols;
            let w = Array2::from_shape_vec((rows, cols), data[..rows * cols].to_vec()).unwrap();
            let q = quantize(w.view(), Granularity::Row).unwrap();
            for r in 0..rows {
                let (symbols, scale) = reference(w.row(r).as_slice().unwrap());
                prop_assert_eq!(q.symbols.row(r).to_vec(), symbols);
                prop_assert_eq!(q.scales[r], scale);
            }
            let q = quantize(w.view(), Granularity::Block(16)).unwrap();
            let blocks: Vec<_> = w.outer_iter().flat_map(|r| r.to_vec().chunks(16).map(reference).collect::<Vec<_>>()).collect();
            prop_assert_eq!(q.scales.to_vec(), blocks.iter().map(|b| b.1).collect::<Vec<_>>());
            prop_assert_eq!(q.symbols.iter().copied().collect::<Vec<_>>(), blocks.iter().flat_map(|b| b.0.clone()).collect::<Vec<_>>());
            let q = quantize(w.view(), Granularity::Tensor).unwrap();
            let (symbols, scale) = reference(w.as_slice().unwrap());
            prop_assert_eq!(q.symbols.iter().copied().collect::<Vec<_>>(), symbols);
            prop_assert!(rows == 0 || q.scales[0] == scale);
        }

        #[test]
        fn bf16_rounds_like_half(bits: u32) {
            let f = f32::from_bits(bits);
            prop_assert_eq!(<bf16 as Weight>::from_f32(f).to_bits(), bf16::from_f32(f).to_bits());
            let exact = <bf16 as Weight>::to_f32(bf16::from_f32(f));
            prop_assert_eq!(exact.to_bits(), bf16::from_f32(f).to_f32().to_bits());
        }
    }

    #[test]
    fn any_memory_order_gives_the_same_symbols() {
        let w = Array2::from_shape_fn((7, 30), |(r, c)| (r as f32 - 3.0) * 0.3 + (c as f32).sin());
        let q = quantize(w.view(), Granularity::Row).unwrap();
        let transposed = w.t().as_standard_layout().to_owned();
        assert_eq!(quantize(transposed.t(), Granularity::Row).unwrap(), q);
        let wide = Array2::from_shape_fn((7, 60), |(r, c)| if c % 2 == 0 { w[[r, c / 2]] } else { f32::NAN });
        assert_eq!(quantize(wide.slice(ndarray::s![.., ..;2]), Granularity::Row).unwrap(), q);
    }

    #[test]
    fn halves_round_to_even_and_tiny_rows_get_the_smallest_normal_scale() {
        let q = quantize(array![[127.0f32, 0.5, 1.5, 2.5, -0.5, -1.5]].view(), Granularity::Row).unwrap();
        assert_eq!(q.symbols, array![[127, 0, 2, 2, 0, -2]]);
        let tiny = f32::from_bits(40);
        let q = quantize(array![[tiny, -tiny]].view(), Granularity::Row).unwrap();
        assert_eq!((q.scales[0], q.symbols), (f32::MIN_POSITIVE, array![[0, 0]]));
        assert_eq!(quantize(array![[-0.0f32]].view(), Granularity::Row).unwrap().scales[0], 1.0);
    }

    #[test]
    fn what_is_not_finite_is_refused_with_its_place() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for g in [Granularity::Row, Granularity::Tensor, Granularity::Block(16)] {
                let mut w = Array2::<f32>::zeros((3, 40));
                w[[2, 33]] = bad;
                let e = quantize(w.view(), g).unwrap_err().to_string();
                assert!(e.contains("row 2, column 33"), "{e}");
            }
        }
        assert!(quantize(array![[f16::NAN]].view(), Granularity::Row).is_err());
        assert!(quantize(array![[1f32]].view(), Granularity::Block(24)).is_err());
    }

    #[test]
    fn the_largest_weights_stay_finite() {
        // All maxima for which 127 * scale could round up to infinity, and some for which it does not.
        for ulps in 0..200 {
            let largest = f32::from_bits(f32::MAX.to_bits() - ulps);
            for w in [array![[largest, -1.0, 0.0]], array![[-largest, 1e38, 5.0]]] {
                for g in [Granularity::Row, Granularity::Tensor, Granularity::Block(16)] {
                    let q = quantize(w.view(), g).unwrap();
                    assert_eq!(q.symbols[[0, 0]], if w[[0, 0]] > 0.0 { 127 } else { -127 });
                    let mut out = [0f32; 3];
                    dequantize_run(q.symbols.as_slice().unwrap(), 0.0, 0, q.scales.as_slice().unwrap(), 16, &mut out);
                    assert!(out[0].is_finite() && (out[0].abs() / largest - 1.0).abs() < 1e-6, "{out:?}");
                }
            }
        }
        // The largest bf16 is below that: it decodes to itself.
        let q = quantize(array![[bf16::MAX]].view(), Granularity::Row).unwrap();
        assert_eq!(<bf16 as Weight>::from_f32(127.0 * q.scales[0]), bf16::MAX);
    }

    #[test]
    fn rows_longer_than_a_run_and_panels_of_columns_are_quantized_alike() {
        for (rows, cols) in [(2, 40_000), (70, 300), (3, 16_384), (40, 16_400)] {
            let w = Array2::from_shape_fn((rows, cols), |(r, c)| ((r * 31 + c * 7) % 1013) as f32 - 500.0 + r as f32);
            let columns = w.t().as_standard_layout().to_owned();
            for g in [Granularity::Row, Granularity::Tensor, Granularity::Block(112), Granularity::Block(32_000)] {
                let q = quantize(w.view(), g).unwrap();
                assert_eq!(quantize(columns.t(), g).unwrap(), q);
                for threads in [1, 3] {
                    let pool = crate::Pool::new(Some(threads)).unwrap();
                    assert_eq!(quantize_with(w.view(), g, &pool, &crate::Cancel::new()).unwrap(), q);
                }
                let per = g.columns(cols);
                for (r, row) in w.outer_iter().enumerate() {
                    let whole = if g == Granularity::Tensor { w.as_slice().unwrap() } else { row.to_slice().unwrap() };
                    for (b, block) in row.to_slice().unwrap().chunks(per).enumerate() {
                        let (_, scale) = reference(if g == Granularity::Tensor { whole } else { block });
                        let at = if g == Granularity::Tensor { 0 } else { r * g.scales_per_row(cols) + b };
                        assert_eq!(q.scales[at], scale);
                    }
                }
            }
        }
    }

    #[test]
    fn dequantized_runs_may_begin_anywhere() {
        let symbols: Vec<i8> = (-50..50).collect();
        let scales: Vec<f32> = (1..=4).map(|i| i as f32 * 0.37).collect();
        let mut whole = vec![0f32; 64];
        dequantize_run(&symbols[..64], 0.0, 0, &scales, 16, &mut whole);
        for begin in [0, 5, 16, 31, 63] {
            let mut part = vec![0f32; 64 - begin];
            dequantize_run(&symbols[begin..64], 0.0, begin, &scales, 16, &mut part);
            assert_eq!(part, whole[begin..]);
        }
        assert_eq!(whole[17], -33.0 * (2.0 * 0.37f32));
    }
}
