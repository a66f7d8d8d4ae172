//! Epilogues of launches of products: an RMSNorm, gates, a residual and gains.

use super::*;
use crate::gpu::Activation;

/// The steps of an epilogue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps {
    pub norm: bool,
    pub gated: bool,
    pub residual: bool,
    pub scaled: bool,
    pub activation: Activation,
}

/// Memory for all of it.
pub struct Buffers {
    squared: Inputs,
    residual: Buffer,
    gain: Buffer,
    scaled: Buffer,
    stash: Buffer,
    arrivals: Buffer,
}

const EPSILON: f32 = 1e-5;
const FACTOR: f32 = 4.0;
const GAIN_SCALE: f32 = 0.25;
const GAIN_OFFSET: f32 = 1.0;
const RESIDUAL_SCALE: f32 = 0.22;

fn random(rng: &mut StdRng, kind: OutputKind, count: usize) -> Buffer {
    let bytes: Vec<u8> = (0..count).flat_map(|_| bits(kind, rng.random_range(-2.0..2.0))).collect();
    Buffer::from(&bytes[..])
}

impl Buffers {
    pub fn new(rng: &mut StdRng, inputs: &Inputs, rows: usize, cols: usize) -> Self {
        let (kind, results) = (inputs.kind, rows * inputs.count);
        let mut squared = Inputs::new(rng, kind, inputs.count, cols, 3.0);
        // They lie as the vectors to multiply with do.
        while (squared.stride, squared.off) != (inputs.stride, inputs.off) {
            squared = Inputs::new(rng, kind, inputs.count, cols, 3.0);
        }
        let mut scaled = Buffer::new(results * 2 + 2 * GUARD);
        scaled.fill(POISON);
        let mut stash = Buffer::new(results * 8);
        stash.fill(POISON);
        let mut arrivals = Buffer::new(rows.div_ceil(16) * 4);
        arrivals.fill(0);
        let (residual, gain) = (random(rng, kind, results), random(rng, kind, rows));
        Self { squared, residual, gain, scaled, stash, arrivals }
    }
}

fn u16s(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
}

/// Results, and those that are scaled.
pub fn multiply_with_epilogue(
    tensors: &mut [Loaded],
    inputs: &Inputs,
    bias: Option<&Buffer>,
    steps: Steps,
    buffers: &mut Buffers,
    limits: Limits,
    seed: u64,
) -> (Vec<u16>, Vec<u16>, BTreeSet<String>) {
    let part = |i: usize| if steps.gated { [abi::PART_GATE, abi::PART_UP][i % 2] } else { abi::PART_RESULT };
    let (items, rows) = items(tensors, inputs.kind, bias, &|s| 0..s, &part);
    let mut out = Buffer::new(rows * inputs.count * 2 + 2 * GUARD);
    out.fill(POISON);
    let cols = tensors[0].plan.matrix.2;
    let (launches, kernels) = launches(&items, inputs.count, limits);
    let Buffers { squared, residual, gain, scaled, stash, arrivals } = buffers;
    let places = [
        squared.memory.address() + squared.off as u64,
        residual.address(),
        gain.address(),
        scaled.address() + GUARD as u64,
        stash.address(),
        arrivals.address(),
    ];
    let set = |params: &mut abi::ProductBatch| {
        params.activation = steps.activation as u32;
        if steps.norm {
            params.squared = places[0];
            params.epsilon = EPSILON.to_bits();
            params.norm_factor = FACTOR.to_bits();
            params.share = (1.0 / cols as f32).to_bits();
        }
        if steps.residual {
            params.residual = places[1];
            params.residual_scale = RESIDUAL_SCALE.to_bits();
        }
        if steps.scaled {
            params.gain = places[2];
            params.scaled = places[3];
            params.gain_scale = GAIN_SCALE.to_bits();
            params.gain_offset = (GAIN_OFFSET * GAIN_SCALE).to_bits();
        }
        if steps.gated {
            params.stash = places[4];
            params.arrivals = places[5];
        }
    };
    let mut more = vec![
        Memory::read::<u8>(&squared.memory),
        // Another launch may have written them: loads of steps never changes would be mistakes.
        Memory::write::<u8>(residual),
        Memory::write::<u8>(gain),
        Memory::write::<u8>(scaled),
        Memory::write::<u8>(stash),
        Memory::write::<u8>(arrivals),
    ];
    more.extend(bias.map(|b| Memory::read::<u8>(b)));
    run(&launches, tensors, inputs, &mut out, more, set, seed);
    for memory in [&out, &buffers.scaled] {
        let guards = memory[..GUARD].iter().chain(&memory[memory.len() - GUARD..]);
        assert!(guards.copied().all(|b| b == POISON), "{kernels:?} writes elsewhere");
    }
    assert!(buffers.arrivals.iter().all(|&b| b == 0), "{kernels:?}: the next launch would begin in the middle");
    let results = rows * inputs.count * 2;
    (u16s(&out[GUARD..GUARD + results]), u16s(&buffers.scaled[GUARD..GUARD + results]), kernels)
}

