//! Small valid containers that together use every feature of the format.

use std::collections::BTreeSet;

use half::{bf16, f16};
use wcodec::{
    Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Optimize, Scheme, encode_to_vec,
};

use super::Rng;
use super::image::Image;

/// A container and a name for messages.
#[derive(Clone)]
pub struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// `n` weights with tails: most are small, some are large.
pub fn weights(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..n)
        .map(|_| {
            let w = rng.bell();
            if rng.below(40) == 0 { w } else { w * w * w }
        })
        .collect()
}

/// `n` symbols of magnitude up to `spread`.
pub fn symbols(n: usize, spread: f32, seed: u64) -> Vec<i8> {
    let mut rng = Rng(seed);
    (0..n).map(|_| (rng.bell() * spread).round_ties_even() as i8).collect()
}

pub fn as_bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub fn as_bf16(values: &[f32]) -> Vec<u8> {
    as_bytes(&values.iter().map(|&w| bf16::from_f32(w)).collect::<Vec<_>>())
}

pub fn as_f16(values: &[f32]) -> Vec<u8> {
    as_bytes(&values.iter().map(|&w| f16::from_f32(w)).collect::<Vec<_>>())
}

/// Two matrices with the same distribution, so that they share a table; a stack; a transposed matrix; plain bytes; an
/// empty tensor; a scalar; and a tied name.
pub fn source() -> MemorySource<'static> {
    source_of([32, 192], [46, 250], [2, 16, 128], [128, 32], [32, 128])
}

/// As [`source`], with fewer elements, for files in the repository.
pub fn small_source() -> MemorySource<'static> {
    source_of([16, 128], [30, 64], [2, 16, 64], [64, 24], [16, 64])
}

fn source_of(
    a: [usize; 2],
    b: [usize; 2],
    stack: [usize; 3],
    t: [usize; 2],
    codes: [usize; 2],
) -> MemorySource<'static> {
    let mut s = MemorySource::new();
    let mut push = |name: &str, dtype, shape: &[usize], data: Vec<u8>| {
        s.push(name.to_owned(), dtype, shape.to_vec(), data.into()).unwrap();
    };
    let tailed = |shape: &[usize], seed| weights(shape.iter().product(), seed);
    push("a.weight", Dtype::BF16, &a, as_bf16(&tailed(&a, 1)));
    push("b.weight", Dtype::F32, &b, as_bytes(&tailed(&b, 2)));
    push("stack", Dtype::F16, &stack, as_f16(&tailed(&stack, 3)));
    push("t.weight", Dtype::F32, &t, as_bytes(&tailed(&t, 4)));
    push("codes", Dtype::I8, &codes, as_bytes(&symbols(codes[0] * codes[1], 20.0, 5)));
    push("norm", Dtype::F32, &[64], as_bytes(&weights(64, 6)));
    push("empty", Dtype::BF16, &[0, 7], Vec::new());
    push("scalar", Dtype::F32, &[], as_bytes(&[1.5f32]));
    s.alias("tied".to_owned(), "a.weight".to_owned()).unwrap();
    s.set_metadata([("format".to_owned(), "pt".to_owned())].into());
    s
}

pub fn encode(source: &MemorySource<'_>, options: &EncodeOptions) -> Vec<u8> {
    encode_to_vec(source, options, &mut |_| Ok(())).unwrap().0
}

/// Narrow tiles and short frames, so that a few thousand symbols make several chunks.
pub fn encode_options(coder: Coder, layout: Layout, scheme: Scheme) -> EncodeOptions {
    let (layout, tile, zstd_chunk) = (Some(layout), Some(64), Some(1920));
    EncodeOptions { scheme, coder, layout, tile, zstd_chunk, ..EncodeOptions::of(Optimize::Size) }
}

