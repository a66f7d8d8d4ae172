//! Consistency of the tree: images.txt, the images that it lists, and the sources that they were made from. `compile.py
//! --check` proves that the compilers make these images from the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use wcodec_kernels::{Kind, Module, images};

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The words of every row with the kind `what` in a list.
fn rows(list: &str, what: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(here(list)).unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    rows.filter(|words| words.first().is_some_and(|w| w == what)).collect()
}

#[test]
fn the_source_is_what_the_images_were_made_from() {
    let mut listed = BTreeSet::new();
    for row in rows("images.txt", "source") {
        let path = if row[1] == "modules.txt" { here(&row[1]) } else { here("cuda").join(&row[1]) };
        let found = std::fs::read(&path).unwrap_or_default();
        assert_eq!(
            hash(&found),
            row[2],
            "{} has changed since the kernels were compiled: make kernels",
            path.display()
        );
        listed.insert(row[1].clone());
    }
    let headers = std::fs::read_dir(here("cuda")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    // The emulator's headers are not compiled into any image.
    let headers = headers.filter(|name| name.ends_with(".h") && !name.starts_with("simt_"));
    let units = rows("modules.txt", "module").into_iter().map(|row| row[2].clone());
    let there: BTreeSet<String> = headers.chain(units).chain(["modules.txt".to_owned()]).collect();
    assert_eq!(listed, there, "files have come or gone since the kernels were compiled: make kernels");
}

#[test]
fn the_images_are_those_of_the_record() {
    let mut files: BTreeSet<String> =
        std::fs::read_dir(here("images")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let record = rows("images.txt", "image");
    for module in Module::ALL {
        for image in images(module) {
            let name = format!("sm_{}{}.{:?}", image.capability.0, image.capability.1, image.kind).to_lowercase();
            let row = record.iter().find(|row| row[1] == module.name() && row[2] == name);
            let row = row.unwrap_or_else(|| panic!("no row of {} {name} in images.txt: make kernels", module.name()));
            let data = zstd::bulk::decompress(image.zstd, image.len).unwrap();
            assert_eq!(data.len(), image.len);
            assert_eq!(hash(&data), row[5], "{} {name}: make kernels", module.name());
            match image.kind {
                Kind::Cubin => assert!(data.starts_with(b"\x7fELF")),
                Kind::Ptx => {
                    // The driver reads up to the first zero.
                    assert_eq!(data.iter().position(|&b| b == 0), Some(data.len() - 1));
                    let target = format!("\n.target {}\n", name.trim_end_matches(".ptx"));
                    assert!(data.windows(target.len()).any(|w| w == target.as_bytes()), "{name}");
                }
            }
            assert!(files.remove(&format!("{}.{name}.zst", module.name())));
        }
    }
    assert_eq!(files, BTreeSet::new(), "files in images/ that nothing uses: make kernels");
    assert_eq!(record.len(), Module::ALL.iter().map(|&m| images(m).len()).sum::<usize>());
}

#[test]
fn the_images_are_small() {
    let total: usize = Module::ALL.iter().flat_map(|&m| images(m)).map(|i| i.zstd.len()).sum();
    // Each change of a kernel adds the images to the repository once more. A third of them are the multiplying ones,
    // for each layout, number of vectors, dtype and generation of GPUs. Those of many vectors are 2.4 MB, and a sixth of
    // that multiplies 128. Code for factors of columns is in each kernel that decodes rates or multiplies. Those that
    // choose levels are 0.4 MB, since their loops are unrolled.
    assert!(total <= 35 << 19, "{total} bytes");
}
