//! Reports of the worker that times decoding, and their end.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use wcodec::{Dtype, EncodeOptions, MemorySource, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::model::FileModel;
use wcodec_tui::timing::{Lane, Progress, TimingEffect, TimingReport};
use wcodec_tui::workers::timing::TimingWorker;

/// Time between two reports at least.
const PAUSE: Duration = Duration::from_millis(50);
/// The time that dropping a worker may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn write(path: &Path, tensors: usize) {
    let mut source = MemorySource::new();
    for i in 0..tensors {
        let bytes: Vec<u8> =
            (0..64 * 64u32).flat_map(|k| half::bf16::from_f32((k * 37 % 101) as f32 - 50.0).to_le_bytes()).collect();
        source.push(format!("layers.{i}.weight"), Dtype::BF16, vec![64, 64], bytes.into()).unwrap();
    }
    encode(&source, path, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
}

struct Rig {
    worker: TimingWorker,
    reports: Receiver<Action>,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(tensors: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.wcodec");
        write(&path, tensors);
        let (sender, reports) = mpsc::channel();
        let worker = TimingWorker::new(Arc::new(FileModel::open(&path).unwrap()), Vec::new(), sender);
        Self { worker, reports, path, _dir: dir }
    }

    fn start(&mut self, run: u64, lane: Lane, tensors: &[usize]) {
        self.worker.handle(TimingEffect::Start { run, lane, tensors: tensors.into() });
    }

