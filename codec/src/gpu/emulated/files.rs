//! Plans and kernels on mutated files: whatever a file is, a device decodes what the CPU decodes, or both refuse it.

use super::*;
use crate::common::campaign::{self, Campaign};
use crate::common::fuzz::file::{file_of, random, turn_of};
use crate::common::{Rng, fuzz};
use crate::error::Error;
use crate::gpu::plan::{can_fuse, can_look_up};
use crate::{ErrorKind, TensorInfo};

/// Elements of the largest tensor that is decoded here.
const MOST: u64 = 16 << 10;

/// Nothing is compared with hashes but what must be: damage is to reach the kernels.
fn unchecked() -> DecodeOptions {
    DecodeOptions { verify: false, ..oracle() }
}

/// Plans, decodes, multiplies with and looks rows up of every tensor of the file that `input` stands for.
fn exercise(input: &[u8]) -> Vec<&'static str> {
    let Ok(container) = Container::from_bytes(file_of(input)) else { return vec!["not opened"] };
    let mut events = vec!["opened"];
    let mut rng = StdRng::seed_from_u64(turn_of(input));
    for info in container.infos().unwrap() {
        if info.elements > 0 && info.elements <= MOST {
            events.push(tensor(&container, &info, &mut rng));
        }
    }
    events
}

fn is_of_a_file(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt | ErrorKind::Unsupported) && e.tensor_name().is_some()
}

fn tensor(container: &Container, info: &TensorInfo, rng: &mut StdRng) -> &'static str {
    let name = &info.name;
    let cpu = container.read(name, &unchecked());
    let planned = container.bytes_of(name, &unchecked());
    // A decoder that reads coded bytes when they are wanted refuses the same before.
    let structure = container.structure_of(name, &unchecked());
    assert_eq!(planned.is_ok(), structure.is_ok(), "'{name}': {:?} {:?}", planned.err(), structure.err());
    let parts = match planned {
        Ok(parts) => parts,
        Err(e) => {
            // Frames go to another library, and are compared with their hash before.
            let zstd =
                container.stored(name).is_ok_and(|t| t.planes.iter().any(|p| p.form.coding.coder() == Coder::Zstd));
            assert!(is_of_a_file(&e) && (cpu.is_err() || zstd), "{e}");
            return "refused";
        }
    };
    let plan = match TensorPlan::new(&parts) {
        Ok(plan) => plan,
        Err(e) => {
            assert!(is_of_a_file(&e) && (cpu.is_err() || e.kind() == ErrorKind::Unsupported), "{e}");
            return "not planned";
        }
    };
    let whole = Loaded::any(&parts);
    let tiles = plan.planes.iter().any(|m| matches!(m, Method::Tiles(_)));
    if !tiles && plan.tensor.symbol_scales().is_none() && !plan.tensor.is_joined() {
        return "no work of ours";
    }
    let kinds: Vec<OutputKind> = match (plan.tensor.is_joined(), plan.tensor.scheme.makes_symbols()) {
        (true, _) => vec![plan.output(plan.tensor.dtype).unwrap()],
        (_, true) => OutputKind::ALL.to_vec(),
        (_, false) => vec![OutputKind::Int8],
    };
    let kind = kinds[rng.random_range(0..kinds.len())];
    let mut loaded = [whole];
    let off = [0, 0, kind.bytes(), 16][rng.random_range(0..4)];
    let got = run_at(&mut loaded, kind, &|n| 0..n, rng.random(), off).remove(0);
    let [mut t] = loaded;
    assert_eq!(got.status.is_none(), cpu.is_ok(), "'{name}' as {kind:?}: {:?}, {:?}", got.status, cpu.err());
    if cpu.is_ok() {
        let want = wanted(container, &t.plan, kind);
        assert!(same(kind, &t.plan, &got.bytes, &want), "'{name}' as {kind:?} differs");
        pieces(&mut t, &want, kind);
    }
    if can_look_up(&t.plan).is_none() && kind != OutputKind::Int8 {
        let rows = t.plan.matrix.1 as i64;
        let ids: Vec<i64> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..rows)).collect();
        lookup::sound_or_nan(&mut t, kind, &ids, rng.random(), name);
    }
    if can_fuse(&t.plan).is_none() {
        product::like_decoded(t, rng, name);
        return if cpu.is_ok() { "decoded and multiplied" } else { "reported by products, too" };
    }
    if cpu.is_ok() { "decoded" } else { "reported" }
}

