//! Folders with several files.

use std::path::Path;

use serde_json::{Value, json};
use wcodec::{Checkpoint, Error, ErrorKind, Source};

use crate::common::safetensors::valid;
use crate::common::text;

const INDEX: &str = "model.safetensors.index.json";

/// A folder of two shards: `a` and `b` in the first, `c` and another `a` in the second.
pub fn folder(map: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |v: u8| vec![v; 8];
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("1.safetensors", &valid(&[("a", "F32", &[2], tensor(1)), ("b", "F32", &[2], tensor(2))]));
    write("2.safetensors", &valid(&[("c", "F32", &[2], tensor(3)), ("a", "F32", &[2], tensor(4))]));
    write(INDEX, json!({ "weight_map": map }).to_string().as_bytes());
    folder
}

pub fn good_map() -> Value {
    json!({ "a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors" })
}

fn refused(folder: &Path, what: &str) -> Error {
    Checkpoint::open(folder).map(|_| ()).expect_err(what)
}

#[test]
fn a_tensor_of_two_shards_is_in_the_last_one_or_refused() {
    let mut map = good_map();
    let two = folder(&map);
    let checkpoint = Checkpoint::open(two.path()).unwrap();
    assert_eq!(checkpoint.tensors().len(), 3);
    let at = checkpoint.tensors().iter().position(|t| t.name == "a").unwrap();
    assert_eq!(checkpoint.read(at).unwrap()[..], [4; 8]);
    // transformers reads the last one, whatever the index says.
    map["a"] = json!("1.safetensors");
    let e = refused(folder(&map).path(), "the first");
    assert!(e.kind() == ErrorKind::Format && e.tensor_name() == Some("a"), "{e}");
    assert!(text(&e).contains("'1.safetensors'") && text(&e).contains("'2.safetensors'"), "{e}");
    map.as_object_mut().unwrap().remove("a");
    let e = refused(folder(&map).path(), "in neither");
    assert!(text(&e).contains("in two shards, '1.safetensors' and '2.safetensors'"), "{e}");
}

/// The files of a folder that are read, beside other candidates.
#[test]
fn the_files_that_transformers_reads() {
    let file = |folder: &Path, name: &str, value: u8| {
        std::fs::write(folder.join(name), valid(&[("w", "F32", &[2], vec![value; 8])])).unwrap();
    };
    let index = |folder: &Path, name: &str, shard: &str| {
        std::fs::write(folder.join(name), json!({ "weight_map": { "w": shard } }).to_string()).unwrap();
    };
    let value = |folder: &Path| Checkpoint::open(folder).unwrap().read(0).unwrap()[0];
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    // In ascending order of precedence; all earlier files stay.
    file(at, "adapter_model.safetensors", 9);
    assert_eq!(value(at), 9);
    file(at, "consolidated.safetensors", 1);
    assert_eq!(value(at), 1);
    file(at, "model.fp16.safetensors", 2);
    assert!(text(&refused(at, "two files")).contains("'consolidated.safetensors', 'model.fp16.safetensors'"));
    index(at, "model.fp16.safetensors.index.json", "consolidated.safetensors");
    assert_eq!(value(at), 2, "a whole file comes before its index");
    std::fs::remove_file(at.join("model.fp16.safetensors")).unwrap();
    assert_eq!(value(at), 1);
    index(at, "other.safetensors.index.json", "consolidated.safetensors");
    let e = refused(at, "two indexes");
    assert!(text(&e).contains("'model.fp16.safetensors.index.json', 'other.safetensors.index.json'"), "{e}");
    std::fs::remove_file(at.join("other.safetensors.index.json")).unwrap();
    // transformers does not look for such names, except this one.
    std::fs::write(at.join("pytorch_model.bin"), b"torch's").unwrap();
    let e = refused(at, "pickled weights");
    assert!(
        text(&e).contains("'pytorch_model.bin'") && text(&e).contains("'model.fp16.safetensors.index.json'"),
        "{e}"
    );
    file(at, "shard.safetensors", 3);
    index(at, INDEX, "shard.safetensors");
    assert_eq!(value(at), 3);
    file(at, "model.safetensors", 4);
    assert_eq!(value(at), 4);
    std::fs::write(at.join(INDEX), "{}").unwrap();
    assert_eq!(value(at), 4, "nobody reads that index");
    file(at, "named.safetensors", 5);
    std::fs::write(at.join("config.json"), r#"{"transformers_weights": "named.safetensors"}"#).unwrap();
    assert_eq!(value(at), 5);
    for bad in ["../w.safetensors", "/w.safetensors", "w.bin", "missing.safetensors", "missing.safetensors.index.json"]
    {
        std::fs::write(at.join("config.json"), json!({ "transformers_weights": bad }).to_string()).unwrap();
        let e = refused(at, bad);
        assert!(e.kind() == ErrorKind::Format && text(&e).contains(bad) && text(&e).contains("config.json"), "{e}");
    }
}

#[test]
fn missing_shards_and_tensors_are_named() {
    let shards = folder(&good_map());
    std::fs::remove_file(shards.path().join("2.safetensors")).unwrap();
    let e = refused(shards.path(), "no shard");
    let missing = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<std::io::Error>());
    assert_eq!((e.kind(), missing.map(|e| e.kind())), (ErrorKind::Io, Some(std::io::ErrorKind::NotFound)), "{e}");
    assert!(text(&e).contains("2.safetensors: a shard of the checkpoint is missing"), "{e}");
    assert!(text(&e).contains("download"), "{e}");
    // A folder with that name is not a shard.
    std::fs::create_dir(shards.path().join("2.safetensors")).unwrap();
    assert!(text(&refused(shards.path(), "a folder")).contains("missing"));

    let mut map = good_map();
    map["d"] = json!("2.safetensors");
    let shards = folder(&map);
    let e = refused(shards.path(), "no tensor");
    assert!(e.tensor_name() == Some("d") && text(&e).contains("'2.safetensors'"), "{e}");
    // In another shard than the index says.
    let mut map = good_map();
    map["c"] = json!("1.safetensors");
    let shards = folder(&map);
    assert_eq!(refused(shards.path(), "elsewhere").tensor_name(), Some("c"));
}

