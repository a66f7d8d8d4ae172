//! GGUF files: weights of every type as numbers, and files that are damaged.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::fuzz::gguf::{file, string};
use wcodec::{
    Cancel, Container, DecodeOptions, Dtype, EncodeOptions, ErrorKind, Gguf, GgufSource, Pool, Result, Scheme, Source,
    encode, encode_to_container,
};
use xxhash_rust::xxh3::xxh3_64;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/gguf").join(name)
}

fn all(file: &Gguf, index: usize, dtype: Dtype) -> Result<Vec<u8>> {
    let count = file.tensors()[index].elements as usize;
    let pool = Pool::new(Some(2)).unwrap();
    Ok(file.read_values(index, (0, count), dtype, &pool, &Cancel::new())?.to_vec())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn every_type_is_decoded_as_the_package_gguf_does_it() {
    // Written by tests/support/gguf_files.py from the package's decoding of the same blocks.
    let expected: BTreeMap<String, String> =
        serde_json::from_slice(&std::fs::read(data("types.json")).unwrap()).unwrap();
    let file = Gguf::open(&data("types.gguf")).unwrap();
    let mut seen = 0;
    for (i, t) in file.tensors().iter().enumerate() {
        let Some(hash) = expected.get(&t.kind) else {
            assert!(t.dtype.is_some(), "{} has no expected values", t.kind);
            let bytes = t.bytes as usize;
            assert_eq!(all(&file, i, Dtype::F32).unwrap().len(), bytes, "numbers come as they are");
            continue;
        };
        let values = all(&file, i, Dtype::F32).unwrap();
        assert_eq!(format!("{:016x}", xxh3_64(&values)), *hash, "{}", t.kind);
        // Shorter dtypes are rounded once.
        let (short, brain) = (all(&file, i, Dtype::F16).unwrap(), all(&file, i, Dtype::BF16).unwrap());
        for (n, value) in floats(&values).into_iter().enumerate() {
            assert_eq!(short[2 * n..][..2], half::f16::from_f32(value).to_le_bytes(), "{}", t.kind);
            assert_eq!(brain[2 * n..][..2], half::bf16::from_f32(value).to_le_bytes(), "{}", t.kind);
        }
        // The second row alone.
        let (pool, row) = (Pool::new(Some(1)).unwrap(), t.shape[1]);
        let second = file.read_values(i, (row as u64, row), Dtype::F32, &pool, &Cancel::new()).unwrap();
        assert_eq!(second[..], values[4 * row..]);
        let e = file.read_values(i, (1, row), Dtype::F32, &pool, &Cancel::new()).unwrap_err();
        assert!(e.kind() == ErrorKind::Input && e.message().contains("no whole blocks"), "{e}");
        let e = file.read_values(i, (row as u64, 2 * row), Dtype::F32, &pool, &Cancel::new()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Input);
        assert!(file.read_values(i, (0, row), Dtype::I8, &pool, &Cancel::new()).is_err());
        seen += 1;
    }
    assert_eq!(seen, expected.len());
    assert!(seen >= 23);
}

#[test]
fn tensors_of_many_pieces_are_whole() {
    // More weights than the threads decode at once, and pieces that end within a row.
    let (rows, cols) = (700, 1056);
    let blocks = rows * cols / 32;
    let mut bytes = file(&[], &[("w", &[cols as u64, rows as u64], 8, 0)], 0);
    for block in 0..blocks {
        bytes.extend(half::f16::from_f32(1.0 + (block % 7) as f32).to_le_bytes());
        bytes.extend((0..32).map(|i| (block * 5 + i) as u8));
    }
    let (_folder, path) = written(&bytes);
    let file = Gguf::open(&path).unwrap();
    let values = floats(&all(&file, 0, Dtype::F32).unwrap());
    assert_eq!(values.len(), rows * cols);
    for (i, value) in values.into_iter().enumerate() {
        let (block, at) = (i / 32, i % 32);
        assert_eq!(value, (1.0 + (block % 7) as f32) * f32::from((block * 5 + at) as u8 as i8), "{i}");
    }
}

#[test]
fn a_file_is_encoded_under_its_own_names() {
    let source = GgufSource::open(&data("types.gguf"), Dtype::BF16).unwrap();
    assert_eq!(source.metadata()["general.architecture"], "llama");
    let options = EncodeOptions { skip: vec!["f64".to_owned(), "i[0-9]*".to_owned()], ..EncodeOptions::default() };
    let lossless = EncodeOptions { scheme: Scheme::Lossless, ..options.clone() };
    let (container, _) = encode_to_container(&source, &lossless, &mut |_| Ok(())).unwrap();
    let index = source.tensors().iter().position(|t| t.name == "q4_k").unwrap();
    let decoded = container.read("q4_k", &DecodeOptions::default()).unwrap();
    assert_eq!(decoded[..], all(source.file(), index, Dtype::BF16).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.wcodec");
    // Random floats include infinities and NaNs.
    let skip = [&options.skip[..], &["f16", "f32", "bf16", "mxfp4", "nvfp4", "iq1_m"].map(str::to_owned)].concat();
    encode(&source, &out, &EncodeOptions { skip, ..options }, &mut |_| Ok(())).unwrap();
    assert_eq!(Container::open(&out).unwrap().infos().unwrap().len(), 20);
    assert_eq!(GgufSource::open(&data("types.gguf"), Dtype::I8).unwrap_err().kind(), ErrorKind::Input);
}

#[test]
fn types_that_are_not_decoded_are_named_and_the_rest_is_readable() {
    // Q8_1, which no file has, and an unknown type number.
    let bytes = file(&[], &[("a", &[32], 9, 0), ("b", &[4], 99, 64), ("c", &[4], 0, 96)], 112);
    let (_folder, path) = written(&bytes);
    let source = GgufSource::open(&path, Dtype::BF16).unwrap();
    for (i, words) in [(0, "GGUF's type Q8_1"), (1, "GGUF's type 99")] {
        let e = source.read(i).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains(words), "{e}");
        assert_eq!(source.file().tensors()[i].values_dtype(Dtype::F32).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(source.read(2).unwrap().len(), 16);
    let encoded = |skip: &[&str]| {
        let skip = skip.iter().map(|&s| s.to_owned()).collect();
        encode_to_container(&source, &EncodeOptions { skip, ..EncodeOptions::default() }, &mut |_| Ok(()))
    };
    assert_eq!(encoded(&[]).unwrap_err().tensor_name(), Some("a"));
    assert_eq!(encoded(&["a", "b"]).unwrap().1.tensors.len(), 1);
}

#[test]
fn blocks_do_not_go_on_in_the_next_row() {
    // 64 weights are two blocks, but a row of 16 is not a whole block.
    let (_folder, path) = written(&file(&[], &[("w", &[16, 4], 2, 0)], 64));
    let e = Gguf::open(&path).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Format, Some("w")));
    assert!(e.message().contains("rows of 16 elements of type Q4_0"), "{e}");
}

#[test]
fn what_is_cut_off_is_missing_and_not_allocated() {
    let rows = 1u64 << 40;
    let bytes = file(&[], &[("huge", &[256, rows], 12, 0), ("w", &[32, 2], 8, 0)], 40);
    let (_folder, path) = written(&bytes);
    let source = GgufSource::open(&path, Dtype::F32).unwrap();
    for i in 0..2 {
        let e = source.read(i).unwrap_err();
        assert_eq!((e.kind(), e.file_path()), (ErrorKind::Corrupt, Some(&*path)));
        assert!(e.message().contains("bytes of it are missing"), "{e}");
    }
    let pool = Pool::new(Some(1)).unwrap();
    let first = source.file().read_values(1, (0, 32), Dtype::F32, &pool, &Cancel::new()).unwrap();
    assert_eq!(first.len(), 128);
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(source.file().read_values(1, (0, 32), Dtype::F32, &pool, &cancel).is_err());
}

#[test]
fn a_part_of_a_split_file_is_named() {
    let count = 3u16.to_le_bytes();
    let values: [(&str, u32, &[u8]); 3] =
        [("general.name", 8, &string("x")), ("split.count", 2, &count), ("split.no", 2, &[1, 0])];
    let (_folder, path) = written(&file(&values, &[("w", &[4], 0, 0)], 16));
    assert_eq!(Gguf::open(&path).unwrap().part(), Some((2, 3)));
    let e = GgufSource::open(&path, Dtype::BF16).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.message().contains("part 2 of 3") && common::text(&e).contains("llama-gguf-split --merge"), "{e}");
}
