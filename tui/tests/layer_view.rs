//! The view of one tensor: its figures are those of an independent computation, and it looks as it should.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{
    Cancel, Checkpoint, Coder, Container, DecodeOptions, Dtype, EncodeOptions, Granularity, Layout, MemorySource,
    Optimize, Scheme, Source, encode, verify,
};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::{Canvas, Look, Theme};
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::State;
use wcodec_tui::stats::compute::compute;
use wcodec_tui::stats::control::Control;
use wcodec_tui::stats::{Fetch, Found, LayerStats, StatsEffect, StatsReport, Verdict};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::list::Row;

const MATRIX: &str = "model.layers.0.mlp.up_proj.weight";

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m")).unwrap()
}

fn file_of(source: &dyn Source, options: &EncodeOptions) -> Arc<FileModel> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    encode(source, &path, options, &mut |_| Ok(())).unwrap();
    let file = FileModel::open(&path).unwrap();
    // The open file stays readable.
    Arc::new(file)
}

fn llama() -> Arc<FileModel> {
    static FILE: OnceLock<Arc<FileModel>> = OnceLock::new();
    FILE.get_or_init(|| file_of(&checkpoint(), &EncodeOptions::of(Optimize::Size))).clone()
}

fn stats(file: &FileModel, tensor: usize, reference: Option<&Checkpoint>) -> LayerStats {
    let (stop, mut last) = (Cancel::new(), 0.0);
    let mut tell = |part: f32| {
        assert!((last..=1.0).contains(&part), "{last} {part}");
        last = part;
    };
    compute(file, tensor, reference, &mut Control::new(&stop, &mut tell)).unwrap()
}

/// Compares the statistics of every tensor with what the codec's own functions and plain counting give.
fn check(file: &FileModel) {
    let (container, options) = (file.container().unwrap(), DecodeOptions::default());
    for (i, t) in file.tensors.iter().enumerate() {
        let found = stats(file, i, None);
        check_chunks(container, &found, t);
        if t.scheme != "int8" {
            assert!(found.scales.is_none(), "{}", t.name);
            assert_eq!(found.symbols.is_some(), t.dtype.size() == 1);
            continue;
        }
        let symbols = container.symbols(&t.name, &options).unwrap();
        let mut counts = [0u64; 256];
        symbols.iter().for_each(|&s| counts[(i32::from(s) + 128) as usize] += 1);
        let n = symbols.len() as f64;
        let entropy: f64 = counts.iter().filter(|&&c| c > 0).map(|&c| -(c as f64 / n) * (c as f64 / n).log2()).sum();
        let ours = found.symbols.as_ref().unwrap();
        assert_eq!(ours.counts, counts, "{}", t.name);
        assert!((ours.entropy - entropy).abs() < 1e-9);
        // The index has four digits behind the point.
        assert!(t.entropy.is_some_and(|e| (e - entropy).abs() <= 5.001e-5), "{} {entropy} {:?}", t.name, t.entropy);

        let scales = container.scales(&t.name).unwrap();
        let block = match t.scales.as_deref() {
            Some("row") => t.cols,
            Some("tensor") => symbols.len(),
            Some(block) => block.rsplit(' ').next().unwrap().parse().unwrap(),
            None => panic!(),
        };
        let groups: Vec<&[i8]> = if block >= symbols.len() {
            vec![&symbols]
        } else {
            symbols.chunks(t.cols).flat_map(|row| row.chunks(block)).collect()
        };
        assert_eq!(groups.len(), scales.len());
        let mut used: Vec<f32> =
            scales.iter().zip(&groups).filter(|(_, g)| g.iter().any(|&s| s != 0)).map(|(s, _)| *s).collect();
        used.sort_by(f32::total_cmp);
        let ours = found.scales.as_ref().unwrap();
        assert_eq!((ours.zeros, ours.odd), (scales.len() - used.len(), 0), "{}", t.name);
        assert_eq!(ours.sorted, used);
        if used.is_empty() {
            assert_eq!(ours.percentile(50.0), None);
            continue;
        }
        // NumPy's definition, written out.
        for p in [0.0, 1.0, 50.0, 99.0, 100.0] {
            let at = p / 100.0 * (used.len() - 1) as f64;
            let (low, high) = (used[at as usize], used[(at as usize + 1).min(used.len() - 1)]);
            let want = f64::from(low) * (1.0 - at.fract()) + f64::from(high) * at.fract();
            assert!((ours.percentile(p).unwrap() - want).abs() <= 1e-12 * want);
        }
    }
}

