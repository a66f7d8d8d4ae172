//! Mutated files on the screen and on paper: whatever a file is, the inspector refuses it or shows it, at any size.

// The codec's tests', from which the files come.
#[path = "../../codec/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tempfile::TempDir;
use wcodec::text::steers;
use wcodec::{Cancel, Container, DecodeOptions, ErrorKind, Pool};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::Look;
use wcodec_tui::effect::Effect;
use wcodec_tui::model::FileModel;
use wcodec_tui::model::map::FileMap;
use wcodec_tui::state::State;
use wcodec_tui::stats::compute::compute;
use wcodec_tui::stats::control::Control;
use wcodec_tui::stats::verify::verify;
use wcodec_tui::stats::{Fetch, Found, LayerStats, StatsEffect, StatsReport, Verdict};
use wcodec_tui::update::update;
use wcodec_tui::{json, plain};

use common::Rng;
use common::campaign::{self, Campaign};
use common::fuzz;
use common::fuzz::file::seeds::SEEDS;
use common::fuzz::file::{file_of, random, turn_of};

const SIZES: [(u16, u16); 6] = [(80, 24), (120, 40), (200, 60), (20, 5), (1, 1), (47, 13)];
/// Keys that are pressed; the screen is drawn behind each.
const KEYS: [&str; 16] = ["2", "z", "s", "j", "G", "3", "v", "j", "\n", "6", "7", "d", "4", "G", "/w\n", "1"];
/// Bytes of the largest tensor that is decoded here.
const MOST: u64 = 256 << 10;

/// A folder of this process, in memory where there is any.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
});
/// A file in order, to compare others with.
static OTHER: LazyLock<Arc<FileModel>> =
    LazyLock::new(|| Arc::new(model("other.wcodec", &SEEDS[0].draft.seal()).unwrap()));
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(None).unwrap());

fn model(name: &str, bytes: &[u8]) -> wcodec::Result<FileModel> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let path = FOLDER.path().join(format!("{} {name}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(&path, bytes).unwrap();
    FileModel::open_any(&path, false).inspect_err(|_| std::fs::remove_file(&path).unwrap())
}

fn exercise(input: &[u8]) -> Vec<&'static str> {
    POOL.run(|| look_at(input)).unwrap()
}

/// Everything that the inspector makes of the file that `input` stands for.
fn look_at(input: &[u8]) -> Vec<&'static str> {
    let bytes = file_of(input);
    let sound = Container::from_bytes(bytes.clone());
    let file = match model("m.wcodec", &bytes) {
        Ok(file) => Arc::new(file),
        Err(e) => {
            let kind = sound.map(|_| ()).expect_err("it opens in memory").kind();
            assert!(kind == e.kind() && !e.to_string().contains(steers), "{e}");
            return vec!["not opened"];
        }
    };
    if sound.is_err() {
        std::fs::remove_file(&file.path).unwrap();
        return vec!["cut off"];
    }
    assert_eq!(FileMap::new(&file).bytes.iter().sum::<u64>(), file.file_bytes());
    on_paper(&file);
    let mut events = vec!["opened"];
    events.extend((0..file.tensors.len()).map(|tensor| figures(&file, tensor)));
    on_screen(&file, turn_of(input));
    // Until here: a verdict on a file that has changed is none.
    std::fs::remove_file(&file.path).unwrap();
    events
}

/// Tables and JSON.
fn on_paper(file: &FileModel) {
    let all: Vec<usize> = (0..file.tensors.len()).collect();
    let (container, other) = (file.container().unwrap(), OTHER.container().unwrap());
    let look = Look::default();
    let compared = wcodec::compare(container, other).unwrap();
    let texts = [
        plain::table(file, &all, look),
        plain::rates(file, look),
        plain::differences("other", &compared, look),
        plain::comparison(&compared, look),
    ];
    for text in texts {
        assert!(!text.replace('\n', "").contains(steers), "{text:?}");
    }
    let model = container.model().ok().flatten();
    let text = json::document(file, model.as_ref(), &all, Some((&OTHER, &compared))).unwrap();
    assert!(text.is_ascii());
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["tensors"].as_array().unwrap().len(), all.len());
}

fn compute_all(file: &FileModel, tensor: usize) -> wcodec::Result<LayerStats> {
    let mut tell = |part: f32| assert!((0.0..=1.0).contains(&part), "{part}");
    compute(file, tensor, None, &mut Control::new(&Cancel::new(), &mut tell))
}

fn verdict(file: &FileModel, tensor: usize) -> wcodec::Result<Verdict> {
    verify(file, tensor, &mut Control::new(&Cancel::new(), &mut |_| ()))
}

