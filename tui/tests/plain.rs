//! The program without a screen: text, JSON, errors and exit statuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use wcodec::{Bits, Checkpoint, Coder, Container, EncodeOptions, Optimize, Rate, Scheme, encode};

/// A container of the model in the repository.
fn model(folder: &TempDir, name: &str, options: &EncodeOptions) -> PathBuf {
    let out = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
    encode(&Checkpoint::open(&source).unwrap(), &out, options, &mut |_| Ok(())).unwrap();
    out
}

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_wcodec-tui"));
    program.stdin(Stdio::null()).env_remove("LC_ALL").env("LANG", "C.UTF-8");
    program
}

fn call(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = program().args(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let (status, out, err) = call(&[arguments, &["--json"]].concat());
    assert_eq!(err, "");
    (status, serde_json::from_str(&out).unwrap())
}

#[test]
fn without_a_terminal_the_table_is_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let file = file.to_str().unwrap();
    let (status, out, err) = call(&[file]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(call(&[file, "--plain"]), (0, out.clone(), String::new()));
    assert!(!out.contains('\x1b'));
    let container = Container::open(Path::new(file)).unwrap();
    for name in container.names() {
        assert_eq!(out.lines().filter(|l| l.split("  ").next() == Some(name)).count(), 1, "{name}");
    }
    let head: Vec<&str> = out.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head[..3], ["tensor", "shape", "dtype"]);
    assert!(out.contains("39 tensors, 3,147,456 weights: 6.00 MiB -> "), "{out}");
}

#[test]
fn the_table_honours_filter_sort_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let file = file.to_str().unwrap();
    let (status, out, _) = call(&[file, "--plain", "--filter", "q_proj", "--sort", "ratio"]);
    assert_eq!(status, 0);
    let ratios: Vec<f64> = out
        .lines()
        .filter(|l| l.contains("q_proj"))
        .map(|l| l.split_whitespace().rev().nth(2).unwrap().parse().unwrap())
        .collect();
    assert_eq!(ratios.len(), 4);
    assert!(ratios.is_sorted(), "the worst ratio comes first: {ratios:?}");
    assert!(out.contains("4 tensors of 39 shown"));
    let (_, out, _) = call(&[file, "--plain", "--tensor", "lm_head.weight"]);
    assert!(out.contains("1 tensor of 39 shown") && out.contains("\nlm_head.weight "));
}