/// The tensor as the CPU decodes it.
fn wanted(container: &Container, plan: &TensorPlan, kind: OutputKind) -> Vec<u8> {
    let read = |dtype| container.read_as(plan.name(), dtype, &unchecked()).unwrap().to_vec();
    match kind {
        _ if plan.tensor.is_joined() => container.read(plan.name(), &unchecked()).unwrap().to_vec(),
        OutputKind::Int8 => symbols_as_stored_by(container, plan, &unchecked()),
        OutputKind::F16 => read(Dtype::F16),
        OutputKind::BF16 => read(Dtype::BF16),
        OutputKind::F32 => read(Dtype::F32),
    }
}

/// Equal, but for which NaN a product is.
fn same(kind: OutputKind, plan: &TensorPlan, got: &[u8], want: &[u8]) -> bool {
    let exact = plan.tensor.is_joined() || kind == OutputKind::Int8;
    let pairs = || got.chunks_exact(kind.bytes()).zip(want.chunks_exact(kind.bytes()));
    got == want
        || !exact && got.len() == want.len() && pairs().all(|(a, b)| a == b || is_nan(kind, a) && is_nan(kind, b))
}

pub fn is_nan(kind: OutputKind, element: &[u8]) -> bool {
    match kind {
        OutputKind::F16 => half::f16::from_le_bytes(element.try_into().unwrap()).is_nan(),
        OutputKind::BF16 => half::bf16::from_le_bytes(element.try_into().unwrap()).is_nan(),
        _ => f32::from_le_bytes(element.try_into().unwrap()).is_nan(),
    }
}

/// Strip by strip, from as little memory as one needs.
fn pieces(whole: &mut Loaded, want: &[u8], kind: OutputKind) {
    let alone = matches!(whole.plan.planes[..], [Method::Tiles(_)]);
    if kind != OutputKind::F32 || !alone || whole.plan.tensor.is_joined() {
        return;
    }
    let plan = whole.plan.clone();
    let mut got = vec![POISON; want.len()];
    let mut left = 0..plan.rows();
    while !left.is_empty() {
        let capacity = PackedRows::bound_of_strip(&plan.tensor);
        let (rows, piece) = PackedRows::fitting(&plan, &whole.packed, &left, capacity).expect("a strip fits");
        left.start = rows.end;
        let mut packed = Buffer::new(piece.len);
        packed.fill(POISON);
        for (range, place) in &piece.copies {
            packed[*place..place + range.len()].copy_from_slice(&whole.packed[range.clone()]);
        }
        whole.decode_piece(&piece, packed, rows, &mut got);
    }
    assert!(same(kind, &plan, &got, want), "'{}' in pieces", plan.name());
}

#[test]
fn mutated_files_decode_as_on_the_cpu_or_are_refused() {
    let mut rng = Rng(63);
    let events: Vec<_> = (0..900).flat_map(|_| exercise(&random(&mut rng))).collect();
    let count = |word: &str| events.iter().filter(|e| **e == word).count();
    for (word, least) in [("decoded", 100), ("decoded and multiplied", 10), ("reported", 20), ("refused", 100)] {
        assert!(count(word) >= least, "{word}: {} in {} files", count(word), count("opened"));
    }
}

#[test]
fn files_that_found_defects_do_so_here_too() {
    (fuzz::file::TARGET.seeds)().iter().filter(|input| input[0] == u8::MAX).for_each(|input| drop(exercise(input)));
}

#[test]
#[ignore = "takes long: see docs/contributing/testing.md"]
fn campaign() {
    let command = "cargo test --package wcodec --lib -- --ignored --nocapture gpu::emulated::files::campaign";
    let test = "gpu::emulated::files::campaign";
    campaign::run(&Campaign { test, command, every: 64, body: exercise, held: || 0 });
}
