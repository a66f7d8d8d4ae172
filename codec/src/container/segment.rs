//! Byte ranges that the index names.

use serde::{Deserialize, Serialize};

use super::hash::Hash;
use super::header::HEADER_BYTES;
use crate::error::{Error, Result};

/// Segments of this length or more start at multiples of [`PAGE`], so that they can be mapped or read unbuffered.
const LARGE: u64 = 1 << 20;
/// Alignment of large segments, bytes.
const PAGE: u64 = 4096;
/// Alignment of smaller segments and of the index, bytes.
pub(crate) const SMALL_ALIGN: u64 = 16;

/// A range of the file and the hash of its bytes; `[offset, length, hash]` in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, Hash)", into = "(u64, u64, Hash)")]
pub struct Segment {
    /// Offset from the start of the file, bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// XXH3-64 of its bytes.
    pub hash: Hash,
}

impl Segment {
    /// End offset from the start of the file, bytes.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// The error for stored bytes that do not have their hash.
    pub(crate) fn differs(&self) -> Error {
        coded!(SEGMENT_HASH, "the hash of a segment of {} bytes does not match", self.length)
            .offset(self.offset)
            .advice("restore the file, or encode the model again; other tensors are still readable")
    }
}

impl From<(u64, u64, Hash)> for Segment {
    fn from((offset, length, hash): (u64, u64, Hash)) -> Self {
        Self { offset, length, hash }
    }
}

impl From<Segment> for (u64, u64, Hash) {
    fn from(s: Segment) -> Self {
        (s.offset, s.length, s.hash)
    }
}

/// `n` rounded up to a multiple of `to`.
pub(crate) fn align_up(n: u64, to: u64) -> Option<u64> {
    n.checked_next_multiple_of(to)
}

/// The offset of a segment of `length` bytes that follows one ending at `end`.
pub(crate) fn place(end: u64, length: u64) -> Option<u64> {
    if length == 0 {
        return Some(0);
    }
    align_up(end, if length >= LARGE { PAGE } else { SMALL_ALIGN })
}

/// Checks that `segments` fill the file between header and index: nothing overlaps, nothing is left out.
///
/// # Errors
/// [`ErrorKind::Format`](crate::ErrorKind::Format) with the offset of the first segment that does not fit.
pub(crate) fn check_layout(mut segments: Vec<(u64, u64)>, index_offset: u64) -> Result<()> {
    segments.sort_unstable();
    let mut end = HEADER_BYTES as u64;
    for (offset, length) in segments {
        let next = offset.checked_add(length).filter(|&e| e <= index_offset);
        let (Some(want), Some(next)) = (place(end, length), next) else {
            return Err(coded!(BAD_SEGMENTS, "a segment of {length} bytes reaches beyond the index").offset(offset));
        };
        if offset != want {
            let what =
                if offset < want { "overlaps the one before it or lies askew" } else { "leaves a hole before it" };
            return Err(coded!(BAD_SEGMENTS, "a segment of {length} bytes {what}").offset(offset));
        }
        if length > 0 {
            end = next;
        }
    }
    if align_up(end, SMALL_ALIGN) != Some(index_offset) {
        return Err(coded!(BAD_SEGMENTS, "bytes between the last segment and the index belong to nothing").offset(end));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_without_holes_and_overlaps_pass() {
        assert!(check_layout(vec![], 64).is_ok());
        assert!(check_layout(vec![(80, 3), (64, 16), (0, 0), (0, 0)], 96).is_ok());
        assert!(check_layout(vec![(64, 1), (4096, LARGE)], 4096 + LARGE).is_ok());
        for bad in [
            vec![(64, 16)],
            vec![(64, 17), (80, 3)],
            vec![(64, 16), (64, 16), (80, 3)],
            vec![(48, 32), (80, 3)],
            vec![(64, 16), (81, 2)],
            vec![(64, 16), (80, 17)],
            vec![(64, 16), (80, u64::MAX)],
            vec![(u64::MAX, 16)],
            vec![(0, 3), (64, 16), (80, 3)],
        ] {
            assert!(check_layout(bad.clone(), 96).is_err(), "{bad:?}");
        }
        assert!(check_layout(vec![(64, 1), (80, LARGE)], 96 + LARGE).is_err());
        assert!(check_layout(vec![(64, u64::MAX - 100)], u64::MAX).is_err());
    }
}
