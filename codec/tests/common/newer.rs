//! Small valid containers with the features of format 1.1 (schemes `rate` and `lossless`, filter `trellis`) and of 1.2
//! (layout `quad`), and of 1.3 (factors of columns).

use std::collections::BTreeMap;

use half::{bf16, f16};
use wcodec::{
    Bits, Cancel, Coder, Dtype, EncodeOptions, Layout, Levels, MemorySource, Pool, Rate, Result, Rule, Scheme, Source,
    SourceBytes, SourceTensor,
};

use super::Rng;
use super::samples::{self, Sample, as_bf16, as_bytes, as_f16, encode, encode_options, symbols, weights};

/// Scheme `rate` with `bits` bits per weight, which matter only if no step is given.
pub fn rate(bits: f64, trellis: bool) -> Scheme {
    Scheme::Rate(Rate { bits: Bits::new(bits).unwrap(), trellis })
}

/// The bits of the e5m2 that truncates an f16: its high byte.
pub fn as_e5m2(values: &[f32]) -> Vec<u8> {
    values.iter().map(|&w| (f16::from_f32(w).to_bits() >> 8) as u8).collect()
}

/// Weights with a row of zeros, one of a single value, one with an outlier, and one whose elements differ only in their
/// signs.
fn odd_rows(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut w = weights(rows * cols, seed);
    let mut row = |r: usize, f: &dyn Fn(usize) -> f32| (0..cols).for_each(|c| w[r * cols + c] = f(c));
    row(1, &|_| 0.0);
    row(3, &|_| 0.25);
    row(5, &|c| if c == 7 { 60.0 } else { 0.01 });
    row(7, &|c| if c % 2 == 0 { 1e-3 } else { -1e-3 });
    w
}

/// Weights distributed like most trained ones.
fn bells(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..n).map(|_| rng.bell() * 0.02).collect()
}

/// Odd shapes of every dtype, rows of every kind, a stack, a transposed matrix, a matrix of zeros, and tensors for
/// other schemes.
fn source() -> MemorySource<'static> {
    let mut s = MemorySource::new();
    let mut push = |name: &str, dtype, shape: &[usize], data: Vec<u8>| {
        s.push(name.to_owned(), dtype, shape.to_vec(), data.into()).unwrap();
    };
    push("a.weight", Dtype::BF16, &[30, 130], as_bf16(&odd_rows(30, 130, 41)));
    push("b.weight", Dtype::F32, &[17, 70], as_bytes(&weights(17 * 70, 42)));
    push("c.weight", Dtype::BF16, &[30, 64], as_bf16(&bells(30 * 64, 47)));
    push("stack", Dtype::F16, &[2, 16, 64], as_f16(&weights(2048, 43)));
    push("t.weight", Dtype::F32, &[64, 24], as_bytes(&weights(64 * 24, 44)));
    push("zeros", Dtype::BF16, &[16, 64], as_bf16(&[0.0; 1024]));
    push("codes", Dtype::I8, &[16, 64], as_bytes(&symbols(1024, 20.0, 45)));
    push("norm", Dtype::F32, &[64], as_bytes(&weights(64, 46)));
    push("empty", Dtype::BF16, &[0, 7], Vec::new());
    push("scalar", Dtype::F32, &[], as_bytes(&[1.5f32]));
    s.alias("tied".to_owned(), "a.weight".to_owned()).unwrap();
    s
}

