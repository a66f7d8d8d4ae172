//! Elements that are put together of planes: scheme `lossless`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wcodec_kernels::Mode;

use super::*;
use crate::coder::tile::raw_body_bytes;
use crate::scheme::{Fields, join};

const DTYPES: [Dtype; 5] = [Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F8_E4M3, Dtype::F8_E5M2];

/// The sort of a tensor's bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bits {
    /// Those of weights.
    Weights,
    /// Any bits in some elements, NaNs among them.
    Strange,
    /// Weights that were of fewer bits once.
    Narrow,
    /// Weights of a format that has fewer bits and exponents of its own.
    Half,
}

const BITS: [Bits; 4] = [Bits::Weights, Bits::Strange, Bits::Narrow, Bits::Half];

fn floats(rng: &mut StdRng, dtype: Dtype, n: usize, bits: Bits) -> Vec<u8> {
    let weights = weights(rng, n);
    let of = |(i, w): (usize, f32)| {
        let w = w * 0.05;
        let (bf16, f16) = (half::bf16::from_f32(w), half::f16::from_f32(w));
        let word: u32 = match (dtype, bits) {
            (_, Bits::Strange) if i % 7 == 0 || i % 4096 < 1024 => rng.random(),
            (Dtype::F32, Bits::Narrow) => u32::from(bf16.to_bits()) << 16,
            (Dtype::F32, Bits::Half) => f16.to_f32().to_bits(),
            // Sums of a few random numbers leave low bits 0.
            (Dtype::F32, _) => w.to_bits() ^ rng.random_range(0..0x1000),
            (Dtype::F16, Bits::Narrow | Bits::Half) => half::f16::from_f32(bf16.to_f32()).to_bits().into(),
            (Dtype::F16, _) => f16.to_bits().into(),
            (Dtype::BF16, Bits::Narrow | Bits::Half) => u32::from(bf16.to_bits()) & 0xFFF8,
            (Dtype::BF16, _) => bf16.to_bits().into(),
            _ => (f16.to_bits() >> 8).into(),
        };
        word.to_le_bytes()[..dtype.size()].to_vec()
    };
    weights.into_iter().enumerate().flat_map(of).collect()
}

pub(super) fn options(coder: Coder, tile: Option<usize>, table_bits: u32) -> EncodeOptions {
    EncodeOptions { scheme: Scheme::Lossless, coder, tile, table_bits: Some(table_bits), ..Default::default() }
}

/// Tensors of these shapes, each of every dtype and of every sort of bits. Those named `t` are to be transposed.
pub(super) fn sources(rng: &mut StdRng, shapes: &[&[usize]]) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    for (i, shape) in shapes.iter().enumerate() {
        for dtype in DTYPES {
            for bits in BITS {
                let bytes = floats(rng, dtype, shape.iter().product(), bits);
                let kind = if i % 3 == 2 && shape.len() == 2 { "t" } else { "w" };
                source.push(format!("{kind}{i} {dtype} {bits:?}"), dtype, shape.to_vec(), bytes.into()).unwrap();
            }
        }
    }
    source
}

/// The tensors of a container that are put together, with their bytes.
fn joined(container: &Container) -> Vec<TensorBytes> {
    let infos = container.infos().unwrap().into_iter().filter(|i| i.scheme == "lossless");
    infos.map(|i| container.bytes_of(&i.name, &oracle()).unwrap()).collect()
}

/// The oracle's result for bytes that may be damaged, in the order of the matrix.
fn elements(bytes: &TensorBytes) -> Option<Vec<u8>> {
    let planes: Vec<Vec<i8>> = (0..bytes.planes.len())
        .map(|i| Some(symbols_of(bytes, i)?.into_iter().map(|b| b as i8).collect()))
        .collect::<Option<_>>()?;
    let fields = bytes.tensor.fields();
    let parts: Vec<_> = planes.iter().map(|p| &p[..]).zip(&fields).collect();
    let size = bytes.tensor.dtype.size();
    let mut out = vec![0; bytes.tensor.plane().elements * size];
    join(&parts, size, &mut out);
    Some(out)
}

