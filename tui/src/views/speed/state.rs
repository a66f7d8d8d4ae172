//! The subject of timings, the devices, and their times.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::draw::Cursor;
use crate::stats::Fetch;
use crate::timing::{Gpu, Lane, LayerTime, Progress, Series};

worded! {
    /// The tensors that are timed.
    #[derive(Default)]
    Scope {
        Layer = "tensor", "one tensor";
        Module = "module", "all tensors of its module, or of the module that is selected";
        #[default]
        File = "file", "all tensors";
    }
}

worded! {
    /// The order of the timed tensors; its word is the title of the list.
    #[derive(Default)]
    Order {
        #[default]
        Time = "slowest first", "the longest times first";
        Speed = "fewest GB/s first", "the lowest throughput first";
        Size = "largest first", "the most decoded bytes first";
        Name = "by name", "natural order of the names";
    }
}

impl Order {
    /// The tensors in this order, those that cannot be decoded last. They come the slowest first; `natural` is the natural order of all.
    pub fn sorted(self, layers: &Arc<[LayerTime]>, natural: &[usize]) -> Arc<[LayerTime]> {
        if self == Self::Time {
            return layers.clone();
        }
        let mut rank = Vec::new();
        if self == Self::Name {
            rank = vec![usize::MAX; natural.len()];
            natural.iter().enumerate().for_each(|(at, &i)| rank[i] = at);
        }
        let mut sorted: Vec<LayerTime> = layers.to_vec();
        sorted.sort_by(|a, b| {
            let order = match self {
                Self::Time => Ordering::Equal,
                Self::Speed => {
                    let speed = |l: &LayerTime| l.gb_per_s().unwrap_or(f64::INFINITY);
                    speed(a).total_cmp(&speed(b))
                }
                Self::Size => b.bytes.cmp(&a.bytes),
                Self::Name => rank.get(a.tensor).cmp(&rank.get(b.tensor)),
            };
            a.error.is_some().cmp(&b.error.is_some()).then(order)
        });
        sorted.into()
    }
}

/// A device that was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU, by its number.
    Gpu(usize),
}

/// The tensors that are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The file that is meant.
    pub generation: u64,
    /// One tensor, a module, or all.
    pub scope: Scope,
    /// Its name.
    pub title: String,
    /// The tensors, by their places in the file.
    pub tensors: Arc<[usize]>,
}

/// The results of one device, with so many threads.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneState {
    /// The device.
    pub lane: Lane,
    /// The rounds.
    pub series: Series,
    /// The last report; its tensors are the slowest first.
    pub last: Progress,
    /// Tensors in the order that was chosen.
    pub layers: Arc<[LayerTime]>,
    /// Why it stopped.
    pub failed: Option<String>,
}

impl LaneState {
    /// A device that did nothing yet.
    pub fn new(lane: Lane) -> Self {
        Self { lane, series: Series::default(), last: Progress::default(), layers: Arc::default(), failed: None }
    }

    /// Adds what was measured; `natural` is the natural order of tensors.
    pub fn take(&mut self, mut progress: Progress, order: Order, natural: &[usize]) {
        let new = progress.runs.saturating_sub(self.last.runs);
        self.series.bytes = progress.bytes;
        self.series.runs += new.saturating_sub(progress.rounds.len() as u64);
        progress.rounds.drain(..).for_each(|ms| self.series.push(ms));
        progress.copy_gb_per_s = progress.copy_gb_per_s.or(self.last.copy_gb_per_s);
        if progress.layers.is_empty() {
            progress.layers = self.last.layers.clone();
        } else {
            self.layers = order.sorted(&progress.layers, natural);
        }
        self.last = progress;
    }
}

/// The subject of timing, the devices, and their results.
#[derive(Clone, Debug, Default)]
pub struct SpeedState {
    /// Threads that the CPU can do at once; 0 where not known yet.
    pub cores: usize,
    /// Threads that were chosen; 0 for all cores.
    pub threads: usize,
    /// The GPUs.
    pub gpus: Fetch<Vec<Gpu>>,
    /// The device that was chosen.
    pub device: Device,
    /// One tensor, a module, or all.
    pub scope: Scope,
    /// The order of the tensors.
    pub order: Order,
    /// Whether the user paused.
    pub paused: bool,
    /// The run that is under way.
    pub running: Option<u64>,
    /// Runs that there were.
    pub runs: u64,
    /// The tensors that are timed.
    pub subject: Option<Subject>,
    /// The results, by device.
    pub lanes: Vec<LaneState>,
    /// The selected row of the tensors.
    pub cursor: Cursor,
}

