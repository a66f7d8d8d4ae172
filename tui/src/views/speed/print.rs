//! Timings without a screen: `--tab speed` as text, and the file that the key writes.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wcodec::text::ascii_json;

use super::{Device, LaneState, SpeedState};
use crate::action::{Action, Report};
use crate::model::FileModel;
use crate::plain;
use crate::run::once::Once;
use crate::timing::{Lane, TimingEffect, TimingReport};
use crate::workers::timing::TimingWorker;

/// Rounds that are enough, and how long it is gone on for fewer.
const ROUNDS: u64 = 16;
const LONGEST: Duration = Duration::from_secs(3);

/// Decodes the tensors that are shown for some rounds, at least one, and writes what was measured.
pub fn rounds(once: &Once<'_>) -> Result<String, String> {
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
    let mut worker = TimingWorker::new((*file).clone(), options.nvcomp_folders.clone(), sender);
    worker.handle(TimingEffect::Start { run: 1, lane, tensors: shown[..].into() });
    let mut state = LaneState::new(lane);
    let begin = Instant::now();
    // A round may take minutes; what is sent twenty times a second says that it goes on.
    while state.series.runs == 0 || (state.series.runs < ROUNDS && begin.elapsed() < LONGEST) {
        match receiver.recv().map_err(|_| "the thread for timings ended")? {
            Action::Report(Report::Timing(TimingReport::Run { found: Ok(progress), .. })) => {
                state.take(progress, Default::default(), &file.natural);
            }
            Action::Report(Report::Timing(TimingReport::Run { found: Err(why), .. }) | Report::Error(why)) => {
                return Err(why);
            }
            _ => {}
        }
    }
    Ok(plain::timing(file, &state, *look))
}

/// The version of the document. It changes when a key changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;

/// The measurements of each device as a document in ASCII: times in milliseconds, throughput in 1e9 bytes of output each second. Percentiles are
/// of the last `samples` rounds, by nearest rank; those of tensors are of their last decodings.
pub fn json(file: &FileModel, timing: &SpeedState) -> String {
    let subject = timing.subject.as_ref();
    let mut devices: Vec<Value> = timing.lanes.iter().map(|l| device(file, timing, l)).collect();
    devices.extend(timing.gpus.failed().map(|why| json!({"device": "gpu", "error": why})));
    for gpu in timing.gpus.ready().into_iter().flatten() {
        if timing.lanes.iter().all(|l| l.lane != Lane::Gpu(gpu.ordinal)) {
            devices.push(json!({
                "device": "gpu", "ordinal": gpu.ordinal, "name": gpu.name, "error": gpu.refused, "runs": 0,
            }));
        }
    }
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "writer": format!("wcodec-tui {}", env!("CARGO_PKG_VERSION")),
        "file": file.path.display().to_string(),
        "file_bytes": file.file_bytes(),
        "scope": timing.scope.name(),
        "subject": subject.map(|s| &s.title),
        "tensors": subject.map_or(0, |s| s.tensors.len()),
        "cores": timing.cores,
        "devices": devices,
    });
    ascii_json(&format!("{document:#}\n")).into_owned()
}

fn device(file: &FileModel, timing: &SpeedState, lane: &LaneState) -> Value {
    let summary = lane.series.summary();
    let layer = |l: &crate::timing::LayerTime| {
        json!({
            "name": file.tensors.get(l.tensor).map(|t| &t.name),
            "output_bytes": l.bytes,
            "ms": l.ms,
            "gb_per_s": l.gb_per_s(),
            "error": l.error.as_deref(),
        })
    };
    let mut entry = json!({
        "runs": lane.series.runs,
        "samples": summary.map_or(0, |s| s.samples),
        "output_bytes": lane.series.bytes,
        "ms": summary.map(|s| json!({"p50": s.p50, "p95": s.p95, "min": s.min, "max": s.max})),
        "gb_per_s": summary.and_then(|s| s.gb_per_s),
        "copy_gb_per_s": lane.last.copy_gb_per_s,
        "error": lane.failed,
        "left_out": lane.last.left_out.as_ref().map_or(0, |(n, _)| *n),
        "layers": lane.layers.iter().map(layer).collect::<Vec<_>>(),
    });
    match lane.lane {
        Lane::Cpu(threads) => (entry["device"], entry["threads"]) = ("cpu".into(), threads.into()),
        Lane::Gpu(ordinal) => (entry["device"], entry["ordinal"]) = ("gpu".into(), ordinal.into()),
    }
    if let Some(gpu) = timing.gpu(lane.lane) {
        entry["name"] = gpu.name.as_str().into();
    }
    entry
}
