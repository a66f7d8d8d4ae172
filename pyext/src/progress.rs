//! Long native work: the interpreter is released, and each progress event gives Python its turn.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use wcodec::{Error, Progress, ProgressEvent, Result};

use crate::errors::to_py;

/// A Python exception that was raised inside a callback, kept until the native code has unwound.
///
/// The crate only sees [`Error::cancelled`]; the caller of the native function gets the exception itself.
#[derive(Clone, Default)]
pub struct Pending(Arc<Mutex<Option<PyErr>>>);

impl Pending {
    /// Runs `f` attached to the interpreter; an exception is kept, and native code told to stop.
    pub fn attached<T>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
        Python::attach(f).map_err(|e| {
            // The first exception is the cause, later ones its consequences.
            self.0.lock().unwrap_or_else(|p| p.into_inner()).get_or_insert(e);
            Error::cancelled()
        })
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).take()
    }
}

/// Runs `work` with the interpreter released. Each event checks for signals (so Ctrl-C works) and calls `callback`
/// with the tensor's name, the bytes done and the bytes in all.
pub fn run<T: Send>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    pending: &Pending,
    work: impl FnOnce(&mut Progress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let result = py.detach(|| {
        work(&mut |event: &ProgressEvent<'_>| {
            pending.attached(|py| {
                py.check_signals()?;
                match callback {
                    Some(f) => f.call1(py, (event.tensor, event.done, event.total)).map(drop),
                    None => Ok(()),
                }
            })
        })
    });
    // An exception wins over the result: a callback that raised at the very last event still raised.
    match pending.take() {
        Some(e) => Err(e),
        None => result.map_err(|e| to_py(py, &e)),
    }
}

/// Runs short native work with the interpreter released.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|e| to_py(py, &e))
}
