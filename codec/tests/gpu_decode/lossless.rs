//! Scheme `lossless`: every bit of every dtype, coder and shape, from device memory and from host memory.

use wcodec::gpu::{GpuDecoder, GpuOptions, HostDecoder, Sizes, Stream};
use wcodec::{Coder, Container, Dtype, EncodeOptions, MemorySource, Scheme};

use crate::common::Rng;
use crate::data;
use crate::rig::{Outputs, Rig, Want, new_seed, shuffle};
use crate::slices;

const DTYPES: [Dtype; 5] = [Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F8_E4M3, Dtype::F8_E5M2];
const CODERS: [Coder; 4] = [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw];

/// Options with everything but the coder chosen at random.
pub fn options(coder: Coder, rng: &mut Rng) -> EncodeOptions {
    let options = data::options(coder, wcodec::Layout::Byte, data::GRANULARITIES[0], rng);
    EncodeOptions { scheme: Scheme::Lossless, transpose: vec!["t.*".to_owned()], ..options }
}

/// Bits of floats: weights, weights with arbitrary bits among them, and weights that once had fewer bits, so that each
/// sort is joined from other planes.
fn floats(n: usize, dtype: Dtype, sort: usize, rng: &mut Rng) -> Vec<u8> {
    let size = dtype.size();
    let mut weight = || rng.bell() * 0.05;
    let mut bytes: Vec<u8> = match dtype {
        Dtype::BF16 => (0..n).flat_map(|_| half::bf16::from_f32(weight()).to_le_bytes()).collect(),
        Dtype::F16 => (0..n).flat_map(|_| half::f16::from_f32(weight()).to_le_bytes()).collect(),
        Dtype::F32 => (0..n).flat_map(|_| weight().to_le_bytes()).collect(),
        _ => (0..n).map(|_| half::f16::from_f32(weight()).to_le_bytes()[1]).collect(),
    };
    for (i, element) in bytes.chunks_mut(size).enumerate() {
        match (sort % 4, dtype) {
            (1, _) if i % 7 == 0 || i % 4096 < 1024 => element.iter_mut().for_each(|b| *b = rng.next() as u8),
            (2, Dtype::F32) => element[..2].fill(0),
            (2, Dtype::F16 | Dtype::BF16) => element[0] &= 0xF0,
            (3, Dtype::F32) => {
                let narrow = half::f16::from_f32(f32::from_le_bytes(element.try_into().unwrap()));
                element.copy_from_slice(&narrow.to_f32().to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

fn push(source: &mut MemorySource<'_>, name: &str, dtype: Dtype, shape: &[usize], sort: usize, rng: &mut Rng) {
    let bytes = floats(shape.iter().product(), dtype, sort, rng);
    source.push(name.to_owned(), dtype, shape.to_vec(), bytes.into()).unwrap();
}

/// Every dtype and sort of bits in shapes of every class. Names that begin with `t.` are to be transposed.
pub fn source(rng: &mut Rng) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    #[rustfmt::skip]
    let shapes: &[&[usize]] = &[
        &[48, 256], &[300, 1100], &[17, 320], &[33, 1000], &[64, 129], &[31, 1], &[1, 4096], &[3, 20, 192], &[2, 40, 256], &[256, 2048],
    ];
    for (i, shape) in shapes.iter().enumerate() {
        for dtype in DTYPES {
            push(&mut source, &format!("w.{shape:?}.{dtype}"), dtype, shape, i, rng);
        }
    }
    for sort in 0..4 {
        for dtype in DTYPES {
            let (wide, narrow) = ([100, 512], [1 + rng.below(200), 1 + rng.below(700)]);
            push(&mut source, &format!("w.{sort}.{dtype}"), dtype, &wide, sort, rng);
            push(&mut source, &format!("chance.{sort}.{dtype}"), dtype, &narrow, sort, rng);
            push(&mut source, &format!("t.{sort}.{dtype}"), dtype, &[130, 96], sort, rng);
        }
    }
    source.alias("tied".to_owned(), "w.0.BF16".to_owned()).unwrap();
    source
}

fn lossless(container: &Container) -> usize {
    container.infos().unwrap().iter().filter(|t| t.scheme == "lossless").count()
}

/// Runs without a GPU: the tests below decode the intended planes.
#[test]
fn the_planes_are_of_every_kind() {
    let mut rng = Rng(new_seed());
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        let container = data::encode(&source(&mut rng), &options(coder, &mut rng));
        let infos = container.infos().unwrap();
        let count = |of: &dyn Fn(&wcodec::TensorInfo) -> bool| {
            infos.iter().filter(|t| t.scheme == "lossless" && t.coder() == coder.name() && of(t)).count()
        };
        let counts = [count(&|_| true), count(&|t| t.planes.len() > 1), count(&|t| t.row_axis == 1)];
        println!("{coder}: {counts:?} of {}", infos.len());
        assert!(counts[0] > 50 && counts[1] >= 8 && counts[2] >= 8, "{coder}: {counts:?} of {}", infos.len());
    }
}

fn equals_the_oracle(coder: Coder) {
    let Some(mut rig) = Rig::new() else { return };
    if coder == Coder::Zstd && !rig.has_nvcomp() {
        return;
    }
    for _ in 0..4 {
        let container = data::encode(&source(&mut rig.rng), &options(coder, &mut rig.rng));
        assert!(coder == Coder::Raw || lossless(&container) > 50, "{coder}: {}", lossless(&container));
        let gpu = GpuOptions { overlap: rig.rng.below(2) == 0, ..Default::default() };
        let n = rig.compare_container(&container, &gpu, &format!("lossless {coder}"));
        assert_eq!(n, container.infos().unwrap().len());
    }
}

#[test]
fn rans_equals_the_oracle() {
    equals_the_oracle(Coder::Rans);
}

#[test]
fn huffman_equals_the_oracle() {
    equals_the_oracle(Coder::Huffman);
}

#[test]
fn zstd_equals_the_oracle() {
    equals_the_oracle(Coder::Zstd);
}

#[test]
fn raw_equals_the_oracle() {
    equals_the_oracle(Coder::Raw);
}

#[test]
fn large_matrices_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for coder in [Coder::Rans, Coder::Huffman] {
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let mut source = MemorySource::new();
            for sort in 0..3 {
                push(&mut source, &format!("w{sort}"), dtype, &[8000, 2048], sort, &mut rig.rng);
            }
            let container =
                data::encode(&source, &EncodeOptions { scheme: Scheme::Lossless, coder, ..Default::default() });
            assert_eq!(lossless(&container), 3);
            rig.compare_container(&container, &GpuOptions::default(), &format!("large {dtype} of {coder}"));
        }
    }
}

#[test]
fn slices_are_parts_of_the_whole() {
    let Some(mut rig) = Rig::new() else { return };
    for coder in CODERS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let options = EncodeOptions { transpose: Vec::new(), ..options(coder, &mut rig.rng) };
        let container = data::encode(&source(&mut rig.rng), &options);
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        let infos = container.infos().unwrap();
        let wants: Vec<Want> = infos.iter().flat_map(|t| slices::some(&container, t, 4, &mut rig.rng)).collect();
        rig.compare(&decoder, &wants, &format!("rows of lossless {coder}"));
    }
}

