//! Every reader of a file, and the properties of their answers: each is an error of the library or right, and two that
//! both answer agree.

use half::{bf16, f16};
use wcodec::{
    AheadOptions, Checkpoint, Container, Cut, DecodeOptions, Dtype, Error, ErrorKind, Source, TensorInfo, VerifyStatus,
    narrow,
};

use super::super::{LARGEST, container};
use crate::common::{checked, text};

/// A file's outcome, as words to be counted.
pub type Events = Vec<&'static str>;

/// One of so many inputs also runs the slow operations: on disk, and with every instruction set.
pub const RARELY: u64 = 32;
/// One of so many inputs is cut into parts.
pub const SOMETIMES: u64 = 4;

/// Opens `bytes` and runs every operation, some of them only in some turns.
pub fn all(bytes: &[u8], turn: u64) -> Events {
    let mut events = Events::new();
    let container = match Container::from_bytes(bytes.to_vec()) {
        Ok(container) => container,
        Err(e) => {
            events.push(of_file(&e));
            return events;
        }
    };
    events.push("opened");
    let infos = container.infos().unwrap();
    container.index_json().unwrap();
    verified(&container, &infos, &mut events);
    for info in &infos {
        if info.original_bytes > LARGEST {
            events.push("large tensor");
            large(&container, info);
            continue;
        }
        read(&container, info, &mut events);
        rows(&container, info);
        chunks(&container, info);
        if turn.is_multiple_of(SOMETIMES) {
            narrowed(&container, info, turn);
        }
    }
    match turn % RARELY {
        0 => on_disk(bytes, &container, &infos),
        question @ 1..=6 => container::ask(&container, question as u8 - 1),
        _ => {}
    }
    events
}

/// The kind of an error about a file, which must have a message.
fn of_file(e: &Error) -> &'static str {
    assert!(!text(e).is_empty());
    match e.kind() {
        ErrorKind::Format => "not opened: format",
        ErrorKind::Corrupt => "not opened: corrupt",
        ErrorKind::Unsupported => "not opened: unsupported",
        kind => panic!("{kind:?} of opening a file: {}", text(e)),
    }
}

/// The kind of an error about a tensor, which must name it.
fn of_tensor(e: &Error, info: &TensorInfo) -> &'static str {
    let said = text(e);
    assert_eq!(e.tensor_name(), Some(info.name.as_str()), "{said}");
    match e.kind() {
        ErrorKind::Format => "tensor refused: format",
        ErrorKind::Corrupt => "tensor refused: corrupt",
        ErrorKind::Unsupported => "tensor refused: unsupported",
        kind => panic!("{kind:?} of a small tensor: {said}"),
    }
}

fn verified(container: &Container, infos: &[TensorInfo], events: &mut Events) {
    let report = match wcodec::verify(container, None, &checked(true), &mut |_| Ok(())) {
        Ok(report) => report,
        Err(e) => panic!("verifying ends: {}", text(&e)),
    };
    assert!(report.tensors.len() >= infos.len());
    for (info, found) in infos.iter().zip(&report.tensors) {
        assert_eq!(info.name, found.name);
        let check = container.check(&info.name, &checked(true));
        match (found.status, &check) {
            (VerifyStatus::Ok, Ok(())) => events.push("verified: ok"),
            (VerifyStatus::Damaged, Err(e)) if matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt) => {
                events.push("verified: damaged");
            }
            (VerifyStatus::Unsupported, Err(e)) if e.kind() == ErrorKind::Unsupported => {
                events.push("verified: unsupported");
            }
            (status, check) => panic!("'{}' is {status:?} ({}), and a check says {check:?}", info.name, found.detail),
        }
    }
}

/// Reads once a tensor that is too large for more: it is refused, or read in bounded memory.
fn large(container: &Container, info: &TensorInfo) {
    if let Ok(bytes) = container.read(&info.name, &checked(true)) {
        assert_eq!(bytes.len() as u64, info.original_bytes);
    }
    container.symbols(&info.name, &checked(true)).ok();
    container.read_rows(&info.name, 0..1, None, &checked(true)).ok();
    container.chunk(&info.name, 0).ok();
}

