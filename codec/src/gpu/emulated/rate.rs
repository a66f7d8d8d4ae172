//! Levels at halves of a step, scales of 16 bits and the trellis: scheme `rate`.

use std::collections::BTreeSet;

use wcodec_kernels::Mode;

use super::*;
use crate::coder::Filter;
use crate::coder::plane::Tiling;
use crate::coder::tile::raw_body_bytes;
use crate::scheme::rate::{Bits, Rate};

fn rate(coder: Coder, trellis: bool, step: f32) -> EncodeOptions {
    let rate = Rate { bits: Bits::new(4.0).unwrap(), trellis };
    EncodeOptions { scheme: Scheme::Rate(rate), coder, step: Some(step), ..EncodeOptions::of(Optimize::Size) }
}

/// Both coders and layouts, with and without the trellis, with steps for every shift and some widths of tiles.
pub(super) fn options() -> Vec<EncodeOptions> {
    let mut all = Vec::new();
    for (i, coder) in [Coder::Rans, Coder::Huffman].into_iter().enumerate() {
        for (j, trellis) in [false, true].into_iter().enumerate() {
            for (k, step) in [2.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.017].into_iter().enumerate() {
                let tile = [None, Some(64), Some(192), Some(512)][(i + 2 * j + k) % 4];
                let table_bits = match coder {
                    Coder::Huffman => [12, 9, 11, 8, 10][(j + k) % 5],
                    _ => [12, 12, 11][(j + k) % 3],
                };
                all.push(EncodeOptions { tile, table_bits: Some(table_bits), ..rate(coder, trellis, step) });
            }
            all.push(EncodeOptions { layout: Some(Layout::Byte), tile: Some(128), ..rate(coder, trellis, 0.3) });
        }
    }
    let pairs = all.iter().filter(|o| o.coder == Coder::Huffman && o.layout.is_none());
    let quads: Vec<_> = pairs.map(|o| EncodeOptions { layout: Some(Layout::Quad), ..o.clone() }).collect();
    all.extend(quads);
    all
}

fn container(source: &MemorySource<'_>, options: &EncodeOptions) -> Container {
    Container::from_bytes(encode(source, options)).unwrap()
}

/// The patches of all chunks of a plane in tiles.
fn patches(parts: &TensorBytes, tiling: &Tiling) -> usize {
    if !(tiling.layout == Layout::Quad || tiling.layout == Layout::Pair && tiling.shift < 3) {
        return 0;
    }
    let plane = &parts.planes[0];
    let offsets = plane.offsets.as_chunks::<4>().0.iter().map(|b| 4 * u32::from_le_bytes(*b) as usize);
    let starts: Vec<usize> = offsets.collect();
    let counts = starts.windows(2).map(|w| u32::from_le_bytes(plane.data[w[0]..][..4].try_into().unwrap()) as usize);
    counts.sum()
}

/// A sample in two containers: with factors of columns, and without.
fn with_and_without_columns(rng: &mut StdRng, shapes: &[Vec<usize>], options: &EncodeOptions) -> [Container; 2] {
    let source = sample(rng, shapes);
    let columns = with_columns(rng, &source, options);
    [container(&source, &columns), container(&source, options)]
}

/// Compares every tensor with what the CPU makes of it, those too that only have scales to be multiplied by.
fn check(container: &Container, what: &str) {
    for info in container.infos().unwrap() {
        let parts = container.bytes_of(&info.name, &oracle()).unwrap();
        let mut t = Loaded::any(&parts);
        for kind in OutputKind::ALL {
            let (dtype, want) = match kind {
                OutputKind::Int8 => (Dtype::I8, symbols_as_stored(container, &t.plan)),
                OutputKind::F16 => (Dtype::F16, Vec::new()),
                OutputKind::BF16 => (Dtype::BF16, Vec::new()),
                OutputKind::F32 => (Dtype::F32, Vec::new()),
            };
            let want = match kind {
                OutputKind::Int8 => want,
                _ => container.read_as(&info.name, dtype, &oracle()).unwrap().to_vec(),
            };
            let got = run_all(std::slice::from_mut(&mut t), kind).remove(0);
            assert_eq!(got.status, None, "{what}: {} as {kind:?}", info.name);
            let differs = got.bytes.iter().zip(&want).position(|(a, b)| a != b);
            assert!(got.bytes == want, "{what}: {} as {kind:?} differs at byte {differs:?}", info.name);
        }
    }
}

