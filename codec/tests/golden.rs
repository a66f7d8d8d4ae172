//! Golden files: they pin format version 1, whatever happens to the code.
//!
//! Files in `tests/data/golden` are read with every instruction set and must decode to the hashes below. Encoding the
//! same weights today must give the same bytes, so that no change of the format or of the writer's choices goes
//! unnoticed; only the bytes of zstd frames depend on the library's version. The writer's choices rest on logarithms,
//! which other machines may in theory round differently.
//!
//! Version 1 is frozen: a file of the table that no longer decodes is a defect of the decoder. If the writer's choices
//! change on purpose, `cargo test --test golden -- --ignored --nocapture` writes the files anew and prints the table
//! below.

mod common;

use std::path::PathBuf;

use common::samples::{self, Sample};
use common::{image::Image, options};
use wcodec::container::hash;
use wcodec::{Coder, Container, Isa, Layout};

/// Rows and columns of the files of one layer.
const LAYER: (usize, usize) = (32, 128);

/// Names of the files, and the hash of all their decoded tensors.
const GOLDEN: &[(&str, u64)] = &[
    ("rans-pair-row.wcodec", 0xA429D9984CB16592),
    ("rans-byte-block.wcodec", 0x6969A24D0186F7DB),
    ("huffman-pair-tensor.wcodec", 0xBF3A3405132457F5),
    ("huffman-byte-row.wcodec", 0xA429D9984CB16592),
    ("zstd-block.wcodec", 0xA429D9984CB16592),
    ("raw-row.wcodec", 0xA429D9984CB16592),
    ("zstd-of-raw.wcodec", 0x97A73544BE955486),
    ("rans-byte-spread-3.wcodec", 0xD30CC97628E59E9F),
    ("rans-byte-spread-30.wcodec", 0x2ED78454DB9FC07E),
    ("rans-byte-spread-67.wcodec", 0x174D537E4FDCBFE0),
    ("rans-byte-spread-127.wcodec", 0x10F61EAA803D9583),
    ("rans-byte-eights.wcodec", 0x670607EAC4A51C0B),
    ("rans-byte-raw-chunks.wcodec", 0x1E891872F82ABA14),
    ("rans-byte-patches.wcodec", 0xE91E0E210125EF18),
    ("rans-byte-left.wcodec", 0x77CD73D3A6B1B8D0),
    ("rans-byte-up.wcodec", 0x350533F46FCA29E4),
    ("rans-pair-spread-3.wcodec", 0xD30CC97628E59E9F),
    ("rans-pair-spread-30.wcodec", 0x2ED78454DB9FC07E),
    ("rans-pair-spread-67.wcodec", 0x174D537E4FDCBFE0),
    ("rans-pair-spread-127.wcodec", 0x10F61EAA803D9583),
    ("rans-pair-eights.wcodec", 0x670607EAC4A51C0B),
    ("rans-pair-raw-chunks.wcodec", 0x1E891872F82ABA14),
    ("rans-pair-patches.wcodec", 0xE91E0E210125EF18),
    ("rans-pair-left.wcodec", 0x77CD73D3A6B1B8D0),
    ("rans-pair-up.wcodec", 0x350533F46FCA29E4),
    ("huffman-byte-spread-3.wcodec", 0xD30CC97628E59E9F),
    ("huffman-byte-spread-30.wcodec", 0x2ED78454DB9FC07E),
    ("huffman-byte-spread-67.wcodec", 0x174D537E4FDCBFE0),
    ("huffman-byte-spread-127.wcodec", 0x10F61EAA803D9583),
    ("huffman-byte-eights.wcodec", 0x670607EAC4A51C0B),
    ("huffman-byte-raw-chunks.wcodec", 0x1E891872F82ABA14),
    ("huffman-byte-patches.wcodec", 0xE91E0E210125EF18),
    ("huffman-byte-left.wcodec", 0x77CD73D3A6B1B8D0),
    ("huffman-byte-up.wcodec", 0x350533F46FCA29E4),
    ("huffman-pair-spread-3.wcodec", 0xD30CC97628E59E9F),
    ("huffman-pair-spread-30.wcodec", 0x2ED78454DB9FC07E),
    ("huffman-pair-spread-67.wcodec", 0x174D537E4FDCBFE0),
    ("huffman-pair-spread-127.wcodec", 0x10F61EAA803D9583),
    ("huffman-pair-eights.wcodec", 0x670607EAC4A51C0B),
    ("huffman-pair-raw-chunks.wcodec", 0x1E891872F82ABA14),
    ("huffman-pair-patches.wcodec", 0xE91E0E210125EF18),
    ("huffman-pair-left.wcodec", 0x77CD73D3A6B1B8D0),
    ("huffman-pair-up.wcodec", 0x350533F46FCA29E4),
    ("zstd-byte-spread-3.wcodec", 0xD30CC97628E59E9F),
    ("zstd-byte-spread-30.wcodec", 0x2ED78454DB9FC07E),
    ("zstd-byte-spread-67.wcodec", 0x174D537E4FDCBFE0),
    ("zstd-byte-spread-127.wcodec", 0x10F61EAA803D9583),
    ("zstd-byte-eights.wcodec", 0x670607EAC4A51C0B),
    ("zstd-byte-raw-chunks.wcodec", 0x1E891872F82ABA14),
    ("zstd-byte-patches.wcodec", 0xE91E0E210125EF18),
    ("zstd-byte-left.wcodec", 0x77CD73D3A6B1B8D0),
    ("zstd-byte-up.wcodec", 0x350533F46FCA29E4),
];

