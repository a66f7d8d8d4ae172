//! One decoder whose tensors are on the device, in the host's memory and in the file.

use std::collections::HashMap;

use wcodec::gpu::{DecodeItem, GpuOptions, Residency, Stream, TensorDecoder};
use wcodec::{Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource};

use crate::data;
use crate::rig::{Outputs, Rig, Want, expected, shuffle};

pub const RESIDENCIES: [Residency; 3] = [Residency::Device, Residency::Host, Residency::Disk];

/// A container in a file, which lives as long as the folder.
pub fn saved(source: &MemorySource<'_>, options: &EncodeOptions) -> (tempfile::TempDir, Container) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    std::fs::write(&path, wcodec::encode_to_vec(source, options, &mut |_| Ok(())).unwrap().0).unwrap();
    let container = Container::open(&path).unwrap();
    (dir, container)
}

/// Any residency for each tensor.
fn homes(rig: &mut Rig, names: &[String]) -> HashMap<String, Residency> {
    names.iter().map(|name| (name.clone(), RESIDENCIES[rig.rng.below(3)])).collect()
}

fn check(rig: &mut Rig, coder: Coder, layout: Layout) {
    let mut source: MemorySource<'_> = data::shapes(&mut rig.rng);
    for i in 0..8 {
        data::push(&mut source, &format!("more{i}"), Dtype::BF16, &[320, 512], &mut rig.rng);
    }
    let (_dir, container) = saved(&source, &data::options(coder, layout, Granularity::Row, &mut rig.rng));
    let infos = container.infos().unwrap();
    let names: Vec<String> = infos.iter().map(|info| info.name.clone()).collect();
    for ring in [0, 200_000, 128 << 20] {
        let homes = homes(rig, &names);
        let options = GpuOptions { ring, ..Default::default() };
        let decoder = TensorDecoder::new(&rig.device, &container, &[], &|name| homes[name], &options).unwrap();
        assert!(names.iter().all(|name| decoder.residency(name).unwrap() == homes[name]));
        let mut wants = Want::everything(&container, &infos, &mut rig.rng);
        let stream = Stream::new(&rig.device).unwrap();
        for _ in 0..3 {
            shuffle(&mut rig.rng, &mut wants);
            let mut outputs = Outputs::new(rig, &wants);
            outputs.poison(&mut rig.rng, &stream);
            let items = outputs.items(&wants);
            let batch = decoder.prepare(&items[..items.len() / 2]).unwrap();
            batch.prefetch().unwrap();
            // SAFETY: the outputs hold the items and outlive the work, which `check` waits for.
            unsafe {
                decoder.decode(&items[items.len() / 2..], &stream).unwrap();
                batch.launch(&stream).unwrap();
            }
            decoder.check(&stream).unwrap();
            outputs.assert_equal(&wants, &stream, &format!("{coder} {layout}, ring of {ring}"));
        }
    }
}

#[test]
fn items_of_every_residency_decode_together() {
    let Some(mut rig) = Rig::new() else { return };
    check(&mut rig, Coder::Rans, Layout::Pair);
    check(&mut rig, Coder::Huffman, Layout::Pair);
}

#[test]
fn frames_of_every_residency_decode_together() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    check(&mut rig, Coder::Zstd, Layout::Byte);
}

#[test]
fn runs_of_rows_are_those_of_the_whole() {
    let Some(mut rig) = Rig::new() else { return };
    let mut source = MemorySource::new();
    data::push(&mut source, "w", Dtype::F32, &[700, 200], &mut rig.rng);
    let (_dir, container) =
        saved(&source, &data::options(Coder::Huffman, Layout::Pair, Granularity::Row, &mut rig.rng));
    let info = container.infos().unwrap().remove(0);
    let whole = expected(&container, &info, Dtype::F32, true).unwrap();
    for residency in RESIDENCIES {
        for ring in [0, 1 << 20] {
            let options = GpuOptions { ring, ..Default::default() };
            let decoder = TensorDecoder::new(&rig.device, &container, &[], &|_| residency, &options).unwrap();
            let runs: Vec<_> = (0..60)
                .map(|_| {
                    let (a, b) = (rig.rng.below(45), rig.rng.below(45));
                    (a.min(b) * 16).min(700)..(a.max(b) * 16).min(700)
                })
                .collect();
            let bytes = runs.iter().flat_map(|r| whole[r.start * 800..r.end * 800].to_vec()).collect();
            let want = [Want { name: "w".to_owned(), dtype: Dtype::F32, rows: None, bytes }];
            let mut outputs = Outputs::new(&mut rig, &want);
            outputs.poison(&mut rig.rng, &rig.stream);
            let item = DecodeItem { rows: None, ..outputs.items(&want).remove(0) };
            // SAFETY: the output has room for all rows and outlives the work, which `check` waits for.
            unsafe { decoder.decode_runs(&item, &runs, &rig.stream) }.unwrap();
            decoder.check(&rig.stream).unwrap();
            outputs.assert_equal(&want, &rig.stream, &format!("{residency:?}, ring of {ring}"));
        }
    }
}
