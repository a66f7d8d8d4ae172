//! Files that are no containers, or no whole ones: checkpoints, GGUF files, what was cut off.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{Bits, Cancel, Checkpoint, Container, EncodeOptions, ErrorKind, Rate, Scheme, encode, encode_to_vec};
use wcodec_tui::action::{Action, Report};
use wcodec_tui::draw::theme::Look;
use wcodec_tui::effect::Effect;
use wcodec_tui::estimate::estimate;
use wcodec_tui::menu::Menu;
use wcodec_tui::model::FileModel;
use wcodec_tui::state::{Overlay, State};
use wcodec_tui::stats::Fetch;
use wcodec_tui::update::update;
use wcodec_tui::views::Tab;
use wcodec_tui::views::overview::Measure;
use wcodec_tui::workers::encode::Encoder;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m")
}

/// A copy of the checkpoint of which the last `missing` bytes are not there.
fn copy(folder: &Path, missing: u64) -> PathBuf {
    let path = folder.join("model.safetensors");
    std::fs::copy(data().join("model.safetensors"), &path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - missing).unwrap();
    path
}

fn gguf(folder: &Path) -> PathBuf {
    let mut out = b"GGUF".to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let tensors: [(&str, &[u64], u32, u64); 4] = [
        ("blk.0.attn_q.weight", &[256, 4], 12, 0),
        ("blk.0.attn_norm.weight", &[4], 0, 576),
        ("blk.1.attn_q.weight", &[64, 2], 1, 608),
        ("output.weight", &[2], 99, 864),
    ];
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(1u64.to_le_bytes());
    text(&mut out, "general.name");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "tiny");
    for (name, dimensions, kind, offset) in tensors {
        text(&mut out, name);
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + 864, 0);
    let path = folder.join("tiny.gguf");
    std::fs::write(&path, out).unwrap();
    path
}

fn opened(path: &Path) -> State {
    State::new(Arc::new(FileModel::open_any(path, false).unwrap()), None, Look::default(), (80, 24))
}

fn screen(state: &State) -> String {
    let mut terminal = Terminal::new(TestBackend::new(state.size.0, state.size.1)).unwrap();
    terminal.draw(|frame| wcodec_tui::draw::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    keys.chars()
        .flat_map(|c| {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            update(state, Action::Key(KeyEvent::new(code, KeyModifiers::NONE)))
        })
        .collect()
}

#[test]
fn every_view_shows_a_checkpoint_and_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    for path in [copy(folder.path(), 0), gguf(folder.path()), data()] {
        let mut state = opened(&path);
        for key in "1234567".chars() {
            press(&mut state, &format!("{key}jvVen+"));
            screen(&state);
        }
        assert_eq!(state.tab, Tab::File);
    }
    let mut state = opened(&gguf(folder.path()));
    insta::assert_snapshot!("gguf_layers", screen(&state));
    press(&mut state, "0");
    insta::assert_snapshot!("gguf_heat", screen(&state));
    press(&mut state, "E");
    assert!(state.notice.as_ref().is_some_and(|n| n.error && n.text.contains("looked at, not encoded")));
}

