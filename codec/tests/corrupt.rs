//! The corrupt corpus: files in `tests/data/corrupt`, each with one fault, and the expected error for each.
//!
//! The corpus polices itself: a file without a row fails, and so does a row without a file. The files stay unchanged
//! while the code that made them changes; `cargo test --test corrupt -- --ignored` writes those of new rows. Files
//! whose names begin with `found-` are not made by code here: they found defects.

#[path = "common/allocator.rs"]
mod allocator;
mod common;

use std::path::PathBuf;

use common::image::{Image, flipped, reseal_header};
use common::zstd_frame::Frame;
use common::{read_everywhere, samples, text};
use serde_json::json;
use wcodec::ErrorKind::{self, Corrupt, Format, Input, Unsupported};
use wcodec::container::Header;
use wcodec::{
    Bits, Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Rate, Scheme, VerifyStatus,
};

#[global_allocator]
static ALLOCATOR: allocator::Limited = allocator::Limited;

/// The step at which the error appears.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// When the file is opened.
    Open,
    /// When tensor `w` is read, with or without comparing hashes; the other tensor is sound.
    Tensor,
    /// When tensor `w` is read with hashes compared; otherwise it decodes to something.
    Hash,
    /// When the file is verified; all tensors are sound.
    Verify,
}

struct Row {
    file: &'static str,
    at: At,
    kind: ErrorKind,
    /// Part of the message.
    words: &'static str,
    make: fn() -> Vec<u8>,
}

const fn row(file: &'static str, at: At, kind: ErrorKind, words: &'static str, make: fn() -> Vec<u8>) -> Row {
    Row { file, at, kind, words, make }
}

/// A weight `w` and some plain bytes `ok`.
fn base(coder: Coder, layout: Layout) -> Image {
    of_scheme(coder, layout, Scheme::Int8(Granularity::Row))
}

/// Levels of scheme `rate`, those of a trellis if the coder supports one.
fn rate(coder: Coder) -> Image {
    let trellis = coder == Coder::Huffman;
    of_scheme(coder, Layout::Pair, Scheme::Rate(Rate { bits: Bits::new(4.0).unwrap(), trellis }))
}

/// The container of `base`, with another scheme.
fn of_scheme(coder: Coder, layout: Layout, scheme: Scheme) -> Image {
    // Raw planes have no overhead to recover, so they may be small.
    let shape = if coder == Coder::Raw { [8, 16] } else { [16, 128] };
    let mut s = MemorySource::new();
    // So concentrated near 0 that even so few weights outweigh a table.
    let w: Vec<f32> = samples::weights(shape[0] * shape[1], 91).iter().map(|w| w * w * w).collect();
    let w = samples::as_bf16(&w);
    s.push("w".to_owned(), Dtype::BF16, shape.to_vec(), w.into()).unwrap();
    s.push("ok".to_owned(), Dtype::F32, vec![5], samples::as_bytes(&[1f32, 2.0, 3.0, 4.0, 5.0]).into()).unwrap();
    s.alias("tied".to_owned(), "w".to_owned()).unwrap();
    // Two blocks per tile, so that a side plane has words besides the tails.
    let options = EncodeOptions {
        zstd_chunk: Some(2048),
        tile: Some(128),
        step: Some(0.25),
        ..samples::encode_options(coder, layout, scheme)
    };
    let image = Image::new(&samples::encode(&s, &options));
    assert_eq!(image.index["tensors"][0]["planes"][0]["coder"], coder.name(), "the base is too small to be coded");
    image
}

fn pair() -> Image {
    base(Coder::Rans, Layout::Pair)
}

fn byte() -> Image {
    base(Coder::Rans, Layout::Byte)
}

fn huffman() -> Image {
    base(Coder::Huffman, Layout::Byte)
}

fn quad() -> Image {
    base(Coder::Huffman, Layout::Quad)
}

fn zstd() -> Image {
    base(Coder::Zstd, Layout::Byte)
}

