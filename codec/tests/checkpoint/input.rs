//! Single files and weights.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use wcodec::{
    Cancel, Checkpoint, Coder, Container, Dtype, EncodeOptions, Error, ErrorKind, Granularity, MemorySource, Pool,
    Scheme, Source, SourceBytes, SourceTensor, encode, encode_to_vec,
};

use crate::allocator::assert_modest;
use crate::common::image::flipped;
use crate::common::safetensors::{file, valid};
use crate::common::{checked, samples, text};
use crate::listing;

/// Writes `bytes` and opens them as a checkpoint.
fn open(folder: &Path, bytes: &[u8]) -> wcodec::Result<Checkpoint> {
    let path = folder.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let result = Checkpoint::open(&path);
    if let Err(e) = &result {
        assert_eq!(e.file_path(), Some(path.as_path()), "{}", text(e));
    }
    assert_modest(&"opening");
    result
}

fn refused(folder: &Path, bytes: &[u8], what: &str) -> Error {
    open(folder, bytes).map(|_| ()).expect_err(what)
}

/// A header with one tensor, and its data.
fn one(dtype: &str, shape: Value, offsets: Value, data: usize) -> Vec<u8> {
    let header = json!({ "w": { "dtype": dtype, "shape": shape, "data_offsets": offsets } });
    file(header.to_string().as_bytes(), &vec![1; data])
}

#[test]
fn headers_that_are_not_headers() {
    let folder = tempfile::tempdir().unwrap();
    let deep = [b"{\"a\":".repeat(10_000), b"}".repeat(10_000)].concat();
    let good = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let twice = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("7 bytes", vec![0; 7]),
        ("a length and nothing", vec![9, 0, 0, 0, 0, 0, 0, 0]),
        ("a length of 0", vec![0; 8]),
        ("a length of 2^63", [&(1u64 << 63).to_le_bytes()[..], b"{}"].concat()),
        ("a length of 2^64 - 1", [&[0xFF; 8][..], b"{}"].concat()),
        ("a length of 2^64 - 8", [&(u64::MAX - 7).to_le_bytes()[..], b"{}"].concat()),
        ("a length of 1 GiB", [&(1u64 << 30).to_le_bytes()[..], b"{}"].concat()),
        ("not JSON", file(b"hello", b"")),
        ("a list", file(b"[]", b"")),
        ("null", file(b"null", b"")),
        ("a number", file(b"7", b"")),
        ("not UTF-8", file(b"{\"\xFF\":1}", b"")),
        ("nested", file(&deep, b"")),
        ("cut", file(&good[..good.len() - 1], &[0; 8])),
        ("a tensor that is a list", file(br#"{"w":[]}"#, b"")),
        ("no dtype", file(br#"{"w":{"shape":[2],"data_offsets":[0,8]}}"#, &[0; 8])),
        ("no shape", file(br#"{"w":{"dtype":"F32","data_offsets":[0,8]}}"#, &[0; 8])),
        ("no offsets", file(br#"{"w":{"dtype":"F32","shape":[2]}}"#, &[0; 8])),
        ("metadata that is no text", file(br#"{"__metadata__":{"a":1}}"#, b"")),
        ("a name twice", file(twice, &[0; 16])),
        ("a torch file", [&b"PK\x03\x04"[..], &[0; 100]].concat()),
        ("a container", samples::mini("raw row")),
    ];
    for (what, bytes) in cases {
        let e = refused(folder.path(), &bytes, what);
        assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt), "{what}: {e}");
        assert!(text(&e).contains("model.safetensors"), "{what}: {e}");
    }
}

#[test]
fn places_and_shapes_that_contradict_each_other() {
    let folder = tempfile::tempdir().unwrap();
    assert!(open(folder.path(), &one("F32", json!([2, 3]), json!([0, 24]), 24)).is_ok());
    let cases = [
        ("a byte too few", one("F32", json!([2, 3]), json!([0, 24]), 23)),
        ("a byte too many", one("F32", json!([2, 3]), json!([0, 24]), 25)),
        ("no data", one("F32", json!([2, 3]), json!([0, 24]), 0)),
        ("a smaller shape", one("F32", json!([2, 2]), json!([0, 24]), 24)),
        ("a larger shape", one("F32", json!([2, 4]), json!([0, 24]), 24)),
        ("a wider dtype", one("F64", json!([2, 3]), json!([0, 24]), 24)),
        ("a hole at the start", one("F32", json!([2, 3]), json!([8, 32]), 32)),
        ("offsets that decrease", one("F32", json!([2, 3]), json!([24, 0]), 24)),
        ("offsets of 2^64 - 1", one("F32", json!([2, 3]), json!([0, u64::MAX]), 24)),
        ("offsets that wrap", one("F32", json!([2, 3]), json!([u64::MAX - 23, u64::MAX]), 24)),
        ("negative offsets", one("F32", json!([2, 3]), json!([-24, 0]), 24)),
        ("three offsets", one("F32", json!([2, 3]), json!([0, 12, 24]), 24)),
        ("a shape that overflows", one("F32", json!([u64::MAX, 2]), json!([0, 24]), 24)),
        ("a shape that wraps to the right size", one("U8", json!([1u64 << 63, 2, 3]), json!([0, 0]), 0)),
        ("a negative shape", one("F32", json!([-2, -3]), json!([0, 24]), 24)),
        ("a shape of fractions", one("F32", json!([2.0, 3.0]), json!([0, 24]), 24)),
    ];
    for (what, bytes) in cases {
        let e = refused(folder.path(), &bytes, what);
        assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt), "{what}: {e}");
    }
    let overlap = json!({
        "a": { "dtype": "U8", "shape": [8], "data_offsets": [0, 8] },
        "b": { "dtype": "U8", "shape": [8], "data_offsets": [4, 12] },
    });
    refused(folder.path(), &file(overlap.to_string().as_bytes(), &[0; 12]), "overlap");
    let hole = json!({
        "a": { "dtype": "U8", "shape": [8], "data_offsets": [0, 8] },
        "b": { "dtype": "U8", "shape": [8], "data_offsets": [12, 20] },
    });
    refused(folder.path(), &file(hole.to_string().as_bytes(), &[0; 20]), "hole");
}

#[test]
fn tensors_of_unknown_dtypes_are_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (dtype, shape) in [("F7", json!([8])), ("f32", json!([8])), ("Q4_0", json!([3, 5])), ("F4", json!([2, 8]))] {
        let checkpoint = open(folder.path(), &one(dtype, shape.clone(), json!([0, 8]), 8)).unwrap();
        let tensor = &checkpoint.tensors()[0];
        assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::U8, &[8][..]), "{dtype}");
        let said = tensor.opaque.as_ref().unwrap();
        assert_eq!((&said.dtype[..], json!(said.shape)), (dtype, shape));
        assert_eq!(checkpoint.read(0).unwrap()[..], [1; 8], "{dtype}");
    }
    // No name at all, and a number of bytes that the dtype's elements cannot have.
    refused(folder.path(), &one("", json!([8]), json!([0, 8]), 8), "no dtype");
    refused(folder.path(), &one("F4", json!([8]), json!([0, 8]), 8), "eight elements of four bits");
}

#[test]
fn every_truncation_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let good = valid(&[("a", "F32", &[2, 3], vec![0; 24]), ("b.weight", "BF16", &[4], vec![1; 8])]);
    assert!(open(folder.path(), &good).is_ok());
    for n in 0..good.len() {
        let e = refused(folder.path(), &good[..n], "a cut");
        assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt), "{n} bytes: {e}");
    }
    let more = [&good[..], &[0]].concat();
    assert!(text(&refused(folder.path(), &more, "one byte more")).contains("appended"));
}