/// Reads the whole tensor: with and without hashes, as symbols and scales, and as the values of these.
fn read(container: &Container, info: &TensorInfo, events: &mut Events) {
    let name = &info.name;
    let plain = container.read(name, &checked(false));
    let compared = container.read(name, &checked(true));
    match (&plain, &compared) {
        (Ok(a), Ok(b)) => {
            assert!(a[..] == b[..], "'{name}' differs when hashes are compared");
            assert_eq!(a.len() as u64, info.original_bytes);
            events.push("tensor read");
        }
        (Ok(_), Err(e)) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{}", text(e));
            events.push("tensor read, but for hashes");
        }
        (Err(a), Err(b)) => {
            of_tensor(b, info);
            events.push(of_tensor(a, info));
        }
        (Err(e), Ok(_)) => panic!("only without hashes: {}", text(e)),
    }
    let symbols = container.symbols(name, &checked(false));
    let scales = container.scales(name);
    if !info.makes_symbols {
        return;
    }
    match (&plain, &symbols) {
        (Ok(_), Err(e)) => panic!("values and no symbols: {}", text(e)),
        // Scales may be damaged by themselves.
        (Err(_), _) => return,
        _ => {}
    }
    let (Ok(plain), Ok(symbols), Ok(scales)) = (plain, symbols, scales) else { return };
    let factors = container.columns(name).unwrap();
    assert_eq!(factors.is_some(), info.columns, "'{name}'");
    let values = values(info, &symbols, &scales, factors.as_deref());
    for dtype in [info.dtype, Dtype::F32] {
        let got = if dtype == info.dtype {
            plain.to_vec()
        } else {
            container.read_as(name, dtype, &checked(false)).unwrap().to_vec()
        };
        let size = dtype.size();
        assert_eq!(got.len(), values.len() * size);
        for (i, (is, &value)) in got.chunks_exact(size).zip(&values).enumerate() {
            let (is, wanted) = match dtype {
                Dtype::BF16 => (bf16::from_le_bytes([is[0], is[1]]).to_f32(), bf16::from_f32(value).to_f32()),
                Dtype::F16 => (f16::from_le_bytes([is[0], is[1]]).to_f32(), f16::from_f32(value).to_f32()),
                _ => (f32::from_le_bytes([is[0], is[1], is[2], is[3]]), value),
            };
            let same = is.to_bits() == wanted.to_bits() || is.is_nan() && wanted.is_nan();
            assert!(same, "element {i} of '{name}' as {dtype} is {is}, and symbol times scale {wanted}");
        }
    }
}

/// Symbols times scales, and factors of columns, in the order of the tensor, by FORMAT.md.
fn values(info: &TensorInfo, symbols: &[i8], scales: &[f32], factors: Option<&[f32]>) -> Vec<f32> {
    let (rows, cols) = (info.rows, info.cols);
    let block = info.scales.as_deref().and_then(|s| s.rsplit(' ').next()?.parse::<usize>().ok());
    let half = if info.scheme == "rate" { 0.5 } else { 0.0 };
    let value = |row: usize, col: usize| {
        let scale = match (info.scales.as_deref(), block) {
            (Some("tensor"), _) => scales[0],
            (_, Some(n)) => scales[row * cols.div_ceil(n) + col / n],
            _ => scales[row],
        };
        let factor = factors.map_or(1.0, |factors| factors[row / rows * cols + col]);
        (f32::from(symbols[row * cols + col]) + half) * scale * factor
    };
    match info.row_axis {
        0 => (0..info.count * rows).flat_map(|r| (0..cols).map(move |c| (r, c))).map(|(r, c)| value(r, c)).collect(),
        _ => (0..cols).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| value(r, c)).collect(),
    }
}

/// Checks that rows are parts of the whole.
fn rows(container: &Container, info: &TensorInfo) {
    let whole = container.read(&info.name, &checked(false)).ok();
    let all = info.shape.first().copied().unwrap_or(0);
    for rows in [0..all, all / 3..all / 3 * 2 + 1, all.saturating_sub(1)..all, all..all + 1] {
        let there = !info.shape.is_empty() && rows.end <= all;
        let got = container.read_rows(&info.name, rows.clone(), None, &checked(false));
        match (got, &whole) {
            (Ok(got), Some(whole)) => {
                let row = whole.len() / all.max(1);
                assert!(
                    there && got[..] == whole[rows.start * row..rows.end * row],
                    "rows {rows:?} of '{}'",
                    info.name
                );
            }
            (Ok(_), None) => assert!(there),
            (Err(e), Some(_)) => assert!(!there, "rows {rows:?} of '{}': {}", info.name, text(&e)),
            (Err(e), None) => assert_eq!(e.tensor_name(), Some(info.name.as_str())),
        }
        container.reads(&info.name, Some(rows)).ok();
    }
}

/// Checks the number of chunks and their sizes, and that they are parts of the symbols.
fn chunks(container: &Container, info: &TensorInfo) {
    let name = &info.name;
    let symbols = container.symbols(name, &checked(false)).ok();
    let count = info.planes.first().map_or(0, |p| p.chunks);
    if let Ok(sizes) = container.chunk_sizes(name)
        && info.planes.len() == 1
    {
        assert_eq!(sizes.len(), count, "'{name}'");
        assert_eq!(sizes.iter().map(|s| s.elements).sum::<u64>(), info.elements, "'{name}'");
    }
    for i in [0, count / 2, count] {
        let (Ok(chunk), decoded) = (container.chunk(name, i), container.read_chunk(name, i, &checked(false))) else {
            continue;
        };
        let (Ok(decoded), Some(symbols), "rans" | "huffman") = (decoded, &symbols, info.coder()) else { continue };
        let cells = chunk.rows.clone().flat_map(|r| chunk.cols.clone().map(move |c| (r, c)));
        let wanted = cells.map(|(r, c)| symbols[(chunk.matrix * info.rows + r) * info.cols + c]);
        assert!(decoded.iter().copied().eq(wanted), "chunk {i} of '{name}': {chunk:?} of {info:?}");
    }
}

