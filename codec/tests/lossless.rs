//! Scheme `lossless`: every bit of every float is restored, at little more than its information.

use std::ops::Range;

use half::bf16;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use wcodec::{Coder, Container, DecodeOptions, Dtype, EncodeOptions, Isa, MemorySource, Scheme, encode_to_vec, verify};

const DTYPES: [Dtype; 5] = [Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F8_E4M3, Dtype::F8_E5M2];

/// Bytes of floats with trained weights' exponents, and some with arbitrary bits.
fn bytes_of(dtype: Dtype, elements: usize, strange: bool, seed: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..elements)
        .flat_map(|i| {
            let w: f32 = <StandardNormal as Distribution<f32>>::sample(&StandardNormal, &mut rng) * 0.02;
            let bits = match dtype {
                _ if strange && i % 7 == 0 => rng.random::<u32>(),
                Dtype::F32 => w.to_bits(),
                Dtype::F16 => half::f16::from_f32(w).to_bits().into(),
                Dtype::BF16 => bf16::from_f32(w).to_bits().into(),
                _ => (half::f16::from_f32(w).to_bits() >> 8).into(),
            };
            bits.to_le_bytes()[..dtype.size()].to_vec()
        })
        .collect()
}

fn options(coder: Coder) -> EncodeOptions {
    EncodeOptions { scheme: Scheme::Lossless, coder, ..Default::default() }
}

fn encoded(dtype: Dtype, shape: &[usize], bytes: &[u8], options: &EncodeOptions) -> (Container, MemorySource<'static>) {
    let mut source = MemorySource::new();
    source.push("w".into(), dtype, shape.to_vec(), bytes.to_vec().into()).unwrap();
    let made = encode_to_vec(&source, options, &mut |_| Ok(())).unwrap().0;
    (Container::from_bytes(made).unwrap(), source)
}

#[test]
fn every_bit_comes_back() {
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw] {
        for dtype in DTYPES {
            for shape in [&[48usize, 192][..], &[17, 130], &[2, 40, 64], &[16, 3, 3, 3], &[5, 1], &[300, 1024]] {
                let n: usize = shape.iter().product();
                let bytes = bytes_of(dtype, n, true, n as u64);
                let (container, source) = encoded(dtype, shape, &bytes, &options(coder));
                for isa in [Some(Isa::Scalar), None] {
                    let decode = DecodeOptions { isa, ..Default::default() };
                    assert_eq!(&container.read("w", &decode).unwrap()[..], bytes, "{coder} {dtype} {shape:?}");
                }
                let entry = n / shape[0] * dtype.size();
                for rows in [0..1, shape[0] / 2..shape[0], 0..shape[0], shape[0] - 1..shape[0]] {
                    let Range { start, end } = rows.clone();
                    let got = container.read_rows("w", rows, None, &DecodeOptions::default()).unwrap();
                    assert_eq!(
                        &got[..],
                        &bytes[start * entry..end * entry],
                        "{coder} {dtype} {shape:?} {start}..{end}"
                    );
                }
                let report = verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
                assert!(report.ok(), "{report:?}");
                let info = container.info("w").unwrap();
                let sizes = container.chunk_sizes("w").unwrap();
                assert_eq!(sizes.iter().map(|s| s.elements).sum::<u64>(), n as u64, "{info:?}");
                for (i, size) in sizes.iter().enumerate() {
                    let chunk = container.chunk("w", i).unwrap();
                    if info.scheme == "lossless" {
                        assert_eq!(chunk.length + chunk.side, size.bytes, "{info:?}");
                    }
                    container.read_chunk("w", i, &DecodeOptions::default()).unwrap();
                }
            }
        }
    }
}

