//! The heat map: what it shows, and its keys.

use std::path::Path;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use wcodec::{Bits, Cancel, Checkpoint, EncodeOptions, MemorySource, Optimize, Rate, Scheme, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::{Depth, Look, Theme};
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::State;
use wcodec_tui::stats::{Fetch, Found, StatsEffect, StatsReport, Verdict};
use wcodec_tui::timing::{LayerTime, Progress, TimingEffect, TimingReport};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::overview::Measure;

fn model() -> Arc<FileModel> {
    static FILE: std::sync::OnceLock<Arc<FileModel>> = std::sync::OnceLock::new();
    let made = FILE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doc-llama-3m.wcodec");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
        let rate = Rate { bits: Bits::new(4.0).unwrap(), trellis: false };
        let options = EncodeOptions { scheme: Scheme::Rate(rate), ..EncodeOptions::of(Optimize::Size) };
        encode(&Checkpoint::open(&source).unwrap(), &path, &options, &mut |_| Ok(())).unwrap();
        Arc::new(FileModel::open(&path).unwrap())
    });
    made.clone()
}

fn opened(look: Look, size: (u16, u16)) -> State {
    let mut state = State::new(model(), None, look, size);
    (state.tab, state.home) = (Tab::Overview, Tab::Overview);
    update(&mut state, Action::Resize(size.0, size.1));
    state
}

fn terminal(state: &State) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(state.size.0, state.size.1)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    terminal
}

fn screen(state: &State) -> String {
    terminal(state).backend().to_string()
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    let key = |c| match c {
        '\n' => KeyCode::Enter,
        c => KeyCode::Char(c),
    };
    keys.chars().flat_map(|c| update(state, Action::Key(KeyEvent::new(key(c), KeyModifiers::NONE)))).collect()
}

fn selected(state: &State) -> String {
    let cell = state.views.overview.selected(&state.file).unwrap();
    cell.tensors.iter().map(|&i| state.file.tensors[i].name.clone()).collect::<Vec<_>>().join(" ")
}

#[test]
fn screens() {
    let dark = Look::default();
    for size in [(80, 24), (120, 40), (40, 12)] {
        let mut state = opened(dark, size);
        press(&mut state, "jll");
        insta::assert_snapshot!(format!("heat_{}x{}", size.0, size.1), screen(&state));
    }
    let ascii = Look { theme: Theme::Plain, ascii: true, ..dark };
    let mut state = opened(ascii, (80, 24));
    press(&mut state, "mm");
    let text = screen(&state);
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!("heat_errors_ascii", text);
    for size in [(1, 1), (5, 2), (12, 3), (20, 5), (300, 100)] {
        screen(&opened(dark, size));
    }
}

#[test]
fn colours_are_those_of_the_theme_and_go_one_way() {
    for (theme, depth) in [(Theme::Dark, Depth::True), (Theme::Light, Depth::True), (Theme::Safe, Depth::Palette)] {
        let mut state = opened(Look { theme, depth, ascii: false }, (80, 24));
        press(&mut state, "G");
        let terminal = terminal(&state);
        let buffer = terminal.backend().buffer();
        // The cell of layer 0 and of each column.
        let grounds: Vec<Color> = (0..9).map(|c| buffer[(10 + 7 * c, 3)].bg).collect();
        assert!(grounds.iter().all(|&g| g != Color::Reset), "{grounds:?}");
        // k and v have more bits than down; vectors are beyond the scale.
        assert!(grounds[1] == grounds[2] || depth == Depth::True);
        assert_ne!(grounds[1], grounds[6]);
    }
    // With 16 colours signs tell.
    let state = opened(Look::default(), (80, 24));
    let terminal = terminal(&state);
    assert!(terminal.backend().buffer().content().iter().all(|c| c.bg == Color::Reset));
    assert!(terminal.backend().to_string().contains('█'));
}

#[test]
fn keys_move_the_selection_and_enter_opens_the_tensor() {
    let mut state = opened(Look::default(), (80, 24));
    assert_eq!(selected(&state), "model.layers.0.self_attn.q_proj.weight");
    press(&mut state, "jl");
    assert_eq!(selected(&state), "model.layers.1.self_attn.k_proj.weight");
    let effects = press(&mut state, "\n");
    assert_eq!(state.tab, Tab::Tensor);
    assert_eq!(state.current(), state.file.find("model.layers.1.self_attn.k_proj.weight"));
    assert!(effects.iter().any(|e| matches!(e, Effect::Stats(_, StatsEffect::Compute(_)))));
    // Back to the heat map, where the same cell is selected; from there out of the program.
    press(&mut state, "q");
    assert_eq!((state.tab, selected(&state).as_str()), (Tab::Overview, "model.layers.1.self_attn.k_proj.weight"));
    assert_eq!(press(&mut state, "q"), [Effect::Quit(0)]);
    // The list follows, and tells where it is when the heat map is looked at again.
    press(&mut state, "2");
    assert_eq!(state.current(), state.file.find("model.layers.1.self_attn.k_proj.weight"));
    press(&mut state, "n1");
    assert_eq!(selected(&state), "model.layers.1.self_attn.o_proj.weight");
    press(&mut state, "G");
    assert_eq!(selected(&state), "model.norm.weight");
    // Columns end at the last one.
    press(&mut state, "gllllllllllllllllllll");
    assert_eq!(selected(&state), "model.layers.0.post_attention_layernorm.weight");
}

