//! Threads for work on the rows of a matrix.

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::Builder;

/// The fewest rows that are worth a thread.
const ROWS_OF_A_THREAD: usize = 256;

/// The results of `work` for all rows, `step` rows at a time, in their order.
///
/// Not by the threads that operations share: those may be waiting for Python, which waits here. This thread processes the
/// last rows, and those that the system refuses a thread for.
pub fn over_rows<R: Send>(rows: usize, step: usize, threads: usize, work: impl Fn(usize, usize) -> R + Sync) -> Vec<R> {
    let parts = rows.div_ceil(step);
    let threads = threads.min(rows / ROWS_OF_A_THREAD).max(1);
    let each = parts.div_ceil(threads).max(1);
    let ranges: Vec<_> = (0..parts).step_by(each).map(|begin| begin..(begin + each).min(parts)).collect();
    let some = |parts: Range<usize>| -> Vec<R> {
        parts.map(|part| work(part * step, ((part + 1) * step).min(rows))).collect()
    };
    let some = &some;
    let mut done: Vec<Vec<R>> = std::thread::scope(|scope| {
        let start = |(place, range): (usize, Range<usize>)| {
            let (is_last, rows_of_thread) = (place + 1 == ranges.len(), range.clone());
            let thread = (!is_last).then(|| Builder::new().spawn_scoped(scope, move || some(rows_of_thread)).ok());
            (range, thread.flatten())
        };
        let begun: Vec<_> = ranges.iter().cloned().enumerate().map(start).collect();
        let done = begun.into_iter().rev().map(|(range, thread)| match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => some(range),
        });
        done.collect()
    });
    done.reverse();
    done.into_iter().flatten().collect()
}
