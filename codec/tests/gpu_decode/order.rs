//! Work that follows other work, runs beside it, or is replayed from a CUDA graph.

use wcodec::gpu::{DecodeItem, DeviceBuffer, Event, GpuDecoder, GpuOptions, Stream};
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
    let options = EncodeOptions { coder, layout: Some(layout), transpose: vec!["t".to_owned()], ..Default::default() };
    data::encode(&source, &options)
}

/// Every tensor in every dtype.
fn wants(rig: &mut Rig, container: &Container) -> Vec<Want> {
    Want::everything(container, &container.infos().unwrap(), &mut rig.rng)
}

/// Kernels may begin before the preceding work ends, but must not write before it has.
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
            let batch = decoder.prepare(&outputs.items(&wants)).unwrap();
            for round in 0..20 {
                // The decode must overwrite the fill, and must be complete when the next fill begins.
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

/// Decodes into the same place repeatedly, another tensor each time: the last one wins.
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
            unsafe { decoder.decode(&outputs.items(&[other]), &rig.stream) }.unwrap();
        }
        // SAFETY: as above.
        unsafe { decoder.decode(&outputs.items(std::slice::from_ref(&want)), &rig.stream) }.unwrap();
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
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        let streams = [Stream::new(&rig.device).unwrap(), Stream::new(&rig.device).unwrap()];
        let mut outputs = [Outputs::new(&mut rig, &wants), Outputs::new(&mut rig, &wants)];
        for round in 0..10 {
            for (outputs, stream) in outputs.iter_mut().zip(&streams) {
                outputs.poison(&mut rig.rng, stream);
                for _ in 0..3 {
                    // SAFETY: the outputs outlive the work, which `check` waits for.
                    unsafe { decoder.decode(&outputs.items(&wants), stream) }.unwrap();
                }
            }
            for (i, (outputs, stream)) in outputs.iter().zip(&streams).enumerate() {
                decoder.check(stream).unwrap();
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
                    unsafe { decoder.decode(&outputs.items(wants), &stream) }.unwrap();
                    decoder.check(&stream).unwrap();
                    outputs.assert_equal(wants, &stream, &format!("thread {i} round {round}"));
                }
            });
        }
    });
}

/// The promise of [`Batch::launch`](wcodec::gpu::Batch::launch): it can be captured, and replayed without the host.
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
    let batch = decoder.prepare(&outputs.items(&wants)).unwrap();
    outputs.poison(&mut rig.rng, &rig.stream);
    let graph = Graph::capture(&rig.stream, || {
        // SAFETY: the outputs and the decoder outlive the graph.
        unsafe { batch.launch(&rig.stream)? };
        // SAFETY: as above. A second launch, after the first.
        unsafe { batch.launch(&rig.stream) }
    })
    .unwrap();
    // Nothing has run yet.
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

/// A batch that outlives its request still consists only of launches: the decoder may decode other tensors in between.
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
    let items = outputs.items(&wants);
    outputs.poison(&mut rig.rng, &rig.stream);
    let batches: Vec<_> = items.chunks(7).map(|t| decoder.prepare(t).unwrap()).collect();
    let scratch = DeviceBuffer::new(&rig.device, 80 * 256 * 4).unwrap();
    for batch in &batches {
        let single = DecodeItem { name: "w3".to_owned(), out: scratch.ptr(), dtype: Dtype::F32, rows: None };
        // SAFETY: the outputs and the decoder outlive the work, which `check` waits for.
        unsafe {
            decoder.decode(&[single], &rig.stream).unwrap();
            batch.launch(&rig.stream).unwrap();
        }
    }
    decoder.check(&rig.stream).unwrap();
    outputs.assert_equal(&wants, &rig.stream, "batches");
}

/// Frames of several streams, of a graph that is replayed in one of them, and of another graph beside it: all use
/// scratch.
#[test]
fn streams_and_graphs_of_zstd_do_not_share_scratch() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    let container = container(&mut rig, Coder::Zstd, Layout::Byte);
    let wants = wants(&mut rig, &container);
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new(&rig.device).unwrap()).collect();
    let mut outputs: Vec<Outputs> = (0..4).map(|_| Outputs::new(&mut rig, &wants)).collect();
    let batches: Vec<_> = outputs.iter().map(|o| decoder.prepare(&o.items(&wants)).unwrap()).collect();
    // SAFETY: the outputs outlive the graphs and all work, which `check` waits for.
    let run = |i: usize| unsafe { batches[i].launch(&streams[i]) };
    let graphs: Vec<Graph> = (0..2).map(|i| Graph::capture(&streams[i], || run(i)).unwrap()).collect();
    for round in 0..10 {
        for (outputs, stream) in outputs.iter_mut().zip(&streams) {
            outputs.poison(&mut rig.rng, stream);
        }
        for _ in 0..3 {
            graphs[0].launch(&streams[0]).unwrap();
            graphs[1].launch(&streams[1]).unwrap();
            run(2).unwrap();
            run(3).unwrap();
        }
        for (i, (outputs, stream)) in outputs.iter().zip(&streams).enumerate() {
            decoder.check(stream).unwrap();
            outputs.assert_equal(&wants, stream, &format!("stream {i} round {round}"));
        }
    }
}

