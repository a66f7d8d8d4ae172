//! Whatever is pressed, at whatever size: nothing panics, and the selection stays on the screen.

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{Dtype, EncodeOptions, MemorySource, encode};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::{Look, Theme};
use wcodec_tui::effect::Effect;
use wcodec_tui::keymap::Keymap;
use wcodec_tui::menu::Menu;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::{Overlay, State};
use wcodec_tui::stats::{Fetch, Found, LayerStats, StatsReport, Verdict};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;

/// A small model with several modules, odd names and tensors of every kind.
fn file(layers: usize) -> Arc<FileModel> {
    let mut source = MemorySource::new();
    let mut push = |name: String, shape: Vec<usize>| {
        let n: usize = shape.iter().product();
        let bytes: Vec<u8> =
            (0..n).flat_map(|i| half::bf16::from_f32(((i * 37 % 101) as f32 - 50.0) / 90.0).to_le_bytes()).collect();
        source.push(name, Dtype::BF16, shape, bytes.into()).unwrap();
    };
    push("model.embed_tokens.weight".into(), vec![64, 64]);
    for i in 0..layers {
        for part in ["self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"] {
            push(format!("model.layers.{i}.{part}.weight"), vec![64, 64]);
        }
        push(format!("model.layers.{i}.norm.weight"), vec![64]);
    }
    push("weird..name".into(), vec![3]);
    push("größe.層.weight".into(), vec![16, 64]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    encode(&source, &path, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    Arc::new(FileModel::open(&path).unwrap())
}

fn key(code: KeyCode) -> Action {
    Action::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn draw(state: &State) -> String {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

fn any_action() -> impl Strategy<Value = Action> {
    let bound: Vec<_> = Keymap::default().bindings.into_iter().flat_map(|b| b.keys).collect();
    let keys = prop::sample::select(bound).prop_map(|(code, modifiers)| Action::Key(KeyEvent::new(code, modifiers)));
    let letters = any::<char>().prop_map(|c| key(KeyCode::Char(c)));
    let editing =
        prop::sample::select(vec![KeyCode::Backspace, KeyCode::Delete, KeyCode::Left, KeyCode::Home, KeyCode::Esc])
            .prop_map(key);
    let sizes = (1u16..=300, 1u16..=100).prop_map(|(columns, rows)| Action::Resize(columns, rows));
    let mouse = (0u16..300, 0u16..100, 0usize..3).prop_map(|(column, row, kind)| {
        let kind =
            [MouseEventKind::ScrollDown, MouseEventKind::ScrollUp, MouseEventKind::Down(MouseButton::Left)][kind];
        Action::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE })
    });
    let stats = (0usize..30, 0u64..2, 0usize..4).prop_map(|(tensor, generation, kind)| {
        let stats = [
            Fetch::Running(0.5),
            Fetch::Failed("truncated".into()),
            Fetch::Ready(Arc::new(LayerStats::default())),
            Fetch::Absent,
        ];
        Action::Report(Report::Stats(StatsReport { tensor, generation, found: Found::Stats(stats[kind].clone()) }))
    });
    let verdicts = (0usize..30, any::<bool>()).prop_map(|(tensor, sound)| {
        let verdict = if sound { Verdict::Sound } else { Verdict::Damaged("chunk 3: a hash does not match".into()) };
        Action::Report(Report::Stats(StatsReport {
            tensor,
            generation: 0,
            found: Found::Verdict(Fetch::Ready(verdict)),
        }))
    });
    let changed = Just(()).prop_map(|()| Action::Report(Report::FileChanged));
    let pasted = "[a-z0-9.*(\\[é\\n]{0,12}".prop_map(Action::Paste);
    let ticks = Just(()).prop_map(|()| Action::Tick);
    prop_oneof![12 => keys, 3 => letters, 2 => editing, 2 => sizes, 1 => mouse, 1 => stats, 1 => verdicts, 1 => changed, 1 => pasted, 1 => ticks]
}

/// The selection is within its list, and within what is shown of it.
fn check(state: &State) {
    let layers = &state.views.list;
    let (cursor, len) = (layers.cursor, layers.rows.len());
    assert!(cursor.selected < len.max(1), "{cursor:?} of {len}");
    let height = state.body_height().saturating_sub(2).max(1);
    assert!(cursor.offset <= cursor.selected && cursor.selected < cursor.offset + height, "{cursor:?}, {height} rows");
    assert!(len < height || cursor.offset + height <= len, "empty rows below the list: {cursor:?}, {height} of {len}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_the_selection_is_visible(
        actions in prop::collection::vec(any_action(), 1..120),
        size in (1u16..=300, 1u16..=100),
        ascii: bool,
        theme in prop::sample::select(Theme::ALL.to_vec()),
        two_files: bool,
    ) {
        thread_local!(static FILES: (Arc<FileModel>, Arc<FileModel>) = (file(6), file(5)));
        let (one, two) = FILES.with(Clone::clone);
        let mut state = State::new(one, two_files.then_some(two), Look { theme, ascii, ..Look::default() }, size);
        for action in actions {
            update(&mut state, action);
            check(&state);
            draw(&state);
        }
    }
}

fn opened() -> State {
    State::new(file(12), None, Look::default(), (100, 30))
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    keys.chars().flat_map(|c| update(state, key(KeyCode::Char(c)))).collect()
}

#[test]
fn the_search_box_takes_every_letter() {
    let mut state = opened();
    assert!(press(&mut state, "/q_proj").is_empty());
    assert!(matches!(state.overlay, Overlay::Search { .. }));
    assert_eq!(state.views.list.shown.tensors, 12);
    update(&mut state, key(KeyCode::Enter));
    assert!(matches!(state.overlay, Overlay::None));
    assert_eq!(state.views.list.filter.as_ref().map(|f| f.text()), Some("q_proj"));
    // Back: first the filter goes, then the program.
    assert!(press(&mut state, "q").is_empty());
    assert!(state.views.list.filter.is_none() && state.views.list.shown.tensors == state.file.tensors.len());
    assert_eq!(press(&mut state, "q"), [Effect::Quit(0)]);
}

#[test]
fn escape_brings_the_filter_before_back() {
    let mut state = opened();
    press(&mut state, "/mlp");
    update(&mut state, key(KeyCode::Enter));
    press(&mut state, "/");
    press(&mut state, "xyz");
    assert_eq!(state.views.list.shown.tensors, 0);
    update(&mut state, key(KeyCode::Esc));
    assert_eq!(state.views.list.filter.as_ref().map(|f| f.text()), Some("mlp"));
    assert_eq!(state.views.list.shown.tensors, 12);
}

#[test]
fn folding_hides_and_sorting_is_flat() {
    let mut state = opened();
    let all = state.views.list.rows.len();
    press(&mut state, "z");
    let folded = state.views.list.rows.len();
    assert!(folded < all / 4, "{folded} of {all}");
    press(&mut state, "z");
    assert_eq!(state.views.list.rows.len(), all);
    press(&mut state, "sssssssss");
    assert!(!state.views.list.is_tree() && state.views.list.rows.len() == state.file.tensors.len());
    press(&mut state, "t");
    assert_eq!(state.views.list.rows.len(), all);
}

#[test]
fn damage_is_a_row_and_not_an_end() {
    let mut state = opened();
    let verdict = Fetch::Ready(Verdict::Damaged("chunk 3".into()));
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor: 2, generation: 0, found: Found::Verdict(verdict) })),
    );
    assert!(state.notice.as_ref().is_some_and(|n| n.error && n.text.contains("chunk 3")));
    draw(&state);
    assert_eq!(state.tab, Tab::List);
}

