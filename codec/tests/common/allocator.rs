//! An allocator that refuses what a small file can never justify.
//!
//! A count in a hostile index must not become gigabytes of memory. A test binary that installs [`Limited`] finds out:
//! fallible requests become the library's out-of-memory error and are remembered, infallible ones abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes of one request. Test files have at most some 100 KiB, and nothing in them decodes to more than 1 MiB.
pub const LIMIT: usize = 64 << 20;

thread_local! {
    // By thread, since tests run side by side. Without a destructor, so that the allocator may use it at any time.
    static LARGEST_REFUSED: Cell<usize> = const { Cell::new(0) };
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
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Fails where this thread asked for too much since the last call. (What a worker is refused shows as an error of a kind
/// that tests do not expect.)
pub fn assert_modest(what: &dyn std::fmt::Display) {
    let n = LARGEST_REFUSED.replace(0);
    assert!(n == 0, "{what}: {n} bytes were asked for at once");
}