const KINDS: &[(&str, Coder, Layout, Scheme)] = &[
    ("rans pair row", Coder::Rans, Layout::Pair, Scheme::Int8(Granularity::Row)),
    ("rans byte block", Coder::Rans, Layout::Byte, Scheme::Int8(Granularity::Block(64))),
    ("huffman pair tensor", Coder::Huffman, Layout::Pair, Scheme::Int8(Granularity::Tensor)),
    ("huffman byte row", Coder::Huffman, Layout::Byte, Scheme::Int8(Granularity::Row)),
    ("zstd block", Coder::Zstd, Layout::Byte, Scheme::Int8(Granularity::Block(128))),
    ("raw row", Coder::Raw, Layout::Byte, Scheme::Int8(Granularity::Row)),
    ("zstd of raw", Coder::Zstd, Layout::Byte, Scheme::Raw),
];

/// The samples that format 1.2 adds.
const QUADS: &[(&str, Coder, Layout, Scheme)] = &[
    ("huffman quad row", Coder::Huffman, Layout::Quad, Scheme::Int8(Granularity::Row)),
    ("huffman quad block", Coder::Huffman, Layout::Quad, Scheme::Int8(Granularity::Block(64))),
];

/// One container for each coder, layout and scheme, with all the tensors of [`source`].
pub fn all() -> Vec<Sample> {
    [all_of(&source()), quads_of(&source())].concat()
}

/// One container of `source` for each coder, layout and scheme of format 1.0.
pub fn all_of(source: &MemorySource<'_>) -> Vec<Sample> {
    kinds_of(source, KINDS)
}

/// Containers of `source` in layout `quad`.
pub fn quads_of(source: &MemorySource<'_>) -> Vec<Sample> {
    kinds_of(source, QUADS)
}

fn kinds_of(source: &MemorySource<'_>, kinds: &[(&str, Coder, Layout, Scheme)]) -> Vec<Sample> {
    let make = |&(name, coder, layout, scheme): &(&str, Coder, Layout, Scheme)| {
        let options = EncodeOptions {
            transpose: if scheme == Scheme::Raw { Vec::new() } else { vec!["t.weight".to_owned()] },
            ..encode_options(coder, layout, scheme)
        };
        Sample { name: name.to_owned(), bytes: encode(source, &options) }
    };
    kinds.iter().map(make).collect()
}

/// Containers with one weight, one tensor of wide raw elements that zstd compresses, and an alias: short indexes, for
/// tests that try many changes.
pub fn minis() -> Vec<Sample> {
    let make = |&(name, coder, layout, scheme): &(&str, Coder, Layout, Scheme)| {
        let mut s = MemorySource::new();
        s.push("w".to_owned(), Dtype::BF16, vec![48, 128], as_bf16(&weights(48 * 128, 11)).into()).unwrap();
        let steps: Vec<f32> = (0..512).map(|i| (i / 64) as f32).collect();
        s.push("steps".to_owned(), Dtype::F32, vec![512], as_bytes(&steps).into()).unwrap();
        s.alias("tied".to_owned(), "w".to_owned()).unwrap();
        Sample { name: name.to_owned(), bytes: encode(&s, &encode_options(coder, layout, scheme)) }
    };
    KINDS.iter().chain(QUADS).map(make).collect()
}

/// The sample of [`minis`] called `name`.
pub fn mini(name: &str) -> Vec<u8> {
    minis().into_iter().find(|s| s.name == name).expect("a sample of this name").bytes
}

/// Int8 matrices that exercise one feature each: every shift, raw chunks, patches, filters.
pub fn layer_symbols(rows: usize, cols: usize) -> Vec<(String, Vec<i8>)> {
    let n = rows * cols;
    let mut shapes: Vec<(String, Vec<i8>)> =
        [3.0, 30.0, 67.0, 127.0].map(|spread| (format!("spread {spread}"), symbols(n, spread, 21))).into();
    // Two low bits of noise below a bit that is never set: shift 2 is best.
    let eights = symbols(n, 7.0, 26).iter().zip(symbols(n, 127.0, 27)).map(|(&a, b)| (a * 8) ^ (b & 3)).collect();
    shapes.push(("eights".to_owned(), eights));
    let mut noise = symbols(n, 6.0, 22);
    let mut rng = Rng(23);
    // The last strip is incompressible, so that its chunks are stored raw among coded ones.
    noise[(rows - 16) * cols..].iter_mut().for_each(|q| *q = rng.next() as i8);
    shapes.push(("raw chunks".to_owned(), noise));
    let mut outliers = symbols(n, 4.0, 24);
    (0..n).step_by(97).for_each(|i| outliers[i] = if i % 2 == 0 { 127 } else { -128 });
    shapes.push(("patches".to_owned(), outliers));
    shapes.push(("left".to_owned(), (0..n).map(|i| ((i % cols) * (1 + i / cols % 3) + i / cols * 37) as i8).collect()));
    let steps = symbols(n, 60.0, 25);
    shapes.push(("up".to_owned(), (0..n).map(|i| steps[i % cols].wrapping_add((i / cols) as i8)).collect()));
    shapes
}

