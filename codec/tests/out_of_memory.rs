//! If memory does not suffice, encoding ends with an error instead of ending the process.
//!
//! An allocator that refuses the n-th large request proves it, for every n: an infallible request would abort the test.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::samples;
use wcodec::{
    Coder, Dtype, EncodeOptions, ErrorKind, Granularity, MemorySource, Scheme, encode, encode_to_container, legacy,
};

/// The size from which on a request counts: smaller ones do not depend on tensors.
const LARGE: usize = 48 << 10;

/// The system's allocator, except that it refuses one large request.
struct Failing;

/// Large requests left until the one that is refused; nothing is counted at `usize::MAX`.
static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

fn refused(size: usize) -> bool {
    if size < LARGE {
        return false;
    }
    let count = |n: usize| (n != usize::MAX).then(|| n.wrapping_sub(1));
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(0)
}

// SAFETY: requests go to the system's allocator unchanged, or are refused with a null pointer, which is always allowed.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        if refused(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        if refused(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `ptr` came from the system's allocator with this layout.
        if refused(size) { std::ptr::null_mut() } else { unsafe { System.realloc(ptr, layout, size) } }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs `work` with each of its large requests refused in turn; returns their number.
fn refuse_each<T>(what: &str, work: impl Fn() -> wcodec::Result<T>) -> usize {
    for n in 0.. {
        LEFT.store(n, Ordering::Relaxed);
        let result = work();
        let left = LEFT.swap(usize::MAX, Ordering::Relaxed);
        match result {
            // The request to refuse never came: the one after zero is `usize::MAX`.
            Ok(_) if left != usize::MAX && left <= n => return n,
            Ok(_) => panic!("{what}: request {n} was refused, and nothing was said"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Input, "{what}, request {n}: {e}");
                assert!(e.to_string().contains("memory"), "{what}, request {n}: {e}");
            }
        }
    }
    unreachable!()
}

#[test]
fn every_large_request_may_be_refused() {
    let weights = samples::weights(150 * 2000, 1);
    let ramps: Vec<i8> = (0..150 * 2000).map(|i| (i % 2000 / 16) as i8).collect();
    let source = || {
        let mut s = MemorySource::new();
        let columns = samples::as_bytes(&weights);
        s.push("a".to_owned(), Dtype::BF16, vec![150, 2000], samples::as_bf16(&weights).into()).unwrap();
        s.push("t".to_owned(), Dtype::F32, vec![150, 2000], columns.into()).unwrap();
        // A filter pays there.
        s.push("ramps".to_owned(), Dtype::I8, vec![150, 2000], samples::as_bytes(&ramps).into()).unwrap();
        s.push("norm".to_owned(), Dtype::F32, vec![20_000], samples::as_bytes(&weights[..20_000]).into()).unwrap();
        s
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.wcodec");
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw] {
        for granularity in [Granularity::Row, Granularity::Block(16), Granularity::Tensor] {
            let options = EncodeOptions {
                coder,
                scheme: Scheme::Int8(granularity),
                transpose: vec!["t".to_owned()],
                threads: Some(2),
                overwrite: true,
                ..Default::default()
            };
            let source = source();
            let what = format!("{coder} {granularity}");
            let n = refuse_each(&what, || encode_to_container(&source, &options, &mut |_| Ok(())));
            assert!(n >= 4, "{what}: {n} large requests");
            refuse_each(&what, || encode(&source, &path, &options, &mut |_| Ok(())));
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let n = refuse_each("legacy", || legacy::encode(&ramps, 150, 2000, 3));
    assert!(n >= 1, "{n}");
}
