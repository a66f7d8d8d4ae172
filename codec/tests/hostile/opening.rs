//! Files that are refused when they are opened, or must not be.

use serde_json::json;
use wcodec::container::MAGIC;
use wcodec::{Container, DecodeOptions, ErrorKind};

use crate::common::image::Image;
use crate::common::{samples, text, values};

/// Opens `bytes` as a file; the error must name it.
fn refused(bytes: &[u8]) -> (ErrorKind, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.wcodec");
    std::fs::write(&path, bytes).unwrap();
    let e = Container::open(&path).map(|_| ()).unwrap_err();
    assert_eq!(e.file_path(), Some(path.as_path()));
    let in_memory = Container::from_bytes(bytes.to_vec()).map(|_| ()).unwrap_err();
    assert_eq!((e.kind(), e.message()), (in_memory.kind(), in_memory.message()));
    (e.kind(), text(&e))
}

/// Asserts that `bytes` are refused with `kind` and all of `words`.
fn assert_refused(bytes: &[u8], kind: ErrorKind, words: &[&str]) {
    let (got, message) = refused(bytes);
    assert_eq!(got, kind, "{message}");
    words.iter().for_each(|w| assert!(message.contains(w), "'{message}' does not say '{w}'"));
}

/// At least a header's length of something else.
fn file_of(start: &[u8]) -> Vec<u8> {
    let mut bytes = start.to_vec();
    bytes.resize(200, b' ');
    bytes
}

#[test]
fn other_files_are_told_apart_with_advice() {
    let f = ErrorKind::Format;
    assert_refused(b"", f, &["empty", "check the path"]);
    assert_refused(b"\x89", f, &["1 bytes"]);
    assert_refused(&file_of(b"\x88\0\0\0\0\0\0\0{\"w\":"), f, &[".safetensors", "encode it first"]);
    assert_refused(&file_of(b"GGUF\x03\0\0\0"), f, &["GGUF"]);
    assert_refused(&file_of(b"PK\x03\x04"), f, &["a zip archive", "unpack it first"]);
    let noise = samples::symbols(128 * 64, 127.0, 9);
    let blob = wcodec::legacy::encode(&noise, 128, 64, 3).unwrap();
    assert_refused(&blob, f, &["legacy", "decode_layer"]);
    assert_refused(&file_of(b"\x28\xB5\x2F\xFD"), f, &["a zstd file", "unpack it first"]);
    // A transfer in text mode turns the line feed of the magic into two bytes.
    assert_refused(&file_of(b"\x89WCODEC\r\n"), f, &["magic"]);
    assert_refused(&[0; 64], f, &["interrupted", "encode the model again"]);
    let mut interrupted = samples::mini("raw row");
    interrupted[..64].fill(0);
    assert_refused(&interrupted, f, &["interrupted"]);
}

#[test]
fn folders_and_missing_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let e = Container::open(folder.path()).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && text(&e).contains("no .wcodec file in the folder"), "{e}");
    let e = Container::open(&folder.path().join("none.wcodec")).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && text(&e).contains("none.wcodec"), "{e}");
}

#[test]
fn versions() {
    let image = Image::new(&samples::mini("rans pair row"));
    for major in [2, 9, u16::MAX] {
        let bytes = Image { version: (major, 3), ..image.clone() }.seal();
        let words = ["written by a newer wcodec", "upgrade", &format!("{major}.3")];
        assert_refused(&bytes, ErrorKind::Unsupported, &words);
    }
    assert_refused(&Image { version: (0, 0), ..image.clone() }.seal(), ErrorKind::Format, &[]);
    let newer = Image { version: (1, u16::MAX), ..image.clone() }.seal();
    assert_eq!(Container::from_bytes(newer.clone()).unwrap().version(), (1, u16::MAX));
    assert_eq!(values(&newer), values(&image.seal()));
}

#[test]
fn reserved_fields_must_be_zero() {
    let good = samples::mini("raw row");
    for at in [12, 15, 48, 55] {
        let mut bytes = good.clone();
        bytes[at] = 1;
        let h = wcodec::container::hash(&bytes[..56]).0;
        bytes[56..64].copy_from_slice(&h.to_le_bytes());
        assert_refused(&bytes, ErrorKind::Format, &["reserved"]);
    }
    assert_eq!(good[..8], MAGIC);
}

#[test]
fn unknown_features_are_refused_by_name() {
    let image = Image::new(&samples::mini("rans pair row"));
    let words = ["'rate-planes'", "upgrade"];
    assert_refused(&image.clone().set("/features", json!(["rate-planes"])).seal(), ErrorKind::Unsupported, &words);
    // With an unknown feature, the rest of the index may be unrecognizable.
    let strange = image.clone().set("/features", json!(["rate-planes"])).set("/tensors", json!({ "new": 1 }));
    assert_refused(&strange.seal(), ErrorKind::Unsupported, &words);
    let wrong = image.set("/format", json!("other"));
    assert_refused(&wrong.seal(), ErrorKind::Format, &["'other'"]);
}

#[test]
fn unknown_keys_are_ignored_and_kept() {
    let image = Image::new(&samples::mini("rans pair row"));
    let want = values(&image.clone().seal());
    let strange = json!({ "a": [1, { "b": null }], "c": 1e300 });
    let bytes = ["/new", "/tables/0/new", "/tensors/0/new", "/tensors/0/scales/new", "/tensors/0/planes/0/new"]
        .iter()
        .fold(image, |i, at| i.set(at, strange.clone()))
        .seal();
    assert_eq!(values(&bytes), want);
    let json = Container::from_bytes(bytes).unwrap().index_json().unwrap();
    assert_eq!(json.matches("1e+300").count() + json.matches("1e300").count(), 5);
}

