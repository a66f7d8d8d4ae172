//! Long native work runs on its own thread, while the calling thread waits, handles signals and runs Python callbacks.
//!
//! So Ctrl-C takes effect within a fraction of a second, whatever the work is doing, and callbacks run on the thread
//! that passed them, whose torch streams, modes and devices they may depend on.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use wcodec::{Cancel, Error, Progress, ProgressEvent, Result};

use crate::errors::to_py;

/// The interval at which signals are checked.
const POLL: Duration = Duration::from_millis(50);

/// A task for the calling thread.
type Task = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// The connection from native work to its Python caller.
#[derive(Clone)]
pub struct Link {
    /// `None` if the work runs on the calling thread.
    tasks: Option<mpsc::Sender<Task>>,
    raised: Raised,
    cancel: Cancel,
}

/// A Python exception raised during the work, kept until the native code has unwound: that only sees
/// [`Error::cancelled`], and the caller of the native function gets the exception itself.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn keep(&self, e: PyErr) {
        // The first exception is the cause, later ones are its consequences.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Link {
    /// The token that cancels the work.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Runs `f` on the calling thread and waits for its result; an exception is kept, and ends the work.
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static) -> Result<T> {
        let Some(tasks) = &self.tasks else { return self.attached(f) };
        let (answer, wait) = mpsc::sync_channel(1);
        let task = move |py: Python<'_>| {
            let value = f(py)?;
            answer.send(value).ok();
            Ok(())
        };
        tasks.send(Box::new(task)).map_err(|_| Error::cancelled())?;
        // Nothing is sent if the task raised.
        wait.recv().map_err(|_| Error::cancelled())
    }

    /// Runs `f` on this thread while holding the interpreter; an exception is kept, and ends the work. Code that
    /// depends on the calling thread must use [`call`](Self::call).
    pub fn attached<T>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
        Python::attach(f).map_err(|e| {
            self.raised.keep(e);
            self.cancel.cancel();
            Error::cancelled()
        })
    }

    /// Runs the work's tasks until it has ended.
    fn serve(&self, tasks: &mpsc::Receiver<Task>) {
        loop {
            match tasks.recv_timeout(POLL) {
                Ok(task) => self.attached(|py| py.check_signals().and_then(|()| task(py))).unwrap_or_default(),
                Err(RecvTimeoutError::Timeout) => self.attached(|py| py.check_signals()).unwrap_or_default(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Runs `work` with the interpreter released. Signals are handled meanwhile; each event calls `callback` with the
/// tensor's name, the bytes done and the total bytes, and waits for it. `work` passes [`Link::cancel`] on to the
/// functions that it calls.
pub fn run<T: Send>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    work: impl FnOnce(&mut Progress<'_>, &Link) -> Result<T> + Send,
) -> PyResult<T> {
    let callback = callback.map(|f| Arc::new(f.clone_ref(py)));
    let (raised, cancel) = (Raised::default(), Cancel::new());
    let job = |tasks| {
        let link = Link { tasks, raised: raised.clone(), cancel: cancel.clone() };
        let mut progress = |event: &ProgressEvent<'_>| {
            let Some(f) = callback.clone() else { return link.cancel.check() };
            let (tensor, done, total) = (event.tensor.to_owned(), event.done, event.total);
            link.call(move |py| f.call1(py, (tensor, done, total)).map(drop))
        };
        work(&mut progress, &link)
    };
    let result = py.detach(|| on_a_thread(job, &raised, &cancel));
    // An exception takes precedence over the result, even if a callback raised it at the very last event.
    match raised.take() {
        Some(e) => Err(e),
        None => result.map_err(|e| to_py(py, &e)),
    }
}

/// Runs `job` on its own thread and serves it; on the calling thread if no other can be started.
fn on_a_thread<T: Send>(
    job: impl FnOnce(Option<mpsc::Sender<Task>>) -> Result<T> + Send,
    raised: &Raised,
    cancel: &Cancel,
) -> Result<T> {
    let (tasks, received) = mpsc::channel();
    // The thread that runs it takes it.
    let job = Mutex::new(Some(job));
    let take = || job.lock().unwrap_or_else(PoisonError::into_inner).take().expect("taken once");
    std::thread::scope(|scope| {
        let link = Link { tasks: None, raised: raised.clone(), cancel: cancel.clone() };
        let thread = std::thread::Builder::new().name("wcodec-job".to_owned());
        match thread.spawn_scoped(scope, || take()(Some(tasks))) {
            Ok(thread) => {
                link.serve(&received);
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            Err(_) => take()(None),
        }
    })
}

/// The size from which decoding is worth a thread of its own, bytes: less is done before anybody could interrupt it.
const LONG: u64 = 8 << 20;

/// As [`run`], for work on `bytes` decoded bytes.
pub fn run_for<T: Send>(py: Python<'_>, bytes: u64, work: impl FnOnce(&Cancel) -> Result<T> + Send) -> PyResult<T> {
    run_if(py, bytes >= LONG, work)
}

/// As [`run`], so that Ctrl-C ends it, for work that `waits`; as [`detached`] for other work.
pub fn run_if<T: Send>(py: Python<'_>, waits: bool, work: impl FnOnce(&Cancel) -> Result<T> + Send) -> PyResult<T> {
    match waits {
        true => run(py, None, |_, link| work(&link.cancel)),
        false => detached(py, || work(&Cancel::new())),
    }
}

/// Runs short native work with the interpreter released.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|e| to_py(py, &e))
}
