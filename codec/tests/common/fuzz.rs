//! Fuzz bodies: whatever the bytes are, the library answers and does not panic, and all instruction sets agree.
//!
//! `tests/fuzz.rs` runs them over mutations of valid inputs. For cargo-fuzz, write a target that includes this folder and
//! calls one of them, with the samples of `samples.rs` (or `tests/data/golden`) as its corpus:
//!
//! ```text
//! #![no_main]
//! #[path = "../../codec/tests/common/mod.rs"]
//! mod common;
//! libfuzzer_sys::fuzz_target!(|data: &[u8]| common::fuzz::fuzz_container(data));
//! ```
//!
//! The target's `Cargo.toml` needs wcodec and its dev-dependencies.

use std::path::Path;

use wcodec::coder::histogram::count_bytes;
use wcodec::coder::plane::{Plane, PlaneSource, Scratch, TileFields};
use wcodec::coder::table::Table;
use wcodec::{
    Checkpoint, Coder, Container, Dtype, EncodeOptions, ErrorKind, Filter, Isa, Layout, Scheme, Source, TensorInfo,
};

use super::image::reseal_header;
use super::{Rng, checked, options, read_everywhere, text};

/// Tensors that decode to more are left alone: a few bytes of zstd may rightly become gigabytes.
const LARGEST: u64 = 4 << 20;

/// Opens `data` as a container and asks it for everything.
pub fn fuzz_container(data: &[u8]) {
    match Container::from_bytes(data.to_vec()) {
        Ok(container) => exercise(&container),
        Err(e) => {
            assert!(
                matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{}",
                text(&e)
            );
        }
    }
}

/// Everything that can be asked of an open container.
pub fn exercise(container: &Container) {
    let infos = container.infos().unwrap();
    for info in infos.iter().filter(|t| t.original_bytes <= LARGEST) {
        let name = &info.name;
        let plain = read_everywhere(container, name, false);
        exercise_rows(container, info, plain.as_deref().ok());
        match read_everywhere(container, name, true) {
            Ok(verified) => assert_eq!(plain.unwrap(), verified, "'{name}' differs when hashes are compared"),
            Err(e) => assert_eq!(e.tensor_name(), Some(name.as_str()), "{}", text(&e)),
        }
        for isa in Isa::available() {
            container.symbols(name, &options(isa, false)).ok();
        }
        container.scales(name).ok();
        container.read_as(name, Dtype::F16, &checked(false)).ok();
        for chunk in [0, info.chunks / 2, info.chunks.saturating_sub(1), info.chunks, usize::MAX] {
            container.chunk(name, chunk).ok();
            container.read_chunk(name, chunk, &checked(false)).ok();
        }
    }
    container.index_json().ok();
    container.reader().check_padding().ok();
    for alias in container.aliases().keys() {
        assert!(container.names().contains(&container.resolve(alias).unwrap()));
    }
    wcodec::compare(container, container).ok();
    if infos.iter().all(|t| t.original_bytes <= LARGEST) {
        wcodec::verify(container, None, &checked(true), &mut |_| Ok(())).unwrap();
    }
}

/// Rows are parts of the whole, or, where that does not decode, whatever they are.
fn exercise_rows(container: &Container, info: &TensorInfo, whole: Option<&[u8]>) {
    let all = info.shape.first().copied().unwrap_or(0);
    for rows in
        [0..all, 0..1, all / 3..all / 3 * 2 + 1, all.saturating_sub(1)..all, all..all + 1, all..all.saturating_sub(1)]
    {
        let got = container.read_rows(&info.name, rows.clone(), None, &checked(false));
        let there = !info.shape.is_empty() && rows.start <= rows.end && rows.end <= all;
        match (got, whole) {
            (Ok(got), Some(whole)) => {
                assert!(there);
                let row = whole.len() / all.max(1);
                assert!(got[..] == whole[rows.start * row..rows.end * row], "rows {rows:?} of '{}'", info.name);
            }
            (Ok(_), None) => assert!(there),
            (Err(e), Some(_)) => assert!(!there, "rows {rows:?} of '{}': {}", info.name, text(&e)),
            (Err(e), None) => assert_eq!(e.tensor_name(), Some(info.name.as_str())),
        }
        container.read_rows(&info.name, rows, Some(Dtype::I8), &checked(true)).ok();
    }
    if let Ok(part) = wcodec::extract(container, &[&info.name], &checked(true)) {
        Container::from_bytes(part).unwrap();
    }
}

