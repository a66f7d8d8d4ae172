//! Batches of a [`HostDecoder`] whose bytes are prefetched, in any order and number.

use wcodec::gpu::{GpuOptions, HostBatch, HostDecoder, Stream};
use wcodec::{Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource, TensorInfo};

use crate::data;
use crate::rig::{Outputs, Rig, Want, expected, shuffle};

/// From a slot for the largest tensor to slots for everything.
const RINGS: [usize; 3] = [0, 400_000, 128 << 20];

fn container(rig: &mut Rig, options: &EncodeOptions) -> Container {
    let mut source: MemorySource<'_> = data::shapes(&mut rig.rng);
    for i in 0..16 {
        data::push(&mut source, &format!("more{i}"), Dtype::BF16, &[320, 512], &mut rig.rng);
    }
    data::encode(&source, options)
}

fn decoder(rig: &Rig, container: &Container, ring: usize) -> HostDecoder {
    HostDecoder::new(&rig.device, container, &[], &GpuOptions { ring, ..Default::default() }).unwrap()
}

/// `wants` in parts of `per`, each with its outputs and its batch.
fn batches(rig: &mut Rig, decoder: &HostDecoder, wants: &[Want], per: usize) -> Vec<(Vec<Want>, Outputs, HostBatch)> {
    wants
        .chunks(per)
        .map(|wants| {
            let outputs = Outputs::new(rig, wants);
            let batch = decoder.prepare(&outputs.items(wants)).unwrap();
            (wants.to_vec(), outputs, batch)
        })
        .collect()
}

/// Launches batches repeatedly, with prefetches before, between and without launches, and compares all outputs.
fn check(rig: &mut Rig, options: &EncodeOptions, what: &str) {
    let container = container(rig, options);
    let infos = container.infos().unwrap();
    for ring in RINGS {
        let decoder = decoder(rig, &container, ring);
        let mut wants = Want::everything(&container, &infos, &mut rig.rng);
        shuffle(&mut rig.rng, &mut wants);
        let per = 1 + rig.rng.below(8);
        let mut all = batches(rig, &decoder, &wants, per);
        let stream = Stream::new(&rig.device).unwrap();
        for round in 0..4 {
            shuffle(&mut rig.rng, &mut all);
            for (_, outputs, _) in &mut all {
                outputs.poison(&mut rig.rng, &stream);
            }
            // The number of batches that are prefetched ahead: none, one, some, more than there are slots.
            let ahead = [0, 1, 3, 9][round];
            for i in 0..all.len() {
                for (_, _, next) in all.iter().skip(i).take(ahead) {
                    next.prefetch().unwrap();
                }
                if rig.rng.below(4) == 0 {
                    // Prefetched and not launched yet.
                    all[rig.rng.below(all.len())].2.prefetch().unwrap();
                }
                // SAFETY: the outputs hold the items and outlive the work, which `check` waits for.
                unsafe { all[i].2.launch(&stream).unwrap() };
            }
            decoder.check(&stream).unwrap();
            for (wants, outputs, _) in &all {
                outputs.assert_equal(wants, &stream, &format!("{what}, ring of {ring}, {ahead} ahead"));
            }
        }
    }
}

#[test]
fn tiles_that_were_prefetched_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in [(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Byte)] {
        let options = data::options(coder, layout, Granularity::Row, &mut rig.rng);
        check(&mut rig, &options, &format!("{coder} {layout}"));
    }
}

#[test]
fn frames_that_were_prefetched_equal_the_oracle() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    let options = data::options(Coder::Zstd, Layout::Byte, Granularity::Row, &mut rig.rng);
    check(&mut rig, &options, "zstd");
}

/// Rows of a tensor with boundaries at strips.
fn slice(container: &Container, info: &TensorInfo, rows: std::ops::Range<usize>) -> Want {
    let whole = expected(container, info, Dtype::BF16, true).unwrap();
    let row = whole.len() / (info.count * info.rows);
    let bytes = whole[rows.start * row..rows.end * row].to_vec();
    Want { name: info.name.clone(), dtype: Dtype::BF16, rows: Some(rows), bytes }
}

