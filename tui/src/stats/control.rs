//! Progress and cancellation of long work.

use wcodec::{Cancel, Result};

/// The control of a long job.
pub struct Control<'a> {
    /// Stops it.
    pub cancel: &'a Cancel,
    tell: &'a mut dyn FnMut(f32),
    done: u64,
    total: u64,
}

impl<'a> Control<'a> {
    /// A job that stops when `cancel` is used, and gives `tell` the part of it that is done, from 0 to 1.
    pub fn new(cancel: &'a Cancel, tell: &'a mut dyn FnMut(f32)) -> Self {
        Self { cancel, tell, done: 0, total: 0 }
    }

    /// Says how much there is to do, in whatever unit.
    pub fn expect(&mut self, total: u64) {
        self.total = total;
    }

    /// So much more is done.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](wcodec::ErrorKind::Cancelled) if it is to stop.
    pub fn advance(&mut self, by: u64) -> Result<()> {
        self.cancel.check()?;
        self.done = self.done.saturating_add(by);
        let part = if self.total == 0 { 1.0 } else { self.done as f64 / self.total as f64 };
        (self.tell)(part.min(1.0) as f32);
        Ok(())
    }
}
