//! Work that follows other work, runs beside it, or is replayed from a CUDA graph.

use wcodec::gpu::{DeviceBuffer, GpuDecoder, GpuOptions, Stream, Target};
use wcodec::{Coder, Container, Dtype, EncodeOptions, Granularity, Layout, MemorySource};

use crate::data::{self, KINDS};
use crate::graph::Graph;
use crate::rig::{Outputs, Rig, Want};

/// Weights of the shapes of a model's block, and norms that are copied.
fn container(rig: &mut Rig, coder: Coder, layout: Layout) -> Container {
    let mut source = MemorySource::new();
    for (name, shape) in [("q", [512, 512]), ("k", [64, 512]), ("gate", [1408, 512]), ("down", [512, 1408])] {
        data::push(&mut source, name, Dtype::BF16, &shape, &mut rig.rng);
    }
    data::push(&mut source, "norm", Dtype::F32, &[512], &mut rig.rng);
    data::push(&mut source, "t", Dtype::BF16, &[512, 96], &mut rig.rng);
    let options = EncodeOptions { coder, layout, transpose: vec!["t".to_owned()], ..Default::default() };
    data::encode(&source, &options)
}

/// Everything, as everything.
fn wants(rig: &mut Rig, container: &Container) -> Vec<Want> {
    Want::everything(container, &container.infos().unwrap(), &mut rig.rng)
}

/// Kernels may begin before the work ahead of them ends. They must not write before it has.
#[test]
fn work_in_a_stream_is_done_in_order() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let container = container(&mut rig, coder, layout);
        let wants = wants(&mut rig, &container);
        for overlap in [true, false] {
            let options = GpuOptions { overlap, ..Default::default() };
            let decoder = GpuDecoder::new(&rig.device, &container, &[], &options).unwrap();
            let mut outputs = Outputs::new(&mut rig, &wants);
            let batch = decoder.prepare(&outputs.targets(&wants)).unwrap();
            for round in 0..20 {
                // What a fill leaves must be overwritten, and what is decoded must be there when the next fill begins.
                outputs.poison(&mut rig.rng, &rig.stream);
                // SAFETY: the outputs and the decoder outlive the work, which `check` waits for.
                unsafe { batch.launch(&rig.stream) }.unwrap();
                if round % 7 == 0 {
                    outputs.assert_equal(&wants, &rig.stream, &format!("{coder} {layout} round {round}"));
                }
            }
            decoder.check(&rig.stream).unwrap();
            outputs.assert_equal(&wants, &rig.stream, &format!("{coder} {layout} overlap {overlap}"));
        }
    }
}

/// Decodes into the same place again and again, another tensor each time: the last one wins.
#[test]
fn decoding_over_what_was_decoded() {
    let Some(mut rig) = Rig::new() else { return };
    let mut source = MemorySource::new();
    for i in 0..8 {
        data::push(&mut source, &format!("w{i}"), Dtype::BF16, &[300, 700], &mut rig.rng);
    }
    let container = data::encode(&source, &EncodeOptions::default());
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
    let infos = container.infos().unwrap();
    for round in 0..20 {
        let want = Want::whole(&container, &infos[rig.rng.below(8)], Dtype::F32, &mut rig.rng);
        let mut outputs = Outputs::new(&mut rig, std::slice::from_ref(&want));
        outputs.poison(&mut rig.rng, &rig.stream);
        for i in (0..30).map(|_| rig.rng.below(8)).collect::<Vec<_>>() {
            let other = Want { name: infos[i].name.clone(), ..want.clone() };
            // SAFETY: the output outlives the work, which `check` waits for.
            unsafe { decoder.decode(&outputs.targets(&[other]), &rig.stream) }.unwrap();
        }
        // SAFETY: likewise.
        unsafe { decoder.decode(&outputs.targets(std::slice::from_ref(&want)), &rig.stream) }.unwrap();
        decoder.check(&rig.stream).unwrap();
        outputs.assert_equal(std::slice::from_ref(&want), &rig.stream, &format!("round {round}"));
    }
}

#[test]
fn two_streams_at_once() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        let container = container(&mut rig, coder, layout);
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let wants = wants(&mut rig, &container);
        let new = |rig: &Rig| GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        // Planes of coder zstd share scratch, so that each stream has its own decoder then.
        let decoders = if coder == Coder::Zstd { vec![new(&rig), new(&rig)] } else { vec![new(&rig)] };
        let streams = [Stream::new(&rig.device).unwrap(), Stream::new(&rig.device).unwrap()];
        let mut outputs = [Outputs::new(&mut rig, &wants), Outputs::new(&mut rig, &wants)];
        for round in 0..10 {
            for (i, (outputs, stream)) in outputs.iter_mut().zip(&streams).enumerate() {
                outputs.poison(&mut rig.rng, stream);
                for _ in 0..3 {
                    // SAFETY: the outputs outlive the work, which `check` waits for.
                    unsafe { decoders[i % decoders.len()].decode(&outputs.targets(&wants), stream) }.unwrap();
                }
            }
            for (i, (outputs, stream)) in outputs.iter().zip(&streams).enumerate() {
                decoders[i % decoders.len()].check(stream).unwrap();
                outputs.assert_equal(&wants, stream, &format!("{coder} {layout} stream {i} round {round}"));
            }
        }
    }
}

