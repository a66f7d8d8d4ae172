//! Indexes with a correct hash and wrong values.

use serde_json::{Value, json};
use wcodec::{Container, ErrorKind};

use crate::allocator::assert_modest;
use crate::common::image::Image;
use crate::common::{checked, fuzz, newer, read_everywhere, samples, text, trusting};

/// The replacements for every value of the index.
fn hostile_values() -> Vec<Value> {
    let mut values: Vec<Value> =
        [0, 1, 2, 63, 64, 1 << 12, 1 << 20, 1 << 24, 1 << 31, 1 << 32, 1 << 40, 1 << 53, 1 << 62, 1 << 63]
            .into_iter()
            .chain([u64::from(u32::MAX), u64::MAX - 15, u64::MAX])
            .map(Value::from)
            .collect();
    values.extend([json!(-1), json!(i64::MIN), json!(0.5), json!(1e300), Value::Null, json!(true), json!("")]);
    values.extend([json!("x"), json!("raw"), json!("zstd"), json!("int8"), json!("F64"), json!("0000000000000000")]);
    values.extend([json!([]), json!({}), json!([0, 0, 0]), json!([u64::MAX, u64::MAX, 0, 0])]);
    values
}

/// Pointers to every value below `value`.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Array(a) => a.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        Value::Object(o) => o.iter().map(|(k, v)| (k.clone(), v)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let at = format!("{at}/{key}");
        pointers(child, &at, out);
        out.push(at);
    }
}

/// Opens and reads everything possible, with and without hashes.
fn try_all(bytes: Vec<u8>, what: &str) {
    match trusting(bytes) {
        Ok(container) => {
            for name in container.names() {
                for verify in [true, false] {
                    if let Err(e) = read_everywhere(&container, name, verify) {
                        let kinds = [ErrorKind::Format, ErrorKind::Corrupt, ErrorKind::Unsupported];
                        assert!(kinds.contains(&e.kind()), "{what}: {e}");
                        assert_eq!(e.tensor_name(), Some(name), "{what}: {e}");
                    }
                }
            }
        }
        Err(e) => {
            let kinds = [ErrorKind::Format, ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&e.kind()), "{what}: {}", text(&e));
        }
    }
    assert_modest(&what);
}

#[test]
fn every_value_replaced() {
    let values = hostile_values();
    for sample in samples::minis() {
        let image = Image::new(&sample.bytes);
        let mut all = Vec::new();
        pointers(&image.index, "", &mut all);
        assert!(all.len() > 40);
        for pointer in all {
            for value in &values {
                let what = format!("{}: {pointer} = {value}", sample.name);
                try_all(image.clone().set(&pointer, value.clone()).seal(), &what);
            }
        }
    }
}

#[test]
fn every_value_missing() {
    for sample in samples::minis() {
        let image = Image::new(&sample.bytes);
        let mut all = Vec::new();
        pointers(&image.index, "", &mut all);
        for pointer in all {
            let mut image = image.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match image.index.pointer_mut(parent).unwrap() {
                Value::Array(a) => drop(a.remove(key.parse::<usize>().unwrap())),
                Value::Object(o) => drop(o.remove(key)),
                _ => unreachable!("a parent"),
            }
            let bytes = image.seal();
            try_all(bytes.clone(), &format!("{}: without {pointer}", sample.name));
            fuzz::container::exercise_file(&bytes);
        }
    }
}

/// The fields of each kind of object in the order of their declaration in the crate, in which serde would accept a
/// list.
const FIELDS: &[(&str, &[&str])] = &[
    ("", &["format", "features", "writer", "metadata", "model", "tables", "tensors", "aliases"]),
    ("/tables/0", &["coder", "layout", "bits", "data"]),
    ("/tensors/0", &["name", "dtype", "shape", "scheme", "matrix", "scales", "planes", "quality"]),
    ("/tensors/0/scales", &["per", "block", "data"]),
    ("/tensors/0/quality", &["entropy"]),
    (
        "/tensors/0/planes/0",
        &[
            "coder",
            "fields",
            "filter",
            "layout",
            "shift",
            "tile",
            "chunk",
            "table",
            "chunks",
            "max_chunk",
            "offsets",
            "data",
            "side",
            "hash",
        ],
    ),
];

