//! Kernels of many vectors: their results, and which matrices they are for.

use super::*;
use crate::gpu::plan::FEW_VECTORS;

/// A device with a multiprocessor for nearly every block, and one whose blocks have as many warps as there is room for.
pub const DEVICES: [Limits; 2] = [
    Limits { many: true, ..LARGE },
    Limits { multiprocessors: 4, shared_per_block: 150 << 10, shared_per_multiprocessor: 151 << 10, many: true },
];

/// Encodings that these kernels multiply with: each shift, with and without a trellis, some widths of tiles.
pub fn options() -> Vec<EncodeOptions> {
    let few_scales = |o: &EncodeOptions| !matches!(o.scheme, Scheme::Int8(Granularity::Block(_)));
    let mut all: Vec<_> =
        all_options().into_iter().filter(|o| o.layout == Some(Layout::Quad) && few_scales(o)).collect();
    // A step between those of others, for the shift that a trellis has with this one only.
    let last = all.last().expect("quads of scheme rate").clone();
    all.push(EncodeOptions { step: Some(0.2), tile: Some(128), ..last });
    all
}

/// A tensor of a container, where these kernels multiply with it.
pub fn load(container: &Container, name: &str) -> Option<Loaded> {
    let t = Loaded::new(&container.bytes_of(name, &oracle()).unwrap())?;
    (most_vectors(&t.plan, DEVICES[1]) == 128).then_some(t)
}

fn biases(rng: &mut StdRng, kind: OutputKind, rows: usize) -> Buffer {
    let bytes: Vec<u8> = (0..rows).flat_map(|_| bits(kind, rng.random_range(-1.0..1.0))).collect();
    Buffer::from(&bytes[..])
}

/// For each launch whether sums have a place of their own; 0 for one block, 1 for a cluster, 2 for one of more blocks than strips; and log2 of its parts.
fn placements_of(tensors: &[Loaded], vectors: usize, limits: Limits) -> Vec<(bool, u32, u32)> {
    let (items, _) = items(tensors, OutputKind::BF16, None, &|s| 0..s, &|_| abi::PART_RESULT);
    let (launches, _) = launches(&items, vectors, limits);
    let many = launches.iter().filter(|l| l.module == Module::Huffmanmany);
    many.map(|l| {
        let helpers = if vectors > 64 { abi::MANY_MORE_HELPERS } else { abi::MANY_HELPERS };
        let (part_bits, warps) = (l.params.corrections, l.threads / 32 - helpers as u32);
        let more = l.cluster > warps >> part_bits;
        (l.params.sums != abi::MANY_RING_AT as u32, u32::from(l.cluster > 1) + u32::from(more), part_bits)
    })
    .collect()
}