fn kind_of(t: &Loaded) -> OutputKind {
    t.plan.output(t.plan.tensor.dtype).unwrap()
}

#[test]
fn every_dtype_coder_and_shape_equals_the_oracle() {
    let mut rng = StdRng::seed_from_u64(20);
    let shapes: [&[usize]; 8] =
        [&[48, 256], &[16, 640], &[70, 130], &[3, 21, 192], &[15, 1100], &[96, 200], &[1, 64], &[80, 300]];
    let (mut tensors, mut modes) = (0, BTreeSet::new());
    for (coder, tile, bits) in [
        (Coder::Rans, None, 12),
        (Coder::Rans, Some(64), 11),
        (Coder::Rans, Some(192), 12),
        (Coder::Huffman, None, 12),
        (Coder::Huffman, Some(128), 12),
        (Coder::Huffman, Some(64), 11),
        (Coder::Zstd, None, 12),
    ] {
        let what = format!("{coder} tile {tile:?} bits {bits}");
        let o = EncodeOptions { transpose: vec!["t*".into()], ..options(coder, tile, bits) };
        let bytes = encode(&sources(&mut rng, &shapes), &o);
        let container = Container::from_bytes(bytes.clone()).unwrap();
        for parts in joined(&container) {
            for method in TensorPlan::new(&parts).unwrap().planes {
                modes.insert(match method {
                    Method::Tiles(t) => format!("{coder} {:?} of {}", t.mode(), parts.tensor.dtype),
                    Method::Zstd { .. } => "zstd".to_owned(),
                    Method::Raw { .. } => format!("raw beside {coder}"),
                });
            }
        }
        tensors += check_container(bytes, &what);
    }
    assert!(tensors > 400, "{tensors}");
    for coder in [Coder::Rans, Coder::Huffman] {
        for mode in
            ["Split of BF16", "Split of F16", "Split of F32", "Fields of F32", "Fields of F16", "Byte of F8_E5M2"]
        {
            assert!(modes.contains(&format!("{coder} {mode}")), "{coder} {mode} in {modes:?}");
        }
    }
    assert!(modes.contains("zstd") && modes.contains("raw beside zstd"), "{modes:?}");
}

/// Chunks that are stored raw, with their tails, in the fast kernels and in the general one.
#[test]
fn raw_chunks_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(21);
    for (coder, bits) in [(Coder::Rans, 12), (Coder::Rans, 11), (Coder::Huffman, 12), (Coder::Huffman, 11)] {
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let (rows, cols) = (160, 1024);
            let mut bytes = floats(&mut rng, dtype, rows * cols, Bits::Weights);
            // One strip of noise.
            let strip = 32 * cols * dtype.size()..48 * cols * dtype.size();
            rng.fill(&mut bytes[strip]);
            let mut source = MemorySource::new();
            source.push("w".into(), dtype, vec![rows, cols], bytes.into()).unwrap();
            let encoded = encode(&source, &options(coder, Some(64), bits));
            let container = Container::from_bytes(encoded.clone()).unwrap();
            let info = container.info("w").unwrap();
            let raw = (0..info.chunks()).filter(|&i| {
                container.chunk("w", i).unwrap().length as usize == raw_body_bytes(coder, Layout::Split, 64)
            });
            assert!(raw.count() >= 8, "{coder} {dtype}");
            assert_eq!(check_container(encoded, &format!("raw chunks of {coder} {dtype}")), 1);
        }
    }
}

/// Outputs whose rows do not begin at multiples of 16 bytes.
#[test]
fn outputs_at_odd_places_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(22);
    for coder in [Coder::Rans, Coder::Huffman] {
        let container =
            Container::from_bytes(encode(&sources(&mut rng, &[&[48, 256]]), &options(coder, Some(128), 12))).unwrap();
        for parts in joined(&container) {
            let mut t = Loaded::new(&parts).unwrap();
            let (kind, want) = (kind_of(&t), elements(&parts).unwrap());
            for off in [kind.bytes(), 16 - kind.bytes(), 8] {
                let got = run_at(std::slice::from_mut(&mut t), kind, &|n| 0..n, 3, off).remove(0);
                assert_eq!(got.status, None);
                assert!(got.bytes == want, "{coder} {} at {off}", t.plan.name());
            }
        }
    }
}

