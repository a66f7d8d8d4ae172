//! The screens of the view of timings, with samples that are always the same.

use std::sync::{Arc, OnceLock};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use wcodec::{Dtype, EncodeOptions, MemorySource, Optimize, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::{Canvas, Look};
use wcodec_tui::model::FileModel;
use wcodec_tui::state::State;
use wcodec_tui::timing::{Gpu, Lane, LayerTime, Progress, TimingReport};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

static FILE: OnceLock<Arc<FileModel>> = OnceLock::new();

fn file() -> Arc<FileModel> {
    let mut source = MemorySource::new();
    let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"];
    for layer in 0..4 {
        for part in parts {
            let bytes: Vec<u8> = (0..512u32).map(|i| (i * 29 % 64) as u8).collect();
            let name = format!("model.layers.{layer}.{part}.weight");
            source.push(name, Dtype::BF16, vec![16, 16], bytes.into()).unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.wcodec");
    encode(&source, &path, &EncodeOptions::of(Optimize::Size), &mut |_| Ok(())).unwrap();
    Arc::new(FileModel::open(&path).unwrap())
}

fn press(state: &mut State, keys: &str) {
    for c in keys.chars() {
        update(state, Action::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)));
    }
}

fn report(state: &mut State, report: TimingReport) {
    update(state, Action::Report(Report::Timing(report)));
}

/// Times between 1 and 2, that look like measured ones.
fn times(count: usize, seed: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |i| 1.0 + ((i * 7919 + seed * 104_729) % 101) as f64 / if i % 17 == 3 { 101.0 } else { 900.0 })
}

/// Takes what a worker would have measured in the run that is under way.
fn measured(state: &mut State, unit: f64, damaged: bool) {
    let (run, lane) = (state.views.speed.running.unwrap(), state.views.speed.lane());
    let tensors = state.views.speed.subject.as_ref().unwrap().tensors.clone();
    let gone = |i: usize| damaged && i == 7;
    let mut layers: Vec<LayerTime> = tensors
        .iter()
        .zip(times(tensors.len(), 3))
        .filter(|(i, _)| !gone(**i))
        .map(|(&tensor, ms)| LayerTime { tensor, bytes: 8 << 20, ms: Some(unit * ms), error: None })
        .collect();
    layers.sort_by(|a, b| b.ms.unwrap_or(0.0).total_cmp(&a.ms.unwrap_or(0.0)));
    let why: Arc<str> =
        "tensor 'model.layers.1.self_attn.v_proj.weight', byte 5440: the hash of a segment does not match".into();
    let left_out = tensors.iter().any(|&i| gone(i)).then(|| (1, why.clone()));
    if left_out.is_some() {
        layers.push(LayerTime { tensor: 7, bytes: 0, ms: None, error: Some(why) });
    }
    let count = layers.iter().filter(|l| l.ms.is_some()).count();
    let progress = Progress {
        runs: 1234,
        rounds: times(150, lane_seed(lane)).map(|ms| unit * ms * count as f64).collect(),
        done: (count / 3, count),
        verifying: false,
        bytes: (count as u64) << 23,
        copy_gb_per_s: matches!(lane, Lane::Gpu(_)).then_some(53.1),
        layers: layers.into(),
        left_out,
    };
    report(state, TimingReport::Run { run, lane, found: Ok(progress) });
}

fn lane_seed(lane: Lane) -> usize {
    match lane {
        Lane::Cpu(n) | Lane::Gpu(n) => n,
    }
}

fn opened(size: (u16, u16), look: Look) -> State {
    let mut state = State::new(FILE.get_or_init(file).clone(), None, look, size);
    press(&mut state, "nnn");
    report(&mut state, TimingReport::Cores(16));
    press(&mut state, "5");
    state
}