#[test]
fn many_vectors_are_multiplied_with_the_decoded_weights() {
    let mut rng = StdRng::seed_from_u64(87);
    let mut kernels = BTreeSet::new();
    let mut shifts = BTreeSet::new();
    let mut placements = BTreeSet::new();
    let counts = [64, 8, 17, 33, 1, 16, 9, 32, 49, 24, 128, 65];
    let shapes = [vec![208, 512], vec![37, 1130], vec![3, 20, 192], vec![20, 2112], vec![5, 8256]];
    for (i, o) in options().into_iter().enumerate() {
        let container = Container::from_bytes(encode(&sample(&mut rng, &shapes), &o)).unwrap();
        for (j, name) in ["w0", "w1", "w2", "w3", "w4"].into_iter().enumerate() {
            let Some(t) = load(&container, name) else { continue };
            let kind = [OutputKind::F16, OutputKind::BF16][(i + j) % 2];
            let n = counts[(3 * i + j) % counts.len()];
            let inputs = Inputs::new(&mut rng, kind, n, t.plan.matrix.2, 2.0);
            let all = t.plan.rows();
            let bias = (j % 2 == 0).then(|| biases(&mut rng, kind, all));
            let plan = t.plan.clone();
            let mut tensors = [t];
            let seed = 2 * i as u64 + j as u64 / 2;
            placements.extend(DEVICES.iter().flat_map(|&limits| placements_of(&tensors, n, limits)));
            let (got, used) = multiply(&mut tensors, &inputs, bias.as_ref(), &|s| 0..s, DEVICES[j % 2], seed);
            assert_eq!(tensors[0].status, [abi::STATUS_GOOD]);
            compare(&container, &plan, &inputs, bias.as_ref(), 0..all, &got[0], &format!("{used:?} {name} {o:?}"));
            // Wherever it is launched, and in whatever order threads run.
            let other = DEVICES[1 - j % 2];
            let (again, _) = multiply(&mut tensors, &inputs, bias.as_ref(), &|s| 0..s, other, seed + 1);
            assert!(got == again, "{used:?} differs on another device: {name} {o:?}");
            kernels.extend(used);
            let Method::Tiles(tiles) = &plan.planes[0] else { unreachable!() };
            shifts.insert((tiles.tiling.filter.name(), tiles.tiling.shift));
        }
    }
    assert_eq!(kernels.len(), 20, "{kernels:?}");
    // Sums in a place of their own and in that of the ring, with one block, several, and more than there are strips. The next test has the last kind.
    for wanted in [(true, 0), (true, 1), (true, 2), (false, 1)] {
        assert!(placements.iter().any(|&(apart, blocks, _)| (apart, blocks) == wanted), "{wanted:?} of {placements:?}");
    }
    // One part, two and four.
    for wanted in 0..3 {
        assert!(placements.iter().any(|&(_, _, part_bits)| part_bits == wanted), "{wanted} of {placements:?}");
    }
    // All that are ever written.
    let written = [("none", 0..4), ("trellis", 0..3)].map(|(filter, shifts)| shifts.map(move |shift| (filter, shift)));
    assert!(shifts.into_iter().eq(written.into_iter().flatten()));
}

/// A block without others whose memory has no place for sums beside all else.
#[test]
fn sums_of_one_block_take_the_place_of_its_ring() {
    let mut rng = StdRng::seed_from_u64(94);
    let options = EncodeOptions { tile: Some(512), ..options().swap_remove(0) };
    let container = Container::from_bytes(encode(&sample(&mut rng, &[vec![120, 500]]), &options)).unwrap();
    let mut tensors = [load(&container, "w0").unwrap()];
    let of_size = |kilobytes: usize| Limits {
        shared_per_block: kilobytes << 10,
        shared_per_multiprocessor: (kilobytes + 1) << 10,
        ..DEVICES[1]
    };
    let places = |limits: Limits| placements_of(&tensors, 64, limits);
    let limits =
        (60..150).map(of_size).find(|&limits| places(limits) == [(false, 0, 0)]).expect("there is such a size");
    let inputs = Inputs::new(&mut rng, OutputKind::BF16, 64, 500, 2.0);
    let (got, used) = multiply(&mut tensors, &inputs, None, &|s| 0..s, limits, 3);
    let plan = &tensors[0].plan;
    compare(&container, plan, &inputs, None, 0..plan.rows(), &got[0], &format!("{used:?}"));
}