/// Threads that share a decoder, each with a stream.
#[test]
fn threads_share_a_decoder() {
    let Some(mut rig) = Rig::new() else { return };
    let container = container(&mut rig, Coder::Rans, Layout::Pair);
    let wants = wants(&mut rig, &container);
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
    let all: Vec<Outputs> = (0..6).map(|_| Outputs::new(&mut rig, &wants)).collect();
    std::thread::scope(|s| {
        for (i, mut outputs) in all.into_iter().enumerate() {
            let (decoder, wants, device, mut rng) = (&decoder, &wants, &rig.device, rig.rng.clone());
            s.spawn(move || {
                let stream = Stream::new(device).unwrap();
                for round in 0..10 {
                    outputs.poison(&mut rng, &stream);
                    // SAFETY: the outputs outlive the work, which `check` waits for.
                    unsafe { decoder.decode(&outputs.targets(wants), &stream) }.unwrap();
                    decoder.check(&stream).unwrap();
                    outputs.assert_equal(wants, &stream, &format!("thread {i} round {round}"));
                }
            });
        }
    });
}

/// What [`Batch::launch`](wcodec::gpu::Batch::launch) promises: it can be captured, and replayed without the host.
fn replay(coder: Coder, layout: Layout, zstd_scratch: usize) {
    let Some(mut rig) = Rig::new() else { return };
    if coder == Coder::Zstd && !rig.has_nvcomp() {
        return;
    }
    let container = container(&mut rig, coder, layout);
    let wants = wants(&mut rig, &container);
    let options = GpuOptions { zstd_scratch: Some(zstd_scratch), ..Default::default() };
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &options).unwrap();
    let mut outputs = Outputs::new(&mut rig, &wants);
    let batch = decoder.prepare(&outputs.targets(&wants)).unwrap();
    outputs.poison(&mut rig.rng, &rig.stream);
    let graph = Graph::capture(&rig.stream, || {
        // SAFETY: the outputs and the decoder outlive the graph.
        unsafe { batch.launch(&rig.stream)? };
        // SAFETY: likewise. Once more, behind itself.
        unsafe { batch.launch(&rig.stream) }
    })
    .unwrap();
    // Nothing was done yet.
    let untouched = outputs.contents(&rig.stream, "captured");
    assert!(untouched.iter().flatten().all(|&b| b == untouched[0][0]));
    for round in 0..5 {
        outputs.poison(&mut rig.rng, &rig.stream);
        graph.launch(&rig.stream).unwrap();
        decoder.check(&rig.stream).unwrap();
        outputs.assert_equal(&wants, &rig.stream, &format!("{coder} {layout} replay {round}"));
    }
    // In another stream, and the last of several.
    let other = Stream::new(&rig.device).unwrap();
    rig.stream.synchronize().unwrap();
    outputs.poison(&mut rig.rng, &other);
    for _ in 0..5 {
        graph.launch(&other).unwrap();
    }
    decoder.check(&other).unwrap();
    outputs.assert_equal(&wants, &other, &format!("{coder} {layout} in another stream"));
}

#[test]
fn graphs_of_tiles_are_replayed() {
    for (coder, layout) in KINDS.into_iter().filter(|k| matches!(k.0, Coder::Rans | Coder::Huffman)) {
        replay(coder, layout, 0);
    }
}

#[test]
fn graphs_of_raw_planes_are_replayed() {
    replay(Coder::Raw, Layout::Byte, 0);
}

#[test]
fn graphs_of_zstd_are_replayed() {
    replay(Coder::Zstd, Layout::Byte, 512 << 20);
    replay(Coder::Zstd, Layout::Byte, 1 << 20);
}

/// A batch that outlives what it was made for is still only launches: the decoder may decode other things between.
#[test]
fn batches_and_single_calls_take_turns() {
    let Some(mut rig) = Rig::new() else { return };
    let mut source = MemorySource::new();
    for i in 0..30 {
        data::push(&mut source, &format!("w{i}"), Dtype::F16, &[80, 256], &mut rig.rng);
    }
    let options = data::options(Coder::Huffman, Layout::Pair, Granularity::Block(64), &mut rig.rng);
    let container = data::encode(&source, &options);
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
    let wants = wants(&mut rig, &container);
    let mut outputs = Outputs::new(&mut rig, &wants);
    let targets = outputs.targets(&wants);
    outputs.poison(&mut rig.rng, &rig.stream);
    let batches: Vec<_> = targets.chunks(7).map(|t| decoder.prepare(t).unwrap()).collect();
    let scratch = DeviceBuffer::new(&rig.device, 80 * 256 * 4).unwrap();
    for batch in &batches {
        let single = Target { name: "w3".to_owned(), out: scratch.ptr(), dtype: Dtype::F32, rows: None };
        // SAFETY: the outputs and the decoder outlive the work, which `check` waits for.
        unsafe {
            decoder.decode(&[single], &rig.stream).unwrap();
            batch.launch(&rig.stream).unwrap();
        }
    }
    decoder.check(&rig.stream).unwrap();
    outputs.assert_equal(&wants, &rig.stream, "batches");
}