#[test]
fn every_coder_shift_shape_and_output_equals_the_oracle() {
    let mut rng = StdRng::seed_from_u64(40);
    let shapes: Vec<Vec<usize>> =
        [&[112, 512][..], &[15, 640], &[81, 1130], &[3, 36, 192], &[64, 384], &[300, 65], &[1, 64], &[40, 1024]]
            .iter()
            .map(|s| s.to_vec())
            .collect();
    let (mut modes, mut patched, mut tensors) = (BTreeSet::new(), BTreeSet::new(), 0);
    for o in options() {
        let mut source = sample(&mut rng, &shapes);
        // Without tails there is room for a trellis of many levels.
        let even: Vec<u8> = (0..16 * 192).flat_map(|i| ((i * 977 % 1009) as f32 - 504.0).to_le_bytes()).collect();
        source.push("even".to_owned(), Dtype::F32, vec![16, 192], even.into()).unwrap();
        let encoded = container(&source, &o);
        for info in encoded.infos().unwrap() {
            let parts = encoded.bytes_of(&info.name, &oracle()).unwrap();
            if let Method::Tiles(t) = &TensorPlan::new(&parts).unwrap().planes[0] {
                modes.insert(format!("{} {:?} {}", o.coder, t.mode(), t.tiling.shift));
                if patches(&parts, &t.tiling) > 0 {
                    patched.insert(format!("{} {:?}", o.coder, t.mode()));
                }
                tensors += 1;
            }
        }
        check(&encoded, &format!("{} {:?} {:?} step {:?} tile {:?}", o.coder, o.layout, o.scheme, o.step, o.tile));
    }
    for coder in [Coder::Rans, Coder::Huffman] {
        for mode in ["Low 0", "Low 1", "Low 2", "Trellis 0", "Trellis 1", "Trellis 2", "General 3", "General 0"] {
            assert!(modes.contains(&format!("{coder} {mode}")), "{coder} {mode} in {modes:?}");
        }
        assert!(["Low", "Trellis"].iter().all(|m| patched.contains(&format!("{coder} {m}"))), "{patched:?}");
    }
    assert!(tensors > 150, "{tensors}");
}

/// Matrices whose columns have factors: of every mode, of stacks with columns that are no multiples of 8, and at their edges.
#[test]
fn factors_of_columns_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(48);
    let shapes = [vec![112, 512], vec![37, 330], vec![3, 20, 192], vec![3, 18, 100], vec![18, 65]];
    let mut modes = BTreeSet::new();
    for o in options() {
        let source = sample(&mut rng, &shapes);
        let o = with_columns(&mut rng, &source, &o);
        let encoded = container(&source, &o);
        for info in encoded.infos().unwrap() {
            assert!(info.columns, "{}", info.name);
            let plan = TensorPlan::new(&encoded.bytes_of(&info.name, &oracle()).unwrap()).unwrap();
            if let Method::Tiles(t) = &plan.planes[0] {
                modes.insert(format!("{} {:?}", o.coder, t.mode()));
            }
        }
        check(
            &encoded,
            &format!("columns {} {:?} {:?} step {:?} tile {:?}", o.coder, o.layout, o.scheme, o.step, o.tile),
        );
    }
    let all = ["Low", "Trellis", "General"].map(|mode| [format!("rans {mode}"), format!("huffman {mode}")]).concat();
    let all: BTreeSet<String> =
        all.into_iter().chain(["Quad", "QuadTrellis"].map(|m| format!("huffman {m}"))).collect();
    assert_eq!(modes, all);
}

/// Planes that our kernels do not decode, whose symbols they only make values of.
#[test]
fn symbols_of_other_coders_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(41);
    let shapes = [vec![48, 256], vec![15, 70], vec![3, 20, 128], vec![64, 48], vec![3, 20, 70]];
    for coder in [Coder::Zstd, Coder::Raw] {
        let o = EncodeOptions { transpose: vec!["w3".into()], ..rate(coder, false, 0.3) };
        for encoded in with_and_without_columns(&mut rng, &shapes, &o) {
            assert!(encoded.infos().unwrap().iter().all(|i| i.scheme == "rate"));
            check(&encoded, coder.name());
        }
        let int8 = EncodeOptions { scheme: Scheme::Int8(Granularity::Block(32)), ..o };
        check(&container(&sample(&mut rng, &shapes), &int8), &format!("{coder} int8"));
    }
}

#[test]
fn transposed_matrices_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(42);
    for o in options().into_iter().step_by(3) {
        let o = EncodeOptions { transpose: vec!["w*".into()], ..o };
        for encoded in with_and_without_columns(&mut rng, &[vec![130, 96], vec![192, 48]], &o) {
            check(&encoded, &format!("{} {:?} transposed", o.coder, o.layout));
        }
    }
}