fn raw() -> Image {
    base(Coder::Raw, Layout::Byte)
}

const DATA: &str = "/tensors/0/planes/0/data";
const OFFSETS: &str = "/tensors/0/planes/0/offsets";
const SIDE: &str = "/tensors/0/planes/0/side";
const SCALES: &str = "/tensors/0/scales/data";
const TABLE: &str = "/tables/0/data";

/// One bit of a segment flipped and nothing else.
fn flip(image: Image, pointer: &str, byte: usize) -> Vec<u8> {
    let at = image.place(pointer).offset + byte;
    flipped(&image.seal(), at * 8 + 3)
}

/// Changes a segment and corrects its hash.
fn edit(image: Image, pointer: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = image.segment(pointer);
    change(&mut bytes);
    image.replace(pointer, &bytes).seal()
}

/// The raw container with another header.
fn header(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut bytes = raw().seal();
    let mut header = Header::from_bytes(&bytes, bytes.len() as u64).unwrap();
    change(&mut header);
    bytes[..64].copy_from_slice(&header.to_bytes());
    bytes
}

/// The raw container with other bytes for an index.
fn index(change: impl FnOnce(String) -> String) -> Vec<u8> {
    let image = raw();
    let text = change(image.index.to_string());
    image.seal_with(text.as_bytes())
}

/// The zstd container with `frame` as its only one.
fn framed(frame: &[u8]) -> Vec<u8> {
    let offsets = [0u32.to_le_bytes(), (frame.len() as u32).to_le_bytes()].concat();
    let image = zstd().replace(DATA, frame).replace(OFFSETS, &offsets);
    image.set("/tensors/0/planes/0/max_chunk", json!(frame.len())).seal()
}

/// Decoded plane of the zstd container.
fn plane() -> Vec<u8> {
    let container = Container::from_bytes(zstd().seal()).unwrap();
    bytemuck::cast_slice(&container.symbols("w", &common::checked(true)).unwrap()).to_vec()
}