/// The error function, by Simpson's rule.
fn erf(x: f64) -> f64 {
    const STEPS: usize = 2000;
    let each = x.abs().min(6.0) / STEPS as f64;
    let weight = |i: usize| if i == 0 || i == STEPS { 1.0 } else { [2.0, 4.0][i % 2] };
    let sum: f64 = (0..=STEPS).map(|i| weight(i) * (-(i as f64 * each).powi(2)).exp()).sum();
    (sum * each / 3.0 * 2.0 / std::f64::consts::PI.sqrt()).copysign(x)
}

fn activated(activation: Activation, v: f64) -> f64 {
    match activation {
        Activation::None => v,
        Activation::Silu => v / (1.0 + (-v).exp()),
        Activation::GeluTanh => {
            0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh())
        }
        Activation::Gelu => 0.5 * v * (1.0 + erf(v / 2f64.sqrt())),
        Activation::Relu => v.max(0.0),
        Activation::ReluSquared => v.max(0.0).powi(2),
    }
}

/// The exact value of one result.
fn exact(
    weights: &[Vec<f64>],
    inputs: &Inputs,
    buffers: &Buffers,
    bias: &Buffer,
    steps: Steps,
    (vector, row): (usize, usize),
    (rows, cols): (usize, usize),
) -> f64 {
    let norm = if steps.norm {
        let squares: f64 = (0..cols).map(|c| buffers.squared.get(vector, c).powi(2)).sum();
        f64::from(FACTOR) / (squares / cols as f64 + f64::from(EPSILON)).sqrt()
    } else {
        1.0
    };
    let product = |w: &[f64]| {
        let sum: f64 = (0..cols).map(|c| w[row * cols + c] * inputs.get(vector, c)).sum();
        sum * norm + number(inputs.kind, &bias[2 * row..])
    };
    let mut result = activated(steps.activation, product(&weights[0]));
    if steps.gated {
        result *= product(&weights[1]);
    }
    if steps.residual {
        result *= f64::from(RESIDUAL_SCALE);
        result += number(inputs.kind, &buffers.residual[2 * (vector * rows + row)..]);
    }
    result
}

fn rate(bits: f64, huffman: bool) -> EncodeOptions {
    super::super::rate::options()
        .into_iter()
        .find(|o| {
            (o.coder == crate::coder::Coder::Huffman) == huffman
                && matches!(o.scheme, Scheme::Rate(r) if r.bits.get() >= bits)
        })
        .unwrap()
}

/// A case of epilogues: two matrices of a shape, and vectors.
struct Case {
    steps: Steps,
    options: EncodeOptions,
    shape: (usize, usize),
    kind: OutputKind,
    count: usize,
    seed: u64,
}

