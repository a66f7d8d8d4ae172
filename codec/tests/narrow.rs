//! Parts of tensors: they decode to that part of the whole, bit for bit, and are sound containers.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

mod common;

use std::ops::Range;

use common::image::Image;
use common::samples::Sample;
use common::{Rng, newer, samples};
use wcodec::{
    Container, Cut, DecodeOptions, Dtype, EncodeOptions, ErrorKind, Granularity, MemorySource, Scheme, TensorInfo,
    encode_to_container, narrow, verify,
};

/// The decoded tensor, in full precision for symbols and as its elements otherwise, and the size of an element.
fn decoded(container: &Container, info: &TensorInfo) -> (Vec<u8>, usize) {
    let dtype = if info.makes_symbols { Dtype::F32 } else { info.dtype };
    (container.read_as(&info.name, dtype, &DecodeOptions::default()).unwrap().to_vec(), dtype.size())
}

/// The corresponding part of a row-major tensor.
fn cut(bytes: &[u8], size: usize, shape: &[usize], axis: usize, ranges: &[Range<usize>]) -> Vec<u8> {
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * size;
    let runs = bytes.chunks_exact(shape[axis] * inner);
    runs.flat_map(|run| ranges.iter().flat_map(move |r| &run[r.start * inner..r.end * inner])).copied().collect()
}

/// Halves, quarters, borders of strips and blocks, concatenated parts, and random ones.
fn ranges(n: usize, rng: &mut Rng) -> Vec<Vec<Range<usize>>> {
    let mut all = vec![vec![0..n], vec![0..n.div_ceil(2)], vec![n / 2..n], vec![n / 4..(n / 2).max(n / 4 + 1)]];
    for step in [16, 64, 128] {
        if n > step {
            all.extend([vec![step..n], vec![0..step], vec![step..n, 0..step]]);
        }
    }
    for _ in 0..2 {
        let (a, b) = (rng.below(n), rng.below(n));
        all.push(vec![a.min(b)..a.max(b) + 1, 0..a + 1]);
    }
    all
}

/// Whether per-block scales can be cut this way.
fn allowed(info: &TensorInfo, axis: usize, ranges: &[Range<usize>]) -> bool {
    let of_columns = if info.row_axis == 1 { 0 } else { info.shape.len() - 1 };
    let fine = |n: usize| n.is_multiple_of(16);
    !info.scales.as_deref().is_some_and(|s| s.starts_with("block"))
        || axis != of_columns
        || ranges.iter().all(|r| fine(r.start)) && ranges[..ranges.len() - 1].iter().all(|r| fine(r.len()))
}

fn check(sample: &Sample, rng: &mut Rng) -> usize {
    let whole = Container::from_bytes(sample.bytes.clone()).unwrap();
    let mut compared = 0;
    for info in whole.infos().unwrap() {
        let (want, size) = decoded(&whole, &info);
        for axis in 0..info.shape.len() {
            if info.shape[axis] == 0 {
                continue;
            }
            for ranges in ranges(info.shape[axis], rng) {
                let what = format!("{}: {} {:?} axis {axis} {ranges:?}", sample.name, info.name, info.shape);
                let one = Cut { tensor: &info.name, name: "part", axis, ranges: ranges.clone() };
                let verify_first = rng.below(2) == 0;
                let options = DecodeOptions { verify: verify_first, ..DecodeOptions::default() };
                let made = narrow(&whole, &[one], &options);
                let odd = info.makes_symbols && !of_its_own_shape(&info);
                if odd || !allowed(&info, axis, &ranges) {
                    assert_eq!(made.unwrap_err().kind(), ErrorKind::Input, "{what}");
                    continue;
                }
                let part = made.unwrap_or_else(|e| panic!("{what}: {e}"));
                let new = part.info("part").unwrap();
                // Very few elements are smaller raw than with a table.
                assert!(new.scheme == info.scheme || info.scheme == "lossless" && new.scheme == "raw", "{what}");
                assert_eq!(new.shape[axis], ranges.iter().map(Range::len).sum::<usize>(), "{what}");
                assert!(decoded(&part, &new).0 == cut(&want, size, &info.shape, axis, &ranges), "{what}");
                let later = u16::from(["lossless", "rate"].contains(&new.scheme.as_str()));
                let quads = new.planes.iter().any(|p| p.layout.as_deref() == Some("quad"));
                let minor = if new.columns {
                    3
                } else if quads {
                    2
                } else {
                    later
                };
                assert_eq!((part.version(), new.columns), ((1, minor), info.columns), "{what}");
                let report = verify(&part, None, &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
                assert!(report.ok(), "{what}: {report:?}");
                compared += 1;
            }
        }
    }
    compared
}

/// Whether a tensor's matrix view has its own dimensions.
fn of_its_own_shape(info: &TensorInfo) -> bool {
    match info.shape[..] {
        [a, b] => [(info.rows, info.cols), (info.cols, info.rows)].contains(&(a, b)) && info.count == 1,
        [n, rows, cols] => (info.count, info.rows, info.cols) == (n, rows, cols),
        _ => false,
    }
}

#[test]
fn parts_of_every_kind_decode_to_that_part_of_the_whole() {
    let mut rng = Rng(11);
    let mut compared = 0;
    for sample in samples::all().iter().chain(&newer::all()).chain(&newer::quads()).chain(&newer::columns()) {
        compared += check(sample, &mut rng);
    }
    assert!(compared > 2000, "{compared}");
}

fn weights(rows: usize, cols: usize) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    source
        .push("w".into(), Dtype::F32, vec![rows, cols], samples::as_bytes(&samples::weights(rows * cols, 3)).into())
        .unwrap();
    source
}

