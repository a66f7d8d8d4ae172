//! Golden files of format 1.1 (schemes `rate` and `lossless`, filter `trellis`), of 1.2 (layout `quad`) and of 1.3
//! (factors of columns), as `golden.rs` has them for 1.0.
//!
//! `tests/data/golden-1.1` and its like hold the files, and `decoded.txt` their decoded content: lines with a
//! file's name and the hash of everything that readers get from it. `tests/format/test_golden.py` checks the same list with
//! the reader that was written from FORMAT.md alone.
//!
//! If the format or the writer's choices change on purpose, one command writes files and list anew, and the differences
//! must be reviewed: `cargo test --package wcodec --test golden_newer -- --ignored`. The hashes do not depend on the
//! coding of values.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use common::samples::Sample;
use common::{image::Image, newer, options};
use wcodec::container::hash;
use wcodec::scheme::COLUMNS;
use wcodec::{Container, Isa, TensorInfo};

const LIST: &str = "decoded.txt";

/// Encodes the files of a minor version now.
type Encode = fn() -> Vec<Sample>;

const VERSIONS: [(u16, Encode); 3] = [(1, newer::all), (2, newer::quads), (3, newer::columns)];

fn folder(minor: u16) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/golden-1.{minor}"))
}

fn read(minor: u16, name: &str) -> Vec<u8> {
    std::fs::read(folder(minor).join(name)).unwrap_or_else(|e| panic!("1.{minor}, {name}: {e}"))
}

fn file_name(sample: &Sample) -> String {
    format!("{}.wcodec", sample.name.replace(' ', "-"))
}

/// Names of the files and their decoded hashes in the list.
fn listed(minor: u16) -> Vec<(String, String)> {
    let list = String::from_utf8(read(minor, LIST)).unwrap();
    let line = |line: &str| {
        let (name, hash) = line.split_once(' ').expect("a name and a hash");
        (name.to_owned(), hash.to_owned())
    };
    list.lines().map(line).collect()
}

/// A hash of names, schemes as files call them, dtypes, shapes, stated errors, symbols, factors, scales and decoded bytes
/// of all tensors under all their names.
fn decoded_hash(bytes: &[u8], isa: Isa, verify: bool) -> String {
    let container = Container::from_bytes(bytes.to_vec()).unwrap();
    let mut all = Vec::new();
    for name in container.names().into_iter().chain(container.aliases().keys().map(String::as_str)) {
        let info = container.info(name).unwrap();
        let shape = info.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let scheme = if info.columns { COLUMNS } else { &info.scheme };
        all.extend_from_slice(format!("{name} {scheme} {} [{shape}]\n", info.dtype).as_bytes());
        if info.makes_symbols {
            all.extend_from_slice(&info.error.unwrap_or(-1.0).to_le_bytes());
            all.extend_from_slice(bytemuck::cast_slice(&container.symbols(name, &options(isa, verify)).unwrap()));
            all.extend_from_slice(bytemuck::cast_slice(&container.columns(name).unwrap().unwrap_or_default()));
            all.extend_from_slice(bytemuck::cast_slice(&container.scales(name).unwrap()));
        }
        all.extend_from_slice(&container.read(name, &options(isa, verify)).unwrap());
    }
    hash(&all).to_string()
}

/// The program's version in the index is not part of the format.
fn without_writer(bytes: &[u8]) -> Vec<u8> {
    Image::new(bytes).set("/writer", "".into()).seal()
}

#[test]
fn golden_files_decode_to_what_they_always_did() {
    for (minor, _) in VERSIONS {
        for (name, want) in listed(minor) {
            let bytes = read(minor, &name);
            for isa in Isa::available() {
                for verify in [true, false] {
                    assert_eq!(decoded_hash(&bytes, isa, verify), want, "{name} with {isa}, verify {verify}");
                }
            }
        }
    }
}

