//! Screens as text, at several sizes.

use std::path::Path;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{
    Checkpoint, Coder, EncodeOptions, Granularity, MemorySource, Optimize, Scheme, Source, SourceBytes, encode,
};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::{Canvas, Look, head};
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::model::map::FileMap;
use wcodec_tui::state::State;
use wcodec_tui::stats::{Fetch, Found, StatsReport, Verdict};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::file::selected;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m")).unwrap()
}

/// The model as a container; the folder goes, the file stays open.
fn model(name: &str, source: &dyn Source, options: &EncodeOptions) -> Arc<FileModel> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    encode(source, &path, options, &mut |_| Ok(())).unwrap();
    Arc::new(FileModel::open(&path).unwrap())
}

fn llama() -> Arc<FileModel> {
    model("doc-llama-3m.wcodec", &checkpoint(), &EncodeOptions::of(Optimize::Size))
}

/// A fine-tuned sibling: some tensors coded otherwise, one with other values, one more and one less.
fn sibling() -> Arc<FileModel> {
    let original = checkpoint();
    let mut source = MemorySource::new();
    for (i, t) in original.tensors().iter().enumerate() {
        if t.alias_of.is_some() || t.name == "model.norm.weight" {
            continue;
        }
        let bytes: SourceBytes<'_> = original.read(i).unwrap();
        let mut bytes = bytes.to_vec();
        if t.name.contains("layers.1.mlp.up_proj") {
            bytes.chunks_exact_mut(64).for_each(|c| c[0] ^= 0x40);
        }
        source.push(t.name.clone(), t.dtype, t.shape.clone(), bytes.into()).unwrap();
    }
    source.push("score.bias".into(), wcodec::Dtype::F32, vec![4], vec![0; 16].into()).unwrap();
    let options = EncodeOptions { exclude: vec!["*.layers.3.mlp.*".into()], ..EncodeOptions::of(Optimize::Size) };
    model("doc-llama-3m-tuned.wcodec", &source, &options)
}

fn screen(state: &State) -> String {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    let key = |c| match c {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        c => KeyCode::Char(c),
    };
    keys.chars().flat_map(|c| update(state, Action::Key(KeyEvent::new(key(c), KeyModifiers::NONE)))).collect()
}

fn resize(state: &mut State, columns: u16, rows: u16) {
    update(state, Action::Resize(columns, rows));
}

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// The view at every size, in ASCII at the smallest usual one, and at two that are hardly any.
fn at_all_sizes(name: &str, state: &mut State) {
    for (columns, rows) in SIZES {
        resize(state, columns, rows);
        insta::assert_snapshot!(format!("{name}_{columns}x{rows}"), screen(state));
    }
    resize(state, 80, 24);
    state.look.ascii = true;
    let text = screen(state);
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!(format!("{name}_ascii"), text);
    state.look.ascii = false;
    for (columns, rows) in [(20, 5), (1, 1)] {
        resize(state, columns, rows);
        insta::assert_snapshot!(format!("{name}_{columns}x{rows}"), screen(state));
    }
}

fn opened() -> State {
    State::new(llama(), None, Look::default(), (80, 24))
}

fn verdict(state: &mut State, tensor: usize, verdict: Fetch<Verdict>) {
    let generation = state.generation;
    update(state, Action::Report(Report::Stats(StatsReport { tensor, generation, found: Found::Verdict(verdict) })));
}

#[test]
fn layers() {
    at_all_sizes("layers", &mut opened());
}

#[test]
fn layers_flat_sorted_filtered_and_damaged() {
    let mut state = opened();
    press(&mut state, "/proj\nsssssssjj");
    for (tensor, found) in [
        (3, Fetch::Ready(Verdict::Sound)),
        (4, Fetch::Running(0.5)),
        (5, Fetch::Ready(Verdict::Damaged("model.layers.0.mlp.up_proj.weight: a hash does not match".into()))),
    ] {
        verdict(&mut state, tensor, found);
    }
    at_all_sizes("layers_sorted", &mut state);
}

