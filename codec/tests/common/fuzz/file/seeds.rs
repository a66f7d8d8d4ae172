//! The files that are mutated: small containers that together use every feature of the format, and the golden ones.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use half::bf16;
use serde_json::json;
use wcodec::{Coder, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Scheme, Source};

use super::super::{Rng, files};
use super::draft::Draft;
use crate::common::newer::{as_e5m2, rate};
use crate::common::samples::{as_bf16, as_bytes, as_f16, encode, encode_options, layer_symbols, symbols, weights};

/// A container to start from.
pub struct Seed {
    pub name: String,
    pub draft: Draft,
}

/// All of them; the first [`SMALL`] are small.
pub static SEEDS: LazyLock<Vec<Seed>> = LazyLock::new(|| {
    let seed = |(name, bytes): (String, Vec<u8>)| Seed { name, draft: Draft::new(&bytes) };
    let small = small().into_iter().map(seed);
    let golden = ["golden", "golden-1.1", "golden-1.2", "golden-1.3"].into_iter().flat_map(|folder| {
        let named = files(folder).into_iter().enumerate().map(move |(i, file)| (format!("{folder} {i}"), file));
        named.filter(|(_, file)| file.starts_with(b"\x89WCODEC"))
    });
    small.chain(golden.map(seed)).collect()
});

/// The number of [`SEEDS`] that are made here.
pub static SMALL: LazyLock<usize> = LazyLock::new(|| SEEDS.iter().filter(|s| !s.name.starts_with("golden")).count());

/// Two matrices that share a table, one of them transposed or a stack; an unencoded tensor; a tied name.
fn source(kind: usize) -> MemorySource<'static> {
    let mut s = MemorySource::new();
    let mut push = |name: &str, dtype: Dtype, shape: &[usize], w: &[f32]| {
        let data = match dtype {
            Dtype::BF16 => as_bf16(w),
            Dtype::F16 => as_f16(w),
            _ => as_bytes(w),
        };
        s.push(name.to_owned(), dtype, shape.to_vec(), data.into()).unwrap();
    };
    let dtypes = [Dtype::BF16, Dtype::F32, Dtype::F16];
    let rows = if kind % 3 == 2 { 16 } else { 21 };
    push("w.weight", dtypes[kind % 3], &[rows, 130], &weights(rows * 130, kind as u64));
    match kind % 4 {
        0 => push("t.weight", dtypes[(kind + 1) % 3], &[64, 18], &weights(64 * 18, 70)),
        1 => push("stack", dtypes[(kind + 1) % 3], &[2, 17, 32], &weights(2 * 17 * 32, 71)),
        2 => push("norm", Dtype::F32, &[9], &weights(9, 72)),
        _ => push("empty", Dtype::BF16, &[0, 3], &[]),
    }
    s.alias("tied".to_owned(), "w.weight".to_owned()).unwrap();
    s
}

/// Floats that are stored losslessly.
fn floats(which: usize) -> MemorySource<'static> {
    let mut s = MemorySource::new();
    let mut rng = Rng(80 + which as u64);
    let mut push = |name: &str, dtype: Dtype, shape: &[usize], bytes: fn(&[f32]) -> Vec<u8>| {
        let w: Vec<f32> = (0..shape.iter().product()).map(|_| rng.bell() * 0.02).collect();
        s.push(name.to_owned(), dtype, shape.to_vec(), bytes(&w).into()).unwrap();
    };
    match which % 4 {
        0 => {
            push("bf16", Dtype::BF16, &[18, 130], as_bf16);
            push("t.weight", Dtype::BF16, &[64, 16], as_bf16);
        }
        1 => push("f32", Dtype::F32, &[17, 70], |w| {
            as_bytes(&w.iter().map(|&w| (w * 1.618_034 + 1e-4) * (w + 1.234_567)).collect::<Vec<_>>())
        }),
        2 => {
            push("f16", Dtype::F16, &[20, 66], as_f16);
            push("f32 of bf16", Dtype::F32, &[16, 64], |w| {
                as_bytes(&w.iter().map(|&w| bf16::from_f32(w).to_f32()).collect::<Vec<_>>())
            });
        }
        _ => {
            push("e5m2", Dtype::F8_E5M2, &[2, 16, 66], as_e5m2);
            push("e4m3", Dtype::F8_E4M3, &[16, 64], as_e5m2);
        }
    }
    s
}

/// Coder, layout, scheme, bits of the table and step of the files made from [`source`].
type Kind = (Coder, Layout, Scheme, u32, Option<f32>);

fn kinds() -> Vec<Kind> {
    use Coder::{Huffman, Rans, Raw, Zstd};
    use Layout::{Byte, Pair, Quad};
    let int8 = Scheme::Int8;
    let mut kinds = vec![
        (Rans, Pair, int8(Granularity::Row), 12, None),
        (Rans, Byte, int8(Granularity::Block(64)), 11, None),
        (Rans, Pair, int8(Granularity::Tensor), 12, None),
        (Huffman, Pair, int8(Granularity::Tensor), 12, None),
        (Huffman, Byte, int8(Granularity::Row), 10, None),
        (Huffman, Pair, int8(Granularity::Block(16)), 9, None),
        (Huffman, Quad, int8(Granularity::Row), 11, None),
        (Huffman, Quad, int8(Granularity::Block(64)), 8, None),
        (Zstd, Byte, int8(Granularity::Block(128)), 12, None),
        (Raw, Byte, int8(Granularity::Row), 12, None),
        (Zstd, Byte, Scheme::Raw, 12, None),
    ];
    let rates = [
        (Rans, Pair, 12, true, 0.3),
        (Rans, Pair, 12, false, 0.02),
        (Rans, Byte, 12, true, 0.6),
        (Rans, Pair, 11, true, 0.05),
        (Huffman, Pair, 10, true, 0.06),
        (Huffman, Pair, 12, false, 1.2),
        (Huffman, Byte, 12, true, 0.2),
        (Huffman, Quad, 10, true, 0.3),
        (Huffman, Quad, 12, true, 0.08),
        (Huffman, Quad, 11, false, 0.9),
        (Huffman, Quad, 8, false, 0.2),
        (Huffman, Quad, 12, false, 0.02),
        (Zstd, Byte, 12, false, 0.7),
        (Raw, Byte, 12, false, 0.02),
    ];
    kinds.extend(
        rates.map(|(coder, layout, bits, trellis, step)| (coder, layout, rate(4.0, trellis), bits, Some(step))),
    );
    kinds
}

