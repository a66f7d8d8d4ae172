//! The heat map: what it shows, and its keys.

use std::path::Path;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use wcodec::{Bits, Checkpoint, EncodeOptions, Rate, Scheme, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::{Depth, Look, Theme};
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::heat::Measure;
use wcodec_tui::state::{State, Tab};
use wcodec_tui::stats::{Fetch, StatsEffect, StatsReport, Verdict};
use wcodec_tui::timing::{LayerTime, Progress, TimingEffect, TimingReport};
use wcodec_tui::update::update;

fn model() -> Arc<FileModel> {
    static FILE: std::sync::OnceLock<Arc<FileModel>> = std::sync::OnceLock::new();
    let made = FILE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doc-llama-3m.wcodec");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
        let rate = Rate { bits: Bits::new(4.0).unwrap(), trellis: false };
        let options = EncodeOptions { scheme: Scheme::Rate(rate), ..EncodeOptions::default() };
        encode(&Checkpoint::open(&source).unwrap(), &path, &options, &mut |_| Ok(())).unwrap();
        Arc::new(FileModel::open(&path).unwrap())
    });
    made.clone()
}

fn opened(look: Look, size: (u16, u16)) -> State {
    let mut state = State::new(model(), None, look, size);
    (state.tab, state.home) = (Tab::Heat, Tab::Heat);
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
    let cell = state.heat.selected(&state.file).unwrap();
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
    assert_eq!(state.tab, Tab::Layer);
    assert_eq!(state.current(), state.file.find("model.layers.1.self_attn.k_proj.weight"));
    assert!(effects.iter().any(|e| matches!(e, Effect::Stats(StatsEffect::Compute { .. }))));
    // Back to the heat map, where the same cell is selected; from there out of the program.
    press(&mut state, "q");
    assert_eq!((state.tab, selected(&state).as_str()), (Tab::Heat, "model.layers.1.self_attn.k_proj.weight"));
    assert_eq!(press(&mut state, "q"), [Effect::Quit(0)]);
    // The list follows, and tells where it is when the heat map is looked at again.
    press(&mut state, "1");
    assert_eq!(state.current(), state.file.find("model.layers.1.self_attn.k_proj.weight"));
    press(&mut state, "n0");
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
    let [Effect::Stats(StatsEffect::Verify { tensors, generation })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(tensors.len(), 39);
    let generation = *generation;
    let say = |state: &mut State, tensor, verdict| {
        update(state, Action::Report(Report::Stats(StatsReport::Verdict { generation, tensor, verdict })));
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
    press(&mut state, "1g");
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
    assert_eq!(state.heat.measure, Measure::Speed);
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
    update(&mut state, Action::Report(Report::Timing(TimingReport::Progress { run, lane, progress })));
    assert!(screen(&state).contains("2.00"), "{}", screen(&state));
    let effects = press(&mut state, "m");
    assert!(effects.contains(&Effect::Timing(TimingEffect::Stop)));
    press(&mut state, "M");
    assert!(press(&mut state, "1").contains(&Effect::Timing(TimingEffect::Stop)));
}