#[test]
fn layers_while_searching_and_without_a_match() {
    let mut state = opened();
    press(&mut state, "/q_pr");
    insta::assert_snapshot!("layers_search", screen(&state));
    press(&mut state, "xyz");
    insta::assert_snapshot!("layers_no_match", screen(&state));
}

#[test]
fn layers_folded_scrolled_and_changed_on_disk() {
    let mut state = opened();
    press(&mut state, "zjllll");
    update(&mut state, Action::Report(Report::FileChanged));
    insta::assert_snapshot!("layers_folded", screen(&state));
}

#[test]
fn help() {
    let mut state = opened();
    press(&mut state, "?");
    at_all_sizes("help", &mut state);
}

#[test]
fn compare() {
    let mut state = State::new(llama(), Some(sibling()), Look::default(), (80, 24));
    press(&mut state, "6n");
    at_all_sizes("compare", &mut state);
}

#[test]
fn compare_with_nothing() {
    let mut state = opened();
    press(&mut state, "6");
    insta::assert_snapshot!("compare_nothing", screen(&state));
}

#[test]
fn only_differences_and_the_layer() {
    let mut state = State::new(llama(), Some(sibling()), Look::default(), (80, 24));
    press(&mut state, "6o");
    insta::assert_snapshot!("compare_differences", screen(&state));
    let name = "model.layers.1.mlp.up_proj.weight";
    let found = state.views.compare.found.clone().unwrap();
    assert_eq!(state.views.compare.len(), found.differing);
    while state.views.compare.selected().unwrap().name != name {
        let before = state.views.compare.cursor.selected;
        press(&mut state, "n");
        assert!(state.views.compare.cursor.selected > before);
    }
    // Whatever hides it in the table of layers.
    press(&mut state, "2z/embed\n6\n");
    assert_eq!(state.tab, Tab::Tensor);
    assert_eq!(state.current(), state.file.find(name));
}

#[test]
fn relations_are_those_of_the_codec() {
    use wcodec::CompareStatus;
    use wcodec_tui::model::compare::Relation;
    let zstd = EncodeOptions { coder: Coder::Zstd, ..EncodeOptions::of(Optimize::Size) };
    let block = EncodeOptions { scheme: Scheme::Int8(Granularity::Block(64)), ..EncodeOptions::of(Optimize::Size) };
    let (one, files) =
        (llama(), [sibling(), model("z", &checkpoint(), &zstd), model("b", &checkpoint(), &block), llama()]);
    for two in files {
        let state = State::new(one.clone(), Some(two.clone()), Look::default(), (80, 24));
        let found = state.views.compare.found.unwrap();
        let expected = wcodec::compare(one.container().unwrap(), two.container().unwrap()).unwrap();
        assert_eq!(found.rows.len(), expected.tensors.len());
        assert_eq!(found.counts.iter().sum::<usize>(), found.rows.len());
        for row in &found.rows {
            let name = &row.name;
            let status = expected.tensors.iter().find(|t| t.name == *name).unwrap().status;
            let same = match row.relation {
                Relation::Same | Relation::Recoded => CompareStatus::Same,
                Relation::Differs => CompareStatus::Differs,
                Relation::OnlyA => CompareStatus::OnlyA,
                Relation::OnlyB => CompareStatus::OnlyB,
            };
            assert_eq!(status, same, "{name}");
        }
    }
}

#[test]
fn file() {
    let mut state = opened();
    press(&mut state, "7");
    at_all_sizes("file", &mut state);
}

#[test]
fn the_map_follows_the_selection() {
    let mut state = opened();
    press(&mut state, "7ddjjj");
    insta::assert_snapshot!("file_selected", screen(&state));
    let tensor = selected(&state).unwrap().tensor.unwrap();
    press(&mut state, "\n");
    assert_eq!((state.tab, state.current()), (Tab::Tensor, Some(tensor)));
    press(&mut state, "7G");
    let last = *selected(&state).unwrap();
    assert_eq!(last.end(), state.file.file_bytes());
}

