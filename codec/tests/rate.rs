//! Scheme `rate`: it meets the requested bits, with the least error that they allow.

mod common;
#[path = "common/rates.rs"]
mod rates;

use common::newer::{Chosen, rate};
use half::bf16;
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StudentT};
use rates::{bits_of, bytes_of, encoded, floats, options, relative_error, source, weights};
use wcodec::{
    Bits, Checkpoint, Coder, Container, DecodeOptions, Dtype, EncodeOptions, Isa, Layout, Levels, MemorySource, Rule,
    Scheme, encode, encode_to_vec, verify,
};

#[test]
fn every_way_to_store_levels_gives_the_same_values_everywhere() {
    for coder in Coder::ALL {
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            for shape in [&[48usize, 192][..], &[17, 130], &[2, 40, 64], &[64, 3, 3, 3], &[40, 1100]] {
                for (bits, trellis) in [(3.0, false), (4.5, true)] {
                    if trellis && matches!(coder, Coder::Zstd | Coder::Raw) {
                        continue;
                    }
                    let (n, case) = (shape.iter().product::<usize>(), format!("{coder} {dtype} {shape:?} {bits}"));
                    let w = weights(shape[0], n / shape[0], n as u64);
                    let source = source(&[("w", dtype, shape, &w)]);
                    let step = Some(if trellis { 0.15 } else { 0.4 });
                    let (container, report) =
                        encoded(&source, &EncodeOptions { step, ..options(bits, trellis, *coder) }).unwrap();
                    let info = &report.tensors[0];
                    assert_eq!(info.scheme, "rate", "{case}");
                    assert_eq!(info.planes[0].filter == "trellis", trellis && info.coder() != "raw", "{case}");
                    let decode = |isa| container.read("w", &DecodeOptions { isa, ..Default::default() }).unwrap();
                    let scalar = decode(Some(Isa::Scalar));
                    assert_eq!(scalar[..], decode(None)[..], "{case}");
                    let (symbols, scales) =
                        (container.symbols("w", &DecodeOptions::default()).unwrap(), container.scales("w").unwrap());
                    let cols = info.cols;
                    let by_hand: Vec<f32> =
                        symbols.iter().enumerate().map(|(i, &q)| (f32::from(q) + 0.5) * scales[i / cols]).collect();
                    assert_eq!(scalar[..], bytes_of(dtype, &by_hand)[..], "{case}");
                    assert!(symbols.iter().all(|&q| (-127..=126).contains(&q)), "{case}");
                    assert!(scales.iter().all(|s| bf16::from_f32(*s).to_f32() == *s), "{case}");
                    let entry = n / shape[0] * dtype.size();
                    for rows in [0..1, shape[0] / 2..shape[0], 0..shape[0]] {
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

#[test]
fn bits_are_as_asked_for_and_a_trellis_makes_more_of_them() {
    let tensors: Vec<Vec<f32>> = (0..6).map(|i| weights(128, 512, i)).collect();
    let names: Vec<String> = (0..6).map(|i| format!("layers.{i}.weight")).collect();
    let all: Vec<_> =
        names.iter().zip(&tensors).map(|(n, w)| (n.as_str(), Dtype::BF16, &[128, 512][..], &w[..])).collect();
    let source = source(&all);
    for coder in [Coder::Rans, Coder::Huffman] {
        for bits in [2.0, 2.75, 3.5, 4.0, 5.3, 6.2] {
            let mut errors = Vec::new();
            for trellis in [false, true] {
                let (_, report) = encoded(&source, &options(bits, trellis, coder)).unwrap();
                let found = bits_of(&report);
                assert!((found / bits - 1.0).abs() < 0.005, "{coder} {bits} {trellis}: {found}");
                errors.push(report.tensors.iter().map(|t| t.error.unwrap().powi(2)).sum::<f64>());
            }
            // In decibels: the trellis recovers most of the 1.53 dB by which a scalar quantizer falls short of the
            // limit.
            let gain = 10.0 * (errors[0] / errors[1]).log10();
            assert!((0.6..1.3).contains(&gain), "{coder} {bits}: {gain} dB");
        }
    }
    let each = EncodeOptions { bits_per_tensor: true, ..options(3.25, true, Coder::Rans) };
    // The table that they share is counted at its first user.
    for t in &encoded(&source, &each).unwrap().1.tensors[1..] {
        assert!((t.bits_per_weight() / 3.25 - 1.0).abs() < 0.005, "{}: {}", t.name, t.bits_per_weight());
    }
}

#[test]
fn tables_of_every_size_are_stored_and_small_ones_cost_little() {
    let mut rng = StdRng::seed_from_u64(17);
    let tails = StudentT::new(6.0).unwrap();
    let w: Vec<f32> = (0..512 * 1024).map(|_| tails.sample(&mut rng) as f32 * 0.02).collect();
    let source = source(&[("w", Dtype::BF16, &[512, 1024], &w)]);
    for trellis in [false, true] {
        let mut sizes = Vec::new();
        for table_bits in 8..=12 {
            let step = Some(if trellis { 0.25 } else { 0.5 });
            let o = EncodeOptions { table_bits: Some(table_bits), step, ..options(3.0, trellis, Coder::Huffman) };
            let (container, report) = encoded(&source, &o).unwrap();
            assert_eq!(container.reader().index().tables[0].bits, table_bits);
            assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
            for isa in Isa::available() {
                let decode = |isa| container.read("w", &DecodeOptions { isa, ..Default::default() }).unwrap();
                assert_eq!(decode(Some(isa))[..], decode(None)[..]);
            }
            sizes.push(bits_of(&report));
        }
        // With 11 bits every pair has a code, and with 10 only those that are worth one.
        assert!(sizes[..3].is_sorted_by(|a, b| a > b) && sizes[..4].iter().all(|&s| s > sizes[4]), "{sizes:?}");
        // Relative to 12 bits: about 2 % with 8 bits, half a percent with 10.
        assert!(sizes[0] / sizes[4] < 1.03 && sizes[2] / sizes[4] < 1.008, "{sizes:?}");
    }
    let o = EncodeOptions { table_bits: Some(9), ..options(3.0, false, Coder::Rans) };
    let e = encoded(&source, &o).unwrap_err().to_string();
    assert!(e.contains("tables of coder rans have 11 or 12 bits, not 9 (leave table_bits out"), "{e}");
}

/// The step is searched on strips of each tensor: their tables weigh as those of whole tensors do.
#[test]
fn bits_of_many_tensors_of_different_kinds_are_as_asked_for() {
    let shape = [1024usize, 1024];
    let mut source = MemorySource::new();
    for i in 0..16u16 {
        let mut rng = StdRng::seed_from_u64(i.into());
        let tails = StudentT::new([4.0, 6.0, 30.0][usize::from(i) % 3]).unwrap();
        let w: Vec<f32> = (0..shape.iter().product()).map(|_| tails.sample(&mut rng) as f32 * 0.02).collect();
        source.push(format!("{i}"), Dtype::BF16, shape.to_vec(), bytes_of(Dtype::BF16, &w).into()).unwrap();
    }
    for coder in [Coder::Rans, Coder::Huffman] {
        let found = bits_of(&encoded(&source, &options(3.0, false, coder)).unwrap().1);
        assert!((found / 3.0 - 1.0).abs() < 0.002, "{coder}: {found}");
    }
}

#[test]
fn small_tables_make_files_of_format_1_1_and_others_do_not() {
    let source = source(&[("w", Dtype::F32, &[64, 512], &weights(64, 512, 18))]);
    for (coder, table_bits, newer) in [
        (Coder::Huffman, 8, 1),
        (Coder::Huffman, 10, 1),
        (Coder::Huffman, 11, 0),
        (Coder::Huffman, 12, 0),
        (Coder::Rans, 12, 0),
    ] {
        let o = EncodeOptions { coder, table_bits: Some(table_bits), layout: Some(Layout::Pair), ..Default::default() };
        let bytes = encode_to_vec(&source, &o, &mut |_| Ok(())).unwrap().0;
        let container = Container::from_bytes(bytes.clone()).unwrap();
        assert_eq!(bytes[10], newer, "{table_bits}");
        assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
    }
}

#[test]
fn rules_have_targets_of_their_own() {
    let w = weights(256, 512, 7);
    let shape = &[256usize, 512][..];
    let source = source(&[
        ("a.up", Dtype::BF16, shape, &w),
        ("a.down", Dtype::BF16, shape, &w[1..].iter().copied().chain([0.01]).collect::<Vec<_>>()),
        ("head", Dtype::F32, shape, &w),
    ]);
    let rule = |pattern: &str, scheme| Rule { pattern: pattern.into(), scheme, coder: Coder::Rans };
    let rules = vec![rule("*.down", rate(5.0, true)), rule("head", Scheme::Lossless)];
    let (_, report) = encoded(&source, &EncodeOptions { rules, ..options(3.0, false, Coder::Rans) }).unwrap();
    let [up, down, head] = &report.tensors[..] else { panic!("{report:?}") };
    assert!((up.bits_per_weight() / 3.0 - 1.0).abs() < 0.005 && up.planes[0].filter == "none");
    assert!((down.bits_per_weight() / 5.0 - 1.0).abs() < 0.005 && down.planes[0].filter == "trellis");
    assert_eq!(head.scheme, "lossless");
}

#[test]
fn steps_of_tensors_are_what_they_are_said_to_be() {
    let w = weights(128, 512, 8);
    let shape = &[128usize, 512][..];
    let other: Vec<f32> = w.iter().rev().copied().collect();
    let source = source(&[("a", Dtype::F32, shape, &w), ("b", Dtype::F32, shape, &other)]);
    let steps = [("b".to_owned(), 0.5)].into();
    let (container, report) = encoded(&source, &EncodeOptions { steps, ..options(4.0, false, Coder::Rans) }).unwrap();
    assert!((bits_of(&report) / 4.0 - 1.0).abs() < 0.005);
    let (a, b) = (report.tensors[0].bits_per_weight(), report.tensors[1].bits_per_weight());
    // Apart from the table, which the first one has.
    assert!((b - a - 1.0).abs() < 0.1, "{a} {b}");
    let sum = |name| container.scales(name).unwrap().iter().map(|s| f64::from(*s)).sum::<f64>();
    assert!((sum("a") / sum("b") - 2.0).abs() < 0.1);

    let refused = |o: EncodeOptions| encoded(&source, &o).unwrap_err().to_string();
    let o = || options(4.0, false, Coder::Rans);
    let unknown = refused(EncodeOptions { steps: [("c".to_owned(), 1.0)].into(), ..o() });
    assert!(unknown.contains("'c', which is no tensor of the source"), "{unknown}");
    assert!(refused(EncodeOptions { steps: [("a".to_owned(), 0.0)].into(), ..o() }).contains("a step of 0 for 'a'"));
    assert!(refused(EncodeOptions { step: Some(f32::NAN), ..o() }).contains("a step of NaN"));
}

#[test]
fn keys_and_values_that_heads_share_have_finer_steps() {
    let folder = tempfile::tempdir().unwrap();
    let w = weights(64, 512, 9);
    let other: Vec<f32> = w.iter().rev().copied().collect();
    let shape = &[64usize, 512][..];
    let tensors = source(&[("l.q_proj.weight", Dtype::F32, shape, &w), ("l.k_proj.weight", Dtype::F32, shape, &other)]);
    let path = folder.path().join("model.safetensors");
    let raw =
        encoded(&tensors, &EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..Default::default() }).unwrap().0;
    wcodec::decode(&raw, None, &path, &DecodeOptions::default(), false, &mut |_| Ok(())).unwrap();
    let bits = |config: &str| {
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let out = folder.path().join("out.wcodec");
        let o = EncodeOptions { overwrite: true, ..options(4.0, true, Coder::Rans) };
        let report = encode(&Checkpoint::open(folder.path()).unwrap(), &out, &o, &mut |_| Ok(())).unwrap();
        let of = |name: &str| report.tensors.iter().find(|t| t.name == name).unwrap().entropy.unwrap();
        of("l.k_proj.weight") - of("l.q_proj.weight")
    };
    assert!(bits(r#"{"num_attention_heads": 8, "num_key_value_heads": 8}"#).abs() < 0.05);
    assert!((bits(r#"{"num_attention_heads": 8, "num_key_value_heads": 2}"#) - 1.0).abs() < 0.05);
    assert!((bits(r#"{"text_config": {"num_attention_heads": 8, "num_key_value_heads": 4}}"#) - 0.5).abs() < 0.05);
}

#[test]
fn rows_of_every_kind_are_encoded() {
    let cols = 192;
    let mut w = weights(64, cols, 10);
    let mut row = |r: usize, f: &dyn Fn(usize) -> f32| (0..cols).for_each(|c| w[r * cols + c] = f(c));
    row(0, &|_| 0.0);
    row(1, &|_| 0.25);
    row(2, &|c| if c % 2 == 0 { 1e-3 } else { -1e-3 });
    // An outlier takes the whole range of symbols.
    row(3, &|c| if c == 7 { 1e4 } else { 0.01 });
    row(4, &|c| if c == 7 { 1.0 } else { 0.0 });
    for trellis in [false, true] {
        for (dtype, largest) in [(Dtype::F16, 65504.0), (Dtype::BF16, bf16::MAX.to_f32()), (Dtype::F32, f32::MAX)] {
            let mut w = w.clone();
            (0..cols).for_each(|c| w[5 * cols + c] = if c % 3 == 0 { largest } else { -largest });
            (0..cols).for_each(|c| w[6 * cols + c] = if dtype == Dtype::F16 { 6e-8 } else { 1e-40 } * (c % 5) as f32);
            let source = source(&[("w", dtype, &[64, cols], &w)]);
            let o = EncodeOptions { step: Some(0.2), ..options(4.0, trellis, Coder::Rans) };
            let (container, _) = encoded(&source, &o).unwrap();
            let got = floats(dtype, &container.read("w", &DecodeOptions::default()).unwrap());
            let row = |r: usize| &got[r * cols..(r + 1) * cols];
            assert!(got.iter().all(|v| v.is_finite()), "{dtype}");
            assert!(row(0).iter().all(|v| *v == 0.0), "{dtype}");
            // A row that is constant except for signs is nearly exact, because its scale is fitted.
            assert!(row(1).iter().all(|v| (v / 0.25 - 1.0).abs() < 0.01), "{dtype} {:?}", row(1));
            assert!((row(3)[7] / 1e4 - 1.0).abs() < 0.02, "{dtype} {}", row(3)[7]);
            assert!(
                row(5).iter().enumerate().all(|(c, v)| (v / if c % 3 == 0 { largest } else { -largest } - 1.0).abs()
                    < if trellis { 0.2 } else { 0.05 })
            );
            assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
        }
    }
}

/// Weights near the largest f32, with levels of the opposite sign, which are half of a coarse step.
#[test]
fn errors_are_stated_where_differences_leave_f32() {
    let w: Vec<f32> = (0..64 * 128).map(|i| if i % 3 == 0 { 3.0e38 } else { -3.0e38 }).collect();
    let source = source(&[("w", Dtype::F32, &[64, 128], &w)]);
    for trellis in [false, true] {
        for step in [0.5, 4.0, 1e6] {
            let o = EncodeOptions { step: Some(step), ..options(4.0, trellis, Coder::Rans) };
            let (container, report) = encoded(&source, &o).unwrap();
            let stated = report.tensors[0].error.unwrap();
            assert!(stated.is_finite(), "{trellis} {step}: {stated}");
            assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
        }
    }
    // Every level has the opposite sign.
    let levels = Levels {
        symbols: w.iter().map(|w| if *w > 0.0 { -1 } else { 0 }).collect(),
        scales: vec![2f32.powi(127); 64],
        ..Default::default()
    };
    let container = encoded(&Chosen(source, levels), &options(4.0, false, Coder::Rans)).unwrap().0;
    let error = container.info("w").unwrap().error.unwrap();
    assert!((error / (1.0 + 2f64.powi(126) / 3.0e38) - 1.0).abs() < 1e-3, "{error}");
}

#[test]
fn what_cannot_be_is_refused_and_says_what_can() {
    let w = weights(64, 256, 11);
    let refused = |tensors: &[(&str, Dtype, &[usize], &[f32])], o: EncodeOptions| {
        let e = encoded(&source(tensors), &o).unwrap_err();
        e.to_string()
    };
    let e = refused(&[("w", Dtype::F32, &[64, 256], &w)], options(1.0, false, Coder::Rans));
    assert!(e.contains("1 bits per weight cannot be reached: 1.") && e.contains("ask for more bits"), "{e}");
    for coder in [Coder::Zstd, Coder::Raw] {
        let e = refused(&[("w", Dtype::F32, &[64, 256], &w)], options(4.0, true, coder));
        assert!(e.contains(&format!("tensor 'w': a trellis with coder {coder} (use coder rans or huffman")), "{e}");
    }
    let mut bad = w.clone();
    bad[300] = f32::NAN;
    let e = refused(&[("w", Dtype::F32, &[64, 256], &bad)], options(4.0, false, Coder::Rans));
    assert!(e.contains("tensor 'w': NaN at row 1, column 44 (rate needs finite weights"), "{e}");
    let e = refused(
        &[("w", Dtype::F32, &[16, 4, 256], &bad)],
        EncodeOptions { step: Some(0.3), ..options(4.0, true, Coder::Rans) },
    );
    assert!(e.contains("NaN at index [0, 1, 44] (rate needs"), "{e}");
    for bits in [0.99, 8.01, f64::NAN, f64::INFINITY] {
        assert!(Bits::new(bits).unwrap_err().to_string().contains("ask for 1 to 8"));
    }
}

#[test]
fn more_bits_than_symbols_have_are_not_stored() {
    let (container, report) =
        encoded(&source(&[("w", Dtype::F32, &[64, 512], &weights(64, 512, 12))]), &options(8.0, false, Coder::Rans))
            .unwrap();
    assert!(bits_of(&report) < 8.0 && report.tensors[0].error.unwrap() < 0.012, "{report:?}");
    assert!(container.symbols("w", &DecodeOptions::default()).unwrap().iter().any(|q| q.abs() > 100));
}

#[test]
fn another_source_differs() {
    let w = weights(64, 256, 13);
    let (container, _) =
        encoded(&source(&[("w", Dtype::BF16, &[64, 256], &w)]), &options(4.0, true, Coder::Rans)).unwrap();
    let other: Vec<f32> = w.iter().map(|w| w * 1.01).collect();
    let report = verify(
        &container,
        Some(&source(&[("w", Dtype::BF16, &[64, 256], &other)])),
        &DecodeOptions::default(),
        &mut |_| Ok(()),
    )
    .unwrap();
    assert!(
        !report.ok() && report.tensors[0].detail.contains("of the source's root mean square, and the file says"),
        "{report:?}"
    );
}

#[test]
fn heavy_tails_and_transposed_matrices_meet_their_bits() {
    let mut rng = StdRng::seed_from_u64(14);
    let tails = StudentT::new(3.0).unwrap();
    let w: Vec<f32> = (0..512 * 384).map(|_| tails.sample(&mut rng) as f32 * 0.02).collect();
    let source = source(&[("w", Dtype::BF16, &[512, 384], &w)]);
    for trellis in [false, true] {
        let o = EncodeOptions { transpose: vec!["w".into()], ..options(3.0, trellis, Coder::Huffman) };
        let (container, report) = encoded(&source, &o).unwrap();
        assert_eq!((report.tensors[0].rows, report.tensors[0].row_axis), (384, 1));
        assert!((bits_of(&report) / 3.0 - 1.0).abs() < 0.005, "{}", bits_of(&report));
        assert_eq!(container.scales("w").unwrap().len(), 384);
        assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
    }
}

#[test]
fn levels_that_are_given_are_stored_as_they_are() {
    let w = weights(32, 700, 15);
    let tensors = || source(&[("w", Dtype::F32, &[32, 700], &w)]);
    for trellis in [false, true] {
        let o = EncodeOptions { step: Some(0.3), ..options(4.0, trellis, Coder::Huffman) };
        let (container, report) = encoded(&tensors(), &o).unwrap();
        let symbols = container.symbols("w", &DecodeOptions::default()).unwrap();
        let scales = container.scales("w").unwrap();
        let tile = trellis.then(|| report.tensors[0].planes[0].tile.unwrap());
        let given = |levels: Levels| encoded(&Chosen(tensors(), levels), &options(4.0, false, Coder::Huffman));
        let levels = Levels { symbols: symbols.clone(), scales: scales.clone(), trellis, tile, columns: None };
        let (again, _) = given(levels.clone()).unwrap();
        let read = |c: &Container| c.read("w", &DecodeOptions::default()).unwrap();
        assert_eq!(read(&again)[..], read(&container)[..]);

        let refused = |levels: Levels| given(levels).unwrap_err().to_string();
        let mut few = levels.clone();
        few.scales.pop();
        assert!(refused(few).contains("22400 levels and 31 scales for 32 rows of 700 columns"));
        for bad in [-1.0, f32::NAN, f32::INFINITY, 0.1] {
            let mut wrong = levels.clone();
            wrong.scales[3] = bad;
            assert!(refused(wrong).contains("the scale of row 3"), "{bad}");
        }
        if let Some(tile) = tile {
            let mut off = levels.clone();
            off.symbols[5 * 700 + 9] ^= 1;
            let e = refused(off);
            assert!(e.contains("the level at row 5, column 9 is none that the trellis can be at"), "{e}");
            let o = EncodeOptions { tile: Some(tile + 64), ..options(4.0, false, Coder::Huffman) };
            let e = encoded(&Chosen(tensors(), levels), &o).err().unwrap().to_string();
            assert!(e.contains("a trellis that restarts every"), "{e}");
        }
    }
}

#[test]
fn layouts_and_tiles_that_are_asked_for_are_used() {
    let source = source(&[("w", Dtype::F32, &[64, 1000], &weights(64, 1000, 16))]);
    for layout in [Layout::Byte, Layout::Pair] {
        for tile in [64, 192, 1024] {
            let o = EncodeOptions { layout: Some(layout), tile: Some(tile), ..options(4.5, true, Coder::Rans) };
            let (container, report) = encoded(&source, &o).unwrap();
            let plane = &report.tensors[0].planes[0];
            assert_eq!((plane.tile, plane.layout.as_deref()), (Some(tile), Some(layout.name())));
            assert!((bits_of(&report) / 4.5 - 1.0).abs() < 0.005, "{layout} {tile}: {}", bits_of(&report));
            assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
        }
    }
}
