//! GGUF files: headers, and blocks of weights.

use wcodec::{Cancel, Dtype, ErrorKind, Gguf, Pool};

use super::{Rng, Target, mutate};

pub const TARGET: Target = Target { name: "gguf", body, seeds, mutate: mutate_header };

thread_local! {
    // Temporary files are cheap if they are in memory (`TMPDIR=/dev/shm`).
    static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// The input is a file.
fn body(input: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("fuzz.gguf");
        std::fs::write(&path, input).unwrap();
        let file = match Gguf::open(&path) {
            Ok(file) => file,
            Err(e) => return assert_eq!(e.file_path(), Some(&*path)),
        };
        assert_eq!(&input[..4], b"GGUF");
        assert!(Gguf::is_one(&path));
        for (i, t) in file.tensors().iter().enumerate() {
            let missing = file.missing(i);
            assert!(missing <= t.bytes);
            // At least half a byte per weight, or the result would not fit the memory that a small file may take.
            let some = (t.bytes - missing).min(1 << 16) as usize;
            let read = file.read_part(i, 0, some, &Cancel::new());
            assert!(t.offset > input.len() as u64 || read.is_ok(), "{t:?}: {read:?}");
            assert!(file.read_part(i, t.bytes, 1, &Cancel::new()).is_err());
            assert!(file.read_part(i, u64::MAX, 2, &Cancel::new()).is_err());
            values(&file, i);
        }
        for value in file.metadata().values() {
            assert!(value.len() <= 4 * 300);
        }
    });
}

/// Weights as numbers: all weights of a tensor that fits a small file, whatever its blocks contain, or an error.
fn values(file: &Gguf, i: usize) {
    let t = &file.tensors()[i];
    let (pool, go) = (Pool::new(Some(1)).unwrap(), Cancel::new());
    let dtype = if t.elements.is_multiple_of(2) { Dtype::F32 } else { Dtype::BF16 };
    let count = t.elements.min(1 << 40) as usize;
    let read = file.read_values(i, (0, count), dtype, &pool, &go);
    assert!(file.read_values(i, (t.elements, 1), dtype, &pool, &go).is_err());
    match (t.values_dtype(dtype), read) {
        (Err(e), read) => assert!(e.kind() == ErrorKind::Unsupported && read.is_err(), "{t:?}: {e}"),
        (Ok(as_numbers), Ok(read)) => {
            assert!(read.len() == count * as_numbers.size() && (file.missing(i) == 0 || count == 0), "{t:?}");
        }
        // It is not in the file, or larger than this test asks for.
        (Ok(_), Err(e)) => {
            assert!(file.missing(i) > 0 || t.elements > 1 << 40 || t.offset > file.file_len(), "{t:?}: {e}");
        }
    }
}

/// A file with values (type and bytes) and tensors (dimensions, type, offset), and `data` bytes of data.
pub fn file(values: &[(&str, u32, &[u8])], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    let name = |out: &mut Vec<u8>, name: &str| {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
    };
    for (key, kind, value) in values {
        name(&mut out, key);
        out.extend(kind.to_le_bytes());
        out.extend(*value);
    }
    for (of, dimensions, kind, offset) in tensors {
        name(&mut out, of);
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend((0..data).map(|i| i as u8));
    out
}

/// A text in GGUF's encoding.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let list = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string("a"), &string("bc")].concat();
    let nested =
        [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &4u32.to_le_bytes(), &2u64.to_le_bytes(), &[1; 8]].concat();
    let name = string("tiny");
    let values: [(&str, u32, &[u8]); 5] = [
        ("general.name", 8, &name),
        ("general.alignment", 4, &[32, 0, 0, 0]),
        ("tokenizer.ggml.tokens", 9, &list),
        ("nested", 9, &nested),
        ("flag", 7, &[1]),
    ];
    // F32, F16, Q4_0, Q4_K, BF16, and an unknown type.
    let tensors: [(&str, &[u64], u32, u64); 5] = [
        ("blk.0.attn_q.weight", &[64, 2], 1, 0),
        ("blk.0.attn_norm.weight", &[4], 0, 256),
        ("blk.0.ffn_up.weight", &[256, 1], 12, 288),
        ("blk.0.ffn_down.weight", &[32], 2, 448),
        ("output.weight", &[3], 30, 480),
    ];
    let whole = file(&values, &tensors, 486);
    // A block of each type that can be decoded, with its length.
    let of_all: [(u32, u64, u64); 23] = [
        (2, 32, 18),
        (3, 32, 20),
        (6, 32, 22),
        (7, 32, 24),
        (8, 32, 34),
        (20, 32, 18),
        (10, 256, 84),
        (11, 256, 110),
        (12, 256, 144),
        (13, 256, 176),
        (14, 256, 210),
        (16, 256, 66),
        (17, 256, 74),
        (22, 256, 82),
        (18, 256, 98),
        (21, 256, 110),
        (19, 256, 50),
        (29, 256, 56),
        (23, 256, 136),
        (34, 256, 54),
        (35, 256, 66),
        (39, 32, 17),
        (40, 64, 36),
    ]; // Type, weights, bytes.
    let rows: Vec<[u64; 1]> = of_all.iter().map(|&(_, weights, _)| [weights]).collect();
    let names: Vec<String> = of_all.iter().map(|(kind, ..)| format!("t{kind}")).collect();
    let mut at = 0u64;
    let tensors: Vec<(&str, &[u64], u32, u64)> = (0..of_all.len())
        .map(|i| {
            let offset = at;
            at += of_all[i].2.next_multiple_of(32);
            (names[i].as_str(), &rows[i][..], of_all[i].0, offset)
        })
        .collect();
    vec![
        whole[..whole.len() - 100].to_vec(),
        whole,
        file(&[], &tensors, at as usize),
        file(&[], &[], 0),
        file(&[], &[("a", &[1, 1, 1, 1], 99, 0)], 4),
        file(&[("general.alignment", 4, &[64, 0, 0, 0])], &[("a", &[0], 0, 0)], 4),
    ]
}

fn mutate_header(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    mutate(rng, seed, other)
}
