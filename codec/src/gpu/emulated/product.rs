//! Products of vectors with compressed weights, against exact sums of what the oracle decodes.

use std::collections::BTreeSet;

use super::*;
use crate::gpu::plan::{
    MOST_VECTORS, ProductLaunch, ProductOutput, ProductTiles, can_fuse, many_launches, most_vectors, product_launches,
};
use half::{bf16, f16};

mod columns;
mod epilogue;
mod many;
mod random;
mod routed;

/// Another device than that of the other tests: blocks of few warps, and one with room for blocks decoded early.
const ROOMY: Limits =
    Limits { multiprocessors: 3, shared_per_block: 96 << 10, shared_per_multiprocessor: 200 << 10, many: false };

/// A large device: blocks have a strip each, which is decoded before the vectors are there.
const LARGE: Limits =
    Limits { multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10, many: false };

/// A device on which the same chunks are many.
const SMALL: Limits = Limits { multiprocessors: 1, shared_per_block: 46 << 10, ..LIMITS };

fn number(kind: OutputKind, bytes: &[u8]) -> f64 {
    let bits = u16::from_le_bytes(bytes[..2].try_into().unwrap());
    if kind == OutputKind::F16 { f16::from_bits(bits).to_f64() } else { bf16::from_bits(bits).to_f64() }
}

pub fn bits(kind: OutputKind, value: f32) -> [u8; 2] {
    if kind == OutputKind::F16 { f16::from_f32(value).to_le_bytes() } else { bf16::from_f32(value).to_le_bytes() }
}

/// Vectors, `stride` elements apart, at `off` bytes behind a multiple of 256.
pub struct Inputs {
    pub kind: OutputKind,
    pub count: usize,
    pub stride: usize,
    pub off: usize,
    pub memory: Buffer,
}

impl Inputs {
    pub fn new(rng: &mut StdRng, kind: OutputKind, count: usize, cols: usize, size: f32) -> Self {
        let (stride, off) =
            (cols + rng.random_range(0..3) * 8 + usize::from(rng.random::<bool>()), 2 * rng.random_range(0..2));
        let mut memory = Buffer::new(off + stride * count * 2);
        // The elements between vectors are no numbers.
        memory.fill(0xFF);
        let mut inputs = Self { kind, count, stride, off, memory };
        for v in 0..count {
            for c in 0..cols {
                let at = inputs.off + (v * stride + c) * 2;
                inputs.memory[at..at + 2].copy_from_slice(&bits(kind, rng.random_range(-size..size)));
            }
        }
        inputs
    }

    fn get(&self, vector: usize, col: usize) -> f64 {
        number(self.kind, &self.memory[self.off + (vector * self.stride + col) * 2..])
    }
}

/// The work of multiplying with all rows of `strips` of each tensor, and how many of a vector's results are before the end of all.
fn items<'a>(
    tensors: &'a [Loaded],
    kind: OutputKind,
    bias: Option<&Buffer>,
    strips: &dyn Fn(usize) -> Range<usize>,
    part: &dyn Fn(usize) -> u32,
) -> (Vec<ProductTiles<'a>>, usize) {
    let (mut items, mut before) = (Vec::new(), 0);
    for (i, t) in tensors.iter().enumerate() {
        let s = strips(t.plan.strips());
        let rows = t.plan.first_row(s.end) - t.plan.first_row(s.start);
        let tiles = t.in_tiles(0, s, kind);
        let bias = bias.map_or(0, Buffer::address);
        let product = ProductOutput { bias, before, stride: rows as u32, place: 0, part: part(i), vector: 0 };
        before += if product.part == abi::PART_GATE { 0 } else { rows as u32 };
        items.push(ProductTiles { tiles, product });
    }
    (items, before as usize)
}

