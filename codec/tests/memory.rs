//! Memory for hostile files: a small multiple of an index's text, and a few pieces of a tensor that is decoded piece by
//! piece.

#[path = "common/allocator.rs"]
mod allocator;
mod common;

use std::fmt::Write as _;

use allocator::{Counting, peak_of, turn};
use common::image::Image;
use common::{samples, text, trusting};
use half::f16;
use serde_json::json;
use wcodec::container::Header;
use wcodec::{
    Cancel, Coder, Container, DecodeOptions, Dtype, EncodeOptions, ErrorKind, Granularity, Layout, MemorySource,
    OpenOptions, Scheme, VerifyStatus,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of the indexes here: large enough that constant overhead does not matter.
const TEXT: usize = 4 << 20;
/// The most memory for an index, as a multiple of its text.
const MULTIPLE: usize = 11;

/// An index that consists of the output of `entry` under `key`, repeated in a list or in an object.
fn index_of(key: &str, [open, close]: [char; 2], entry: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = String::from("{\"format\":\"wcodec\"");
    for other in ["tables", "tensors"] {
        if other != key {
            write!(text, ",\"{other}\":[]").unwrap();
        }
    }
    if key != "aliases" {
        text += ",\"aliases\":{}";
    }
    write!(text, ",\"{key}\":{open}").unwrap();
    for i in 0.. {
        text += &entry(i);
        if text.len() > TEXT {
            break;
        }
        text.push(',');
    }
    write!(text, "{close}}}").unwrap();
    text.into_bytes()
}

/// The index of a container with one tensor, with `key` of the plane set to `value`.
fn plane_with(key: &str, value: &str) -> Vec<u8> {
    let image = Image::new(&samples::mini("raw row"));
    let text = image.index.to_string();
    text.replacen("\"hash\":", &format!("\"{key}\":{value},\"hash\":"), 1).into_bytes()
}

#[test]
fn an_index_takes_a_small_multiple_of_its_text() {
    let _turn = turn();
    let many = |text: &str| text.repeat(TEXT / text.len());
    let hash = "\"0123456789abcdef\"";
    let list = |text: &str| format!("[{}0]", many(text));
    let object = |i: usize| format!("\"{i:x}\":0");
    let tensor = |name: &str, planes: &str| {
        format!("{{\"name\":\"{name}\",\"dtype\":\"U8\",\"shape\":[0],\"scheme\":\"\",\"planes\":[{planes}]}}")
    };
    let plane = format!("{{\"coder\":\"\",\"data\":[0,0,{hash}],\"hash\":{hash}}}");
    let tied = |text: Vec<u8>| {
        let text = String::from_utf8(text).unwrap();
        text.replacen("\"tensors\":[]", &format!("\"tensors\":[{}]", tensor("w", "")), 1).into_bytes()
    };
    let indexes: [(&str, Vec<u8>); 14] = [
        ("model: a list", index_of("model", ['[', ']'], |_| "0".to_owned())),
        ("model: lists", index_of("model", ['[', ']'], |_| "[]".to_owned())),
        ("model: an object", index_of("model", ['{', '}'], object)),
        ("model: nested", index_of("model", ['[', ']'], |_| format!("{}{}", "[".repeat(100), "]".repeat(100)))),
        ("fields: a list", plane_with("fields", &list("0,"))),
        ("an unknown key", plane_with("unknown", &list("[],"))),
        ("features", index_of("features", ['[', ']'], |i| format!("\"{i:x}\""))),
        ("metadata", index_of("metadata", ['{', '}'], |i| format!("\"{i:x}\":\"\""))),
        ("aliases", tied(index_of("aliases", ['{', '}'], |i| format!("\"{i:x}\":\"w\"")))),
        ("tables", index_of("tables", ['[', ']'], |_| format!("{{\"coder\":\"\",\"bits\":0,\"data\":[0,0,{hash}]}}"))),
        ("tensors", index_of("tensors", ['[', ']'], |i| tensor(&format!("{i:x}"), ""))),
        ("planes", index_of("tensors", ['[', ']'], |i| tensor(&format!("{i:x}"), &plane))),
        (
            "planes of one",
            index_of("tensors", ['[', ']'], |_| {
                tensor("w", &format!("{plane},").repeat(TEXT / plane.len())).replace(",]", "]")
            }),
        ),
        ("a shape", index_of("tensors", ['[', ']'], |_| tensor("w", "").replace("[0]", &list("0,")))),
    ];
    for (what, index) in indexes {
        let bytes = Image::new(&samples::mini("raw row")).empty().seal_with(&index);
        let (_, peak) = peak_of(|| Container::from_bytes(bytes).map(drop));
        // The text itself is included in the multiple.
        assert!(peak <= MULTIPLE * index.len(), "{what}: {peak} bytes for a text of {}", index.len());
    }
}

/// The most bytes held beyond the stored ones, whatever they decode to.
const SOME: usize = 60 << 20;

/// A matrix of `rows` x `cols` F16 weights, nearly all of them 0, encoded: its symbols take about a thousandth of the
/// space.
fn sparse(shape: [usize; 2], coder: Coder, chunk: usize, transposed: bool) -> Vec<u8> {
    let mut weights = vec![f16::ZERO; shape[0] * shape[1]];
    weights.iter_mut().step_by(997).enumerate().for_each(|(i, w)| *w = f16::from_f32((i % 255) as f32 - 127.0));
    let options = EncodeOptions {
        zstd_chunk: Some(chunk),
        transpose: if transposed { vec!["w".to_owned()] } else { Vec::new() },
        ..samples::encode_options(coder, Layout::Byte, Scheme::Int8(Granularity::Row))
    };
    samples::encode(&source(shape, &weights), &EncodeOptions { tile: Some(512), ..options })
}

fn source<'a>(shape: [usize; 2], weights: &'a [f16]) -> MemorySource<'a> {
    let mut source = MemorySource::new();
    source.push("w".to_owned(), Dtype::F16, shape.to_vec(), bytemuck::cast_slice(weights).into()).unwrap();
    source
}

