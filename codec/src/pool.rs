//! Threads for the parallel parts of an operation.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Builder;

use crate::cancel::Cancel;
use crate::error::Result;

/// The most threads that can be asked for: more than any machine has cores, fewer than any system refuses.
const MOST: usize = 4096;

/// The threads of a process.
struct Crew {
    process: u32,
    /// Present until the crew is dropped.
    threads: Option<rayon::ThreadPool>,
    /// The crew of a process forked from this one, which has none of these threads.
    of_child: Place,
}

/// The slot of a crew. It is locked only for the moment of storing one: a lock that some thread holds during another
/// thread's fork would stay locked in the child for ever.
type Place = OnceLock<Box<Crew>>;

impl Crew {
    fn new(threads: Option<usize>) -> Result<Self> {
        // rayon takes 0 for "as many as there are cores".
        let wanted = threads.unwrap_or(0);
        let built = rayon::ThreadPoolBuilder::new().num_threads(wanted).thread_name(|i| format!("wcodec-{i}")).build();
        let threads = built.map_err(|e| {
            let number = if wanted == 0 { "a thread for each core".to_owned() } else { format!("{wanted} threads") };
            coded!(NO_THREADS, "cannot start {number}: {e}")
                .advice("ask for fewer, or raise the limit of processes (`ulimit -u`)")
        })?;
        Ok(Self { process: std::process::id(), threads: Some(threads), of_child: Place::new() })
    }

    /// This process's crew, kept at `place` or after those of its ancestors; started if there is none yet.
    fn of_this_process(mut place: &Place, threads: Option<usize>) -> Result<&rayon::ThreadPool> {
        let mut made = None;
        loop {
            if let Some(crew) = place.get() {
                if crew.process == std::process::id() {
                    return Ok(crew.threads.as_ref().expect("not dropped"));
                }
                place = &crew.of_child;
                continue;
            }
            let new = match made.take() {
                Some(new) => new,
                None => Box::new(Self::new(threads)?),
            };
            // Another thread of this process may be faster: the next iteration then finds its crew.
            made = place.set(new).err();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent's threads do not exist here, so they cannot be joined.
            std::mem::forget(self.threads.take());
        }
    }
}

/// The crew of operations that do not ask for a number of threads.
static SHARED: Place = Place::new();