/// Floats of every dtype that scheme `lossless` supports: most distributed like trained weights, a row of any bits
/// including NaNs, and f32 with half of the bits 0.
fn floats() -> MemorySource<'static> {
    let mut s = MemorySource::new();
    let mut rng = Rng(50);
    let mut push = |name: &str, dtype: Dtype, shape: &[usize], bytes: fn(&[f32]) -> Vec<u8>| {
        let small: Vec<f32> = (0..shape.iter().product()).map(|_| rng.bell() * 0.02).collect();
        let mut data = bytes(&small);
        // Arbitrary bits in the second row, unless the tensor must have zero bits.
        let row = shape.last().unwrap() * dtype.size();
        if name != "f32 of bf16" {
            data[row..2 * row].iter_mut().for_each(|byte| *byte = rng.next() as u8);
        }
        s.push(name.to_owned(), dtype, shape.to_vec(), data.into()).unwrap();
    };
    push("bf16", Dtype::BF16, &[31, 64], as_bf16);
    push("f32", Dtype::F32, &[16, 64], |w| {
        // The rounding of a product leaves low bits that are noise.
        as_bytes(&w.iter().map(|&w| (w * 1.618_034 + 1e-4) * (w + 1.234_567)).collect::<Vec<_>>())
    });
    push("f32 of bf16", Dtype::F32, &[15, 64], |w| {
        as_bytes(&w.iter().map(|&w| bf16::from_f32(w).to_f32()).collect::<Vec<_>>())
    });
    // The first one is large enough for a table, which the others share.
    push("e5m2", Dtype::F8_E5M2, &[2, 16, 64], as_e5m2);
    push("e5m2 of FNUZ", Dtype::F8_E5M2FNUZ, &[15, 64], as_e5m2);
    push("e4m3", Dtype::F8_E4M3, &[16, 62], as_e5m2);
    push("f16", Dtype::F16, &[30, 60], as_f16);
    push("t.weight", Dtype::BF16, &[64, 16], as_bf16);
    push("norm", Dtype::F32, &[2, 8], as_bytes);
    s.alias("tied".to_owned(), "bf16".to_owned()).unwrap();
    s
}

/// A source that provides levels.
pub struct Chosen<'a>(pub MemorySource<'a>, pub Levels);

impl Source for Chosen<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        self.0.tensors()
    }
    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        self.0.read_with(index, pool, cancel)
    }
    fn levels_with(&self, _index: usize, _pool: &Pool, _cancel: &Cancel) -> Result<Option<Levels>> {
        Ok(Some(self.1.clone()))
    }
}

/// Coder, layout, tile, whether a trellis chooses, and the step relative to the root mean square of a row: small steps
/// need large shifts.
const RATES: &[(Coder, Layout, usize, bool, f32)] = &[
    (Coder::Rans, Layout::Pair, 64, true, 0.3),
    (Coder::Rans, Layout::Pair, 128, false, 0.02),
    (Coder::Rans, Layout::Pair, 64, true, 0.05),
    (Coder::Rans, Layout::Byte, 128, true, 0.6),
    (Coder::Rans, Layout::Byte, 64, false, 0.1),
    (Coder::Huffman, Layout::Pair, 64, true, 0.06),
    (Coder::Huffman, Layout::Pair, 64, false, 0.02),
    (Coder::Huffman, Layout::Pair, 64, false, 1.2),
    (Coder::Huffman, Layout::Byte, 64, true, 0.2),
    (Coder::Huffman, Layout::Byte, 128, false, 0.4),
    (Coder::Zstd, Layout::Byte, 64, false, 0.7),
    (Coder::Raw, Layout::Byte, 64, false, 0.02),
];

/// For layout `quad`: whether a trellis chooses, the table's bits, and the step.
const QUADS: &[(bool, u32, f32)] =
    &[(true, 10, 0.3), (true, 12, 0.08), (false, 11, 0.9), (false, 8, 0.25), (false, 12, 0.1), (false, 12, 0.02)];

/// Containers of format 1.2: layout `quad` with every scheme that supports it.
pub fn quads() -> Vec<Sample> {
    let mut all = samples::quads_of(&samples::small_source());
    all.extend(samples::layers(Coder::Huffman, Layout::Quad, 48, 192));
    // A strip of noise, whose symbols have no codes in the table of the others.
    let (rows, cols) = (160, 64);
    let mut few = symbols(rows * cols, 2.0, 48);
    let mut rng = Rng(49);
    few[(rows - 16) * cols..].iter_mut().for_each(|q| *q = rng.next() as i8);
    let options = EncodeOptions { table_bits: Some(8), ..encode_options(Coder::Huffman, Layout::Quad, Scheme::Raw) };
    let bytes = wcodec::layer::encode(&few, rows, cols, &options).unwrap();
    all.push(Sample { name: "huffman quad strip of noise".to_owned(), bytes });
    let transpose = || vec!["t.weight".to_owned()];
    for &(trellis, table_bits, step) in QUADS {
        let how = if trellis { "trellis" } else { "levels" };
        let options = EncodeOptions {
            step: Some(step),
            table_bits: Some(table_bits),
            transpose: transpose(),
            ..encode_options(Coder::Huffman, Layout::Quad, rate(4.0, trellis))
        };
        all.push(Sample { name: format!("rate huffman quad {how} {step}"), bytes: encode(&source(), &options) });
    }
    all
}