/// A container of each of [`layer_symbols`].
pub fn layers(coder: Coder, layout: Layout, rows: usize, cols: usize) -> Vec<Sample> {
    let options = encode_options(coder, layout, Scheme::Raw);
    let make = |(what, data): (String, Vec<i8>)| Sample {
        name: format!("{coder} {layout} {what}"),
        bytes: wcodec::layer::encode(&data, rows, cols, &options).unwrap(),
    };
    layer_symbols(rows, cols).into_iter().map(make).collect()
}

/// [`layers`] of every coder and layout.
pub fn all_layers() -> Vec<Sample> {
    let kinds = [
        (Coder::Rans, Layout::Byte),
        (Coder::Rans, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
        (Coder::Huffman, Layout::Quad),
        (Coder::Zstd, Layout::Byte),
    ];
    kinds.into_iter().flat_map(|(c, l)| layers(c, l, 48, 192)).collect()
}

/// Fails if `samples` lack a coder, layout, shift, filter, scheme or kind of segment.
pub fn assert_coverage(samples: &[Sample]) {
    let mut seen = BTreeSet::new();
    for s in samples {
        let container = Container::from_bytes(s.bytes.clone()).unwrap();
        for place in Image::new(&s.bytes).places() {
            seen.insert(place.role.to_owned());
            if place.role == "table" && place.tensors.len() > 1 {
                seen.insert("shared table".to_owned());
            }
        }
        for t in container.infos().unwrap() {
            let plane = &t.planes[0];
            let layout = plane.layout.clone().unwrap_or_default();
            let shift = plane.shift.map_or_else(String::new, |s| format!(" {s}"));
            seen.insert(format!("{} {layout}{shift}", t.coder()));
            seen.insert(format!("filter {} {}", plane.filter, t.coder()));
            if plane.tile.is_some() {
                let chunks = (0..t.chunks()).map(|i| container.chunk(&t.name, i).unwrap());
                // A full tile of 64 columns; and a count of patches before the first chunk.
                if layout == "byte" && chunks.into_iter().any(|c| c.length == 1024) {
                    seen.insert(format!("raw chunk {}", t.coder()));
                }
                let data = t.segments.iter().find(|s| s.role == "data").unwrap().offset as usize;
                if plane.shift.is_some_and(|s| s < 3) && s.bytes[data] > 1 {
                    seen.insert(format!("patches {}", t.coder()));
                }
            }
            seen.insert(t.scales.unwrap_or_default().into());
            seen.insert(format!("row axis {}", t.row_axis));
            seen.insert(format!("count {}", t.count));
        }
        if !container.aliases().is_empty() {
            seen.insert("aliases".to_owned());
        }
    }
    let mut want = vec!["table", "shared table", "offsets", "data", "side", "scales", "raw ", "zstd ", "aliases"];
    want.extend(["row", "tensor", "block 64", "row axis 1", "count 2", "rans byte", "huffman byte"]);
    want.extend(["rans pair 0", "rans pair 1", "rans pair 2", "rans pair 3"]);
    want.extend(["huffman pair 0", "huffman pair 1", "huffman pair 2", "huffman pair 3"]);
    want.extend(["raw chunk rans", "raw chunk huffman", "patches rans", "patches huffman"]);
    want.extend(["filter left rans", "filter left huffman", "filter left zstd"]);
    want.extend(["filter up rans", "filter up huffman", "filter up zstd"]);
    want.retain(|w| !seen.contains(*w));
    assert!(want.is_empty(), "no sample has {want:?}; there are {seen:?}");
}
