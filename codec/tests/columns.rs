//! Scheme `rate` with factors of columns: `w' = (q + 1/2) r c`.

mod common;
#[path = "common/rates.rs"]
mod rates;

use std::collections::BTreeMap;

use common::image::Image;
use common::newer::{Chosen, rate};
use half::bf16;
use rates::{bits_of, bytes_of, encoded, floats, options, relative_error, source, weights};
use wcodec::{
    Coder, Container, DecodeOptions, Dtype, EncodeOptions, ErrorKind, Isa, Levels, Scheme, VerifyStatus, encode_to_vec,
    rate_bits, verify,
};

/// Factors that differ by tens, no two matrices alike.
fn factors(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 101) as f32 / 20.0 - 2.5).exp() * 3.0).collect()
}

fn of(name: &str, factors: Vec<f32>) -> BTreeMap<String, Vec<f32>> {
    [(name.to_owned(), factors)].into()
}

fn geometric_mean(factors: &[f32]) -> f64 {
    (factors.iter().map(|f| f64::from(*f).ln()).sum::<f64>() / factors.len() as f64).exp()
}

/// The values by the definition.
fn by_hand(container: &Container, name: &str, dtype: Dtype) -> Vec<u8> {
    let info = container.info(name).unwrap();
    let symbols = container.symbols(name, &DecodeOptions::default()).unwrap();
    let (scales, factors) = (container.scales(name).unwrap(), container.columns(name).unwrap().unwrap());
    let (rows, cols) = (info.rows, info.cols);
    let value = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        (f32::from(symbols[i]) + 0.5) * scales[row] * factors[row / rows * cols + col]
    };
    let place = |i: usize| if info.row_axis == 1 { i % rows * cols + i / rows } else { i };
    bytes_of(dtype, &(0..symbols.len()).map(|i| value(place(i))).collect::<Vec<_>>())
}

#[test]
fn every_way_to_store_levels_gives_the_same_values_everywhere() {
    for coder in Coder::ALL {
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            for (shape, transposed) in
                [(&[48usize, 192][..], false), (&[17, 130], false), (&[3, 40, 64], false), (&[40, 96], true)]
            {
                for trellis in [false, true] {
                    if trellis && matches!(coder, Coder::Zstd | Coder::Raw) {
                        continue;
                    }
                    let case = format!("{coder} {dtype} {shape:?} {transposed} {trellis}");
                    let n = shape.iter().product::<usize>();
                    let w = weights(shape[0], n / shape[0], n as u64);
                    let source = source(&[("w", dtype, shape, &w)]);
                    let columns =
                        if transposed { shape[0] } else { n / shape[..shape.len() - 1].iter().product::<usize>() };
                    let count = if shape.len() == 3 { shape[0] } else { 1 };
                    let given = factors(count * columns);
                    let o = EncodeOptions {
                        step: Some(if trellis { 0.15 } else { 0.4 }),
                        columns: of("w", given.clone()),
                        transpose: if transposed { vec!["w".into()] } else { Vec::new() },
                        ..options(4.0, trellis, *coder)
                    };
                    let (container, report) = encoded(&source, &o).unwrap();
                    let info = &report.tensors[0];
                    assert!(info.scheme == "rate" && info.columns && info.scales.as_deref() == Some("row"), "{case}");
                    assert_eq!(container.version(), (1, 3), "{case}");
                    let stored = container.columns("w").unwrap().unwrap();
                    for (stored, given) in stored.chunks(columns).zip(given.chunks(columns)) {
                        let mean = geometric_mean(given);
                        let want = given.iter().map(|f| bf16::from_f64(f64::from(*f) / mean).to_f32());
                        assert!(stored.iter().zip(want).all(|(a, b)| (a / b - 1.0).abs() < 0.008), "{case}");
                        assert!((geometric_mean(stored) - 1.0).abs() < 1e-3, "{case}");
                    }
                    assert_eq!(container.scales("w").unwrap().len(), info.count * info.rows, "{case}");
                    let decode = |isa| container.read("w", &DecodeOptions { isa, ..Default::default() }).unwrap();
                    let scalar = decode(Some(Isa::Scalar));
                    assert_eq!(scalar[..], by_hand(&container, "w", dtype)[..], "{case}");
                    for isa in Isa::available() {
                        assert_eq!(decode(Some(isa))[..], scalar[..], "{case} {isa}");
                    }
                    for other in [Dtype::F32, Dtype::F16, Dtype::BF16] {
                        let got = container.read_as("w", other, &DecodeOptions::default()).unwrap();
                        assert_eq!(got[..], by_hand(&container, "w", other)[..], "{case} {other}");
                    }
                    let entry = n / shape[0] * dtype.size();
                    for rows in [0..1, shape[0] / 2..shape[0], 1..2, 0..shape[0]] {
                        let got = container.read_rows("w", rows.clone(), None, &DecodeOptions::default()).unwrap();
                        assert_eq!(got[..], scalar[rows.start * entry..rows.end * entry], "{case} {rows:?}");
                    }
                    let original = floats(dtype, &bytes_of(dtype, &w));
                    let (error, stated) = (relative_error(&floats(dtype, &scalar), &original), info.error.unwrap());
                    assert!(error <= stated && error > 0.998 * stated, "{case}: {error} {stated}");
                    let verified =
                        verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
                    assert!(verified.ok(), "{case} {verified:?}");
                }
            }
        }
    }
}

