//! Limits for files that are not trusted.
//!
//! A file may legitimately take more memory than it has bytes: a plane of zeros, an index of a million tensors. Only
//! its owner can say whether that is intended or an attack, by one option when it is opened.

use crate::cancel::Cancel;
use crate::error::Result;

/// The largest index that is read from an untrusted file, bytes.
pub(crate) const INDEX: u64 = 256 << 20;
/// The most decoded bytes per stored byte, if a tensor is decoded as a whole...
const EXPANSION: u64 = 1024;
/// ...and has more than this many.
const SMALL: u64 = 64 << 20;

/// Advice on a refused file.
pub(crate) const AS_TRUSTED: &str = "if you know where it comes from, open it as trusted: trusted=True, or --trust";
/// Advice on a refused tensor that could be decoded piece by piece instead.
pub(crate) const OR_TO_A_FILE: &str =
    "if you know where it comes from, open it as trusted: trusted=True, or --trust; or decode it to a file";

/// Options for opening a container.
///
/// ```no_run
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::{Container, OpenOptions};
/// let options = OpenOptions { trusted: true, ..Default::default() };
/// let container = Container::open_with("zeros.wcodec".as_ref(), &options)?;
/// assert!(container.trusted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Whether the file comes from a trusted source. If not, an index of more than 256 MiB is refused, and so is
    /// decoding into memory a tensor that is larger than 64 MiB and than 1,024 times its stored bytes. Hashes are
    /// compared in any case.
    pub trusted: bool,
    /// Stops the reading of the index, from another thread.
    pub cancel: Cancel,
}

impl OpenOptions {
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): an index of `length` bytes is too large for an untrusted file.
    pub(crate) fn check_index(&self, length: u64) -> Result<()> {
        if self.trusted || length <= INDEX {
            return Ok(());
        }
        let what = format!("an index of {length} bytes; of a file that is not trusted at most {INDEX} are read");
        Err(coded!(NOT_TRUSTED, what).offset(16).advice(AS_TRUSTED))
    }
}

/// # Errors
/// [`ErrorKind::Input`](crate::ErrorKind::Input), with this advice: decoding `stored` bytes of a file that is not
/// `trusted` would take `decoded` bytes of memory, too many.
pub(crate) fn check_decoded(trusted: bool, stored: u64, decoded: u64, advice: &'static str) -> Result<()> {
    if trusted || decoded <= SMALL || decoded <= stored.saturating_mul(EXPANSION) {
        return Ok(());
    }
    let what = format!("{stored} stored bytes become {decoded} in memory, and the file is not trusted");
    Err(coded!(NOT_TRUSTED, what).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact_and_trust_lifts_them() {
        let trusted = OpenOptions { trusted: true, ..Default::default() };
        for (length, fine) in [(0, true), (INDEX, true), (INDEX + 1, false), (u64::MAX, false)] {
            assert_eq!(OpenOptions::default().check_index(length).is_ok(), fine, "{length}");
            assert!(trusted.check_index(length).is_ok());
        }
        for (stored, decoded, fine) in [
            (0, SMALL, true),
            (0, SMALL + 1, false),
            (SMALL / 1024, SMALL + 1, false),
            (SMALL / 1024 + 1, SMALL + 1024, true),
            (1 << 20, 1 << 30, true),
            (1 << 20, (1 << 30) + 1, false),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(check_decoded(false, stored, decoded, AS_TRUSTED).is_ok(), fine, "{stored} {decoded}");
            assert!(check_decoded(true, stored, decoded, AS_TRUSTED).is_ok());
        }
    }
}
