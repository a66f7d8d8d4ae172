//! The data to decode.

use half::{bf16, f16};
use rayon::prelude::*;
use wcodec::{Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Scheme, Source};

use crate::common::{Rng, newer, samples};

/// Coders and layouts.
pub const KINDS: [(Coder, Layout); 7] = [
    (Coder::Rans, Layout::Byte),
    (Coder::Rans, Layout::Pair),
    (Coder::Huffman, Layout::Byte),
    (Coder::Huffman, Layout::Pair),
    (Coder::Huffman, Layout::Quad),
    (Coder::Zstd, Layout::Byte),
    (Coder::Raw, Layout::Byte),
];

pub const GRANULARITIES: [Granularity; 4] =
    [Granularity::Row, Granularity::Tensor, Granularity::Block(64), Granularity::Block(16)];

/// Weights as bytes of `dtype`: most are small, some are large.
pub fn weights(n: usize, dtype: Dtype, seed: u64) -> Vec<u8> {
    const RUN: usize = 1 << 16;
    let mut out = vec![0; n * dtype.size()];
    out.par_chunks_mut(RUN * dtype.size()).enumerate().for_each(|(i, out)| {
        let mut rng = Rng(seed ^ (i as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        for out in out.chunks_mut(dtype.size()) {
            let w = rng.bell();
            let w = if rng.below(40) == 0 { w } else { w * w * w };
            match dtype {
                Dtype::F16 => out.copy_from_slice(&f16::from_f32(w).to_le_bytes()),
                Dtype::BF16 => out.copy_from_slice(&bf16::from_f32(w).to_le_bytes()),
                _ => out.copy_from_slice(&w.to_le_bytes()),
            }
        }
    });
    out
}

/// Adds weights of `shape`.
pub fn push(source: &mut MemorySource<'_>, name: &str, dtype: Dtype, shape: &[usize], rng: &mut Rng) {
    let bytes = weights(shape.iter().product(), dtype, rng.next());
    source.push(name.to_owned(), dtype, shape.to_vec(), bytes.into()).unwrap();
}

/// Every class of shape, and some random ones. Names that begin with `t.` are to be transposed.
pub fn shapes(rng: &mut Rng) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    let dtypes = [Dtype::BF16, Dtype::F32, Dtype::F16];
    let mut add = |name: String, shape: &[usize], rng: &mut Rng| {
        let dtype = dtypes[rng.below(3)];
        push(&mut source, &name, dtype, shape, rng);
    };
    #[rustfmt::skip]
    let fixed: &[&[usize]] = &[
        &[48, 256], &[1, 4096], &[15, 320], &[16, 320], &[17, 320], &[33, 1000], &[64, 129], &[40, 64], &[100, 63], &[31, 1],
        &[1, 1], &[0, 7], &[], &[7], &[256, 2048], &[3, 20, 192], &[2, 2, 16, 96], &[5, 15, 130], &[4, 1, 512], &[20, 5000],
    ];
    for shape in fixed {
        add(format!("w.{shape:?}"), shape, rng);
    }
    for i in 0..3 {
        let shape = [1 + rng.below(90), 1 + rng.below(900)];
        add(format!("chance.{i}.{shape:?}"), &shape, rng);
    }
    for shape in [[130, 96], [64, 48], [257, 31], [512, 16], [300, 300]] {
        add(format!("t.{shape:?}"), &shape, rng);
    }
    source.alias("tied".to_owned(), "w.[48, 256]".to_owned()).unwrap();
    source
}

/// Matrices of bytes, each exercising another part of the format: every shift, raw chunks, patches, filters.
pub fn features(rows: usize, cols: usize, rng: &mut Rng) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    for (what, mut symbols) in samples::layer_symbols(rows, cols) {
        // New data with the same distribution: rows are rotated, and the filtered ones start at another value.
        if matches!(what.as_str(), "left" | "up") {
            let first = rng.next() as i8;
            symbols.iter_mut().for_each(|q| *q = q.wrapping_add(first));
        } else {
            symbols.chunks_mut(cols).for_each(|row| row.rotate_left(rng.below(cols)));
        }
        source.push(what, Dtype::I8, vec![rows, cols], samples::as_bytes(&symbols).into()).unwrap();
    }
    source
}

pub fn encode(source: &MemorySource<'_>, options: &EncodeOptions) -> Container {
    Container::from_bytes(samples::encode(source, options)).unwrap()
}

/// Options with everything but the coder chosen at random.
pub fn options(coder: Coder, layout: Layout, granularity: Granularity, rng: &mut Rng) -> EncodeOptions {
    EncodeOptions {
        scheme: Scheme::Int8(granularity),
        coder,
        layout: Some(layout),
        tile: [None, Some(64), Some(192), Some(512)][rng.below(4)],
        table_bits: Some(11 + u32::from(rng.below(4) > 0)),
        zstd_chunk: [None, Some(1 << 14), Some(1 << 16)][rng.below(3)],
        ..Default::default()
    }
}

/// Options of scheme `rate` with factors for the columns of all matrices of a source; those whose names begin with `t.` are `transposed` or not.
pub fn with_columns(
    source: &MemorySource<'_>,
    coder: Coder,
    layout: Layout,
    transposed: bool,
    rng: &mut Rng,
) -> EncodeOptions {
    let tiles = matches!(coder, Coder::Rans | Coder::Huffman);
    let trellis = tiles && rng.below(2) == 0;
    let matrices = source.tensors().iter().filter_map(|t| {
        let factors = match t.shape[..] {
            [] | [_] => return None,
            [cols, _] if transposed && t.name.starts_with("t.") => cols,
            [_, cols] => cols,
            [count, _, cols] if cols >= 64 => count * cols,
            [_, ref rest @ ..] => rest.iter().product(),
        };
        Some((t.name.to_string(), factors))
    });
    let columns = matrices.map(|(name, n)| (name, (0..n).map(|_| 2f32.powf(4.0 * rng.bell())).collect())).collect();
    EncodeOptions {
        scheme: newer::rate(4.0, trellis),
        step: Some([0.5, 0.2, 0.08, 0.03][rng.below(4)]),
        transpose: if transposed { vec!["t.*".to_owned()] } else { Vec::new() },
        columns,
        ..options(coder, layout, Granularity::Row, rng)
    }
}