/// The launches of items, and their kernels' names. On devices that have kernels of many vectors these do all that they can, though it be little.
pub fn launches(items: &[ProductTiles<'_>], count: usize, limits: Limits) -> (Vec<ProductLaunch>, BTreeSet<String>) {
    let most = *MOST_VECTORS.iter().find(|&&m| m >= count && (m > 1 || !limits.many)).unwrap();
    let mut launches = Vec::new();
    for items in items.chunk_by(|a, b| a.key() == b.key()) {
        let some = if limits.many { many_launches } else { product_launches };
        launches.extend(some(items, most, limits).unwrap());
    }
    let kernels = launches.iter().map(|l| l.kernel.clone()).collect();
    (launches, kernels)
}

/// Runs launches with these vectors and `more` memory, results at `y`. `set` fills in what else there is to be done.
fn run(
    launches: &[ProductLaunch],
    tensors: &mut [Loaded],
    inputs: &Inputs,
    y: &mut Buffer,
    more: Vec<Memory<'_>>,
    set: impl Fn(&mut abi::ProductBatch),
    seed: u64,
) {
    let mut memory = more;
    let at = y.address() + GUARD as u64;
    for t in &mut *tensors {
        memory.push(Memory::read::<u8>(&t.packed));
        memory.push(Memory::read::<u32>(&t.tables[0]));
        memory.push(Memory::write::<u32>(&mut t.status));
    }
    memory.push(Memory::write::<u8>(y));
    // Vectors are what another launch may write: read with ordinary loads.
    let mut vectors = Buffer::from(&inputs.memory[..]);
    let x = vectors.address() + inputs.off as u64;
    memory.push(Memory::write::<u8>(&mut vectors));
    for launch in launches {
        let mut params = launch.params.clone();
        params.vectors = inputs.count as u32;
        params.x = x;
        params.x_stride = inputs.stride as u64;
        params.y = at;
        params.vector &=
            u32::from(params.x.is_multiple_of(16) && (inputs.count == 1 || inputs.stride.is_multiple_of(8)));
        set(&mut params);
        let run =
            Launch::new(launch.module, &launch.kernel).grid(launch.grid).threads(launch.threads).shared(launch.shared);
        run.cluster(launch.cluster)
            .seed(seed)
            .overlaps(true)
            .run(params.as_bytes(), &memory)
            .unwrap_or_else(|e| panic!("{}: {e}", launch.kernel));
    }
}

/// The results, as bits, of all rows of `strips` of each tensor.
fn multiply(
    tensors: &mut [Loaded],
    inputs: &Inputs,
    bias: Option<&Buffer>,
    strips: &dyn Fn(usize) -> Range<usize>,
    limits: Limits,
    seed: u64,
) -> (Vec<Vec<u16>>, BTreeSet<String>) {
    // Another launch may have written it: as memory that is written to, it is not to be read by loads of what never changes.
    let mut bias = bias.map(|bias| Buffer::from(&bias[..]));
    let (items, rows) = items(tensors, inputs.kind, bias.as_ref(), strips, &|_| abi::PART_RESULT);
    let mut out = Buffer::new(rows * inputs.count * 2 + 2 * GUARD);
    out.fill(POISON);
    let (launches, kernels) = launches(&items, inputs.count, limits);
    let sizes: Vec<usize> = items.iter().map(|j| j.product.stride as usize).collect();
    let more = bias.as_mut().map(|bias| Memory::write::<u8>(bias)).into_iter().collect();
    run(&launches, tensors, inputs, &mut out, more, |_| (), seed);
    assert!(out[..GUARD].iter().chain(&out[out.len() - GUARD..]).all(|&b| b == POISON), "{kernels:?} writes elsewhere");
    let mut at = GUARD;
    let mut results = Vec::new();
    for rows in sizes {
        let bytes = &out[at..at + rows * inputs.count * 2];
        results.push(bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect());
        at += bytes.len();
    }
    (results, kernels)
}

/// Compares with sums in f64: within half a unit of the result's last place, and of f32's for each term. Where columns have factors, each element of a
/// vector times one is rounded, too.
pub fn compare(
    container: &Container,
    plan: &TensorPlan,
    inputs: &Inputs,
    bias: Option<&Buffer>,
    rows: Range<usize>,
    got: &[u16],
    what: &str,
) {
    let weights = container.read_as(plan.name(), Dtype::F32, &oracle()).unwrap();
    let weight = |i: usize| f64::from(f32::from_le_bytes(weights[4 * i..][..4].try_into().unwrap()));
    let cols = plan.matrix.2;
    let offset = f64::from(plan.tensor.symbol_scales().unwrap().offset == 0.0);
    for v in 0..inputs.count {
        for (i, row) in rows.clone().enumerate() {
            let term = |c: usize| weight(row * cols + c) * inputs.get(v, c);
            let (mut sum, mut size) = (0..cols).map(term).fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            // Half a step of each element goes in and out again, if levels are symbols.
            let step = (0..cols).map(|c| weight(row * cols + c).abs()).fold(0.0, f64::max);
            size += offset * step * (0..cols).map(|c| inputs.get(v, c).abs()).sum::<f64>();
            if let Some(bias) = bias {
                let b = number(inputs.kind, &bias[2 * i..]);
                sum += b;
                size += b.abs();
            }
            let result = number(inputs.kind, &got[v * rows.len() + i].to_le_bytes());
            let last = if inputs.kind == OutputKind::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
            let rounded = if plan.tensor.has_columns() { size * last } else { 0.0 };
            let bound = rounded + sum.abs() * last * 1.001 + size * (cols + 8) as f64 * 2f64.powi(-23) + 2f64.powi(-24);
            assert!(
                (result - sum).abs() <= bound,
                "{what}: row {row}, vector {v}: {result}, not {sum} (bound {bound})"
            );
        }
    }
}

fn all_options() -> Vec<EncodeOptions> {
    let int8 = [Granularity::Row, Granularity::Tensor, Granularity::Block(64), Granularity::Block(128)]
        .into_iter()
        .flat_map(|g| options().into_iter().step_by(2).map(move |o| EncodeOptions { scheme: Scheme::Int8(g), ..o }));
    int8.chain(super::rate::options()).collect()
}

#[test]
fn products_are_those_of_the_decoded_weights() {
    let mut rng = StdRng::seed_from_u64(80);
    let mut kernels = BTreeSet::new();
    for (i, o) in all_options().into_iter().enumerate() {
        let source = sample(&mut rng, &[vec![208, 512], vec![37, 1130], vec![3, 20, 192], vec![40, 4160]]);
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        for (j, (n, limits)) in [(1, SMALL), (5, ROOMY), (1, LARGE), (16, LIMITS), (8, SMALL)].into_iter().enumerate() {
            let kind = [OutputKind::F16, OutputKind::BF16][(i + j) % 2];
            // The last one is of more columns than small devices have room for sums of many vectors.
            for name in ["w0", "w1", "w2", "w3"].into_iter().take(if n == 1 { 4 } else { 3 }) {
                let parts = container.bytes_of(name, &oracle()).unwrap();
                let Some(t) = Loaded::new(&parts) else { continue };
                if can_fuse(&t.plan).is_some() {
                    continue;
                }
                let all = t.plan.rows();
                let inputs = Inputs::new(&mut rng, kind, n, t.plan.matrix.2, 2.0);
                let bias: Vec<u8> = (0..all).flat_map(|_| bits(kind, rng.random_range(-1.0..1.0))).collect();
                let bias = (n != 5).then(|| Buffer::from(&bias[..]));
                let plan = t.plan.clone();
                let mut tensors = [t];
                let (got, used) = multiply(&mut tensors, &inputs, bias.as_ref(), &|s| 0..s, limits, i as u64);
                assert_eq!(tensors[0].status, [abi::STATUS_GOOD]);
                compare(&container, &plan, &inputs, bias.as_ref(), 0..all, &got[0], &format!("{used:?} {name} {o:?}"));
                // Wherever it is launched, and in whatever order threads run.
                let other = if n == 1 { ROOMY } else { LIMITS };
                let (again, more) = multiply(&mut tensors, &inputs, bias.as_ref(), &|s| 0..s, other, i as u64 + 1);
                assert!(got == again, "{used:?} and {more:?} differ: {name} {o:?}");
                kernels.extend(used);
                kernels.extend(more);
            }
        }
    }
    assert_eq!(kernels.len(), 80, "{kernels:?}");
}

/// Multiplies matrices of one launch with a vector each, in any order, and with one matrix twice. The results are those of the matrices alone; how
/// many there were.
fn with_other_vectors(rng: &mut StdRng, o: &EncodeOptions, kind: OutputKind, limits: Limits, seed: u64) -> usize {
    let source = sample(rng, &[vec![48, 515], vec![80, 515], vec![32, 515]]);
    let container = Container::from_bytes(encode(&source, o)).unwrap();
    let load = |name: &str| Loaded::new(&container.bytes_of(name, &oracle()).unwrap());
    let mut tensors: Vec<Loaded> = ["w0", "w1", "w2", "w1"].into_iter().filter_map(load).collect();
    if tensors.len() < 4 || tensors.iter().any(|t| can_fuse(&t.plan).is_some()) {
        return 0;
    }
    let inputs = Inputs::new(rng, kind, 4, 515, 2.0);
    let places = [2u32, 0, 3, 1];
    let (mut items, rows) = items(&tensors, kind, None, &|s| 0..s, &|_| abi::PART_RESULT);
    items.iter_mut().zip(places).for_each(|(item, vector)| item.product.vector = vector);
    let (launches, _) = launches(&items, 1, limits);
    let mut out = Buffer::new(rows * 2 + 2 * GUARD);
    out.fill(POISON);
    let own = |params: &mut abi::ProductBatch| (params.vectors, params.vector) = (1, 0);
    let sizes: Vec<usize> = items.iter().map(|j| j.product.stride as usize).collect();
    run(&launches, &mut tensors, &inputs, &mut out, Vec::new(), own, seed);
    let mut at = GUARD;
    for ((t, place), rows) in tensors.iter_mut().zip(places).zip(sizes) {
        let alone = Inputs {
            memory: inputs.memory.clone(),
            off: inputs.off + place as usize * inputs.stride * 2,
            count: 1,
            ..inputs
        };
        let (want, _) = multiply(std::slice::from_mut(t), &alone, None, &|s| 0..s, limits, 9);
        let got: Vec<u16> = out[at..at + rows * 2].as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        assert!(got == want[0], "{} of vector {place}: {o:?}", t.plan.name());
        at += rows * 2;
    }
    tensors.len()
}

#[test]
fn matrices_of_other_vectors_each() {
    let mut rng = StdRng::seed_from_u64(83);
    let mut compared = 0;
    for (i, o) in all_options().into_iter().enumerate() {
        let kind = [OutputKind::F16, OutputKind::BF16][i % 2];
        let limits = [SMALL, ROOMY, LARGE, LIMITS][i / 2 % 4];
        compared += with_other_vectors(&mut rng, &o, kind, limits, i as u64);
    }
    assert!(compared >= 60, "{compared}");
}

/// One vector's elements become integers, whatever they are.
#[test]
fn one_vector_of_any_size() {
    const COLS: usize = 2052;
    let mut rng = StdRng::seed_from_u64(82);
    let options = [
        EncodeOptions { scheme: Scheme::Int8(Granularity::Row), coder: Coder::Huffman, ..Default::default() },
        super::rate::options().swap_remove(0),
    ];
    for o in options {
        let source = sample(&mut rng, &[vec![48, COLS]]);
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        let sound = Loaded::new(&container.bytes_of("w0", &oracle()).unwrap()).unwrap();
        let plan = sound.plan.clone();
        let mut tensors = [sound];
        for kind in [OutputKind::F16, OutputKind::BF16] {
            let mut product = |element: &dyn Fn(usize) -> f32, limits| {
                let mut inputs = Inputs::new(&mut StdRng::seed_from_u64(1), kind, 1, COLS, 1.0);
                for c in 0..COLS {
                    inputs.memory[inputs.off + 2 * c..][..2].copy_from_slice(&bits(kind, element(c)));
                }
                let (got, used) = multiply(&mut tensors, &inputs, None, &|s| 0..s, limits, 3);
                assert!(used.iter().all(|k| k.ends_with("_1") || k.ends_with("_1_early")), "{used:?}");
                (inputs, got)
            };
            for limits in [SMALL, LARGE] {
                // Each element of another size; the smallest that there are; large ones, of which one is alone.
                let spread = |c: usize| (1.0 - (c % 3) as f32) * 2f32.powi(-((c % 29) as i32));
                let tiny = |c: usize| if kind == OutputKind::F16 { c as f32 * 6e-8 } else { c as f32 * 1e-40 };
                let lonely = |c: usize| if c == 333 { 900.0 } else { 1e-2 * (c as f32).sin() };
                for element in [&spread as &dyn Fn(usize) -> f32, &tiny, &lonely] {
                    let (inputs, got) = product(element, limits);
                    compare(&container, &plan, &inputs, None, 0..48, &got[0], "one vector");
                }
                assert!(product(&|_| 0.0, limits).1[0].iter().all(|&y| y & 0x7FFF == 0));
                for wrong in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                    let (_, got) = product(&|c| if c == 650 { wrong } else { 1.0 }, limits);
                    assert!(got[0].iter().all(|y| number(kind, &y.to_le_bytes()).is_nan()));
                }
            }
        }
    }
}