/// Matrices of several shapes share launches, and some of their strips have them to themselves.
#[test]
fn results_do_not_depend_on_companions_and_slices() {
    let mut rng = StdRng::seed_from_u64(88);
    let shapes = [vec![100, 640], vec![37, 640], vec![16, 640], vec![70, 640]];
    let mut compared = 0;
    for (i, o) in options().into_iter().enumerate().step_by(2) {
        let container = Container::from_bytes(encode(&sample(&mut rng, &shapes), &o)).unwrap();
        let mut tensors: Vec<Loaded> =
            ["w0", "w1", "w2", "w3"].into_iter().filter_map(|name| load(&container, name)).collect();
        let (kind, limits) = ([OutputKind::F16, OutputKind::BF16][i / 2 % 2], DEVICES[i / 4 % 2]);
        let inputs = Inputs::new(&mut rng, kind, [12, 40, 3][i / 2 % 3], 640, 2.0);
        let strips: fn(usize) -> Range<usize> = |s| s / 3..s;
        let (together, _) = multiply(&mut tensors, &inputs, None, &|s| 0..s, limits, i as u64);
        let (parts, _) = multiply(&mut tensors, &inputs, None, &strips, limits, i as u64 + 1);
        for ((t, whole), part) in tensors.iter_mut().zip(together).zip(parts) {
            let begin = t.plan.first_row(strips(t.plan.strips()).start);
            let rows = t.plan.rows();
            let (alone, _) = multiply(std::slice::from_mut(t), &inputs, None, &|s| 0..s, limits, 9);
            assert!(alone[0] == whole, "{} beside others: {o:?}", t.plan.name());
            let of_vectors = whole.chunks(rows).flat_map(|vector| &vector[begin..]);
            assert!(of_vectors.eq(&part), "rows of {} from {begin} on: {o:?}", t.plan.name());
            compared += 1;
        }
    }
    assert!(compared >= 30, "{compared}");
}

/// Experts are multiplied so.
#[test]
fn matrices_of_a_vector_each_by_kernels_of_many() {
    let mut rng = StdRng::seed_from_u64(89);
    let mut compared = 0;
    for (i, o) in options().into_iter().enumerate().skip(1).step_by(3) {
        let kind = [OutputKind::F16, OutputKind::BF16][i % 2];
        compared += with_other_vectors(&mut rng, &o, kind, DEVICES[i / 2 % 2], i as u64);
    }
    assert!(compared >= 20, "{compared}");
}

#[test]
fn damage_shows_to_many_vectors() {
    let mut rng = StdRng::seed_from_u64(90);
    let (mut found, mut unseen) = (0, 0);
    for (i, o) in options().into_iter().enumerate() {
        let container = Container::from_bytes(encode(&sample(&mut rng, &[vec![80, 640]]), &o)).unwrap();
        for turn in 0..4 {
            let Some(mut t) = load(&container, "w0") else { continue };
            let plane = &t.plan.packed.planes[0];
            let part = [&plane.data, &plane.data, &plane.offsets, &plane.side][turn].clone();
            damage(&mut rng, &mut t.packed[part]);
            let kind = [OutputKind::F16, OutputKind::BF16][(i + turn) % 2];
            let inputs = Inputs::new(&mut rng, kind, [3, 11, 20, 64, 128][(i + turn) % 5], 640, 2.0);
            let seen = damaged(t, &inputs, DEVICES[turn % 2], turn as u64, &format!("{o:?}"));
            let (more, others) = seen.unwrap_or_default();
            found += more;
            unseen += others;
        }
    }
    assert!(found > 200 && unseen > 1000, "{found} {unseen}");
}

/// Subnormal vectors, and large ones: what kernels multiply them by is taken away again, exactly.
#[test]
fn vectors_of_any_size_by_kernels_of_many() {
    let mut rng = StdRng::seed_from_u64(91);
    let int8 = EncodeOptions { scheme: Scheme::Int8(Granularity::Row), ..options().swap_remove(0) };
    let container = Container::from_bytes(encode(&sample(&mut rng, &[vec![32, 320]]), &int8)).unwrap();
    let mut tensors = [load(&container, "w0").unwrap()];
    let plan = tensors[0].plan.clone();
    for (kind, exponents) in [(OutputKind::F16, [-14, 4]), (OutputKind::BF16, [-100, 40])] {
        for (exponent, count) in exponents.into_iter().zip([5, 48]) {
            let inputs = Inputs::new(&mut rng, kind, count, 320, 2f32.powi(exponent));
            let (got, used) = multiply(&mut tensors, &inputs, None, &|s| 0..s, DEVICES[0], 1);
            compare(&container, &plan, &inputs, None, 0..32, &got[0], &format!("{used:?} 2^{exponent}"));
        }
        for wrong in [f32::INFINITY, f32::NAN] {
            let mut inputs = Inputs::new(&mut rng, kind, 9, 320, 1.0);
            let at = inputs.off + (4 * inputs.stride + 200) * 2;
            inputs.memory[at..at + 2].copy_from_slice(&bits(kind, wrong));
            let (got, _) = multiply(&mut tensors, &inputs, None, &|s| 0..s, DEVICES[0], 1);
            let finite = |bits: &u16| number(kind, &bits.to_le_bytes()).is_finite();
            for (v, results) in got[0].chunks(32).enumerate() {
                let right = if v == 4 { results.iter().all(|y| !finite(y)) } else { results.iter().all(finite) };
                assert!(right, "{kind:?}: vector {v} beside one with {wrong}");
            }
        }
    }
}