/// Factors of columns for tensors of [`source`], each of the given number: some of them far from 1.
fn factors() -> BTreeMap<String, Vec<f32>> {
    let of = |n: usize, seed| weights(n, seed).iter().map(|w| (3.0 * w).exp()).collect();
    let all =
        [("a.weight", 130), ("b.weight", 70), ("c.weight", 64), ("stack", 2 * 64), ("t.weight", 64), ("zeros", 64)];
    all.into_iter().zip(61..).map(|((name, n), seed)| (name.to_owned(), of(n, seed))).collect()
}

/// For factors of columns: coder, layout, whether a trellis chooses, and the step.
const COLUMNS: &[(Coder, Layout, bool, f32)] = &[
    (Coder::Rans, Layout::Pair, true, 0.2),
    (Coder::Rans, Layout::Byte, false, 0.3),
    (Coder::Huffman, Layout::Pair, false, 0.4),
    (Coder::Huffman, Layout::Quad, true, 0.1),
    (Coder::Huffman, Layout::Quad, false, 0.5),
    (Coder::Zstd, Layout::Byte, false, 0.5),
    (Coder::Raw, Layout::Byte, false, 0.1),
];

/// Containers of format 1.3: columns with factors in every way to code levels.
pub fn columns() -> Vec<Sample> {
    let transpose = || vec!["t.weight".to_owned()];
    let coded = COLUMNS.iter().map(|&(coder, layout, trellis, step)| {
        let how = if trellis { "trellis" } else { "levels" };
        let options = EncodeOptions {
            step: Some(step),
            columns: factors(),
            transpose: transpose(),
            ..encode_options(coder, layout, rate(4.0, trellis))
        };
        Sample { name: format!("columns {coder} {layout} {how}"), bytes: encode(&source(), &options) }
    });
    // A searched step, and tensors of other schemes and without factors beside those with them.
    let mut columns = factors();
    columns.retain(|name, _| ["b.weight", "stack", "t.weight"].contains(&name.as_str()));
    let searched = EncodeOptions {
        columns,
        transpose: transpose(),
        rules: vec![Rule { pattern: "c.*".to_owned(), scheme: Scheme::Lossless, coder: Coder::Rans }],
        ..encode_options(Coder::Rans, Layout::Pair, rate(5.5, false))
    };
    let searched = Sample { name: "columns of 5.5 bits".to_owned(), bytes: encode(&source(), &searched) };
    coded.chain([searched]).collect()
}

/// Containers of both schemes of format 1.1, one for each coding, and one with all schemes together.
pub fn all() -> Vec<Sample> {
    let mut all = Vec::new();
    let mut add = |name: String, source: &MemorySource<'_>, options: &EncodeOptions| {
        all.push(Sample { name, bytes: encode(source, options) });
    };
    let transpose = || vec!["t.weight".to_owned()];
    for &(coder, layout, tile, trellis, step) in RATES {
        let how = if trellis { "trellis" } else { "levels" };
        let options = EncodeOptions {
            step: Some(step),
            tile: Some(tile),
            transpose: transpose(),
            ..encode_options(coder, layout, rate(4.0, trellis))
        };
        add(format!("rate {coder} {layout} {how} {step}"), &source(), &options);
    }
    // A searched step: everything that a writer does to meet a target of bits.
    let options =
        EncodeOptions { transpose: transpose(), ..encode_options(Coder::Rans, Layout::Pair, rate(5.5, true)) };
    add("rate of 5.5 bits".to_owned(), &source(), &options);
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        let options = EncodeOptions { transpose: transpose(), ..encode_options(coder, Layout::Pair, Scheme::Lossless) };
        add(format!("lossless {coder}"), &floats(), &options);
    }
    add("mixed".to_owned(), &source(), &mixed_options());
    all
}

/// Schemes `rate` and `lossless` for a tensor or two, and `int8` for the others.
fn mixed_options() -> EncodeOptions {
    let rule = |pattern: &str, scheme, coder| Rule { pattern: pattern.to_owned(), scheme, coder };
    let rules = vec![
        rule("{a.*,tied}", rate(4.0, true), Coder::Huffman),
        rule("t.*", rate(4.0, false), Coder::Rans),
        rule("c.*", Scheme::Lossless, Coder::Rans),
    ];
    EncodeOptions {
        rules,
        step: Some(0.3),
        transpose: vec!["t.weight".to_owned()],
        ..encode_options(Coder::Rans, Layout::Pair, Scheme::Int8(wcodec::Granularity::Row))
    }
}
