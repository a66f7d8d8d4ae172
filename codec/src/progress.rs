//! Progress reports of long work.

use crate::error::Result;

/// The progress of a long operation.
#[derive(Clone, Copy, Debug)]
pub struct ProgressEvent<'a> {
    /// The current tensor.
    pub tensor: &'a str,
    /// Bytes done, counted in the uncompressed tensors.
    pub done: u64,
    /// Total bytes.
    pub total: u64,
}

/// Receives progress reports on the calling thread; its error, such as [`Error::cancelled`](crate::Error::cancelled),
/// ends the operation.
pub type Progress<'a> = dyn FnMut(&ProgressEvent<'_>) -> Result<()> + 'a;
