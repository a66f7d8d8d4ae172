//! `--tab speed` without a screen: some rounds on one device, then a table.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::{Device, LaneState, take};
use crate::action::{Action, Report};
use crate::plain;
use crate::run::once::Once;
use crate::timing::{Lane, TimingEffect, TimingReport};
use crate::workers::timing::TimingWorker;

/// Rounds that are enough, and how long it is gone on for fewer.
const ROUNDS: u64 = 16;
const LONGEST: Duration = Duration::from_secs(3);

/// Decodes the tensors that are shown for some rounds, at least one, and writes what was measured.
pub fn print(once: &Once<'_>) -> Result<String, String> {
    let Once { options, file, shown, look, .. } = once;
    file.container().map_err(|e| e.to_string())?;
    if shown.is_empty() {
        return Err("there is nothing to time: the filter leaves no tensor".to_owned());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lane = match options.device.unwrap_or_default() {
        Device::Gpu(n) => Lane::Gpu(n),
        Device::Cpu => Lane::Cpu(options.threads.map_or(cores, usize::from)),
    };
    let (sender, receiver) = channel();
    let worker = TimingWorker::new((*file).clone(), options.nvcomp_folders.clone(), sender);
    worker.handle(TimingEffect::Start { run: 1, lane, tensors: shown[..].into() });
    let mut state = LaneState::new(lane);
    let begin = Instant::now();
    // A round may take minutes; what is sent twenty times a second says that it goes on.
    while state.series.runs() == 0 || (state.series.runs() < ROUNDS && begin.elapsed() < LONGEST) {
        match receiver.recv().map_err(|_| "the thread for timings ended")? {
            Action::Report(Report::Timing(TimingReport::Progress { progress, .. })) => {
                take(&mut state, progress, Default::default(), &file.natural);
            }
            Action::Report(Report::Timing(TimingReport::Failed { why, .. }) | Report::Error(why)) => return Err(why),
            _ => {}
        }
    }
    Ok(plain::timing(file, &state, *look))
}
