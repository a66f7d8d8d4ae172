//! The table of modes beside the images: each kernel that it names is there, with its bounds, and no other.

use std::collections::BTreeMap;

use wcodec_kernels::abi::OutputKind;
use wcodec_kernels::{BLOCK_THREADS, Kind, Mode, Module, Variant, images};

/// The multiplying and the gathering module of a coder.
fn modules(coder: Module) -> (Module, Module) {
    match coder {
        Module::Rans => (Module::Ranstimes, Module::Ransrows),
        Module::Huffman => (Module::Huffmantimes, Module::Huffmanrows),
        other => panic!("{} is not of a coder", other.name()),
    }
}

/// The kernels of the table, by module, and the threads of their largest block.
fn named(bf16: bool) -> BTreeMap<(Module, String), u32> {
    let mut all = BTreeMap::new();
    for mode in Mode::ALL {
        for &coder in mode.coders() {
            let (times, rows) = modules(coder);
            // A kernel that is told of bits has one name for all outputs.
            let outputs = if mode.outputs().is_empty() { &OutputKind::ALL } else { mode.outputs() };
            for &kind in outputs {
                all.insert((coder, mode.decoding_kernel(coder, kind)), BLOCK_THREADS);
            }
            all.insert((rows, mode.lookup_kernel(coder)), BLOCK_THREADS);
            for kind in [OutputKind::F16, OutputKind::BF16].into_iter().filter(|&k| bf16 || k == OutputKind::F16) {
                for variant in Variant::ALL {
                    let Some(kernel) = mode.multiplying_kernel(coder, kind, variant) else { continue };
                    all.insert((times, kernel), mode.multiplying_threads(variant).unwrap());
                }
            }
        }
    }
    all
}

/// The kernels of PTX, and the threads of their largest block.
fn compiled(ptx: &str) -> BTreeMap<String, u32> {
    let entries = ptx.split(".entry ").skip(1);
    let parsed = entries.map(|entry| {
        let bound = entry.split(".maxntid ").nth(1).expect("every kernel has bounds");
        (entry.split('(').next().unwrap().to_owned(), bound.split([',', '\n']).next().unwrap().parse().unwrap())
    });
    parsed.collect()
}

#[test]
fn the_kernels_are_those_of_the_table() {
    let coders = [Module::Rans, Module::Huffman];
    for image in images(Module::Rans).iter().filter(|image| image.kind == Kind::Ptx) {
        // GPUs before 8.0 multiply no bf16.
        let want = named(image.capability >= (8, 0));
        let mut found = BTreeMap::new();
        for module in coders.into_iter().flat_map(|coder| [coder, modules(coder).0, modules(coder).1]) {
            let same = images(module).iter().find(|i| i.kind == Kind::Ptx && i.capability == image.capability).unwrap();
            let ptx = zstd::bulk::decompress(same.zstd, same.len).unwrap();
            let kernels = compiled(&String::from_utf8(ptx).unwrap());
            found.extend(kernels.into_iter().map(|(name, threads)| ((module, name), threads)));
        }
        let lacking: Vec<_> = want.iter().filter(|&(name, threads)| found.get(name) != Some(threads)).collect();
        let unnamed: Vec<_> = found.keys().filter(|name| !want.contains_key(name)).collect();
        assert!(
            lacking.is_empty() && unnamed.is_empty(),
            "sm_{}{}: kernels/src/mode.rs has {lacking:?}, and lacks {unnamed:?}: add them to cuda/*.cu, then make kernels",
            image.capability.0,
            image.capability.1
        );
    }
}
