//! The files in the repository.

use std::path::PathBuf;

use wcodec::gpu::{GpuDecoder, GpuOptions};
use wcodec::{Container, ErrorKind};

use crate::rig::{Rig, Want, dtypes, expected};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(folder);
    let paths = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "wcodec")).collect();
    paths.sort();
    paths
}

#[test]
fn golden_files_equal_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    let paths = files("golden");
    assert!(paths.len() > 50);
    for path in paths {
        let container = Container::open(&path).unwrap();
        rig.compare_container(&container, &GpuOptions::default(), &path.display().to_string());
    }
}

/// The corpus of damaged files: faults that the CPU finds by structure or segment hashes are refused before anything is
/// sent to the device; faults that it finds while decoding, the device finds; the rest decodes alike.
#[test]
fn corrupt_files_are_refused_as_by_the_oracle() {
    let Some(mut rig) = Rig::new() else { return };
    let (mut early, mut late, mut same) = (0, 0, 0);
    for path in files("corrupt") {
        let what = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Ok(container) = Container::open(&path) else { continue };
        let ok = container.info("ok").ok();
        let damaged: Vec<_> = container.infos().unwrap().into_iter().filter(|t| t.name != "ok").collect();
        for (verify, damaged) in [true, false].into_iter().flat_map(|v| damaged.iter().map(move |t| (v, t))) {
            let options = GpuOptions { verify, ..Default::default() };
            // The other tensor is sound.
            if let Some(ok) = &ok {
                let decoder = GpuDecoder::new(&rig.device, &container, &["ok".to_owned()], &options).unwrap();
                let wants = [Want::whole(&container, ok, ok.dtype, &mut rig.rng)];
                rig.compare(&decoder, &wants, &what);
            }

            let name = &damaged.name;
            let decoder = match GpuDecoder::new(&rig.device, &container, std::slice::from_ref(name), &options) {
                Ok(decoder) => decoder,
                Err(e) => {
                    assert_eq!(e.tensor_name(), Some(name.as_str()), "{what}: {e}");
                    // Frames of zstd are compared with the plane's hash before nvCOMP gets them, whatever the options say.
                    let verify = verify || damaged.coder() == "zstd";
                    assert!(expected(&container, damaged, damaged.dtype, verify).is_err(), "{what}: {e}");
                    early += 1;
                    continue;
                }
            };
            assert!(!(verify && what.starts_with("flip-")), "{what}: the hash was not compared");
            for dtype in dtypes(damaged) {
                match expected(&container, damaged, dtype, false) {
                    // Damage that only the hash of the decoded plane reveals.
                    Ok(bytes) => {
                        let want = Want { name: name.clone(), dtype, rows: None, bytes };
                        rig.compare(&decoder, &[want], &what);
                        same += 1;
                    }
                    Err(_) => {
                        let bytes = vec![0; decoder.output_bytes(name, dtype).unwrap()];
                        let want = [Want { name: name.clone(), dtype, rows: None, bytes }];
                        let mut outputs = crate::rig::Outputs::new(&mut rig, &want);
                        outputs.poison(&mut rig.rng, &rig.stream);
                        // SAFETY: the output outlives the work, which `check` waits for.
                        unsafe { decoder.decode(&outputs.items(&want), &rig.stream) }.unwrap();
                        let e = decoder.check(&rig.stream).expect_err(&what);
                        assert_eq!(
                            (e.kind(), e.tensor_name()),
                            (ErrorKind::Corrupt, Some(name.as_str())),
                            "{what}: {e}"
                        );
                        // It is reported once.
                        decoder.check(&rig.stream).unwrap();
                        outputs.contents(&rig.stream, &what);
                        late += 1;
                    }
                }
            }
        }
    }
    assert!(early > 20 && late >= 8 && same >= 8, "{early} refused early, {late} late, {same} the same");
}