#[test]
fn rows_need_only_their_own_bytes() {
    let Some(mut rig) = Rig::new() else { return };
    let mut kinds = vec![(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Pair), (Coder::Raw, Layout::Byte)];
    if rig.has_nvcomp() {
        kinds.push((Coder::Zstd, Layout::Byte));
    }
    for (coder, layout) in kinds {
        for granularity in [Granularity::Row, Granularity::Tensor, Granularity::Block(64)] {
            let options = data::options(coder, layout, granularity, &mut rig.rng);
            let container = container(&mut rig, &options);
            let decoder = decoder(&rig, &container, 0);
            let mut wants = Vec::new();
            for i in 0..16 {
                let info = container.info(&format!("more{i}")).unwrap();
                for _ in 0..4 {
                    let (a, b) = (rig.rng.below(21), rig.rng.below(21));
                    wants.push(slice(&container, &info, a.min(b) * 16..a.max(b) * 16));
                }
            }
            shuffle(&mut rig.rng, &mut wants);
            let stream = Stream::new(&rig.device).unwrap();
            let mut all = batches(&mut rig, &decoder, &wants, 3);
            for (_, outputs, _) in &mut all {
                outputs.poison(&mut rig.rng, &stream);
            }
            for i in 0..all.len() {
                all.iter().skip(i).take(2).for_each(|(_, _, next)| next.prefetch().unwrap());
                // SAFETY: the outputs hold the items and outlive the work, which `check` waits for.
                unsafe { all[i].2.launch(&stream).unwrap() };
            }
            decoder.check(&stream).unwrap();
            for (wants, outputs, _) in &all {
                outputs.assert_equal(wants, &stream, &format!("{coder} {layout} {granularity}"));
            }
        }
    }
}

#[test]
fn batches_and_decoders_that_are_dropped_early() {
    let Some(mut rig) = Rig::new() else { return };
    let options = data::options(Coder::Rans, Layout::Pair, Granularity::Row, &mut rig.rng);
    let container = container(&mut rig, &options);
    let infos: Vec<_> = container.infos().unwrap().into_iter().filter(|i| i.name.starts_with("more")).collect();
    let stream = Stream::new(&rig.device).unwrap();
    for _ in 0..5 {
        let decoder = decoder(&rig, &container, 0);
        let wants: Vec<Want> = infos.iter().map(|i| Want::whole(&container, i, Dtype::F32, &mut rig.rng)).collect();
        let mut all = batches(&mut rig, &decoder, &wants, 2);
        all.iter().for_each(|(_, _, batch)| batch.prefetch().unwrap());
        // Prefetched and dropped: its slots are free again, and copies into them do no harm.
        all.truncate(6);
        all.remove(1);
        for (_, outputs, _) in &mut all {
            outputs.poison(&mut rig.rng, &stream);
        }
        for (_, _, batch) in &all {
            // SAFETY: the outputs hold the items and outlive the work, which is waited for below.
            unsafe { batch.launch(&stream).unwrap() };
        }
        // Batches keep the parts of the decoder that they need, until they are dropped with copies in flight.
        drop(decoder);
        stream.synchronize().unwrap();
        for (wants, outputs, batch) in all {
            batch.prefetch().unwrap();
            drop(batch);
            outputs.assert_equal(&wants, &stream, "dropped early");
        }
    }
}

#[test]
fn several_streams_share_the_ring() {
    let Some(mut rig) = Rig::new() else { return };
    let options = data::options(Coder::Rans, Layout::Pair, Granularity::Row, &mut rig.rng);
    let container = container(&mut rig, &options);
    let infos: Vec<_> = container.infos().unwrap().into_iter().filter(|i| i.name.starts_with("more")).collect();
    let decoder = decoder(&rig, &container, 0);
    let wants: Vec<Want> = infos.iter().map(|i| Want::whole(&container, i, Dtype::F16, &mut rig.rng)).collect();
    let mut all = batches(&mut rig, &decoder, &wants, 1);
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&rig.device).unwrap()).collect();
    for (i, (_, outputs, _)) in all.iter_mut().enumerate() {
        outputs.poison(&mut rig.rng, &streams[i % 3]);
    }
    for i in 0..all.len() {
        all.iter().skip(i + 1).take(2).for_each(|(_, _, next)| next.prefetch().unwrap());
        // SAFETY: the outputs hold the items and outlive the work, which is waited for below.
        unsafe { all[i].2.launch(&streams[i % 3]).unwrap() };
    }
    streams.iter().for_each(|s| s.synchronize().unwrap());
    decoder.check(&streams[0]).unwrap();
    for (wants, outputs, _) in &all {
        outputs.assert_equal(wants, &streams[0], "several streams");
    }
}
