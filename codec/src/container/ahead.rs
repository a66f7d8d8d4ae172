//! Read-ahead of a file's bytes into memory of bounded size.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::file::{Handle, InputFile, PageBuffer, Readers, pages};
use crate::tensor::AlignedBytes;

/// Bytes that a thread reads at once, and the largest size of a buffer.
const PIECE: u64 = 1 << 20;
/// The interval at which a waiting thread checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// Offset and length of bytes that are read together.
pub(crate) type Span = (u64, u64);

/// Counters of the work that read-ahead has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadFacts {
    /// Bytes that it may hold.
    pub ring: usize,
    /// The most bytes that it has held.
    pub most: usize,
    /// Whether it bypasses the system's page cache.
    pub direct: bool,
    /// Bytes of the file that it covers.
    pub covers: u64,
    /// Reads whose bytes were here already, or on their way.
    pub ahead: u64,
    /// Reads whose bytes were not.
    pub late: u64,
}

/// Reads announced spans of a file in order, on its own threads, as far as its memory allows; a span's bytes are freed
/// when they are taken. Nothing is returned from a file that has changed.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    shared: Arc<Shared>,
    readers: Readers,
    /// The ranges of the file that it covers, sorted.
    covers: Vec<Range<u64>>,
    /// The process that started the threads: a fork of it has none of them.
    process: u32,
}

#[derive(Debug)]
struct Shared {
    file: Arc<InputFile>,
    ring: usize,
    direct: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Spans still to be read, in this order.
    wanted: VecDeque<Span>,
    items: HashMap<Span, Item>,
    /// Bytes of all buffers in use.
    used: usize,
    /// Unused buffers of [`PIECE`] bytes.
    spare: Vec<PageBuffer>,
    number: u64,
    most: usize,
    ahead: u64,
    late: u64,
}

/// A span that is being read, or has been.
#[derive(Debug)]
struct Item {
    number: u64,
    pieces: Vec<PieceState>,
    left: usize,
    failed: Option<Error>,
}

#[derive(Debug)]
enum PieceState {
    Waits,
    IsRead,
    Done(PageBuffer),
}

/// The pieces of a span; the pages of each fit a buffer.
fn pieces((offset, length): Span) -> impl Iterator<Item = Range<u64>> {
    let end = offset + length;
    (offset / PIECE..end.div_ceil(PIECE)).map(move |i| (i * PIECE).max(offset)..((i + 1) * PIECE).min(end))
}

/// Bytes of the buffers that hold a span.
fn room_of(span: Span) -> usize {
    pieces(span).map(|piece| buffer_of(&piece)).sum()
}

/// Bytes of the buffer that holds a piece.
fn buffer_of(piece: &Range<u64>) -> usize {
    let around = pages(piece);
    (around.end - around.start) as usize
}

