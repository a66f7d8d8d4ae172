//! The screens of scheme `rate`, of plans, of measured quality, and of bits by role and layer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{
    Bits, Cancel, Checkpoint, Coder, DecodeOptions, Dtype, EncodeOptions, MemorySource, Optimize, Rate, Scheme, Source,
    VerifyStatus, encode, verify,
};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::Look;
use wcodec_tui::model::FileModel;
use wcodec_tui::model::rates::Rates;
use wcodec_tui::state::State;
use wcodec_tui::stats::compute::compute;
use wcodec_tui::stats::control::Control;
use wcodec_tui::stats::{Fetch, Found, LayerStats, StatsReport};
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::list::Row;

const MATRIX: &str = "model.layers.0.mlp.up_proj.weight";

/// As the planner writes it.
const PLAN: &str = r#"{"version": 1, "target": "1500KB for the whole file", "recipe": "measured roles", "scheme": "rate",
    "bits": 3.7483, "trellis": true, "candidates": [
    {"recipe": "weights alone", "bits_asked": 3.7483, "bits_stored": 3.74809, "file_bytes": 1498761, "kl": 0.151338,
     "perplexity": 5.6825, "top1_agreement": 0.84611, "taken": false},
    {"recipe": "measured roles", "bits_asked": 3.7483, "bits_stored": 3.74795, "file_bytes": 1499048, "kl": 0.130254,
     "perplexity": 5.57072, "top1_agreement": 0.855713, "taken": true},
    {"recipe": "Fisher steps", "bits_asked": 3.7483, "bits_stored": null, "file_bytes": null, "kl": null, "taken": false}]}"#;
const QUALITY: &str = r#"{"version": 1, "kl": 0.130254, "kl_error": 0.00681085, "perplexity": 5.57072,
    "original_perplexity": 4.94055, "top1_agreement": 0.855713, "tokens": 12288, "windows": 24, "window": 512,
    "text_sha256": "80297662a7964a65f0ed4477510c34e9a0dd60249cee259af44a01aea3fda23c", "dtype": "float32"}"#;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m")).unwrap()
}

fn options(bits: f64, trellis: bool) -> EncodeOptions {
    EncodeOptions {
        scheme: Scheme::Rate(Rate { bits: Bits::new(bits).unwrap(), trellis }),
        ..EncodeOptions::of(Optimize::Size)
    }
}

fn file_of(source: &dyn Source, options: &EncodeOptions) -> Arc<FileModel> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.wcodec");
    encode(source, &path, options, &mut |_| Ok(())).unwrap();
    // The open file stays readable.
    Arc::new(FileModel::open(&path).unwrap())
}

fn metadata(plan: &str, quality: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("wcodec.plan".to_owned(), plan.to_owned()), ("wcodec.quality".to_owned(), quality.to_owned())])
}

/// With a plan, and a trellis.
fn planned() -> Arc<FileModel> {
    static FILE: OnceLock<Arc<FileModel>> = OnceLock::new();
    let make = || file_of(&checkpoint(), &EncodeOptions { metadata: metadata(PLAN, QUALITY), ..options(3.75, true) });
    FILE.get_or_init(make).clone()
}

/// Without.
fn plain() -> Arc<FileModel> {
    static FILE: OnceLock<Arc<FileModel>> = OnceLock::new();
    FILE.get_or_init(|| file_of(&checkpoint(), &options(2.5, false))).clone()
}

fn stats(file: &FileModel, tensor: usize, reference: Option<&Checkpoint>) -> LayerStats {
    let (stop, mut tell) = (Cancel::new(), |_: f32| {});
    compute(file, tensor, reference, &mut Control::new(&stop, &mut tell)).unwrap()
}

fn entropy(counts: &[u64]) -> f64 {
    let n = counts.iter().sum::<u64>() as f64;
    counts.iter().filter(|&&c| c > 0).map(|&c| -(c as f64 / n) * (c as f64 / n).log2()).sum()
}