fn check_chunks(container: &Container, found: &LayerStats, t: &wcodec::TensorInfo) {
    assert_eq!(found.chunks.len(), t.chunks(), "{}", t.name);
    assert_eq!(found.chunks.iter().map(|c| c.elements).sum::<u64>(), t.elements);
    let of = |role: &str| t.segments.iter().filter(|s| s.role == role).map(|s| s.length).sum::<u64>();
    let stored: u64 = found.chunks.iter().map(|c| c.bytes).sum();
    // Frames of zstd are padded to multiples of 8.
    let padding = if t.coder() == "zstd" { 7 * t.chunks() as u64 } else { 0 };
    assert!(stored <= of("data") + of("side") && stored + padding >= of("data") + of("side"), "{}", t.name);
    for (i, chunk) in found.chunks.iter().enumerate().step_by(1 + t.chunks() / 20) {
        let info = container.chunk(&t.name, i).unwrap();
        assert_eq!(chunk.bytes, info.length + info.side, "{} chunk {i}", t.name);
        let size = if t.scheme == "int8" { 1 } else { t.dtype.size() as u64 };
        // A frame may end within an element.
        let slack = u64::from(!info.decoded.is_multiple_of(size));
        assert!(chunk.elements.abs_diff(info.decoded / size) <= slack, "{} chunk {i}", t.name);
    }
}

#[test]
fn figures_of_a_model_are_right() {
    check(&llama());
}

/// Matrices of odd shapes, with rows and blocks that are zero, transposed ones, and such as are not quantized.
fn odd() -> MemorySource<'static> {
    let mut source = MemorySource::new();
    let value = |k: usize| if (k / 130) % 7 == 3 { 0.0 } else { ((k * 37 % 1009) as f32 - 504.0).powi(3) / 1e7 };
    let bf16 = |n: usize| (0..n).flat_map(|k| half::bf16::from_f32(value(k)).to_le_bytes()).collect::<Vec<u8>>();
    let f16 = |n: usize| (0..n).flat_map(|k| half::f16::from_f32(value(k)).to_le_bytes()).collect::<Vec<u8>>();
    let f32 = |n: usize| (0..n).flat_map(|k| value(k).to_le_bytes()).collect::<Vec<u8>>();
    source.push("a.weight".into(), Dtype::BF16, vec![77, 130], bf16(77 * 130).into()).unwrap();
    source.push("b.weight".into(), Dtype::F16, vec![3, 40, 96], f16(3 * 40 * 96).into()).unwrap();
    source.push("c.transposed".into(), Dtype::F32, vec![130, 50], f32(130 * 50).into()).unwrap();
    source.push("d.norm".into(), Dtype::F32, vec![130], f32(130).into()).unwrap();
    source.push("e.scalar".into(), Dtype::F32, vec![], f32(1).into()).unwrap();
    source.push("f.empty".into(), Dtype::F32, vec![0, 4], Vec::new().into()).unwrap();
    source
        .push("g.bytes".into(), Dtype::I8, vec![64, 64], (0..4096).map(|i| (i % 11) as u8).collect::<Vec<u8>>().into())
        .unwrap();
    source.push("h.zero".into(), Dtype::F32, vec![32, 64], vec![0; 32 * 64 * 4].into()).unwrap();
    source
}

fn every_kind() -> Vec<EncodeOptions> {
    let transpose = vec!["c.*".to_owned()];
    let mut all = Vec::new();
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw] {
        for (layout, per) in [
            (Layout::Pair, Granularity::Row),
            (Layout::Byte, Granularity::Block(32)),
            (Layout::Pair, Granularity::Tensor),
        ] {
            all.push(EncodeOptions {
                coder,
                layout: Some(layout),
                scheme: Scheme::Int8(per),
                transpose: transpose.clone(),
                ..EncodeOptions::of(Optimize::Size)
            });
        }
    }
    all.push(EncodeOptions {
        scheme: Scheme::Raw,
        coder: Coder::Zstd,
        zstd_chunk: Some(1001),
        ..EncodeOptions::of(Optimize::Size)
    });
    all
}

#[test]
fn figures_are_right_for_every_coder_layout_and_granularity() {
    for options in every_kind() {
        check(&file_of(&odd(), &options));
    }
}

