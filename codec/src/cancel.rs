//! Cancellation of running work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Stops an operation from another thread. Clones stop the same operation.
///
/// Operations check it between pieces of a tensor, so that it takes effect within a fraction of a second, and then end
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
pub struct Cancel(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    stopped: AtomicBool,
    /// The operation that this is a part of.
    operation: Option<Cancel>,
}

impl Cancel {
    /// A token that has not been cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token for a part of the operation: it stops with the operation, and can be cancelled alone.
    pub(crate) fn part(&self) -> Self {
        Self(Arc::new(Flag { stopped: AtomicBool::new(false), operation: Some(self.clone()) }))
    }

    /// Asks the operation to stop. It cannot be undone.
    pub fn cancel(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the operation has been cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed) || self.0.operation.as_ref().is_some_and(Self::is_cancelled)
    }

    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once the operation has been cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::cancelled()) } else { Ok(()) }
    }
}
