//! The results of nvCOMP's functions.

use super::family::Version;
use super::sys::Status;
use crate::error::Result;

/// The meaning of a status of nvCOMP, whether a call returned it or it was written for a chunk.
pub fn status_name(status: i32) -> &'static str {
    match status {
        0 => "success",
        INVALID_VALUE => "invalid value",
        11 => "not supported",
        12 => "cannot decompress",
        13 => "bad checksum",
        14 => "cannot verify checksums",
        15 => "output buffer too small",
        16 => "wrong length of a header",
        17 => "wrong alignment",
        18 => "chunk too large",
        19 => "cannot compress",
        20 => "wrong length of the input",
        21 => "batch too large",
        22 => "too many parts of a chunk",
        23 => "too few parts of a chunk",
        24 => "wrong alignment of the output buffer",
        CUDA_ERROR => "CUDA error",
        10_000 => "internal error",
        _ => "unknown status",
    }
}

const INVALID_VALUE: i32 = 10;
const CUDA_ERROR: i32 = 1000;

/// Up to 5.0, failures of CUDA are reported as invalid values.
const CUDA_ERRORS_HAVE_A_CODE: Version = Version { major: 5, minor: 1, patch: 0 };

/// The status that `call` returned, as a result.
pub(super) fn check(call: &str, status: Status, version: Version) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let name = status_name(status);
    let cuda = status == CUDA_ERROR || status == INVALID_VALUE && version < CUDA_ERRORS_HAVE_A_CODE;
    let also = if cuda && status != CUDA_ERROR { ", which in this version may also be a CUDA error" } else { "" };
    Err(coded!(NVCOMP_FAILED, "{call} of nvCOMP {version} returned {status}, {name}{also}")
        .advice("NVCOMP_LOG_LEVEL=5 and NVCOMP_LOG_FILE=<path> in the environment make nvCOMP write down the reason"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn statuses_have_names() {
        let known = [0, 1000, 10_000].into_iter().chain(10..=24);
        assert!(known.clone().all(|s| status_name(s) != "unknown status"));
        let names: std::collections::HashSet<_> = known.clone().map(status_name).collect();
        assert_eq!(names.len(), known.count());
        assert!([-1, 1, 9, 25, 999, i32::MAX].into_iter().all(|s| status_name(s) == "unknown status"));
    }

    #[test]
    fn failures_are_errors_of_the_device() {
        let version = |major, minor| Version { major, minor, patch: 0 };
        assert!(check("f", 0, version(6, 0)).is_ok());
        let e = check("f", 10, version(5, 0)).expect_err("failed");
        assert_eq!(e.kind(), ErrorKind::Device);
        assert_eq!(
            e.message(),
            "f of nvCOMP 5.0.0 returned 10, invalid value, which in this version may also be a CUDA error"
        );
        let e = check("f", 10, version(5, 1)).expect_err("failed");
        assert_eq!(e.message(), "f of nvCOMP 5.1.0 returned 10, invalid value");
        let e = check("f", 1000, version(6, 0)).expect_err("failed");
        assert_eq!(e.message(), "f of nvCOMP 6.0.0 returned 1000, CUDA error");
        let e = check("f", 77, version(6, 0)).expect_err("failed");
        assert_eq!(e.message(), "f of nvCOMP 6.0.0 returned 77, unknown status");
    }
}