#[test]
fn figures_of_scheme_rate_are_right() {
    for (file, trellis) in [(planned(), true), (plain(), false)] {
        for (i, t) in file.tensors.iter().enumerate().filter(|(_, t)| t.scheme == "rate") {
            let found = stats(&file, i, None);
            let levels = file.container().unwrap().symbols(&t.name, &DecodeOptions::default()).unwrap();
            let mut counts = [0u64; 256];
            // With the trellis a level is 2q + Q, of which q is coded.
            let coded = |&level: &i8| if trellis { i16::from(level).div_euclid(2) } else { i16::from(level) };
            levels.iter().map(coded).for_each(|q| counts[(q + 128) as usize] += 1);
            let ours = found.symbols.as_ref().unwrap();
            assert_eq!(ours.counts, counts, "{}", t.name);
            assert!((ours.entropy - entropy(&counts)).abs() < 1e-9);
            // So it is what the index says, which has four digits behind the point.
            assert!(t.entropy.is_some_and(|e| (e - ours.entropy).abs() <= 5.001e-5), "{} {:?}", t.name, t.entropy);
            assert!(ours.entropy < t.bits_per_weight());
            let different = levels.iter().collect::<std::collections::HashSet<_>>().len();
            assert_eq!(ours.levels, trellis.then_some(different));
            let scales = found.scales.as_ref().unwrap();
            assert_eq!((scales.sorted.len(), scales.zeros, scales.odd), (t.rows, 0, 0), "{}", t.name);
        }
    }
}

#[test]
fn rows_of_zeros_have_no_scale() {
    let mut source = MemorySource::new();
    let value = |k: usize| if k / 64 % 4 == 1 { 0.0 } else { (k * 37 % 101) as f32 - 50.0 };
    let bytes: Vec<u8> = (0..64 * 64).flat_map(|k| value(k).to_le_bytes()).collect();
    source.push("w".into(), Dtype::F32, vec![64, 64], bytes.into()).unwrap();
    for trellis in [false, true] {
        let file = file_of(&source, &options(4.0, trellis));
        let scales = stats(&file, 0, None).scales.unwrap();
        assert_eq!((scales.sorted.len(), scales.zeros, scales.odd), (48, 16, 0), "{trellis}");
    }
}

#[test]
fn columns_with_factors_are_told_of() {
    let mut source = MemorySource::new();
    for name in ["a", "b"] {
        let bytes: Vec<u8> = (0..64 * 64).flat_map(|k| ((k * 37 % 101) as f32 - 50.0).to_le_bytes()).collect();
        source.push(name.into(), Dtype::F32, vec![64, 64], bytes.into()).unwrap();
    }
    let columns = BTreeMap::from([("a".to_owned(), (1..=64).map(|i| i as f32).collect())]);
    let file = file_of(&source, &EncodeOptions { columns, step: Some(0.3), ..options(4.0, false) });
    let [a, b] = &file.tensors[..] else { panic!("{:?}", file.tensors) };
    assert_eq!([a, b].map(wcodec_tui::draw::text::scheme), ["rate row column", "rate row"]);
    let listed = wcodec_tui::plain::listing(&[a, b], Look::default(), false);
    assert!(listed.contains("rate/row/column"), "{listed}");
    // Scales are those of rows alone, and weights are products with the factors.
    let found = stats(&file, 0, None);
    assert_eq!(found.scales.unwrap().sorted.len(), 64);
    let values = file.container().unwrap().read("a", &DecodeOptions::default()).unwrap();
    let squares = values.as_chunks().0.iter().map(|v| f64::from(f32::from_le_bytes(*v)).powi(2)).sum::<f64>();
    assert!((found.weights.unwrap().rms / (squares / 4096.0).sqrt() - 1.0).abs() < 1e-6);
}

