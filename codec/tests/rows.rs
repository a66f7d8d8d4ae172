//! Rows of tensors, decoded alone: equal to those parts of the whole.

mod common;

use std::ops::Range;

use common::samples::{self, encode_options};
use common::{Rng, checked, options};
use wcodec::{
    Coder, Container, DecodeOptions, Dtype, ErrorKind, Granularity, Isa, Layout, MemorySource, Scheme, TensorInfo,
    encode_to_vec,
};

/// Ranges that begin and end within strips and at their edges, cross matrices, or are empty.
fn ranges(rows: usize, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut all = vec![0..rows, 0..0, rows..rows, 0..rows.min(1), rows.saturating_sub(1)..rows];
    for _ in 0..12 {
        let (a, b) = (rng.below(rows + 1), rng.below(rows + 1));
        all.push(a.min(b)..a.max(b));
    }
    for edge in [15, 16, 17, 31, 32, 33] {
        all.push(edge.min(rows)..(edge + 1).min(rows));
        all.push(0..edge.min(rows));
    }
    all
}

/// The whole tensor decoded to `dtype`, in the tensor's own order.
fn whole(container: &Container, info: &TensorInfo, dtype: Dtype) -> Vec<u8> {
    if info.scheme != "int8" || dtype != Dtype::I8 {
        return container.read_as(&info.name, dtype, &DecodeOptions::default()).unwrap().to_vec();
    }
    let symbols: Vec<u8> =
        bytemuck::cast_slice(&container.symbols(&info.name, &DecodeOptions::default()).unwrap()).to_vec();
    if info.row_axis == 0 {
        return symbols;
    }
    let (rows, cols) = (info.rows, info.cols);
    (0..cols).flat_map(|c| (0..rows).map(move |r| r * cols + c)).map(|i| symbols[i]).collect()
}

/// Compares rows of every tensor, in every dtype that they can be decoded to.
fn check(bytes: Vec<u8>, what: &str, rng: &mut Rng) -> usize {
    let container = Container::from_bytes(bytes).unwrap();
    let mut compared = 0;
    for info in container.infos().unwrap() {
        let Some(&rows) = info.shape.first() else { continue };
        let dtypes = match info.scheme.as_str() {
            "int8" => vec![Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I8],
            _ => vec![info.dtype],
        };
        for dtype in dtypes {
            let want = whole(&container, &info, dtype);
            let row = want.len() / rows.max(1);
            for range in ranges(rows, rng) {
                let isa = Isa::available()[rng.below(Isa::available().len())];
                for options in [options(isa, true), checked(false)] {
                    let got = container.read_rows(&info.name, range.clone(), Some(dtype), &options).unwrap();
                    let want = &want[range.start * row..range.end * row];
                    assert!(got[..] == *want, "{what}: rows {range:?} of {} as {dtype}", info.name);
                    compared += 1;
                }
            }
            let own = container.read_rows(&info.name, 0..rows, None, &DecodeOptions::default()).unwrap();
            assert_eq!(own[..], container.read(&info.name, &DecodeOptions::default()).unwrap()[..]);
        }
    }
    compared
}

#[test]
fn rows_of_every_kind_are_parts_of_the_whole() {
    let mut rng = Rng(4);
    for sample in samples::all() {
        assert!(check(sample.bytes, &sample.name, &mut rng) > 200, "{}", sample.name);
    }
}

#[test]
fn rows_of_symbols_that_show_every_feature() {
    // Shifts, patches, raw chunks and filters, in tiles and frames; some rows do not end with a frame.
    let mut rng = Rng(5);
    for sample in samples::all_layers() {
        check(sample.bytes, &sample.name, &mut rng);
    }
}

