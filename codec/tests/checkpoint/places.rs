//! Outputs that would destroy something, and sources without tensors.

use std::path::{Path, PathBuf};

use wcodec::{
    Checkpoint, Container, EncodeOptions, Error, ErrorKind, MemorySource, Source, decode, encode, encode_to_vec,
};

use crate::common::safetensors::{file, valid};
use crate::common::{checked, samples, text};
use crate::listing;
use crate::output::write_both;
use crate::shards::{folder as shards, good_map};

fn encode_to(source: &dyn Source, dst: &Path) -> Error {
    let options = EncodeOptions { overwrite: true, ..Default::default() };
    encode(source, dst, &options, &mut |_| Ok(())).map(|_| ()).expect_err("refused")
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), b"precious").unwrap();
    for (link, target) in [("link", "file"), ("dangling", "nothing"), ("to-folder", ".")] {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let _listening = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let mut places = vec![
        (at("link"), "a symbolic link"),
        (at("dangling"), "a symbolic link"),
        (at("to-folder"), "a folder"),
        (at("pipe"), "a pipe"),
        (at("socket"), "a socket"),
    ];
    places.extend([PathBuf::from("/dev/null")].map(|p| (p, "a device")));
    let kinds =
        || -> Vec<_> { places.iter().map(|(p, _)| std::fs::symlink_metadata(p).unwrap().file_type()).collect() };
    let before = kinds();
    for (place, what) in &places {
        for overwrite in [false, true] {
            for e in write_both(place, overwrite).map(Result::unwrap_err) {
                assert!(e.kind() == ErrorKind::Input && text(&e).contains(what), "{}: {e}", place.display());
                assert_eq!(e.file_path(), Some(place.as_path()));
            }
        }
    }
    assert_eq!(kinds(), before);
    assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6);
}

#[test]
fn an_output_that_is_an_input_is_refused() {
    let folder = shards(&good_map());
    let at = |name: &str| folder.path().join(name);
    for name in ["config.json", "tokenizer.json", "generation_config.json"] {
        std::fs::write(at(name), b"{}").unwrap();
    }
    std::fs::hard_link(at("1.safetensors"), at("hard")).unwrap();
    // In another folder, and through another path.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut taken = vec![elsewhere.path().join("x"), at("hard"), folder.path().join(".").join("config.json")];
    if std::fs::hard_link(at("2.safetensors"), &taken[0]).is_err() {
        taken.remove(0);
    }
    taken.extend(listing(folder.path()).keys().map(|name| at(name)));
    let before = listing(folder.path());
    let source = Checkpoint::open(folder.path()).unwrap();
    for dst in &taken {
        let e = encode_to(&source, dst);
        assert!(e.kind() == ErrorKind::Input && e.file_path() == Some(dst), "{}: {e}", dst.display());
        assert!(text(&e).contains("files that are read"), "{}: {e}", dst.display());
    }
    assert_eq!(listing(folder.path()), before);
    // An unrelated file may be replaced.
    std::fs::write(at("old.wcodec"), b"x").unwrap();
    encode(&source, &at("old.wcodec"), &EncodeOptions { overwrite: true, ..Default::default() }, &mut |_| Ok(()))
        .unwrap();

    // A single file, also through a link, if the output is that file.
    let single = Checkpoint::open(&at("1.safetensors")).unwrap();
    assert!(text(&encode_to(&single, &at("hard"))).contains("files that are read"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(at("hard"), at("link.safetensors")).unwrap();
        let linked = Checkpoint::open(&at("link.safetensors")).unwrap();
        assert!(text(&encode_to(&linked, &at("hard"))).contains("files that are read"));
    }

    // A container that is decoded onto itself.
    std::fs::hard_link(at("old.wcodec"), at("same")).unwrap();
    let bytes = std::fs::read(at("same")).unwrap();
    for (src, dst) in [("same", "same"), ("old.wcodec", "old.wcodec"), ("old.wcodec", "same")] {
        let container = Container::open(&at(src)).unwrap();
        let e = decode(&container, None, &at(dst), &checked(true), true, &mut |_| Ok(())).unwrap_err();
        assert!(text(&e).contains("files that are read"), "{src} to {dst}: {e}");
    }
    assert_eq!(std::fs::read(at("old.wcodec")).unwrap(), bytes);
}

#[test]
fn names_of_other_formats_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let quiet = &mut |_: &wcodec::ProgressEvent<'_>| Ok(());
    for name in ["m.safetensors", "m.gguf", "config.json"] {
        let e = encode_to(&samples::source(), &folder.path().join(name));
        assert!(e.kind() == ErrorKind::Input && text(&e).contains(".wcodec"), "{name}: {e}");
    }
    let container = Container::from_bytes(samples::mini("rans pair row")).unwrap();
    for name in ["m.wcodec", "m.gguf", "m.bin"] {
        let e = decode(&container, None, &folder.path().join(name), &checked(true), true, quiet).unwrap_err();
        assert!(e.kind() == ErrorKind::Input && text(&e).contains(".safetensors"), "{name}: {e}");
    }
    assert!(listing(folder.path()).is_empty());
    for name in ["m", "m.v2", "m.wcodec"] {
        encode(&samples::source(), &folder.path().join(name), &EncodeOptions::default(), quiet).unwrap();
    }
    assert_eq!(listing(folder.path()).len(), 3);
}

#[test]
fn nothing_is_not_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("out.wcodec");
    assert!(text(&encode_to(&MemorySource::new(), &dst)).contains("no tensors to encode"));
    let path = folder.path().join("model.safetensors");
    for bytes in [file(b"{}", b""), file(br#"{"__metadata__":{"format":"pt"}}"#, b"")] {
        std::fs::write(&path, bytes).unwrap();
        let e = encode_to(&Checkpoint::open(folder.path()).unwrap(), &dst);
        assert!(text(&e).contains("no tensors to encode") && e.file_path() == Some(folder.path()), "{e}");
    }
    std::fs::write(&path, valid(&[("a", "F32", &[2], vec![0; 8]), ("b", "F32", &[2], vec![1; 8])])).unwrap();
    let source = Checkpoint::open(&path).unwrap();
    let mut options = EncodeOptions { skip: vec!["*".to_owned()], ..Default::default() };
    let e = encode(&source, &dst, &options, &mut |_| Ok(())).unwrap_err();
    assert!(e.kind() == ErrorKind::Input && text(&e).contains("skip fewer"), "{e}");
    assert_eq!(listing(folder.path()).len(), 1);
    options.skip = vec!["a".to_owned()];
    assert_eq!(encode(&source, &dst, &options, &mut |_| Ok(())).unwrap().tensors.len(), 1);
    // An output in memory cannot be mistaken for a model.
    assert!(encode_to_vec(&MemorySource::new(), &EncodeOptions::default(), &mut |_| Ok(())).is_ok());
}