/// Chunks that are stored raw: a strip of noise, where the others' weights, and with them the table, are almost all alike.
#[test]
fn raw_chunks_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(43);
    let mut seen = BTreeSet::new();
    for coder in [Coder::Rans, Coder::Huffman] {
        for (trellis, step) in [false, true].into_iter().flat_map(|t| [0.5, 0.12, 0.05].map(|step| (t, step))) {
            let (rows, cols) = (640, 256);
            let weight = |i: usize| match (i / cols / 16 == 3, rng.random_range(0..10)) {
                (true, _) => rng.random_range(-1.0f32..1.0),
                (_, 0) => [-1.0, 1.0][rng.random_range(0..2)],
                _ => [-0.01, 0.01][rng.random_range(0..2)],
            };
            let bytes: Vec<u8> = (0..rows * cols).map(weight).flat_map(|v| v.to_le_bytes()).collect();
            let mut source = MemorySource::new();
            source.push("w".into(), Dtype::F32, vec![rows, cols], bytes.into()).unwrap();
            let encoded = container(&source, &EncodeOptions { tile: Some(64), ..rate(coder, trellis, step) });
            let parts = encoded.bytes_of("w", &oracle()).unwrap();
            let Coding::Tiles(tiling) = parts.tensor.plane().form.coding else { panic!("{coder} is not coded") };
            let length = raw_body_bytes(coder, Layout::Pair, 64) + if tiling.shift < 3 { 4 } else { 0 };
            let info = encoded.info("w").unwrap();
            let raw = (0..info.chunks()).filter(|&i| encoded.chunk("w", i).unwrap().length as usize >= length);
            if raw.count() >= 4 {
                seen.insert((coder.name(), trellis, tiling.shift));
            }
            check(&encoded, &format!("raw chunks of {coder}"));
        }
        for shift in [(false, 1), (true, 0), (true, 2)] {
            assert!(seen.contains(&(coder.name(), shift.0, shift.1)), "{shift:?} in {seen:?}");
        }
    }
}

/// Outputs whose rows do not begin at multiples of 16 bytes.
#[test]
fn outputs_at_odd_places_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(44);
    for o in options().into_iter().step_by(2) {
        for encoded in with_and_without_columns(&mut rng, &[vec![48, 256]], &o) {
            let mut t = Loaded::any(&encoded.bytes_of("w0", &oracle()).unwrap());
            let want = encoded.read_as("w0", Dtype::BF16, &oracle()).unwrap().to_vec();
            for off in [2, 8, 14] {
                let got = run_at(std::slice::from_mut(&mut t), OutputKind::BF16, &|n| 0..n, 3, off).remove(0);
                assert!(got.status.is_none() && got.bytes == want, "{} {:?} at {off}", o.coder, o.layout);
            }
        }
    }
}

#[test]
fn slices_of_rows_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(45);
    let shapes = [vec![70, 192], vec![3, 20, 128]];
    for (o, encoded) in options().iter().flat_map(|o| with_and_without_columns(&mut rng, &shapes, o).map(|c| (o, c))) {
        for name in ["w0", "w1"] {
            let parts = encoded.bytes_of(name, &oracle()).unwrap();
            let Some(mut t) = Loaded::new(&parts) else { continue };
            let whole = encoded.read_as(name, Dtype::F32, &oracle()).unwrap().to_vec();
            let strips = t.plan.strips();
            let (first, last) = (t.plan.first_row(1), t.plan.first_row(strips - 1));
            let piece = PackedRows::of(&t.plan, &t.packed, &(first..last));
            let mut packed = Buffer::new(piece.len);
            packed.fill(POISON);
            for (range, place) in &piece.copies {
                packed[*place..place + range.len()].copy_from_slice(&t.packed[range.clone()]);
            }
            let least = PackedRows::bound_of_strip(&parts.tensor);
            let (rows, small) = PackedRows::fitting(&t.plan, &t.packed, &(first..last), least).unwrap();
            assert!(!rows.is_empty() && small.len <= least);
            t.places = piece.at(packed.address());
            t.packed = packed;
            let slice = run(std::slice::from_mut(&mut t), OutputKind::F32, &|n| 1..n - 1, 5).remove(0);
            let row = t.plan.matrix.2 * 4;
            assert!(slice.bytes == whole[first * row..last * row], "{} {:?} {name}", o.coder, o.layout);
            let Method::Tiles(tiles) = &t.plan.planes[0] else { continue };
            // Nothing is read of a chunk that is empty, or ends before it begins: its plane's first chunks are not there.
            let chunk = tiles.geometry.tiles();
            let at = (t.places[0].offsets.wrapping_add(4 * chunk as u64) - t.packed.address()) as usize;
            let begin = u32::from_le_bytes(t.packed[at..at + 4].try_into().unwrap());
            for end in [begin, begin - 1] {
                t.packed[at + 4..at + 8].copy_from_slice(&end.to_le_bytes());
                t.status.fill(abi::STATUS_GOOD);
                let slice = run(std::slice::from_mut(&mut t), OutputKind::F32, &|n| 1..n - 1, 5).remove(0);
                assert_eq!(slice.status, Some(chunk as u32), "{} {:?} {name}", o.coder, o.layout);
            }
        }
    }
}