/// The point of it: the sum of the squared errors, weighted by what an error of each column counts, falls.
#[test]
fn columns_that_count_more_have_smaller_errors() {
    let (rows, cols) = (256, 512);
    let w = weights(rows, cols, 3);
    let source = source(&[("w", Dtype::F32, &[rows, cols], &w)]);
    let given: Vec<f32> = factors(cols).iter().map(|f| f.powf(0.3)).collect();
    // Errors of a column count by the square of the inverse of its factor.
    let weighted = |o: &EncodeOptions| {
        let (container, report) = encoded(&source, o).unwrap();
        assert!((bits_of(&report) / 5.0 - 1.0).abs() < 0.005, "{}", bits_of(&report));
        let got = floats(Dtype::F32, &container.read("w", &DecodeOptions::default()).unwrap());
        let error = |i: usize| f64::from((got[i] - w[i]) / given[i % cols]).powi(2);
        (0..w.len()).map(error).sum::<f64>()
    };
    for trellis in [false, true] {
        let plain = weighted(&options(5.0, trellis, Coder::Rans));
        let o = EncodeOptions { columns: of("w", given.clone()), ..options(5.0, trellis, Coder::Rans) };
        let gain = plain / weighted(&o);
        // The arithmetic over the geometric mean of the inverse squares is the most there is to gain.
        let inverse: Vec<f32> = given.iter().map(|f| f.powi(-2)).collect();
        let most = inverse.iter().map(|f| f64::from(*f)).sum::<f64>() / cols as f64 / geometric_mean(&inverse);
        assert!(gain > 0.5 * most && gain < 1.1 * most, "{trellis}: {gain} of {most}");
    }
}

#[test]
fn bits_count_the_factors_whatever_is_sampled() {
    // Few rows: factors are a good part of all bits.
    let w: Vec<Vec<f32>> = (0..3).map(|i| weights(64, 1024, i)).collect();
    let shape = &[64usize, 1024][..];
    let stack: Vec<f32> = weights(8 * 32, 512, 9);
    let source = source(&[
        ("a", Dtype::BF16, shape, &w[0]),
        ("b", Dtype::BF16, shape, &w[1]),
        ("c", Dtype::BF16, shape, &w[2]),
        ("stack", Dtype::BF16, &[8, 32, 512], &stack),
    ]);
    let mut columns = of("a", factors(1024));
    columns.insert("stack".into(), factors(8 * 512));
    for trellis in [false, true] {
        for bits in [3.0, 5.0] {
            let o = EncodeOptions { columns: columns.clone(), ..options(bits, trellis, Coder::Huffman) };
            let (container, report) = encoded(&source, &o).unwrap();
            assert!((bits_of(&report) / bits - 1.0).abs() < 0.005, "{trellis} {bits}: {}", bits_of(&report));
            let with: Vec<_> = report.tensors.iter().map(|t| t.columns).collect();
            assert_eq!(with, [true, false, false, true]);
            assert!(container.columns("b").unwrap().is_none());
            // The crate says of samples that have all rows as much as is stored.
            let fixed = EncodeOptions { step: Some(0.5), ..o };
            let all = encoded(&source, &fixed).unwrap().1;
            let said = rate_bits(&source, &fixed, &BTreeMap::new()).unwrap();
            assert!((said / bits_of(&all) - 1.0).abs() < 2e-3, "{said} {}", bits_of(&all));
        }
    }
    // Large tensors, of which strips are sampled: of stacks they are of several matrices.
    let large = weights(16 * 128, 1024, 12);
    let sampled = rates::source(&[("stack", Dtype::BF16, &[16, 128, 1024], &large)]);
    let o = EncodeOptions { columns: of("stack", factors(16 * 1024)), ..options(3.0, false, Coder::Huffman) };
    let found = bits_of(&encoded(&sampled, &o).unwrap().1);
    assert!((found / 3.0 - 1.0).abs() < 0.005, "{found}");
}