#[rustfmt::skip]
const CORPUS: &[Row] = &[
    row("empty", At::Open, Format, "the file is empty", Vec::new),
    row("header-cut", At::Open, Format, "63 bytes", || raw().seal()[..63].to_vec()),
    row("header-zero", At::Open, Format, "interrupted", || { let mut b = raw().seal(); b[..64].fill(0); b }),
    row("header-magic", At::Open, Format, "magic", || flipped(&raw().seal(), 9)),
    row("header-hash", At::Open, Corrupt, "header's hash", || flipped(&raw().seal(), 17 * 8)),
    row("header-major-2", At::Open, Unsupported, "written by a newer wcodec", || header(|h| h.version = (2, 0))),
    row("header-major-0", At::Open, Format, "", || header(|h| h.version = (0, 9))),
    row("header-length", At::Open, Corrupt, "should have", || header(|h| h.file_length += 1)),
    row("header-index-beyond", At::Open, Format, "place of the index", || header(|h| h.index_offset += 16)),
    row("header-index-wraps", At::Open, Format, "place of the index", || header(|h| { h.index_offset = u64::MAX - 15; h.index_length = h.file_length + 16; })),
    row("header-index-in-header", At::Open, Format, "place of the index", || header(|h| { h.index_length = h.file_length - 48; h.index_offset = 48; })),
    row("safetensors", At::Open, Format, ".safetensors", || common::safetensors::valid(&[("w", "F32", &[2], vec![0; 8])])),
    row("cut-in-index", At::Open, Corrupt, "cut off", || { let b = raw().seal(); b[..b.len() - 9].to_vec() }),
    row("cut-in-data", At::Open, Corrupt, "cut off", || pair().seal()[..700].to_vec()),
    row("cut-resealed", At::Open, Format, "index", || { let mut b = pair().seal(); b.truncate(700); reseal_header(&mut b); b }),
    row("appended", At::Open, Corrupt, "appended", || [raw().seal(), vec![0]].concat()),
    row("index-hash", At::Open, Corrupt, "index's hash", || { let b = raw().seal(); let at = b.len() * 8 - 20; flipped(&b, at) }),
    row("index-empty", At::Open, Format, "index", || index(|_| String::new())),
    row("index-list", At::Open, Format, "index", || index(|_| "[]".to_owned())),
    row("index-cut", At::Open, Format, "index", || index(|t| t[..t.len() - 1].to_owned())),
    row("index-trailing", At::Open, Format, "index", || index(|t| t + "x")),
    row("index-table-list", At::Open, Format, "expected an object", || pair().set("/tables/0", json!(["rans", 12, pair().index["tables"][0]["data"]])).seal()),
    row("index-scales-list", At::Open, Format, "expected an object", || raw().set("/tensors/0/scales", json!(["row", null, raw().index["tensors"][0]["scales"]["data"]])).seal()),
    row("index-quality-list", At::Open, Format, "expected an object", || raw().set("/tensors/0/quality", json!([1.5])).seal()),
    row("index-nested", At::Open, Format, "index", || index(|_| "[".repeat(10_000))),
    row("index-key-twice", At::Open, Format, "duplicate", || index(|t| t.replacen('{', "{\"format\":\"wcodec\",", 1))),
    row("index-alias-twice", At::Open, Format, "twice", || index(|t| t.replacen("\"tied\"", "\"tied\":\"ok\",\"tied\"", 1))),
    row("index-not-utf8", At::Open, Format, "UTF-8", || { let i = raw(); let json = i.index.to_string(); i.seal_with(&[b"{\"new\":\"\xFF\",", &json.as_bytes()[1..]].concat()) }),
    row("index-other-format", At::Open, Format, "'other'", || raw().set("/format", json!("other")).seal()),
    row("index-feature", At::Open, Unsupported, "'lossless'", || raw().set("/features", json!(["lossless"])).seal()),
    row("index-negative", At::Open, Format, "-1", || raw().set("/tensors/0/shape/0", json!(-1)).seal()),
    row("index-hash-short", At::Open, Format, "hexadecimal", || raw().set("/tensors/0/planes/0/hash", json!("1234")).seal()),
    row("names-twice", At::Open, Format, "not unique", || raw().set("/tensors/1/name", json!("w")).seal()),
    row("names-empty", At::Open, Format, "empty", || raw().set("/tensors/0/name", json!("")).seal()),
    row("alias-nowhere", At::Open, Format, "'gone'", || raw().set("/aliases/tied", json!("gone")).seal()),
    row("alias-chain", At::Open, Format, "'tied'", || raw().set("/aliases/twice", json!("tied")).seal()),
    row("alias-name-taken", At::Open, Format, "not unique", || raw().set("/aliases/ok", json!("w")).seal()),
    row("dtype-unknown", At::Open, Unsupported, "'F7'", || raw().set("/tensors/0/dtype", json!("F7")).seal()),
    row("shape-overflow", At::Open, Format, "too many", || raw().set("/tensors/0/shape", json!([1u64 << 32, 1u64 << 32])).seal()),
    row("table-missing", At::Open, Format, "table", || pair().set("/tensors/0/planes/0/table", json!(1)).seal()),
    row("segments-overlap", At::Open, Format, "overlaps", || raw().set("/tensors/1/planes/0/data", raw().index["tensors"][0]["planes"][0]["data"].clone()).seal()),
    row("segments-hole", At::Open, Format, "hole", || { let mut i = pair(); let p = i.index.pointer_mut(DATA).unwrap(); p[0] = json!(p[0].as_u64().unwrap() + 16); i.seal() }),
    row("segment-in-header", At::Open, Format, "overlaps", || raw().set(&format!("{SCALES}/0"), json!(48)).seal()),
    row("segment-beyond", At::Open, Format, "", || raw().set(&format!("{DATA}/1"), json!(1u64 << 63)).seal()),
    row("segment-wraps", At::Open, Format, "", || raw().set(&format!("{DATA}/0"), json!(u64::MAX - 15)).seal()),
    row("padding", At::Verify, Corrupt, "padding", || { let i = raw(); let at = i.body.len() - 1; flipped(&i.seal(), at * 8) }),
    row("flip-scales", At::Hash, Corrupt, "hash of a segment", || flip(raw(), SCALES, 1)),
    row("flip-data-raw", At::Hash, Corrupt, "hash of a segment", || flip(raw(), DATA, 33)),
    row("flip-side", At::Hash, Corrupt, "hash of a segment", || flip(pair(), SIDE, 9)),
    row("flip-data-rans", At::Tensor, Corrupt, "", || flip(byte(), DATA, 3)),
    row("flip-data-huffman", At::Tensor, Corrupt, "", || flip(huffman(), DATA, 4)),
    row("flip-table", At::Tensor, Corrupt, "", || flip(pair(), TABLE, 0)),
    row("flip-offsets", At::Tensor, Corrupt, "", || flip(pair(), OFFSETS, 4)),
    row("sealed-data-rans", At::Tensor, Corrupt, "does not end where its encoder began", || edit(byte(), DATA, |b| b[3] ^= 8)),
    row("sealed-data-huffman", At::Tensor, Corrupt, "does not have its length", || edit(huffman(), DATA, |b| b[40..].iter_mut().for_each(|b| *b = !*b))),
    row("sealed-lengths-huffman", At::Tensor, Corrupt, "does not have its length", || edit(huffman(), DATA, |b| b[4] ^= 8)),
    row("sealed-way-huffman", At::Tensor, Corrupt, "in way 2", || edit(huffman(), DATA, |b| b[2] = 2)),
    row("sealed-tails-rans", At::Tensor, Corrupt, "does not end where its encoder began", || edit(pair(), DATA, |b| *b.last_mut().unwrap() ^= 0x80)),
    row("sealed-data-raw", At::Hash, Corrupt, "do not match their hash", || edit(raw(), DATA, |b| b[9] ^= 1)),
    row("sealed-side", At::Hash, Corrupt, "do not match their hash", || edit(pair(), SIDE, |b| b[9] ^= 1)),
    row("sealed-side-short", At::Tensor, Corrupt, "side plane", || edit(pair(), SIDE, |b| b.truncate(b.len() - 1))),
    row("sealed-data-short", At::Tensor, Corrupt, "chunk", || edit(byte(), DATA, |b| b.truncate(b.len() - 4))),
    row("sealed-scales-short", At::Tensor, Format, "scales", || edit(raw(), SCALES, |b| b.truncate(b.len() - 4))),
    row("offsets-decrease", At::Tensor, Corrupt, "chunk 0", || edit(byte(), OFFSETS, |b| b[4..8].fill(0xFF))),
    row("offsets-first-not-0", At::Tensor, Corrupt, "chunk 0", || edit(byte(), OFFSETS, |b| b[0] = 1)),
    row("offsets-too-few", At::Tensor, Corrupt, "offsets", || edit(byte(), OFFSETS, |b| b.truncate(4))),
    row("rans-table-sum", At::Tensor, Corrupt, "add up", || edit(byte(), TABLE, |b| b[0] ^= 1)),
    row("rans-table-lone", At::Tensor, Corrupt, "add up", || edit(byte(), TABLE, |b| { b.fill(0); b[1] = 0x10 })),
    row("rans-table-short", At::Tensor, Corrupt, "512 bytes", || edit(byte(), TABLE, |b| b.truncate(b.len() - 1))),
    row("huffman-table-sum", At::Tensor, Corrupt, "slots", || edit(huffman(), TABLE, |b| b.fill(9))),
    row("huffman-table-long", At::Tensor, Corrupt, "255 bits", || edit(huffman(), TABLE, |b| b[0] = 255)),
    row("table-bits", At::Tensor, Format, "11 or 12", || byte().set("/tables/0/bits", json!(16)).seal()),
    row("rans-table-bits-10", At::Tensor, Format, "rans have 11 or 12 bits, not 10", || byte().set("/tables/0/bits", json!(10)).seal()),
    row("huffman-table-bits-7", At::Tensor, Format, "huffman have 8 to 12 bits, not 7", || huffman().set("/tables/0/bits", json!(7)).seal()),
    row("huffman-table-bits-8", At::Tensor, Corrupt, "bits in a table of 8", || huffman().set("/tables/0/bits", json!(8)).seal()),
    row("coder-unknown", At::Tensor, Unsupported, "'lzma'", || raw().set("/tensors/0/planes/0/coder", json!("lzma")).seal()),
    row("scheme-unknown", At::Tensor, Unsupported, "'fractal'", || raw().set("/tensors/0/scheme", json!("fractal")).seal()),
    row("fields", At::Tensor, Unsupported, "parts of elements", || raw().set("/tensors/0/planes/0/fields", json!([[0, 4]])).seal()),
    row("shift-4", At::Tensor, Format, "shift 4", || pair().set("/tensors/0/planes/0/shift", json!(4)).seal()),
    row("tile-96", At::Tensor, Format, "96", || pair().set("/tensors/0/planes/0/tile", json!(96)).seal()),
    row("chunks-huge", At::Tensor, Format, "chunks", || pair().set("/tensors/0/planes/0/chunks", json!(u64::MAX)).seal()),
    row("max-chunk-small", At::Tensor, Corrupt, "longest chunk", || pair().set("/tensors/0/planes/0/max_chunk", json!(8)).seal()),
    row("max-chunk-large", At::Tensor, Corrupt, "longest chunk", || pair().set("/tensors/0/planes/0/max_chunk", json!(2048)).seal()),
    row("shape-unsupported-by-data", At::Tensor, Corrupt, "cannot hold", || raw().set("/tensors/0/shape", json!([1u64 << 40])).set("/tensors/0/matrix", json!([1, 1, 1u64 << 40, 0])).seal()),
    row("matrix-misfit", At::Tensor, Format, "matrix view", || raw().set("/tensors/0/matrix", json!([1, 8, 15, 0])).seal()),
    row("matrix-parts", At::Tensor, Format, "are too large", || raw().set("/tensors/0/matrix", json!([1u64 << 40, 1u64 << 40, 0, 0])).seal()),
    row("scale-infinite", At::Verify, Corrupt, "is not finite", || edit(raw(), SCALES, |b| b[..4].copy_from_slice(&f32::MAX.to_le_bytes()))),
    row("rate-dtype", At::Tensor, Unsupported, "with dtype \"F32\", not", || rate(Coder::Rans).set("/tensors/0/scales/dtype", json!("F32")).seal()),
    row("rate-no-dtype", At::Tensor, Unsupported, "with dtype none", || rate(Coder::Rans).set("/tensors/0/scales/dtype", json!(null)).seal()),
    row("rate-per-tensor", At::Tensor, Unsupported, "per tensor, not per row", || rate(Coder::Rans).set("/tensors/0/scales/per", json!("tensor")).seal()),
    row("rate-fields", At::Tensor, Unsupported, "parts of elements", || rate(Coder::Rans).set("/tensors/0/planes/0/fields", json!([[0, 8]])).seal()),
    row("rate-scales-short", At::Tensor, Format, "30 bytes of scales", || edit(rate(Coder::Rans), SCALES, |b| b.truncate(b.len() - 2))),
    row("rate-scale-infinite", At::Verify, Corrupt, "is not finite", || edit(rate(Coder::Rans), SCALES, |b| b[..2].copy_from_slice(&[0x7F, 0x7F]))),
    row("rate-table-missing", At::Tensor, Format, "without 'table'", || rate(Coder::Rans).set("/tensors/0/planes/0/table", json!(null)).seal()),
    row("trellis-int8", At::Tensor, Format, "filter trellis in scheme int8", || pair().set("/tensors/0/planes/0/filter", json!("trellis")).seal()),
    row("trellis-zstd", At::Tensor, Format, "filter trellis in scheme rate with coder zstd", || rate(Coder::Zstd).set("/tensors/0/planes/0/filter", json!("trellis")).seal()),
    row("trellis-other-filter", At::Hash, Corrupt, "do not match their hash", || rate(Coder::Huffman).set("/tensors/0/planes/0/filter", json!("left")).seal()),
    row("flip-data-trellis", At::Tensor, Corrupt, "", || flip(rate(Coder::Huffman), DATA, 70)),
    row("sealed-side-trellis", At::Hash, Corrupt, "do not match their hash", || edit(rate(Coder::Huffman), SIDE, |b| b[9] ^= 1)),
    row("quad-rans", At::Tensor, Format, "layout quad with coder rans", || quad().set("/tensors/0/planes/0/coder", json!("rans")).set("/tables/0/coder", json!("rans")).seal()),
    row("quad-shift-5", At::Tensor, Format, "shift 5", || quad().set("/tensors/0/planes/0/shift", json!(5)).seal()),
    row("quad-filter-left", At::Tensor, Format, "filter left", || quad().set("/tensors/0/planes/0/filter", json!("left")).seal()),
    row("quad-table-other", At::Tensor, Format, "names a table for other layouts", || quad().replace(TABLE, &[8; 256]).set("/tables/0/layout", json!(null)).seal()),
    row("quad-table-unknown", At::Tensor, Unsupported, "'octet'", || quad().set("/tables/0/layout", json!("octet")).seal()),
    row("quad-table-sum", At::Tensor, Corrupt, "slots", || edit(quad(), TABLE, |b| b[2] ^= 1)),
    row("quad-table-short", At::Tensor, Corrupt, "symbols for", || edit(quad(), TABLE, |b| b.truncate(b.len() - 2))),
    row("quad-table-bit-3", At::Tensor, Corrupt, "in the wrong place", || edit(quad(), TABLE, |b| *b.last_mut().unwrap() |= 0x80)),
    row("quad-side-short", At::Tensor, Corrupt, "side", || edit(quad(), SIDE, |b| b.truncate(b.len() - 4))),
    row("flip-data-quad", At::Tensor, Corrupt, "", || flip(quad(), DATA, 70)),
    row("sealed-side-quad", At::Hash, Corrupt, "do not match their hash", || edit(quad(), SIDE, |b| b[9] ^= 1)),
    row("zstd-checksum", At::Tensor, Corrupt, "zstd frame 0", || framed(&Frame { checksum: Some(0), ..Frame::of(&plane()) }.bytes())),
    row("zstd-no-size", At::Tensor, Corrupt, "zstd frame 0", || framed(&Frame { size: None, window: Some(8), ..Frame::of(&plane()) }.bytes())),
    row("zstd-dictionary", At::Tensor, Corrupt, "zstd frame 0", || framed(&Frame { dictionary: Some(1), ..Frame::of(&plane()) }.bytes())),
    row("zstd-wrong-size", At::Tensor, Corrupt, "zstd frame 0", || framed(&Frame::of(&plane()[1..]).bytes())),
    row("zstd-trailing", At::Tensor, Corrupt, "zstd frame 0", || framed(&[Frame::of(&plane()).bytes(), vec![0; 3]].concat())),
    row("zstd-two-frames", At::Tensor, Corrupt, "zstd frame 0", || framed(&[Frame::of(&plane()[..9]).bytes(), Frame::of(&plane()[9..]).bytes()].concat())),
    row("zstd-cut", At::Tensor, Corrupt, "zstd frame 0", || framed(&Frame::of(&plane()).bytes()[..2000])),
];