#[test]
fn estimates_are_near_what_encoding_gives() {
    let file = FileModel::open_any(&data(), false).unwrap();
    let mut last = 0.0;
    let found = estimate(&file, &Cancel::new(), &mut |part| {
        assert!(part >= last);
        last = part;
    })
    .unwrap();
    assert_eq!(found.len(), 30);
    let rate = Scheme::Rate(Rate { bits: Bits::new(4.0).unwrap(), trellis: false });
    for (scheme, int8) in [(EncodeOptions::default().scheme, true), (rate, false)] {
        let options = EncodeOptions { scheme, ..EncodeOptions::default() };
        let (bytes, _) = encode_to_vec(&Checkpoint::open(&data()).unwrap(), &options, &mut |_| Ok(())).unwrap();
        let infos = Container::from_bytes(bytes).unwrap().infos().unwrap();
        for (i, would) in &found {
            let info = infos.iter().find(|t| t.name == file.tensors[*i].name).unwrap();
            let bits = if int8 { would.int8_bits } else { would.rate_bits };
            assert!((bits / info.bits_per_weight() - 1.0).abs() < 0.03, "{}: {bits}", info.name);
            let Some(stated) = info.error else { continue };
            assert!((would.rate_error / stated - 1.0).abs() < 0.03, "{}: {would:?} {stated}", info.name);
        }
    }
    let mut state = opened(&data());
    state.encode.would = Fetch::Ready(Arc::new(found));
    press(&mut state, "0\n");
    let text = screen(&state);
    assert!(state.tab == Tab::Tensor && text.contains("If it were encoded") && text.contains("bits/w, error"));
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(estimate(&file, &cancel, &mut |_| {}).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn the_key_encodes_next_to_the_file_and_never_over_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), 0);
    let mut state = opened(&path);
    assert!(press(&mut state, "E").is_empty() && matches!(state.overlay, Overlay::Menu(Menu::Encode, 0)));
    screen(&state);
    let effects = press(&mut state, "j4");
    let [Effect::Encode { out, scheme }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(out, &folder.path().join("model.wcodec"));
    assert!(screen(&state).contains("encoding"));
    let (sender, receiver) = channel();
    let mut encoder = Encoder::new(sender);
    encoder.encode(state.file.clone(), out.clone(), *scheme);
    let mut seen = 0;
    for action in receiver.iter() {
        let done = matches!(action, Action::Report(Report::Encoded { .. }));
        seen += 1;
        update(&mut state, action);
        screen(&state);
        if done {
            break;
        }
    }
    assert!(seen > 1 && state.encode.running.is_none());
    assert!(state.notice.as_ref().is_some_and(|n| !n.error && n.text.contains("model.wcodec")), "{:?}", state.notice);
    assert_eq!(Container::open(out).unwrap().names().len(), 39);
    // It is there now.
    press(&mut state, "E");
    assert!(state.notice.as_ref().is_some_and(|n| n.error && n.text.contains("is there already")));
    let before = std::fs::read(out).unwrap();
    encoder.encode(state.file.clone(), out.clone(), *scheme);
    drop(encoder);
    assert_eq!(std::fs::read(out).unwrap(), before);
}

#[test]
fn an_encoding_that_is_given_up_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), 0);
    let mut state = opened(&path);
    let effects = press(&mut state, "Ei");
    let [Effect::Encode { out, scheme }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(press(&mut state, "E"), [Effect::CancelEncode]);
    let (sender, receiver) = channel();
    let mut encoder = Encoder::new(sender);
    encoder.encode(state.file.clone(), out.clone(), *scheme);
    encoder.cancel();
    drop(encoder);
    receiver.iter().for_each(|action| drop(update(&mut state, action)));
    assert!(state.encode.running.is_none());
    // Given up, or done before it could be: never a part.
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| n == "model.safetensors" || n == "model.wcodec"), "{left:?}");
    if out.exists() {
        assert_eq!(Container::open(out).unwrap().names().len(), 39);
    }
}

#[test]
fn what_was_cut_off_opens_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), 2_000_000);
    let mut state = opened(&path);
    let lacking = (0..39).filter(|&i| state.file.missing(i) > 0).count();
    assert!(lacking > 0 && lacking < 39);
    let text = screen(&state);
    assert!(text.contains(&format!("cut off: {lacking} of 39 tensors")) && text.contains('✗'), "{text}");
    press(&mut state, "E");
    assert!(state.notice.as_ref().is_some_and(|n| n.error && n.text.contains("missing")));
    let found = estimate(&state.file, &Cancel::new(), &mut |_| {}).unwrap();
    assert!(found.keys().all(|&i| state.file.missing(i) == 0));
    // Encoding reads all of it: that is refused.
    assert!(Checkpoint::open(&path).is_err());
    // Only the header of a container is left.
    let out = folder.path().join("a.wcodec");
    encode(&Checkpoint::open(&data()).unwrap(), &out, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let length = std::fs::metadata(&out).unwrap().len();
    for kept in [64, 100, length / 2, length - 1] {
        std::fs::OpenOptions::new().write(true).open(&out).unwrap().set_len(kept).unwrap();
        encode(
            &Checkpoint::open(&data()).unwrap(),
            &folder.path().join("b.wcodec"),
            &EncodeOptions { overwrite: true, ..EncodeOptions::default() },
            &mut |_| Ok(()),
        )
        .unwrap();
        let whole = std::fs::read(folder.path().join("b.wcodec")).unwrap();
        std::fs::write(&out, &whole[..kept as usize]).unwrap();
        let mut state = opened(&out);
        assert!(screen(&state).contains(&format!("cut off: {kept} of {length} bytes")), "{}", screen(&state));
        for key in "1234567".chars() {
            press(&mut state, &key.to_string());
            screen(&state);
        }
    }
    std::fs::write(&out, [0; 63]).unwrap();
    assert!(FileModel::open_any(&out, false).is_err());
}

