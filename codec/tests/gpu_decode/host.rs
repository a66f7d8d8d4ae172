//! Compressed bytes in host memory, sent to the device through a ring while earlier ones are decoded.

use wcodec::gpu::{GpuDecoder, GpuOptions, HostDecoder, Sizes, Stream};
use wcodec::{Coder, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Scheme};

use crate::data;
use crate::rig::{Outputs, Rig, Want, shuffle};

/// From one tensor at a time to everything at once.
const RINGS: [usize; 3] = [0, 200_000, 128 << 20];

/// Decodes all tensors in every dtype, in the order of the file and in another one, several times without waiting in
/// between.
fn check(rig: &mut Rig, options: &EncodeOptions, what: &str) {
    let mut source: MemorySource<'_> = data::shapes(&mut rig.rng);
    for i in 0..12 {
        data::push(&mut source, &format!("more{i}"), Dtype::BF16, &[320, 512], &mut rig.rng);
    }
    let container = data::encode(&source, options);
    let infos = container.infos().unwrap();
    for ring in RINGS {
        let gpu = GpuOptions { ring, ..Default::default() };
        let decoder = HostDecoder::new(&rig.device, &container, &[], &gpu).unwrap();
        assert!(decoder.device_bytes() > 0 && decoder.host_bytes() > 0);
        let mut wants = Want::everything(&container, &infos, &mut rig.rng);
        let stream = Stream::new(&rig.device).unwrap();
        for round in 0..3 {
            if round > 0 {
                shuffle(&mut rig.rng, &mut wants);
            }
            let mut outputs = Outputs::new(rig, &wants);
            outputs.poison(&mut rig.rng, &stream);
            let items = outputs.items(&wants);
            // SAFETY: the outputs hold the items and outlive the work, which `check` waits for.
            unsafe {
                decoder.decode(&items[..items.len() / 2], &stream).unwrap();
                decoder.decode(&items[items.len() / 2..], &stream).unwrap();
            }
            decoder.check(&stream).unwrap();
            outputs.assert_equal(&wants, &stream, &format!("{what}, ring of {ring}"));
        }
    }
}

#[test]
fn tiles_from_the_host_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in [(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Pair), (Coder::Rans, Layout::Byte)] {
        let options = data::options(coder, layout, Granularity::Row, &mut rig.rng);
        check(&mut rig, &options, &format!("{coder} {layout}"));
    }
}

#[test]
fn frames_from_the_host_equal_the_oracle() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    let options = data::options(Coder::Zstd, Layout::Byte, Granularity::Row, &mut rig.rng);
    check(&mut rig, &options, "zstd");
}

/// The memory that decoders report equals the estimate made before, and a ring keeps to its bound whatever is streamed.
#[test]
fn decoders_hold_what_was_said() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in data::KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        for scheme in [Scheme::Int8(Granularity::Row), Scheme::Raw] {
            let mut source: MemorySource<'_> = data::shapes(&mut rig.rng);
            data::push(&mut source, "head", Dtype::BF16, &[4000, 1024], &mut rig.rng);
            let options = data::options(coder, layout, Granularity::Row, &mut rig.rng);
            let container = data::encode(&source, &EncodeOptions { scheme, ..options });
            let names: Vec<String> = rig.decodable(&container).iter().map(|t| t.name.clone()).collect();
            let sizes = Sizes::new(&container, &names).unwrap();
            for ring in [0, 1 << 20, 128 << 20] {
                let gpu = GpuOptions { ring, ..Default::default() };
                let says = |on_host| sizes.footprint(0..names.len(), on_host, &gpu, Some(&rig.device)).unwrap();
                let there = GpuDecoder::new(&rig.device, &container, &names, &gpu).unwrap();
                assert_eq!(there.device_bytes(), says(false).total(), "{coder} {layout} {scheme:?}");
                let streamed = HostDecoder::new(&rig.device, &container, &names, &gpu).unwrap();
                assert_eq!(streamed.device_bytes(), says(true).total(), "{coder} {layout} {scheme:?} {ring}");
                assert!(says(true).ring <= ring.max(4 << 20), "{coder} {layout} {scheme:?}: {:?}", says(true));
            }
        }
    }
}
