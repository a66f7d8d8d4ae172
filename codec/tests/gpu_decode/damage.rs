//! Damage that no hash catches: never a crash, a hang or an out-of-bounds write, and the same verdict as the oracle's.

use std::collections::BTreeSet;
use std::time::Duration;

use rayon::prelude::*;
use wcodec::gpu::{GpuDecoder, GpuOptions};
use wcodec::{Coder, Container, Dtype, EncodeOptions, ErrorKind, Layout, MemorySource, Scheme, TensorInfo};

use crate::common::{Rng, samples};
use crate::data::{self, GRANULARITIES, KINDS};
use crate::lossless;
use crate::rig::{Outputs, Rig, Want, Watchdog, assert_same, dtypes, expected, new_seed};

/// Containers of many small tensors in tiles: weights with scales, and bytes that exercise every feature.
fn originals(rng: &mut Rng) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (coder, layout) in KINDS.into_iter().filter(|k| matches!(k.0, Coder::Rans | Coder::Huffman)) {
        // A table of quads is larger, so small tensors are often stored raw.
        let taller = if layout == Layout::Quad { 3 } else { 1 };
        for granularity in [GRANULARITIES[rng.below(4)], GRANULARITIES[0]] {
            let mut source = MemorySource::new();
            for i in 0..90 {
                let [rows, cols] = [[40, 200], [16, 256], [17, 130], [48, 64]][i % 4];
                data::push(&mut source, &format!("w{i}"), Dtype::BF16, &[rows * taller, cols], rng);
            }
            for i in 0..10 {
                data::push(&mut source, &format!("t{i}"), Dtype::BF16, &[96, 40], rng);
            }
            let options = EncodeOptions {
                transpose: vec!["t*".to_owned()],
                tile: Some([64, 128, 256][rng.below(3)]),
                ..data::options(coder, layout, granularity, rng)
            };
            all.push((format!("{coder} {layout} {granularity}"), samples::encode(&source, &options)));
        }
        for (rows, cols) in [(48, 192), (33, 250)] {
            let mut source = MemorySource::new();
            for i in 0..8 {
                for (what, symbols) in samples::layer_symbols(rows * taller, cols) {
                    let bytes = samples::as_bytes(&symbols);
                    source.push(format!("{what} {i}"), Dtype::U8, vec![rows * taller, cols], bytes.into()).unwrap();
                }
            }
            let options = EncodeOptions {
                scheme: Scheme::Raw,
                tile: Some(64),
                table_bits: Some(12),
                ..data::options(coder, layout, GRANULARITIES[0], rng)
            };
            all.push((format!("features of {coder} {layout}"), samples::encode(&source, &options)));
        }
    }
    for coder in [Coder::Rans, Coder::Huffman] {
        let options = EncodeOptions { tile: Some([64, 128, 256][rng.below(3)]), ..lossless::options(coder, rng) };
        all.push((format!("lossless {coder}"), samples::encode(&lossless::source(rng), &options)));
    }
    all
}

/// Flips, overwrites or copies some of these bytes.
fn damage(rng: &mut Rng, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        let end = (at + 1 + rng.below(64)).min(bytes.len());
        match rng.below(6) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = rng.next() as u8,
            3 => bytes[at..end].iter_mut().for_each(|b| *b = rng.next() as u8),
            4 => bytes[at..end].fill([0, 0xFF][rng.below(2)]),
            _ => {
                let from = rng.below(bytes.len() - (end - at) + 1);
                bytes.copy_within(from..from + (end - at), at);
            }
        }
    }
}

/// Turns a table into another valid one.
fn other_table(rng: &mut Rng, info: &TensorInfo, table: &mut [u8]) {
    if info.planes[0].layout.as_deref() != Some("quad") {
        // Two symbols swap places.
        let size = if info.coder() == "rans" { 2 } else { 1 };
        let (a, b) = (rng.below(256) * size, rng.below(256) * size);
        return (0..size).for_each(|i| table.swap(a + i, b + i));
    }
    // A symbol is replaced by one that had no code, keeping the order among codes of its length.
    let mut words: Vec<u16> = table.as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect();
    let sum = |n: usize| words[..n].iter().map(|&w| usize::from(w)).sum::<usize>();
    let counts = (1..words.len()).find(|&n| n + sum(n) == words.len()).expect("counts of codes, and symbols");
    let present: BTreeSet<u16> = words[counts..].iter().copied().collect();
    let last = words.len() - 1;
    let (before, after) = (words[last - 1], words[last]);
    let free = |q: &u16| q & 0x7777 == *q && !present.contains(q);
    let all: Vec<u16> = (before.min(after) + 1..=0x7777).filter(free).collect();
    if let Some(i) = all.len().checked_sub(1) {
        words[last] = all[rng.below(i + 1)];
        table.copy_from_slice(bytemuck::cast_slice(&words));
    }
}