#[test]
fn rows_and_factors_of_every_kind_are_encoded() {
    let cols = 192;
    let mut w = weights(32, cols, 10);
    let mut row = |r: usize, f: &dyn Fn(usize) -> f32| (0..cols).for_each(|c| w[r * cols + c] = f(c));
    row(0, &|_| 0.0);
    row(1, &|_| 0.25);
    row(2, &|c| if c % 2 == 0 { 1e-3 } else { -1e-3 });
    row(3, &|c| if c == 7 { 1e4 } else { 0.01 });
    for trellis in [false, true] {
        for (dtype, largest) in [(Dtype::F16, 65504.0), (Dtype::BF16, bf16::MAX.to_f32()), (Dtype::F32, f32::MAX)] {
            for spread in [0.1f32, 10.0, 60.0] {
                let mut w = w.clone();
                (0..cols).for_each(|c| w[5 * cols + c] = if c % 3 == 0 { largest } else { -largest });
                (0..cols)
                    .for_each(|c| w[6 * cols + c] = if dtype == Dtype::F16 { 6e-8 } else { 1e-40 } * (c % 5) as f32);
                let source = source(&[("w", dtype, &[32, cols], &w)]);
                let given: Vec<f32> = (0..cols).map(|c| ((c as f32 / cols as f32 - 0.5) * spread).exp2()).collect();
                let o =
                    EncodeOptions { step: Some(0.2), columns: of("w", given), ..options(4.0, trellis, Coder::Rans) };
                let (container, _) = encoded(&source, &o).unwrap();
                let got = floats(dtype, &container.read("w", &DecodeOptions::default()).unwrap());
                assert!(got.iter().all(|v| v.is_finite()), "{dtype} {spread}");
                assert!(got[..cols].iter().all(|v| *v == 0.0), "{dtype} {spread}");
                let report = verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
                assert!(report.ok(), "{dtype} {spread}: {report:?}");
            }
        }
    }
}

#[test]
fn factors_that_cannot_be_are_refused() {
    let w = weights(32, 130, 11);
    let source = source(&[("w", Dtype::BF16, &[32, 130], &w), ("stack", Dtype::BF16, &[2, 16, 130], &w)]);
    let o = || options(4.0, false, Coder::Rans);
    let refused = |name: &str, factors: Vec<f32>| {
        let e = encoded(&source, &EncodeOptions { columns: of(name, factors), ..o() }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Input, "{e}");
        e.to_string()
    };
    let e = refused("v", vec![1.0; 130]);
    assert!(e.contains("factors for the columns of 'v', which is no tensor of the source"), "{e}");
    let e = refused("w", vec![1.0; 131]);
    assert!(e.contains("tensor 'w': 131 factors for 1 matrices of 130 columns"), "{e}");
    let e = refused("stack", vec![1.0; 130]);
    assert!(e.contains("tensor 'stack': 130 factors for 2 matrices of 130 columns"), "{e}");
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut wrong = factors(130);
        wrong[17] = bad;
        let e = refused("w", wrong);
        assert!(e.contains("tensor 'w': a factor of column 17 that is not above 0"), "{bad}: {e}");
    }
    let mut apart = vec![1e30; 130];
    apart[5] = 1e-30;
    assert!(refused("w", apart).contains("a factor of column 5"), "by far too small");
    // Other schemes have no use for them, and tensors that are left out neither.
    for (scheme, exclude) in [(Scheme::Lossless, vec![]), (rate(4.0, false), vec!["w".to_owned()])] {
        let o = EncodeOptions { scheme, exclude, columns: of("w", factors(130)), ..o() };
        assert!(!encoded(&source, &o).unwrap().1.tensors[0].columns);
    }
    let mut not_finite = w.clone();
    not_finite[135] = f32::INFINITY;
    let bad = rates::source(&[("w", Dtype::F32, &[32, 130], &not_finite)]);
    for trellis in [false, true] {
        let o = EncodeOptions { step: Some(0.2), columns: of("w", factors(130)), ..options(4.0, trellis, Coder::Rans) };
        let e = encoded(&bad, &o).unwrap_err().to_string();
        assert!(e.contains("inf at row 1, column 5 (rate needs"), "{e}");
    }
}