#[test]
fn every_flipped_bit_of_a_header_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let good = valid(&[("a", "F32", &[2, 3], vec![0; 24]), ("b", "BF16", &[4], vec![1; 8])]);
    let mut refused = 0;
    for bit in 0..(good.len() - 32) * 8 {
        // Some flips make another valid name; then all tensors can be read.
        match open(folder.path(), &flipped(&good, bit)) {
            Ok(c) => (0..c.tensors().len()).for_each(|i| drop(c.read(i).unwrap())),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn weights_that_are_not_finite_are_named_with_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let schemes = [Granularity::Row, Granularity::Tensor, Granularity::Block(16)];
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for granularity in schemes {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
                for transposed in [false, true] {
                    let mut w = samples::weights(40 * 100, 61);
                    w[37 * 100 + 91] = value;
                    let bytes = match dtype {
                        Dtype::F16 => samples::as_f16(&w),
                        Dtype::BF16 => samples::as_bf16(&w),
                        _ => samples::as_bytes(&w),
                    };
                    let mut source = MemorySource::new();
                    source.push("bad.weight".to_owned(), dtype, vec![40, 100], bytes.into()).unwrap();
                    let transpose = if transposed { vec!["bad*".to_owned()] } else { Vec::new() };
                    let options = EncodeOptions { scheme: Scheme::Int8(granularity), transpose, ..Default::default() };
                    let path = folder.path().join("out.wcodec");
                    let e = encode(&source, &path, &options, &mut |_| Ok(())).unwrap_err();
                    let at = if transposed { "index [37, 91]" } else { "row 37, column 91" };
                    let place = format!("tensor 'bad.weight': {word} at {at} ");
                    assert!(e.kind() == ErrorKind::Input && text(&e).starts_with(&place), "{e}");
                    assert!(text(&e).contains("exclude"), "{e}");
                    assert!(listing(folder.path()).is_empty());
                }
            }
        }
    }
    // The advice works.
    let mut source = MemorySource::new();
    let bytes = samples::as_bytes(&[f32::NAN; 64]);
    source.push("w".to_owned(), Dtype::F32, vec![8, 8], bytes.clone().into()).unwrap();
    let options = EncodeOptions { exclude: vec!["w".to_owned()], ..Default::default() };
    let container = Container::from_bytes(encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0).unwrap();
    assert_eq!(container.read("w", &checked(true)).unwrap()[..], bytes[..]);
}