/// The whole file on the CPU with several numbers of threads, and on one of two GPUs.
fn busy(size: (u16, u16), look: Look) -> State {
    let mut state = opened(size, look);
    measured(&mut state, 0.9, true);
    press(&mut state, "-");
    measured(&mut state, 1.1, true);
    let gpu = |ordinal, refused: Option<&str>| Gpu {
        ordinal,
        name: if ordinal == 0 { "NVIDIA H200".into() } else { "Tesla V100".into() },
        refused: refused.map(str::to_owned),
    };
    let old = "GPU 1 (Tesla V100) has compute capability 7.0, and 7.5 is needed (use a later GPU)";
    report(&mut state, TimingReport::Gpus(Ok(vec![gpu(0, None), gpu(1, Some(old))])));
    press(&mut state, "D");
    measured(&mut state, 0.0145, false);
    press(&mut state, "DD");
    measured(&mut state, 1.1, true);
    press(&mut state, "jj");
    state
}

fn screen(state: &State) -> String {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let body = Rect::new(0, 0, columns, rows.saturating_sub(4));
    terminal
        .draw(|frame| Tab::Speed.view().draw(&mut Canvas::new(frame.buffer_mut(), body, state.look), state))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(columns.max(1)));
    let lines = lines.map(|line| line.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_owned());
    lines.take(usize::from(body.height)).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_whole_file() {
    for size in SIZES {
        insta::assert_snapshot!(format!("file_{}x{}", size.0, size.1), screen(&busy(size, Look::default())));
    }
}

#[test]
fn one_layer_without_a_gpu() {
    for size in SIZES {
        let mut state = opened(size, Look::default());
        press(&mut state, "m");
        let why = "the NVIDIA driver's library cannot be loaded: libcuda.so.1 was not found (install NVIDIA driver 550 or later)";
        report(&mut state, TimingReport::Gpus(Err(why.into())));
        measured(&mut state, 0.02, false);
        press(&mut state, " ");
        insta::assert_snapshot!(format!("layer_{}x{}", size.0, size.1), screen(&state));
    }
}

#[test]
fn the_whole_file_says_how_many_tokens_a_second_that_is() {
    let mut state = opened((120, 40), Look::default());
    assert_eq!(state.views.speed.subject.as_ref().map(|s| s.tensors.len()), Some(state.file.tensors.len()));
    assert!(!screen(&state).contains("tokens/s"));
    measured(&mut state, 2.0, false);
    let p50 = state.views.speed.current().unwrap().series.summary().unwrap().p50;
    let text = screen(&state);
    let line = text.lines().find(|l| l.contains("one pass over all weights")).unwrap();
    let said: f64 = line.split("→ ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((said * p50 / 1000.0 - 1.0).abs() < 0.06 && line.contains("tokens/s at most"), "{p50}: {line}");
    // One tensor says nothing of text.
    press(&mut state, "m");
    measured(&mut state, 2.0, false);
    assert!(!screen(&state).contains("tokens/s"));
}

#[test]
fn only_ascii() {
    let look = Look { ascii: true, ..Look::default() };
    let text = screen(&busy((80, 24), look));
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!("ascii_80x24", text);
    let mut state = opened((120, 40), look);
    press(&mut state, "m");
    let before = screen(&state);
    assert!(before.is_ascii(), "{before}");
    measured(&mut state, 0.02, false);
    let text = screen(&state);
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!("ascii_layer_120x40", text);
}

#[test]
fn before_the_first_round() {
    insta::assert_snapshot!("first_80x24", screen(&opened((80, 24), Look::default())));
}

#[test]
fn a_failure_is_a_row() {
    let mut state = opened((80, 24), Look::default());
    let (run, lane) = (state.views.speed.running.unwrap(), state.views.speed.lane());
    report(
        &mut state,
        TimingReport::Run { run, lane, found: Err("byte 64: the hash of a segment does not match".into()) },
    );
    insta::assert_snapshot!("failed_80x24", screen(&state));
}

#[test]
fn every_size_is_drawn() {
    for columns in (1..=40).chain([79, 150, 300]) {
        for rows in (1..=20).chain([50, 100]) {
            let mut state = busy((columns, rows), Look { ascii: rows % 2 == 0, ..Look::default() });
            press(&mut state, "Gk");
            let (timing, body) = (&state.views.speed, state.body_height());
            let (cursor, height) = (timing.cursor, timing.heights(body).layers.max(1));
            assert!(cursor.offset <= cursor.selected && cursor.selected < cursor.offset + height, "{columns}x{rows}");
            screen(&state);
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| wcodec_tui::draw::draw(frame, &state)).unwrap();
        }
    }
}