#[test]
fn clicks_select_cells() {
    let mut state = opened(Look::default(), (80, 24));
    let kind = MouseEventKind::Down(MouseButton::Left);
    let click = |column, row| Action::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    update(&mut state, click(22, 5));
    assert_eq!(selected(&state), "model.layers.2.self_attn.v_proj.weight");
    update(&mut state, click(9, 9));
    assert_eq!(selected(&state), "lm_head.weight");
    // Nothing is at the sums and below the last row.
    update(&mut state, click(9, 7));
    update(&mut state, click(9, 20));
    assert_eq!(selected(&state), "lm_head.weight");
}

#[test]
fn damage_is_seen_in_cells_modules_and_the_head() {
    let mut state = opened(Look::default(), (100, 30));
    let effects = press(&mut state, "V");
    let [Effect::Stats(generation, StatsEffect::Verify(tensors))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(tensors.len(), 39);
    let generation = *generation;
    let say = |state: &mut State, tensor, verdict| {
        update(
            state,
            Action::Report(Report::Stats(StatsReport { tensor, generation, found: Found::Verdict(verdict) })),
        );
    };
    let bad = state.file.find("model.layers.2.mlp.up_proj.weight").unwrap();
    for i in 0..39 {
        let verdict = if i == bad { Verdict::Damaged("a hash does not match".into()) } else { Verdict::Sound };
        say(&mut state, i, Fetch::Ready(verdict));
    }
    press(&mut state, "j");
    let text = screen(&state);
    assert!(text.contains("✗ 1 damaged of 39/39"), "{text}");
    let row = text.lines().find(|l| l.trim_start_matches(['"', ' ']).starts_with("2 ")).unwrap();
    assert!(row.contains('✗'), "{row}");
    // All modules on the way to it have the sign, their sound neighbours have theirs.
    press(&mut state, "2g");
    let text = screen(&state);
    let sign = |label: &str| {
        let line = text.lines().find(|l| l.contains(&format!("▾ {label} "))).unwrap();
        line.chars().find(|c| "✗✓◌".contains(*c))
    };
    assert_eq!((sign("model"), sign("layers"), sign("0")), (Some('✗'), Some('✗'), Some('✓')));
}

#[test]
fn speeds_are_measured_while_they_are_looked_at() {
    let mut state = opened(Look::default(), (80, 24));
    update(&mut state, Action::Report(Report::Timing(TimingReport::Cores(2))));
    let effects = press(&mut state, "M");
    assert_eq!(state.views.overview.measure, Measure::Speed);
    let started = effects.iter().find_map(|e| match e {
        Effect::Timing(TimingEffect::Start { run, lane, tensors }) => Some((*run, *lane, tensors.len())),
        _ => None,
    });
    let (run, lane, tensors) = started.unwrap();
    assert_eq!(tensors, 39);
    let layers: Vec<LayerTime> = (0..39)
        .map(|tensor| LayerTime { tensor, bytes: 2_000_000, ms: Some(1.0 + tensor as f64), error: None })
        .collect();
    let progress = Progress {
        runs: 1,
        rounds: vec![9.0],
        done: (0, 39),
        verifying: false,
        bytes: 1,
        copy_gb_per_s: None,
        layers: layers.into(),
        left_out: None,
    };
    update(&mut state, Action::Report(Report::Timing(TimingReport::Run { run, lane, found: Ok(progress) })));
    assert!(screen(&state).contains("2.00"), "{}", screen(&state));
    let effects = press(&mut state, "m");
    assert!(effects.contains(&Effect::Timing(TimingEffect::Stop)));
    press(&mut state, "M");
    assert!(press(&mut state, "2").contains(&Effect::Timing(TimingEffect::Stop)));
}

#[test]
fn the_scale_goes_over_all_matrices_however_small() {
    // In a real model, k and v have less than a thousandth of all weights each.
    let mut source = MemorySource::new();
    let mut push = |name: &str, rows: usize, columns: usize, spread: usize| {
        let value = |i: usize| ((i * 7919 % spread) as f32 - spread as f32 / 2.0) / 1000.0;
        let bytes: Vec<u8> = (0..rows * columns).flat_map(|i| half::bf16::from_f32(value(i)).to_le_bytes()).collect();
        source.push(name.to_owned(), wcodec::Dtype::BF16, vec![rows, columns], bytes.into()).unwrap();
    };
    push("model.embed_tokens.weight", 2048, 512, 4001);
    for layer in 0..2 {
        push(&format!("model.layers.{layer}.self_attn.q_proj.weight"), 64, 512, 4001);
        push(&format!("model.layers.{layer}.self_attn.k_proj.weight"), 1, 512, 3 + 97 * layer);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.wcodec");
    encode(&source, &path, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let file = Arc::new(FileModel::open(&path).unwrap());
    let k = file.find("model.layers.0.self_attn.k_proj.weight").unwrap();
    assert!((file.tensors[k].elements as f64) < 1e-3 * file.totals.elements as f64);
    let mut state = State::new(file.clone(), None, Look::default(), (80, 24));
    press(&mut state, "1");
    let bits: Vec<f64> = file.tensors.iter().map(wcodec::TensorInfo::bits_per_weight).collect();
    let (low, high) = bits.iter().fold((f64::MAX, 0.0f64), |(low, high), b| (low.min(*b), high.max(*b)));
    let text = screen(&state);
    let legend = text.lines().find(|l| l.contains("bits/weight") && l.contains("most:")).unwrap().to_owned();
    let ends = |v: f64| if v < 10.0 { format!("{v:.2}") } else { format!("{v:.1}") };
    assert!(legend.contains(&format!("bits/weight {} ", ends(low))) && legend.contains(&ends(high)), "{legend}");
    assert!(legend.contains("k ") && file.name() != "model", "{legend} {}", file.name());
}

#[test]
fn a_range_that_is_next_to_nothing_has_one_colour_and_says_so() {
    let mut state = opened(Look { depth: Depth::True, ..Look::default() }, (80, 24));
    // All errors are those of one number of bits; those of k and v, which are calibrated by no one, differ.
    press(&mut state, "mm/proj");
    press(&mut state, "\n1");
    let tensors = state.file.tensors.len();
    let near: Vec<f64> = (0..tensors).filter_map(|i| state.file.tensors[i].error).collect();
    let (low, high) = near.iter().fold((f64::MAX, 0.0f64), |(l, h), e| (l.min(*e), h.max(*e)));
    let flat = high - low < 0.05 * high;
    assert_eq!(screen(&state).contains("one colour"), flat, "{low} {high}\n{}", screen(&state));
    // Every tensor of a checkpoint in bfloat16 has 16 bits.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
    let file = Arc::new(FileModel::open_any(&source, false).unwrap());
    let mut state = State::new(file, None, Look { depth: Depth::True, ..Look::default() }, (80, 24));
    press(&mut state, "1M");
    assert_eq!(state.views.overview.measure, Measure::Bits);
    let shown = terminal(&state);
    assert!(shown.backend().to_string().contains("all 16.0: less than 5 % apart, so one colour"), "{}", screen(&state));
    let buffer = shown.backend().buffer();
    let grounds: std::collections::HashSet<Color> =
        buffer.content().iter().map(|c| c.bg).filter(|bg| *bg != Color::Reset).collect();
    assert_eq!(grounds.len(), 1, "{grounds:?}");
}

#[test]
fn a_wide_screen_has_a_panel_and_asks_for_the_tensor_that_it_shows() {
    let mut state = opened(Look::default(), (120, 40));
    let compute = |effects: &[Effect]| {
        let of = |e: &Effect| match e {
            Effect::Stats(_, StatsEffect::Compute(tensor)) => Some(*tensor),
            _ => None,
        };
        effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    let text = screen(&state);
    assert!(text.contains("Where the bits go") && text.contains("model.layers.0.self_attn.q_proj"), "{text}");
    // Another cell: its tensor, once.
    let effects = press(&mut state, "l");
    let k = state.file.find("model.layers.0.self_attn.k_proj.weight").unwrap();
    assert_eq!(compute(&effects), [k]);
    assert!(compute(&update(&mut state, Action::Tick)).is_empty());
    let stop = Cancel::new();
    let mut tell = |_: f32| {};
    let mut control = wcodec_tui::stats::control::Control::new(&stop, &mut tell);
    let found = wcodec_tui::stats::compute::compute(&state.file, k, None, &mut control).unwrap();
    let weights = found.weights.clone().unwrap();
    assert_eq!(weights.count, state.file.tensors[k].elements);
    let report = StatsReport { tensor: k, generation: 0, found: Found::Stats(Fetch::Ready(Arc::new(found))) };
    update(&mut state, Action::Report(Report::Stats(report)));
    let text = screen(&state);
    assert!(text.contains("Weights") && text.contains("RMS") && text.contains("Levels"), "{text}");
    insta::assert_snapshot!("panel_120x40", text);
    // A narrower screen has none, and asks for nothing.
    update(&mut state, Action::Resize(109, 40));
    assert!(!screen(&state).contains("Where the bits go") && compute(&press(&mut state, "l")).is_empty());
    update(&mut state, Action::Resize(110, 18));
    press(&mut state, "G");
    let text = screen(&state);
    assert!(text.contains("Where the bits go") && text.contains("model.norm"), "{text}");
}

#[test]
fn a_calibrated_file_says_so_and_ranks_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
    let rate = Rate { bits: Bits::new(4.0).unwrap(), trellis: false };
    let said = r#"{"version": 1, "tokens": 2048, "source": "self"}"#;
    let metadata = std::collections::BTreeMap::from([("wcodec.calibration".to_owned(), said.to_owned())]);
    let options = EncodeOptions { scheme: Scheme::Rate(rate), metadata, ..EncodeOptions::default() };
    encode(&Checkpoint::open(&source).unwrap(), &path, &options, &mut |_| Ok(())).unwrap();
    let file = Arc::new(FileModel::open(&path).unwrap());
    let mut state = State::new(file, None, Look::default(), (140, 40));
    press(&mut state, "1");
    let text = screen(&state);
    assert!(text.contains("calibrated on 2,048 tokens") && text.contains("of 30 in importance"), "{text}");
    let ranks: Vec<(usize, f64)> =
        (0..39).filter_map(|i| Some((state.file.rates().rank(i)?.0, state.file.tensors[i].error?))).collect();
    assert_eq!(ranks.len(), 30);
    assert!(ranks.iter().all(|a| ranks.iter().all(|b| a.0 <= b.0 || a.1 >= b.1)));
    press(&mut state, "4");
    let text = screen(&state);
    assert!(text.contains("calibrated on 2,048 tokens that the model wrote") && !text.contains("none"), "{text}");
}

#[test]
fn the_picture_has_every_matrix_and_is_named_after_the_model() {
    let mut state = opened(Look { theme: Theme::Plain, ..Look::default() }, (80, 24));
    let effects = press(&mut state, "P");
    let [Effect::Export { path, text }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(path.to_str(), Some("doc-llama-3m.heatmap.svg"));
    let cells = text.matches("<rect").count() - text.matches("width=\"6\"").count() - 1;
    // Seven roles in four layers, and two tables in none; vectors are left out.
    assert_eq!(cells, 4 * 7 + 2);
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>") && text.contains("most: "), "{text}");
    assert!(text.contains("doc-llama-3m: 4.05 bits/weight") && !text.contains("norm"), "{text}");
    // Errors that nobody knows make no picture.
    press(&mut state, "M");
    assert!(press(&mut state, "P").iter().all(|e| !matches!(e, Effect::Export { .. })));
    assert!(state.notice.as_ref().is_some_and(|n| n.text.contains("no figures for a picture yet")));
}

#[test]
fn arrows_change_the_view_where_nothing_moves_to_the_side() {
    let mut state = opened(Look::default(), (80, 24));
    let arrow = |code, modifiers| Action::Key(KeyEvent::new(code, modifiers));
    update(&mut state, arrow(KeyCode::Right, KeyModifiers::NONE));
    assert_eq!((state.tab, state.views.overview.column), (Tab::Overview, 1));
    for tab in [Tab::List, Tab::Tensor] {
        update(&mut state, arrow(KeyCode::Right, KeyModifiers::SHIFT));
        assert_eq!(state.tab, tab);
    }
    for tab in Tab::ALL[3..].iter().copied().chain([Tab::Overview]) {
        update(&mut state, arrow(KeyCode::Right, KeyModifiers::NONE));
        assert_eq!(state.tab, tab);
    }
    press(&mut state, "[");
    update(&mut state, arrow(KeyCode::Left, KeyModifiers::NONE));
    assert_eq!(state.tab, Tab::ALL[Tab::ALL.len() - 2]);
    press(&mut state, "]");
    assert_eq!(state.tab, Tab::File);
}

#[test]
fn keys_that_do_nothing_say_so() {
    let mut state = opened(Look::default(), (80, 24));
    press(&mut state, "p");
    assert_eq!(state.notice.as_ref().map(|n| n.text.as_str()), Some("no key p here, ? lists them"));
    assert!(screen(&state).contains("no key p here"));
    update(&mut state, Action::Key(KeyEvent::new(KeyCode::Char('w'), KeyModifiers::CONTROL)));
    assert!(state.notice.as_ref().is_some_and(|n| n.text.starts_with("no key Ctrl-w here")));
    // One that does something takes it away; the help and the search box have no such line.
    press(&mut state, "j");
    assert!(state.notice.is_none());
    press(&mut state, "?p");
    assert!(state.notice.is_none());
    press(&mut state, "?/p");
    assert!(state.notice.is_none());
}
