//! The fuzz bodies over some thousand deterministic mutations of their seeds each.

#[path = "common/allocator.rs"]
mod allocator;
mod common;

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocator::{Limited, assert_modest, held};
use common::Rng;
use common::campaign::{self, Campaign};
use common::fuzz::{self, TARGETS, Target};
use wcodec::{Container, Pool};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Mutations of the seeds of a target, and every seed itself.
fn smoke(target: &Target, inputs: usize) {
    let mut rng = Rng(1);
    let seeds = (target.seeds)();
    for (i, seed) in seeds.iter().enumerate() {
        (target.body)(seed);
        assert_modest(&format_args!("{}, seed {i}", target.name));
    }
    for round in 0..inputs {
        let [seed, other] = [(); 2].map(|()| &seeds[rng.below(seeds.len())]);
        (target.body)(&(target.mutate)(&mut rng, seed, other));
        assert_modest(&format_args!("{}, round {round}", target.name));
    }
}

#[test]
fn containers() {
    smoke(&fuzz::container::TARGET, 6000);
}

#[test]
fn chunks() {
    smoke(&fuzz::chunks::TARGET, 6000);
}

#[test]
fn rates() {
    smoke(&fuzz::rate::TARGET, 1500);
}

#[test]
fn zstd_planes() {
    smoke(&fuzz::zstd::TARGET, 6000);
}

#[test]
fn safetensors_headers() {
    smoke(&fuzz::safetensors::TARGET, 4000);
}

#[test]
fn gguf_headers() {
    smoke(&fuzz::gguf::TARGET, 1000);
}

#[test]
fn files() {
    smoke(&fuzz::file::TARGET, 3000);
}

#[test]
fn legacy_blobs() {
    smoke(&fuzz::legacy::TARGET, 6000);
}

/// Mutations start from something that decodes, and most of them still reach a decoder.
#[test]
fn seeds_are_valid_and_mutations_of_them_meet_decoders() {
    type Decode = fn(&[u8]) -> Vec<bool>;
    let chunks: (_, Decode) = (&fuzz::chunks::TARGET, fuzz::chunks::decode);
    for (target, decode) in [chunks, (&fuzz::zstd::TARGET, fuzz::zstd::decode)] {
        let (mut rng, mut met, mut good) = (Rng(5), 0, 0);
        let seeds = (target.seeds)();
        for seed in &seeds {
            good += usize::from(decode(seed).contains(&true));
            let mutations = (0..20).map(|_| decode(&(target.mutate)(&mut rng, seed, seed)));
            met += mutations.filter(|pieces| !pieces.is_empty()).count();
        }
        // Planes with another table than their own do not decode.
        assert!(good >= seeds.len() / 2, "{}: {good} of {} seeds", target.name, seeds.len());
        assert!(met >= seeds.len() * 10, "{}: {met} of {} mutations", target.name, seeds.len() * 20);
    }
}

/// The files that are mutated are sound, and use every feature of the format; most mutations still open.
#[test]
fn files_begin_with_all_that_the_format_has() {
    let mut seen = BTreeSet::new();
    for seed in fuzz::file::seeds::SEEDS.iter() {
        let container = Container::from_bytes(seed.draft.seal()).unwrap();
        let report = wcodec::verify(&container, None, &common::checked(true), &mut |_| Ok(())).unwrap();
        assert!(report.ok(), "{}", seed.name);
        for t in container.infos().unwrap() {
            let layout = t.layout().unwrap_or_default();
            seen.insert(format!("{} {} {layout} {}", t.scheme, t.coder(), t.planes[0].filter));
            seen.extend(t.segments.iter().map(|s| s.role.to_owned()));
            seen.insert(format!("{} planes, axis {}, {} matrices", t.planes.len(), t.row_axis, t.count));
        }
    }
    let mut want = vec!["table", "offsets", "data", "side", "scales", "1 planes, axis 1, 1 matrices", "raw raw  none"];
    want.extend(["1 planes, axis 0, 2 matrices", "2 planes, axis 1, 1 matrices", "4 planes, axis 0, 1 matrices"]);
    want.extend(["int8 rans pair none", "int8 rans byte none", "int8 huffman pair none", "int8 huffman byte none"]);
    want.extend([
        "int8 huffman quad none",
        "int8 zstd  none",
        "int8 raw  none",
        "rate rans pair none",
        "rate rans pair trellis",
    ]);
    want.extend([
        "rate rans byte trellis",
        "rate huffman pair none",
        "rate huffman pair trellis",
        "rate huffman byte trellis",
    ]);
    want.extend(["rate huffman quad none", "rate huffman quad trellis", "rate zstd  none", "rate raw  none"]);
    want.extend([
        "lossless rans split none",
        "lossless huffman split none",
        "lossless rans byte none",
        "lossless zstd  none",
    ]);
    want.extend([
        "raw rans byte left",
        "raw rans byte up",
        "raw huffman pair none",
        "raw huffman quad none",
        "raw zstd  left",
    ]);
    want.retain(|w| !seen.contains(*w));
    assert!(want.is_empty(), "no file has {want:?}; there are {seen:?}");

    let mut rng = Rng(7);
    let opened = (0..300).filter(|_| Container::from_bytes(fuzz::file::file_of(&fuzz::file::random(&mut rng))).is_ok());
    assert!(opened.count() > 150);
}

/// Most inputs of scheme `rate` pass the encoder.
#[test]
fn rates_are_encoded() {
    let (mut rng, mut seeds_taken, mut taken) = (Rng(6), 0, 0);
    let seeds = (fuzz::rate::TARGET.seeds)();
    for seed in &seeds {
        seeds_taken += usize::from(fuzz::rate::exercise(seed));
        taken += (0..4).filter(|_| fuzz::rate::exercise(&(fuzz::rate::TARGET.mutate)(&mut rng, seed, seed))).count();
    }
    assert!(seeds_taken >= seeds.len() / 2, "{seeds_taken} of {} seeds", seeds.len());
    assert!(taken >= seeds.len(), "{taken} of {} mutations", seeds.len() * 4);
}

/// The pool that bodies run on, so that calls of the library stay on one thread.
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(None).unwrap());

#[test]
#[ignore = "takes long: see docs/contributing/testing.md"]
fn campaign() {
    fn body(input: &[u8]) -> Vec<&'static str> {
        let (events, most) = POOL
            .run(|| {
                held();
                let events = fuzz::file::exercise(input);
                assert_modest(&"a file");
                (events, held())
            })
            .unwrap();
        MOST.store(most, Ordering::Relaxed);
        events
    }
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let command = "cargo test --package wcodec --test fuzz -- --ignored --nocapture campaign";
    let held = || MOST.load(Ordering::Relaxed);
    campaign::run(&Campaign { test: "campaign", command, every: 1, body, held });
}

#[test]
#[ignore = "writes codec/fuzz/corpus, from which `make fuzz` begins"]
fn write_seeds() {
    for target in TARGETS {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        let seeds = (target.seeds)();
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i:03}")), seed).unwrap();
        }
        println!("{} seeds in {}", seeds.len(), folder.display());
    }
}
