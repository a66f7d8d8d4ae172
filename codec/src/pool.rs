//! Threads for the parallel parts of an operation.

use crate::error::{Error, Result};

/// A number of threads, or rayon's own pool.
///
/// Operations enter it for their parallel parts only, so that progress is reported on the thread that called them: Python
/// handles Ctrl-C on its main thread alone.
#[derive(Debug)]
pub struct Pool(Option<rayon::ThreadPool>);

impl Pool {
    /// `threads` threads, or all cores.
    ///
    /// # Errors
    /// The operating system does not give so many.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let build = |n: usize| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(n.max(1))
                .build()
                .map_err(|e| Error::input(format!("cannot start {n} threads: {e}")).advice("ask for fewer"))
        };
        Ok(Self(threads.map(build).transpose()?))
    }

    /// Runs `work` there.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}
