//! Tensors are encoded several at once: the result must not depend on that.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Rng, checked, samples};
use wcodec::{
    AlignedBytes, Cancel, Coder, Container, Dtype, EncodeOptions, Error, ErrorKind, Granularity, Layout, MemorySource,
    Pool, ProgressEvent, Scheme, Source, SourceBytes, SourceTensor, encode, encode_to_container, encode_to_vec,
};

/// Many matrices of three kinds, so that tables are shared and new ones appear; some that suit a filter; outliers, so
/// that a shift is given up; ties, twins, norms, and tensors that stay raw.
fn model() -> MemorySource<'static> {
    let mut source = MemorySource::new();
    let mut rng = Rng(1);
    for i in 0..40u64 {
        let (rows, cols) = (16 + rng.below(90), 64 + rng.below(300));
        let n = rows * cols;
        let values: Vec<f32> = match i % 5 {
            0 => samples::weights(n, i),
            1 => samples::weights(n, i).into_iter().map(|w| w * w * w).collect(),
            2 => (0..n).map(|j| (j % cols) as f32 + rng.bell()).collect(),
            3 => (0..n).map(|_| rng.bell()).collect(),
            _ => (0..n).map(|j| if j % 61 == 0 { 50.0 } else { rng.bell() }).collect(),
        };
        source.push(format!("w{i}"), Dtype::BF16, vec![rows, cols], samples::as_bf16(&values).into()).unwrap();
        if i % 7 == 3 {
            source.alias(format!("tied{i}"), format!("w{i}")).unwrap();
            source
                .push(format!("norm{i}"), Dtype::F32, vec![64], samples::as_bytes(&samples::weights(64, i)).into())
                .unwrap();
        }
    }
    let twin = samples::as_bf16(&samples::weights(512 * 256, 99));
    source.push("twin.a".to_owned(), Dtype::BF16, vec![512, 256], twin.clone().into()).unwrap();
    source.push("twin.b".to_owned(), Dtype::BF16, vec![512, 256], twin.into()).unwrap();
    source
}

#[test]
fn what_is_written_does_not_depend_on_threads() {
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        for layout in [Layout::Pair, Layout::Byte] {
            let encoded = |threads| {
                let scheme = Scheme::Int8(Granularity::Row);
                let options = EncodeOptions { coder, layout: Some(layout), scheme, threads, ..Default::default() };
                encode_to_vec(&model(), &options, &mut |_| Ok(())).unwrap().0
            };
            let one = encoded(Some(1));
            for threads in [Some(2), Some(7), None, None] {
                assert!(encoded(threads) == one, "{coder} {layout} {threads:?}");
            }
            let container = Container::from_bytes(one).unwrap();
            assert_eq!(container.aliases()["twin.b"], "twin.a");
            for name in container.names() {
                container.read(name, &checked(true)).unwrap();
            }
        }
    }
}