#[test]
fn every_byte_is_on_the_map_once() {
    for file in [llama(), sibling()] {
        let map = FileMap::new(&file);
        assert_eq!(map.bytes.iter().sum::<u64>(), file.file_bytes());
        assert!(map.regions.windows(2).all(|w| w[0].end() <= w[1].offset));
        assert_eq!(map.regions.last().map(|r| r.end()), Some(file.file_bytes()));
        for sums in [&map.schemes, &map.coders, &map.dtypes] {
            assert_eq!(sums.iter().map(|g| g.totals.stored_bytes).sum::<u64>(), file.totals.stored_bytes);
            assert_eq!(sums.iter().map(|g| g.totals.tensors).sum::<usize>(), file.tensors.len());
        }
        let whole = map.most(0, map.length).unwrap();
        let largest = map.bytes.iter().max().unwrap();
        assert_eq!(map.bytes[whole.0 as usize], *largest);
        assert_eq!(map.most(map.length, map.length + 5), None);
    }
}

/// Whoever makes a file may choose its names so.
const HOSTILE: &str = "a\x1b]0;title\x07\u{9b}31m\u{202e}\u{2066}\r\n\u{2028}b\t\u{85}";

#[test]
fn names_of_a_file_steer_no_screen() {
    let mut source = MemorySource::new();
    for i in 0..4 {
        let values = vec![i as u8; 64 * 64 * 4];
        source.push(format!("{HOSTILE}.{i}.{HOSTILE}"), wcodec::Dtype::F32, vec![64, 64], values.into()).unwrap();
    }
    let metadata = std::collections::BTreeMap::from([(HOSTILE.to_owned(), HOSTILE.to_owned())]);
    let options = EncodeOptions { metadata, ..EncodeOptions::of(Optimize::Size) };
    for (columns, rows) in SIZES {
        let (a, b) = (model("a\x1b[2J\u{202e}.wcodec", &source, &options), model("b\r.wcodec", &source, &options));
        let mut state = State::new(a, Some(b), Look::default(), (80, 24));
        verdict(&mut state, 1, Fetch::Ready(Verdict::Damaged(format!("{HOSTILE}: a hash does not match"))));
        update(&mut state, Action::Report(Report::Error(format!("{HOSTILE}: it cannot be read"))));
        resize(&mut state, columns, rows);
        for keys in ["2", "z", "zs", "/b", "\n", "3", "v", "j", "5", "6", "d", "7", "4", "G", "?", "?"] {
            press(&mut state, keys);
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| wcodec_tui::draw::draw(frame, &state)).unwrap();
            for cell in terminal.backend().buffer().content() {
                assert!(!cell.symbol().contains(wcodec::text::steers), "{keys:?} {:?}", cell.symbol());
            }
            // The screen shows as much of a long name as fits: its beginning, its end, or both.
            let shown = |text: &str| [r"\x1b]0;title", r"\x9b31m"].iter().any(|part| text.contains(part));
            assert!(keys != "2" || shown(&screen(&state)), "{}", screen(&state));
        }
    }
}

#[test]
fn the_screen_while_an_index_is_read_fits_every_size() {
    for (columns, rows) in [(1, 1), (5, 2), (20, 5), (80, 24)] {
        for ascii in [false, true] {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            let (look, path) = (Look { ascii, ..Look::default() }, Path::new("a/größe.wcodec"));
            terminal.draw(|f| head::loading(&mut Canvas::whole(f, look), path, Some(1 << 30))).unwrap();
            let shown = terminal.backend().to_string();
            assert_eq!(shown.contains("reading the index"), columns >= 20, "{shown}");
            assert!(!ascii || shown.is_ascii(), "{shown}");
        }
    }
}
