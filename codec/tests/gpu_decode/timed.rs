//! The decoder that programs time.

use wcodec::gpu::{GpuOptions, TimedDecoder};
use wcodec::{Coder, Dtype, ErrorKind, Granularity, Layout, MemorySource};

use crate::data;
use crate::rig::Rig;

#[test]
fn every_tensor_and_the_copies_are_timed() {
    let Some(mut rig) = Rig::new() else { return };
    let mut kinds = vec![(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Pair), (Coder::Raw, Layout::Byte)];
    if rig.has_nvcomp() {
        kinds.push((Coder::Zstd, Layout::Byte));
    }
    for (coder, layout) in kinds {
        let mut source: MemorySource<'_> = data::shapes(&mut rig.rng);
        // More than are decoded without waiting in between.
        for i in 0..150 {
            data::push(&mut source, &format!("more{i}"), Dtype::BF16, &[32, 128], &mut rig.rng);
        }
        let container = data::encode(&source, &data::options(coder, layout, Granularity::Row, &mut rig.rng));
        let mut decoder = TimedDecoder::new(&rig.device, &container, &[], Dtype::BF16, &GpuOptions::default()).unwrap();
        let count = decoder.names().count();
        assert_eq!(count, container.names().len());
        let mut ms = Vec::new();
        for _ in 0..3 {
            ms.clear();
            decoder.decode(0..count, &mut ms).unwrap();
            assert!(ms.len() == count && ms.iter().all(|&t| t.is_finite() && t >= 0.0) && ms.iter().sum::<f64>() > 0.0);
            let (bytes, time) = decoder.copy().unwrap();
            assert!(bytes == decoder.stored_bytes() && time > 0.0);
        }
        ms.clear();
        decoder.decode(5..7, &mut ms).unwrap();
        assert_eq!(ms.len(), 2);
        let biggest = (0..count).map(|i| decoder.output_bytes(i)).max().unwrap();
        assert!(decoder.device_bytes() as u64 >= biggest as u64 + decoder.stored_bytes() / 2);
        let e = decoder.decode(count..count + 1, &mut ms).unwrap_err();
        assert_eq!((e.kind(), ms.len(), decoder.output_bytes(count)), (ErrorKind::Input, 2, 0));
    }
}
