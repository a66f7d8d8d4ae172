//! Allocators that reveal how a hostile file affects memory: one refuses requests that a small file can never justify,
//! one counts.
//!
//! A count in a hostile index must not become gigabytes of memory. A test binary that installs [`Limited`] detects it:
//! fallible requests become the library's out-of-memory error and are remembered, infallible ones abort.

// Every test binary uses a part of it. It is not in `common`, which crates without unsafe code also use.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest request, bytes. Test files have at most some 100 KiB, and nothing in them decodes to more than 1 MiB.
pub const LIMIT: usize = 64 << 20;

thread_local! {
    // Per thread, since tests run in parallel. Without a destructor, so that the allocator may use it at any time.
    static LARGEST_REFUSED: Cell<usize> = const { Cell::new(0) };
    // For this thread alone: bytes that another thread frees stay counted.
    static OWN: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The peak of this thread's bytes since the last call, minus those it held then.
pub fn held() -> usize {
    OWN.with(|own| {
        let (_, most) = own.get();
        own.set((0, 0));
        most.unsigned_abs()
    })
}

fn own(bytes: isize) {
    OWN.with(|own| {
        let (now, most) = own.get();
        own.set((now + bytes, most.max(now + bytes)));
    });
}

/// The system's allocator up to [`LIMIT`].
pub struct Limited;

// SAFETY: requests go to the system's allocator unchanged, or are refused with a null pointer, which is always allowed.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT {
            LARGEST_REFUSED.with(|n| n.set(n.get().max(layout.size())));
            return std::ptr::null_mut();
        }
        own(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        own(-(layout.size() as isize));
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Fails if this thread asked for too much since the last call. (A refusal on a worker thread shows as an error of a
/// kind that tests do not expect.)
pub fn assert_modest(what: &dyn std::fmt::Display) {
    let n = LARGEST_REFUSED.replace(0);
    assert!(n == 0, "{what}: {n} bytes were asked for at once");
}

/// Counts the bytes held by all threads, because worker threads decode. For test binaries that install it; their tests
/// take turns.
pub struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

fn grow(bytes: usize) {
    PEAK.fetch_max(HELD.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: requests go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    // Not through `alloc`, which would have to zero memory that is never used.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large blocks are moved by remapping pages, not copied: they never exist twice.
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        grow(size);
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Every test of a binary with [`Counting`] begins with this and keeps the guard, so that only one runs at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of `work`, and the peak of the bytes that it held, beyond those held before.
pub fn peak_of<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed) - before)
}