/// Row-major with every coder; in frames of 16 MiB, the largest; and in strips too wide to hold, which take another
/// code path.
#[test]
fn verifying_and_decoding_to_a_file_hold_a_few_pieces() {
    let _turn = turn();
    const MIB: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let kinds = [
        ("strips", [16 << 10, 4096], Coder::Rans, 0, false),
        ("huffman", [16 << 10, 4096], Coder::Huffman, 0, false),
        ("wide strips", [4, 16 * MIB], Coder::Rans, 0, false),
        ("frames", [16 << 10, 4096], Coder::Zstd, 16 << 10, false),
        ("large frames", [16 << 10, 4096], Coder::Zstd, 16 * MIB, false),
        ("transposed", [4096, 16 << 10], Coder::Rans, 0, true),
    ];
    for (what, shape, coder, chunk, transposed) in kinds {
        let path = folder.path().join("w.wcodec");
        std::fs::write(&path, sparse(shape, coder, chunk.max(1), transposed)).unwrap();
        let container = Container::open(&path).unwrap();
        let info = container.info("w").unwrap();
        assert_eq!((info.coder(), info.row_axis == 1), (coder.name(), transposed), "{what}");
        assert!(info.stored_bytes < 14 << 20 && info.original_bytes == 128 << 20, "{what}: {info:?}");

        let (report, peak) = peak_of(|| wcodec::verify(&container, None, &DecodeOptions::default(), &mut |_| Ok(())));
        assert!(report.unwrap().ok(), "{what}");
        let bound = SOME + info.stored_bytes as usize;
        assert!(peak < bound, "{what}: verifying holds {peak}");

        let out = folder.path().join("out.safetensors");
        let options = DecodeOptions::default();
        let (done, peak) = peak_of(|| wcodec::decode(&container, None, &out, &options, true, &mut |_| Ok(())));
        done.unwrap();
        let symbols = if transposed { info.elements as usize } else { 0 };
        assert!(peak < bound + symbols, "{what}: decoding holds {peak}");
        let whole = container.read("w", &options).unwrap();
        let decoded = std::fs::read(&out).unwrap();
        assert!(decoded.ends_with(&whole), "{what}: other values than those of read()");
    }
}

/// The quantized source is held as well: a byte for each weight.
#[test]
fn verifying_against_a_source_holds_its_symbols_and_a_few_pieces() {
    let _turn = turn();
    for (shape, transposed) in [([8 << 10, 4096], false), ([4096, 8 << 10], true)] {
        let container = Container::from_bytes(sparse(shape, Coder::Rans, 1, transposed)).unwrap();
        let mut weights = container.read("w", &DecodeOptions::default()).unwrap();
        let weights: &mut [f16] = bytemuck::cast_slice_mut(&mut weights);
        let (report, peak) = peak_of(|| {
            let source = source(shape, weights);
            wcodec::verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap()
        });
        let error = report.tensors[0].max_error;
        assert!(report.ok() && error == Some(0.0), "{transposed}: {report:?}");
        assert!(peak < SOME + weights.len(), "{transposed}: {peak}");
        // The last element of all.
        *weights.last_mut().unwrap() = f16::from_f32(-3.0);
        let source = source(shape, weights);
        let report = wcodec::verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
        assert_eq!(report.tensors[0].status, VerifyStatus::Differs);
        assert_eq!(report.tensors[0].max_error, Some(3.0));
    }
}

/// Zeros, which zstd compresses to some KiB: few bytes that become many.
fn zeros() -> Vec<u8> {
    let mut source = MemorySource::new();
    let zeros = vec![0u8; 65 << 20];
    source.push("z".to_owned(), Dtype::U8, vec![65 << 10, 1 << 10], zeros.into()).unwrap();
    samples::encode(
        &source,
        &EncodeOptions { zstd_chunk: Some(1 << 24), ..samples::encode_options(Coder::Zstd, Layout::Byte, Scheme::Raw) },
    )
}