#[test]
fn filters_with_frames_that_cut_rows() {
    // Every row counts up, so filter `left` pays; frames begin in the middle of rows.
    let (rows, cols) = (61, 150);
    let symbols: Vec<i8> = (0..rows * cols).map(|i| ((i % cols) as i64 * 7 % 100) as i8).collect();
    let mut rng = Rng(6);
    for chunk in [1, 7, 100, 149, 150, 151, 300, 1000, rows * cols] {
        let mut source = MemorySource::new();
        let data: Vec<u8> = bytemuck::cast_slice(&symbols).to_vec();
        source.push("ramp".to_owned(), Dtype::I8, vec![rows, cols], data.into()).unwrap();
        let mut options = encode_options(Coder::Zstd, Layout::Byte, Scheme::Raw);
        options.zstd_chunk = Some(chunk);
        check(samples::encode(&source, &options), &format!("frames of {chunk}"), &mut rng);
    }
}

#[test]
fn stacks_whose_matrices_end_within_strips() {
    let mut rng = Rng(7);
    let shape = [5, 21, 70];
    for (coder, layout) in [(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Byte), (Coder::Zstd, Layout::Byte)] {
        for granularity in [Granularity::Row, Granularity::Tensor, Granularity::Block(16)] {
            let mut source = MemorySource::new();
            let data = samples::as_bytes(&samples::weights(shape.iter().product(), 9));
            source.push("stack".to_owned(), Dtype::F32, shape.to_vec(), data.into()).unwrap();
            let bytes = samples::encode(&source, &encode_options(coder, layout, Scheme::Int8(granularity)));
            check(bytes, &format!("{coder} {layout} {granularity}"), &mut rng);
        }
    }
}

#[test]
fn what_there_is_not_is_refused() {
    for sample in samples::all() {
        let container = Container::from_bytes(sample.bytes).unwrap();
        let read = |name: &str, rows, dtype| container.read_rows(name, rows, dtype, &DecodeOptions::default());
        let refused = |name: &str, rows, dtype, said: &str| {
            let e = read(name, rows, dtype).unwrap_err();
            assert!(e.kind() == ErrorKind::Input && e.to_string().contains(said), "{}: {e}", sample.name);
        };
        refused("nothing", 0..1, None, "no tensor 'nothing'");
        refused("scalar", 0..1, None, "a scalar has no rows");
        refused("a.weight", 0..33, None, "32 rows");
        refused("t.weight", 128..129, None, "128 rows");
        #[allow(clippy::reversed_empty_ranges)]
        refused("a.weight", 3..2, None, "32 rows");
        refused("norm", 0..1, Some(Dtype::F64), "F64");
        refused("a.weight", 0..1, Some(Dtype::I64), "I64");
        assert_eq!(read("empty", 0..0, None).unwrap().len(), 0);
        assert_eq!(read("tied", 3..5, None).unwrap()[..], read("a.weight", 3..5, None).unwrap()[..]);
    }
}

#[test]
fn damage_elsewhere_is_found_when_hashes_are_compared() {
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        let mut source = MemorySource::new();
        let data = samples::as_bytes(&samples::weights(64 * 128, 3));
        source.push("w".to_owned(), Dtype::F32, vec![64, 128], data.into()).unwrap();
        let options = encode_options(coder, Layout::Byte, Scheme::Int8(Granularity::Row));
        let good = encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0;
        let container = Container::from_bytes(good.clone()).unwrap();
        let info = container.info("w").unwrap();
        let data = info.segments.iter().find(|s| s.role == "data").unwrap();
        let mut bad = good;
        bad[(data.offset + data.length) as usize - 1] ^= 0x10;
        let damaged = Container::from_bytes(bad).unwrap();
        let e = damaged.read_rows("w", 0..1, None, &checked(true)).unwrap_err();
        assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("w")), "{e}");
        // Without hashes, rows outside the damage are unchanged.
        let want = container.read_rows("w", 0..16, None, &checked(true)).unwrap();
        assert_eq!(damaged.read_rows("w", 0..16, None, &checked(false)).unwrap()[..], want[..]);
    }
}

#[test]
fn files_are_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    let bytes = samples::all().remove(0).bytes;
    std::fs::write(&path, &bytes).unwrap();
    let (file, memory) = (Container::open(&path).unwrap(), Container::from_bytes(bytes).unwrap());
    for rows in [0..1, 10..40, 45..46] {
        let read = |c: &Container| c.read_rows("b.weight", rows.clone(), None, &checked(true)).unwrap().to_vec();
        assert_eq!(read(&file), read(&memory));
    }
}