#[test]
fn tensors_from_the_host_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for coder in CODERS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let container = data::encode(&source(&mut rig.rng), &options(coder, &mut rig.rng));
        let infos = container.infos().unwrap();
        let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
        let sizes = Sizes::new(&container, &names).unwrap();
        for ring in [0, 200_000, 128 << 20] {
            let gpu = GpuOptions { ring, ..Default::default() };
            let says = |on_host| sizes.footprint(0..names.len(), on_host, &gpu, Some(&rig.device)).unwrap().total();
            let there = GpuDecoder::new(&rig.device, &container, &names, &gpu).unwrap();
            assert_eq!(there.device_bytes(), says(false), "lossless {coder}");
            let decoder = HostDecoder::new(&rig.device, &container, &names, &gpu).unwrap();
            assert_eq!(decoder.device_bytes(), says(true), "lossless {coder}, ring of {ring}");
            let mut wants = Want::everything(&container, &infos, &mut rig.rng);
            let stream = Stream::new(&rig.device).unwrap();
            for _ in 0..2 {
                shuffle(&mut rig.rng, &mut wants);
                let mut outputs = Outputs::new(&mut rig, &wants);
                outputs.poison(&mut rig.rng, &stream);
                // SAFETY: the outputs hold the items and outlive the work, which `check` waits for.
                unsafe { decoder.decode(&outputs.items(&wants), &stream) }.unwrap();
                decoder.check(&stream).unwrap();
                outputs.assert_equal(&wants, &stream, &format!("lossless {coder}, ring of {ring}"));
            }
        }
    }
}

/// Requests one tensor at several places in one call, which batches of several planes must not mix up.
#[test]
fn tensors_that_are_wanted_twice() {
    let Some(mut rig) = Rig::new() else { return };
    for coder in [Coder::Rans, Coder::Huffman] {
        let container = data::encode(&source(&mut rig.rng), &options(coder, &mut rig.rng));
        let infos = container.infos().unwrap();
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        let mut wants = Want::everything(&container, &infos, &mut rig.rng);
        wants.extend(Want::everything(&container, &infos, &mut rig.rng));
        shuffle(&mut rig.rng, &mut wants);
        for _ in 0..3 {
            rig.compare(&decoder, &wants, &format!("lossless {coder} twice"));
        }
    }
}
