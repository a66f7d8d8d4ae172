//! Stopping work that is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Stops an operation from another thread. Clones stop the same one.
///
/// Operations that take one ask it between pieces of a tensor, so that it takes effect within a fraction of a second, and then end
/// with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Nothing is left behind.
///
/// ```
/// use wcodec::{Cancel, ErrorKind};
/// let cancel = Cancel::new();
/// let other = cancel.clone();
/// std::thread::spawn(move || other.cancel()).join().unwrap();
/// assert_eq!(cancel.check().unwrap_err().kind(), ErrorKind::Cancelled);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// One that nobody has used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the operation to stop. It cannot be taken back.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once somebody has asked.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::cancelled()) } else { Ok(()) }
    }
}