/// Bits in any order: planes that say that they are others.
#[test]
fn any_fields_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(23);
    let mut runs_seen = BTreeMap::new();
    for coder in [Coder::Rans, Coder::Huffman] {
        let o = EncodeOptions { transpose: vec!["t*".into()], ..options(coder, Some(64), 12) };
        let source = sources(&mut rng, &[&[40, 200], &[5, 64], &[64, 48]]);
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        for mut parts in joined(&container) {
            let size = parts.tensor.dtype.size();
            let mut tensor = (*parts.tensor).clone();
            // Cuts of an element's bits, in any order, given to the planes one after the other.
            let mut cuts: Vec<u32> = (0..8 * size as u32).filter(|_| rng.random_range(0..5) == 0).collect();
            cuts.push(0);
            cuts.push(8 * size as u32);
            cuts.sort_unstable();
            cuts.dedup();
            let mut runs: Vec<[u32; 2]> = cuts.windows(2).map(|w| [w[0], w[1] - w[0]]).collect();
            for i in (1..runs.len()).rev() {
                runs.swap(i, rng.random_range(0..=i));
            }
            for plane in &mut tensor.planes {
                let mut left = 8 * plane.form.coding.element_bytes() as u32;
                let mut own = Vec::new();
                while left > 0 {
                    let [lowest, width] = runs.pop().unwrap();
                    let taken = width.min(left);
                    own.push([lowest + width - taken, taken]);
                    if width > taken {
                        runs.push([lowest, width - taken]);
                    }
                    left -= taken;
                }
                *runs_seen.entry(own.len()).or_insert(0) += 1;
                plane.fields = Some(Fields::new(own).unwrap());
            }
            parts.tensor = Arc::new(tensor);
            let Ok(_) = TensorPlan::new(&parts) else { continue };
            let mut t = Loaded::new(&parts).unwrap();
            if t.plan.tensor.transposed() {
                continue;
            }
            let kind = kind_of(&t);
            let got = run_all(std::slice::from_mut(&mut t), kind).remove(0);
            assert_eq!(got.status, None);
            let fields: Vec<_> = parts.tensor.planes.iter().map(|p| p.fields.clone().unwrap()).collect();
            assert!(got.bytes == elements(&parts).unwrap(), "{coder} {} {fields:?}", t.plan.name());
        }
    }
    assert!(runs_seen.keys().max().unwrap() > &5, "{runs_seen:?}");
}

#[test]
fn slices_of_rows_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(24);
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        let source = sources(&mut rng, &[&[70, 192], &[3, 20, 128]]);
        let container = Container::from_bytes(encode(&source, &options(coder, None, 12))).unwrap();
        for parts in joined(&container) {
            let Some(mut t) = Loaded::new(&parts) else { continue };
            let kind = kind_of(&t);
            let whole = run_all(std::slice::from_mut(&mut t), kind).remove(0).bytes;
            assert!(whole == elements(&parts).unwrap());
            let strips = t.plan.strips();
            let (first, last) = (t.plan.first_row(1), t.plan.first_row(strips - 1));
            let piece = PackedRows::of(&t.plan, &t.packed, &(first..last));
            let mut packed = Buffer::new(piece.len);
            packed.fill(POISON);
            for (range, place) in &piece.copies {
                packed[*place..place + range.len()].copy_from_slice(&t.packed[range.clone()]);
            }
            assert!(piece.len < t.packed.len());
            let least = PackedRows::bound_of_strip(&parts.tensor);
            let (rows, small) = PackedRows::fitting(&t.plan, &t.packed, &(first..last), least).unwrap();
            assert!(!rows.is_empty() && small.len <= least);
            t.places = piece.at(packed.address());
            t.packed = packed;
            let slice = run(std::slice::from_mut(&mut t), kind, &|n| 1..n - 1, 5).remove(0);
            let row = t.plan.matrix.2 * kind.bytes();
            assert!(slice.bytes == whole[first * row..last * row], "{coder} {}", t.plan.name());
        }
    }
}

