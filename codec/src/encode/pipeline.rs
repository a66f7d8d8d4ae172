//! The pipeline of tensors: they are read on the calling thread, prepared and encoded several at once, and written one
//! after the other in the order of the file.
//!
//! The threads started here do little work themselves: they split it into pieces for the threads of the pool, which
//! take pieces of any tensor. So all cores have work while one tensor is read, one counted, one encoded and one
//! written. The output does not depend on this: only the choice of a table depends on other tensors, and it is made in
//! the order of the file.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use super::naming::Naming;
use super::tensor::{Encoded, Tables, TensorTask, Workers};
use crate::checkpoint::SourceBytes;
use crate::coder::table::Table;
use crate::container::{Sink, Writer};
use crate::error::{Error, Result};

/// The interval of progress reports while no tensor completes.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of tensors in flight for each thread, beside the largest tensor.
const AHEAD: u64 = 32 << 20;

/// A tensor to encode.
struct Ticket<'a> {
    task: TensorTask<'a>,
    bytes: SourceBytes<'a>,
    done: Arc<AtomicUsize>,
    /// Receives the shared tables once the tensor before this one has chosen, and passes them on after this one's
    /// choice.
    tables: Receiver<Vec<Table>>,
    next: Sender<Vec<Table>>,
    reply: Sender<Result<Encoded<'a>>>,
}

/// A tensor in flight.
struct InFlight {
    /// Its index in the source.
    index: usize,
    /// The number of bytes and of elements.
    length: u64,
    elements: usize,
    /// The number of elements encoded so far.
    done: Arc<AtomicUsize>,
}

/// The pipeline, as the calling thread sees it.
pub struct Pipeline<'scope, 'a, W: Sink> {
    crew: Crew<'scope, 'a, W>,
    workers: Workers<'scope>,
    naming: Naming<'scope>,
    /// Receives the tables once the last tensor has chosen.
    tables: Receiver<Vec<Table>>,
    in_flight: VecDeque<InFlight>,
    /// Bytes in flight, and their limit.
    held: u64,
    budget: u64,
    /// Bytes written so far, and the index in the source of the last tensor written.
    done: u64,
    last: Option<usize>,
}

/// The workers that process tensors.
enum Crew<'scope, 'a, W: Sink> {
    Threads(Threads<'scope, 'a, W>),
    /// The calling thread, one tensor after the other.
    Nobody {
        writer: Box<Writer<W>>,
        numbers: Tables,
        result: Result<()>,
    },
}

struct Threads<'scope, 'a, W: Sink> {
    tickets: Sender<Ticket<'a>>,
    /// Replies for the writer, in the order of the file.
    replies: Sender<Receiver<Result<Encoded<'a>>>>,
    written: Receiver<()>,
    encoders: Vec<ScopedJoinHandle<'scope, ()>>,
    writer: ScopedJoinHandle<'scope, Result<Box<Writer<W>>>>,
}

/// The pipeline ended before everything was written: [`Pipeline::finish`] gives the reason.
pub struct Ended;