#[test]
fn errors_against_the_source_are_those_that_verifying_finds() {
    let dir = tempfile::tempdir().unwrap();
    let options = EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..EncodeOptions::of(Optimize::Size) };
    // A container of raw tensors, decoded: the odd tensors as a checkpoint.
    let plain = file_of(&odd(), &options);
    let path = dir.path().join("odd.safetensors");
    wcodec::decode(plain.container().unwrap(), None, &path, &DecodeOptions::default(), false, &mut |_| Ok(())).unwrap();
    let reference = Checkpoint::open(&path).unwrap();
    for options in every_kind().into_iter().chain([EncodeOptions::of(Optimize::Size)]) {
        let file = file_of(&reference, &options);
        let report =
            verify(file.container().unwrap(), Some(&reference), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
        for (i, t) in file.tensors.iter().enumerate() {
            let want = report.tensors.iter().find(|v| v.name == t.name).unwrap();
            let found = stats(&file, i, Some(&reference));
            let errors = found.error.map(|e| (e.max, e.rms));
            match (errors, want.max_error.zip(want.rms_error)) {
                // The squares are added in another order.
                (Some((max, rms)), Some((most, mean))) => {
                    assert!(max == most && (rms - mean).abs() <= 1e-12 * mean, "{}: {rms} {mean}", t.name);
                }
                (ours, theirs) => assert_eq!(ours, theirs, "{}", t.name),
            }
            assert_eq!(found.uncompared.is_some(), errors.is_none(), "{}", t.name);
            if let Some(e) = found.error {
                let squares: f64 = {
                    let original =
                        reference.read(reference.tensors().iter().position(|s| s.name == t.name).unwrap()).unwrap();
                    let value = |b: &[u8]| match t.dtype {
                        Dtype::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
                        Dtype::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
                        _ => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                    };
                    original.chunks(t.dtype.size()).map(|b| value(b).powi(2)).sum()
                };
                let snr = 10.0 * (squares / (e.rms * e.rms * t.elements as f64)).log10();
                assert!((e.rms == 0.0 && e.snr_db == f64::INFINITY) || (e.snr_db - snr).abs() < 1e-6, "{}", t.name);
            }
        }
    }
    // Another model than that: nothing to compare with, and it says why.
    let found = stats(&llama(), 0, Some(&reference));
    assert!(found.error.is_none() && found.uncompared.is_some_and(|why| why.contains("no tensor of this name")));
}

#[test]
fn stopping_stops() {
    let file = llama();
    let (stop, mut tell) = (Cancel::new(), |_: f32| {});
    stop.cancel();
    let stopped = compute(&file, 0, None, &mut Control::new(&stop, &mut tell)).unwrap_err();
    assert_eq!(stopped.kind(), wcodec::ErrorKind::Cancelled);
    let (stop, mut tell) = (Cancel::new(), |_: f32| {});
    assert!(compute(&file, 1 << 40, None, &mut Control::new(&stop, &mut tell)).is_err());
}

fn at(file: &Arc<FileModel>, name: &str, look: Look, size: (u16, u16)) -> (State, usize) {
    let mut state = State::new(file.clone(), None, look, size);
    let tensor = file.find(name).unwrap();
    state.views.list.select(file, Row::Tensor(tensor));
    assert_eq!(state.current(), Some(tensor));
    state.tab = Tab::Tensor;
    (state, tensor)
}

/// The view without what is above and below it.
fn screen(state: &State) -> String {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows.saturating_sub(4).max(1))).unwrap();
    let drawn = |frame: &mut ratatui::Frame<'_>| {
        let area = frame.area();
        Tab::Tensor.view().draw(&mut Canvas::new(frame.buffer_mut(), area, state.look), state);
    };
    terminal.draw(drawn).unwrap();
    terminal.backend().to_string()
}

fn key(state: &mut State, code: KeyCode) -> Vec<Effect> {
    update(state, Action::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn know(state: &mut State, tensor: usize, reference: bool) {
    let reference = reference.then(checkpoint);
    state.has_reference = reference.is_some();
    let stats = Fetch::Ready(Arc::new(stats(&state.file.clone(), tensor, reference.as_ref())));
    update(state, Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Stats(stats) })));
}

#[test]
fn wide_screens_have_two_columns() {
    let (mut state, tensor) = at(&llama(), MATRIX, Look::default(), (120, 40));
    know(&mut state, tensor, true);
    let verdict = Fetch::Ready(Verdict::Sound);
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Verdict(verdict) })),
    );
    insta::assert_snapshot!("120x40", screen(&state));
    state.size = (200, 60);
    key(&mut state, KeyCode::Char('a'));
    key(&mut state, KeyCode::Char('+'));
    insta::assert_snapshot!("200x60_log", screen(&state));
}

