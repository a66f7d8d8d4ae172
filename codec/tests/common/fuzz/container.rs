//! Whole containers: header, index, and every operation on them.

use wcodec::{Container, Dtype, ErrorKind, Isa, TensorInfo};

use super::mutate::mutate_from;
use super::{LARGEST, Rng, Target, files, mutate};
use crate::common::image::{index_offset, reseal_header, reseal_segments};
use crate::common::{checked, options, read_everywhere, samples, text};

pub const TARGET: Target = Target { name: "container", body, seeds, mutate: mutate_container };

/// The number of questions in [`ask`].
pub const QUESTIONS: u8 = 6;
/// Flags of the first byte: parts that are left unchanged.
const SEGMENTS: u8 = 0x40;
const HEADER: u8 = 0x80;

/// The first byte chooses the question (bits 0 to 5), and whether the hashes of segments (bit 6), and those of header
/// and index (bit 7), are left unchanged. The rest is the file.
fn body(input: &[u8]) {
    let Some((&first, file)) = input.split_first() else { return };
    let mut bytes = file.to_vec();
    if first & SEGMENTS == 0 {
        reseal_segments(&mut bytes);
    }
    if first & HEADER == 0 {
        reseal_header(&mut bytes);
    }
    if let Some(container) = open(bytes) {
        ask(&container, first % SEGMENTS % QUESTIONS);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let small = samples::minis().into_iter().chain(samples::all_of(&samples::small_source())).map(|s| s.bytes);
    let files = ["golden", "golden-1.1", "golden-1.2", "golden-1.3", "corrupt"]
        .into_iter()
        .flat_map(files)
        .chain(small)
        .enumerate();
    let input = |(i, file): (usize, Vec<u8>)| [&[i as u8 % QUESTIONS], &file[..]].concat();
    files.map(input).collect()
}

/// Half of the mutations affect the index alone.
fn mutate_container(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = match seed.split_first() {
        Some((_, file)) => mutate_from(rng, seed, other, 1 + index_offset(file)),
        None => mutate(rng, seed, other),
    };
    if let Some(first) = out.first_mut()
        && rng.below(4) == 0
    {
        *first = rng.next() as u8;
    }
    out
}

/// Opens `bytes` as a container, if they are valid.
fn open(bytes: Vec<u8>) -> Option<Container> {
    match Container::from_bytes(bytes) {
        Ok(container) => Some(container),
        Err(e) => {
            let kind = e.kind();
            assert!(matches!(kind, ErrorKind::Format | ErrorKind::Corrupt | ErrorKind::Unsupported), "{}", text(&e));
            None
        }
    }
}

/// Opens `bytes` as a container and runs every operation on it.
pub fn exercise_file(bytes: &[u8]) {
    if let Some(container) = open(bytes.to_vec()) {
        exercise(&container);
    }
}

/// Every operation on an open container.
pub fn exercise(container: &Container) {
    (0..QUESTIONS).for_each(|question| ask(container, question));
}

/// One group of operations, so that an input takes little time.
pub fn ask(container: &Container, question: u8) {
    let infos = container.infos().unwrap();
    let small = infos.iter().filter(|t| t.original_bytes <= LARGEST);
    match question {
        0 => small.for_each(|t| decodes_everywhere(container, t)),
        1 => small.for_each(|t| hashes_only_refuse(container, t)),
        2 => small.for_each(|t| rows_are_of_the_whole(container, t)),
        3 => small.for_each(|t| parts_can_be_asked_for(container, t)),
        4 => small.for_each(|t| extracts_stand_alone(container, t)),
        _ => {
            whole(container);
            if small.count() == infos.len() {
                wcodec::verify(container, None, &checked(true), &mut |_| Ok(())).unwrap();
            }
        }
    }
}

/// Checks that all instruction sets agree, on values and on symbols.
fn decodes_everywhere(container: &Container, info: &TensorInfo) {
    read_everywhere(container, &info.name, false).ok();
    let symbols = Isa::available().into_iter().map(|isa| container.symbols(&info.name, &options(isa, false)).ok());
    let symbols: Vec<_> = symbols.collect();
    assert!(symbols.windows(2).all(|w| w[0] == w[1]), "symbols of '{}'", info.name);
}

/// Checks that comparing hashes only affects whether there is an answer, and that values that are not finite do not
/// pass a check.
fn hashes_only_refuse(container: &Container, info: &TensorInfo) {
    let name = &info.name;
    let plain = container.read(name, &checked(false));
    let verified = container.read(name, &checked(true));
    let check = container.check(name, &checked(true));
    match (&verified, &check) {
        (Ok(verified), _) => assert!(plain.unwrap()[..] == verified[..], "'{name}' differs when hashes are compared"),
        (Err(e), _) => assert_eq!(e.tensor_name(), Some(name.as_str()), "{}", text(e)),
    }
    match (verified, check) {
        (Ok(_), Err(e)) => assert!(e.message().contains("not finite"), "{}", text(&e)),
        (Err(e), Ok(())) => panic!("a check found nothing: {}", text(&e)),
        _ => {}
    }
}

/// Checks that rows are parts of the whole tensor; if that does not decode, they may be anything.
fn rows_are_of_the_whole(container: &Container, info: &TensorInfo) {
    let whole = container.read(&info.name, &checked(false)).ok();
    let all = info.shape.first().copied().unwrap_or(0);
    for rows in
        [0..all, 0..1, all / 3..all / 3 * 2 + 1, all.saturating_sub(1)..all, all..all + 1, all..all.saturating_sub(1)]
    {
        let got = container.read_rows(&info.name, rows.clone(), None, &checked(false));
        let there = !info.shape.is_empty() && rows.start <= rows.end && rows.end <= all;
        match (got, &whole) {
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
}

fn parts_can_be_asked_for(container: &Container, info: &TensorInfo) {
    let name = &info.name;
    container.scales(name).ok();
    container.columns(name).ok();
    container.read_as(name, Dtype::F16, &checked(false)).ok();
    for chunk in [0, info.chunks() / 2, info.chunks().saturating_sub(1), info.chunks(), usize::MAX] {
        container.chunk(name, chunk).ok();
        container.read_chunk(name, chunk, &checked(false)).ok();
    }
}

/// Checks that an extracted container has the same content.
fn extracts_stand_alone(container: &Container, info: &TensorInfo) {
    if let Ok(part) = wcodec::extract(container, &[&info.name], &checked(true)) {
        let part = Container::from_bytes(part).unwrap();
        let read = |c: &Container| c.read(&info.name, &checked(true)).map(|b| b.to_vec()).map_err(|e| e.kind());
        assert!(read(&part) == read(container), "'{}' differs where it is extracted", info.name);
    }
}

fn whole(container: &Container) {
    container.index_json().unwrap();
    container.model().ok();
    container.reader().check_padding().ok();
    for alias in container.aliases().keys() {
        assert!(container.names().contains(&container.resolve(alias).unwrap()));
    }
    assert!(wcodec::compare(container, container).unwrap().same());
}
