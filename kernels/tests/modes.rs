//! The table of modes beside the images: each kernel that it names is there, with its bounds, and no other.

use std::collections::BTreeMap;

use wcodec_kernels::abi::OutputKind;
use wcodec_kernels::{BLOCK_THREADS, Kind, Mode, Module, Variant, images};

/// The multiplying and the gathering module of a coder, but for kernels of many vectors.
fn modules(coder: Module) -> (Module, Module) {
    match coder {
        Module::Rans => (Module::Ranstimes, Module::Ransrows),
        Module::Huffman => (Module::Huffmantimes, Module::Huffmanrows),
        other => panic!("{} is not of a coder", other.name()),
    }
}

/// The kernels of the table for devices of a compute capability, by module, and the threads of their largest block.
fn named(capability: (u32, u32)) -> BTreeMap<(Module, String), u32> {
    // GPUs before 8.0 multiply no bf16.
    let (bf16, many) = (capability >= (8, 0), capability >= Module::Huffmanmany.oldest());
    let mut all = BTreeMap::new();
    if many {
        all.insert((Module::Huffmanmany, "wcodec_many_selftest".to_owned()), 128);
    }
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
                for variant in Variant::ALL.into_iter().filter(|v| many || !v.is_many()) {
                    let Some(kernel) = mode.multiplying_kernel(coder, kind, variant) else { continue };
                    let module = if variant.is_many() { Module::Huffmanmany } else { times };
                    all.insert((module, kernel), mode.multiplying_threads(variant).unwrap());
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
        let want = named(image.capability);
        let mut found = BTreeMap::new();
        let of_coders = coders.into_iter().flat_map(|coder| [coder, modules(coder).0, modules(coder).1]);
        let all = of_coders.chain([Module::Huffmanmany]).filter(|module| module.oldest() <= image.capability);
        for module in all {
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
