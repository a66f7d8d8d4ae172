//! Invalid calls.

use wcodec::gpu::{DecodeItem, DeviceBuffer, GpuDecoder, GpuOptions};
use wcodec::{Container, Dtype, EncodeOptions, ErrorKind, MemorySource};

use crate::data;
use crate::rig::Rig;

fn container(rig: &mut Rig) -> Container {
    let mut source = MemorySource::new();
    data::push(&mut source, "w", Dtype::BF16, &[3, 40, 256], &mut rig.rng);
    data::push(&mut source, "t", Dtype::BF16, &[128, 48], &mut rig.rng);
    data::push(&mut source, "norm", Dtype::F32, &[64], &mut rig.rng);
    data::encode(&source, &EncodeOptions { transpose: vec!["t".to_owned()], ..Default::default() })
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let Some(mut rig) = Rig::new() else { return };
    let container = container(&mut rig);
    let decoder = GpuDecoder::new(&rig.device, &container, &[], &GpuOptions::default()).unwrap();
    let buffer = DeviceBuffer::new(&rig.device, 3 * 40 * 256 * 4).unwrap();
    let good = DecodeItem { name: "w".to_owned(), out: buffer.ptr(), dtype: Dtype::F16, rows: None };
    let mut wrong = vec![
        (DecodeItem { name: "nobody".to_owned(), ..good.clone() }, "'nobody'"),
        (DecodeItem { dtype: Dtype::U8, ..good.clone() }, "U8"),
        (DecodeItem { dtype: Dtype::F64, ..good.clone() }, "F64"),
        (DecodeItem { name: "norm".to_owned(), ..good.clone() }, "F16"),
        (DecodeItem { out: buffer.ptr() + 1, ..good.clone() }, "an output at"),
        (DecodeItem { out: buffer.ptr() + 2, dtype: Dtype::F32, ..good.clone() }, "an output at"),
    ];
    // Matrices of 40 rows: strips begin at 0, 16, 32, 40, 56 and so on.
    let ranges = [0..121, 5..16, 0..41, 16..48, 48..80, 120..121, usize::MAX - 1..usize::MAX];
    wrong.extend(ranges.map(|r| (DecodeItem { rows: Some(r), ..good.clone() }, "rows")));
    #[allow(clippy::reversed_empty_ranges)]
    wrong.push((DecodeItem { rows: Some(32..16), ..good.clone() }, "rows"));
    wrong.push((DecodeItem { name: "t".to_owned(), rows: Some(0..16), ..good.clone() }, "transposed"));
    for (item, words) in wrong {
        let e = decoder.prepare(std::slice::from_ref(&item)).expect_err("it is wrong");
        assert_eq!(e.kind(), ErrorKind::Input, "{item:?}: {e}");
        assert!(e.to_string().contains(words), "{item:?}: {e}");
        // A valid item beside it does not help.
        decoder.prepare(&[good.clone(), item]).expect_err("it is wrong");
    }
    assert!(decoder.output_bytes("w", Dtype::U8).is_err() && decoder.output_bytes("nobody", Dtype::I8).is_err());
    // Empty work is not an error.
    let nothing = [DecodeItem { rows: Some(16..16), ..good.clone() }, DecodeItem { rows: Some(120..120), ..good }];
    // SAFETY: nothing is written.
    unsafe {
        decoder.decode(&nothing, &rig.stream).unwrap();
        decoder.decode(&[], &rig.stream).unwrap();
    }
    decoder.check(&rig.stream).unwrap();
}

#[test]
fn only_what_is_named_is_there() {
    let Some(mut rig) = Rig::new() else { return };
    let container = container(&mut rig);
    let options = GpuOptions::default();
    let decoder =
        GpuDecoder::new(&rig.device, &container, &["norm".to_owned(), "w".to_owned(), "norm".to_owned()], &options)
            .unwrap();
    assert_eq!(decoder.names().collect::<Vec<_>>(), ["norm", "w"]);
    assert_eq!(decoder.output_bytes("w", Dtype::F32).unwrap(), 3 * 40 * 256 * 4);
    assert_eq!(decoder.output_bytes("w", Dtype::I8).unwrap(), 3 * 40 * 256);
    assert_eq!(decoder.output_bytes("norm", Dtype::F32).unwrap(), 256);
    assert!(decoder.output_bytes("t", Dtype::F32).is_err());
    assert_eq!(decoder.device(), &rig.device);
    let stored = container.info("w").unwrap().stored_bytes as usize;
    assert!((stored..stored + 100_000).contains(&decoder.device_bytes()), "{} bytes", decoder.device_bytes());
    let e = GpuDecoder::new(&rig.device, &container, &["nobody".to_owned()], &options).expect_err("it is not there");
    assert!(e.to_string().contains("nobody"), "{e}");
}