#[test]
fn options_that_the_format_does_not_allow() {
    let mut source = MemorySource::new();
    let bytes = samples::as_bytes(&samples::weights(64 * 64, 62));
    source.push("w".to_owned(), Dtype::F32, vec![64, 64], bytes.into()).unwrap();
    let default = EncodeOptions::default;
    let bad = [
        EncodeOptions { scheme: Scheme::Int8(Granularity::Block(0)), ..default() },
        EncodeOptions { scheme: Scheme::Int8(Granularity::Block(17)), ..default() },
        EncodeOptions { tile: Some(0), ..default() },
        EncodeOptions { tile: Some(65), ..default() },
        EncodeOptions { tile: Some(8192), ..default() },
        EncodeOptions { tile: Some(usize::MAX), ..default() },
        EncodeOptions { table_bits: Some(7), coder: Coder::Huffman, ..default() },
        EncodeOptions { table_bits: Some(10), coder: Coder::Rans, ..default() },
        EncodeOptions { table_bits: Some(13), ..default() },
        EncodeOptions { table_bits: Some(u32::MAX), ..default() },
        EncodeOptions { coder: Coder::Zstd, zstd_chunk: Some(0), ..default() },
        EncodeOptions { coder: Coder::Zstd, zstd_chunk: Some((1 << 24) + 1), ..default() },
        EncodeOptions { coder: Coder::Zstd, zstd_chunk: Some(usize::MAX), ..default() },
        EncodeOptions { include: vec!["x".to_owned()], ..default() },
        EncodeOptions { exclude: vec!["[".to_owned()], ..default() },
        EncodeOptions { transpose: vec!["{a".to_owned()], ..default() },
    ];
    for options in bad {
        let e = encode_to_vec(&source, &options, &mut |_| Ok(())).map(|_| ()).expect_err(&format!("{options:?}"));
        assert_eq!(e.kind(), ErrorKind::Input, "{options:?}: {e}");
    }
}

/// Changes `path` through another handle; the time of change is set, since clocks of file systems are coarse.
fn rewrite(path: &Path, length: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
}

/// A checkpoint that another program changes once the first tensor was read, as a restarted download does.
struct Changing<'a> {
    checkpoint: Checkpoint,
    path: &'a Path,
    length: u64,
}

impl Source for Changing<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        self.checkpoint.tensors()
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> wcodec::Result<SourceBytes<'_>> {
        if self.tensors()[index].name == "b" {
            rewrite(self.path, self.length);
        }
        self.checkpoint.read_with(index, pool, cancel)
    }

    fn path(&self) -> Option<&Path> {
        self.checkpoint.path()
    }
}

#[test]
fn checkpoints_that_change_while_open() {
    let folder = tempfile::tempdir().unwrap();
    let w = samples::as_bytes(&samples::weights(64 * 64, 63));
    let bytes = valid(&[("a", "F32", &[64, 64], w.clone()), ("b", "F32", &[64, 64], w)]);
    let path = folder.path().join("model.safetensors");
    let out = folder.path().join("out.wcodec");
    for length in [bytes.len(), bytes.len() - 1, bytes.len() / 2, 9, 0, bytes.len() + 1] {
        let checkpoint = open(folder.path(), &bytes).unwrap();
        let source = Changing { checkpoint, path: &path, length: length as u64 };
        let e = encode(&source, &out, &EncodeOptions::default(), &mut |_| Ok(())).unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains("changed while it was open"), "{length}: {e}");
        assert!(text(&e).contains("model.safetensors") && text(&e).contains("'b'"), "{length}: {e}");
        assert_eq!(listing(folder.path()).len(), 1, "{length}");
    }
}

#[test]
fn containers_that_change_while_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.wcodec");
    let bytes = samples::mini("rans pair row");
    for length in [bytes.len(), bytes.len() - 1, bytes.len() / 2, 64, 0, bytes.len() + 1] {
        for verify in [true, false] {
            std::fs::write(&path, &bytes).unwrap();
            let container = Container::open(&path).unwrap();
            assert!(container.read("w", &checked(verify)).is_ok());
            rewrite(&path, length as u64);
            let errors = [
                container.read("w", &checked(verify)).map(|_| ()),
                container.symbols("w", &checked(verify)).map(|_| ()),
                container.scales("w").map(|_| ()),
                container.chunk("w", 0).map(|_| ()),
                container.index_json().map(|_| ()),
            ];
            for e in errors.map(Result::unwrap_err) {
                assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains("changed while"), "{length}: {e}");
                assert!(text(&e).contains("m.wcodec"), "{length}: {e}");
            }
        }
    }
    // The open file is unaffected when its name is removed or replaced.
    std::fs::write(&path, &bytes).unwrap();
    let container = Container::open(&path).unwrap();
    let want = container.read("w", &checked(true)).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(container.read("w", &checked(true)).unwrap()[..], want[..]);
}