/// A file that found a defect, and its present outcome.
struct Found {
    file: &'static str,
    /// The outcome of opening it: an error, or the outcomes of tensors with the given name prefixes.
    gives: Said<&'static [(&'static str, Said<u64>, VerifyStatus)]>,
}

/// An outcome: a value, such as a number of bytes, or an error with these words.
type Said<T> = Result<T, (ErrorKind, &'static str)>;

#[rustfmt::skip]
const FOUND: &[Found] = &[
    Found { file: "table-as-list", gives: Err((Format, "invalid type: sequence, expected an object")) },
    Found { file: "matrix-parts", gives: Ok(&[
        ("w", Err((Format, "4294967296 matrices of 241501121323 x 0 are too large")), VerifyStatus::Damaged),
        ("steps", Err((Format, "[64, 511, 549755813888, 2] does not fit shape [512]")), VerifyStatus::Damaged),
    ]) },
    Found { file: "escapes", gives: Ok(&[("", Ok(8), VerifyStatus::Ok)]) },
    Found { file: "escapes-damaged", gives: Ok(&[("a", Err((Corrupt, "do not match their hash")), VerifyStatus::Damaged)]) },
    Found { file: "escapes-feature", gives: Err((Unsupported, "needs the feature")) },
    Found { file: "escapes-open", gives: Err((Format, "names a table that is not there")) },
    Found { file: "escapes-scheme", gives: Ok(&[("a", Err((Unsupported, "unknown scheme")), VerifyStatus::Unsupported)]) },
    Found { file: "digits", gives: Ok(&[("", Ok(8), VerifyStatus::Ok)]) },
    Found { file: "bomb", gives: Ok(&[("w", Err((Input, "8573 stored bytes become 1073741824")), VerifyStatus::Ok)]) },
    Found { file: "claims", gives: Ok(&[
        ("w", Err((Input, "stored bytes become 1073741824")), VerifyStatus::Ok),
        ("t", Err((Corrupt, "cannot hold")), VerifyStatus::Damaged),
    ]) },
    Found { file: "shape", gives: Ok(&[("t", Ok(0), VerifyStatus::Ok)]) },
    // The largest F16 weight is the product of a symbol and a scale; the largest F32 weight is not quite, and became
    // infinite.
    Found { file: "largest-half", gives: Ok(&[("a", Ok(2048), VerifyStatus::Ok)]) },
    Found { file: "infinite", gives: Ok(&[("a", Ok(512), VerifyStatus::Damaged)]) },
];

#[test]
fn files_that_found_defects_give_what_their_rows_say() {
    for Found { file, gives } in FOUND {
        let path = folder().join(format!("found-{file}.wcodec"));
        let (container, rows) = match (Container::open(&path), gives) {
            (Err(e), Err((kind, words))) => {
                assert!(e.kind() == *kind && text(&e).contains(words), "{file}: {e}");
                continue;
            }
            (Ok(container), Ok(rows)) => (container, rows),
            (opened, _) => panic!("{file}: {opened:?}"),
        };
        let report = wcodec::verify(&container, None, &common::checked(true), &mut |_| Ok(())).unwrap();
        assert_eq!(report.file, None, "{file}");
        for (info, found) in container.infos().unwrap().iter().zip(&report.tensors) {
            let row = rows.iter().find(|(begin, ..)| info.name.starts_with(begin));
            let (_, read, status) = row.unwrap_or_else(|| panic!("{file}: no row for '{}'", info.name));
            assert_eq!(found.status, *status, "{file}: {}", found.detail);
            match (container.read(&info.name, &common::checked(true)), read) {
                (Ok(bytes), Ok(length)) => assert_eq!(bytes.len() as u64, *length, "{file}"),
                (Err(e), Err((kind, words))) => {
                    assert!(e.kind() == *kind && text(&e).contains(words), "{file}: {e}");
                }
                (read, _) => panic!("{file}: {read:?}"),
            }
            // Other operations must not panic.
            for (chunk, rows) in [(0, 0..1), (info.chunks().saturating_sub(1), 0..0), (usize::MAX, 0..info.rows)] {
                container.chunk(&info.name, chunk).ok();
                container.read_chunk(&info.name, chunk, &common::checked(true)).ok();
                container.read_rows(&info.name, rows, None, &common::checked(true)).ok();
            }
            wcodec::extract(&container, &[&info.name], &common::checked(true)).ok();
        }
        wcodec::compare(&container, &container).unwrap();
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/corrupt")
}

#[test]
fn every_file_has_a_row_and_every_row_a_file() {
    let entries = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap());
    let mut there: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    let mut listed: Vec<String> = CORPUS.iter().map(|r| format!("{}.wcodec", r.file)).collect();
    listed.extend(FOUND.iter().map(|f| format!("found-{}.wcodec", f.file)));
    there.sort();
    listed.sort();
    assert_eq!(there, listed);
    let length: u64 = there.iter().map(|n| std::fs::metadata(folder().join(n)).unwrap().len()).sum();
    assert!(length < 250_000, "{length} bytes are too many for a repository");
}

#[test]
fn every_file_is_refused_as_its_row_says() {
    let failures: Vec<String> = CORPUS.iter().filter_map(|row| check(row).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(row: &Row) -> Result<(), String> {
    let path = folder().join(format!("{}.wcodec", row.file));
    let file = row.file;
    let judge = |e: &wcodec::Error, tensor: Option<&str>| {
        let message = text(e);
        let right = e.kind() == row.kind && message.contains(row.words) && e.tensor_name() == tensor;
        let named = message.contains(&format!("{file}.wcodec"));
        let advised = message.contains(" (") && e.without_code().ends_with(')');
        if right && named && advised { Ok(()) } else { Err(format!("{file}: {:?} '{message}'", e.kind())) }
    };
    let container = match (Container::open(&path), row.at) {
        (Err(e), At::Open) => return judge(&e, e.tensor_name()),
        (Err(e), _) => return Err(format!("{file}: cannot be opened: {e}")),
        (Ok(_), At::Open) => return Err(format!("{file}: can be opened")),
        (Ok(container), _) => container,
    };
    container.read("ok", &common::checked(true)).map_err(|e| format!("{file}: the other tensor: {e}"))?;
    let verified = read_everywhere(&container, "w", true);
    let plain = read_everywhere(&container, "w", false);
    match (row.at, verified, plain) {
        (At::Verify, Ok(_), Ok(_)) => {
            let report = wcodec::verify(&container, None, &common::checked(true), &mut |_| Ok(())).unwrap();
            let damage = report.file.unwrap_or_else(|| report.tensors[0].detail.clone());
            if damage.contains(row.words) { Ok(()) } else { Err(format!("{file}: verify says '{damage}'")) }
        }
        (At::Tensor, Err(e), Err(plain)) => {
            let kinds = if plain.kind() == e.kind() { Ok(()) } else { Err(format!("{file}: without hashes: {plain}")) };
            kinds.and(judge(&e, Some("w")))
        }
        (At::Hash, Err(e), Ok(_)) => judge(&e, Some("w")),
        (at, verified, plain) => {
            Err(format!("{file}: {at:?}, but {:?} and {:?}", verified.map(|_| ()), plain.map(|_| ())))
        }
    }
}

#[test]
#[ignore = "writes tests/data/corrupt anew; for new rows, and when the format changes"]
fn regenerate() {
    std::fs::create_dir_all(folder()).unwrap();
    for entry in std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap()) {
        if !entry.file_name().to_string_lossy().starts_with("found-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    for row in CORPUS {
        std::fs::write(folder().join(format!("{}.wcodec", row.file)), (row.make)()).unwrap();
    }
}
