//! Rows of tensors.

use std::ops::Range;

use wcodec::gpu::{DecodeItem, GpuDecoder, GpuOptions};
use wcodec::{Container, Dtype, EncodeOptions, MemorySource, TensorInfo};

use crate::common::Rng;
use crate::data::{self, GRANULARITIES, KINDS};
use crate::rig::{Outputs, Rig, Want, dtypes, expected};

/// Matrices, and rows of each; without a matrix view, the first dimension.
fn rows(container: &Container, info: &TensorInfo) -> (usize, usize) {
    match container.reader().tensor(&info.name).unwrap().matrix {
        Some(m) => (m.count, m.rows),
        None => (1, info.shape.first().copied().unwrap_or(1)),
    }
}

/// Places where a range of rows may begin or end: every 16 rows of a matrix, and its end.
fn edges((count, rows): (usize, usize)) -> Vec<usize> {
    let mut edges: Vec<usize> = (0..count).flat_map(|m| (0..rows).step_by(16).map(move |r| m * rows + r)).collect();
    edges.push(count * rows);
    edges
}

/// `n` slices of a tensor, possibly including whole and empty ones.
pub fn some(container: &Container, info: &TensorInfo, n: usize, rng: &mut Rng) -> Vec<Want> {
    let edges = edges(rows(container, info));
    let all = dtypes(info);
    (0..n)
        .map(|_| {
            let (a, b) = (rng.below(edges.len()), rng.below(edges.len()));
            let rows = edges[a.min(b)]..edges[a.max(b)];
            slice(container, info, all[rng.below(all.len())], rows)
        })
        .collect()
}

fn slice(container: &Container, info: &TensorInfo, dtype: Dtype, some: Range<usize>) -> Want {
    let whole = expected(container, info, dtype, true).unwrap();
    let (count, rows) = rows(container, info);
    let row = whole.len() / (count * rows).max(1);
    let bytes = whole[some.start * row..some.end * row].to_vec();
    Want { name: info.name.clone(), dtype, rows: Some(some), bytes }
}

#[test]
fn slices_are_parts_of_the_whole() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        let mut source = data::shapes(&mut rig.rng);
        data::push(&mut source, "deep", Dtype::F32, &[9, 40, 130], &mut rig.rng);
        let mut all = vec![data::with_columns(&source, coder, layout, false, &mut rig.rng)];
        all.extend(GRANULARITIES.map(|granularity| data::options(coder, layout, granularity, &mut rig.rng)));
        for options in all {
            let container = data::encode(&source, &options);
            let infos = rig.decodable(&container);
            let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
            let decoder = GpuDecoder::new(&rig.device, &container, &names, &GpuOptions::default()).unwrap();
            let wants: Vec<Want> = infos.iter().flat_map(|info| some(&container, info, 4, &mut rig.rng)).collect();
            rig.compare(&decoder, &wants, &format!("rows of {coder} {layout} {:?}", options.scheme));
        }
    }
}

/// Filters cross chunk borders; slices begin where filters restart.
#[test]
fn slices_of_filtered_planes() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        for zstd_chunk in [1920, 640, 1 << 16] {
            let options = data::options(coder, layout, GRANULARITIES[0], &mut rig.rng);
            let options = EncodeOptions { scheme: wcodec::Scheme::Raw, zstd_chunk: Some(zstd_chunk), ..options };
            let container = data::encode(&data::features(200, 64 * 5, &mut rig.rng), &options);
            let infos = rig.decodable(&container);
            let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
            if names.is_empty() {
                continue;
            }
            let decoder = GpuDecoder::new(&rig.device, &container, &names, &GpuOptions::default()).unwrap();
            let wants: Vec<Want> = infos.iter().flat_map(|info| some(&container, info, 6, &mut rig.rng)).collect();
            rig.compare(&decoder, &wants, &format!("rows of {coder} {layout} features"));
        }
    }
}

/// A tensor that is decoded piece by piece, as if its parts went to several places.
#[test]
fn all_slices_of_a_tensor_make_the_whole() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        let mut source = MemorySource::new();
        data::push(&mut source, "w", Dtype::BF16, &[3, 115, 384], &mut rig.rng);
        let container = data::encode(&source, &data::options(coder, layout, GRANULARITIES[0], &mut rig.rng));
        let Some(info) = rig.decodable(&container).pop() else { continue };
        let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
        for dtype in dtypes(&info) {
            let wants: Vec<Want> = edges(rows(&container, &info))
                .windows(2)
                .map(|w| slice(&container, &info, dtype, w[0]..w[1]))
                .collect();
            assert_eq!(wants.len(), 24);
            rig.compare(&decoder, &wants, &format!("all rows of {coder} {layout}"));
        }
    }
}

/// Ranges of one tensor in any order, some more than once, are written one after the other.
#[test]
fn runs_of_rows_lie_one_behind_the_other() {
    let Some(mut rig) = Rig::new() else { return };
    for (coder, layout) in KINDS {
        let mut source = data::shapes(&mut rig.rng);
        data::push(&mut source, "deep", Dtype::F32, &[9, 40, 130], &mut rig.rng);
        let container = data::encode(&source, &data::options(coder, layout, GRANULARITIES[0], &mut rig.rng));
        let infos = rig.decodable(&container);
        let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
        let decoder = GpuDecoder::new(&rig.device, &container, &names, &GpuOptions::default()).unwrap();
        for info in &infos {
            let dtype = dtypes(info)[0];
            // More than fit a launch.
            let wants: Vec<Want> =
                some(&container, info, 60, &mut rig.rng).into_iter().filter(|w| w.dtype == dtype).collect();
            let runs: Vec<Range<usize>> = wants.iter().map(|w| w.rows.clone().unwrap()).collect();
            let bytes: Vec<u8> = wants.iter().flat_map(|w| w.bytes.clone()).collect();
            let want = [Want { name: info.name.clone(), dtype, rows: None, bytes }];
            let what = format!("{} runs of {}, {coder} {layout}", runs.len(), info.name);
            let mut outputs = Outputs::new(&mut rig, &want);
            outputs.poison(&mut rig.rng, &rig.stream);
            let item = outputs.items(&want).remove(0);
            // SAFETY: the output outlives the work, which `check` waits for, and has room for all rows.
            unsafe { decoder.decode_runs(&item, &runs, &rig.stream) }.unwrap_or_else(|e| panic!("{what}: {e}"));
            decoder.check(&rig.stream).unwrap();
            outputs.assert_equal(&want, &rig.stream, &what);
        }
        let item = DecodeItem { name: names[0].clone(), out: 0, dtype: Dtype::F32, rows: None };
        // SAFETY: nothing is written.
        let wrong = unsafe { decoder.decode_runs(&item, std::slice::from_ref(&(0..usize::MAX)), &rig.stream) };
        assert_eq!(wrong.expect_err("there are no such rows").kind(), wcodec::ErrorKind::Input);
    }
}