/// A row of the table of devices: one that decodes, a GPU that did nothing yet, or words on GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceRow<'a> {
    /// The device; none where it is not known which GPUs there are, or there is none.
    pub lane: Option<Lane>,
    /// Its results, if it was chosen.
    pub results: Option<&'a LaneState>,
    /// Why it cannot decode, as far as that is known.
    pub refused: Option<&'a str>,
}

impl SpeedState {
    /// The device that was chosen, with its threads.
    pub fn lane(&self) -> Lane {
        match self.device {
            Device::Gpu(n) => Lane::Gpu(n),
            Device::Cpu => Lane::Cpu(self.cpu_threads()),
        }
    }

    /// Threads of the CPU.
    pub fn cpu_threads(&self) -> usize {
        if self.threads == 0 { self.cores.max(1) } else { self.threads }
    }

    /// The results of the chosen device.
    pub fn current(&self) -> Option<&LaneState> {
        let lane = self.lane();
        self.lanes.iter().find(|l| l.lane == lane)
    }

    /// The results of a device, which is added if it is not there.
    pub fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        let at = self.lanes.partition_point(|l| l.lane < lane);
        if self.lanes.get(at).is_none_or(|l| l.lane != lane) {
            self.lanes.insert(at, LaneState::new(lane));
        }
        &mut self.lanes[at]
    }

    /// The rows of the table of devices: the CPU with the numbers of threads that were tried, then all GPUs.
    pub fn device_rows(&self) -> Vec<DeviceRow<'_>> {
        let row = |lane: Lane| {
            let results = self.lanes.iter().find(|l| l.lane == lane);
            // One that is too old is known to be before it is tried.
            let is_new = results.is_none_or(|l| l.series.runs == 0);
            let old = self.gpu(lane).and_then(|g| g.refused.as_deref()).filter(|_| is_new);
            DeviceRow { lane: Some(lane), results, refused: results.and_then(|l| l.failed.as_deref()).or(old) }
        };
        let tried = self.lanes.iter().map(|l| l.lane);
        let (cpus, others): (Vec<Lane>, Vec<Lane>) = tried.partition(|lane| matches!(lane, Lane::Cpu(_)));
        let gpus = self.gpus.ready().into_iter().flatten().map(|g| row(Lane::Gpu(g.ordinal)));
        let words = match &self.gpus {
            Fetch::Ready(_) => None,
            other => Some(DeviceRow { refused: other.failed(), ..DeviceRow::default() }),
        };
        // One that was asked for by its number may not be there.
        let missing = others.into_iter().filter(|&lane| self.gpu(lane).is_none()).map(row);
        cpus.into_iter().map(row).chain(gpus).chain(words).chain(missing).collect()
    }

    /// The GPU of a lane, if it is known.
    pub fn gpu(&self, lane: Lane) -> Option<&Gpu> {
        self.gpus.ready()?.iter().find(|g| lane == Lane::Gpu(g.ordinal))
    }

    /// Tensors of the chosen device's list.
    pub fn layers(&self) -> &[LayerTime] {
        self.current().map_or(&[], |l| &l.layers)
    }

    /// Shares the rows of a view of `body` rows.
    pub fn heights(&self, body: usize) -> Heights {
        // A line on what is timed, the tables' heads, and a gap between them where there is room.
        let gap = usize::from(body >= 12);
        let left = body.saturating_sub(3 + gap);
        let wanted = self.device_rows().len();
        let devices = wanted.min((left / 2).max(1)).min(left);
        let list = left - devices;
        let needed = self.layers().len().max(1);
        // A gap, a head, and at least six rows: a chart of less is no better than the sparkline.
        match list.checked_sub(needed + 2) {
            Some(chart) if chart >= 6 => Heights { devices, gap, layers: needed, chart },
            // A long list leaves a third of a large screen.
            _ if list >= 24 => Heights { devices, gap, layers: list - list / 3 - 2, chart: list / 3 },
            _ => Heights { devices, gap, layers: list, chart: 0 },
        }
    }
}

/// Rows of the view's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heights {
    /// Rows of the table of devices, without its head.
    pub devices: usize,
    /// Between the tables.
    pub gap: usize,
    /// Rows of the list of tensors, without its head.
    pub layers: usize,
    /// Rows of the chart of the last rounds, which has a gap and a head of one row each above it; 0 where there is no room.
    pub chart: usize,
}