/// A copy of a container in which every tiled tensor is damaged without affecting its structure; rarely, its tables are
/// changed, too. A few tensors stay intact.
fn damaged(rng: &mut Rng, original: &[u8], infos: &[TensorInfo]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    let tables = rng.below(10) == 0;
    for info in infos {
        let segment = |role: &str| {
            let s = info.segments.iter().find(|s| s.role == role)?;
            Some(s.offset as usize..(s.offset + s.length) as usize)
        };
        if let Some(table) = segment("table").filter(|_| tables) {
            other_table(rng, info, &mut bytes[table]);
        }
        if rng.below(12) == 0 {
            continue;
        }
        match segment("side").filter(|_| rng.below(5) == 0) {
            Some(side) => damage(rng, &mut bytes[side]),
            None => damage(rng, &mut bytes[segment("data").unwrap()]),
        }
    }
    bytes
}

/// The oracle's verdict on one tensor: bytes, or none if it noticed the damage.
struct Verdict {
    want: Want,
    accepted: bool,
}

fn verdicts(container: &Container, infos: &[TensorInfo], rng: &mut Rng) -> Vec<Verdict> {
    let seed = rng.next();
    infos
        .par_iter()
        .enumerate()
        .map(|(i, info)| {
            let all = dtypes(info);
            let dtype = all[Rng(seed ^ i as u64).below(all.len())];
            let result = expected(container, info, dtype, false);
            let accepted = result.is_ok();
            if let Err(e) = &result {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            }
            // If it was refused, only the size matters.
            let size = if info.scheme == "int8" { dtype.size() } else { info.dtype.size() };
            let bytes = result.unwrap_or_else(|_| vec![0; info.elements as usize * size]);
            Verdict { want: Want { name: info.name.clone(), dtype, rows: None, bytes }, accepted }
        })
        .collect()
}

/// The number of corruptions to try.
fn cases() -> usize {
    std::env::var("WCODEC_CORRUPTIONS").map_or(10_000, |n| n.parse().expect("WCODEC_CORRUPTIONS is a number"))
}

fn tiled(container: &Container) -> Vec<TensorInfo> {
    container.infos().unwrap().into_iter().filter(|t| matches!(t.coder(), "rans" | "huffman")).collect()
}

#[test]
fn damage_is_found_as_the_oracle_finds_it() {
    let Some(mut rig) = Rig::new() else { return };
    let _watchdog = Watchdog::new("damaged tensors", Duration::from_secs(120 + cases() as u64 / 100));
    let options = GpuOptions { verify: false, ..Default::default() };
    let originals = originals(&mut rig.rng);
    let (mut tried, mut refused, mut changed) = (0, 0, 0);
    // It must decode as before after all this.
    let intact = Container::from_bytes(originals[0].1.clone()).unwrap();
    let witness = GpuDecoder::new(&rig.device, &intact, &[], &options).unwrap();
    while tried < cases() {
        for (what, original) in &originals {
            let infos = tiled(&Container::from_bytes(original.clone()).unwrap());
            let container = Container::from_bytes(damaged(&mut rig.rng, original, &infos)).unwrap();
            let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
            let decoder = GpuDecoder::new(&rig.device, &container, &names, &options).unwrap();
            let verdicts = verdicts(&container, &infos, &mut rig.rng);
            let n = verdicts.iter().filter(|v| !v.accepted).count();
            let wants: Vec<Want> = verdicts.iter().map(|v| v.want.clone()).collect();
            let mut outputs = Outputs::new(&mut rig, &wants);
            let items = outputs.items(&wants);

            // All of them in a few launches.
            outputs.poison(&mut rig.rng, &rig.stream);
            // SAFETY: the outputs outlive the work, which `check` waits for.
            unsafe { decoder.decode(&items, &rig.stream) }.unwrap();
            match decoder.check(&rig.stream) {
                Ok(()) => assert_eq!(n, 0, "{what}: nothing is reported"),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
                    let named = verdicts.iter().find(|v| Some(v.want.name.as_str()) == e.tensor_name());
                    assert!(named.is_some_and(|v| !v.accepted), "{what}: {e}");
                }
            }
            let contents = outputs.contents(&rig.stream, what);
            for (got, v) in contents.iter().zip(&verdicts).filter(|(_, v)| v.accepted) {
                assert_same(got, &v.want, what);
            }

            // One by one, to see the verdict on each.
            outputs.poison(&mut rig.rng, &rig.stream);
            for (item, v) in items.iter().zip(&verdicts) {
                // SAFETY: as above.
                unsafe { decoder.decode(std::slice::from_ref(item), &rig.stream) }.unwrap();
                let checked = decoder.check(&rig.stream);
                let name = &v.want.name;
                match checked {
                    Ok(()) => assert!(v.accepted, "{what}: damage of '{name}' is not reported"),
                    Err(e) => {
                        assert!(!v.accepted, "{what}: the oracle accepts '{name}': {e}");
                        assert_eq!(
                            (e.kind(), e.tensor_name()),
                            (ErrorKind::Corrupt, Some(name.as_str())),
                            "{what}: {e}"
                        );
                    }
                }
            }
            let contents = outputs.contents(&rig.stream, what);
            for (got, v) in contents.iter().zip(&verdicts).filter(|(_, v)| v.accepted) {
                assert_same(got, &v.want, what);
            }
            decoder.check(&rig.stream).unwrap();
            tried += verdicts.len();
            refused += n;
            changed += verdicts.len() - n;
        }
    }
    println!("{tried} tensors: {refused} refused, {changed} decoded");
    assert!(refused > tried / 3 && changed > tried / 10, "{refused} refused, {changed} decoded of {tried}");
    let infos = intact.infos().unwrap();
    let wants: Vec<Want> = infos.iter().map(|t| Want::whole(&intact, t, dtypes(t)[0], &mut rig.rng)).collect();
    rig.compare(&witness, &wants, "what was on the device all the time");
}