#[test]
fn encoding_gives_the_same_bytes_as_ever() {
    for (minor, encode) in VERSIONS {
        let (encoded, listed) = (encode(), listed(minor));
        assert_eq!(
            encoded.iter().map(file_name).collect::<Vec<_>>(),
            listed.iter().map(|l| l.0.clone()).collect::<Vec<_>>()
        );
        encoded.iter().for_each(|sample| same_as_golden(minor, sample));
    }
}

fn same_as_golden(minor: u16, sample: &Sample) {
    let name = file_name(sample);
    let golden = read(minor, &name);
    if name.contains("zstd") {
        // The bytes of frames depend on the library's version; their decoded content does not.
        assert_eq!(decoded_hash(&golden, Isa::Scalar, true), decoded_hash(&sample.bytes, Isa::Scalar, true), "{name}");
        return;
    }
    assert!(
        without_writer(&golden) == without_writer(&sample.bytes),
        "{name}: the format or the writer's choices have changed; if that is meant, see the head of this file"
    );
}

/// The features of the format that a tensor exercises.
fn facts(file: &[u8], info: &TensorInfo) -> Vec<String> {
    let (scheme, mut facts) = (&info.scheme, Vec::new());
    let kind = if info.columns { "columns" } else { scheme.as_str() };
    facts.push(format!("{kind} {}", info.dtype));
    facts.push(format!("{kind} {} {}", info.coder(), info.planes[0].filter));
    facts.push(format!("{kind} row axis {}", info.row_axis));
    facts.push(format!("{kind} count {}", info.count));
    for plane in &info.planes {
        let (coder, filter) = (&plane.coder, &plane.filter);
        let layout = plane.layout.as_deref().unwrap_or_default();
        let shift = plane.shift.map_or_else(String::new, |s| format!(" {s}"));
        facts.push(format!("{scheme} {coder} {layout}{shift}"));
        facts.push(format!("{scheme} {coder} {layout} {filter}"));
        if plane.shift.is_some_and(|s| s < 3) && layout == "pair" || layout == "quad" {
            // The count of patches begins the first chunk.
            let data = info.segments.iter().find(|s| s.role == "data").unwrap().offset as usize;
            let pair = if layout == "pair" { "" } else { "quad " };
            facts.extend((file[data] > 0).then(|| format!("{scheme} {coder} {pair}patches")));
        }
    }
    facts
}

/// The features that the files of each version must exercise.
fn wanted(minor: u16) -> Vec<String> {
    let mut want: Vec<String> = Vec::new();
    if minor == 3 {
        want.extend(["BF16", "F16", "F32"].map(|dtype| format!("columns {dtype}")));
        want.extend(["row axis 1", "count 2", "zstd none", "raw none"].map(|fact| format!("columns {fact}")));
        for coder in ["rans", "huffman"] {
            want.extend(["none", "trellis"].map(|filter| format!("columns {coder} {filter}")));
        }
        want.extend(["rate huffman quad trellis", "rate huffman pair none", "rate rans byte none"].map(Into::into));
        // Beside tensors without factors.
        want.extend(["rate BF16", "lossless BF16"].map(Into::into));
        return want;
    }
    if minor == 2 {
        want.extend([0, 2, 3, 4].map(|shift| format!("raw huffman quad {shift}")));
        want.extend((0..5).map(|shift| format!("rate huffman quad {shift}")));
        want.extend(["raw", "rate"].map(|scheme| format!("{scheme} huffman quad patches")));
        for scheme in ["int8", "rate"] {
            want.extend(["row axis 1", "count 2"].map(|fact| format!("{scheme} {fact}")));
        }
        want.extend(["int8 huffman quad none", "rate huffman quad none", "rate huffman quad trellis"].map(Into::into));
        want.extend(["raw huffman quad none", "raw huffman quad raw chunk"].map(Into::into));
        return want;
    }
    for coder in ["rans", "huffman"] {
        want.extend(["pair", "byte"].iter().flat_map(|l| ["none", "trellis"].map(|f| format!("rate {coder} {l} {f}"))));
        want.extend([0, 3].map(|shift| format!("rate {coder} pair {shift}")));
        want.extend(["byte", "split 8", "split 24"].map(|layout| format!("lossless {coder} {layout}")));
    }
    want.extend(["rate zstd  none", "rate raw  none", "lossless zstd  none", "lossless raw  none"].map(Into::into));
    want.extend(["rate rans pair 1", "rate rans pair 2", "rate rans patches", "rate huffman patches"].map(Into::into));
    want.extend(["BF16", "F16", "F32"].map(|dtype| format!("rate {dtype}")));
    want.extend(["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F8_E5M2FNUZ"].map(|dtype| format!("lossless {dtype}")));
    for scheme in ["rate", "lossless"] {
        want.extend(["row axis 1", "count 2"].map(|fact| format!("{scheme} {fact}")));
    }
    want.push("schemes int8 lossless rate raw".to_owned());
    want
}