#[test]
fn levels_that_are_given_have_factors_of_their_own() {
    for (shape, count, cols) in [(&[32usize, 700][..], 1, 700), (&[2, 16, 350], 2, 350)] {
        let w = weights(32, w_len(shape) / 32, 15);
        let tensors = || source(&[("w", Dtype::F32, shape, &w)]);
        for trellis in [false, true] {
            let columns = of("w", factors(count * cols));
            let o = EncodeOptions { step: Some(0.3), columns, ..options(4.0, trellis, Coder::Huffman) };
            let (container, report) = encoded(&tensors(), &o).unwrap();
            let levels = Levels {
                symbols: container.symbols("w", &DecodeOptions::default()).unwrap(),
                scales: container.scales("w").unwrap(),
                columns: container.columns("w").unwrap(),
                trellis,
                tile: trellis.then(|| report.tensors[0].planes[0].tile.unwrap()),
            };
            let given = |levels: Levels| encoded(&Chosen(tensors(), levels), &options(4.0, false, Coder::Huffman));
            let (again, about) = given(levels.clone()).unwrap();
            let read = |c: &Container| c.read("w", &DecodeOptions::default()).unwrap();
            assert_eq!(read(&again)[..], read(&container)[..]);
            assert!(about.tensors[0].columns && again.version() == (1, 3));
            assert!((about.tensors[0].error.unwrap() / report.tensors[0].error.unwrap() - 1.0).abs() < 1e-3);
            // Without them the same levels are other weights.
            let plain = given(Levels { columns: None, ..levels.clone() }).unwrap().0;
            assert!(plain.columns("w").unwrap().is_none() && read(&plain)[..] != read(&container)[..]);

            let refused =
                |columns: Vec<f32>| given(Levels { columns: Some(columns), ..levels.clone() }).unwrap_err().to_string();
            let all = levels.columns.clone().unwrap();
            let few = format!("{} factors for {} columns", all.len() - 1, all.len());
            assert!(refused(all[1..].to_vec()).contains(&few));
            for bad in [-1.0, 0.0, f32::NAN, f32::INFINITY, 0.1] {
                let mut wrong = all.clone();
                wrong[3] = bad;
                assert!(refused(wrong).contains("the factor of column 3"), "{bad}");
            }
        }
    }
}

fn w_len(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Readers compute with whatever factors there are; verifying finds those that no writer writes.
#[test]
fn factors_of_any_bits_decode_and_are_reported() {
    let w = weights(32, 192, 21);
    let source = source(&[("w", Dtype::BF16, &[2, 16, 192], &w)]);
    let o = EncodeOptions { step: Some(0.3), columns: of("w", factors(2 * 192)), ..options(4.0, true, Coder::Rans) };
    let good = encode_to_vec(&source, &o, &mut |_| Ok(())).unwrap().0;
    let scales = Image::new(&good).segment("/tensors/0/scales/data");
    assert_eq!(scales.len(), 2 * (2 * 192 + 32));
    let changed = |at: usize, value: f32| {
        let mut scales = scales.clone();
        scales[2 * at..2 * at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes());
        Container::from_bytes(Image::new(&good).replace("/tensors/0/scales/data", &scales).seal()).unwrap()
    };
    let verdict = |container: &Container| {
        let report = verify(container, None, &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
        (report.tensors[0].status, report.tensors[0].detail.clone())
    };
    for bad in [0.0, -0.0, -2.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let container = changed(192 + 70, bad);
        let got = container.read("w", &DecodeOptions::default()).unwrap();
        let want = by_hand(&container, "w", Dtype::BF16);
        let same = |(a, b): (&[u8; 2], &[u8; 2])| {
            let (a, b) = (bf16::from_le_bytes(*a), bf16::from_le_bytes(*b));
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        };
        assert!(got.as_chunks().0.iter().zip(want.as_chunks().0).all(same), "{bad}");
        let (status, detail) = verdict(&container);
        assert_eq!(status, VerifyStatus::Damaged, "{bad}");
        assert!(detail.contains("the factor of column 70 of matrix 1 is") && detail.contains("'w'"), "{detail}");
    }
    // A factor and a scale that are fine by themselves, but not together.
    assert_eq!(verdict(&changed(192 + 70, 1e30)).0, VerifyStatus::Ok);
    let mut scales = scales.clone();
    scales[2 * (192 + 70)..][..2].copy_from_slice(&bf16::from_f32(1e30).to_le_bytes());
    scales[2 * (2 * 192 + 20)..][..2].copy_from_slice(&bf16::from_f32(1e10).to_le_bytes());
    let image = Image::new(&good).replace("/tensors/0/scales/data", &scales).seal();
    let (status, detail) = verdict(&Container::from_bytes(image).unwrap());
    assert_eq!(status, VerifyStatus::Damaged);
    assert!(detail.contains("row 20, column 70 is not finite") && detail.contains("times factor"), "{detail}");
}
