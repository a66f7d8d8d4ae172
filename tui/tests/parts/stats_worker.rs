//! Reports of the worker for statistics, and their end.

use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use wcodec::{Dtype, EncodeOptions, MemorySource, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::model::FileModel;
use wcodec_tui::stats::{Fetch, Found, StatsEffect, StatsReport, Verdict};
use wcodec_tui::workers::stats::StatsWorker;

const LONG: Duration = Duration::from_secs(60);

/// A few matrices of 256 x 512, the first one large.
fn container() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    let mut source = MemorySource::new();
    for i in 0..6usize {
        let rows = if i == 0 { 1 << 14 } else { 256 };
        let bytes: Vec<u8> = (0..rows * 512)
            .flat_map(|k| half::bf16::from_f32(((k * (37 + i) % 1009) as f32 - 504.0) / 900.0).to_le_bytes())
            .collect();
        source.push(format!("t{i}"), Dtype::BF16, vec![rows, 512], bytes.into()).unwrap();
    }
    encode(&source, &path, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    (dir, path)
}

fn start(path: &std::path::Path) -> (StatsWorker, Arc<FileModel>, Receiver<Action>) {
    let file = Arc::new(FileModel::open(path).unwrap());
    let (sender, receiver) = channel();
    (StatsWorker::new(file.clone(), None, sender), file, receiver)
}

/// Reports until one of them is the last.
fn until(receiver: &Receiver<Action>, last: impl Fn(&StatsReport) -> bool) -> Vec<StatsReport> {
    let mut all = Vec::new();
    loop {
        let Action::Report(Report::Stats(report)) = receiver.recv_timeout(LONG).unwrap() else { panic!() };
        let is_last = last(&report);
        all.push(report);
        if is_last {
            return all;
        }
    }
}

fn is_ready(report: &StatsReport, wanted: usize) -> bool {
    matches!(report, StatsReport { tensor, found: Found::Stats(Fetch::Ready(_)), .. } if *tensor == wanted)
}

#[test]
fn statistics_come_with_progress() {
    let (_dir, path) = container();
    let (worker, _, receiver) = start(&path);
    worker.handle(0, StatsEffect::Compute(0));
    let all = until(&receiver, |r| is_ready(r, 0));
    assert!(matches!(all[0], StatsReport { tensor: 0, generation: 0, found: Found::Stats(Fetch::Running(_)) }));
    worker.handle(0, StatsEffect::Verify(vec![1, 2]));
    let is_last = |r: &StatsReport| {
        matches!(r, StatsReport { tensor: 2, found: Found::Verdict(Fetch::Ready(Verdict::Sound)), .. })
    };
    let all = until(&receiver, is_last);
    assert!(
        all.iter()
            .any(|r| matches!(r, StatsReport { tensor: 1, found: Found::Verdict(Fetch::Ready(Verdict::Sound)), .. }))
    );
}

#[test]
fn who_is_looked_at_comes_before_those_that_can_wait() {
    let (_dir, path) = container();
    let (worker, _, receiver) = start(&path);
    // The first one takes long: it is put off, and done in the end all the same.
    worker.handle(0, StatsEffect::Entropies(vec![0, 1, 2, 3, 4]));
    until(&receiver, |r| matches!(r, StatsReport { tensor: 0, found: Found::Stats(Fetch::Running(_)), .. }));
    worker.handle(0, StatsEffect::Compute(5));
    let mut ready = Vec::new();
    while ready.len() < 6 {
        let last = until(&receiver, |r| matches!(r, StatsReport { found: Found::Stats(Fetch::Ready(_)), .. }));
        if let Some(StatsReport { tensor, found: Found::Stats(_), .. }) = last.last() {
            ready.push(*tensor);
        }
    }
    assert_eq!(ready, [5, 0, 1, 2, 3, 4]);
}

#[test]
fn looking_at_another_gives_the_first_up_and_coming_back_begins_anew() {
    let (_dir, path) = container();
    let (worker, _, receiver) = start(&path);
    worker.handle(0, StatsEffect::Compute(0));
    until(&receiver, |r| matches!(r, StatsReport { tensor: 0, found: Found::Stats(Fetch::Running(_)), .. }));
    worker.handle(0, StatsEffect::Compute(1));
    worker.handle(0, StatsEffect::Compute(0));
    let all = until(&receiver, |r| is_ready(r, 0));
    let absent = all.iter().filter(|r| matches!(r, StatsReport { found: Found::Stats(Fetch::Absent), .. })).count();
    assert!(absent >= 1, "{absent}");
}

#[test]
fn cancelled_work_is_absent_and_never_heard_of_again() {
    let (_dir, path) = container();
    let (worker, file, receiver) = start(&path);
    worker.handle(0, StatsEffect::Compute(0));
    // More than can be done before they are cancelled.
    let many = (0..4).cycle().take(4000).collect();
    worker.handle(0, StatsEffect::Verify(many));
    until(&receiver, |r| matches!(r, StatsReport { tensor: 0, found: Found::Stats(Fetch::Running(_)), .. }));
    worker.handle(0, StatsEffect::Cancel);
    until(&receiver, |r| matches!(r, StatsReport { found: Found::Verdict(Fetch::Absent), .. }));
    // Nothing is done for an older file.
    worker.set_file(file, 1);
    worker.handle(0, StatsEffect::Compute(2));
    worker.handle(1, StatsEffect::Compute(3));
    let said = until(&receiver, |r| is_ready(r, 3));
    // A cancelled result is absent, or was done a moment before.
    let stays = |r: &StatsReport| match r {
        StatsReport { tensor, generation, found: Found::Stats(stats) } => match tensor {
            0 => *generation == 0 && !matches!(stats, Fetch::Running(_)),
            _ => (*tensor, *generation) == (3, 1),
        },
        StatsReport { found: Found::Verdict(verdict), .. } => matches!(verdict, Fetch::Absent),
    };
    assert!(said.iter().all(stays), "{said:?}");
}

#[test]
fn damage_is_named_and_a_changed_file_is_no_damage() {
    let (_dir, path) = container();
    let file = FileModel::open(&path).unwrap();
    let data = file.tensors[2].segments.iter().find(|s| s.role == "data").unwrap().clone();
    let write = |at: u64, bytes: &[u8]| {
        let mut f = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        f.seek(SeekFrom::Start(at)).unwrap();
        f.write_all(bytes).unwrap();
    };
    write(data.offset + 100, &[0xA5; 40]);
    let (worker, _, receiver) = start(&path);
    worker.handle(0, StatsEffect::Verify(vec![2]));
    let said = until(&receiver, |r| matches!(r, StatsReport { found: Found::Verdict(Fetch::Ready(_)), .. }));
    let Some(StatsReport { found: Found::Verdict(Fetch::Ready(verdict)), .. }) = said.last() else { panic!() };
    let segments = wcodec_tui::stats::verify::segments(&file, 2);
    let named: Vec<_> = segments.iter().filter(|(role, s)| verdict.names(role, s)).map(|(role, _)| *role).collect();
    assert_eq!(named, ["data"], "{verdict:?}");
    assert!(matches!(verdict, Verdict::Damaged(what) if what.starts_with("t2: ")), "{verdict:?}");

    // Cut off while open.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    worker.handle(0, StatsEffect::Compute(1));
    worker.handle(0, StatsEffect::Verify(vec![1]));
    let mut failed = (false, false);
    while failed != (true, true) {
        let said = until(&receiver, |r| {
            matches!(
                r,
                StatsReport { found: Found::Stats(Fetch::Failed(_)), .. }
                    | StatsReport { found: Found::Verdict(Fetch::Failed(_)), .. }
            )
        });
        match said.last() {
            Some(StatsReport { found: Found::Stats(Fetch::Failed(why)), .. }) => {
                assert!(why.contains("changed"), "{why}");
                failed.0 = true;
            }
            Some(StatsReport { found: Found::Verdict(Fetch::Failed(why)), .. }) => {
                assert!(why.contains("changed"), "{why}");
                failed.1 = true;
            }
            _ => panic!("{said:?}"),
        }
    }
}

#[test]
fn its_threads_end_with_it() {
    let (_dir, path) = container();
    let (worker, file, receiver) = start(&path);
    worker.handle(0, StatsEffect::Compute(0));
    drop(worker);
    let begin = Instant::now();
    // The threads hold the file, and the only senders.
    while receiver.recv_timeout(LONG).is_ok() {}
    while Arc::strong_count(&file) > 1 {
        assert!(begin.elapsed() < LONG);
        thread::sleep(Duration::from_millis(5));
    }
}
