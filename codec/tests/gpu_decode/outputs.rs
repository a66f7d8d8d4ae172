//! Every coder, layout, granularity, shape and kind of output.

use wcodec::gpu::{GpuDecoder, GpuOptions};
use wcodec::{Coder, Dtype, EncodeOptions, Granularity, MemorySource, Scheme};

use crate::data::{self, GRANULARITIES, KINDS};
use crate::rig::{Rig, Want, dtypes, shuffle};

/// All shapes with every granularity.
fn shapes(coder: Coder) {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS.into_iter().filter(|k| k.0 == coder) {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            return;
        }
        for granularity in GRANULARITIES {
            let source = data::shapes(&mut rig.rng);
            let options = data::options(coder, layout, granularity, &mut rig.rng);
            let options = EncodeOptions { transpose: vec!["t.*".to_owned()], ..options };
            let container = data::encode(&source, &options);
            let what = format!("{coder} {layout} {granularity} tile {:?} bits {:?}", options.tile, options.table_bits);
            let infos = container.infos().unwrap();
            let coded = infos.iter().filter(|t| t.coder() == coder.name() && t.makes_symbols).count();
            // Small tensors may be smaller raw, which depends on the random tile, table and scales.
            assert!(coded >= 5, "{what}: {coded} tensors are coded");
            assert!(
                infos.iter().any(|t| t.row_axis == 1 && t.coder() == coder.name()),
                "{what}: nothing is transposed"
            );
            let gpu = GpuOptions { overlap: rig.rng.below(2) == 0, ..Default::default() };
            let n = rig.compare_container(&container, &gpu, &what);
            assert!(n > infos.len(), "{what}: {n} outputs");
        }
    }
}

#[test]
fn rans_equals_the_oracle() {
    shapes(Coder::Rans);
}

#[test]
fn huffman_equals_the_oracle() {
    shapes(Coder::Huffman);
}

#[test]
fn zstd_equals_the_oracle() {
    shapes(Coder::Zstd);
}

#[test]
fn raw_equals_the_oracle() {
    shapes(Coder::Raw);
}

/// Scheme `rate` with factors of columns.
#[test]
fn factors_of_columns_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        for _ in 0..4 {
            let source = data::shapes(&mut rig.rng);
            let options = data::with_columns(&source, coder, layout, true, &mut rig.rng);
            let container = data::encode(&source, &options);
            let what = format!("columns of {coder} {layout} {:?} step {:?}", options.scheme, options.step);
            let infos = container.infos().unwrap();
            assert!(infos.iter().filter(|t| t.columns && t.coder() == coder.name()).count() >= 5, "{what}");
            let n = rig.compare_container(&container, &GpuOptions::default(), &what);
            assert!(n > infos.len(), "{what}: {n} outputs");
        }
    }
}

#[test]
fn every_feature_of_the_format_equals_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        for (rows, cols) in [(48, 192), (33, 250), (200, 640)] {
            let options = data::options(coder, layout, Granularity::Row, &mut rig.rng);
            let options = EncodeOptions { scheme: Scheme::Raw, tile: Some(64), table_bits: Some(12), ..options };
            let source = data::features(rows, cols, &mut rig.rng);
            let what = format!("features of {coder} {layout} {rows} x {cols}");
            assert_eq!(rig.compare_container(&data::encode(&source, &options), &GpuOptions::default(), &what), 9);
        }
    }
}

#[test]
fn an_embedding_equals_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let mut source = MemorySource::new();
        data::push(&mut source, "embedding", Dtype::BF16, &[32_000, 2048], &mut rig.rng);
        let container = data::encode(&source, &EncodeOptions { coder, layout: Some(layout), ..Default::default() });
        let info = container.info("embedding").unwrap();
        assert_eq!(info.coder(), coder.name());
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        for dtype in [Dtype::I8, Dtype::BF16] {
            let wants = [Want::whole(&container, &info, dtype, &mut rig.rng)];
            rig.compare(&decoder, &wants, &format!("embedding of {coder} {layout}"));
        }
    }
}

#[test]
fn hundreds_of_tensors_in_one_call() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        if coder == Coder::Zstd && !rig.has_nvcomp() {
            continue;
        }
        let mut source = MemorySource::new();
        for i in 0..300 {
            let shape = [1 + rig.rng.below(70), 1 + rig.rng.below(500)];
            data::push(&mut source, &format!("w{i}"), Dtype::BF16, &shape, &mut rig.rng);
        }
        // Some tensors that are copied.
        for i in 0..40 {
            let shape = [1 + rig.rng.below(5000)];
            data::push(&mut source, &format!("norm{i}"), Dtype::F32, &shape, &mut rig.rng);
        }
        let granularity = GRANULARITIES[rig.rng.below(4)];
        let container = data::encode(&source, &data::options(coder, layout, granularity, &mut rig.rng));
        let infos = container.infos().unwrap();
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        for round in 0..3 {
            // One dtype per output, the same for all in the last round; some tensors twice.
            let mut wants: Vec<Want> = Vec::new();
            for info in infos.iter().chain(&infos[..50]) {
                let all = dtypes(info);
                let dtype = if round == 2 { all[2 % all.len()] } else { all[rig.rng.below(all.len())] };
                wants.push(Want::whole(&container, info, dtype, &mut rig.rng));
            }
            shuffle(&mut rig.rng, &mut wants);
            rig.compare(&decoder, &wants, &format!("{coder} {layout}, {} tensors", wants.len()));
        }
    }
}