/// The model, some weights of one of its matrices changed a little.
fn disturbed(folder: &Path) -> Checkpoint {
    let (original, mut source) = (checkpoint(), MemorySource::new());
    for (i, t) in original.tensors().iter().enumerate().filter(|(_, t)| t.alias_of.is_none()) {
        let mut bytes = original.read(i).unwrap().to_vec();
        if t.name == MATRIX {
            bytes.chunks_exact_mut(16).for_each(|c| c[1] ^= 0x80);
        }
        source.push(t.name.clone(), t.dtype, t.shape.clone(), bytes.into()).unwrap();
    }
    let raw = EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..EncodeOptions::of(Optimize::Size) };
    let path = folder.join("disturbed.safetensors");
    wcodec::decode(
        file_of(&source, &raw).container().unwrap(),
        None,
        &path,
        &DecodeOptions::default(),
        false,
        &mut |_| Ok(()),
    )
    .unwrap();
    Checkpoint::open(&path).unwrap()
}

#[test]
fn errors_are_judged_as_verifying_judges_them() {
    let folder = tempfile::tempdir().unwrap();
    let other = disturbed(folder.path());
    for (reference, differing) in [(&checkpoint(), 0), (&other, 1)] {
        for file in [planned(), plain()] {
            let report =
                verify(file.container().unwrap(), Some(reference), &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
            let mut differ = 0;
            for (i, t) in file.tensors.iter().enumerate() {
                let status = report.tensors.iter().find(|v| v.name == t.name).unwrap().status;
                let found = stats(&file, i, Some(reference)).error.unwrap();
                let fits = (t.scheme == "rate").then_some(status == VerifyStatus::Ok);
                assert_eq!(found.fits, fits, "{} {found:?} {:?}", t.name, t.error);
                assert!((found.relative - 10f64.powf(-found.snr_db / 20.0)).abs() <= 1e-9 * found.relative);
                differ += usize::from(fits == Some(false));
            }
            assert_eq!(differ, differing);
        }
    }
}

fn at(file: &Arc<FileModel>, size: (u16, u16), reference: Option<&Checkpoint>) -> State {
    let mut state = State::new(file.clone(), None, Look::default(), size);
    let tensor = file.find(MATRIX).unwrap();
    state.views.list.select(file, Row::Tensor(tensor));
    state.tab = Tab::Tensor;
    state.has_reference = reference.is_some();
    let stats = Fetch::Ready(Arc::new(stats(file, tensor, reference)));
    update(
        &mut state,
        Action::Report(Report::Stats(StatsReport { tensor, generation: 0, found: Found::Stats(stats) })),
    );
    state
}

fn screen(state: &State) -> String {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut State, keys: &str) {
    for c in keys.chars() {
        update(state, Action::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)));
    }
}

#[test]
fn layers_of_few_levels() {
    insta::assert_snapshot!("layer_levels_140x40", screen(&at(&plain(), (140, 40), Some(&checkpoint()))));
    let mut state = at(&planned(), (80, 24), Some(&checkpoint()));
    press(&mut state, "dd");
    insta::assert_snapshot!("layer_trellis_80x24", screen(&state));
    press(&mut state, "G");
    insta::assert_snapshot!("layer_trellis_80x24_bottom", screen(&state));
}

#[test]
fn errors_that_are_larger_than_stated_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = at(&plain(), (80, 24), Some(&disturbed(folder.path())));
    press(&mut state, "G");
    insta::assert_snapshot!("layer_differs_80x24", screen(&state));
    // Without a reference, what the file states is there all the same.
    let mut state = at(&plain(), (80, 24), None);
    press(&mut state, "G");
    assert!(screen(&state).contains("of the RMS") && !screen(&state).contains("as stated"), "{}", screen(&state));
}

