//! Timings as a JSON document.

use serde_json::{Value, json};
use wcodec::text::ascii_json;

use super::{Gpus, LaneState, SpeedState};
use crate::model::FileModel;
use crate::timing::Lane;

/// The version of the document. It changes when a key changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// The document as text in ASCII, with a newline at its end.
pub fn text(file: &FileModel, timing: &SpeedState) -> String {
    ascii_json(&format!("{:#}\n", document(file, timing))).into_owned()
}

/// The measurements of each device: times in milliseconds, throughput in 1e9 bytes of output each second. Percentiles are of the last
/// `samples` rounds, by nearest rank; those of tensors are of their last decodings.
pub fn document(file: &FileModel, timing: &SpeedState) -> Value {
    let subject = timing.subject.as_ref();
    let mut devices: Vec<Value> = timing.lanes.iter().map(|l| device(file, l)).collect();
    match &timing.gpus {
        Gpus::None(why) => devices.push(json!({"device": "gpu", "error": why})),
        Gpus::Found(gpus) => {
            for gpu in gpus.iter().filter(|g| timing.lanes.iter().all(|l| l.lane != Lane::Gpu(g.ordinal))) {
                devices.push(json!({
                    "device": "gpu", "ordinal": gpu.ordinal, "name": gpu.name, "error": gpu.refused, "runs": 0,
                }));
            }
        }
        Gpus::Unknown | Gpus::Looking => {}
    }
    for entry in &mut devices {
        let name = match (&timing.gpus, entry["ordinal"].as_u64()) {
            (Gpus::Found(gpus), Some(n)) => gpus.iter().find(|g| g.ordinal as u64 == n).map(|g| g.name.clone()),
            _ => None,
        };
        if let Some(name) = name {
            entry["name"] = name.into();
        }
    }
    json!({
        "schema_version": SCHEMA_VERSION,
        "writer": format!("wcodec-tui {}", env!("CARGO_PKG_VERSION")),
        "file": file.path.display().to_string(),
        "file_bytes": file.file_bytes(),
        "scope": timing.scope.name(),
        "subject": subject.map(|s| &s.title),
        "tensors": subject.map_or(0, |s| s.tensors.len()),
        "cores": timing.cores,
        "devices": devices,
    })
}

fn device(file: &FileModel, lane: &LaneState) -> Value {
    let summary = lane.series.summary();
    let layers: Vec<Value> = lane
        .layers
        .iter()
        .map(|l| {
            json!({
                "name": file.tensors.get(l.tensor).map(|t| &t.name),
                "output_bytes": l.bytes,
                "ms": l.ms,
                "gb_per_s": l.gb_per_s(),
                "error": l.error.as_deref(),
            })
        })
        .collect();
    let mut entry = json!({
        "runs": lane.series.runs(),
        "samples": summary.map_or(0, |s| s.samples),
        "output_bytes": lane.series.bytes,
        "ms": summary.map(|s| json!({"p50": s.p50, "p95": s.p95, "min": s.min, "max": s.max})),
        "gb_per_s": summary.and_then(|s| s.gb_per_s),
        "copy_gb_per_s": lane.copy_gb_per_s,
        "error": lane.failed,
        "left_out": lane.left_out.as_ref().map_or(0, |(n, _)| *n),
        "layers": layers,
    });
    match lane.lane {
        Lane::Cpu(threads) => {
            entry["device"] = "cpu".into();
            entry["threads"] = threads.into();
        }
        Lane::Gpu(ordinal) => {
            entry["device"] = "gpu".into();
            entry["ordinal"] = ordinal.into();
        }
    }
    entry
}