/// Figures of a tensor are those of its symbols, and the verdict is the codec's.
fn figures(file: &FileModel, tensor: usize) -> &'static str {
    let info = &file.tensors[tensor];
    if info.original_bytes > MOST {
        return "large tensor";
    }
    let container = file.container().unwrap();
    let check = container.check(&info.name, &DecodeOptions::default());
    match (verdict(file, tensor), &check) {
        (Ok(Verdict::Sound), Ok(())) => {}
        (Ok(Verdict::Damaged(text)), checked) => {
            // A table is looked at as a whole, and padding with it.
            assert!(checked.is_err() && text.starts_with(&info.name), "{text}");
        }
        (Err(e), Err(_)) if e.kind() == ErrorKind::Unsupported => {}
        (found, checked) => panic!("'{}': {found:?}, {checked:?}", info.name),
    }
    let stats = match compute_all(file, tensor) {
        Ok(stats) => stats,
        Err(e) => {
            assert!(check.is_err(), "'{}': {e}", info.name);
            return "refused";
        }
    };
    // Pieces may decode of what is refused as a whole, such as for chunks that are shorter than the index says.
    let all = container.symbols(&info.name, &DecodeOptions { verify: false, ..Default::default() });
    if let (Some(symbols), Ok(all)) = (stats.symbols.filter(|s| s.levels.is_none()), all) {
        let mut counts = [0u64; 256];
        all.iter().for_each(|&q| counts[(i16::from(q) + 128) as usize] += 1);
        assert_eq!(symbols.counts, counts, "'{}'", info.name);
    }
    "shown"
}

/// Every view, at a size, with all that is computed for it.
fn on_screen(file: &Arc<FileModel>, turn: u64) {
    let size = SIZES[(turn % SIZES.len() as u64) as usize];
    let other = turn.is_multiple_of(3).then(|| OTHER.clone());
    let mut state = State::new(file.clone(), other, Look::default(), size);
    state.look.ascii = (turn / SIZES.len() as u64).is_multiple_of(2);
    draw(&state);
    for keys in KEYS {
        for c in keys.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            let effects = update(&mut state, Action::Key(KeyEvent::new(code, KeyModifiers::NONE)));
            effects.into_iter().for_each(|effect| take(file, &mut state, effect));
        }
        draw(&state);
    }
}

/// Does what the inspector wants to know, as its workers do.
fn take(file: &FileModel, state: &mut State, effect: Effect) {
    let reports: Vec<StatsReport> = match effect {
        Effect::Stats(generation, StatsEffect::Compute(tensor)) => vec![stats_of(file, generation, tensor)],
        Effect::Stats(generation, StatsEffect::Entropies(tensors)) => {
            tensors.into_iter().map(|tensor| stats_of(file, generation, tensor)).collect()
        }
        Effect::Stats(generation, StatsEffect::Verify(tensors)) => {
            let verdicts = tensors.into_iter().map(|tensor| {
                let verdict = verdict(file, tensor).map_or_else(|e| Fetch::Failed(e.to_string()), Fetch::Ready);
                StatsReport { tensor, generation, found: Found::Verdict(verdict) }
            });
            verdicts.collect()
        }
        _ => Vec::new(),
    };
    for report in reports {
        update(state, Action::Report(Report::Stats(report)));
    }
}

fn stats_of(file: &FileModel, generation: u64, tensor: usize) -> StatsReport {
    let found = if file.tensors[tensor].original_bytes > MOST {
        Fetch::Absent
    } else {
        compute_all(file, tensor).map_or_else(|e| Fetch::Failed(e.to_string()), |stats| Fetch::Ready(Arc::new(stats)))
    };
    StatsReport { tensor, generation, found: Found::Stats(found) }
}

fn draw(state: &State) {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    for cell in terminal.backend().buffer().content() {
        assert!(!cell.symbol().contains(steers), "{:?}", cell.symbol());
        assert!(!state.look.ascii || cell.symbol().is_ascii(), "{:?} in\n{}", cell.symbol(), terminal.backend());
    }
}

#[test]
fn mutated_files_are_shown_or_refused() {
    let mut rng = Rng(64);
    let events: Vec<_> = (0..300).flat_map(|_| exercise(&random(&mut rng))).collect();
    let count = |word: &str| events.iter().filter(|e| **e == word).count();
    for (word, least) in [("opened", 100), ("shown", 100), ("refused", 20), ("not opened", 20)] {
        assert!(count(word) >= least, "{word}: {}", count(word));
    }
}

/// Names of schemes, coders and layouts are any text where this version does not know them.
#[test]
fn names_that_nobody_knows_are_shown_in_ascii() {
    for (key, pointer) in
        [("scheme", ""), ("coder", "/planes/0"), ("layout", "/planes/0"), ("filter", "/planes/0"), ("per", "/scales")]
    {
        let mut draft = SEEDS[0].draft.clone();
        draft.index.pointer_mut(&format!("/tensors/0{pointer}")).unwrap()[key] = "a\u{de4f8}\u{202e}b".into();
        let file = Arc::new(model("names.wcodec", &draft.seal()).unwrap());
        // In ASCII and not, at two sizes.
        [0, 1, 6, 7].iter().for_each(|&turn| on_screen(&file, turn));
        on_paper(&file);
        std::fs::remove_file(&file.path).unwrap();
    }
}

#[test]
fn files_that_found_defects_are_shown_or_refused() {
    (fuzz::file::TARGET.seeds)().iter().filter(|input| input[0] == u8::MAX).for_each(|input| drop(exercise(input)));
}

#[test]
#[ignore = "takes long: see docs/contributing/testing.md"]
fn campaign() {
    let command = "cargo test --package wcodec-tui --test files -- --ignored --nocapture campaign";
    campaign::run(&Campaign { test: "campaign", command, every: 64, body: exercise, held: || 0 });
}