#[test]
fn rates() {
    let mut state = State::new(planned(), None, Look::default(), (80, 24));
    press(&mut state, "4");
    for (columns, rows) in [(80, 24), (140, 40), (20, 5), (1, 1)] {
        update(&mut state, Action::Resize(columns, rows));
        insta::assert_snapshot!(format!("rates_{columns}x{rows}"), screen(&state));
    }
    update(&mut state, Action::Resize(80, 24));
    press(&mut state, "G");
    insta::assert_snapshot!("rates_80x24_bottom", screen(&state));
    let last = state.views.bits.0;
    press(&mut state, "j");
    assert_eq!(state.views.bits.0, last);
    press(&mut state, "g");
    state.look.ascii = true;
    assert!(screen(&state).is_ascii());
    insta::assert_snapshot!("rates_80x24_ascii", screen(&state));
    state.look.ascii = false;
    // Nothing moves to the left or right: these keys change the view.
    press(&mut state, "?");
    assert!(screen(&state).contains("l →  the next view"), "{}", screen(&state));
    // A file without any of it has its sums.
    let mut state = State::new(plain(), None, Look::default(), (80, 24));
    press(&mut state, "4");
    insta::assert_snapshot!("rates_80x24_no_plan", screen(&state));
}

#[test]
fn sums_by_role_and_by_layer_are_the_file() {
    for file in [planned(), plain()] {
        let rates = Rates::new(&file);
        for groups in [&rates.roles, &rates.layers] {
            assert_eq!(groups.iter().map(|g| g.totals.tensors).sum::<usize>(), file.tensors.len());
            assert_eq!(groups.iter().map(|g| g.totals.stored_bytes).sum::<u64>(), file.totals.stored_bytes);
        }
        assert_eq!((rates.roles.len(), rates.layers.len(), rates.all.totals), (12, 5, file.totals));
        let up = rates.roles.iter().find(|g| g.name == "model.layers.*.mlp.up_proj.weight").unwrap();
        let all: Vec<f64> =
            file.tensors.iter().filter(|t| t.name.contains("up_proj")).map(|t| t.error.unwrap()).collect();
        // They are of one size.
        let mean = (all.iter().map(|e| e * e).sum::<f64>() / all.len() as f64).sqrt();
        assert_eq!((up.totals.tensors, up.schemes.as_str()), (4, "rate"));
        assert!((up.error.unwrap() - mean).abs() < 1e-12);
    }
}

#[test]
fn statements_of_strangers_are_shown_without_harm() {
    const HOSTILE: &str = r"a\u001b]0;title\u0007\u009b31m\u202e\r\n\u2028";
    let long = "x".repeat(5000);
    let many = format!(r#"{{"recipe": "{HOSTILE}", "kl": 1e300, "taken": true, "file_bytes": 1e30}},"#).repeat(1000);
    let plans = [
        format!(
            r#"{{"recipe": "{HOSTILE}", "target": "{long}", "candidates": [{many} 7, {{}}], "bits": -1e308, "scheme": "{HOSTILE}"}}"#
        ),
        PLAN.replace("weights alone", HOSTILE).replace("5.57072", "1e308").replace("0.130254", "-0.0"),
        "{\"recipe\": 1".to_owned(),
    ];
    let qualities = [
        QUALITY.replace("0.130254", "1e308").replace("float32", HOSTILE).replace("80297662", HOSTILE),
        QUALITY.replace("12288", "-1e308").replace("4.94055", "0").replace("24", "18446744073709551615"),
        "[".repeat(10_000),
    ];
    let mut source = MemorySource::new();
    for i in 0..300 {
        let name = format!("\u{1b}[2J\u{202e}.{i}.{}.w", i % 7);
        source.push(name, Dtype::F32, vec![2], vec![0; 8].into()).unwrap();
    }
    for (plan, quality) in plans.iter().zip(&qualities) {
        let file =
            file_of(&source, &EncodeOptions { metadata: metadata(plan, quality), ..EncodeOptions::of(Optimize::Size) });
        for (columns, rows) in [(1, 1), (9, 7), (41, 12), (80, 24), (300, 100)] {
            for ascii in [false, true] {
                let mut state = State::new(file.clone(), None, Look { ascii, ..Look::default() }, (columns, rows));
                for keys in ["4", "d", "G", "u", "7", "G", "4"] {
                    press(&mut state, keys);
                    let text = screen(&state);
                    assert!(!text.contains(|c| wcodec::text::steers(c) && c != '\n'), "{text}");
                    assert!(!ascii || text.is_ascii());
                }
            }
        }
    }
}