/// Decodes `data` as a legacy blob.
pub fn fuzz_legacy(data: &[u8]) {
    // The blob's own claim, which may be that a few bytes are many.
    let claim = data.get(12..16).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()));
    if u64::from(claim) > LARGEST {
        return;
    }
    if let Ok(layer) = wcodec::legacy::decode(data) {
        assert_eq!(layer.symbols.len() as u64, u64::from(layer.rows) * u64::from(layer.cols));
        let again = wcodec::legacy::encode(&layer.symbols, layer.rows, layer.cols, 1).unwrap();
        assert_eq!(wcodec::legacy::decode(&again).unwrap(), layer);
    }
}

/// Header of the input of [`fuzz_plane`], bytes.
pub const PLANE_HEADER: usize = 16;

/// Decodes a plane without a container: the first 16 bytes choose its form and how the rest is cut into segments.
///
/// 0: coder (bits 0, 1), layout (2), filter (3, 4), bits of the table (7); 1: shift; 2: tile / 64 - 1; 3: count; 4, 5: rows; 6, 7: columns; 8, 9:
/// bytes of offsets; 10, 11: bytes of side plane; 12 to 15: chunk of zstd. Then the table (256 symbol counts of one byte),
/// offsets, side plane and data. Returns how many pieces were there to decode; 0 where the parts do not fit each other.
pub fn fuzz_plane(input: &[u8]) -> usize {
    let Some((head, rest)) = input.split_first_chunk::<PLANE_HEADER>() else { return 0 };
    let Some((counts, rest)) = rest.split_first_chunk::<256>() else { return 0 };
    let short = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let coder = Coder::ALL[usize::from(head[0] & 3)];
    let layout = Layout::ALL[usize::from(head[0] >> 2 & 1)];
    let filter = Filter::ALL[usize::from(head[0] >> 3 & 3) % 3];
    let bits = 11 + u32::from(head[0] >> 7);
    let (offsets, rest) = rest.split_at(short(8).min(rest.len()));
    let (side, data) = rest.split_at(short(10).min(rest.len()));
    let table;
    let tiles = match coder {
        Coder::Rans | Coder::Huffman => {
            table = Table::from_histogram(coder, bits, &counts.map(u64::from));
            let tile = (usize::from(head[2]) + 1) * 64;
            Some(TileFields { layout, shift: u32::from(head[1]), tile, table: &table, side })
        }
        _ => None,
    };
    let source = PlaneSource {
        coder,
        filter,
        matrix: (usize::from(head[3]), short(4), short(6)),
        data,
        offsets,
        zstd_chunk: u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize,
        max_chunk: longest_chunk(coder, offsets),
        tiles,
    };
    let outcomes = Isa::available().into_iter().map(|isa| {
        let plane = Plane::new(source, isa).ok().filter(|p| p.elements() as u64 <= LARGEST)?;
        let mut out = vec![0x55i8; plane.elements()];
        let mut scratch = Scratch::default();
        let piece = |i: usize| plane.decode_piece(i, &mut out[plane.piece(i)], &mut scratch).is_ok();
        let good: Vec<bool> = (0..plane.pieces()).map(piece).collect();
        // What is in a piece that cannot be decoded is nobody's business here.
        good.iter().enumerate().filter(|(_, good)| !**good).for_each(|(i, _)| out[plane.piece(i)].fill(0));
        Some((good, out))
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert!(outcomes.windows(2).all(|w| w[0] == w[1]), "{coder} {layout} {filter}: instruction sets disagree");
    outcomes.into_iter().next().flatten().map_or(0, |(good, _)| good.len())
}

/// What an index would have to say of `offsets`, so that the input need not know.
fn longest_chunk(coder: Coder, offsets: &[u8]) -> usize {
    let words: Vec<u32> = offsets.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let longest = match coder {
        Coder::Zstd => words.chunks_exact(2).map(|w| w[1] as usize).max(),
        _ => words.windows(2).map(|w| w[1].saturating_sub(w[0]) as usize * 4).max(),
    };
    longest.unwrap_or(0)
}

/// Input of [`fuzz_plane`] for the first plane of a single-layer container, so that mutations start from something valid.
pub fn plane_input(layer: &[u8]) -> Vec<u8> {
    let container = Container::from_bytes(layer.to_vec()).unwrap();
    let index = container.reader().index();
    let (t, p) = (&index.tensors[0], &index.tensors[0].planes[0]);
    let segment = |s: &Option<wcodec::container::Segment>| match s {
        Some(s) => container.reader().segment(s, true).unwrap().to_vec(),
        None => Vec::new(),
    };
    let (offsets, side, data) = (segment(&p.offsets), segment(&p.side), segment(&Some(p.data)));
    let coder = Coder::from_name(&p.coder).unwrap();
    let place = |found: Option<usize>| found.unwrap() as u8;
    let layout = p.layout.as_deref().map_or(0, |l| place(Layout::ALL.iter().position(|x| x.name() == l)));
    let filter = p.filter.as_deref().map_or(0, |f| place(Filter::ALL.iter().position(|x| x.name() == f)));
    let mut out = vec![place(Coder::ALL.iter().position(|c| *c == coder)) | layout << 2 | filter << 3 | 0x80];
    let m = t.matrix.map_or((1, t.shape[0], t.shape[1]), |m| (m.count, m.rows, m.cols));
    out.push(p.shift.unwrap_or(0) as u8);
    out.push((p.tile.unwrap_or(64) / 64 - 1) as u8);
    out.push(m.0 as u8);
    for n in [m.1, m.2, offsets.len(), side.len()] {
        out.extend_from_slice(&(n as u16).to_le_bytes());
    }
    out.extend_from_slice(&(p.chunk.unwrap_or(0) as u32).to_le_bytes());
    // Not the plane's own table, which counts of one byte cannot give: any table decodes something.
    out.extend(count_bytes(&data).map(|n| n.clamp(1, 255) as u8));
    [out, offsets, side, data].concat()
}

/// Opens `data` as a `.safetensors` file in `folder` and encodes what it holds.
pub fn fuzz_checkpoint_header(data: &[u8], folder: &Path) {
    let path = folder.join("fuzz.safetensors");
    std::fs::write(&path, data).unwrap();
    let checkpoint = match Checkpoint::open(&path) {
        Ok(checkpoint) => checkpoint,
        Err(e) => return assert_eq!(e.file_path(), Some(path.as_path()), "{}", text(&e)),
    };
    for i in 0..checkpoint.tensors().len() {
        checkpoint.read(i).unwrap();
    }
    let options = EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..Default::default() };
    let (bytes, _) = wcodec::encode_to_vec(&checkpoint, &options, &mut |_| Ok(())).unwrap();
    let container = Container::from_bytes(bytes).unwrap();
    for (i, t) in checkpoint.tensors().iter().enumerate() {
        assert_eq!(container.read(&t.name, &checked(true)).unwrap()[..], checkpoint.read(i).unwrap()[..]);
    }
    let options = EncodeOptions { coder: Coder::Rans, ..Default::default() };
    if let Err(e) = wcodec::encode_to_vec(&checkpoint, &options, &mut |_| Ok(())) {
        assert_eq!(e.kind(), ErrorKind::Input, "{}", text(&e));
    }
}

/// Numbers at which sizes go wrong.
const HOSTILE: &[u64] = &[0, 1, 15, 64, 255, 1 << 16, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 53, 1 << 63, u64::MAX];

/// A mutation of `seed`, sometimes with a piece of `other`: cut, spliced, bits flipped, integers replaced.
pub fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = seed.to_vec();
    for _ in 0..=rng.below(3) {
        if out.is_empty() {
            break;
        }
        let at = rng.below(out.len());
        match rng.below(8) {
            0 => out.truncate(at),
            1 => {
                let from = rng.below(other.len());
                let n = rng.below(64).min(other.len() - from);
                out.splice(at..(at + n).min(out.len()), other[from..from + n].iter().copied());
            }
            2 => {
                let n = rng.below(32).min(out.len() - at);
                out.drain(at..at + n);
            }
            3 => out.insert(at, rng.next() as u8),
            4 | 5 => out[at] ^= 1 << rng.below(8),
            6 => {
                let number = HOSTILE[rng.below(HOSTILE.len())].to_le_bytes();
                let n = [1, 2, 4, 8][rng.below(4)].min(out.len() - at);
                out[at..at + n].copy_from_slice(&number[..n]);
            }
            _ => digits(rng, &mut out, at),
        }
    }
    out
}

/// Replaces the decimal number at or after `at`, which reaches the sizes in JSON.
fn digits(rng: &mut Rng, out: &mut Vec<u8>, at: usize) {
    let Some(begin) = out[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else { return };
    let n = out[begin..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(out.len() - begin);
    let number = match rng.below(4) {
        0 => (rng.next() % 300).to_string(),
        1 => format!("-{}", rng.below(9)),
        2 => format!("{}.5", rng.below(9)),
        _ => HOSTILE[rng.below(HOSTILE.len())].to_string(),
    };
    out.splice(begin..begin + n, number.into_bytes());
}

/// [`mutate`] for containers: mostly the hashes of header and index are made right again, so that more than the hash
/// check is met.
pub fn mutate_container(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = if rng.below(2) == 0 {
        mutate(rng, seed, other)
    } else {
        // The index alone.
        let at = u64::from_le_bytes(seed[16..24].try_into().unwrap()) as usize;
        let index = mutate(rng, &seed[at..], &other[other.len() / 2..]);
        [&seed[..at], &index].concat()
    };
    if rng.below(8) > 0 {
        reseal_header(&mut out);
    }
    out
}