#[test]
fn the_document_has_what_the_index_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let (status, document) = json(&[path.to_str().unwrap()]);
    assert_eq!((status, &document["schema_version"], &document["command"]), (0, &2.into(), &"tui".into()));
    let container = Container::open(&path).unwrap();
    let infos = container.infos().unwrap();
    let tensors = document["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), infos.len());
    for info in &infos {
        let found = tensors.iter().find(|t| t["name"] == info.name.as_str()).unwrap();
        assert_eq!(found["stored_bytes"], info.stored_bytes);
        // Reading JSON may cost the last bit of a number here.
        let near = |key: &str, value: f64| (found[key].as_f64().unwrap() / value - 1.0).abs() < 1e-12;
        assert!(near("ratio", info.ratio()) && near("bits_per_weight", info.bits_per_weight()), "{found}");
        assert!(info.entropy.map_or(found["entropy"].is_null(), |e| near("entropy", e)), "{found}");
        assert_eq!(found["segments"].as_array().unwrap().len(), info.segments.len());
    }
    let stored: u64 = infos.iter().map(|t| t.stored_bytes).sum();
    assert_eq!(document["totals"]["stored_bytes"], std::fs::metadata(&path).unwrap().len());
    for group in ["by_scheme", "by_coder", "by_dtype", "by_role", "by_layer"] {
        let groups = document[group].as_object().unwrap();
        let sum: u64 = groups.values().map(|g| g["stored_bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum, stored, "{group}");
    }
    assert!(document.get("compare").is_none());
}

#[test]
fn plans_and_rates_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = [
        ("wcodec.plan", r#"{"recipe": "measured roles", "target": "4 bits\u001b"}"#),
        (
            "wcodec.quality",
            r#"{"kl": 0.013, "perplexity": 5, "original_perplexity": 4.9, "top1_agreement": 0.9, "tokens": 1536}"#,
        ),
    ];
    let options = EncodeOptions {
        scheme: Scheme::Rate(Rate { bits: Bits::new(4.0).unwrap(), trellis: false }),
        metadata: metadata.map(|(key, text)| (key.to_owned(), text.to_owned())).into(),
        ..EncodeOptions::of(Optimize::Size)
    };
    let file = model(&folder, "a.wcodec", &options);
    let file = file.to_str().unwrap();
    let said = "plan: measured roles, for 4 bits\\x1b\n\
        measured: KL 0.013 nats/token, perplexity 4.9000 -> 5.0000, same top token 90.00 %, of 1,536 tokens (text ?)\n";
    let (status, table, _) = call(&[file, "--plain"]);
    assert!(status == 0 && table.contains(&format!("\n\n{said}39 tensors, ")), "{table}");
    let (status, out, err) = call(&[file, "--plain", "--tab", "rates"]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.starts_with(said), "{out}");
    // It has these totals, too, and a line for each role and each layer.
    assert_eq!(out.lines().rev().take(2).collect::<Vec<_>>(), table.lines().rev().take(2).collect::<Vec<_>>());
    let row = |name: &str| {
        let line = out.lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap_or_else(|| panic!("{name}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let found = row("model.layers.*.mlp.up_proj.weight");
    assert_eq!(found[1..4], ["rate", "4", "393,216"]);
    assert!((3.5..4.5).contains(&found.last().unwrap().parse::<f64>().unwrap()), "{found:?}");
    assert_eq!(row("model.layers.3")[1..4], ["raw,", "rate", "9"]);
    let document = json(&[file]).1;
    assert_eq!(document["by_role"]["lm_head.weight"]["tensors"], 1);
    assert_eq!(document["by_layer"]["model.layers.2"]["tensors"], 9);
}

#[test]
fn a_difference_is_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let a = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    // Equal values in other bytes are no difference.
    let same =
        model(&folder, "b.wcodec", &EncodeOptions { coder: Coder::Huffman, ..EncodeOptions::of(Optimize::Size) });
    let other = model(
        &folder,
        "c.wcodec",
        &EncodeOptions { skip: vec!["*q_proj*".into()], ..EncodeOptions::of(Optimize::Size) },
    );
    let [a, same, other] = [&a, &same, &other].map(|p| p.to_str().unwrap());
    let (status, out, _) = call(&[a, same]);
    assert_eq!(status, 0);
    assert!(out.ends_with("\nsame\n"), "{out}");
    let (status, out, _) = call(&[a, other, "--plain"]);
    assert_eq!(status, 1);
    assert!(out.ends_with("\ndifferent\n"), "{out}");
    let (status, document) = json(&[a, other]);
    assert_eq!((status, &document["compare"]["same"]), (1, &false.into()));
    let tensors = document["compare"]["tensors"].as_array().unwrap();
    let differing = tensors.iter().filter(|t| t["status"] != "same").count();
    assert_eq!(differing, 4, "the four q_proj are raw in one of them");
    assert_eq!(json(&[a, same]).1["compare"]["same"], true);
}

#[test]
fn errors_are_one_line_that_names_the_file_and_status_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let bytes = std::fs::read(&file).unwrap();
    let [cut, empty, text] = ["cut.wcodec", "empty.wcodec", "text.wcodec"].map(|n| folder.path().join(n));
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&text, "no container, but a text that is as long as a header ".repeat(4)).unwrap();
    let missing = folder.path().join("missing.wcodec");
    let (file, folder) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
    for bad in [&cut, &empty, &text, &missing] {
        let bad = bad.to_str().unwrap();
        for arguments in [vec![bad], vec![bad, "--json"], vec![file, bad], vec![file, "--ref", bad]] {
            let (status, out, err) = call(&arguments);
            assert_eq!((status, out.as_str()), (2, ""), "{arguments:?}");
            assert!(err.starts_with("wcodec-tui: error: ") && err.contains(bad), "{err}");
            assert_eq!(err.lines().count(), 1, "{err}");
        }
    }
    let (status, _, err) = call(&[file, "--tensor", "nobody"]);
    assert!(status == 2 && err.contains("'nobody'") && err.contains(file), "{err}");
    let (status, _, err) = call(&[file, "--log", folder]);
    assert!(status == 2 && err.contains(folder), "{err}");
    let (status, _, err) = call(&[]);
    assert!(status == 2 && err.contains("<FILE>"), "{err}");
    let (status, _, err) = call(&[file, "--sort", "colour"]);
    assert!(status == 2 && err.contains("entropy"), "the columns are listed: {err}");
}

#[test]
fn the_log_is_not_written_into_a_file_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let link = folder.path().join("link");
    std::fs::hard_link(&file, &link).unwrap();
    let before = std::fs::read(&file).unwrap();
    for log in [&file, &link, &folder.path().join("new.safetensors")] {
        let (status, _, err) = call(&[file.to_str().unwrap(), "--plain", "--log", log.to_str().unwrap()]);
        assert!(status == 2 && err.contains(log.to_str().unwrap()), "{err}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let log = folder.path().join("log.txt");
    assert_eq!(call(&[file.to_str().unwrap(), "--plain", "--log", log.to_str().unwrap()]).0, 0);
    assert!(std::fs::read_to_string(&log).unwrap().contains("a.wcodec"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    for flag in ["--plain", "--json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program().arg(&file).arg(flag).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    }
}

#[test]
fn names_cannot_upset_the_terminal() {
    let mut source = wcodec::MemorySource::new();
    let data = vec![1u8; 64 * 4];
    let name = "a\x1b[2Jb\nc".to_owned();
    source.push(name, wcodec::Dtype::F32, vec![8, 8], data.into()).unwrap();
    let (bytes, _) = wcodec::encode_to_vec(&source, &EncodeOptions::of(Optimize::Size), &mut |_| Ok(())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.wcodec");
    std::fs::write(&file, bytes).unwrap();
    let (status, out, _) = call(&[file.to_str().unwrap()]);
    assert_eq!(status, 0);
    assert!(out.contains(r"a\x1b[2Jb\nc") && !out.contains('\x1b'), "{out:?}");
    let (_, out, _) = call(&[file.to_str().unwrap(), "--json"]);
    assert!(out.bytes().all(|b| matches!(b, b' '..=b'~' | b'\n')) && out.contains(r"a\u001b[2Jb\nc"), "{out:?}");
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["tensors"][0]["name"], "a\x1b[2Jb\nc");
    // Words of the command line come back in messages: names of files, where a shell writes them out.
    let odd = folder.path().join("x\x1b[31m\u{202e}.wcodec");
    std::fs::write(&odd, "").unwrap();
    let odd = odd.to_str().unwrap();
    for arguments in [vec![odd], vec![odd, odd, odd], vec!["a", "--sort", "\x1b[31m"], vec!["a", "--device", "\u{9b}"]]
    {
        let (status, out, err) = call(&arguments);
        assert_eq!((status, out.as_str()), (2, ""));
        assert!(!err.contains(|c| wcodec::text::steers(c) && c != '\n'), "{err:?}");
        assert!(!arguments.contains(&odd) || err.contains(r"\u{202e}"), "{err:?}");
    }
}

#[test]
fn a_missing_name_is_answered_with_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let (status, _, err) = call(&[file.to_str().unwrap(), "--tensor", "lm_heat.weight"]);
    assert!(status == 2 && err.contains("no tensor 'lm_heat.weight' (did you mean 'lm_head.weight'?)"), "{err}");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_shown() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.wcodec"));
    std::fs::rename(file, &odd).unwrap();
    let output = program().arg(&odd).arg("--json").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains(r"caf\udce9.wcodec"));
    let output = program().args(["--tensor", "x"]).arg(&odd).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains(r"caf\xe9.wcodec"));
}

#[test]
fn help_version_completions_and_manual_go_to_stdout() {
    for (arguments, part) in [
        (vec!["--help"], "Examples:"),
        (vec!["-h"], "--filter"),
        (vec!["--version"], env!("CARGO_PKG_VERSION")),
        (vec!["--completions", "bash"], "complete"),
        (vec!["--man"], ".TH wcodec-tui"),
    ] {
        let (status, out, err) = call(&arguments);
        assert_eq!((status, err.as_str()), (0, ""), "{arguments:?}");
        assert!(out.contains(part), "{arguments:?}: {out}");
    }
}

#[test]
fn compare_and_timing_are_printed_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let a = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let b = model(&folder, "b.wcodec", &EncodeOptions { coder: Coder::Huffman, ..EncodeOptions::of(Optimize::Size) });
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let (status, out, err) = call(&[a, b, "--tab", "compare"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("tensor ") && out.contains("stored b") && out.ends_with("same\n"), "{out}");
    let (status, _, err) = call(&[a, "--tab", "compare"]);
    assert!(status == 2 && err.contains("needs two files"), "{err}");
    let (status, out, err) = call(&[a, "--tab", "timing", "--threads", "1", "--filter", "q_proj"]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(out.lines().filter(|l| l.contains("q_proj")).count(), 4, "{out}");
    assert!(out.contains("CPU, 1 thread: 4 tensors in ") && out.contains(" GB/s"), "{out}");
    assert_eq!(call(&[a, "--tab", "timing", "--filter", "none of them"]).0, 2);
}

#[test]
fn a_file_of_keys_that_is_wrong_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder, "a.wcodec", &EncodeOptions::of(Optimize::Size));
    let keys = folder.path().join("tui.toml");
    std::fs::write(&keys, "theme = 'safe'\n[keys]\nverfiy = 'x'\n").unwrap();
    let (file, keys) = (file.to_str().unwrap(), keys.to_str().unwrap());
    let (status, out, err) = call(&[file, "--keys", keys]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("tui.toml:3: there is no command 'verfiy' (did you mean 'verify'?)"), "{err}");
    std::fs::write(keys, "[keys]\nverify = 'x'\n").unwrap();
    assert_eq!(call(&[file, "--keys", keys]).0, 0);
}
