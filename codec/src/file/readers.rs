//! Threads for blocking disk reads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;

/// The default number of threads, and so of concurrent reads: enough for fast disks and for network storage.
const THREADS: usize = 16;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that run tasks in the order of their arrival, in addition to the computing threads: they are blocked on the
/// disk most of the time. When dropped, it finishes the tasks that are running and discards the rest.
pub(crate) struct Readers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    closed: bool,
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Readers({} threads)", self.threads.len())
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.state();
            let task = loop {
                match state.tasks.pop_front() {
                    _ if state.closed => return,
                    Some(task) => break task,
                    None => state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            task();
        }
    }
}

impl Readers {
    /// Starts `threads` threads, or as many as the system allows.
    ///
    /// # Errors
    /// The system refuses even one.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let wanted = threads.unwrap_or(THREADS).clamp(1, 256);
        let mut made = Self { queue: Arc::default(), threads: Vec::with_capacity(wanted) };
        for i in 0..wanted {
            let queue = made.queue.clone();
            let thread = std::thread::Builder::new().name(format!("wcodec-read-{i}"));
            match thread.stack_size(1 << 20).spawn(move || queue.work()) {
                Ok(thread) => made.threads.push(thread),
                Err(_) if i > 0 => break,
                Err(e) => {
                    return Err(coded!(NO_THREADS, "cannot start a thread that reads: {e}")
                        .advice("raise the limit of processes (`ulimit -u`)"));
                }
            }
        }
        Ok(made)
    }

    /// Adds tasks behind those in the queue, or before them if `first`.
    pub fn add(&self, tasks: impl IntoIterator<Item = Task>, first: bool) {
        self.handle().add(tasks, first);
    }

    /// A handle, for tasks that add others.
    pub fn handle(&self) -> Handle {
        Handle(self.queue.clone())
    }
}

/// A handle of [`Readers`] that does not keep them alive.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Queue>);

impl Handle {
    /// As [`Readers::add`].
    pub fn add(&self, tasks: impl IntoIterator<Item = Task>, first: bool) {
        let mut state = self.0.state();
        if state.closed {
            return;
        }
        if first {
            let new: Vec<Task> = tasks.into_iter().collect();
            new.into_iter().rev().for_each(|task| state.tasks.push_front(task));
        } else {
            state.tasks.extend(tasks);
        }
        drop(state);
        self.0.more.notify_all();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let left = {
            let mut state = self.queue.state();
            state.closed = true;
            std::mem::take(&mut state.tasks)
        };
        drop(left);
        self.queue.more.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_are_done_in_order_and_those_that_are_left_forgotten() {
        let (done, seen) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let readers = Readers::new(Some(1)).unwrap();
        let task = |n: u32| -> Task {
            let done = done.clone();
            Box::new(move || done.send(n).unwrap())
        };
        readers.add([Box::new(move || wait.recv().unwrap()) as Task], false);
        readers.add([task(1), task(2)], false);
        readers.add([task(3), task(4)], true);
        go.send(()).unwrap();
        assert_eq!(seen.iter().take(4).collect::<Vec<_>>(), [3, 4, 1, 2]);
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let first = Box::new(move || {
            begun.send(()).unwrap();
            wait.recv().ok();
        });
        readers.add([first as Task, task(9)], false);
        begins.recv().unwrap();
        let handle = readers.handle();
        let dropping = std::thread::spawn(move || drop(readers));
        while !handle.0.state().closed {
            std::thread::yield_now();
        }
        drop(go);
        dropping.join().unwrap();
        handle.add([task(10)], false);
        drop(done);
        assert_eq!(seen.iter().count(), 0);
    }
}
