//! Tensors on their way: they are read on the calling thread, prepared and encoded several at once, and written one after the other
//! in the order of the file.
//!
//! What the threads here do themselves is little; the work is done in pieces by those of the pool, which takes them from whichever
//! tensor has some. So all cores have work while one tensor is read, one counted, one encoded and one written. What comes out does
//! not depend on it: the only choice that depends on other tensors, that of a table, is made in the order of the file.

use std::collections::VecDeque;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use super::tensor::{Encoded, Job, Tables, Workers};
use crate::checkpoint::SourceBytes;
use crate::coder::table::Table;
use crate::container::Writer;
use crate::error::{Error, Result};

/// How often progress is told while nothing ends.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of tensors that are under way for each thread, beside the largest tensor.
const AHEAD: u64 = 32 << 20;

/// What adds to an error which tensor it is about.
#[derive(Clone, Copy)]
pub struct Naming<'a> {
    /// Where the tensors come from.
    pub source: Option<&'a Path>,
    pub output: &'a Path,
}

impl Naming<'_> {
    /// The error of that tensor.
    pub fn of(self, tensor: &str, e: Error) -> Error {
        match (e.file_path(), self.source) {
            // Errors of the output name it already, and come late: they are not about this tensor.
            (Some(file), _) if file == self.output => e,
            (_, Some(source)) => e.tensor(tensor).file(source),
            (_, None) => e.tensor(tensor),
        }
    }
}

/// A tensor to encode.
struct Ticket<'a> {
    job: Job<'a>,
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
pub struct Pipeline<'scope, 'a, W: Write + Seek> {
    tickets: Option<Sender<Ticket<'a>>>,
    replies: Option<Sender<Receiver<Result<Encoded<'a>>>>>,
    /// The tables once the last tensor has chosen.
    tables: Receiver<Vec<Table>>,
    written: Receiver<()>,
    under_way: VecDeque<Way>,
    /// Bytes under way, and how many may be.
    held: u64,
    budget: u64,
    /// Bytes of what is written.
    done: u64,
    workers: Workers<'scope>,
    encoders: Vec<ScopedJoinHandle<'scope, ()>>,
    writer: ScopedJoinHandle<'scope, Result<Writer<W>>>,
}

/// The end of a pipeline was reached before all was written: its writer says why.
pub struct Ended;