/// Damage elsewhere in the tensor does not affect slices, either.
#[test]
fn damage_outside_of_a_slice_is_not_reported() {
    let Some(mut rig) = Rig::new() else { return };
    let _watchdog = Watchdog::new("damaged rows", Duration::from_secs(100));
    for (coder, layout) in KINDS.into_iter().filter(|k| matches!(k.0, Coder::Rans | Coder::Huffman)) {
        let mut source = MemorySource::new();
        data::push(&mut source, "w", Dtype::BF16, &[96, 256], &mut rig.rng);
        let options = data::options(coder, layout, GRANULARITIES[0], &mut rig.rng);
        let original = samples::encode(&source, &options);
        let intact = Container::from_bytes(original.clone()).unwrap();
        let info = intact.info("w").unwrap();
        assert_eq!(info.coder(), coder.name());
        let whole = expected(&intact, &info, Dtype::BF16, true).unwrap();
        let row = 256 * 2;
        for _ in 0..20 {
            // A chunk in the strip of rows 32 to 48.
            let chunk = 2 * info.chunks() / 6 + rig.rng.below(info.chunks() / 6);
            let place = intact.chunk("w", chunk).unwrap();
            let mut bytes = original.clone();
            let at = (place.offset as usize)..(place.offset + place.length) as usize;
            bytes[at].iter_mut().for_each(|b| *b = rig.rng.next() as u8);
            let container = Container::from_bytes(bytes).unwrap();
            let damaged = expected(&container, &info, Dtype::BF16, false);
            let options = GpuOptions { verify: false, ..Default::default() };
            let decoder = GpuDecoder::new(&rig.device, &container, &[], &options).unwrap();
            let slice = |rows: std::ops::Range<usize>| Want {
                name: "w".to_owned(),
                dtype: Dtype::BF16,
                bytes: whole[rows.start * row..rows.end * row].to_vec(),
                rows: Some(rows),
            };
            rig.compare(&decoder, &[slice(0..32), slice(48..96)], &format!("rows beside damage, {coder} {layout}"));
            let within = [slice(16..64)];
            let mut outputs = Outputs::new(&mut rig, &within);
            outputs.poison(&mut rig.rng, &rig.stream);
            // SAFETY: the output outlives the work, which `check` waits for.
            unsafe { decoder.decode(&outputs.items(&within), &rig.stream) }.unwrap();
            assert_eq!(decoder.check(&rig.stream).is_err(), damaged.is_err(), "{coder} {layout}");
            outputs.contents(&rig.stream, "rows with damage");
        }
    }
}

/// With hashes compared, no damage reaches the device, neither our kernels nor nvCOMP.
#[test]
fn hashes_catch_damage_first() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        let mut source = MemorySource::new();
        data::push(&mut source, "w", Dtype::BF16, &[48, 256], &mut rig.rng);
        let options = data::options(coder, layout, GRANULARITIES[0], &mut rig.rng);
        let original = samples::encode(&source, &options);
        let info = Container::from_bytes(original.clone()).unwrap().info("w").unwrap();
        for _ in 0..40 {
            let segment = &info.segments[rig.rng.below(info.segments.len())];
            let mut bytes = original.clone();
            let at = segment.offset as usize + rig.rng.below(segment.length as usize);
            bytes[at] ^= 1 << rig.rng.below(8);
            let container = Container::from_bytes(bytes).unwrap();
            let e = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default())
                .expect_err("a bit of a segment is wrong");
            assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("w")), "{}: {e}", segment.role);
        }
    }
}

/// Runs without a GPU: the data of the test above is damaged in the intended ways.
#[test]
fn the_damage_is_of_every_kind() {
    let mut rng = Rng(new_seed());
    let (mut tried, mut refused, mut changed) = (0, 0, 0);
    for (what, original) in originals(&mut rng) {
        let intact = Container::from_bytes(original.clone()).unwrap();
        let infos = tiled(&intact);
        assert!(infos.len() >= 40, "{what}: {} tensors in tiles", infos.len());
        let container = Container::from_bytes(damaged(&mut rng, &original, &infos)).unwrap();
        for (v, info) in verdicts(&container, &infos, &mut rng).iter().zip(&infos) {
            tried += 1;
            match v.accepted {
                false => refused += 1,
                true if v.want.bytes != expected(&intact, info, v.want.dtype, true).unwrap() => changed += 1,
                true => {}
            }
        }
    }
    println!("{refused} of {tried} are refused, {changed} decode to something else");
    assert!(refused > tried / 3 && changed > tried / 20, "{refused} refused and {changed} changed of {tried}");
}