#[test]
fn transposed_tensors_come_back() {
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        for dtype in DTYPES {
            let (rows, cols) = (200, 190);
            let bytes = bytes_of(dtype, rows * cols, false, 5);
            let options = EncodeOptions { transpose: vec!["w".into()], ..options(coder) };
            let (container, source) = encoded(dtype, &[cols, rows], &bytes, &options);
            let info = container.info("w").unwrap();
            assert!(info.scheme == "lossless" && info.row_axis == 1, "{info:?}");
            assert_eq!(&container.read("w", &DecodeOptions::default()).unwrap()[..], bytes);
            let got = container.read_rows("w", 3..77, None, &DecodeOptions::default()).unwrap();
            assert_eq!(&got[..], &bytes[3 * rows * dtype.size()..77 * rows * dtype.size()]);
            assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
        }
    }
}

/// At most one percent over raw bits plus the entropy of the coded ones, everything counted.
#[test]
fn sizes_are_near_the_entropy() {
    for (dtype, most) in [(Dtype::BF16, 10.67), (Dtype::F16, 13.65), (Dtype::F32, 26.75), (Dtype::F8_E5M2, 5.65)] {
        for coder in [Coder::Rans, Coder::Huffman] {
            let bytes = bytes_of(dtype, 1024 * 1024, false, 9);
            let (container, _) = encoded(dtype, &[1024, 1024], &bytes, &options(coder));
            let info = container.info("w").unwrap();
            let (bits, entropy) = (info.bits_per_weight(), info.entropy.unwrap());
            let share = if coder == Coder::Rans { 1.01 } else { 1.03 };
            assert!(bits < entropy * share && bits < most * share, "{dtype} {coder}: {bits}, entropy {entropy}");
            assert!(bits > entropy, "{dtype} {coder}: {bits}, entropy {entropy}");
        }
    }
}

/// Values that were bf16 take no more space in a wider dtype.
#[test]
fn bytes_without_information_take_no_room() {
    let narrow = bytes_of(Dtype::BF16, 512 * 512, false, 3);
    let wide: Vec<u8> = narrow.as_chunks::<2>().0.iter().flat_map(|[a, b]| [0, 0, *a, *b]).collect();
    let (container, _) = encoded(Dtype::F32, &[512, 512], &wide, &options(Coder::Rans));
    let bits = container.info("w").unwrap().bits_per_weight();
    assert!(bits < 10.9, "{bits}");
    assert_eq!(&container.read("w", &DecodeOptions::default()).unwrap()[..], wide);
}

/// Incompressible floats are stored raw.
#[test]
fn noise_is_stored_raw() {
    let bytes: Vec<u8> = {
        let mut rng = StdRng::seed_from_u64(2);
        (0..64 * 64 * 2).map(|_| rng.random()).collect()
    };
    let (container, _) = encoded(Dtype::BF16, &[64, 64], &bytes, &options(Coder::Rans));
    let info = container.info("w").unwrap();
    assert_eq!((info.scheme.as_str(), info.stored_bytes), ("raw", bytes.len() as u64));
}

/// Files without such tensors are unchanged; others state that they need a later reader.
#[test]
fn only_files_that_need_it_are_of_the_later_version() {
    let bytes = bytes_of(Dtype::BF16, 64 * 64, false, 1);
    let (container, _) = encoded(Dtype::BF16, &[64, 64], &bytes, &options(Coder::Rans));
    assert_eq!(container.version(), (1, 1));
    let (container, _) = encoded(Dtype::BF16, &[64, 64], &bytes, &EncodeOptions::default());
    assert_eq!(container.version(), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..Default::default() })]
    #[test]
    fn any_floats_come_back(
        which in 0..DTYPES.len(), rows in 1usize..70, cols in 1usize..300, seed: u64, strange: bool, huffman: bool,
    ) {
        let dtype = DTYPES[which];
        let bytes = bytes_of(dtype, rows * cols, strange, seed);
        let coder = if huffman { Coder::Huffman } else { Coder::Rans };
        let (container, _) = encoded(dtype, &[rows, cols], &bytes, &options(coder));
        prop_assert_eq!(&container.read("w", &DecodeOptions::default()).unwrap()[..], &bytes[..]);
    }
}
