//! Output that cannot be written, or is cancelled.

use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::Path;

use wcodec::container::Writer;
use wcodec::{Container, EncodeOptions, Error, ErrorKind, MemorySource, decode, encode};

use crate::common::image::{Image, flipped};
use crate::common::{checked, samples, text};
use crate::listing;

/// Runs an encode and a decode that write `dst`.
pub fn write_both(dst: &Path, overwrite: bool) -> [wcodec::Result<()>; 2] {
    let options = EncodeOptions { overwrite, ..Default::default() };
    let container = Container::from_bytes(samples::mini("rans pair row")).unwrap();
    let quiet = &mut |_: &wcodec::ProgressEvent<'_>| Ok(());
    [
        encode(&samples::source(), dst, &options, quiet).map(|_| ()),
        decode(&container, None, dst, &checked(true), overwrite, quiet),
    ]
}

#[test]
fn an_existing_output_stays_unless_it_may_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("out");
    std::fs::write(&dst, b"precious").unwrap();
    let before = listing(folder.path());
    for e in write_both(&dst, false).map(Result::unwrap_err) {
        assert!(e.kind() == ErrorKind::Io && text(&e).contains("overwrit") && text(&e).contains("out"), "{e}");
    }
    assert_eq!(listing(folder.path()), before);
    for r in write_both(&dst, true) {
        r.unwrap();
    }
    assert_eq!(listing(folder.path()).len(), 1);
    assert_ne!(listing(folder.path()), before);
}

#[test]
fn folders_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let mut bad = vec![file.join("out"), folder.path().join("none/out"), folder.path().to_owned()];
    if cfg!(target_os = "linux") {
        // Not even root can create files there.
        bad.push("/proc/wcodec-test/out".into());
        bad.push("/proc/wcodec-test".into());
    }
    let before = listing(folder.path());
    for dst in bad {
        for overwrite in [false, true] {
            for e in write_both(&dst, overwrite).map(Result::unwrap_err) {
                let kind = if dst == folder.path() { ErrorKind::Input } else { ErrorKind::Io };
                assert_eq!(e.kind(), kind, "{}: {e}", dst.display());
                assert!(e.file_path().is_some_and(|p| dst.starts_with(p)), "{}: {e}", dst.display());
            }
        }
        assert_eq!(listing(folder.path()), before);
    }
}

#[cfg(unix)]
#[test]
fn folders_without_permission() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let locked = folder.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o500)).unwrap();
    if std::fs::write(locked.join("probe"), b"").is_ok() {
        // Root may write everywhere; the other test has folders that refuse it too.
        return;
    }
    for e in write_both(&locked.join("out"), true).map(Result::unwrap_err) {
        assert!(e.kind() == ErrorKind::Io && text(&e).contains("permissions"), "{e}");
    }
    assert!(listing(&locked).is_empty());
}

#[test]
fn cancelling_leaves_nothing_whenever_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let existing = folder.path().join("existing");
    std::fs::write(&existing, b"precious").unwrap();
    let before = listing(folder.path());
    let container = Container::from_bytes(samples::all().remove(0).bytes).unwrap();
    for dst in [folder.path().join("new"), existing] {
        for what in ["encode", "decode"] {
            let mut stops = 0;
            loop {
                let mut events = 0;
                let mut progress = |_: &wcodec::ProgressEvent<'_>| {
                    events += 1;
                    if events > stops { Err(Error::cancelled()) } else { Ok(()) }
                };
                let options = EncodeOptions { overwrite: true, ..Default::default() };
                let result = match what {
                    "encode" => encode(&samples::source(), &dst, &options, &mut progress).map(|_| ()),
                    _ => decode(&container, None, &dst, &checked(true), true, &mut progress),
                };
                match result {
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}"),
                    Ok(()) => break,
                }
                assert_eq!(listing(folder.path()), before, "{what} stopped at event {stops}");
                stops += 1;
            }
            assert!(stops >= 16, "{what}: {stops} events for nine names");
            // The last, complete run wrote the output: restore the old state.
            match before.get(dst.file_name().unwrap().to_str().unwrap()) {
                Some(bytes) => std::fs::write(&dst, bytes).unwrap(),
                None => std::fs::remove_file(&dst).unwrap(),
            }
        }
    }
}