/// Damage that the oracle notices is reported, as for other schemes, and damage that it does not notice decodes to the same.
#[test]
fn damaged_chunks_are_found_as_the_oracle_finds_them() {
    let cases: usize = std::env::var("WCODEC_CORRUPTIONS").map_or(1200, |n| n.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(46);
    let mut all = Vec::new();
    for o in options() {
        let o = EncodeOptions { tile: Some(128), ..o };
        let encoded = container(&sample(&mut rng, &[vec![48, 256]]), &o);
        let parts = encoded.bytes_of("w0", &oracle()).unwrap();
        if let Coding::Tiles(tiling) = parts.tensor.plane().form.coding {
            all.push((parts, tiling));
        }
    }
    let mut noticed = 0;
    for case in 0..cases {
        let (parts, tiling) = &all[case % all.len()];
        let mut damaged = copy_of(parts);
        let plane = &mut damaged.planes[0];
        match rng.random_range(0..10) {
            0 => damage(&mut rng, &mut plane.offsets),
            1 => damage(&mut rng, &mut plane.side),
            // The place of the patches.
            2 | 3 => {
                let chunk = rng.random_range(0..plane.offsets.len() / 4 - 1);
                let at = u32::from_le_bytes(plane.offsets[4 * chunk..][..4].try_into().unwrap()) as usize * 4;
                let end = (at + rng.random_range(1..24)).min(plane.data.len());
                damage(&mut rng, &mut plane.data[at..end]);
            }
            _ => damage(&mut rng, &mut plane.data),
        }
        let mut t = Loaded::new(&damaged).unwrap();
        let kind = OutputKind::ALL[case % 4];
        let got = run(std::slice::from_mut(&mut t), kind, &|n| 0..n, case as u64).remove(0);
        match symbols_of(&damaged, 0) {
            None => {
                noticed += 1;
                assert!(got.status.is_some(), "case {case}: {tiling:?} not reported");
            }
            Some(want) => {
                assert_eq!(got.status, None, "case {case}: {tiling:?} reported");
                if kind == OutputKind::Int8 {
                    assert!(got.bytes == want, "case {case}: {tiling:?} differs");
                }
            }
        }
    }
    assert!(noticed > cases / 3, "{noticed} of {cases} were noticed");
}

/// The special kernels are for what they say, and nothing of scheme `rate` goes to those that know of no offset.
#[test]
fn planes_go_to_the_kernels_that_decode_them() {
    let mut rng = StdRng::seed_from_u64(47);
    let mut seen = BTreeSet::new();
    for scheme in [None, Some(Scheme::Int8(Granularity::Row))] {
        for o in options() {
            let o = EncodeOptions { scheme: scheme.unwrap_or(o.scheme), ..o };
            let encoded = container(&sample(&mut rng, &[vec![64, 256]]), &o);
            let parts = encoded.bytes_of("w0", &oracle()).unwrap();
            let plan = TensorPlan::new(&parts).unwrap();
            let Method::Tiles(t) = &plan.planes[0] else { continue };
            let (rate, table) = (scheme.is_none(), t.table.bits());
            let want = match (t.tiling.layout, t.tiling.shift, t.tiling.filter) {
                (Layout::Byte, _, Filter::None) if !rate && table == 12 => Mode::Byte,
                (Layout::Pair, 3, Filter::None) if !rate && table == 12 => Mode::Pair,
                (Layout::Pair, 0..=2, Filter::None) => Mode::Low,
                (Layout::Pair, 0..=2, Filter::Trellis) => Mode::Trellis,
                (Layout::Quad, _, Filter::None) => Mode::Quad,
                (Layout::Quad, _, Filter::Trellis) => Mode::QuadTrellis,
                _ => Mode::General,
            };
            assert_eq!(t.mode(), want);
            let place = plan.place(&plan.packed.at(0)[0], 0, OutputKind::BF16, 0);
            assert_eq!((place.scale_bytes, place.offset), if rate { (2, 128) } else { (4, 0) });
            seen.insert(want);
        }
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}
