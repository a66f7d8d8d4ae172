//! Long native work: it has a thread of its own, while the thread that called waits, handles signals and runs what is Python's.
//!
//! So Ctrl-C takes effect within a fraction of a second whatever the work is at, and callbacks run on the thread that they were handed
//! over on, whose streams, modes and devices of torch they may depend on.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use wcodec::{Cancel, Error, Progress, ProgressEvent, Result};

use crate::errors::to_py;

/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);

/// Something to do on the thread that called.
type Task = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// The way from native work to the Python that called it.
#[derive(Clone)]
pub struct Link {
    /// None where the work is on the thread that called.
    tasks: Option<mpsc::Sender<Task>>,
    raised: Raised,
    cancel: Cancel,
}

/// A Python exception that was raised meanwhile, kept until the native code has unwound: that only sees [`Error::cancelled`], and the
/// caller of the native function gets the exception itself.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn keep(&self, e: PyErr) {
        // The first exception is the cause, later ones its consequences.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Link {
    /// Stops the work.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Runs `f` on the thread that called, and waits for what it returns; an exception is kept, and ends the work.
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static) -> Result<T> {
        let Some(tasks) = &self.tasks else { return self.attached(f) };
        let (answer, wait) = mpsc::sync_channel(1);
        let task = move |py: Python<'_>| {
            let value = f(py)?;
            answer.send(value).ok();
            Ok(())
        };
        tasks.send(Box::new(task)).map_err(|_| Error::cancelled())?;
        // Nothing comes where the task raised.
        wait.recv().map_err(|_| Error::cancelled())
    }

    /// Runs `f` on this thread while the interpreter is held; an exception is kept, and ends the work. What depends on the thread that
    /// called is for [`call`](Self::call).
    pub fn attached<T>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
        Python::attach(f).map_err(|e| {
            self.raised.keep(e);
            self.cancel.cancel();
            Error::cancelled()
        })
    }

    /// Does what the work asks for, until it has ended.
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

/// Runs `work` with the interpreter released. Signals are handled meanwhile; each event calls `callback` with the tensor's name, the
/// bytes done and the bytes in all, and waits for it. `work` passes [`Link::cancel`] on to what it calls.
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
    // An exception wins over the result: a callback that raised at the very last event still raised.
    match raised.take() {
        Some(e) => Err(e),
        None => result.map_err(|e| to_py(py, &e)),
    }
}

/// Runs `job` on a thread of its own and serves it; on this one where there is no other to be had.
fn on_a_thread<T: Send>(
    job: impl FnOnce(Option<mpsc::Sender<Task>>) -> Result<T> + Send,
    raised: &Raised,
    cancel: &Cancel,
) -> Result<T> {
    let (tasks, received) = mpsc::channel();
    // Taken by whoever runs it.
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

/// Bytes from which on decoding is worth a thread of its own: what is smaller is done before anybody could interrupt it.
const LONG: u64 = 8 << 20;

/// As [`run`], for work on so many decoded bytes.
pub fn run_for<T: Send>(py: Python<'_>, bytes: u64, work: impl FnOnce(&Cancel) -> Result<T> + Send) -> PyResult<T> {
    if bytes < LONG {
        return detached(py, || work(&Cancel::new()));
    }
    run(py, None, |_, link| work(&link.cancel))
}

/// Runs short native work with the interpreter released.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|e| to_py(py, &e))
}