/// Multiplies with a tensor that is damaged, and compares with what its decoder finds and makes of it: how many rows were found to have a damaged
/// chunk, and how many were compared; `None` where a patch says what only decoders look at.
fn damaged(mut t: Loaded, inputs: &Inputs, limits: Limits, seed: u64, what: &str) -> Option<(usize, usize)> {
    let (rows, cols) = (t.plan.rows(), t.plan.matrix.2);
    let decoded = run_all(std::slice::from_mut(&mut t), OutputKind::F32).remove(0);
    t.status.fill(abi::STATUS_GOOD);
    let mut tensors = [t];
    let (got, used) = multiply(&mut tensors, inputs, None, &|s| 0..s, limits, seed);
    let status = tensors[0].status[0];
    let told = (status != abi::STATUS_GOOD).then_some(status);
    // Products take it on trust that a patch's change gives its value.
    let changes = items(&tensors, inputs.kind, None, &|s| 0..s, &|_| abi::PART_RESULT).0[0].tiles.tiles.tiling.changes;
    let trusted = changes && decoded.status.is_some() && told.is_none_or(|t| Some(t) > decoded.status);
    assert!(decoded.status == told || trusted, "{used:?} {what}: {:?}, {told:?}", decoded.status);
    if trusted {
        return None;
    }
    let weight = |i: usize| f64::from(f32::from_le_bytes(decoded.bytes[4 * i..][..4].try_into().unwrap()));
    let (tiles, per_matrix) = match &tensors[0].plan.planes[0] {
        Method::Tiles(tiles) => (tiles.geometry.tiles(), tiles.geometry.strips_per_matrix()),
        _ => unreachable!(),
    };
    let matrix_rows = tensors[0].plan.matrix.1;
    let first_bad = if status == abi::STATUS_GOOD { usize::MAX } else { status as usize / tiles };
    let (mut found, mut unseen) = (0, 0);
    for row in 0..rows {
        let strip = row / matrix_rows * per_matrix + row % matrix_rows / 16;
        let result = |v: usize| number(inputs.kind, &got[0][v * rows + row].to_le_bytes());
        if strip == first_bad {
            assert!((0..inputs.count).all(|v| result(v).is_nan()), "{used:?} {what}: row {row} has a damaged chunk");
            found += 1;
        } else if strip < first_bad {
            let term = |c: usize| weight(row * cols + c) * inputs.get(0, c);
            let (sum, size) = (0..cols).map(term).fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            let far = (result(0) - sum).abs();
            assert!(far <= size * 2f64.powi(-7) + 1e-3, "{used:?} {what}: row {row}: {}, not {sum}", result(0));
            unseen += 1;
        }
    }
    Some((found, unseen))
}

