//! The view of timings: what keys and reports change.

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use wcodec::{Dtype, EncodeOptions, MemorySource, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::Look;
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::State;
use wcodec_tui::stats::Fetch;
use wcodec_tui::timing::{
    Gpu, KEPT, Lane, LayerTime, Progress, Series, TimingEffect, TimingReport, gb_per_s, percentile,
};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::speed::{Scope, SpeedState};

fn file() -> Arc<FileModel> {
    let mut source = MemorySource::new();
    for layer in 0..3 {
        for part in ["mlp.down_proj", "mlp.up_proj"] {
            let bytes: Vec<u8> = (0..512u32).map(|i| (i * 29 % 64) as u8).collect();
            source.push(format!("layers.{layer}.{part}.weight"), Dtype::BF16, vec![16, 16], bytes.into()).unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.wcodec");
    encode(&source, &path, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    Arc::new(FileModel::open(&path).unwrap())
}

/// A state with the first tensor selected, which is timed alone, on a machine with 6 cores.
fn opened() -> State {
    let mut state = State::new(file(), None, Look::default(), (100, 30));
    state.views.speed.scope = Scope::Layer;
    press(&mut state, "n");
    report(&mut state, TimingReport::Cores(6));
    state
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    let key = |c| Action::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
    keys.chars().flat_map(|c| update(state, key(c))).collect()
}

fn report(state: &mut State, report: TimingReport) -> Vec<Effect> {
    update(state, Action::Report(Report::Timing(report)))
}

/// Lanes and tensors of the runs that begin.
fn starts(effects: &[Effect]) -> Vec<(Lane, Vec<usize>)> {
    let start = |e: &Effect| match e {
        Effect::Timing(TimingEffect::Start { lane, tensors, .. }) => Some((*lane, tensors.to_vec())),
        _ => None,
    };
    effects.iter().filter_map(start).collect()
}

fn progress(runs: u64, rounds: &[f64]) -> Progress {
    let layer = LayerTime { tensor: 0, bytes: 512, ms: rounds.last().copied(), error: None };
    Progress {
        runs,
        rounds: rounds.to_vec(),
        done: (0, 1),
        verifying: false,
        bytes: 512,
        copy_gb_per_s: None,
        layers: [layer].into(),
        left_out: None,
    }
}

fn stopped(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Timing(TimingEffect::Stop))
}

#[test]
fn entering_times_the_layer_and_leaving_stops() {
    let mut state = opened();
    let effects = press(&mut state, "5");
    assert!(effects.contains(&Effect::Timing(TimingEffect::Probe)));
    assert_eq!(starts(&effects), [(Lane::Cpu(6), vec![0])]);
    assert_eq!(state.views.speed.subject.as_ref().unwrap().title, "layers.0.mlp.down_proj.weight");
    // Devices are looked for once.
    assert!(stopped(&press(&mut state, "2")) && state.views.speed.running.is_none());
    assert!(!press(&mut state, "5").contains(&Effect::Timing(TimingEffect::Probe)));
}

#[test]
fn without_the_number_of_cores_nothing_begins_until_it_comes() {
    let all: Vec<usize> = (0..6).collect();
    let mut state = State::new(file(), None, Look::default(), (100, 30));
    assert!(starts(&press(&mut state, "5")).is_empty());
    // The whole file first.
    assert_eq!(starts(&report(&mut state, TimingReport::Cores(4))), [(Lane::Cpu(4), all.clone())]);
    // Not in another view.
    press(&mut state, "2");
    assert!(report(&mut state, TimingReport::Cores(4)).is_empty());
    // A number that was given is enough.
    let mut state = State::new(file(), None, Look::default(), (100, 30));
    state.views.speed.threads = 2;
    assert_eq!(starts(&press(&mut state, "5")), [(Lane::Cpu(2), all)]);
}

#[test]
fn keys_change_threads_and_pause() {
    let mut state = opened();
    press(&mut state, "5");
    assert!(starts(&press(&mut state, "+")).is_empty());
    assert!(state.notice.as_ref().unwrap().text.contains("6 threads"));
    assert_eq!(starts(&press(&mut state, "--")), [(Lane::Cpu(4), vec![0]), (Lane::Cpu(3), vec![0])]);
    assert!(starts(&press(&mut state, "-------")).len() == 2 && state.views.speed.threads == 1);
    assert_eq!(starts(&press(&mut state, "++++")).last().unwrap().0, Lane::Cpu(6));
    let effects = press(&mut state, " ");
    assert!(stopped(&effects) && state.views.speed.paused);
    // While paused, only the choice changes.
    assert!(starts(&press(&mut state, "-m")).is_empty());
    assert_eq!(starts(&press(&mut state, " ")), [(Lane::Cpu(4), vec![0, 1])]);
}

#[test]
fn scope_goes_from_the_layer_to_the_file() {
    let mut state = opened();
    press(&mut state, "5");
    assert_eq!(
        starts(&press(&mut state, "mmm")),
        [(Lane::Cpu(6), vec![0, 1]), (Lane::Cpu(6), vec![0, 1, 2, 3, 4, 5]), (Lane::Cpu(6), vec![0]),]
    );
    // The next tensor is another subject, without samples.
    assert_eq!(starts(&press(&mut state, "n")), [(Lane::Cpu(6), vec![1])]);
    // A module that is selected is the one that is timed.
    press(&mut state, "2g");
    press(&mut state, "5m");
    assert_eq!(state.views.speed.subject.as_ref().unwrap().tensors.len(), 6);
}

#[test]
fn devices_go_round() {
    let mut state = opened();
    press(&mut state, "5D");
    assert!(state.notice.as_ref().unwrap().text.contains("looking"));
    let gpu = |ordinal, refused| Gpu { ordinal, name: "H200".into(), refused };
    report(&mut state, TimingReport::Gpus(Ok(vec![gpu(0, None), gpu(2, Some("too old".into()))])));
    let lanes: Vec<Lane> = starts(&press(&mut state, "DDD")).into_iter().map(|s| s.0).collect();
    assert_eq!(lanes, [Lane::Gpu(0), Lane::Gpu(2), Lane::Cpu(6)]);
    // Threads are of the CPU.
    press(&mut state, "D");
    assert!(press(&mut state, "-").is_empty() && state.views.speed.threads == 0);
    report(&mut state, TimingReport::Gpus(Err("no driver".into())));
    assert_eq!(starts(&press(&mut state, "D")), [(Lane::Cpu(6), vec![0])]);
    assert!(press(&mut state, "D").is_empty());
    assert!(state.notice.as_ref().unwrap().text.contains("no driver"));
}

#[test]
fn samples_are_kept_and_those_of_old_runs_are_not_taken() {
    let mut state = opened();
    press(&mut state, "5");
    let (run, lane) = (state.views.speed.running.unwrap(), Lane::Cpu(6));
    report(&mut state, TimingReport::Run { run, lane, found: Ok(progress(3, &[1.0, 2.0])) });
    report(&mut state, TimingReport::Run { run, lane, found: Ok(progress(4, &[3.0])) });
    let summary = state.views.speed.current().unwrap().series.summary().unwrap();
    assert_eq!((summary.runs, summary.samples, summary.p50), (4, 3, 2.0));
    // Pausing and going on counts on.
    press(&mut state, "  ");
    report(&mut state, TimingReport::Run { run, lane, found: Ok(progress(9, &[9.0])) });
    assert_eq!(state.views.speed.current().unwrap().series.runs, 4);
    let run = state.views.speed.running.unwrap();
    report(&mut state, TimingReport::Run { run, lane, found: Ok(progress(1, &[4.0])) });
    assert_eq!(state.views.speed.current().unwrap().series.runs, 5);
    // A failure is a row, and the run is over.
    report(&mut state, TimingReport::Run { run, lane, found: Err("chunk 3".into()) });
    assert_eq!(state.views.speed.current().unwrap().failed.as_deref(), Some("chunk 3"));
    assert!(state.views.speed.running.is_none() && state.notice.is_none());
    // Another subject begins anew.
    press(&mut state, "m");
    assert_eq!(state.views.speed.current().unwrap().series.runs, 0);
}

#[test]
fn what_is_exported_is_a_document_with_a_version() {
    let mut state = opened();
    press(&mut state, "5");
    assert!(press(&mut state, "x").is_empty() && state.notice.is_some());
    let (run, lane) = (state.views.speed.running.unwrap(), Lane::Cpu(6));
    report(&mut state, TimingReport::Run { run, lane, found: Ok(progress(2, &[0.5, 0.25])) });
    report(&mut state, TimingReport::Gpus(Err("no driver".into())));
    let effects = press(&mut state, "x");
    let [Effect::Export { path, text: json }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(path.to_str(), Some("tiny.timing.json"));
    let document: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(document["schema_version"], 1);
    assert_eq!(document["subject"], "layers.0.mlp.down_proj.weight");
    let cpu = &document["devices"][0];
    assert_eq!((&cpu["device"], &cpu["threads"], &cpu["runs"]), (&"cpu".into(), &6.into(), &2.into()));
    assert_eq!((&cpu["ms"]["p50"], &cpu["ms"]["p95"]), (&0.25.into(), &0.5.into()));
    assert_eq!(cpu["layers"][0]["name"], "layers.0.mlp.down_proj.weight");
    assert_eq!(document["devices"][1]["error"], "no driver");
}

#[test]
fn enter_looks_at_the_layer() {
    let mut state = opened();
    press(&mut state, "5mm");
    let (run, lane) = (state.views.speed.running.unwrap(), Lane::Cpu(6));
    let mut all = progress(1, &[6.0]);
    all.layers = (0..6).rev().map(|tensor| LayerTime { tensor, bytes: 1, ms: Some(1.0), error: None }).collect();
    report(&mut state, TimingReport::Run { run, lane, found: Ok(all) });
    press(&mut state, "jj");
    let enter = Action::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    assert!(stopped(&update(&mut state, enter)));
    assert_eq!((state.tab, state.current()), (Tab::Tensor, Some(3)));
}

#[test]
fn heights_fit_every_view() {
    let mut state = SpeedState { cores: 8, ..SpeedState::default() };
    for lanes in 0..20 {
        for body in 0..100 {
            let h = state.heights(body);
            let heads = 3 + h.gap + if h.chart > 0 { 2 } else { 0 };
            assert!(h.devices + h.layers + h.chart + heads <= body.max(3), "{h:?} of {body}");
        }
        state.lane_mut(Lane::Cpu(lanes + 1));
    }
}

#[test]
fn lanes_are_in_order_and_gpus_are_rows_before_they_decode() {
    let mut state = SpeedState::default();
    for lane in [Lane::Gpu(1), Lane::Cpu(8), Lane::Cpu(2), Lane::Cpu(8)] {
        state.lane_mut(lane);
    }
    let lanes: Vec<Lane> = state.lanes.iter().map(|l| l.lane).collect();
    assert_eq!(lanes, [Lane::Cpu(2), Lane::Cpu(8), Lane::Gpu(1)]);
    let gpu = |ordinal| Gpu { ordinal, name: "H200".into(), refused: None };
    state.gpus = Fetch::Ready(vec![gpu(0), gpu(1)]);
    let rows = state.device_rows();
    assert!(rows[2].lane == Some(Lane::Gpu(0)) && rows[2].results.is_none());
    assert!(rows[3].results.is_some_and(|l| l.lane == Lane::Gpu(1)));
    assert_eq!(rows.len(), 4);
    // A GPU that is not there, but was asked for.
    state.gpus = Fetch::Failed("no driver".into());
    assert_eq!(state.device_rows().len(), 4);
}

#[test]
fn summary_of_known_samples() {
    let mut series = Series::default();
    series.bytes = 2_000_000;
    assert_eq!(series.summary(), None);
    // 1 to 100, in an order that is none.
    (0..100).for_each(|i| series.push(f64::from(i * 37 % 100 + 1)));
    let s = series.summary().unwrap();
    assert_eq!((s.runs, s.samples, s.p50, s.p95, s.min, s.max), (100, 100, 50.0, 95.0, 1.0, 100.0));
    // 2 MB in 50 ms are 40 MB/s.
    assert!((s.gb_per_s.unwrap() - 0.04).abs() < 1e-12);
}

#[test]
fn only_the_last_samples_are_kept() {
    let mut series = Series::default();
    (0..1000).for_each(|i| series.push(f64::from(i)));
    series.runs += 5;
    let s = series.summary().unwrap();
    assert_eq!((s.runs, s.samples, s.min, s.max), (1005, KEPT, 744.0, 999.0));
    assert_eq!(series.recent().next_back(), Some(999.0));
}

#[test]
fn one_sample_is_every_percentile() {
    for q in [0.0, 0.5, 0.95, 1.0] {
        assert_eq!(percentile(&[7.0], q), Some(7.0));
    }
    assert_eq!(percentile(&[1.0, 2.0, 3.0], 0.5), Some(2.0));
    assert_eq!(gb_per_s(10, 0.0), None);
}