#[test]
fn shards_outside_the_folder_are_refused() {
    let inside = tempfile::tempdir().unwrap();
    let outside = inside.path().join("secret.safetensors");
    std::fs::write(&outside, valid(&[("a", "F32", &[2], vec![9; 8])])).unwrap();
    let absolute = outside.to_str().unwrap().to_owned();
    for bad in
        ["../secret.safetensors", "sub/../../x", "..", ".", "", "/", "/etc/passwd", "a/b", "./1.safetensors", &absolute]
    {
        let shards = folder(&json!({ "a": bad }));
        let nested = inside.path().join("nested");
        std::fs::create_dir_all(&nested).unwrap();
        std::fs::copy(shards.path().join(INDEX), nested.join(INDEX)).unwrap();
        for folder in [shards.path(), &nested] {
            let e = refused(folder, bad);
            assert!(e.kind() == ErrorKind::Format && text(&e).contains("not in the folder"), "{bad}: {e}");
            assert!(text(&e).contains(INDEX), "{bad}: {e}");
        }
    }
    let shards = folder(&json!({ "a": "1.safe\0tensors" }));
    refused(shards.path(), "a name with a zero byte");
}

#[test]
fn indexes_that_are_not_indexes() {
    for text in [
        "",
        "[]",
        "{}",
        "null",
        "{\"weight_map\":[]}",
        "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":null}}",
        "{\"weight_map\":{\"a\":[\"1.safetensors\"]}}",
        "{\"weight_map\":{}}",
    ] {
        let shards = folder(&good_map());
        std::fs::write(shards.path().join(INDEX), text).unwrap();
        let e = refused(shards.path(), text);
        assert!(e.kind() == ErrorKind::Format && e.to_string().contains(INDEX), "{text}: {e}");
    }
    let deep = ["{\"weight_map\":", &"[".repeat(10_000)].concat();
    let shards = folder(&good_map());
    std::fs::write(shards.path().join(INDEX), deep).unwrap();
    assert_eq!(refused(shards.path(), "deep").kind(), ErrorKind::Format);
}

#[test]
fn folders_whose_meaning_is_open() {
    let shards = folder(&good_map());
    std::fs::remove_file(shards.path().join(INDEX)).unwrap();
    let e = refused(shards.path(), "no index");
    assert!(e.kind() == ErrorKind::Input && text(&e).contains("no index"), "{e}");
    let empty = tempfile::tempdir().unwrap();
    let e = refused(empty.path(), "empty");
    assert!(e.kind() == ErrorKind::Input && text(&e).contains("no .safetensors file"), "{e}");
    let shards = folder(&good_map());
    std::fs::copy(shards.path().join(INDEX), shards.path().join("other.safetensors.index.json")).unwrap();
    // One of them has the name that transformers looks for.
    assert_eq!(Checkpoint::open(shards.path()).unwrap().tensors().len(), 3);
    std::fs::rename(shards.path().join(INDEX), shards.path().join("another.safetensors.index.json")).unwrap();
    assert!(text(&refused(shards.path(), "two indexes")).contains("several indexes"));
    let e = refused(&empty.path().join("none"), "nothing there");
    assert!(e.kind() == ErrorKind::Io && text(&e).contains("none"), "{e}");
}

#[test]
fn a_damaged_shard_is_named() {
    let shards = folder(&good_map());
    let path = shards.path().join("2.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let e = refused(shards.path(), "cut");
    assert!(e.kind() == ErrorKind::Corrupt && e.file_path() == Some(path.as_path()), "{e}");
    std::fs::write(shards.path().join("config.json"), "{").unwrap();
    std::fs::write(&path, &bytes).unwrap();
    // The invalid file is kept as text: Python writes Infinity there, which is not JSON.
    let model = Checkpoint::open(shards.path()).unwrap().model().unwrap();
    assert_eq!(model["config"], "{");
}