#[test]
fn what_is_many_times_its_stored_bytes_is_had_whole_by_the_users_word_alone() {
    let _turn = turn();
    let bytes = zeros();
    assert!(bytes.len() < 20_000);
    let container = Container::from_bytes(bytes.clone()).unwrap();
    let options = DecodeOptions::default();
    assert!(!container.trusted());
    let (refused, peak) = peak_of(|| {
        [
            container.read("z", &options).map(drop),
            container.read_as("z", Dtype::U8, &options).map(drop),
            container.symbols("z", &options).map(drop),
            container.read_rows("z", 0..65 << 10, None, &options).map(drop),
            container.read_rows("z", 1..65 << 10, None, &options).map(drop),
        ]
    });
    assert!(peak < 1 << 20, "{peak}");
    for e in refused.map(Result::unwrap_err) {
        let text = text(&e);
        assert!(e.kind() == ErrorKind::Input && e.tensor_name() == Some("z"), "{text}");
        for words in ["stored bytes become", "trusted=True", "--trust", "to a file"] {
            assert!(text.contains(words), "{text}");
        }
    }
    // Bounded operations are not refused: parts, verifying, and decoding to a file (above).
    let (rows, peak) = peak_of(|| container.read_rows("z", 5..7, None, &options).unwrap());
    assert!(rows.len() == 2048 && rows.iter().all(|&b| b == 0));
    assert!(peak < 20 << 20, "{peak}");
    assert_eq!(container.read_chunk("z", 3, &options).unwrap().len(), 1 << 24);
    assert!(wcodec::verify(&container, None, &options, &mut |_| Ok(())).unwrap().ok());

    let container = trusting(bytes).unwrap();
    assert!(container.trusted());
    assert_eq!(container.read("z", &options).unwrap().len(), 65 << 20);
    assert_eq!(container.symbols("z", &options).unwrap().len(), 65 << 20);
    assert_eq!(container.read_rows("z", 0..65 << 10, None, &options).unwrap().len(), 65 << 20);
}

/// The bytes of a tensor's rows need not lie in the rows of its matrix.
#[test]
fn rows_hold_what_is_asked_for_and_a_few_pieces() {
    let _turn = turn();
    let image = Image::new(&zeros());
    for (matrix, filter) in
        [([1, 1, 65 << 20, 0], "left"), ([1, 1, 65 << 20, 0], "none"), ([65 << 20, 1, 1, 0], "left")]
    {
        let mut image = image.clone().set("/tensors/0/matrix", json!(matrix));
        if filter != "none" {
            image = image.set("/tensors/0/planes/0/filter", json!(filter));
        }
        let container = Container::from_bytes(image.set("/tensors/0/shape", json!([65 << 20, 1])).seal()).unwrap();
        for rows in [0..1, (50 << 20) + 1..(50 << 20) + 9, (65 << 20) - 1..65 << 20] {
            let (part, peak) =
                peak_of(|| container.read_rows("z", rows.clone(), None, &DecodeOptions::default()).unwrap());
            assert!(part.len() == rows.len() && part.iter().all(|&b| b == 0));
            assert!(peak < 20 << 20, "{matrix:?} {filter}: {peak}");
        }
    }
    // A matrix of 4 rows, viewed as a tensor of short ones.
    let image = Image::new(&sparse([4, 16 << 20], Coder::Rans, 1, false)).set("/tensors/0/shape", json!([16 << 20, 4]));
    let container = Container::from_bytes(image.seal()).unwrap();
    let whole = container.read("w", &DecodeOptions::default()).unwrap();
    for rows in [0..1, (4 << 20) - 1..(4 << 20) + 1, 13_000_000..13_002_000, (16 << 20) - 1..16 << 20] {
        let (part, peak) = peak_of(|| container.read_rows("w", rows.clone(), None, &DecodeOptions::default()).unwrap());
        assert!(part[..] == whole[rows.start * 8..rows.end * 8], "{rows:?}");
        assert!(peak < (1 << 20) + container.file_len() as usize, "{rows:?}: {peak}");
    }
}

/// The stated index is too large, and none of it is read, because it does not exist.
#[test]
fn an_index_beyond_all_measure_is_not_read() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.wcodec");
    let length = (256 << 20) + 1;
    let header =
        Header { version: (1, 0), index_offset: 64, index_length: length, index_hash: 0, file_length: 64 + length };
    let file = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &header.to_bytes(), 0).unwrap();
    file.set_len(64 + length).unwrap();
    let (opened, peak) = peak_of(|| Container::open(&path));
    let e = opened.unwrap_err();
    assert!(e.kind() == ErrorKind::Input && e.file_path() == Some(&path), "{e}");
    assert!(text(&e).contains("268435457 bytes") && text(&e).contains("--trust"), "{e}");
    assert!(peak < 1 << 20, "{peak}");
    // Hashes are compared whether the file is trusted or not.
    let e = Container::open_with(&path, &OpenOptions { trusted: true, ..Default::default() }).unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains("index's hash"), "{e}");
    let cancel = Cancel::new();
    cancel.cancel();
    let e = Container::open_with(&path, &OpenOptions { trusted: true, cancel }).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
}
