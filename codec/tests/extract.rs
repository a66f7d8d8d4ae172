//! Containers extracted from containers.

mod common;

use common::image::Image;
use common::{checked, samples};
use serde_json::{Value, json};
use wcodec::container::hash;
use wcodec::{Container, DecodeOptions, ErrorKind, TensorInfo, extract, verify};

fn index(container: &Container) -> Value {
    serde_json::from_str(&container.index_json().unwrap()).unwrap()
}

/// A tensor's description without the positions of its bytes.
fn unplaced(info: &TensorInfo) -> TensorInfo {
    let mut info = info.clone();
    info.segments.iter_mut().for_each(|s| s.offset = 0);
    // A shared table is charged to its first user.
    info.segments.retain(|s| s.role != "table");
    info.stored_bytes = 0;
    info
}

/// The stored bytes of a tensor's segments.
fn stored(bytes: &[u8], info: &TensorInfo) -> Vec<(String, Vec<u8>)> {
    let cut = |s: &wcodec::SegmentInfo| bytes[s.offset as usize..(s.offset + s.length) as usize].to_vec();
    info.segments.iter().filter(|s| s.role != "table").map(|s| (s.role.to_owned(), cut(s))).collect()
}

/// Compares every tensor of `part` with that of `whole`: description, stored bytes, decoded values.
fn assert_taken(part: &[u8], whole: &[u8], names: &[&str]) {
    let (a, b) = (Container::from_bytes(part.to_vec()).unwrap(), Container::from_bytes(whole.to_vec()).unwrap());
    let mut found: Vec<&str> = a.names();
    found.extend(a.aliases().keys().map(String::as_str));
    found.sort_unstable();
    let mut wanted = names.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    assert_eq!(found, wanted);
    for name in names {
        let (mut x, mut y) = (a.info(name).unwrap(), b.info(name).unwrap());
        assert_eq!(stored(part, &x), stored(whole, &y), "{name}: segments");
        (x, y) = (unplaced(&x), unplaced(&y));
        y.name.clone_from(&x.name);
        assert_eq!(x, y);
        let options = DecodeOptions::default();
        assert_eq!(a.read(name, &options).unwrap()[..], b.read(name, &options).unwrap()[..], "{name}");
    }
    let report = verify(&a, None, &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
    assert!(report.ok(), "{report:?}");
    a.reader().check_padding().unwrap();
    assert_eq!(a.metadata(), b.metadata());
    assert_eq!(a.version(), b.version());
}

#[test]
fn every_tensor_alone_and_all_together() {
    for sample in samples::all().into_iter().chain(samples::minis()) {
        let whole = Container::from_bytes(sample.bytes.clone()).unwrap();
        let mut all = whole.names();
        all.extend(whole.aliases().keys().map(String::as_str));
        for name in &all {
            assert_taken(&extract(&whole, &[name], &checked(true)).unwrap(), &sample.bytes, &[name]);
        }
        let every = extract(&whole, &all, &checked(true)).unwrap();
        assert_taken(&every, &sample.bytes, &all);
        // Extracting everything gives the same file, except for the writer's order of keys.
        assert_eq!(Container::from_bytes(every).unwrap().infos().unwrap(), whole.infos().unwrap());
    }
}

#[test]
fn tables_that_are_shared_stay_shared() {
    let sample = samples::all().remove(0);
    let whole = Container::from_bytes(sample.bytes.clone()).unwrap();
    let tables = |c: &Container| index(c)["tables"].as_array().unwrap().len();
    let users = |c: &Container, name: &str| {
        let index = index(c);
        let tensors = index["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == name).unwrap()["planes"][0]["table"].clone()
    };
    assert!(tables(&whole) >= 1);
    let names: Vec<&str> = whole.names();
    for a in &names {
        for b in &names {
            let bytes = extract(&whole, &[b, a, b], &checked(true)).unwrap();
            assert_taken(&bytes, &sample.bytes, &if a == b { vec![*a] } else { vec![*a, *b] });
            let part = Container::from_bytes(bytes).unwrap();
            let mut used = vec![users(&whole, a), users(&whole, b)];
            used.retain(|t| !t.is_null());
            used.dedup();
            assert_eq!(tables(&part), used.len(), "{a} {b}");
        }
    }
}

#[test]
fn tied_names() {
    let sample = samples::all().remove(0);
    let whole = Container::from_bytes(sample.bytes.clone()).unwrap();
    let part = |names: &[&str]| Container::from_bytes(extract(&whole, names, &checked(true)).unwrap()).unwrap();
    // Alone, it holds the data itself.
    let alone = part(&["tied"]);
    assert_eq!((alone.names(), alone.aliases().len()), (vec!["tied"], 0));
    for names in [["tied", "a.weight"], ["a.weight", "tied"]] {
        let both = part(&names);
        assert_eq!(both.names(), ["a.weight"]);
        assert_eq!(both.aliases().iter().next().unwrap(), (&"tied".to_owned(), &"a.weight".to_owned()));
    }
    assert!(part(&["a.weight"]).aliases().is_empty());
    // The order is the file's.
    assert_eq!(part(&["norm", "b.weight", "a.weight"]).names(), ["a.weight", "b.weight", "norm"]);
}

#[test]
fn unknown_keys_are_kept_and_the_model_is_not() {
    let sample = samples::minis().remove(0);
    let bytes = Image::new(&sample.bytes)
        .set("/future", json!({"x": [1, 2.5, "y"]}))
        .set("/model", json!({"config": {"a": 1}, "files": ["tokenizer.json"]}))
        .set("/tensors/0/colour", json!("blue"))
        .set("/tensors/0/quality", json!({"entropy": 6.25, "kl": 0.125}))
        .set("/tensors/0/planes/0/later", json!([1]))
        .set("/tables/0/note", json!("n"))
        .seal();
    let whole = Container::from_bytes(bytes).unwrap();
    assert!(whole.model().unwrap().is_some());
    let part = Container::from_bytes(extract(&whole, &["w"], &checked(true)).unwrap()).unwrap();
    let (a, b) = (index(&part), index(&whole));
    for pointer in [
        "/future",
        "/format",
        "/writer",
        "/tensors/0/colour",
        "/tensors/0/quality",
        "/tensors/0/planes/0/later",
        "/tables/0/note",
    ] {
        assert!(a.pointer(pointer).is_some(), "{pointer}");
        assert_eq!(a.pointer(pointer), b.pointer(pointer), "{pointer}");
    }
    assert!(part.model().unwrap().is_none());
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let sample = samples::all().remove(0);
    let whole = Container::from_bytes(sample.bytes.clone()).unwrap();
    assert_eq!(extract(&whole, &[], &checked(true)).unwrap_err().kind(), ErrorKind::Input);
    let e = extract(&whole, &["a.weight", "nothing"], &checked(true)).unwrap_err();
    assert!(e.kind() == ErrorKind::Input && e.to_string().contains("nothing"), "{e}");
    // Damage is found and named; undamaged tensors can still be extracted.
    let data = whole.info("b.weight").unwrap().segments.into_iter().find(|s| s.role == "data").unwrap();
    let mut bytes = sample.bytes;
    bytes[data.offset as usize] ^= 1;
    let damaged = Container::from_bytes(bytes).unwrap();
    let e = extract(&damaged, &["a.weight", "b.weight"], &checked(true)).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("b.weight")), "{e}");
    let part = Container::from_bytes(extract(&damaged, &["a.weight", "norm"], &checked(true)).unwrap()).unwrap();
    let read = |c: &Container| c.read("a.weight", &DecodeOptions::default()).unwrap();
    assert_eq!(hash(&read(&part)), hash(&read(&whole)));
}