impl Case {
    /// Compares results with exact ones, and results in another order of threads, and on the second of two devices, with each other. Returns the kernels
    /// of the first device; none where no kernel multiplies with the matrices.
    fn check(&self, rng: &mut StdRng, devices: [Limits; 2]) -> BTreeSet<String> {
        let Self { steps, kind, count, seed, .. } = *self;
        let (rows, cols) = self.shape;
        let source = sample(rng, &[vec![rows, cols], vec![rows, cols]]);
        let container = Container::from_bytes(encode(&source, &self.options)).unwrap();
        let mut tensors = Vec::new();
        let mut weights = Vec::new();
        for name in ["w0", "w1"].into_iter().take(1 + usize::from(steps.gated)) {
            let Some(t) = Loaded::new(&container.bytes_of(name, &oracle()).unwrap()) else { continue };
            if can_fuse(&t.plan).is_none() {
                let bytes = container.read_as(name, Dtype::F32, &oracle()).unwrap();
                let floats = bytes.as_chunks::<4>().0;
                weights.push(floats.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect::<Vec<_>>());
                tensors.push(t);
            }
        }
        if tensors.len() < 1 + usize::from(steps.gated) {
            return BTreeSet::new();
        }
        // Squares get smaller inputs, so that nothing is beyond the largest f16.
        let size = if steps.activation == Activation::ReluSquared { 0.05 } else { 0.5 };
        let inputs = Inputs::new(rng, kind, count, cols, size);
        let bias = random(rng, kind, rows);
        let mut buffers = Buffers::new(rng, &inputs, rows, cols);
        let mut run = |limits, seed| {
            multiply_with_epilogue(&mut tensors, &inputs, Some(&bias), steps, &mut buffers, limits, seed)
        };
        let (y, scaled, used) = run(devices[0], seed);
        // Results depend neither on the order of blocks nor on the device's limits.
        let again = run(devices[0], seed + 1);
        assert!((&y, &scaled) == (&again.0, &again.1), "{used:?}: blocks in another order");
        let elsewhere = run(devices[1], seed);
        assert!((&y, &scaled) == (&elsewhere.0, &elsewhere.1), "{used:?} and {:?}", elsewhere.2);
        for (vector, row) in (0..count).flat_map(|vector| (0..rows).map(move |row| (vector, row))) {
            let at = vector * rows + row;
            let want = exact(&weights, &inputs, &buffers, &bias, steps, (vector, row), (rows, cols));
            let got = number(kind, &y[at].to_le_bytes());
            let last = if kind == OutputKind::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
            let far = (got - want).abs();
            assert!(
                far <= want.abs() * last * 1.01 + 2e-3 * (1.0 + want.abs()) / 16.0,
                "{used:?} {steps:?} {:?}: ({vector}, {row}): {got}, not {want}",
                self.options
            );
            if steps.scaled {
                let gain = number(kind, &buffers.gain[2 * row..]);
                let by = (gain as f32).mul_add(GAIN_SCALE, GAIN_OFFSET * GAIN_SCALE);
                let want = bits(kind, got as f32 * by);
                assert_eq!(scaled[at].to_le_bytes(), want, "{used:?}: ({vector}, {row})");
            }
        }
        used
    }
}

#[test]
fn norms_gates_residuals_and_gains() {
    let mut rng = StdRng::seed_from_u64(82);
    let all = [
        Steps { norm: true, ..Steps::default() },
        Steps { residual: true, scaled: true, ..Steps::default() },
        Steps { norm: true, gated: true, activation: Activation::Silu, ..Steps::default() },
        Steps { norm: true, gated: true, residual: true, scaled: true, activation: Activation::Silu },
        Steps { norm: true, gated: true, activation: Activation::GeluTanh, ..Steps::default() },
        Steps { gated: true, activation: Activation::Gelu, ..Steps::default() },
        Steps { norm: true, activation: Activation::ReluSquared, ..Steps::default() },
        Steps { activation: Activation::Relu, residual: true, ..Steps::default() },
        Steps { gated: true, residual: true, ..Steps::default() },
    ];
    let mut kernels = BTreeSet::new();
    for (i, steps) in all.into_iter().enumerate() {
        for (j, options) in all_options().into_iter().enumerate().skip(i % 3).step_by(3) {
            let case = Case {
                steps,
                options,
                // The last strip is not whole, and neither are the last columns.
                shape: [(150, 300), (64, 640)][j % 2],
                kind: [OutputKind::F16, OutputKind::BF16][(i + j / 3) % 2],
                count: [1, 16, 3][j % 3],
                seed: 2 * j as u64,
            };
            kernels.extend(case.check(&mut rng, [[LARGE, SMALL, ROOMY][j % 3], LIMITS]));
        }
    }
    assert!(kernels.len() > 20, "{kernels:?}");
}