#[test]
fn a_container_in_memory_is_the_file() {
    let (container, report) = encode_to_container(&model(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let (bytes, other) = encode_to_vec(&model(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    assert_eq!((report.stored_bytes, other.stored_bytes), (bytes.len() as u64, bytes.len() as u64));
    let file = Container::from_bytes(bytes).unwrap();
    assert!(wcodec::compare(&container, &file).unwrap().same());
}

#[test]
fn tables_that_planes_share_are_written_once() {
    let (container, _) = encode_to_container(&model(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let index = container.reader().index();
    let mut used: Vec<usize> = index.tensors.iter().flat_map(|t| &t.planes).filter_map(|p| p.table).collect();
    let uses = used.len();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), index.tables.len(), "all are used");
    assert!(used.len() < uses, "{} tables for {uses} planes", used.len());
}

/// A source that fails, or misbehaves, when some of its tensors are read.
struct Odd<F> {
    inner: MemorySource<'static>,
    read: F,
}

impl<F: Fn(usize) -> wcodec::Result<Option<usize>> + Sync> Source for Odd<F> {
    fn tensors(&self) -> &[SourceTensor] {
        self.inner.tensors()
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> wcodec::Result<SourceBytes<'_>> {
        match (self.read)(index)? {
            None => self.inner.read_with(index, pool, cancel),
            Some(length) => Ok(SourceBytes::Owned(AlignedBytes::zeroed(length)?)),
        }
    }
}

#[test]
fn the_first_error_in_the_order_of_the_tensors_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.wcodec");
    let broken = |at: &[u64]| {
        let mut source = MemorySource::new();
        for i in 0..12u64 {
            // Large ones first, so that later ones finish before them.
            let rows = if i < 6 { 600 } else { 16 };
            let mut w = samples::weights(rows * 256, i);
            if at.contains(&i) {
                w[rows * 256 - 1] = f32::NAN;
            }
            source.push(format!("w{i}"), Dtype::F32, vec![rows, 256], samples::as_bytes(&w).into()).unwrap();
        }
        source
    };
    for threads in [Some(1), Some(4), None] {
        let options = EncodeOptions { threads, ..Default::default() };
        let refused = |source: &dyn Source| encode(source, &out, &options, &mut |_| Ok(())).unwrap_err();
        for _ in 0..5 {
            let e = refused(&broken(&[3, 7, 11]));
            assert_eq!((e.tensor_name(), e.kind()), (Some("w3"), ErrorKind::Input), "{e}");
            let lost = |at: usize| move |i: usize| if i == at { Err(Error::corrupt("gone")) } else { Ok(None) };
            let e = refused(&Odd { inner: broken(&[5, 9]), read: lost(4) });
            assert_eq!((e.tensor_name(), e.message()), (Some("w4"), "gone"));
            let e = refused(&Odd { inner: broken(&[2]), read: lost(4) });
            assert_eq!(e.tensor_name(), Some("w2"), "{e}");
            let e = refused(&Odd { inner: broken(&[]), read: |i| Ok((i == 8).then_some(5)) });
            assert!(e.tensor_name() == Some("w8") && e.to_string().contains("gives 5 bytes"), "{e}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn progress_grows_until_all_is_done() {
    let source = model();
    let total: u64 =
        source.tensors().iter().map(|t| t.shape.iter().product::<usize>() as u64 * t.dtype.size() as u64).sum();
    for threads in [Some(1), None] {
        let (mut last, mut names) = (0, Vec::new());
        let mut progress = |e: &ProgressEvent<'_>| {
            assert!(e.total == total && e.done >= last && e.done <= total, "{last} {e:?}");
            last = e.done;
            names.push(e.tensor.to_owned());
            Ok(())
        };
        let options = EncodeOptions { threads, ..Default::default() };
        encode_to_vec(&source, &options, &mut progress).unwrap();
        assert_eq!(last, total);
        assert!(names.iter().all(|n| n.is_empty() || source.tensors().iter().any(|t| t.name == *n)));
        assert!(names.len() >= source.tensors().len());
    }
}

#[test]
fn only_so_much_is_read_ahead() {
    // 48 tensors of 4 MiB; with one thread, 36 MiB may be in flight.
    let mut inner = MemorySource::new();
    for i in 0..48u64 {
        let w = samples::symbols(1 << 22, 30.0, i);
        inner.push(format!("w{i}"), Dtype::I8, vec![1024, 4096], samples::as_bytes(&w).into()).unwrap();
    }
    let (begun, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let written = Mutex::new(0usize);
    let read = |_: usize| {
        let begun = begun.fetch_add(1, Ordering::Relaxed) + 1;
        most.fetch_max(begun - *written.lock().unwrap(), Ordering::Relaxed);
        Ok(None)
    };
    let source = Odd { inner, read };
    let mut progress = |e: &ProgressEvent<'_>| {
        *written.lock().unwrap() = (e.done >> 22) as usize;
        Ok(())
    };
    let options = EncodeOptions { threads: Some(1), ..Default::default() };
    encode_to_vec(&source, &options, &mut progress).unwrap();
    let most = most.into_inner();
    assert!((2..=10).contains(&most), "{most} tensors at once");
}

#[test]
fn stopping_ends_large_tensors_soon() {
    let symbols = samples::symbols(24 << 20, 60.0, 3);
    for (coder, level, frame) in [(Coder::Zstd, 19, None), (Coder::Zstd, 19, Some(8 << 20)), (Coder::Rans, 3, None)] {
        let mut source = MemorySource::new();
        source.push("w".to_owned(), Dtype::I8, vec![24 << 10, 1024], samples::as_bytes(&symbols).into()).unwrap();
        let options = EncodeOptions { coder, zstd_level: level, zstd_chunk: frame, ..Default::default() };
        let cancel = options.cancel.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            cancel.cancel();
            std::time::Instant::now()
        });
        let result = encode_to_vec(&source, &options, &mut |_| Ok(()));
        let late = stopper.join().unwrap().elapsed();
        if coder == Coder::Zstd {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
        }
        // Half a second is promised; test machines may be busy.
        assert!(late < std::time::Duration::from_secs(3), "{late:?}");
    }
}

/// All shared threads wait for their own encodes; these must not wait for each other, which once deadlocked.
#[test]
fn threads_of_the_pool_may_encode_too() {
    let (done, all) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::new(None).unwrap();
        let wanted = encode_to_vec(&model(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap().0;
        let met = Mutex::new(Vec::new());
        let work = || {
            let (bytes, _) = encode_to_vec(&model(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
            let container = Container::from_bytes(bytes.clone()).unwrap();
            assert!(wcodec::verify(&container, Some(&model()), &checked(true), &mut |_| Ok(())).unwrap().ok());
            met.lock().unwrap().push(bytes);
        };
        pool.run(|| rayon::broadcast(|_| work())).unwrap();
        done.send((met.into_inner().unwrap(), wanted, pool.threads().unwrap())).unwrap();
    });
    let (met, wanted, threads) = all.recv_timeout(std::time::Duration::from_secs(120)).expect("nobody waits for ever");
    assert_eq!(met.len(), threads);
    assert!(met.iter().all(|bytes| *bytes == wanted));
}