/// Checks that narrowed parts equal those of the whole, and that their file is sound.
fn narrowed(container: &Container, info: &TensorInfo, turn: u64) {
    let Ok(whole) = container.read(&info.name, &checked(false)) else {
        let cut = Cut { tensor: &info.name, name: "part", axis: 0, ranges: alone(0..1) };
        narrow(container, &[cut], &checked(turn.is_multiple_of(2 * SOMETIMES))).ok();
        return;
    };
    let sound = container.read(&info.name, &checked(true)).is_ok();
    for (axis, &length) in info.shape.iter().enumerate() {
        let border = [16, 64, 5][(turn / SOMETIMES % 3) as usize].min(length);
        let ranges = [alone(0..border), alone(border..length), vec![border / 2..length, 0..border]];
        for ranges in ranges {
            if ranges.iter().any(|r| r.is_empty()) {
                continue;
            }
            let cut = Cut { tensor: &info.name, name: "part", axis, ranges: ranges.clone() };
            let part = match narrow(container, &[cut], &checked(false)) {
                Ok(part) => part,
                // Per-block scales, and tensors without rows.
                Err(e) if e.kind() == ErrorKind::Input => continue,
                // Copied tables are compared with their hashes.
                Err(e) if e.kind() == ErrorKind::Corrupt && !sound => continue,
                Err(e) => panic!("{ranges:?} of axis {axis}: {}", text(&e)),
            };
            let got = part.read("part", &checked(true)).unwrap_or_else(|e| panic!("{}", text(&e)));
            assert!(got[..] == cut_of(info, &whole, axis, &ranges)[..], "{ranges:?} of axis {axis} of '{}'", info.name);
        }
    }
}

fn alone(range: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    std::iter::once(range).collect()
}

fn cut_of(info: &TensorInfo, whole: &[u8], axis: usize, ranges: &[std::ops::Range<usize>]) -> Vec<u8> {
    if whole.is_empty() {
        return Vec::new();
    }
    let inner = info.shape[axis + 1..].iter().product::<usize>() * info.dtype.size();
    let run = info.shape[axis] * inner;
    let outer = whole.chunks_exact(run.max(1));
    outer.flat_map(|run| ranges.iter().flat_map(|r| &run[r.start * inner..r.end * inner])).copied().collect()
}

/// Readers that need a file: opening it, reading ahead, decoding into another file.
fn on_disk(bytes: &[u8], memory: &Container, infos: &[TensorInfo]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.wcodec");
    std::fs::write(&path, bytes).unwrap();
    let container = Container::open(&path).unwrap_or_else(|e| panic!("only in memory: {}", text(&e)));
    container.model().ok();
    container.rest().ok();
    container.open_rest().ok();
    let small = || infos.iter().filter(|i| i.original_bytes <= LARGEST);
    let read = |c: &Container, name: &str| c.read(name, &checked(true)).map(|b| b.to_vec()).map_err(|e| e.kind());
    let names: Vec<String> = small().map(|i| i.name.clone()).collect();
    let options = AheadOptions { ring: 1 << 16, direct: false, threads: Some(1) };
    if container.read_ahead(&names, &options).is_ok() {
        let reads: Vec<_> = names.iter().filter_map(|n| container.reads(n, None).ok()).collect();
        container.want(&reads);
    }
    for name in &names {
        assert!(read(&container, name) == read(memory, name), "'{name}' differs on disk");
    }
    if names.len() < infos.len() {
        return;
    }
    let out = folder.path().join("m.safetensors");
    let options = DecodeOptions { threads: None, ..checked(true) };
    match wcodec::decode(&container, None, &out, &options, false, &mut |_| Ok(())) {
        Err(e) => {
            assert!(!text(&e).is_empty() && !out.exists());
        }
        Ok(()) => {
            let decoded = Checkpoint::open(&out).unwrap_or_else(|e| panic!("{}", text(&e)));
            for (i, tensor) in decoded.tensors().iter().enumerate() {
                let wanted = memory.read(&tensor.name, &checked(true)).unwrap();
                assert!(decoded.read(i).unwrap()[..] == wanted[..], "'{}' differs as safetensors", tensor.name);
            }
        }
    }
}