/// Kernels of many vectors do norms of few vectors, and all else of up to 128.
#[test]
fn epilogues_of_many_vectors() {
    let mut rng = StdRng::seed_from_u64(86);
    let all = [
        (Steps { norm: true, ..Steps::default() }, 7),
        (Steps { residual: true, scaled: true, ..Steps::default() }, 33),
        (Steps { norm: true, gated: true, activation: Activation::Silu, ..Steps::default() }, 16),
        (Steps { norm: true, gated: true, residual: true, scaled: true, activation: Activation::Silu }, 3),
        (Steps { gated: true, activation: Activation::Gelu, ..Steps::default() }, 24),
        (Steps { gated: true, residual: true, activation: Activation::Silu, ..Steps::default() }, 70),
        (Steps { norm: true, activation: Activation::ReluSquared, ..Steps::default() }, 9),
        (Steps { gated: true, residual: true, ..Steps::default() }, 64),
    ];
    let mut kernels = BTreeSet::new();
    for (i, (steps, count)) in all.into_iter().enumerate() {
        for (j, options) in many::options().into_iter().enumerate().skip(i % 4).step_by(4) {
            let case = Case {
                steps,
                options,
                shape: [(150, 300), (64, 640)][j / 4 % 2],
                kind: [OutputKind::F16, OutputKind::BF16][(i + j / 4) % 2],
                count,
                seed: 2 * j as u64,
            };
            kernels.extend(case.check(&mut rng, many::DEVICES));
        }
    }
    assert!(kernels.len() >= 12 && kernels.iter().all(|k| k.contains("_many")), "{kernels:?}");
}

/// A damaged chunk makes steps its row gives NaN, and nothing else.
#[test]
fn damaged_gates_are_seen_in_their_rows() {
    let mut rng = StdRng::seed_from_u64(83);
    let mut found = 0;
    for turn in 0..8 {
        let source = sample(&mut rng, &[vec![96, 640], vec![96, 640]]);
        let container = Container::from_bytes(encode(&source, &rate(3.0, turn % 2 == 0))).unwrap();
        let load = |name| Loaded::new(&container.bytes_of(name, &oracle()).unwrap()).unwrap();
        let mut tensors = [load("w0"), load("w1")];
        let hit = turn / 2 % 2;
        let data = tensors[hit].plan.packed.planes[0].data.clone();
        let middle = (data.start + data.end) / 2;
        tensors[hit].packed[middle..middle + 32].iter_mut().for_each(|b| *b ^= 0xFF);
        let inputs = Inputs::new(&mut rng, OutputKind::BF16, 2, 640, 0.5);
        let mut buffers = Buffers::new(&mut rng, &inputs, 96, 640);
        let activation = Activation::ALL[turn % Activation::ALL.len()];
        let steps = Steps { norm: true, gated: true, activation, ..Steps::default() };
        let limits = [SMALL, LARGE][turn / 4];
        let (y, _, used) =
            multiply_with_epilogue(&mut tensors, &inputs, None, steps, &mut buffers, limits, turn as u64);
        let status = tensors[hit].status[0];
        assert_eq!(tensors[1 - hit].status, [abi::STATUS_GOOD]);
        if status == abi::STATUS_GOOD {
            continue;
        }
        found += 1;
        let nan = |row: usize| number(OutputKind::BF16, &y[row].to_le_bytes()).is_nan();
        let Method::Tiles(tiles) = &tensors[hit].plan.planes[0] else { unreachable!() };
        let strip = status as usize / tiles.geometry.tiles();
        assert!((strip * 16..strip * 16 + 16).all(nan), "{used:?}: strip {strip} has a damaged chunk");
        assert!((0..strip * 16).all(|row| !nan(row)), "{used:?}: strips before {strip} are sound");
    }
    assert!(found >= 4, "{found}");
}
