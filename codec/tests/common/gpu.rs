//! The GPU for tests that need one.

use std::io::Write;
use std::sync::Once;

use wcodec::gpu::{Device, available};

/// The first GPU. If it cannot be used, prints the reason, once, and returns `None`: the test is skipped. With
/// WCODEC_REQUIRE_GPU=1 the test fails instead.
pub fn device() -> Option<Device> {
    let e = match available().and_then(|()| Device::new(0)) {
        Ok(device) => return Some(device),
        Err(e) => e,
    };
    assert!(std::env::var("WCODEC_REQUIRE_GPU").as_deref() != Ok("1"), "a GPU is required: {e}");
    static SAID: Once = Once::new();
    // Not through `eprintln`, which the test harness captures.
    SAID.call_once(|| drop(writeln!(std::io::stderr(), "GPU tests are skipped: {e}")));
    None
}
