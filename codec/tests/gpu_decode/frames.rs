//! Planes of coder `zstd`: batches that fit their scratch.

use wcodec::gpu::{GpuDecoder, GpuOptions};
use wcodec::{Coder, Dtype, EncodeOptions, Granularity, Layout, MemorySource, Scheme};

use crate::data;
use crate::rig::{Rig, Want, dtypes, shuffle};

/// From one frame at a time to everything at once.
const BUDGETS: [usize; 5] = [0, 100_000, 1 << 20, 16 << 20, 512 << 20];

#[test]
fn any_scratch_gives_the_same() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    for zstd_chunk in [None, Some(1920), Some(4096), Some(40_000), Some(1 << 20)] {
        let source = data::shapes(&mut rig.rng);
        let options = data::options(Coder::Zstd, Layout::Byte, Granularity::Row, &mut rig.rng);
        let options = EncodeOptions { zstd_chunk, transpose: vec!["t.*".to_owned()], ..options };
        let container = data::encode(&source, &options);
        let mut sizes = Vec::new();
        for zstd_scratch in BUDGETS {
            // One frame per launch: skipped unless frames are long, because it is slow.
            if zstd_scratch == 0 && zstd_chunk.is_some_and(|n| n < 40_000) {
                continue;
            }
            let gpu = GpuOptions { zstd_scratch: Some(zstd_scratch), ..Default::default() };
            rig.compare_container(&container, &gpu, &format!("frames {zstd_chunk:?} in {zstd_scratch}"));
            sizes.push(GpuDecoder::new(&rig.device, &container, &[], &gpu).unwrap().device_bytes());
        }
        assert!(sizes.is_sorted() && sizes[0] < sizes[sizes.len() - 1], "device memory {sizes:?}");
    }
}

#[test]
fn filters_are_undone_in_every_batch() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    for (rows, cols, zstd_chunk) in [(64, 192, 1920), (200, 640, 6400), (300, 250, 1000), (100, 1000, 100_000)] {
        let options = EncodeOptions {
            scheme: Scheme::Raw,
            coder: Coder::Zstd,
            layout: Some(Layout::Byte),
            zstd_chunk: Some(zstd_chunk),
            ..Default::default()
        };
        let container = data::encode(&data::features(rows, cols, &mut rig.rng), &options);
        let filters: Vec<String> =
            container.infos().unwrap().into_iter().map(|t| t.planes[0].filter.to_string()).collect();
        assert!(["left", "up"].iter().any(|f| filters.iter().any(|x| x == f)), "{filters:?}");
        for zstd_scratch in BUDGETS {
            let gpu = GpuOptions { zstd_scratch: Some(zstd_scratch), ..Default::default() };
            rig.compare_container(&container, &gpu, &format!("{rows} x {cols} in frames of {zstd_chunk}"));
        }
    }
}

/// More tensors than one launch can describe, with frames of different lengths.
#[test]
fn frames_of_many_tensors_share_batches() {
    let Some(mut rig) = Rig::with_nvcomp() else { return };
    let mut source = MemorySource::new();
    for i in 0..120 {
        let shape = [20 + rig.rng.below(60), 100 + rig.rng.below(300)];
        data::push(&mut source, &format!("w{i}"), Dtype::BF16, &shape, &mut rig.rng);
    }
    data::push(&mut source, "large", Dtype::BF16, &[4096, 512], &mut rig.rng);
    let options = EncodeOptions { coder: Coder::Zstd, layout: Some(Layout::Byte), ..Default::default() };
    let container = data::encode(&source, &options);
    let infos = container.infos().unwrap();
    for zstd_scratch in &BUDGETS[1..] {
        let gpu = GpuOptions { zstd_scratch: Some(*zstd_scratch), ..Default::default() };
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &gpu).unwrap();
        let mut wants: Vec<Want> = infos
            .iter()
            .map(|t| {
                let all = dtypes(t);
                Want::whole(&container, t, all[rig.rng.below(all.len())], &mut rig.rng)
            })
            .collect();
        shuffle(&mut rig.rng, &mut wants);
        rig.compare(&decoder, &wants, &format!("many in {zstd_scratch}"));
    }
}
