//! Reading a file again, and writing new ones.

use std::path::Path;
use std::sync::mpsc::channel;

use wcodec_tui::action::{Action, Report};
use wcodec_tui::workers::files::{Files, write_new};

#[test]
fn nothing_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.timing.json");
    for (n, name) in ["tiny.timing.json", "tiny.timing-1.json", "tiny.timing-2.json"].into_iter().enumerate() {
        assert_eq!(write_new(&path, n.to_string().as_bytes()).unwrap(), dir.path().join(name));
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "0");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_that_names_the_file() {
    let (sender, receiver) = channel();
    let path = Path::new("no/such/folder/a.json");
    Files::new(sender).export(path.into(), String::new());
    match receiver.recv().unwrap() {
        Action::Report(Report::Error(why)) => assert!(why.contains("no/such/folder/a.json"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_gone_is_reported() {
    let (sender, receiver) = channel();
    let files = Files::new(sender);
    for _ in 0..2 {
        files.reload("no/such.wcodec".into(), false);
        match receiver.recv().unwrap() {
            Action::Report(Report::Reloaded(Err(why))) => assert!(why.contains("no/such.wcodec"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