/// Largest weight of those that sums of f16 are exact enough for.
const ORDINARY: f32 = 100.0;

/// Multiplies with a tensor that may be damaged: the results are those of what is decoded, where that is ordinary numbers.
pub fn like_decoded(mut t: Loaded, rng: &mut StdRng, what: &str) {
    let kind = [OutputKind::F16, OutputKind::BF16][rng.random_range(0..2)];
    let count = [1, 3][rng.random_range(0..2)];
    let inputs = Inputs::new(rng, kind, count, t.plan.matrix.2, 2.0);
    let (limits, seed) = ([SMALL, LARGE][rng.random_range(0..2)], rng.random());
    let decoded = run_all(std::slice::from_mut(&mut t), OutputKind::F32).remove(0);
    let weights = decoded.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    if weights.into_iter().all(|w| w.abs() <= ORDINARY) {
        damaged(t, &inputs, limits, seed, what);
    } else {
        multiply(std::slice::from_mut(&mut t), &inputs, None, &|s| 0..s, limits, seed);
    }
}

/// Chunks of a damaged plane that decode are multiplied with as they are; others make their rows NaN, and are told.
#[test]
fn damage_shows_where_it_is() {
    let mut rng = StdRng::seed_from_u64(81);
    let (mut found, mut unseen) = (0, 0);
    for (i, o) in all_options().into_iter().enumerate() {
        let source = sample(&mut rng, &[vec![80, 640]]);
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        let parts = container.bytes_of("w0", &oracle()).unwrap();
        let Some(sound) = Loaded::new(&parts) else { continue };
        if can_fuse(&sound.plan).is_some() {
            continue;
        }
        let kind = [OutputKind::F16, OutputKind::BF16][i % 2];
        for turn in 0..8 {
            let mut t = Loaded::new(&parts).unwrap();
            let plane = &t.plan.packed.planes[0];
            let part = [&plane.data, &plane.data, &plane.offsets, &plane.side][turn % 4].clone();
            damage(&mut rng, &mut t.packed[part]);
            let inputs = Inputs::new(&mut rng, kind, [3, 1][turn / 4], sound.plan.matrix.2, 2.0);
            let limits = [SMALL, LARGE][turn % 2];
            let seen = damaged(t, &inputs, limits, turn as u64, &format!("{o:?}"));
            let (more, others) = seen.unwrap_or_default();
            found += more;
            unseen += others;
        }
    }
    assert!(found > 400 && unseen > 2000, "{found} {unseen}");
}
