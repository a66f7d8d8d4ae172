//! Lookups of rows whose indices are on the device.

use wcodec::gpu::{DeviceBuffer, GpuOptions, Residency, RowIds, TensorDecoder};
use wcodec::{Coder, Container, Dtype, ErrorKind};

use crate::common::Rng;
use crate::data::{self, GRANULARITIES, KINDS};
use crate::lossless;
use crate::residencies::{RESIDENCIES, saved};
use crate::rig::{Outputs, Rig, Want, dtypes, expected};

/// Row indices as bytes, some of them out of range; and the expected rows.
fn some_ids(rng: &mut Rng, whole: &[u8], rows: usize, dtype: Dtype, wide: bool) -> (Vec<u8>, Vec<u8>) {
    let row = whole.len() / rows;
    let nan = match dtype {
        Dtype::F16 => 0x7E00u16.to_le_bytes().to_vec(),
        Dtype::BF16 => 0x7FC0u16.to_le_bytes().to_vec(),
        _ => 0x7FC0_0000u32.to_le_bytes().to_vec(),
    };
    let (mut ids, mut found) = (Vec::new(), Vec::new());
    for _ in 0..1 + rng.below(200) {
        let id = match rng.below(12) {
            0 => -1,
            1 => rows as i64,
            2 => i64::from(i32::MIN),
            _ => rng.below(rows) as i64,
        };
        if wide {
            ids.extend(id.to_le_bytes());
        } else {
            ids.extend((id as i32).to_le_bytes());
        }
        match usize::try_from(id).ok().filter(|&id| id < rows) {
            Some(id) => found.extend(&whole[id * row..(id + 1) * row]),
            None => found.extend(nan.repeat(row / nan.len())),
        }
    }
    (ids, found)
}

/// Looks up rows of every tensor that kernels support, from each residency; returns the number of lookups.
fn compare(rig: &mut Rig, container: &Container, what: &str) -> usize {
    let infos = rig.decodable(container);
    let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
    let mut tensors = 0;
    for residency in RESIDENCIES {
        let ring = [0, 128 << 20][rig.rng.below(2)];
        let options = GpuOptions { ring, ..Default::default() };
        let decoder = TensorDecoder::new(&rig.device, container, &names, &|_| residency, &options).unwrap();
        for info in &infos {
            if let Some(why) = decoder.can_look_up(&info.name).unwrap() {
                let refused = decoder.prepare_lookup(&info.name, dtypes(info)[0]).unwrap_err();
                assert!(refused.kind() == ErrorKind::Input && refused.to_string().contains(&why), "{refused}");
                continue;
            }
            tensors += 1;
            for dtype in dtypes(info).into_iter().filter(|d| matches!(d, Dtype::F32 | Dtype::F16 | Dtype::BF16)) {
                let whole = expected(container, info, dtype, true).unwrap();
                let lookup = decoder.prepare_lookup(&info.name, dtype).unwrap();
                assert_eq!(lookup.waits(), residency == Residency::Disk);
                for wide in [true, false] {
                    let (numbers, bytes) = some_ids(&mut rig.rng, &whole, info.shape[0], dtype, wide);
                    let ids = DeviceBuffer::new(&rig.device, numbers.len()).unwrap();
                    ids.upload(0, &numbers, &rig.stream).unwrap();
                    let count = numbers.len() / if wide { 8 } else { 4 };
                    let want = [Want { name: info.name.clone(), dtype, rows: None, bytes }];
                    let mut outputs = Outputs::new(rig, &want);
                    outputs.poison(&mut rig.rng, &rig.stream);
                    let out = outputs.items(&want).remove(0).out;
                    let what = format!("{count} rows of {} as {dtype}, {residency:?}, {what}", info.name);
                    // SAFETY: numbers and output outlive the work, which `check` waits for; the output has room for all rows.
                    unsafe { lookup.look_up(RowIds { ptr: ids.ptr(), count, wide }, out, &rig.stream) }
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                    decoder.check(&rig.stream).unwrap();
                    outputs.assert_equal(&want, &rig.stream, &what);
                }
            }
        }
    }
    tensors
}

#[test]
fn rows_are_those_of_the_whole() {
    let Some(mut rig) = Rig::new() else { return };
    let mut tensors = 0;
    for (coder, layout) in KINDS {
        for granularity in GRANULARITIES {
            let source = data::shapes(&mut rig.rng);
            let (_dir, container) = saved(&source, &data::options(coder, layout, granularity, &mut rig.rng));
            tensors += compare(&mut rig, &container, &format!("{coder} {layout} {granularity}"));
        }
    }
    for (coder, layout) in KINDS {
        let source = data::shapes(&mut rig.rng);
        let options = data::with_columns(&source, coder, layout, true, &mut rig.rng);
        let (_dir, container) = saved(&source, &options);
        tensors += compare(&mut rig, &container, &format!("columns of {coder} {layout}"));
    }
    for coder in [Coder::Rans, Coder::Huffman] {
        let source = lossless::source(&mut rig.rng);
        let (_dir, container) = saved(&source, &lossless::options(coder, &mut rig.rng));
        tensors += compare(&mut rig, &container, &format!("{coder} without loss"));
    }
    assert!(tensors > 90, "{tensors}");
}