#[test]
fn lists_are_no_objects() {
    for sample in samples::minis() {
        let image = Image::new(&sample.bytes);
        for (pointer, fields) in FIELDS {
            let Some(object) = image.index.pointer(pointer) else { continue };
            let known = object.as_object().unwrap().keys().all(|k| fields.contains(&k.as_str()));
            assert!(known, "{}: another field in {object}", sample.name);
            // Up to the last value present; earlier missing ones are null.
            let values: Vec<Value> = fields.iter().map(|f| object.get(f).cloned().unwrap_or_default()).collect();
            let last = values.iter().rposition(|v| !v.is_null()).unwrap();
            for n in [last + 1, values.len()] {
                let mut image = image.clone();
                *image.index.pointer_mut(pointer).unwrap() = json!(values[..n]);
                let what = format!("{}: {pointer} as a list of {n}", sample.name);
                let e = Container::from_bytes(image.seal()).map(drop).expect_err(&what);
                assert!(e.kind() == ErrorKind::Format && text(&e).contains("object"), "{what}: {e}");
            }
        }
    }
}

/// Partial products that exceed 2^64 while the total is 0, or correct.
#[test]
fn matrices_whose_parts_are_too_large() {
    const BIG: u64 = 1 << 40;
    for sample in samples::minis().into_iter().chain(samples::all_layers()) {
        let image = Image::new(&sample.bytes);
        let n: u64 =
            image.index["tensors"][0]["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product();
        for matrix in [
            [BIG, BIG, 0, 0],
            [BIG, 0, BIG, 0],
            [0, BIG, BIG, 0],
            [BIG, BIG, BIG, 0],
            [u64::MAX, u64::MAX, 0, 0],
            [0, u64::MAX, u64::MAX, 0],
            [u64::MAX, 0, u64::MAX, 1],
            [1 << 63, 1 << 63, n, 0],
            [1 << 63, 2, n, 0],
            [1, 1 << 63, 2, 1],
        ] {
            for shape in [json!([n]), json!([0]), json!([BIG, 0, BIG]), json!([0, BIG, BIG])] {
                let mut image = image.clone().set("/tensors/0/shape", shape.clone());
                image.index["tensors"][0]["matrix"] = json!(matrix);
                let what = format!("{}: {matrix:?} of {shape}", sample.name);
                let container = Container::from_bytes(image.seal()).unwrap_or_else(|e| panic!("{what}: {e}"));
                fuzz::container::exercise(&container);
                assert_modest(&what);
            }
        }
    }
}

/// Two sizes at once that agree with each other, which a single replacement never achieves.
#[test]
fn shapes_that_agree_and_no_data_supports() {
    for sample in samples::minis() {
        let image = Image::new(&sample.bytes);
        for (count, rows, cols) in [
            (1u64, 1 << 31, 1),
            (1, 1, 1 << 31),
            (1 << 31, 1, 1),
            (1 << 20, 1 << 10, 1 << 10),
            (1, 1 << 32, 1 << 31),
            (1, 1 << 32, 1 << 32),
            (1 << 62, 1, 1),
            (1, u64::MAX / 4, 1),
            (1, 1, u64::MAX / 4),
            (1, 48 * 128, 1),
            (48, 128, 1),
            (1, 128, 48),
            (0, 1, 1),
            (1, 0, 1 << 40),
            (1, 16, 1 << 16),
        ] {
            for tensor in 0..2 {
                let at = format!("/tensors/{tensor}");
                let mut image = image.clone().set(&format!("{at}/shape"), json!([count, rows, cols]));
                if image.index.pointer(&format!("{at}/matrix")).is_some() {
                    image = image.set(&format!("{at}/matrix"), json!([count, rows, cols, 0]));
                }
                try_all(image.seal(), &format!("{}: tensor {tensor} of {count} x {rows} x {cols}", sample.name));
            }
        }
    }
}

#[test]
fn segments_that_do_not_fit_the_file() {
    for sample in samples::minis() {
        let image = Image::new(&sample.bytes);
        let places = image.places();
        let end = image.body.len() as u64;
        for (i, place) in places.iter().enumerate() {
            let (offset, length) = (place.offset as u64, place.length as u64);
            let mut bad = vec![
                (0, length),
                (48, length),
                (offset + 16, length),
                (offset.wrapping_sub(16), length),
                (offset + 1, length - 1),
                (offset, length + 16),
                (offset, 0),
                (offset, end),
                (offset, u64::MAX),
                (offset, u64::MAX - offset + 1),
                (end, length),
                (end, 16),
                (1 << 63, length),
                (u64::MAX, 1),
                (u64::MAX - length + 1, length),
                (0, 0),
            ];
            if length > 16 {
                bad.push((offset, length - 16));
            }
            let twin = &places[(i + 1) % places.len()];
            bad.push((twin.offset as u64, twin.length as u64));
            for (o, n) in bad {
                let bytes = image
                    .clone()
                    .set(&format!("{}/0", place.pointer), json!(o))
                    .set(&format!("{}/1", place.pointer), json!(n))
                    .seal();
                let what = format!("{}: {} at {o}, {n} bytes", sample.name, place.pointer);
                let e = Container::from_bytes(bytes).map(|_| ()).expect_err(&what);
                assert_eq!(e.kind(), ErrorKind::Format, "{what}: {e}");
                assert_modest(&what);
            }
        }
    }
}

/// One mistake each, and the expected message.
#[test]
fn contradictions_are_told_apart() {
    use ErrorKind::{Corrupt, Format, Unsupported};
    let pair = Image::new(&samples::mini("rans pair row"));
    let zstd = Image::new(&samples::mini("zstd block"));
    let raw = Image::new(&samples::mini("raw row"));
    let plane = "/tensors/0/planes/0";
    let rows: Vec<(&Image, String, Value, ErrorKind, &str)> = vec![
        (&pair, "/tensors/0/scheme".into(), json!("fractal"), Unsupported, "unknown scheme 'fractal'"),
        (&pair, "/tensors/0/dtype".into(), json!("I32"), Format, "I32"),
        (&pair, "/tensors/0/matrix".into(), json!([1, 128, 48, 1]), Format, "scales"),
        (&pair, "/tensors/0/matrix".into(), json!([1, 128, 48, 2]), Format, "matrix view"),
        (&pair, "/tensors/0/matrix".into(), json!([1, 48, 127, 0]), Format, "matrix view"),
        (&pair, "/tensors/0/matrix".into(), Value::Null, Format, "'matrix'"),
        (&pair, "/tensors/0/scales/per".into(), json!("column"), Format, "'column'"),
        (&pair, "/tensors/0/scales/per".into(), json!("tensor"), Format, "scales"),
        (&pair, "/tensors/0/scales/block".into(), json!(16), Format, "block"),
        (&zstd, "/tensors/0/scales/block".into(), json!(0), Format, "multiple of 16"),
        (&zstd, "/tensors/0/scales/block".into(), json!(24), Format, "multiple of 16"),
        (&pair, format!("{plane}/coder"), json!("lzma"), Unsupported, "unknown coder 'lzma'"),
        (&pair, format!("{plane}/coder"), json!("huffman"), Format, "table"),
        (&pair, format!("{plane}/fields"), json!([[0, 8]]), Unsupported, "parts of elements"),
        (&pair, format!("{plane}/filter"), json!("down"), Unsupported, "unknown filter 'down'"),
        (&pair, format!("{plane}/layout"), json!("triple"), Unsupported, "unknown layout 'triple'"),
        (&pair, format!("{plane}/layout"), json!("byte"), Corrupt, "side plane"),
        (&pair, format!("{plane}/shift"), json!(4), Format, "shift 4"),
        (&pair, format!("{plane}/shift"), Value::Null, Format, "'shift'"),
        (&pair, format!("{plane}/tile"), json!(0), Format, "tile width 0"),
        (&pair, format!("{plane}/tile"), json!(96), Format, "tile width 96"),
        (&pair, format!("{plane}/tile"), json!(8192), Format, "tile width 8192"),
        (&pair, format!("{plane}/tile"), json!(128), Format, "chunks"),
        (&pair, format!("{plane}/table"), Value::Null, Format, "table"),
        (&pair, format!("{plane}/chunks"), json!(7), Format, "chunks"),
        (&pair, format!("{plane}/chunks"), Value::Null, Format, "'chunks'"),
        (&pair, format!("{plane}/max_chunk"), json!(0), Corrupt, "longest chunk"),
        (&pair, format!("{plane}/max_chunk"), json!(u64::MAX), Corrupt, "longest chunk"),
        (&pair, format!("{plane}/max_chunk"), Value::Null, Format, "'max_chunk'"),
        (&pair, format!("{plane}/hash"), json!("0123456789abcdef"), Corrupt, "do not match their hash"),
        (&pair, "/tables/0/bits".into(), json!(10), Format, "coder rans have 11 or 12"),
        (&pair, "/tables/0/bits".into(), json!(11), Corrupt, "add up"),
        (&pair, "/tables/0/coder".into(), json!("zstd"), Format, "zstd"),
        (&pair, "/tables/0/coder".into(), json!("ans"), Unsupported, "'ans'"),
        (&zstd, format!("{plane}/chunk"), json!(0), Format, "16777216"),
        (&zstd, format!("{plane}/chunk"), json!((1 << 24) + 1), Format, "16777216"),
        (&zstd, format!("{plane}/chunk"), json!(1919), Corrupt, "frame"),
        (&zstd, format!("{plane}/max_chunk"), json!(1), Corrupt, "longest chunk"),
        (&zstd, format!("{plane}/filter"), json!("up"), Corrupt, "hash"),
        (&zstd, format!("{plane}/coder"), json!("raw"), Corrupt, "raw plane"),
        (&raw, format!("{plane}/coder"), json!("rans"), Format, "layout"),
        (&raw, "/tensors/0/scheme".into(), json!("raw"), Format, "matrix view"),
    ];
    for (image, pointer, value, kind, words) in rows {
        let what = format!("{pointer} = {value}");
        let container = Container::from_bytes(image.clone().set(&pointer, value).seal()).expect(&what);
        let e = container.read("w", &checked(true)).map(|_| ()).expect_err(&what);
        assert_eq!(e.kind(), kind, "{what}: {e}");
        assert!(text(&e).contains(words) && e.tensor_name() == Some("w"), "{what}: '{e}' does not say '{words}'");
        assert!(container.read("steps", &checked(true)).is_ok(), "{what}: the other tensor is unreadable");
    }
}

#[test]
fn unsupported_things_concern_one_tensor_and_wrong_ones_the_file() {
    let image = Image::new(&samples::mini("rans pair row"));
    for (pointer, value) in [
        ("/tensors/0/dtype", json!("F7")),
        ("/tensors/0/planes/0/table", json!(1)),
        ("/tensors/0/planes/0/table", json!(u32::MAX)),
        ("/tensors/0/planes/0/table", json!(u64::MAX)),
        ("/tensors/0/shape", json!([1u64 << 32, 1u64 << 32])),
        ("/tensors/0/shape", json!([-1])),
    ] {
        let e = Container::from_bytes(image.clone().set(pointer, value.clone()).seal()).map(|_| ());
        let e = e.expect_err(pointer);
        assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Unsupported), "{pointer} = {value}: {e}");
    }
}