const LEGACY: (&str, u64) = ("legacy.blob", 0xD792BCBF6C250563);

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn file_name(sample: &Sample) -> String {
    format!("{}.wcodec", sample.name.replace(' ', "-"))
}

/// The content of the files, encoded now.
fn encoded() -> Vec<Sample> {
    let mut all = samples::all_of(&samples::small_source());
    for (coder, layout) in [
        (Coder::Rans, Layout::Byte),
        (Coder::Rans, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
        (Coder::Zstd, Layout::Byte),
    ] {
        all.extend(samples::layers(coder, layout, LAYER.0, LAYER.1));
    }
    all
}

fn legacy_symbols() -> Vec<i8> {
    samples::symbols(LAYER.0 * LAYER.1, 40.0, 81)
}

/// A hash of names, dtypes, shapes and decoded bytes of all tensors under all their names.
fn decoded_hash(bytes: &[u8], isa: Isa, verify: bool) -> u64 {
    let container = Container::from_bytes(bytes.to_vec()).unwrap();
    let mut all = Vec::new();
    for name in container.names().into_iter().chain(container.aliases().keys().map(String::as_str)) {
        let info = container.info(name).unwrap();
        all.extend_from_slice(format!("{name} {} {:?}\n", info.dtype, info.shape).as_bytes());
        all.extend_from_slice(&container.read(name, &options(isa, verify)).unwrap());
    }
    hash(&all).0
}

#[test]
fn golden_files_decode_to_what_they_always_did() {
    for (name, want) in GOLDEN {
        let bytes = read(name);
        for isa in Isa::available() {
            for verify in [true, false] {
                assert_eq!(decoded_hash(&bytes, isa, verify), *want, "{name} with {isa}, verify {verify}");
            }
        }
    }
}

#[test]
fn layers_decode_to_the_symbols_they_were_made_of() {
    let mut layers = 0;
    for (what, symbols) in samples::layer_symbols(LAYER.0, LAYER.1) {
        let end = format!("-{}.wcodec", what.replace(' ', "-"));
        for (name, _) in GOLDEN.iter().filter(|(name, _)| name.ends_with(&end)) {
            for isa in Isa::available() {
                let layer = wcodec::layer::decode(&read(name), &options(isa, true)).unwrap();
                assert!(layer == (LAYER.0, LAYER.1, symbols.clone()), "{name} with {isa}");
            }
            layers += 1;
        }
    }
    assert_eq!(layers, 45);
}

#[test]
fn golden_files_are_those_of_the_table_and_cover_the_format() {
    let mut there: Vec<String> =
        std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let mut listed: Vec<&str> = GOLDEN.iter().map(|(name, _)| *name).chain([LEGACY.0]).collect();
    there.sort();
    listed.sort();
    assert_eq!(there, listed);
    let samples: Vec<Sample> =
        GOLDEN.iter().map(|(name, _)| Sample { name: (*name).to_owned(), bytes: read(name) }).collect();
    samples::assert_coverage(&samples);
    let length: usize = samples.iter().map(|s| s.bytes.len()).sum();
    assert!(length < 300_000, "{length} bytes are too many for a repository");
}

/// The program's version in the index is not part of the format.
fn without_writer(bytes: &[u8]) -> Vec<u8> {
    Image::new(bytes).set("/writer", "".into()).seal()
}

#[test]
fn encoding_gives_the_same_bytes_as_ever() {
    let encoded = encoded();
    assert_eq!(encoded.len(), GOLDEN.len());
    let mut same = 0;
    for sample in encoded {
        let name = file_name(&sample);
        let golden = read(&name);
        if name.starts_with("zstd") {
            // The values must be the same at least.
            assert_eq!(
                decoded_hash(&golden, Isa::Scalar, true),
                decoded_hash(&sample.bytes, Isa::Scalar, true),
                "{name}"
            );
            continue;
        }
        assert!(
            without_writer(&golden) == without_writer(&sample.bytes),
            "{name}: the format or the writer's choices have changed; if that is meant, see the head of this file"
        );
        same += 1;
    }
    assert!(same > 35);
}

#[test]
fn the_legacy_blob() {
    let layer = wcodec::legacy::decode(&read(LEGACY.0)).unwrap();
    assert_eq!((layer.rows, layer.cols), (LAYER.0 as u32, LAYER.1 as u32));
    assert_eq!(hash(bytemuck::cast_slice(&layer.symbols)).0, LEGACY.1);
    assert_eq!(layer.symbols, legacy_symbols());
}

#[test]
#[ignore = "writes tests/data/golden anew; only for a deliberate change of the format"]
fn regenerate() {
    std::fs::remove_dir_all(folder()).ok();
    std::fs::create_dir_all(folder()).unwrap();
    for sample in encoded() {
        let name = file_name(&sample);
        std::fs::write(folder().join(&name), &sample.bytes).unwrap();
        println!("    (\"{name}\", {:#018X}),", decoded_hash(&sample.bytes, Isa::Scalar, true));
    }
    let symbols = legacy_symbols();
    let blob = wcodec::legacy::encode(&symbols, LAYER.0 as u32, LAYER.1 as u32, 3).unwrap();
    std::fs::write(folder().join(LEGACY.0), blob).unwrap();
    println!("const LEGACY: (&str, u64) = (\"{}\", {:#018X});", LEGACY.0, hash(bytemuck::cast_slice(&symbols)).0);
}