/// A pool with its own number of threads, or the one that all operations share, with a thread for each core.
///
/// Threads are started on first use, and again in a forked process, which has none of its parent's threads: rayon's
/// global pool would block for ever there.
///
/// ```
/// use wcodec::Pool;
/// let pool = Pool::new(Some(2)).unwrap();
/// assert_eq!(pool.run(|| 6 * 7).unwrap(), 42);
/// assert!(Pool::new(Some(1_000_000)).is_err());
/// ```
pub struct Pool {
    threads: Option<usize>,
    crew_place: Place,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` threads, at least one, or the shared one.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): more than 4,096, or more than the operating system allows.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let threads = threads.map(|n| n.max(1));
        if let Some(n) = threads.filter(|&n| n > MOST) {
            return Err(coded!(BAD_NUMBER, "{n} threads were asked for").advice(format!("use at most {MOST}")));
        }
        let pool = Self { threads, crew_place: Place::new() };
        pool.crew()?;
        Ok(pool)
    }

    /// A pool of `threads` threads, which are started on first use.
    pub(crate) fn on_demand(threads: usize) -> Self {
        Self { threads: Some(threads.clamp(1, MOST)), crew_place: Place::new() }
    }

    /// Returns this pool, or a new one of the same size if the calling thread is one of its own: such a thread could
    /// wait for ever for others that use the pool, because all its threads may be waiting in the same way.
    pub(crate) fn unless_inside(self) -> Result<Self> {
        let crew = self.crew()?;
        match crew.current_thread_index() {
            None => Ok(self),
            Some(_) => Ok(Self::on_demand(crew.current_num_threads())),
        }
    }

    fn crew(&self) -> Result<&rayon::ThreadPool> {
        Crew::of_this_process(if self.threads.is_some() { &self.crew_place } else { &SHARED }, self.threads)
    }

    /// Runs `work` on the pool and waits for it.
    ///
    /// # Errors
    /// The threads must be started anew, and the operating system refuses so many.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        Ok(self.crew()?.install(work))
    }

    /// Runs `work` on each of `items` as threads become free; returns the results in the order of the items.
    ///
    /// Several operations may do this at once: earlier items start first, and no thread waits for another one's item.
    /// So an item should take a few milliseconds, and not use the pool itself.
    ///
    /// # Errors
    /// The first one, in the order of the items; `cancel` was used; or as for [`run`](Self::run).
    pub(crate) fn each<I: Send, R: Send>(
        &self,
        items: impl IntoIterator<Item = I>,
        cancel: &Cancel,
        work: impl Fn(I) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let items: Vec<I> = items.into_iter().collect();
        let mut results: Vec<Option<Result<R>>> = items.iter().map(|_| None).collect();
        let failed = AtomicUsize::new(usize::MAX);
        let (work, failed) = (&work, &failed);
        self.crew()?.in_place_scope(|scope| {
            for (i, (item, result)) in items.into_iter().zip(&mut results).enumerate() {
                scope.spawn(move |_| {
                    // Only items after an error are skipped, so that the first error is always the same.
                    if i < failed.load(Ordering::Relaxed) {
                        let done = cancel.check().and_then(|()| work(item));
                        if done.is_err() {
                            failed.fetch_min(i, Ordering::Relaxed);
                        }
                        *result = Some(done);
                    }
                });
            }
        });
        results.into_iter().map(|r| r.expect("nothing is left out before an error")).collect()
    }

    /// Runs `work` on each of `items`, of which several are in progress at once; returns the results in the order of the
    /// items. As opposed to items of [`each`](Self::each), these use the pool themselves: threads that are started here
    /// wait for the pool's, and do no work of their own.
    ///
    /// # Errors
    /// The first one, in the order of the items; `cancel` was used; or as for [`run`](Self::run).
    pub(crate) fn side_by_side<I: Send, R: Send>(
        &self,
        items: impl IntoIterator<Item = I>,
        cancel: &Cancel,
        work: impl Fn(I) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let items: Vec<I> = items.into_iter().collect();
        let mut results: Vec<Option<Result<R>>> = items.iter().map(|_| None).collect();
        let others = (self.threads()?.min(items.len())).saturating_sub(1);
        let queue = Mutex::new(items.into_iter().zip(&mut results));
        let failed = AtomicBool::new(false);
        let take = || {
            loop {
                // Items are taken in their order, and each that is taken is worked on: so all before a failed one are, and
                // the first error is always the same.
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                let next = if failed.load(Ordering::Relaxed) { None } else { queue.next() };
                drop(queue);
                let Some((item, result)) = next else { return };
                let done = cancel.check().and_then(|()| work(item));
                failed.fetch_or(done.is_err(), Ordering::Relaxed);
                *result = Some(done);
            }
        };
        std::thread::scope(|scope| {
            for i in 0..others {
                // Without further threads this one does all of the work.
                if Builder::new().name(format!("wcodec-item-{i}")).spawn_scoped(scope, take).is_err() {
                    break;
                }
            }
            take();
        });
        results.into_iter().map(|r| r.expect("nothing is left out before an error")).collect()
    }

    /// The number of elements in one piece of work, given `total` of them: several pieces for each thread, so that all
    /// end at about the same time, each large enough to outweigh the overhead.
    pub(crate) fn piece(&self, total: usize) -> usize {
        let threads = self.threads().unwrap_or(1);
        (total / (4 * threads)).clamp(1 << 16, 1 << 20)
    }

    /// The number of threads.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn threads(&self) -> Result<usize> {
        Ok(self.crew()?.current_num_threads())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn operations_share_threads_unless_they_ask_for_a_number() {
        let names = |pool: &Pool| {
            pool.run(|| {
                (0..64).into_par_iter().map(|_| std::thread::current().id()).collect::<std::collections::HashSet<_>>()
            })
            .unwrap()
        };
        let (a, b) = (Pool::new(None).unwrap(), Pool::new(None).unwrap());
        assert!(ptr::eq(a.crew().unwrap(), b.crew().unwrap()));
        assert_eq!(Pool::new(Some(3)).unwrap().threads().unwrap(), 3);
        assert_eq!(names(&Pool::new(Some(1)).unwrap()).len(), 1);
        assert_eq!(Pool::new(Some(0)).unwrap().threads().unwrap(), 1);
    }

    #[test]
    fn each_gives_results_in_order_and_the_first_error() {
        let pool = Pool::new(Some(3)).unwrap();
        let go = Cancel::new();
        assert_eq!(pool.each(0..100, &go, |i| Ok(i * i)).unwrap()[99], 99 * 99);
        assert!(pool.each(0..0, &go, |i: i32| Ok(i)).unwrap().is_empty());
        for _ in 0..50 {
            let fail = |i: i32| if i % 7 == 6 { Err(coded!(INPUT, "item {i}")) } else { Ok(i) };
            assert_eq!(pool.each(0..100, &go, fail).unwrap_err().message(), "item 6");
        }
        // Also from a thread of the pool, which then helps.
        assert_eq!(pool.run(|| pool.each(0..4, &go, Ok)).unwrap().unwrap(), [0, 1, 2, 3]);
        let part = go.part();
        part.cancel();
        assert!(pool.each(0..1, &part, Ok).is_err());
        assert!(pool.each(0..1, &go, Ok).is_ok());
        let part = go.part();
        go.cancel();
        assert!(part.is_cancelled());
    }

    #[test]
    fn items_side_by_side_use_the_pool_themselves() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(Some(threads)).unwrap();
            let go = Cancel::new();
            let sum = |i: usize| Ok(pool.each(0..10, &go, |j| Ok(10 * i + j))?.into_iter().sum::<usize>());
            let sums = pool.side_by_side(0..50, &go, sum).unwrap();
            assert!(sums.iter().enumerate().all(|(i, &sum)| sum == 100 * i + 45));
            assert!(pool.side_by_side(0..0, &go, |i: i32| Ok(i)).unwrap().is_empty());
            for _ in 0..50 {
                let fail = |i: i32| if i % 7 == 6 { Err(coded!(INPUT, "item {i}")) } else { Ok(i) };
                assert_eq!(pool.side_by_side(0..100, &go, fail).unwrap_err().message(), "item 6");
            }
            let part = go.part();
            part.cancel();
            assert!(pool.side_by_side(0..1, &part, Ok).is_err());
        }
    }

    #[test]
    fn absurd_numbers_are_refused_with_a_bound() {
        for n in [MOST + 1, 1_000_000, usize::MAX] {
            let e = Pool::new(Some(n)).unwrap_err();
            assert!(e.to_string().contains("at most 4096"), "{e}");
        }
    }

    #[test]
    fn a_child_gets_a_crew_of_its_own_and_leaves_its_parents_alone() {
        let place = Place::new();
        // As a grandchild process finds it.
        let parent = |of_child: Place| {
            let threads = Crew::new(Some(1)).unwrap().threads.take();
            Box::new(Crew { process: std::process::id() ^ 1, threads, of_child })
        };
        let (outer, inner) = (Place::new(), Place::new());
        outer.set(parent(inner)).ok().unwrap();
        place.set(parent(outer)).ok().unwrap();
        let mine: *const _ = Crew::of_this_process(&place, Some(2)).unwrap();
        let again = Crew::of_this_process(&place, Some(2)).unwrap();
        assert!(ptr::eq(mine, again));
        assert_eq!(again.current_num_threads(), 2);
        assert_eq!(again.install(rayon::current_num_threads), 2);
    }
}