impl<'scope, 'a: 'scope, W: Sink + Send + 'scope> Threads<'scope, 'a, W> {
    /// Starts the threads; returns the writer if the system refuses them.
    fn start(
        scope: &'scope Scope<'scope, '_>,
        workers: Workers<'scope>,
        naming: Naming<'scope>,
        encoders: usize,
        output: Box<Writer<W>>,
    ) -> Result<Self, Box<Writer<W>>> {
        let (tickets, queue) = channel::<Ticket<'a>>();
        let queue = Arc::new(Mutex::new(queue));
        let (replies, in_order) = channel::<Receiver<Result<Encoded<'a>>>>();
        let (tell, written) = channel();
        let (hand_over, handed) = channel::<Box<Writer<W>>>();
        let encode = |i: usize| {
            let queue = queue.clone();
            let work = move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(ticket) = next else { return };
                    ticket.encode(workers, naming);
                }
            };
            Builder::new().name(format!("wcodec-encode-{i}")).spawn_scoped(scope, work)
        };
        let write = move || {
            let mut writer = handed.recv().map_err(|_| Error::cancelled())?;
            let mut numbers = Tables::default();
            for reply in in_order {
                // Joining a thread that died without a reply gives the reason.
                let Ok(encoded) = reply.recv() else { break };
                encoded?.write(&mut writer, &mut numbers, naming)?;
                if tell.send(()).is_err() {
                    break;
                }
            }
            Ok(writer)
        };
        let Ok(encoders) = (0..encoders).map(encode).collect() else { return Err(output) };
        let Ok(writer) = Builder::new().name("wcodec-write".to_owned()).spawn_scoped(scope, write) else {
            return Err(output);
        };
        // The writer's thread is blocked until it receives this.
        hand_over.send(output).ok();
        Ok(Self { tickets, replies, written, encoders, writer })
    }

    /// Waits until all have ended and returns the writer.
    fn join(self) -> Result<Box<Writer<W>>> {
        drop((self.tickets, self.replies));
        let ended: Vec<_> = self.encoders.into_iter().map(ScopedJoinHandle::join).collect();
        let writer = self.writer.join();
        if let Some(panic) = ended.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panic);
        }
        writer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<'scope, 'a: 'scope, W: Sink + Send + 'scope> Pipeline<'scope, 'a, W> {
    /// Starts threads that process `tensors` tensors, the largest of `largest` bytes. Without threads, the calling
    /// thread does the work: for a single tensor, and if the system refuses threads.
    ///
    /// # Errors
    /// The pool cannot start its threads.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        workers: Workers<'scope>,
        naming: Naming<'scope>,
        writer: Box<Writer<W>>,
        tensors: usize,
        largest: u64,
    ) -> Result<Self> {
        let threads = workers.pool.threads()?;
        let (first, tables) = channel();
        first.send(Vec::new()).ok();
        // Enough tensors at once that some are in phases for many threads while others are in phases for one, as the
        // choice of a table of quads is.
        let encoders = threads.div_ceil(2).clamp(2, 16).min(tensors);
        let started = match tensors {
            0 | 1 => Err(writer),
            _ => Threads::start(scope, workers, naming, encoders, writer),
        };
        let crew = match started {
            Ok(threads) => Crew::Threads(threads),
            Err(writer) => Crew::Nobody { writer, numbers: Tables::default(), result: Ok(()) },
        };
        let (in_flight, budget) = (VecDeque::new(), largest + AHEAD * threads as u64);
        Ok(Self { crew, workers, naming, tables, in_flight, held: 0, budget, done: 0, last: None })
    }

    /// The index in the source of the tensor that is written next, or was last; and the bytes of finished tensors, plus
    /// the encoded share of those in flight.
    pub fn progress(&self) -> (Option<usize>, u64) {
        let share = |tensor: &InFlight| {
            let done = tensor.done.load(Ordering::Relaxed).min(tensor.elements);
            (tensor.length as f64 * done as f64 / tensor.elements.max(1) as f64) as u64
        };
        let at = self.in_flight.front().map(|tensor| tensor.index).or(self.last);
        (at, self.done + self.in_flight.iter().map(share).sum::<u64>())
    }

    /// Counts bytes of a tensor that need no work.
    pub fn skip(&mut self, length: u64) {
        self.done += length;
    }

    /// Waits until there is room for a tensor of `length` bytes, calling `tell` at intervals.
    pub fn make_room(&mut self, length: u64, tell: &mut impl FnMut(&Self) -> Result<()>) -> Result<Result<(), Ended>> {
        while let Crew::Threads(threads) = &self.crew
            && threads.written.try_recv().is_ok()
        {
            self.one_less();
            tell(self)?;
        }
        while !self.in_flight.is_empty() && self.held.saturating_add(length) > self.budget {
            if let Err(ended) = self.wait(tell)? {
                return Ok(Err(ended));
            }
        }
        Ok(Ok(()))
    }

    fn wait(&mut self, tell: &mut impl FnMut(&Self) -> Result<()>) -> Result<Result<(), Ended>> {
        while let Crew::Threads(threads) = &self.crew {
            match threads.written.recv_timeout(TICK) {
                Ok(()) => {
                    self.one_less();
                    tell(self)?;
                    return Ok(Ok(()));
                }
                Err(RecvTimeoutError::Timeout) => tell(self)?,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(Err(Ended))
    }

    fn one_less(&mut self) {
        if let Some(tensor) = self.in_flight.pop_front() {
            self.held -= tensor.length;
            self.done += tensor.length;
            self.last = Some(tensor.index);
        }
    }

    /// Submits a tensor: its task and bytes, or the error of reading it, which ends the operation when its turn comes.
    pub fn push(&mut self, index: usize, tensor: Result<(TensorTask<'a>, SourceBytes<'a>)>) -> Result<(), Ended> {
        let (reply, replied) = channel();
        let ticket = match tensor {
            Err(e) => {
                reply.send(Err(e)).ok();
                None
            }
            Ok((task, bytes)) => {
                let (length, elements) = (bytes.len() as u64, bytes.len() / task.tensor.dtype.size());
                let done = Arc::new(AtomicUsize::new(0));
                let (next, chosen) = channel();
                let tables = std::mem::replace(&mut self.tables, chosen);
                self.held += length;
                self.in_flight.push_back(InFlight { index, length, elements, done: done.clone() });
                Some(Ticket { task, bytes, done, tables, next, reply })
            }
        };
        let failed = ticket.is_none();
        match &mut self.crew {
            Crew::Threads(threads) => {
                threads.replies.send(replied).map_err(|_| Ended)?;
                if let Some(ticket) = ticket {
                    threads.tickets.send(ticket).map_err(|_| Ended)?;
                }
            }
            Crew::Nobody { writer, numbers, result } => {
                if let Some(ticket) = ticket {
                    ticket.encode(self.workers, self.naming);
                }
                let encoded = replied.recv().unwrap_or_else(|_| Err(Error::cancelled()));
                *result = encoded.and_then(|e| e.write(writer, numbers, self.naming));
                if result.is_err() {
                    return Err(Ended);
                }
                self.one_less();
            }
        }
        if failed { Err(Ended) } else { Ok(()) }
    }

    /// Waits for all tensors in flight, unless `done` is an error, and returns the writer.
    ///
    /// # Errors
    /// That of `done`; the first one, in the order of the file; or one of `tell`.
    pub fn finish(mut self, tell: &mut impl FnMut(&Self) -> Result<()>, done: Result<()>) -> Result<Box<Writer<W>>> {
        let mut told = done;
        while told.is_ok() && !self.in_flight.is_empty() {
            match self.wait(tell) {
                Ok(Ok(())) => {}
                Ok(Err(Ended)) => break,
                Err(e) => told = Err(e),
            }
        }
        if !self.in_flight.is_empty() {
            // Their remaining work would be discarded.
            self.workers.cancel.cancel();
        }
        let writer = match self.crew {
            Crew::Threads(threads) => threads.join(),
            Crew::Nobody { writer, result, .. } => result.map(|()| writer),
        };
        told.and(writer)
    }
}

impl Ticket<'_> {
    /// Encodes the tensor and replies.
    fn encode(self, workers: Workers<'_>, naming: Naming<'_>) {
        let Self { task, bytes, done, tables, next, reply } = self;
        let tensor = task.tensor;
        let encode = || {
            let mut prepared = task.prepare(bytes, workers)?;
            prepared.make_tables(1.0, workers)?;
            // If the tensor before this one failed, its error comes first.
            let mut tables = tables.recv().map_err(|_| Error::cancelled())?;
            prepared.choose(&mut tables);
            next.send(tables).ok();
            prepared.encode(workers, &done)
        };
        // The receiver is gone once the operation has ended.
        reply.send(encode().map_err(|e| naming.of(&tensor.name, e))).ok();
    }
}
