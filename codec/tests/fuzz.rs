//! The fuzz bodies over some thousand deterministic mutations of valid inputs each.

mod common;

use common::allocator::{Limited, assert_modest};
use common::{Rng, fuzz, safetensors, samples};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

#[test]
fn containers() {
    let seeds: Vec<_> = samples::minis().into_iter().chain(samples::all_layers()).collect();
    let mut rng = Rng(1);
    for seed in &seeds {
        fuzz::fuzz_container(&seed.bytes);
        for round in 0..100 {
            let other = &seeds[rng.below(seeds.len())].bytes;
            fuzz::fuzz_container(&fuzz::mutate_container(&mut rng, &seed.bytes, other));
            assert_modest(&format_args!("{}, round {round}", seed.name));
        }
    }
}

#[test]
fn legacy_blobs() {
    let mut rng = Rng(2);
    let seeds: Vec<Vec<u8>> = [(0u32, 5u32, 1.0), (1, 1, 9.0), (16, 64, 30.0), (40, 100, 127.0)]
        .map(|(rows, cols, spread)| {
            let symbols = samples::symbols((rows * cols) as usize, spread, 3);
            wcodec::legacy::encode(&symbols, rows, cols, 3).unwrap()
        })
        .into();
    for seed in &seeds {
        fuzz::fuzz_legacy(seed);
        for _ in 0..1000 {
            let other = &seeds[rng.below(seeds.len())];
            fuzz::fuzz_legacy(&fuzz::mutate(&mut rng, seed, other));
        }
    }
}

#[test]
fn planes() {
    let mut rng = Rng(3);
    let seeds: Vec<Vec<u8>> = samples::all_layers().iter().map(|s| fuzz::plane_input(&s.bytes)).collect();
    for seed in &seeds {
        assert!(fuzz::fuzz_plane(seed) > 0, "the seed itself does not fit");
        let mut met = 0;
        for _ in 0..100 {
            let other = &seeds[rng.below(seeds.len())];
            fuzz::fuzz_plane(&fuzz::mutate(&mut rng, seed, other));
        }
        // The segments alone: mutations of the whole mostly break its structure.
        for _ in 0..100 {
            let (head, rest) = seed.split_at(fuzz::PLANE_HEADER + 256);
            let mut rest = rest.to_vec();
            (0..=rng.below(20)).for_each(|_| {
                let at = rng.below(rest.len());
                rest[at] = rng.next() as u8;
            });
            met += fuzz::fuzz_plane(&[head, &rest].concat());
        }
        assert!(met > 50, "only {met} pieces met a decoder");
    }
}

#[test]
fn checkpoint_headers() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng(4);
    let seeds = [
        safetensors::valid(&[("a", "F32", &[2, 3], vec![0; 24]), ("b.weight", "BF16", &[4], vec![1; 8])]),
        safetensors::valid(&[("e", "I8", &[0, 3], vec![]), ("s", "F64", &[], vec![2; 8])]),
        safetensors::valid(&[("w", "F32", &[40, 64], samples::as_bytes(&samples::weights(40 * 64, 7)))]),
    ];
    for seed in &seeds {
        fuzz::fuzz_checkpoint_header(seed, folder.path());
        for round in 0..700 {
            // Mutations of the data alone are of no interest here.
            let header = 8 + u64::from_le_bytes(seed[..8].try_into().unwrap()) as usize;
            let other = &seeds[rng.below(seeds.len())];
            let head = fuzz::mutate(&mut rng, &seed[..header], other);
            fuzz::fuzz_checkpoint_header(&[&head, &seed[header..]].concat(), folder.path());
            assert_modest(&format_args!("round {round}"));
        }
    }
}
