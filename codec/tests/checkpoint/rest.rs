//! Models in two files: a container, and a checkpoint with the uncompressed rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use wcodec::{
    Checkpoint, Container, DecodeOptions, Dtype, EncodeOptions, ErrorKind, MemorySource, OutputFile, OutputKind,
    REST_KEY, Source, VerifyStatus, decode, encode, encode_to_vec, extract, extract_to, join_to, verify,
    write_safetensors,
};

use crate::common::safetensors::valid;
use crate::common::{checked, samples, text};
use crate::listing;

/// The whole model: two matrices that are compressed, and a norm and integers that are not.
fn whole() -> MemorySource<'static> {
    let mut source = MemorySource::new();
    for (name, seed) in [("a.weight", 81), ("b.weight", 82)] {
        let bytes = samples::as_bytes(&samples::weights(64 * 64, seed));
        source.push(name.to_owned(), Dtype::F32, vec![64, 64], bytes.into()).unwrap();
    }
    source.push("norm".to_owned(), Dtype::F32, vec![2], vec![7; 8].into()).unwrap();
    source.push("ids".to_owned(), Dtype::I64, vec![1], vec![3; 8].into()).unwrap();
    source
}

fn rest() -> MemorySource<'static> {
    let mut source = MemorySource::new();
    source.push("norm".to_owned(), Dtype::F32, vec![2], vec![7; 8].into()).unwrap();
    source.push("ids".to_owned(), Dtype::I64, vec![1], vec![3; 8].into()).unwrap();
    source.alias("ids again".to_owned(), "ids".to_owned()).unwrap();
    source.set_metadata(BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
    source
}

/// A folder as `save_pretrained` writes it, or as it did before containers recorded that they are parts.
fn saved(says_so: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (bytes, _) = encode_to_vec(&whole(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let container = Container::from_bytes(bytes).unwrap();
    let metadata = BTreeMap::from([(REST_KEY.to_owned(), "model.safetensors".to_owned())]);
    let out = OutputFile::create(&at("model.wcodec"), OutputKind::Container, &[], false).unwrap();
    let metadata = if says_so { metadata } else { BTreeMap::new() };
    extract_to(&out, &container, &["a.weight", "b.weight"], &metadata, &DecodeOptions::default()).unwrap();
    out.finish().unwrap();
    let out = OutputFile::create(&at("model.safetensors"), OutputKind::Safetensors, &[], false).unwrap();
    write_safetensors(&rest(), &out, &wcodec::Cancel::new()).unwrap();
    out.finish().unwrap();
    let config = json!({ "quantization_config": { "quant_method": "wcodec", "file": "model.wcodec" } });
    std::fs::write(at("config.json"), config.to_string()).unwrap();
    let file = at("model.wcodec");
    (folder, file)
}

fn decoded(file: &Path, dst: &Path) -> wcodec::Result<()> {
    let container = Container::open(file)?;
    let rest = container.open_rest()?;
    decode(&container, rest.as_ref().map(|r| r as &dyn Source), dst, &checked(true), false, &mut |_| Ok(()))
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = Checkpoint::open(path).unwrap().tensors().iter().map(|t| t.name.clone()).collect();
    names.sort();
    names
}

#[test]
fn decoding_a_part_gives_the_whole() {
    for says_so in [true, false] {
        let (folder, file) = saved(says_so);
        if says_so {
            std::fs::remove_file(folder.path().join("config.json")).unwrap();
        }
        let dst = folder.path().join("whole.safetensors");
        decoded(&file, &dst).unwrap();
        assert_eq!(names(&dst), ["a.weight", "b.weight", "ids", "ids again", "norm"]);
        let back = Checkpoint::open(&dst).unwrap();
        for (tensor, want) in [("norm", [7; 8]), ("ids", [3; 8]), ("ids again", [3; 8])] {
            let at = back.tensors().iter().position(|t| t.name == tensor).unwrap();
            assert_eq!(back.read(at).unwrap()[..], want);
        }
        assert_eq!(back.metadata(), BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
        let report = verify(&Container::open(&file).unwrap(), Some(&back), &checked(true), &mut |_| Ok(())).unwrap();
        let count =
            |report: &wcodec::VerifyReport, status| report.tensors.iter().filter(|t| t.status == status).count();
        assert_eq!(count(&report, VerifyStatus::Missing), 0);
        for tensor in ["norm", "ids", "ids again"] {
            assert!(report.tensors.iter().any(|t| t.name == tensor && t.status == VerifyStatus::Ok));
        }
        // The rest with one bit changed.
        let rest = folder.path().join("model.safetensors");
        let whole = std::fs::read(&rest).unwrap();
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        std::fs::write(&rest, &other).unwrap();
        let report = verify(&Container::open(&file).unwrap(), Some(&back), &checked(true), &mut |_| Ok(())).unwrap();
        let wrong: Vec<_> = report.tensors.iter().filter(|t| t.detail.contains("in the rest of its model, ")).collect();
        assert!(!wrong.is_empty() && wrong.iter().all(|t| t.status == VerifyStatus::Differs), "{wrong:?}");
        std::fs::write(&rest, whole).unwrap();
        // The output must not be either of the two files.
        for taken in ["model.wcodec", "model.safetensors"] {
            let container = Container::open(&file).unwrap();
            let rest = container.open_rest().unwrap().unwrap();
            let dst = folder.path().join(taken);
            let e = decode(&container, Some(&rest), &dst, &checked(true), true, &mut |_| Ok(())).unwrap_err();
            assert!(text(&e).contains("files that are read"), "{e}");
        }
    }
}

#[test]
fn a_part_whose_rest_is_missing_says_so() {
    for says_so in [true, false] {
        let (folder, file) = saved(says_so);
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let dst = folder.path().join("whole.safetensors");
        let e = decoded(&file, &dst).unwrap_err();
        let cause = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<std::io::Error>());
        assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound), "{e}");
        assert!(text(&e).contains("model.safetensors") && text(&e).contains("--partial"), "{e}");
        assert!(!dst.exists());
        let container = Container::open(&file).unwrap();
        decode(&container, None, &dst, &checked(true), false, &mut |_| Ok(())).unwrap();
        assert_eq!(names(&dst), ["a.weight", "b.weight"]);
    }
}