/// Factors for the columns of the matrices of [`source`].
fn factors(source: &MemorySource<'_>) -> BTreeMap<String, Vec<f32>> {
    let of = |n: usize| weights(n, 90).iter().map(|w| (2.0 * w).exp()).collect::<Vec<f32>>();
    let all = [("w.weight", 130), ("t.weight", 64), ("stack", 17 * 32)];
    let there = |name: &str| source.tensors().iter().any(|t| t.name == name);
    all.into_iter().filter(|(name, _)| there(name)).map(|(name, n)| (name.to_owned(), of(n))).collect()
}

/// The tensors that are stored transposed.
fn transposed(source: &MemorySource<'_>) -> Vec<String> {
    source.tensors().iter().map(|t| t.name.clone()).filter(|name| name == "t.weight").collect()
}

fn small() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (i, (coder, layout, scheme, table_bits, step)) in kinds().into_iter().enumerate() {
        let source = source(i);
        let transpose = if scheme == Scheme::Raw { Vec::new() } else { transposed(&source) };
        let options =
            EncodeOptions { table_bits: Some(table_bits), step, transpose, ..encode_options(coder, layout, scheme) };
        all.push((format!("{coder} {layout} {} {i}", scheme.kind()), encode(&source, &options)));
        if step.is_some() && i % 3 == 0 {
            let options = EncodeOptions { columns: factors(&source), ..options };
            all.push((format!("{coder} {layout} columns {i}"), encode(&source, &options)));
        }
    }
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        for which in 0..4 {
            let source = floats(which);
            let options = EncodeOptions {
                transpose: transposed(&source),
                ..encode_options(coder, Layout::Pair, Scheme::Lossless)
            };
            all.push((format!("{coder} lossless {which}"), encode(&source, &options)));
        }
    }
    let layouts = [
        (Coder::Rans, Layout::Byte),
        (Coder::Rans, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
        (Coder::Huffman, Layout::Quad),
        (Coder::Zstd, Layout::Byte),
    ];
    for (coder, layout) in layouts {
        for (what, data) in layer_symbols(48, 66) {
            let options = encode_options(coder, layout, Scheme::Raw);
            all.push((format!("{coder} {layout} {what}"), wcodec::layer::encode(&data, 48, 66, &options).unwrap()));
        }
    }
    // A few bytes of each dtype, stored raw.
    let mut plain = MemorySource::new();
    let dtypes = ["BOOL", "U8", "I8", "F8_E8M0", "I16", "F16", "BF16", "I32", "F32", "F64", "C64"];
    for (i, dtype) in dtypes.into_iter().map(|name| Dtype::from_name(name).unwrap()).enumerate() {
        let bytes = as_bytes(&symbols(6 * dtype.size(), 90.0, i as u64));
        plain.push(format!("plain.{dtype}"), dtype, vec![3, 2], bytes.into()).unwrap();
    }
    let options = encode_options(Coder::Raw, Layout::Byte, Scheme::Raw);
    all.push(("plain".to_owned(), encode(&plain, &options)));
    let options = EncodeOptions { step: Some(0.3), ..encode_options(Coder::Rans, Layout::Pair, rate(4.0, true)) };
    all.push(("stated".to_owned(), stated(&encode(&source(0), &options))));
    all
}

/// Adds everything that people read: a plan, measurements, a model.
fn stated(bytes: &[u8]) -> Vec<u8> {
    let mut draft = Draft::new(bytes);
    let plan = json!({"version": 1, "target": "3.5 bits", "recipe": "rate 3.5", "scheme": "rate", "bits": 3.5, "trellis": true, "candidates": [
        {"recipe": "rate 3.5", "bits_asked": 3.5, "bits_stored": 3.52, "file_bytes": 4096, "kl": 0.01, "perplexity": 9.5, "top1_agreement": 0.9, "taken": true},
        {"recipe": "rate 3", "bits_asked": 3.0, "bits_stored": 3.01, "file_bytes": 3072, "kl": null, "perplexity": null, "top1_agreement": null, "taken": false}]});
    let quality = json!({"version": 1, "kl": 0.01, "kl_error": 0.001, "perplexity": 9.5, "original_perplexity": 9.4, "top1_agreement": 0.9,
        "tokens": 2048, "windows": 8, "window": 256, "text_sha256": "00", "dtype": "float32"});
    draft.index["metadata"] =
        json!({"format": "pt", "wcodec.plan": plan.to_string(), "wcodec.quality": quality.to_string()});
    draft.index["model"] = json!({"config": {"architectures": ["LlamaForCausalLM"], "hidden_size": 130, "num_hidden_layers": 1}, "files": ["tokenizer.json"]});
    draft.seal()
}
