//! Tensors in the memory of GPUs, as sources of what is encoded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use wcodec::gpu::{Device, Fetcher};
use wcodec::{AlignedBytes, Cancel, Pool, Result, SourceTensor};

use super::crate_stream;

/// The place of a tensor: the number of its GPU, the address, the bytes, torch's current stream there, and what keeps it alive.
#[derive(FromPyObject)]
pub struct OnDevice(usize, u64, usize, usize, #[allow(dead_code, reason = "held until it was copied")] Py<PyAny>);

/// Copiers of tensors from GPUs, one made for each GPU when its first tensor comes.
#[derive(Default)]
pub struct Fetchers(Mutex<HashMap<usize, Option<Fetcher>>>);

impl Fetchers {
    /// The bytes of a tensor, one of `all`; none where this GPU, or its driver, is one that only torch can use.
    pub fn fetch(
        &self,
        place: &OnDevice,
        all: &[SourceTensor],
        pool: &Pool,
        cancel: &Cancel,
    ) -> Result<Option<AlignedBytes>> {
        let &OnDevice(ordinal, address, length, stream, _) = place;
        let mut fetchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fetcher = fetchers.entry(ordinal).or_insert_with(|| {
            let bytes = |t: &SourceTensor| t.shape.iter().fold(t.dtype.size(), |n, &d| n.saturating_mul(d));
            let largest = all.iter().map(bytes).max().unwrap_or(0);
            Device::new(ordinal).and_then(|device| Fetcher::new(&device, largest)).ok()
        });
        let Some(fetcher) = fetcher else { return Ok(None) };
        let stream = crate_stream(fetcher.device(), stream);
        let mut out = AlignedBytes::zeroed(length)?;
        // SAFETY: The Python half hands over a contiguous tensor of so many bytes, which the caller holds, and the stream that
        // torch's work on it is in.
        unsafe { fetcher.fetch(address, &mut out, &stream, pool, cancel)? };
        Ok(Some(out))
    }
}