#[test]
fn narrow_screens_scroll() {
    let (mut state, tensor) = at(&llama(), MATRIX, Look::default(), (80, 24));
    know(&mut state, tensor, false);
    insta::assert_snapshot!("80x24_top", screen(&state));
    key(&mut state, KeyCode::PageDown);
    insta::assert_snapshot!("80x24_page_2", screen(&state));
    key(&mut state, KeyCode::Char('G'));
    insta::assert_snapshot!("80x24_bottom", screen(&state));
    let last = state.views.tensor.scroll.0;
    key(&mut state, KeyCode::Char('j'));
    assert_eq!(state.views.tensor.scroll.0, last);
    key(&mut state, KeyCode::Char('g'));
    assert_eq!(state.views.tensor.scroll.0, 0);
}

#[test]
fn ascii_is_ascii() {
    let look = Look { theme: Theme::Plain, ascii: true, ..Look::default() };
    let (mut state, tensor) = at(&llama(), MATRIX, look, (120, 40));
    know(&mut state, tensor, true);
    let damage = format!("{MATRIX}: segment data at byte {}: the hash does not match", data_offset(&state, tensor));
    let verdict = Fetch::Ready(Verdict::Damaged(damage));
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Verdict(verdict) })),
    );
    let text = screen(&state);
    assert!(text.is_ascii());
    insta::assert_snapshot!("120x40_ascii_damaged", text);
}

fn data_offset(state: &State, tensor: usize) -> u64 {
    state.file.tensors[tensor].segments.iter().find(|s| s.role == "data").unwrap().offset
}

#[test]
fn raw_tensors_and_waiting_say_so() {
    let (mut state, tensor) = at(&llama(), "model.norm.weight", Look::default(), (120, 30));
    know(&mut state, tensor, false);
    insta::assert_snapshot!("120x30_raw", screen(&state));
    let (mut state, tensor) = at(&llama(), MATRIX, Look::default(), (120, 30));
    let running = Fetch::Running(0.43);
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Stats(running) })),
    );
    insta::assert_snapshot!("120x30_computing", screen(&state));
    let failed = Fetch::Failed("the file changed on disk: r reads it again".into());
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Stats(failed) })),
    );
    assert!(screen(&state).contains("the file changed on disk"));
}

#[test]
fn statistics_are_asked_for_once_and_kept() {
    let (mut state, tensor) = at(&llama(), MATRIX, Look::default(), (100, 30));
    state.tab = Tab::List;
    let compute = |tensor| Effect::Stats(0, StatsEffect::Compute(tensor));
    assert_eq!(key(&mut state, KeyCode::Char('3')), [compute(tensor)]);
    // It is running.
    assert_eq!(key(&mut state, KeyCode::Char('2')), []);
    assert_eq!(key(&mut state, KeyCode::Char('3')), []);
    // The next tensor; and back, before anything was reported.
    key(&mut state, KeyCode::Char('j'));
    let effects = key(&mut state, KeyCode::Char('n'));
    let next = state.current().unwrap();
    assert!(next != tensor && state.views.tensor.scroll.0 == 0);
    assert_eq!(effects, [compute(next)]);
    assert_eq!(key(&mut state, KeyCode::Char('N')), [compute(tensor)]);
    know(&mut state, tensor, false);
    key(&mut state, KeyCode::Char('n'));
    assert_eq!(key(&mut state, KeyCode::Char('N')), []);
    // Verifying is asked for once, too.
    let verify = Effect::Stats(0, StatsEffect::Verify(vec![tensor]));
    assert_eq!(key(&mut state, KeyCode::Char('v')), [verify]);
    assert_eq!(key(&mut state, KeyCode::Char('v')), []);
}

#[test]
fn bins_and_axis_have_their_keys() {
    let (mut state, tensor) = at(&llama(), MATRIX, Look::default(), (200, 60));
    know(&mut state, tensor, false);
    assert!(screen(&state).contains("linear axis, 40 bins"));
    key(&mut state, KeyCode::Char('+'));
    key(&mut state, KeyCode::Char('a'));
    assert!(screen(&state).contains("logarithmic axis, 50 bins"));
    for _ in 0..30 {
        key(&mut state, KeyCode::Char('-'));
    }
    assert!(screen(&state).contains("5 bins"));
}

#[test]
fn every_size_is_drawn() {
    for options in every_kind() {
        let file = file_of(&odd(), &options);
        for tensor in 0..file.tensors.len() {
            let name = file.tensors[tensor].name.clone();
            let (mut state, _) = at(&file, &name, Look::default(), (1, 1));
            know(&mut state, tensor, tensor % 2 == 0);
            for size in [(1, 1), (2, 5), (9, 9), (30, 12), (41, 6), (79, 24), (110, 30), (300, 100)] {
                state.size = size;
                for ascii in [false, true] {
                    state.look.ascii = ascii;
                    state.views.tensor.log = ascii;
                    key(&mut state, KeyCode::Char('G'));
                    screen(&state);
                }
            }
        }
    }
}
