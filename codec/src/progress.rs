//! How long work reports on itself.

use crate::error::Result;

/// How far a long operation is.
#[derive(Clone, Copy, Debug)]
pub struct ProgressEvent<'a> {
    /// The tensor at work.
    pub tensor: &'a str,
    /// Bytes done, of the uncompressed tensors.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Told of progress, on the calling thread; its error, such as [`Error::cancelled`](crate::Error::cancelled), ends the
/// operation.
pub type Progress<'a> = dyn FnMut(&ProgressEvent<'_>) -> Result<()> + 'a;