    fn next(&self) -> TimingReport {
        match self.reports.recv_timeout(LONG).expect("a report") {
            Action::Report(Report::Timing(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Why a run ended.
    fn failure(&self, wanted: u64) -> String {
        loop {
            match self.next() {
                TimingReport::Run { run, found: Err(why), .. } if run == wanted => return why,
                _ => {}
            }
        }
    }

    /// Reports of a run until `enough`.
    fn until(&self, wanted: u64, enough: impl Fn(&Progress) -> bool) -> Progress {
        loop {
            match self.next() {
                TimingReport::Run { run, found: Ok(progress), .. } if run == wanted && enough(&progress) => {
                    return progress;
                }
                TimingReport::Run { run, found: Err(why), .. } if run == wanted => panic!("{why}"),
                _ => {}
            }
        }
    }
}

#[test]
fn runs_arrive_and_stop_stops() {
    let mut rig = Rig::new(3);
    rig.start(1, Lane::Cpu(1), &[0, 2]);
    let began = Instant::now();
    let mut reports = 0;
    let progress = loop {
        let TimingReport::Run { run: 1, lane: Lane::Cpu(1), found: Ok(progress) } = rig.next() else {
            panic!("not progress")
        };
        reports += 1;
        if progress.runs >= 20 && reports >= 4 {
            break progress;
        }
    };
    let most = 2 + began.elapsed().as_millis() / PAUSE.as_millis();
    assert!(reports <= most, "{reports} reports in {:?}", began.elapsed());
    assert_eq!(progress.bytes, 2 * 64 * 64 * 2);
    assert!(!progress.verifying && progress.left_out.is_none() && progress.copy_gb_per_s.is_none());
    let mut tensors: Vec<usize> = progress.layers.iter().map(|l| l.tensor).collect();
    tensors.sort_unstable();
    assert_eq!(tensors, [0, 2]);
    assert!(progress.layers.iter().all(|l| l.ms.is_some_and(|ms| ms > 0.0) && l.gb_per_s().is_some()));
    assert!(progress.rounds.iter().all(|&ms| ms > 0.0));

    rig.worker.handle(TimingEffect::Stop);
    // Reports on their way may still come; then there is silence.
    std::thread::sleep(Duration::from_millis(200));
    while rig.reports.try_recv().is_ok() {}
    assert!(rig.reports.recv_timeout(Duration::from_millis(200)).is_err());
    // Another run begins, with other threads and tensors.
    rig.start(2, Lane::Cpu(2), &[1]);
    assert_eq!(rig.until(2, |p| p.runs > 3).layers[0].tensor, 1);
}

#[test]
fn damaged_tensors_are_left_out_with_a_reason() {
    let mut rig = Rig::new(2);
    let file = FileModel::open(&rig.path).unwrap();
    let segment = file.tensors[0].segments.iter().find(|s| s.role == "data").unwrap();
    let mut out = std::fs::OpenOptions::new().write(true).open(&rig.path).unwrap();
    out.seek(SeekFrom::Start(segment.offset + segment.length / 2)).unwrap();
    out.write_all(&[0x5A; 16]).unwrap();
    rig.worker.set_file(Arc::new(FileModel::open(&rig.path).unwrap()));
    rig.start(1, Lane::Cpu(1), &[0, 1]);
    let progress = rig.until(1, |p| p.runs > 2);
    let (count, why) = progress.left_out.unwrap();
    assert!(count == 1 && why.contains("hash"), "{why}");
    assert_eq!(progress.layers.len(), 2);
    assert!(progress.layers[1].tensor == 0 && progress.layers[1].error.is_some());
    assert_eq!(progress.bytes, 64 * 64 * 2);
    // Alone, it is the end of the run.
    rig.start(2, Lane::Cpu(1), &[0]);
    let why = rig.failure(2);
    assert!(why.contains("layers.0.weight") && why.contains("hash"), "{why}");
}

#[test]
fn files_can_be_changed() {
    let mut rig = Rig::new(1);
    rig.start(1, Lane::Cpu(1), &[0]);
    rig.until(1, |p| p.runs > 0);
    write(&rig.path.with_extension("other"), 4);
    rig.worker.set_file(Arc::new(FileModel::open(&rig.path.with_extension("other")).unwrap()));
    rig.start(2, Lane::Cpu(1), &[3]);
    assert_eq!(rig.until(2, |p| p.runs > 0).layers[0].tensor, 3);
    // Tensors that are not there are not decoded.
    rig.start(3, Lane::Cpu(1), &[9]);
    assert_eq!(rig.failure(3), "there is nothing to decode");
}

#[test]
fn a_file_that_changes_ends_the_run_with_a_reason() {
    let mut rig = Rig::new(2);
    rig.start(1, Lane::Cpu(1), &[0, 1]);
    rig.until(1, |p| p.runs > 0);
    std::fs::OpenOptions::new().write(true).open(&rig.path).unwrap().set_len(100).unwrap();
    let why = rig.failure(1);
    assert!(why.contains("changed while it was open"), "{why}");
}

#[test]
fn devices_are_named_or_the_reason_is() {
    let mut rig = Rig::new(1);
    rig.worker.handle(TimingEffect::Probe);
    assert!(matches!(rig.next(), TimingReport::Cores(n) if n > 0));
    let TimingReport::Gpus(found) = rig.next() else { panic!("not GPUs") };
    match wcodec::gpu::available() {
        Ok(()) => assert!(!found.unwrap().is_empty()),
        Err(e) => assert_eq!(found.unwrap_err(), e.to_string()),
    }
}

#[test]
fn a_gpu_that_is_not_there_is_a_reason() {
    let mut rig = Rig::new(1);
    rig.start(1, Lane::Gpu(999), &[0]);
    let why = rig.failure(1);
    let (text, code) = why.rsplit_once(" [").expect("the text of an error ends with its code");
    assert!(text.contains("GPU") && text.ends_with(')'), "no advice: {why}");
    assert!(wcodec::Code::from_id(code.trim_end_matches(']')).is_some(), "no code: {why}");
    // The CPU goes on as if nothing had been.
    rig.start(2, Lane::Cpu(1), &[0]);
    rig.until(2, |p| p.runs > 0);
}

#[test]
fn gpus_decode() {
    if let Err(e) = wcodec::gpu::available() {
        assert!(std::env::var("WCODEC_REQUIRE_GPU").as_deref() != Ok("1"), "a GPU is required: {e}");
        return;
    }
    let mut rig = Rig::new(70);
    let all: Vec<usize> = (0..70).collect();
    rig.start(1, Lane::Gpu(0), &all);
    let progress = rig.until(1, |p| p.runs > 5 && p.copy_gb_per_s.is_some());
    assert_eq!((progress.layers.len(), progress.left_out, progress.bytes), (70, None, 70 * 64 * 64 * 2));
    assert!(progress.layers.iter().all(|l| l.ms.is_some_and(|ms| ms > 0.0)));
}

#[test]
fn dropping_ends_the_thread() {
    let mut rig = Rig::new(1);
    rig.start(1, Lane::Cpu(1), &[0]);
    rig.until(1, |p| p.runs > 0);
    let Rig { worker, reports, .. } = rig;
    let began = Instant::now();
    drop(worker);
    assert!(began.elapsed() < PATIENCE);
    // No sender is left.
    loop {
        match reports.recv_timeout(Duration::from_secs(5)) {
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the thread lives on"),
        }
    }
}
