//! Timing of decoding: what the state asks for, and what a worker answers.
//!
//! # What is timed
//! A *round* decodes every chosen tensor once, one after the other. A round's time is the sum of its tensors' times; what happens
//! between two tensors does not count.
//!
//! - On the CPU, a tensor's time is that of [`Container::read`](wcodec::Container::read) with so many threads: from compressed bytes in
//!   the page cache to values in the tensor's own dtype, in memory that is allocated for it. Hashes are compared once, before the
//!   first round, which also brings the file into the page cache; they are not compared in the rounds.
//! - On a GPU, compressed bytes are on the device already, and values (`BF16` for scheme `int8`, others their own) stay there. The
//!   time between two events of the device is taken. Copying as many bytes as are stored from pinned memory to the device is
//!   timed by itself.
//!
//! Throughput is that of the output: decoded bytes, 1 GB/s being 1e9 of them each second.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A device that decodes, with its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// The CPU with so many threads.
    Cpu(usize),
    /// A GPU, by its number among those that CUDA_VISIBLE_DEVICES leaves.
    Gpu(usize),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(1) => f.write_str("CPU, 1 thread"),
            Self::Cpu(n) => write!(f, "CPU, {n} threads"),
            Self::Gpu(n) => write!(f, "GPU {n}"),
        }
    }
}

/// A wish of the state about timing.
#[derive(Clone, Debug, PartialEq)]
pub enum TimingEffect {
    /// Say which devices there are.
    Probe,
    /// Decode these again and again, instead of what is being decoded.
    Start {
        /// A number that reports are to carry.
        run: u64,
        /// The device.
        lane: Lane,
        /// The tensors, by their places in the file.
        tensors: Arc<[usize]>,
    },
    /// Stop.
    Stop,
}

/// A GPU that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number among those that CUDA_VISIBLE_DEVICES leaves.
    pub ordinal: usize,
    /// The maker's name of it.
    pub name: String,
    /// Why it cannot decode, if it cannot.
    pub refused: Option<String>,
}

/// The time of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTime {
    /// The tensor, by its place in the file.
    pub tensor: usize,
    /// Decoded bytes.
    pub bytes: u64,
    /// Median of its times so far, milliseconds; nothing where it was not decoded yet, or cannot be.
    pub ms: Option<f64>,
    /// Why it cannot be decoded.
    pub error: Option<Arc<str>>,
}

impl LayerTime {
    /// Decoded bytes, in units of 1e9, each second.
    pub fn gb_per_s(&self) -> Option<f64> {
        self.ms.and_then(|ms| gb_per_s(self.bytes, ms))
    }
}

/// The measurements since the report before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Rounds in all since this run began.
    pub runs: u64,
    /// Milliseconds of the rounds since the report before, the last [`KEPT`] of them.
    pub rounds: Vec<f64>,
    /// Tensors of the round that is under way: done, and in all.
    pub done: (usize, usize),
    /// Whether hashes are being compared, before the first round.
    pub verifying: bool,
    /// Decoded bytes of a round.
    pub bytes: u64,
    /// Speed of the copy to the device, 1e9 bytes a second, where it was measured.
    pub copy_gb_per_s: Option<f64>,
    /// Tensors, the slowest first, those that cannot be decoded last. In this order for a second at least.
    pub layers: Arc<[LayerTime]>,
    /// The number of tensors that cannot be decoded and are left out, and the first one's reason.
    pub left_out: Option<(usize, Arc<str>)>,
}

/// A report of a worker on timings.
#[derive(Clone, Debug, PartialEq)]
pub enum TimingReport {
    /// The CPU can do so many threads at once.
    Cores(usize),
    /// The GPUs, or why there are none.
    Gpus(Result<Vec<Gpu>, String>),
    /// A run went on, or it ended, or could not begin.
    Run {
        /// The run.
        run: u64,
        /// The device.
        lane: Lane,
        /// The measurements, or why there are no more.
        found: Result<Progress, String>,
    },
}

/// Samples that a series keeps.
pub const KEPT: usize = 256;

/// The sample below or at which a share `q` (0 to 1) of all samples lie: nearest rank, so always one of them.
///
/// ```
/// use wcodec_tui::timing::percentile;
/// let sorted = [1.0, 2.0, 3.0, 4.0];
/// assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.95), percentile(&[], 0.5)), (Some(2.0), Some(4.0), None));
/// ```
pub fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Units of 1e9 bytes each second; nothing where no time was measured.
pub fn gb_per_s(bytes: u64, ms: f64) -> Option<f64> {
    (ms > 0.0).then(|| bytes as f64 / ms / 1e6)
}

/// Times of rounds, milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    recent: VecDeque<f64>,
    /// Rounds in all, those whose times are not kept or not known among them.
    pub runs: u64,
    /// Decoded bytes of a round.
    pub bytes: u64,
}

/// The figures of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Rounds in all.
    pub runs: u64,
    /// Rounds that the other figures are about: the last ones.
    pub samples: usize,
    /// Half of the rounds took no longer, milliseconds.
    pub p50: f64,
    /// 95 % of the rounds took no longer, milliseconds.
    pub p95: f64,
    /// The shortest, milliseconds.
    pub min: f64,
    /// The longest, milliseconds.
    pub max: f64,
    /// Decoded bytes at the median time, 1e9 a second.
    pub gb_per_s: Option<f64>,
}

impl Series {
    /// Adds a round's time, milliseconds.
    pub fn push(&mut self, ms: f64) {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(ms);
        self.runs += 1;
    }

    /// The last rounds' times, the oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = f64> + ExactSizeIterator + '_ {
        self.recent.iter().copied()
    }

    /// Its figures; nothing before the first round.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let p50 = percentile(&sorted, 0.5)?;
        Some(Summary {
            runs: self.runs,
            samples: sorted.len(),
            p50,
            p95: percentile(&sorted, 0.95)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            gb_per_s: gb_per_s(self.bytes, p50),
        })
    }
}