impl ReadAhead {
    /// Starts read-ahead for these ranges of the file, with `ring` bytes of memory.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(
        file: Arc<InputFile>,
        mut covers: Vec<Range<u64>>,
        ring: usize,
        direct: bool,
        threads: Option<usize>,
    ) -> Result<Self> {
        covers.sort_unstable_by_key(|r| r.start);
        let direct = direct && file.is_direct();
        let shared = Shared { file, ring, direct, state: Mutex::default(), changed: Condvar::new() };
        let readers = Readers::new(threads)?;
        Ok(Self { shared: Arc::new(shared), readers, covers, process: std::process::id() })
    }

    /// Whether the byte at `offset` is in a covered range.
    pub fn covers(&self, offset: u64) -> bool {
        let next = self.covers.partition_point(|r| r.start <= offset);
        next.checked_sub(1).is_some_and(|i| self.covers[i].contains(&offset))
    }

    /// Announces spans to be read, in this order. Spans announced earlier but not now are dropped.
    pub fn want(&self, spans: impl IntoIterator<Item = Span>) {
        if !self.is_here() {
            return;
        }
        let mut seen = HashSet::new();
        let spans: Vec<Span> = spans.into_iter().filter(|s| s.1 > 0 && seen.insert(*s)).collect();
        let mut state = self.shared.state();
        // Later spans make room for earlier ones.
        let mut room = self.shared.ring;
        let kept: HashSet<Span> = spans
            .iter()
            .map(|&span| (span, room_of(span)))
            .filter(|(_, size)| *size <= self.shared.ring)
            .map_while(|(span, size)| {
                room = room.checked_sub(size)?;
                Some(span)
            })
            .collect();
        let dropped: Vec<Span> = state.items.keys().filter(|s| !kept.contains(s)).copied().collect();
        dropped.iter().for_each(|span| state.forget(span));
        state.wanted = spans.into_iter().filter(|s| !state.items.contains_key(s)).collect();
        self.shared.begin_some(&mut state, &self.readers.handle());
    }

    /// The bytes of a span, once they have been read; `None` if they are not being read.
    pub fn take(&self, offset: u64, length: u64, cancel: &Cancel) -> Option<Result<AlignedBytes>> {
        if !self.is_here() {
            return None;
        }
        let span = (offset, length);
        let mut state = self.shared.state();
        loop {
            let Some(item) = state.items.get(&span) else {
                state.wanted.retain(|s| *s != span);
                state.late += 1;
                return None;
            };
            if item.left == 0 || item.failed.is_some() {
                break;
            }
            if let Err(e) = cancel.check() {
                return Some(Err(e));
            }
            state = self.shared.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ahead += 1;
        let item = state.items.get_mut(&span).expect("found above");
        let failed = item.failed.take();
        let buffers = if failed.is_some() { Vec::new() } else { std::mem::take(&mut item.pieces) };
        if failed.is_some() {
            state.forget(&span);
        } else {
            state.items.remove(&span);
        }
        drop(state);
        let taken = failed.map_or_else(|| self.put_together(span, &buffers), Err);
        let mut state = self.shared.state();
        for piece in buffers {
            if let PieceState::Done(buffer) = piece {
                state.give_back(buffer);
            }
        }
        self.shared.begin_some(&mut state, &self.readers.handle());
        Some(taken)
    }

    fn put_together(&self, span: Span, buffers: &[PieceState]) -> Result<AlignedBytes> {
        let mut out = AlignedBytes::zeroed(span.1 as usize)?;
        for (piece, buffer) in pieces(span).zip(buffers) {
            let PieceState::Done(buffer) = buffer else { unreachable!("all pieces were read") };
            let begin = (piece.start - pages(&piece).start) as usize;
            let to = (piece.start - span.0) as usize..(piece.end - span.0) as usize;
            out[to.clone()].copy_from_slice(&buffer[begin..begin + to.len()]);
        }
        // The file may have been written to meanwhile.
        self.shared.file.check_unchanged()?;
        Ok(out)
    }

    /// Counters of the work done so far.
    pub fn facts(&self) -> AheadFacts {
        let covers = self.covers.iter().map(|r| r.end - r.start).sum();
        let state = self.shared.state();
        let Shared { ring, direct, .. } = *self.shared;
        AheadFacts { ring, most: state.most, direct, covers, ahead: state.ahead, late: state.late }
    }

    /// Whether this process owns the threads. Checked before any lock is taken: a thread of the parent may have held it
    /// during the fork.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl State {
    /// Drops a span. Memory for pieces that are being read counts until those reads end.
    fn forget(&mut self, span: &Span) {
        let Some(item) = self.items.remove(span) else { return };
        for (range, piece) in pieces(*span).zip(item.pieces) {
            match piece {
                PieceState::Waits => self.used -= buffer_of(&range),
                PieceState::IsRead => {}
                PieceState::Done(buffer) => self.give_back(buffer),
            }
        }
    }

    fn give_back(&mut self, buffer: PageBuffer) {
        self.used -= buffer.len();
        if buffer.len() == PIECE as usize {
            self.spare.push(buffer);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the next spans, as far as there is room.
    fn begin_some(self: &Arc<Self>, state: &mut State, readers: &Handle) {
        while let Some(&span) = state.wanted.front() {
            let size = room_of(span);
            if size <= self.ring && state.used + size > self.ring {
                break;
            }
            state.wanted.pop_front();
            if size > self.ring {
                // The span will be read piece by piece when it is asked for.
                continue;
            }
            state.used += size;
            state.most = state.most.max(state.used);
            state.number += 1;
            let number = state.number;
            let waiting: Vec<PieceState> = pieces(span).map(|_| PieceState::Waits).collect();
            let item = Item { number, left: waiting.len(), pieces: waiting, failed: None };
            state.items.insert(span, item);
            let tasks = pieces(span).enumerate().map(|(i, piece)| {
                let (shared, readers) = (self.clone(), readers.clone());
                Box::new(move || shared.read(span, number, i, &piece, &readers)) as Box<dyn FnOnce() + Send>
            });
            readers.add(tasks, false);
        }
        // Spare buffers count, too.
        let room = self.ring.saturating_sub(state.used) / PIECE as usize;
        state.spare.truncate(room);
    }

    /// Reads a piece, unless its span was dropped.
    fn read(self: &Arc<Self>, span: Span, number: u64, i: usize, piece: &Range<u64>, readers: &Handle) {
        let size = buffer_of(piece);
        let mut state = self.state();
        match state.items.get_mut(&span) {
            Some(item) if item.number == number && item.failed.is_none() => item.pieces[i] = PieceState::IsRead,
            _ => return,
        }
        let spare = if size == PIECE as usize { state.spare.pop() } else { None };
        drop(state);
        let read = spare.map_or_else(|| PageBuffer::new(size), Ok).and_then(|mut buffer| {
            self.file.check_unchanged()?;
            self.file.read_pages(pages(piece).start, &mut buffer, self.direct)?;
            Ok(buffer)
        });
        let mut state = self.state();
        let Some(item) = state.items.get_mut(&span).filter(|item| item.number == number) else {
            state.used -= size;
            // The dropped span's memory is free for other spans.
            self.begin_some(&mut state, readers);
            return;
        };
        match read {
            Ok(buffer) => {
                item.pieces[i] = PieceState::Done(buffer);
                item.left -= 1;
            }
            Err(e) => {
                // The buffer is gone, but its bytes count until the span is dropped.
                item.pieces[i] = PieceState::Waits;
                item.failed.get_or_insert(e);
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::path::Path;

    fn file(dir: &Path, length: usize) -> (Vec<u8>, Arc<InputFile>) {
        let bytes: Vec<u8> = (0..length as u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        std::fs::write(dir.join("f"), &bytes).unwrap();
        (bytes, Arc::new(InputFile::open(&dir.join("f")).unwrap()))
    }

    fn of(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn what_was_wanted_is_there_and_memory_keeps_to_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, file) = file(dir.path(), 20 << 20);
        let go = Cancel::new();
        for direct in [false, true] {
            let all = bytes.len() as u64;
            let ahead = ReadAhead::new(file.clone(), of(100..all), 4 << 20, direct, Some(3)).unwrap();
            assert!(!ahead.covers(99) && ahead.covers(100) && ahead.covers(all - 1) && !ahead.covers(all));
            let spans: Vec<Span> =
                [(100, 3), (4096, 4096), (10_000, 1 << 20), (3 << 20, 2 << 20), (5 << 20, 5), (6 << 20, 9 << 20)]
                    .into_iter()
                    .chain([(15 << 20, 3 << 20), (all - 7, 7)])
                    .collect();
            for _ in 0..3 {
                ahead.want(spans.iter().copied());
                for &(at, n) in &spans {
                    let taken = ahead.take(at, n, &go);
                    // A span larger than the memory is not read ahead.
                    assert_eq!(taken.is_none(), n > 4 << 20);
                    if let Some(taken) = taken {
                        assert!(taken.unwrap()[..] == bytes[at as usize..(at + n) as usize], "{n} at {at}");
                    }
                }
            }
            let facts = ahead.facts();
            assert_eq!((facts.ahead, facts.late, facts.covers), (21, 3, all - 100));
            assert!(facts.most <= 4 << 20 && facts.most > 3 << 20, "{facts:?}");
            let state = ahead.shared.state();
            assert_eq!((state.used, state.items.len(), state.wanted.len()), (0, 0, 0));
            assert!(state.spare.len() <= 4);
        }
    }

    #[test]
    fn what_is_wanted_no_more_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, file) = file(dir.path(), 16 << 20);
        let ahead = ReadAhead::new(file, of(0..16 << 20), 2 << 20, true, Some(2)).unwrap();
        let go = Cancel::new();
        for turn in 0..40u64 {
            let first = turn * 7 % 14;
            ahead.want([(first << 20, 1 << 20), ((first + 1) << 20, 1 << 20), (3, 10)]);
            if turn % 3 == 0 {
                // Takes spans out of order, and one of them twice, the second time unannounced.
                for (at, again) in [(first + 1, false), (first + 1, true), (first, false)] {
                    let taken = ahead.take(at << 20, 1 << 20, &go);
                    // A span announced earlier may still be being read, so there may be no room yet.
                    assert!(taken.is_none() || !again);
                    let at = (at << 20) as usize;
                    assert!(taken.is_none_or(|t| t.unwrap()[..] == bytes[at..at + (1 << 20)]));
                }
            }
            assert!(ahead.shared.state().used <= 2 << 20);
        }
        ahead.want([]);
        assert!(ahead.take(0, 1 << 20, &go).is_none());
        assert!(ahead.facts().most <= 2 << 20);
    }

    #[test]
    fn a_file_that_changes_is_an_error_and_waiting_ends_when_it_is_to() {
        let dir = tempfile::tempdir().unwrap();
        let (_, file) = file(dir.path(), 4 << 20);
        let ahead = ReadAhead::new(file, of(0..4 << 20), 8 << 20, false, Some(1)).unwrap();
        let go = Cancel::new();
        ahead.want([(0, 100), (1 << 20, 3 << 20)]);
        assert!(ahead.take(0, 100, &go).unwrap().is_ok());
        std::fs::OpenOptions::new().write(true).open(dir.path().join("f")).unwrap().set_len(1 << 20).unwrap();
        // Bytes read before the change are not returned either.
        let e = ahead.take(1 << 20, 3 << 20, &go).unwrap().unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("changed while it was open"), "{e}");
        assert_eq!(ahead.shared.state().used, 0);
        // A read that never starts, because the thread is blocked.
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        ahead.readers.add([Box::new(move || wait.recv().unwrap_or_default()) as Box<dyn FnOnce() + Send>], false);
        ahead.want([(0, 100)]);
        go.cancel();
        assert_eq!(ahead.take(0, 100, &go).unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        drop(stop);
    }
}