/// Free bytes of the device, once they are `want`: memory kept by graphs is freed by its own thread.
fn free_again(rig: &Rig, want: u64) -> u64 {
    let mut free = 0;
    for _ in 0..200 {
        free = rig.device.memory().unwrap().0;
        if free >= want {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    free
}

/// A graph can read its decoder's memory long after the decoder is gone, and that memory is freed with the graph.
#[test]
fn graphs_keep_what_they_read() {
    let Some(mut rig) = Rig::alone() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let container = container(&mut rig, coder, layout);
        let wants = wants(&mut rig, &container);
        let mut outputs = Outputs::new(&mut rig, &wants);
        // The driver and nvCOMP allocate their own memory the first time.
        for turn in 0..2 {
            outputs.poison(&mut rig.rng, &rig.stream);
            rig.stream.synchronize().unwrap();
            let before = rig.device.memory().unwrap().0;
            let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
            // SAFETY: the outputs outlive the graph.
            let work = || unsafe { decoder.decode(&outputs.items(&wants), &rig.stream) };
            let graph = Graph::capture(&rig.stream, work).unwrap();
            drop(decoder);
            // The freed memory would be reused and overwritten here.
            let others: Vec<DeviceBuffer> =
                (0..40).map(|i| DeviceBuffer::new(&rig.device, (i % 8 + 1) << 17).unwrap()).collect();
            others.iter().for_each(|other| other.fill(0x3C, &rig.stream).unwrap());
            for round in 0..3 {
                outputs.poison(&mut rig.rng, &rig.stream);
                graph.launch(&rig.stream).unwrap();
                let what = format!("{coder} {layout} without a decoder, round {round}");
                outputs.assert_equal(&wants, &rig.stream, &what);
            }
            rig.stream.synchronize().unwrap();
            drop((others, graph));
            let after = free_again(&rig, before);
            let lost = before.saturating_sub(after);
            assert!(turn == 0 || lost <= 4 << 20, "{coder} {layout}: {lost} bytes are lost");
        }
    }
}

/// A stream that is not being captured releases what it is to keep at once.
#[test]
fn streams_keep_only_what_is_captured() {
    let Some(rig) = Rig::new() else { return };
    let kept = std::sync::Arc::new(());
    assert!(!rig.stream.keep(kept.clone()).unwrap() && std::sync::Arc::strong_count(&kept) == 1);
    assert_eq!(rig.stream.capture().unwrap(), None);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let graph = Graph::capture(&rig.stream, || {
            numbers.push(rig.stream.capture()?);
            assert!(rig.stream.keep(kept.clone())?);
            Ok(())
        })
        .unwrap();
        assert_eq!(std::sync::Arc::strong_count(&kept), 2);
        drop(graph);
        let gone = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::sync::Arc::strong_count(&kept) == 1
        });
        assert!(gone, "the graph is gone, and what it kept is not");
    }
    assert!(numbers[0].is_some() && numbers[0] != numbers[1]);
}

/// Waiting for a stream that is being captured would make the waiting stream part of the graph.
#[test]
fn streams_follow_each_other_but_not_into_a_capture() {
    let Some(rig) = Rig::new() else { return };
    let [captured, other, joined] = [(); 3].map(|()| Stream::new(&rig.device).unwrap());
    assert!(other.follow(&captured).unwrap() && captured.follow(&other).unwrap());
    let graph = Graph::capture(&captured, || {
        assert!(!other.follow(&captured)? && !captured.follow(&other)?);
        assert_eq!(other.capture()?, None);
        let mark = Event::new(&rig.device)?;
        mark.record(&captured)?;
        joined.wait(&mark)?;
        assert!(joined.capture()?.is_some() && captured.follow(&joined)? && joined.follow(&captured)?);
        captured.follow(&joined).map(drop)
    })
    .unwrap();
    graph.launch(&captured).unwrap();
    assert!(other.follow(&captured).unwrap());
    other.synchronize().unwrap();
}