#[test]
fn another_file_keeps_the_selection_and_forgets_what_was_known() {
    let mut state = opened();
    press(&mut state, "jjjjjjjj");
    let name = state.current().map(|i| state.file.tensors[i].name.clone());
    let verdict = Fetch::Ready(Verdict::Sound);
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor: 2, generation: 0, found: Found::Verdict(verdict) })),
    );
    let effects = update(&mut state, Action::Report(Report::Reloaded(Ok(file(11)))));
    assert!(!effects.is_empty() && state.known.is_empty() && state.generation == 1);
    assert_eq!(state.current().map(|i| state.file.tensors[i].name.clone()), name);
    // A report of the file before is not of this one.
    let late = StatsReport { tensor: 2, generation: 0, found: Found::Verdict(Fetch::Ready(Verdict::Sound)) };
    update(&mut state, Action::Report(Report::Stats(late)));
    assert!(state.known.is_empty());
    update(&mut state, Action::Report(Report::Reloaded(Err("it is gone".into()))));
    assert!(state.notice.as_ref().is_some_and(|n| n.error));
}

#[test]
fn a_filter_makes_one_row_of_modules_with_one_thing_in_them() {
    let mut state = opened();
    press(&mut state, "/layers.3.self_attn.q");
    update(&mut state, key(KeyCode::Enter));
    assert_eq!(state.views.list.rows.len(), 1, "{:?}", state.views.list.rows);
    assert_eq!(state.views.list.node(&state.file, 0).unwrap().label, "model.layers.3.self_attn.q_proj.weight");
    press(&mut state, "q/layers.[34].self_attn.q");
    update(&mut state, key(KeyCode::Enter));
    let list = &state.views.list;
    let nodes: Vec<_> = (0..list.rows.len()).map(|at| list.node(&state.file, at).unwrap()).collect();
    let labels: Vec<&str> = nodes.iter().map(|node| node.label.as_str()).collect();
    assert_eq!(labels, ["model.layers", "3.self_attn.q_proj.weight", "4.self_attn.q_proj.weight"]);
    assert_eq!(nodes.iter().map(|node| node.depth).collect::<Vec<_>>(), [0, 1, 1]);
    draw(&state);
}

#[test]
fn any_column_is_chosen_by_its_letter() {
    use wcodec_tui::model::order::Column;
    let mut state = opened();
    for column in Column::ALL {
        press(&mut state, "c");
        assert!(matches!(state.overlay, Overlay::Menu(Menu::Columns, _)));
        draw(&state);
        press(&mut state, &column.letter().to_string());
        assert!(matches!(state.overlay, Overlay::None));
        assert_eq!((state.views.list.sort.column, state.views.list.sort.descending), (column, column.descends()));
    }
    // Again: the other way round. The list has Enter, too.
    press(&mut state, "cv");
    assert!(!state.views.list.sort.descending);
    press(&mut state, "ckkkk");
    update(&mut state, key(KeyCode::Enter));
    assert_eq!(state.views.list.sort.column, Column::Ratio);
    press(&mut state, "cq");
    assert!(matches!(state.overlay, Overlay::None) && state.views.list.sort.column == Column::Ratio);
}

#[test]
fn keys_are_those_of_the_file() {
    let mut state = opened();
    state.keys = Arc::new(wcodec_tui::keymap::file::parse("[keys]\ndown = 'X'\nhelp = ['H', 'F1']\n").unwrap().keys);
    press(&mut state, "XXj");
    assert_eq!(state.views.list.cursor.selected, 2);
    update(&mut state, Action::Resize(140, 60));
    press(&mut state, "H");
    assert!(matches!(state.overlay, Overlay::Help(_)));
    let text = draw(&state);
    assert!(text.contains("X  one row down") && text.contains("H F1  this list"), "{text}");
}