#[test]
fn at_borders_of_tiles_chunks_are_copied_and_nothing_else_is_read() {
    let options = EncodeOptions { tile: Some(64), ..EncodeOptions::default() };
    let (whole, _) = encode_to_container(&weights(64, 256), &options, &mut |_| Ok(())).unwrap();
    let mut bytes = vec![0; whole.file_len() as usize];
    whole.copy_to(&mut bytes, &wcodec::Cancel::new()).unwrap();
    // The bytes that the part does not use are damaged.
    let chunks = |container: &Container, name: &str, chunks: Range<usize>| -> Vec<(u64, u64)> {
        chunks.map(|i| container.chunk(name, i).unwrap()).map(|c| (c.offset, c.length)).collect()
    };
    for (offset, length) in chunks(&whole, "w", 0..8) {
        bytes[offset as usize..(offset + length) as usize].fill(0xA5);
    }
    let damaged = Container::from_bytes(bytes.clone()).unwrap();
    let lower = Cut { tensor: "w", name: "lower", axis: 0, ranges: vec![32..64] };
    let unread = DecodeOptions { verify: false, ..DecodeOptions::default() };
    let part = narrow(&damaged, std::slice::from_ref(&lower), &unread).unwrap();
    let mut copied = vec![0; part.file_len() as usize];
    part.copy_to(&mut copied, &wcodec::Cancel::new()).unwrap();
    for (old, new) in chunks(&damaged, "w", 8..16).into_iter().zip(chunks(&part, "lower", 0..8)) {
        let cut = |bytes: &[u8], (at, n): (u64, u64)| bytes[at as usize..(at + n) as usize].to_vec();
        assert_eq!(cut(&bytes, old), cut(&copied, new));
    }
    let all = DecodeOptions::default();
    assert_eq!(part.symbols("lower", &all).unwrap(), whole.symbols("w", &all).unwrap()[32 * 256..]);
    // Damage elsewhere is reported on request; copied chunks are checked in any case.
    assert_eq!(narrow(&damaged, &[lower], &all).unwrap_err().kind(), ErrorKind::Corrupt);
    let upper = Cut { tensor: "w", name: "upper", axis: 0, ranges: vec![0..32] };
    let e = narrow(&damaged, &[upper], &unread).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("w")), "{e}");
}

#[test]
fn wrong_parts_are_refused() {
    let (whole, _) = encode_to_container(&weights(64, 256), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let refuse = |cuts: &[Cut<'_>], text: &str| {
        let e = narrow(&whole, cuts, &DecodeOptions::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Input);
        assert!(e.to_string().contains(text), "{e}");
    };
    let one = |axis, ranges: Vec<Range<usize>>| [Cut { tensor: "w", name: "p", axis, ranges }];
    refuse(&[], "no parts");
    refuse(&one(2, vec![0..1]), "no dimension 2");
    refuse(&one(0, vec![]), "without ranges");
    refuse(&one(0, vec![0..65]), "which has 64");
    refuse(&one(1, vec![7..7]), "which has 256");
    #[allow(clippy::reversed_empty_ranges, reason = "what is refused")]
    refuse(&one(1, vec![9..7]), "which has 256");
    refuse(&[one(0, vec![0..1])[0].clone(), one(0, vec![1..2])[0].clone()], "two parts");
    refuse(&[Cut { tensor: "v", name: "p", axis: 0, ranges: vec![0..1] }], "no tensor");
    let blocks = EncodeOptions { scheme: Scheme::Int8(Granularity::Block(32)), ..EncodeOptions::default() };
    let (whole, _) = encode_to_container(&weights(16, 256), &blocks, &mut |_| Ok(())).unwrap();
    let e = narrow(&whole, &one(1, vec![8..256]), &DecodeOptions::default()).unwrap_err();
    assert!(e.to_string().contains("multiples of 16"), "{e}");
}

#[test]
fn damaged_offsets_are_errors() {
    let options = EncodeOptions { tile: Some(64), ..EncodeOptions::default() };
    let (whole, _) = encode_to_container(&weights(64, 256), &options, &mut |_| Ok(())).unwrap();
    let mut bytes = vec![0; whole.file_len() as usize];
    whole.copy_to(&mut bytes, &wcodec::Cancel::new()).unwrap();
    let offsets = Image::new(&bytes).segment("/tensors/0/planes/0/offsets");
    for (at, value) in [(4, u32::MAX), (offsets.len() - 4, 0), (offsets.len() - 4, u32::MAX), (8, 0)] {
        let mut bad = offsets.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let bad = Image::new(&bytes).replace("/tensors/0/planes/0/offsets", &bad).seal();
        let damaged = Container::from_bytes(bad).unwrap();
        let half = Cut { tensor: "w", name: "p", axis: 0, ranges: vec![0..32] };
        let unread = DecodeOptions { verify: false, ..DecodeOptions::default() };
        let e = narrow(&damaged, &[half], &unread).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    }
}