#[test]
fn golden_files_are_those_of_the_list_and_cover_the_schemes() {
    for (minor, _) in VERSIONS {
        let files = std::fs::read_dir(folder(minor)).unwrap();
        let mut there: Vec<String> = files.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        let mut names: Vec<String> = listed(minor).into_iter().map(|(name, _)| name).chain([LIST.to_owned()]).collect();
        there.sort();
        names.sort();
        assert_eq!(there, names);

        let (mut seen, mut length) = (BTreeSet::new(), 0);
        for (name, _) in listed(minor) {
            let bytes = read(minor, &name);
            length += bytes.len();
            assert!(bytes.len() < 25_000, "{name}: {} bytes are too many for a repository", bytes.len());
            let container = Container::from_bytes(bytes.clone()).unwrap();
            let infos = container.infos().unwrap();
            // If nothing ended up in layout `quad`, the file has an earlier version.
            let quads = infos.iter().flat_map(|i| &i.planes).any(|p| p.layout.as_deref() == Some("quad"));
            assert!(container.version() == (1, minor) || minor == 2 && !quads, "{name}");
            seen.extend(infos.iter().filter(|info| info.name != "zeros").flat_map(|info| facts(&bytes, info)));
            seen.extend(infos.iter().filter_map(|info| raw_chunk(&container, info)));
            let schemes: BTreeSet<_> = infos.iter().map(|i| i.scheme.to_string()).collect();
            seen.insert(format!("schemes {}", schemes.into_iter().collect::<Vec<_>>().join(" ")));
        }
        assert!(length < 250_000, "{length} bytes are too many for a repository");
        let mut want = wanted(minor);
        want.retain(|w| !seen.contains(w));
        assert!(want.is_empty(), "no file of 1.{minor} has {want:?}; there are {seen:#?}");
    }
}

/// The fact that a plane of layout `quad` has an uncoded chunk: a count of patches, the patches, and 8 bytes for each
/// column.
fn raw_chunk(container: &Container, info: &TensorInfo) -> Option<String> {
    let plane = info.planes.first().filter(|p| p.layout.as_deref() == Some("quad"))?;
    let tile = plane.tile? as u64;
    let whole = |i: usize| container.chunk(&info.name, i).is_ok_and(|chunk| chunk.length >= 8 * tile + 4);
    let (scheme, coder) = (&info.scheme, &plane.coder);
    (0..info.chunks()).any(whole).then(|| format!("{scheme} {coder} quad raw chunk"))
}

#[test]
#[ignore = "writes tests/data/golden-1.1, golden-1.2 and golden-1.3 anew; only for a deliberate change of the format or of the writer's choices"]
fn regenerate() {
    for (minor, encode) in VERSIONS {
        std::fs::remove_dir_all(folder(minor)).ok();
        std::fs::create_dir_all(folder(minor)).unwrap();
        let mut list = String::new();
        for sample in encode() {
            let name = file_name(&sample);
            std::fs::write(folder(minor).join(&name), &sample.bytes).unwrap();
            writeln!(list, "{name} {}", decoded_hash(&sample.bytes, Isa::Scalar, true)).unwrap();
        }
        std::fs::write(folder(minor).join(LIST), list).unwrap();
    }
}