/// Damage that the oracle notices is reported, as for other schemes, and damage that it does not notice decodes to the same.
#[test]
fn damaged_chunks_are_found_as_the_oracle_finds_them() {
    let cases: usize = std::env::var("WCODEC_CORRUPTIONS").map_or(800, |n| n.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(25);
    let mut all = Vec::new();
    for coder in [Coder::Rans, Coder::Huffman] {
        for bits in [11, 12] {
            let source = sources(&mut rng, &[&[40, 192], &[17, 200]]);
            all.extend(joined(&Container::from_bytes(encode(&source, &options(coder, Some(128), bits))).unwrap()));
        }
    }
    let mut noticed = 0;
    for case in 0..cases {
        let parts = &all[case % all.len()];
        let mut damaged = copy_of(parts);
        let tiled = parts.tensor.planes.iter().enumerate().filter(|(_, p)| matches!(p.form.coding, Coding::Tiles(_)));
        let tiled: Vec<usize> = tiled.map(|(i, _)| i).collect();
        let plane = &mut damaged.planes[tiled[rng.random_range(0..tiled.len())]];
        match rng.random_range(0..8) {
            0 => damage(&mut rng, &mut plane.offsets),
            1 => damage(&mut rng, &mut plane.side),
            _ => damage(&mut rng, &mut plane.data),
        }
        let mut t = Loaded::new(&damaged).unwrap();
        let what = format!("case {case}: {}", t.plan.name());
        let kind = kind_of(&t);
        let got = run(std::slice::from_mut(&mut t), kind, &|n| 0..n, case as u64).remove(0);
        match elements(&damaged) {
            None => {
                noticed += 1;
                assert!(got.status.is_some(), "{what} not reported");
            }
            Some(want) => {
                assert_eq!(got.status, None, "{what} reported");
                assert!(got.bytes == want, "{what} differs");
            }
        }
    }
    assert!(noticed > cases / 3, "{noticed} of {cases} were noticed");
}

/// Tensors that kernels have no room for are refused, with advice.
#[test]
fn what_no_kernel_does_is_refused() {
    let mut rng = StdRng::seed_from_u64(26);
    let source = sources(&mut rng, &[&[48, 64]]);
    let container = Container::from_bytes(encode(&source, &options(Coder::Rans, None, 12))).unwrap();
    let mut parts = container.bytes_of("w0 F32 Weights", &oracle()).unwrap();
    let mut tensor = (*parts.tensor).clone();
    let fields = (0..32).map(|i| [i * 5 % 32, 1]).collect();
    tensor.planes[0].fields = Some(Fields::new(fields).unwrap());
    parts.tensor = Arc::new(tensor.clone());
    let e = TensorPlan::new(&parts).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name()), (crate::ErrorKind::Unsupported, Some("w0 F32 Weights")));
    assert!(e.to_string().contains("32 runs of bits"), "{e}");
    // Fields that do not fit what the plane decodes to.
    tensor.planes[0].fields = Some(Fields::new(vec![[0, 8]]).unwrap());
    parts.tensor = Arc::new(tensor);
    assert_eq!(TensorPlan::new(&parts).unwrap_err().kind(), crate::ErrorKind::Format);
    let plan = TensorPlan::new(&container.bytes_of("w0 BF16 Weights", &oracle()).unwrap()).unwrap();
    assert!(matches!(&plan.planes[..], [Method::Tiles(t)] if t.mode() == Mode::Split));
    for dtype in [Dtype::F32, Dtype::F16, Dtype::I8, Dtype::I16] {
        assert_eq!(plan.output(dtype).unwrap_err().kind(), crate::ErrorKind::Input);
    }
}