#[test]
fn without_a_screen_they_are_tables() {
    let folder = tempfile::tempdir().unwrap();
    let call = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_wcodec-tui"));
        let done = program.stdin(Stdio::null()).env("LANG", "C.UTF-8").args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    };
    let path = gguf(folder.path());
    let path = path.to_str().unwrap();
    let (status, out, err) = call(&[path]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("Q4_K") && out.contains("type 99"), "{out}");
    let (status, out, _) = call(&[path, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &document["kind"], &document["format_version"]), (0, &"GGUF".into(), &serde_json::Value::Null));
    for refused in [&[path, "--tab", "timing"][..], &[path, path], &[path, "--tab", "compare"]] {
        let (status, out, err) = call(refused);
        assert!(status == 2 && out.is_empty() && err.contains("wcodec-tui: error: "), "{refused:?}: {err}");
    }
    let (status, out, err) = call(&[copy(folder.path(), 0).to_str().unwrap(), "--filter", "layers.0"]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("if it were encoded"), "{out}");
    assert_eq!(out.matches("layers.0.mlp.up_proj").count(), 2, "{out}");
}

#[test]
fn a_checkpoint_opens_on_what_tells_its_tensors_apart_and_shows_weights() {
    let path = data();
    let file = Arc::new(FileModel::open_any(&path, false).unwrap());
    let mut state = State::new(file, None, Look::default(), (120, 40));
    let effects = press(&mut state, "1");
    let computed = |effects: &[Effect]| effects.iter().any(|e| format!("{e:?}").contains("Compute"));
    assert!(computed(&effects), "{effects:?}");
    assert_eq!(state.views.overview.measure, Measure::Share);
    let found = estimate(&state.file, &Cancel::new(), &mut |_| {}).unwrap();
    let generation = state.generation;
    // Estimates that do tell tensors apart stay.
    let mut wide = found.clone();
    let k = state.file.find("model.layers.1.self_attn.k_proj.weight").unwrap();
    wide.get_mut(&k).unwrap().int8_bits = 5.0;
    let wide = Fetch::Ready(Arc::new(wide));
    update(&mut state, Action::Report(Report::Estimate { generation, found: wide }));
    assert_eq!(state.views.overview.measure, Measure::WouldBits8);
    state.views.overview.measure = Measure::Share;
    let found = Fetch::Ready(Arc::new(found));
    update(&mut state, Action::Report(Report::Estimate { generation, found }));
    assert_eq!(state.views.overview.measure, Measure::Share);
    let tensor = state.views.overview.selected(&state.file).unwrap().tensors[0];
    let stop = Cancel::new();
    let mut tell = |_: f32| {};
    let mut control = wcodec_tui::stats::control::Control::new(&stop, &mut tell);
    let stats = wcodec_tui::stats::compute::compute(&state.file, tensor, None, &mut control).unwrap();
    let largest = stats.weights.as_ref().unwrap().outliers[0];
    let stats = Fetch::Ready(Arc::new(stats));
    let report = wcodec_tui::stats::StatsReport { tensor, generation, found: wcodec_tui::stats::Found::Stats(stats) };
    update(&mut state, Action::Report(Report::Stats(report)));
    // The largest weight stands where the file has it.
    let original = state.file.original().unwrap();
    let bytes = original.read_part(tensor, 2 * largest.place, 2, &Cancel::new()).unwrap();
    assert_eq!(f64::from(half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()), largest.value);
    let text = screen(&state);
    // Tensors of this model differ by less than 5 % in the bits of int8: shares tell more.
    assert!(
        text.contains("share of bytes") && text.contains("Largest weights") && text.contains("E encodes"),
        "{text}"
    );
    insta::assert_snapshot!("checkpoint_120x40", text);
    press(&mut state, "3");
    insta::assert_snapshot!("checkpoint_tensor_120x40", screen(&state));
    update(&mut state, Action::Resize(80, 24));
    insta::assert_snapshot!("checkpoint_tensor_80x24", screen(&state));
    // Bars are shares: ratios and bits are all the same.
    for (key, name) in [("2", "list"), ("4", "bits")] {
        press(&mut state, key);
        let text = screen(&state);
        assert!(text.contains("25.0 %") && !text.contains("1.000"), "{text}");
        insta::assert_snapshot!(format!("checkpoint_{name}_80x24"), text);
    }
}