#[test]
fn a_rest_that_is_not_the_containers_is_refused() {
    let (folder, file) = saved(true);
    let dst = folder.path().join("whole.safetensors");
    let other = valid(&[("norm", "F32", &[2], vec![0; 8]), ("a.weight", "F32", &[2], vec![0; 8])]);
    std::fs::write(folder.path().join("model.safetensors"), other).unwrap();
    let e = decoded(&file, &dst).unwrap_err();
    assert!(e.kind() == ErrorKind::Format && e.tensor_name() == Some("a.weight"), "{e}");
    assert!(!dst.exists());
    // Nothing outside of the folder is read.
    let (bytes, _) = encode_to_vec(&whole(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let container = Container::from_bytes(bytes).unwrap();
    for bad in ["../model.safetensors", "/etc/passwd", "", "..", "a/b"] {
        let path = folder.path().join("bad.wcodec");
        let out = OutputFile::create(&path, OutputKind::Container, &[], true).unwrap();
        let metadata = BTreeMap::from([(REST_KEY.to_owned(), bad.to_owned())]);
        extract_to(&out, &container, &["norm"], &metadata, &DecodeOptions::default()).unwrap();
        out.finish().unwrap();
        let e = Container::open(&path).unwrap().open_rest().unwrap_err();
        assert!(e.kind() == ErrorKind::Format && e.file_path() == Some(&path), "{bad}: {e}");
    }
}

#[test]
fn only_containers_that_are_parts_have_a_rest() {
    let (folder, file) = saved(true);
    let part = Container::open(&file).unwrap();
    assert_eq!(part.rest().unwrap(), Some(folder.path().join("model.safetensors")));
    // A part of a part does not refer to the rest.
    let bytes = extract(&part, &["a.weight"], &DecodeOptions::default()).unwrap();
    assert_eq!(Container::from_bytes(bytes).unwrap().rest().unwrap(), None);
    // In memory the rest cannot be found.
    let part = Container::from_bytes(std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(part.open_rest().unwrap_err().kind(), ErrorKind::Io);
    // The config applies to the container that it names.
    let whole_one = folder.path().join("whole.wcodec");
    encode(&whole(), &whole_one, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    assert!(Container::open(&whole_one).unwrap().open_rest().unwrap().is_none());
    // It does not apply to a whole container that was renamed to that name.
    std::fs::copy(&whole_one, &file).unwrap();
    let dst = folder.path().join("ids.safetensors");
    let out = OutputFile::create(&dst, OutputKind::Safetensors, &[], false).unwrap();
    let mut few = MemorySource::new();
    few.push("norm".to_owned(), Dtype::F32, vec![2], vec![7; 8].into()).unwrap();
    write_safetensors(&few, &out, &wcodec::Cancel::new()).unwrap();
    out.finish().unwrap();
    std::fs::rename(&dst, folder.path().join("model.safetensors")).unwrap();
    let renamed = Container::open(&file).unwrap();
    assert!(renamed.rest().unwrap().is_some() && renamed.open_rest().unwrap().is_none());
    assert_eq!(renamed.names().len(), whole().tensors().len());
    let plain = tempfile::tempdir().unwrap();
    std::fs::copy(&whole_one, plain.path().join("model.wcodec")).unwrap();
    for config in ["{}", "not JSON", "[]", r#"{"quantization_config":{"quant_method":"gptq"}}"#] {
        std::fs::write(plain.path().join("config.json"), config).unwrap();
        assert_eq!(Container::open(&plain.path().join("model.wcodec")).unwrap().rest().unwrap(), None, "{config}");
    }
}

#[test]
fn the_rest_alone_is_not_encoded() {
    let (folder, _) = saved(true);
    let rest = folder.path().join("model.safetensors");
    for path in [folder.path(), &rest] {
        let e = Checkpoint::open(path).unwrap_err();
        assert!(e.kind() == ErrorKind::Input && text(&e).contains("'model.wcodec'"), "{e}");
        assert_eq!(e.file_path(), Some(rest.as_path()));
        assert_eq!(Checkpoint::open_rest(path).unwrap().tensors().len(), 3);
    }
    // Any other file there is an ordinary checkpoint.
    std::fs::copy(&rest, folder.path().join("other.safetensors")).unwrap();
    assert!(Checkpoint::open(&folder.path().join("other.safetensors")).is_ok());
    assert_eq!(listing(folder.path()).len(), 4);
}

#[test]
fn containers_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let way = EncodeOptions { metadata: BTreeMap::from([("by".to_owned(), "me".to_owned())]), ..Default::default() };
    let coded = Container::from_bytes(encode_to_vec(&whole(), &way, &mut |_| Ok(())).unwrap().0).unwrap();
    let left =
        Container::from_bytes(encode_to_vec(&rest(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap().0).unwrap();
    let options = DecodeOptions::default();
    let joined = |parts: &[(&Container, &[&str])], name: &str| {
        let out = OutputFile::create(&at(name), OutputKind::Container, &[], false).unwrap();
        join_to(&out, parts, &BTreeMap::new(), &options).and_then(|()| out.finish())
    };
    let (matrices, others): (&[&str], &[&str]) = (&["b.weight", "a.weight"], &["norm", "ids", "ids again"]);
    joined(&[(&coded, matrices), (&left, others)], "model.wcodec").unwrap();
    let whole = Container::open(&at("model.wcodec")).unwrap();
    let mut names = whole.names().to_vec();
    names.sort();
    assert_eq!(names, ["a.weight", "b.weight", "ids", "norm"]);
    assert_eq!(whole.read("ids again", &options).unwrap()[..], whole.read("ids", &options).unwrap()[..]);
    for name in ["a.weight", "b.weight", "norm", "ids"] {
        assert_eq!(whole.read(name, &options).unwrap()[..], coded.read(name, &options).unwrap()[..], "{name}");
    }
    assert_eq!(
        whole.metadata(),
        &BTreeMap::from([("by".to_owned(), "me".to_owned()), ("format".to_owned(), "pt".to_owned())])
    );
    assert!(verify(&whole, None, &options, &mut |_| Ok(())).unwrap().ok());
    // A name must be unique.
    let e = joined(&[(&coded, &["norm"]), (&left, &["norm"])], "twice.wcodec").expect_err("twice");
    assert!(e.to_string().contains("'norm'") && e.to_string().contains("in two of the containers"), "{e}");
    let e = joined(&[], "none.wcodec").expect_err("nothing");
    assert!(e.to_string().contains("no containers"), "{e}");
    assert!(!at("twice.wcodec").exists() && !at("none.wcodec").exists());
}

#[test]
fn a_config_says_that_the_container_has_all() {
    let (folder, file) = saved(false);
    let config = |weights: &str| {
        let way = json!({ "quant_method": "wcodec", "file": "model.wcodec" });
        let text = json!({ "quantization_config": way, "transformers_weights": weights }).to_string();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        Container::open(&file).unwrap().rest().unwrap()
    };
    assert_eq!(config("model.safetensors"), Some(folder.path().join("model.safetensors")));
    assert_eq!(config("model.wcodec"), None);
    let e = Checkpoint::open(folder.path()).expect_err("no original");
    assert!(e.to_string().contains("a compressed model, whose weights are in 'model.wcodec'"), "{e}");
}