impl<'scope, 'a: 'scope, W: Write + Seek + Send + 'scope> Pipeline<'scope, 'a, W> {
    /// Starts the threads. `largest` is the length of the largest tensor, bytes.
    ///
    /// # Errors
    /// The operating system gives no threads.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        workers: Workers<'scope>,
        mut writer: Writer<W>,
        largest: u64,
        naming: Naming<'scope>,
    ) -> Result<Self> {
        let threads = workers.pool.threads()?;
        let (tickets, queue) = channel::<Ticket<'a>>();
        let queue = Arc::new(Mutex::new(queue));
        let (replies, in_order) = channel::<Receiver<Result<Encoded<'a>>>>();
        let (first, tables) = channel();
        let (tell, written) = channel();
        first.send(Vec::new()).ok();

        let start = |e| {
            Error::input(format!("cannot start a thread: {e}"))
                .advice("raise the limit of processes (`ulimit -u`), or end others")
        };
        let mut encoders = Vec::new();
        // Enough that some are in the parts that many threads can do while others are in those that only one can.
        for i in 0..threads.div_ceil(4).clamp(2, 8) {
            let queue = queue.clone();
            let work = move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(ticket) = next else { return };
                    ticket.encode(workers, naming);
                }
            };
            encoders.push(Builder::new().name(format!("wcodec-encode-{i}")).spawn_scoped(scope, work).map_err(start)?);
        }
        let write = move || {
            let mut numbers = Tables::default();
            for reply in in_order {
                // A thread that died without a reply says why when it is joined.
                let Ok(encoded) = reply.recv() else { break };
                let encoded = encoded?;
                let name = encoded.name();
                encoded.write(&mut writer, &mut numbers).map_err(|e| naming.of(name, e))?;
                if tell.send(()).is_err() {
                    break;
                }
            }
            Ok(writer)
        };
        let writer = Builder::new().name("wcodec-write".to_owned()).spawn_scoped(scope, write).map_err(start)?;
        Ok(Self {
            tickets: Some(tickets),
            replies: Some(replies),
            tables,
            written,
            under_way: VecDeque::new(),
            held: 0,
            budget: largest + AHEAD * threads as u64,
            done: 0,
            workers,
            encoders,
            writer,
        })
    }

    /// The tensor that is written next, by its place in the source; and bytes of tensors that are done, of those under way the share
    /// that is encoded.
    pub fn progress(&self) -> (Option<usize>, u64) {
        let share = |way: &Way| {
            let done = way.done.load(Ordering::Relaxed).min(way.elements);
            (way.length as f64 * done as f64 / way.elements.max(1) as f64) as u64
        };
        (self.under_way.front().map(|way| way.index), self.done + self.under_way.iter().map(share).sum::<u64>())
    }

    /// Counts bytes of a tensor that need no work.
    pub fn skip(&mut self, length: u64) {
        self.done += length;
    }

    /// Waits until there is room for a tensor of so many bytes, and calls `tell` now and then.
    pub fn make_room(&mut self, length: u64, tell: &mut impl FnMut(&Self) -> Result<()>) -> Result<Result<(), Ended>> {
        while let Ok(()) = self.written.try_recv() {
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
        loop {
            match self.written.recv_timeout(TICK) {
                Ok(()) => {
                    self.one_less();
                    tell(self)?;
                    return Ok(Ok(()));
                }
                Err(RecvTimeoutError::Timeout) => tell(self)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(Ended)),
            }
        }
    }

    fn one_less(&mut self) {
        if let Some(way) = self.under_way.pop_front() {
            self.held -= way.length;
            self.done += way.length;
        }
    }

    /// Puts a tensor on its way: its bytes, or the error that there are none, which ends the operation when it is its turn.
    pub fn push(&mut self, index: usize, job: Job<'a>, bytes: Result<SourceBytes<'a>>) -> Result<(), Ended> {
        let (reply, replied) = channel();
        let (Some(tickets), Some(replies)) = (&self.tickets, &self.replies) else { return Err(Ended) };
        replies.send(replied).map_err(|_| Ended)?;
        match bytes {
            Err(e) => {
                reply.send(Err(e)).ok();
                Err(Ended)
            }
            Ok(bytes) => {
                let (length, elements) = (bytes.len() as u64, bytes.len() / job.tensor.dtype.size());
                let done = Arc::new(AtomicUsize::new(0));
                let (next, chosen) = channel();
                let tables = std::mem::replace(&mut self.tables, chosen);
                self.held += length;
                self.under_way.push_back(Way { index, length, elements, done: done.clone() });
                tickets.send(Ticket { job, bytes, done, tables, next, reply }).map_err(|_| Ended)
            }
        }
    }

    /// Waits for all tensors that are under way, unless `stopped`, and gives the writer back.
    ///
    /// # Errors
    /// The first one, in the order of the file; or one of `tell`.
    pub fn finish(mut self, tell: &mut impl FnMut(&Self) -> Result<()>, stopped: Result<()>) -> Result<Writer<W>> {
        (self.tickets, self.replies) = (None, None);
        let mut told = stopped;
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
        let ended: Vec<_> = self.encoders.into_iter().map(ScopedJoinHandle::join).collect();
        let writer = self.writer.join();
        if let Some(panic) = ended.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panic);
        }
        let writer = writer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        told.and(writer)
    }
}

impl Ticket<'_> {
    /// Does the work, and replies.
    fn encode(self, workers: Workers<'_>, naming: Naming<'_>) {
        let Self { job, bytes, done, tables, next, reply } = self;
        let tensor = job.tensor;
        let encode = || {
            let mut prepared = job.prepare(bytes, workers)?;
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
