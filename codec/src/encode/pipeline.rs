//! Tensors on their way: they are read on the calling thread, prepared and encoded several at once, and written one after the other
//! in the order of the file.
//!
//! What the threads here do themselves is little; the work is done in pieces by those of the pool, which takes them from whichever
//! tensor has some. So all cores have work while one tensor is read, one counted, one encoded and one written. What comes out does
//! not depend on it: the only choice that depends on other tensors, that of a table, is made in the order of the file.

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

/// How often progress is told while nothing ends.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of tensors that are under way for each thread, beside the largest tensor.
const AHEAD: u64 = 32 << 20;

/// A tensor to encode.
struct Ticket<'a> {
    task: TensorTask<'a>,
    bytes: SourceBytes<'a>,
    done: Arc<AtomicUsize>,
    /// The shared tables, as they are once the tensor before this one has chosen, and where they go then.
    tables: Receiver<Vec<Table>>,
    next: Sender<Vec<Table>>,
    reply: Sender<Result<Encoded<'a>>>,
}

/// A tensor under way.
struct Way {
    /// Its place in the source.
    index: usize,
    /// Bytes of its elements, and their number.
    length: u64,
    elements: usize,
    /// Elements that are encoded.
    done: Arc<AtomicUsize>,
}

/// The way that tensors take, as the calling thread sees it.
pub struct Pipeline<'scope, 'a, W: Sink> {
    crew: Crew<'scope, 'a, W>,
    workers: Workers<'scope>,
    naming: Naming<'scope>,
    /// The tables once the last tensor has chosen.
    tables: Receiver<Vec<Table>>,
    under_way: VecDeque<Way>,
    /// Bytes under way, and how many may be.
    held: u64,
    budget: u64,
    /// Bytes of what is written, and the tensor that was written last, by its place in the source.
    done: u64,
    last: Option<usize>,
}

/// Who takes tensors along.
enum Crew<'scope, 'a, W: Sink> {
    Threads(Threads<'scope, 'a, W>),
    /// The calling thread, one after the other.
    Nobody {
        writer: Box<Writer<W>>,
        numbers: Tables,
        result: Result<()>,
    },
}

struct Threads<'scope, 'a, W: Sink> {
    tickets: Sender<Ticket<'a>>,
    /// To the writer, in the order of the file.
    replies: Sender<Receiver<Result<Encoded<'a>>>>,
    written: Receiver<()>,
    encoders: Vec<ScopedJoinHandle<'scope, ()>>,
    writer: ScopedJoinHandle<'scope, Result<Box<Writer<W>>>>,
}

/// The end of a pipeline was reached before all was written: [`Pipeline::finish`] says why.
pub struct Ended;

impl<'scope, 'a: 'scope, W: Sink + Send + 'scope> Threads<'scope, 'a, W> {
    /// Starts them, where the system gives them; else the writer comes back.
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
                // A thread that died without a reply says why when it is joined.
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
        // It waits for that.
        hand_over.send(output).ok();
        Ok(Self { tickets, replies, written, encoders, writer })
    }

    /// Waits until all have ended, and gives the writer back.
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
    /// Starts threads that take `tensors` tensors along, of which the largest has `largest` bytes. One tensor does without, as do all
    /// where the system gives no threads.
    ///
    /// # Errors
    /// There are no threads for the pool.
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
        // Enough that some are in the parts that many threads can do while others are in those that only one can.
        let encoders = threads.div_ceil(4).clamp(2, 8).min(tensors);
        let started = match tensors {
            0 | 1 => Err(writer),
            _ => Threads::start(scope, workers, naming, encoders, writer),
        };
        let crew = match started {
            Ok(threads) => Crew::Threads(threads),
            Err(writer) => Crew::Nobody { writer, numbers: Tables::default(), result: Ok(()) },
        };
        let (under_way, budget) = (VecDeque::new(), largest + AHEAD * threads as u64);
        Ok(Self { crew, workers, naming, tables, under_way, held: 0, budget, done: 0, last: None })
    }

    /// The tensor that is written next, or was last, by its place in the source; and bytes of tensors that are done, of those under
    /// way the share that is encoded.
    pub fn progress(&self) -> (Option<usize>, u64) {
        let share = |way: &Way| {
            let done = way.done.load(Ordering::Relaxed).min(way.elements);
            (way.length as f64 * done as f64 / way.elements.max(1) as f64) as u64
        };
        let at = self.under_way.front().map(|way| way.index).or(self.last);
        (at, self.done + self.under_way.iter().map(share).sum::<u64>())
    }

    /// Counts bytes of a tensor that need no work.
    pub fn skip(&mut self, length: u64) {
        self.done += length;
    }

    /// Waits until there is room for a tensor of so many bytes, and calls `tell` now and then.
    pub fn make_room(&mut self, length: u64, tell: &mut impl FnMut(&Self) -> Result<()>) -> Result<Result<(), Ended>> {
        while let Crew::Threads(threads) = &self.crew
            && threads.written.try_recv().is_ok()
        {
            self.one_less();
            tell(self)?;
        }
        while !self.under_way.is_empty() && self.held.saturating_add(length) > self.budget {
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
        if let Some(way) = self.under_way.pop_front() {
            self.held -= way.length;
            self.done += way.length;
            self.last = Some(way.index);
        }
    }

    /// Puts a tensor on its way: what to do and its bytes, or the error that there are none, which ends the operation when it is its turn.
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
                self.under_way.push_back(Way { index, length, elements, done: done.clone() });
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

    /// Waits for all tensors that are under way, unless there was an error in what was `done` so far, and gives the writer back.
    ///
    /// # Errors
    /// That one; the first one, in the order of the file; or one of `tell`.
    pub fn finish(mut self, tell: &mut impl FnMut(&Self) -> Result<()>, done: Result<()>) -> Result<Box<Writer<W>>> {
        let mut told = done;
        while told.is_ok() && !self.under_way.is_empty() {
            match self.wait(tell) {
                Ok(Ok(())) => {}
                Ok(Err(Ended)) => break,
                Err(e) => told = Err(e),
            }
        }
        if !self.under_way.is_empty() {
            // What they still do is of no use.
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
    /// Does the work, and replies.
    fn encode(self, workers: Workers<'_>, naming: Naming<'_>) {
        let Self { task, bytes, done, tables, next, reply } = self;
        let tensor = task.tensor;
        let encode = || {
            let mut prepared = task.prepare(bytes, workers)?;
            // Where the tensor before this one failed, its error comes first.
            let mut tables = tables.recv().map_err(|_| Error::cancelled())?;
            prepared.choose(&mut tables);
            next.send(tables).ok();
            prepared.encode(workers, &done)
        };
        // Nobody listens once the operation has ended.
        reply.send(encode().map_err(|e| naming.of(&tensor.name, e))).ok();
    }
}