#[test]
fn a_damaged_container_decodes_to_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("out.safetensors");
    std::fs::write(&dst, b"precious").unwrap();
    let before = listing(folder.path());
    let good = samples::all().remove(0).bytes;
    for place in Image::new(&good).places() {
        let container = Container::from_bytes(flipped(&good, place.offset * 8 + 9)).unwrap();
        let e = decode(&container, None, &dst, &checked(true), true, &mut |_| Ok(())).unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && place.tensors.iter().any(|t| e.tensor_name() == Some(t)), "{e}");
        assert_eq!(listing(folder.path()), before);
    }
}

/// A disk that is full after a number of bytes.
struct FullAfter {
    inner: Cursor<Vec<u8>>,
    room: usize,
}

impl Write for FullAfter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(self.room);
        if n == 0 && !bytes.is_empty() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        self.inner.write(&bytes[..n])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for FullAfter {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

#[test]
fn a_full_disk_is_an_error_at_every_byte_and_leaves_no_header() {
    let write = |room: usize| -> Result<Vec<u8>, (Error, Vec<u8>)> {
        let mut disk = FullAfter { inner: Cursor::new(Vec::new()), room };
        let run = |disk: &mut FullAfter| -> wcodec::Result<()> {
            let mut writer = Writer::new(disk, Path::new("model.wcodec"))?;
            writer.segment(&[1; 100])?;
            writer.segment(&vec![2; 3 << 20])?;
            writer.segment(&[3; 7])?;
            writer.finish().map(|_| ())
        };
        let result = run(&mut disk);
        let bytes = disk.inner.into_inner();
        result.map(|()| bytes.clone()).map_err(|e| (e, bytes))
    };
    let whole = write(usize::MAX).unwrap();
    // The header is written twice, first as zeros.
    let needed = whole.len() + 64;
    let places = (0..200).chain((200..needed - 300).step_by(50_021)).chain(needed - 300..needed);
    for room in places {
        let (e, left) = write(room).expect_err("no room");
        assert!(e.kind() == ErrorKind::Io && text(&e).contains("model.wcodec") && text(&e).contains("space"), "{e}");
        assert!(Container::from_bytes(left).is_err(), "{room} bytes make a container");
    }
    assert!(write(needed).is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn the_full_device_is_full() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut writer = Writer::new(full, Path::new("/dev/full")).unwrap();
    writer.segment(&[1; 100]).unwrap();
    let e = writer.finish().map(|_| ()).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && text(&e).contains("/dev/full") && text(&e).contains("no partial file"), "{e}");
}

/// Weights that make a container of more than 64 KiB.
fn large_source() -> MemorySource<'static> {
    let mut source = MemorySource::new();
    let bytes = samples::as_bytes(&samples::weights(512 * 512, 71));
    source.push("w".to_owned(), wcodec::Dtype::F32, vec![512, 512], bytes.into()).unwrap();
    source
}

const CHILD: &str = "WCODEC_TEST_FULL_DISK";

/// The part of the next test that runs with limited file sizes; does nothing otherwise.
#[test]
fn full_disk_child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = Path::new(&folder);
    let quiet = &mut |_: &wcodec::ProgressEvent<'_>| Ok(());
    for name in ["new", "existing"] {
        let options = EncodeOptions { overwrite: true, ..Default::default() };
        let e = encode(&large_source(), &folder.join(name), &options, quiet).map(|_| ()).unwrap_err();
        assert!(e.kind() == ErrorKind::Io && text(&e).contains(name), "{e}");
        let container = Container::open(&folder.join("large.wcodec")).unwrap();
        let e = decode(&container, None, &folder.join(name), &checked(true), true, quiet).unwrap_err();
        assert!(e.kind() == ErrorKind::Io && text(&e).contains(name), "{e}");
    }
    println!("the child was here");
}

/// A limit on the file size fails as a full disk does, through the real file: the shell sets it for a second run of
/// this test binary and ignores the signal that comes with it.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("existing"), b"precious").unwrap();
    let options = EncodeOptions::default();
    encode(&large_source(), &folder.path().join("large.wcodec"), &options, &mut |_| Ok(())).unwrap();
    let before = listing(folder.path());
    let out = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact output::full_disk_child --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    assert!(out.status.success() && said.contains("the child was here"), "{said}");
    assert_eq!(listing(folder.path()), before);
}