/// The kernels of a matrix are a fact of its size; the most vectors that it takes, of its encoding and of the device's memory.
#[test]
fn matrices_go_to_kernels_by_their_size() {
    let mut rng = StdRng::seed_from_u64(92);
    let quads = options().swap_remove(0);
    let pairs = EncodeOptions { layout: Some(Layout::Pair), table_bits: Some(12), ..quads.clone() };
    let blocks = EncodeOptions { scheme: Scheme::Int8(Granularity::Block(64)), ..quads.clone() };
    let source = sample(&mut rng, &[vec![64, 512], vec![10240, 2048], vec![200, 192]]);
    let container = Container::from_bytes(encode(&source, &quads)).unwrap();
    let tensors = ["w0", "w1", "w2"].map(|name| load(&container, name).unwrap());
    let names = |vectors: usize, limits: Limits| -> Vec<(String, u32)> {
        let (items, _) = items(&tensors, OutputKind::BF16, None, &|s| 0..s, &|_| abi::PART_RESULT);
        let launches = product_launches(&items, vectors, limits).unwrap();
        launches.iter().map(|l| (l.kernel.rsplit('_').next().unwrap().to_owned(), l.cluster)).collect()
    };
    let [device, _] = DEVICES;
    let launches =
        |names: &[(&str, u32)]| names.iter().map(|&(name, cluster)| (name.to_owned(), cluster)).collect::<Vec<_>>();
    assert_eq!(names(16, device), launches(&[("many16", 2), ("16", 1)]));
    assert_eq!(names(8, device), launches(&[("8", 1)]));
    // The first and the last one have few tiles in a strip, all of which can be at work at once.
    assert_eq!(names(32, device), launches(&[("many32", 2), ("many32", 3), ("many32", 8)]));
    assert_eq!(names(64, device), launches(&[("many64", 2), ("many64", 3), ("many64", 8)]));
    assert_eq!(names(128, device), launches(&[("many128", 1), ("many128", 3), ("many128", 8)]));
    assert_eq!(names(16, LARGE), launches(&[("16", 1)]));
    let planned = |options: &EncodeOptions| {
        let source = sample(&mut StdRng::seed_from_u64(93), &[vec![64, 512]]);
        let container = Container::from_bytes(encode(&source, options)).unwrap();
        Loaded::new(&container.bytes_of("w0", &oracle()).unwrap()).unwrap().plan
    };
    assert_eq!(most_vectors(&planned(&quads), device), 128);
    assert_eq!(most_vectors(&planned(&quads), LARGE), FEW_VECTORS);
    assert_eq!(most_vectors(&planned(&pairs), device), FEW_VECTORS);
    assert_eq!(most_vectors(&planned(&blocks), device), FEW_VECTORS);
    // A ring of 64 vectors leaves as much room for chunks as one of 32, which has twice the slots; one of 128 is larger.
    let wide = planned(&EncodeOptions { tile: Some(512), ..quads.clone() });
    let room = |kilobytes: usize| Limits { shared_per_block: kilobytes << 10, ..device };
    let mut most: Vec<usize> = (40..=200).map(|kilobytes| most_vectors(&wide, room(kilobytes))).collect();
    assert!(most.is_sorted());
    most.dedup();
    assert_eq!(most, [FEW_VECTORS, 64, 128]);
    let bytes = EncodeOptions { layout: Some(Layout::Byte), ..quads };
    assert_eq!(most_vectors(&planned(&bytes), device), 0);
}