#[test]
fn names_are_unique_and_not_empty() {
    let image = Image::new(&samples::mini("rans pair row"));
    let f = ErrorKind::Format;
    assert_refused(&image.clone().set("/tensors/1/name", json!("w")).seal(), f, &["'w'", "not unique"]);
    assert_refused(&image.clone().set("/tensors/1/name", json!("")).seal(), f, &["empty"]);
    assert_refused(&image.clone().set("/aliases", json!({ "": "w" })).seal(), f, &["empty"]);
    assert_refused(&image.clone().set("/aliases", json!({ "steps": "w" })).seal(), f, &["'steps'", "not unique"]);
    assert_refused(&image.clone().set("/aliases", json!({ "w": "w" })).seal(), f, &["'w'"]);
    assert_refused(&image.clone().set("/aliases", json!({ "x": "nothing" })).seal(), f, &["'x'", "'nothing'"]);
    // In both orders of the names, since the map is sorted by name.
    for chain in [json!({ "x": "w", "y": "x" }), json!({ "a": "b", "b": "w" }), json!({ "x": "x" })] {
        assert_refused(&image.clone().set("/aliases", chain).seal(), f, &["not there"]);
    }
    let odd = "a\u{0}b\u{202E}/../\"\\\n";
    let bytes = image.set("/tensors/0/name", json!(odd)).set("/aliases", json!({})).seal();
    assert_eq!(Container::from_bytes(bytes).unwrap().names()[0], odd);
}

#[test]
fn indexes_that_are_not_one_json_object() {
    let image = Image::new(&samples::mini("rans pair row"));
    let good = serde_json::to_vec(&image.index).unwrap();
    let good_text = String::from_utf8(good.clone()).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(good_text.contains(from), "{from}");
        good_text.replacen(from, to, 1).into_bytes()
    };
    let nested = |open: &str, close: &str| [open.repeat(10_000), close.repeat(10_000)].concat();
    let mut marked = b"\xEF\xBB\xBF".to_vec();
    marked.extend_from_slice(&good);
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("not JSON", vec![0; 100]),
        ("a list", b"[]".to_vec()),
        ("null", b"null".to_vec()),
        ("an empty object", b"{}".to_vec()),
        ("cut", good[..good.len() - 1].to_vec()),
        ("two", [&good[..], &good].concat()),
        ("trailing", [&good[..], b"x"].concat()),
        ("a zero byte after it", [&good[..], b"\0"].concat()),
        ("byte order mark", marked),
        ("UTF-16", good_text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("a key twice", edited("{\"aliases\"", "{\"format\":\"wcodec\",\"aliases\"")),
        ("an alias twice", edited("\"tied\":\"w\"", "\"tied\":\"w\",\"tied\":\"w\"")),
        ("metadata twice", edited("\"metadata\":{", "\"metadata\":{\"a\":\"1\",\"a\":\"2\"")),
        ("not UTF-8 where nobody reads", [b"{\"new\":\"\xFF\",", &good[1..]].concat()),
        ("a key of a tensor twice", edited("\"dtype\"", "\"dtype\":\"F32\",\"dtype\"")),
        ("deep lists", nested("[", "]").into_bytes()),
        ("deep objects", nested("{\"a\":", "}").into_bytes()),
        ("a lone surrogate", edited("\"w\"", "\"\\ud800\"")),
        ("a line feed in a string", edited("\"w\"", "\"w\n\"")),
        ("not UTF-8", {
            let mut b = edited("\"steps\"", "\"st#ps\"");
            let at = b.iter().position(|&b| b == b'#').unwrap();
            b[at] = 0xFF;
            b
        }),
        ("a number too large", edited("[48,128]", "[48,18446744073709551616]")),
        ("a fraction", edited("[48,128]", "[48.0,128]")),
        ("an exponent", edited("[48,128]", "[48,1e400]")),
    ];
    for (what, index) in bad {
        let e = Container::from_bytes(image.clone().seal_with(&index)).map(|_| ()).expect_err(what);
        assert_eq!(e.kind(), ErrorKind::Format, "{what}: {e}");
    }
    // Surrounding white space is allowed in JSON.
    let spaced = [b" \n", &good[..], b"\n "].concat();
    assert!(Container::from_bytes(image.clone().seal_with(&spaced)).is_ok());
    // Deep nesting under an unknown key costs no stack.
    let deep = edited("{\"aliases\"", &format!("{{\"new\":{},\"aliases\"", nested("[", "]")));
    assert!(Container::from_bytes(image.clone().seal_with(&deep)).is_ok_and(|c| c.index_json().is_ok()));
    // The model's JSON is parsed only on demand.
    for model in [nested("[", "]"), "1e999".to_owned(), "\"\\ud800\"".to_owned()] {
        let index = edited("{\"aliases\"", &format!("{{\"model\":{model},\"aliases\""));
        let container = Container::from_bytes(image.clone().seal_with(&index)).unwrap();
        assert!(container.read("w", &DecodeOptions::default()).is_ok());
        let e = container.model().unwrap_err();
        assert!(e.kind() == ErrorKind::Format && text(&e).contains("'model'"), "{e}");
    }
}