/// Keys that a plane's coder ignores are not reported, and chunk counts without supporting data do not overflow.
#[test]
fn keys_that_a_coder_does_not_use_say_nothing() {
    let with = |name: &str, keys: &[(&str, Value)]| {
        let image = Image::new(&samples::mini(name));
        let set = |image: Image, (key, value): &(&str, Value)| {
            image.set(&format!("/tensors/0/planes/0/{key}"), value.clone())
        };
        let container = Container::from_bytes(keys.iter().fold(image, set).seal()).unwrap();
        assert!(container.read("w", &checked(true)).is_ok(), "{name}");
        container.info("w").unwrap().planes.remove(0)
    };
    let tiles = [("tile", json!(64)), ("layout", json!("pair")), ("shift", json!(2)), ("table", json!(null))];
    let zstd = with("zstd block", &tiles);
    assert_eq!((zstd.tile, zstd.layout, zstd.shift, zstd.frame), (None, None, None, Some(1920)));
    let others = [("chunks", json!(u64::MAX)), ("chunk", json!(5)), ("filter", json!("left"))];
    let raw = with("raw row", &[&tiles[..], &others].concat());
    assert_eq!((raw.chunks, raw.filter.as_str(), raw.frame, raw.tile), (1, "none", None, None));
    let rans = with("rans pair row", &[("chunk", json!(7))]);
    assert_eq!((rans.tile, rans.frame), (Some(64), None));

    let lossless = newer::all().into_iter().find(|s| s.name == "lossless zstd").unwrap();
    let image = Image::new(&lossless.bytes);
    let at = image.index["tensors"].as_array().unwrap().iter().position(|t| t["planes"][1].is_object()).unwrap();
    let most = |image: Image, plane: usize| {
        let pointer = format!("/tensors/{at}/planes/{plane}");
        image.set(&format!("{pointer}/coder"), json!("zstd")).set(&format!("{pointer}/chunks"), json!(u64::MAX))
    };
    let container = Container::from_bytes(most(most(image, 0), 1).seal()).unwrap();
    assert_eq!(container.infos().unwrap()[at].chunks(), usize::MAX);
}

/// Runs every operation on containers with strange but possible values.
#[test]
fn every_question_can_be_asked() {
    for sample in samples::minis().into_iter().chain(samples::all()) {
        fuzz::container::exercise(&Container::from_bytes(sample.bytes.clone()).unwrap());
        let image = Image::new(&sample.bytes);
        for (key, value) in [("chunks", json!(0)), ("chunks", json!(u64::MAX)), ("max_chunk", json!(u64::MAX))] {
            let bytes = image.clone().set(&format!("/tensors/0/planes/0/{key}"), value).seal();
            fuzz::container::exercise(&Container::from_bytes(bytes).unwrap());
        }
    }
}
