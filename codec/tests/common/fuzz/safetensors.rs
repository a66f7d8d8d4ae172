//! Headers of `.safetensors` files.

use std::path::Path;

use serde_json::Value;
use wcodec::{Checkpoint, Coder, Container, EncodeOptions, ErrorKind, Scheme, Source, encode_to_vec};

use super::{LARGEST, Rng, Target, mutate};
use crate::common::{checked, safetensors, samples, text};

pub const TARGET: Target = Target { name: "safetensors", body, seeds, mutate: mutate_header };

/// Flags of the first byte: whether the opened checkpoint is stored raw, or quantized and coded.
const STORE: u8 = 1;
const CODE: u8 = 2;
/// Whether the data are zeros.
const ZEROS: u8 = 4;
/// Whether the rest is a file, unchanged.
const FILE: u8 = 0x80;

thread_local! {
    // A checkpoint consists of files, which are cheap in memory (`TMPDIR=/dev/shm`).
    static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// The first byte has the flags above; the rest is a header, to which its length and the data that it names are added.
fn body(input: &[u8]) {
    let Some((&first, rest)) = input.split_first() else { return };
    let whole;
    let file = if first & FILE == 0 {
        let byte = |i: usize| if first & ZEROS == 0 { (i as u8).wrapping_mul(37) ^ first } else { 0 };
        let data: Vec<u8> = (0..data_length(rest)).map(byte).collect();
        whole = safetensors::file(rest, &data);
        &whole
    } else {
        rest
    };
    FOLDER.with(|folder| open(file, &folder.path().join("fuzz.safetensors"), first));
}

/// The bytes of data that a header names, if it is valid; 0 if they are many.
fn data_length(header: &[u8]) -> usize {
    let parsed: Value = serde_json::from_slice(header).unwrap_or_default();
    let ends = parsed.as_object().into_iter().flat_map(|o| o.values()).filter_map(|t| t["data_offsets"][1].as_u64());
    ends.max().filter(|&n| n <= LARGEST / 4).unwrap_or(0) as usize
}

fn open(file: &[u8], path: &Path, flags: u8) {
    std::fs::write(path, file).unwrap();
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(e) => return assert_eq!(e.file_path(), Some(path), "{}", text(&e)),
    };
    for i in 0..checkpoint.tensors().len() {
        checkpoint.read(i).unwrap();
    }
    let mut go = |_: &wcodec::ProgressEvent<'_>| Ok(());
    if flags & STORE != 0 {
        let options = EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..Default::default() };
        let (bytes, _) = encode_to_vec(&checkpoint, &options, &mut go).unwrap();
        let container = Container::from_bytes(bytes).unwrap();
        for (i, t) in checkpoint.tensors().iter().enumerate() {
            assert_eq!(container.read(&t.name, &checked(true)).unwrap()[..], checkpoint.read(i).unwrap()[..]);
        }
    }
    if flags & CODE != 0
        && let Err(e) = encode_to_vec(&checkpoint, &EncodeOptions { coder: Coder::Rans, ..Default::default() }, &mut go)
    {
        assert_eq!(e.kind(), ErrorKind::Input, "{}", text(&e));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let files = [
        safetensors::valid(&[("a", "F32", &[2, 3], vec![0; 24]), ("b.weight", "BF16", &[4], vec![1; 8])]),
        safetensors::valid(&[("e", "I8", &[0, 3], vec![]), ("s", "F64", &[], vec![2; 8])]),
        safetensors::valid(&[("w", "F32", &[40, 64], samples::as_bytes(&samples::weights(40 * 64, 7)))]),
        safetensors::valid(&[("x", "F16", &[16, 64], vec![3; 2048]), ("y", "F16", &[16, 64], vec![3; 2048])]),
        safetensors::file(
            br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
            b"abc",
        ),
        safetensors::file(br#"{"a":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[0,2]}}    "#, b"ab"),
        safetensors::file(b"{}", b""),
    ];
    let header = |file: &[u8]| file[8..][..u64::from_le_bytes(file[..8].try_into().unwrap()) as usize].to_vec();
    let inputs = files.iter().flat_map(|file| {
        let headers = [0, STORE, CODE, CODE | ZEROS].map(|flags| [vec![flags], header(file)].concat());
        headers.into_iter().chain([[&[FILE], &file[..]].concat()])
    });
    inputs.filter(|i| i.len() < 4096).collect()
}

fn mutate_header(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    mutate(rng, seed, other)
}
