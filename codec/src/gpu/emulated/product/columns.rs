//! Products with matrices whose columns have factors: those of the matrices without them, for vectors that are multiplied by the factors and rounded.

use std::sync::Arc;

use super::epilogue::{Buffers, Steps, multiply_with_epilogue};
use super::routed::{gathered, multiply_routed, of_matrix, some_routes};
use super::*;
use crate::gpu::Activation;
use crate::gpu::plan::routed_launches;
use crate::scheme::rate::{Bits, Rate};

/// A tensor with factors of columns, the same without them, and the factors of each of its matrices.
struct Pair {
    with: Loaded,
    without: Loaded,
    factors: Vec<Vec<f32>>,
}

impl Pair {
    /// A tensor of a container, if kernels multiply with it.
    fn new(container: &Container, name: &str) -> Option<Self> {
        let parts = container.bytes_of(name, &oracle()).unwrap();
        let stored = *parts.tensor.symbol_scales().filter(|s| s.columns)?;
        let with = Loaded::new(&parts).filter(|t| can_fuse(&t.plan).is_none())?;
        let mut plain = copy_of(&parts);
        let tensor = Arc::make_mut(&mut plain.tensor);
        let scales = tensor.scales.as_mut().unwrap();
        let factors = stored.factor_bytes();
        scales.columns = false;
        scales.segment.length -= factors;
        plain.scales = crate::AlignedBytes::copy_of(&parts.scales[factors as usize..]).unwrap();
        let all = stored.values(&parts.scales).columns.unwrap();
        Some(Self {
            with,
            without: Loaded::new(&plain).unwrap(),
            factors: all.chunks(stored.matrix.2).map(<[f32]>::to_vec).collect(),
        })
    }

    /// Compares the products of both; how many results there were, and which kernels.
    fn compare(
        &mut self,
        inputs: &Inputs,
        bias: Option<&Buffer>,
        limits: Limits,
        (strips, seed): (Range<usize>, u64),
    ) -> (usize, BTreeSet<String>) {
        let Self { with, without, factors } = self;
        let plan = with.plan.clone();
        let of = |t: &mut Loaded, inputs: &Inputs| {
            multiply(std::slice::from_mut(t), inputs, bias, &|_| strips.clone(), limits, seed)
        };
        let (got, used) = of(with, inputs);
        assert_eq!(with.status, [abi::STATUS_GOOD]);
        let rows = plan.first_row(strips.start)..plan.first_row(strips.end);
        let mut compared = 0;
        for (matrix, factors) in factors.iter().enumerate() {
            let own = (matrix * plan.matrix.1).max(rows.start)..((matrix + 1) * plan.matrix.1).min(rows.end);
            if own.is_empty() {
                continue;
            }
            let (want, others) = of(without, &inputs.times(factors));
            assert_eq!(used, others);
            for v in 0..inputs.count {
                let at = |row: usize| v * rows.len() + row - rows.start;
                let (got, want) = (&got[0][at(own.start)..at(own.end)], &want[0][at(own.start)..at(own.end)]);
                assert!(same(inputs.kind, got, want), "{used:?} {}: matrix {matrix}, vector {v}", plan.name());
                compared += got.len();
            }
        }
        (compared, used)
    }
}

/// Whether results are the same bits; those that are no numbers may be any.
fn same(kind: OutputKind, a: &[u16], b: &[u16]) -> bool {
    let nan = |bits: u16| number(kind, &bits.to_le_bytes()).is_nan();
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| a == b || (nan(a) && nan(b)))
}

impl Inputs {
    /// The vectors times factors of their elements, as rounded to their dtype.
    fn times(&self, factors: &[f32]) -> Self {
        let mut scaled = Self { memory: Buffer::from(&self.memory[..]), ..*self };
        for v in 0..self.count {
            for (c, factor) in factors.iter().enumerate() {
                let at = self.off + (v * self.stride + c) * 2;
                let product = bits(self.kind, self.get(v, c) as f32 * factor);
                scaled.memory[at..at + 2].copy_from_slice(&product);
            }
        }
        scaled
    }
}

fn encoded(rng: &mut StdRng, shapes: &[Vec<usize>], o: &EncodeOptions) -> Container {
    let source = sample(rng, shapes);
    let o = with_columns(rng, &source, o);
    Container::from_bytes(encode(&source, &o)).unwrap()
}

fn pairs(container: &Container) -> Vec<Pair> {
    container.infos().unwrap().iter().filter_map(|info| Pair::new(container, &info.name)).collect()
}

/// Some of the strips, or all of them.
fn some_strips(rng: &mut StdRng, strips: usize) -> Range<usize> {
    if rng.random() { rng.random_range(0..strips.div_ceil(2))..strips } else { 0..strips }
}

/// Whole blocks, widths that are none, stacks whose second matrix has its factors at any place, and more columns than a warp holds at once.
fn shapes() -> Vec<Vec<usize>> {
    vec![vec![208, 512], vec![37, 1130], vec![3, 20, 192], vec![2, 18, 100], vec![20, 4160]]
}

/// Encodings with the smallest steps, which have kernels of their own where columns hardly differ.
fn fine() -> impl Iterator<Item = EncodeOptions> {
    [Coder::Rans, Coder::Huffman].into_iter().flat_map(|coder| {
        let rate = Scheme::Rate(Rate { bits: Bits::new(6.0).unwrap(), trellis: false });
        let o = EncodeOptions {
            scheme: rate,
            coder,
            layout: Some(Layout::Pair),
            table_bits: Some(12),
            ..Default::default()
        };
        [0.01, 0.015, 0.02, 0.025].map(|step| EncodeOptions { step: Some(step), ..o.clone() })
    })
}

#[test]
fn factors_are_multiplied_into_vectors() {
    let mut rng = StdRng::seed_from_u64(120);
    let (mut kernels, mut compared) = (BTreeSet::new(), 0);
    let usual = super::super::rate::options();
    let (count, all) = (usual.len(), usual.into_iter().chain(fine()));
    for (i, o) in all.enumerate() {
        let source = sample(&mut rng, &shapes());
        let mut o = with_columns(&mut rng, &source, &o);
        if i >= count {
            o.columns.values_mut().flatten().for_each(|factor| *factor = factor.powf(0.05));
        }
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        for (j, mut pair) in pairs(&container).into_iter().enumerate() {
            let cols = pair.with.plan.matrix.2;
            let counts = [
                (1, SMALL),
                (1, LARGE),
                (5, ROOMY),
                (8, SMALL),
                (2, LARGE),
                (16, ROOMY),
                (9, LARGE),
                (1, ROOMY),
                (5, LIMITS),
                (3, LIMITS),
            ];
            for k in 0..if i < count { 4 } else { counts.len() } {
                let (n, limits) = counts[(i + j + 3 * k) % counts.len()];
                // The last matrix is too wide for small devices and many vectors.
                let limits = if cols > 4096 && n > 1 { LARGE } else { limits };
                let kind = [OutputKind::F16, OutputKind::BF16][(i + j + k / 2) % 2];
                let inputs = Inputs::new(&mut rng, kind, n, cols, 2.0);
                let strips = some_strips(&mut rng, pair.with.plan.strips());
                let rows = pair.with.plan.rows();
                let bias: Vec<u8> = (0..rows).flat_map(|_| bits(kind, rng.random_range(-1.0..1.0))).collect();
                let bias = (k == 1).then(|| Buffer::from(&bias[..]));
                let (results, used) = pair.compare(&inputs, bias.as_ref(), limits, (strips, (3 * i + k) as u64));
                compared += results;
                kernels.extend(used);
            }
        }
    }
    // Nearly all of the 80 that there are, and some of each mode and dtype.
    let modes: BTreeSet<&str> = kernels.iter().map(|k| k.split_once("16_").expect("a dtype").0).collect();
    assert!(kernels.len() >= 72 && modes.len() == 16 && compared > 100_000, "{compared} {kernels:?}");
}

/// The decoded weights and the vectors as they are, too: factors are where they belong.
#[test]
fn products_with_factors_are_those_of_the_decoded_weights() {
    let mut rng = StdRng::seed_from_u64(121);
    for (i, o) in super::super::rate::options().into_iter().enumerate().step_by(5) {
        let container = encoded(&mut rng, &shapes()[..4], &o);
        for (j, pair) in pairs(&container).into_iter().enumerate() {
            let kind = [OutputKind::F16, OutputKind::BF16][(i + j) % 2];
            let plan = pair.with.plan.clone();
            for (n, limits) in [(1, LARGE), (7, ROOMY)] {
                let inputs = Inputs::new(&mut rng, kind, n, plan.matrix.2, 2.0);
                let mut tensors = [Loaded {
                    plan: plan.clone(),
                    ..Loaded::any(&container.bytes_of(plan.name(), &oracle()).unwrap())
                }];
                let (got, used) = multiply(&mut tensors, &inputs, None, &|s| 0..s, limits, i as u64);
                compare(&container, &plan, &inputs, None, 0..plan.rows(), &got[0], &format!("{used:?} {o:?}"));
            }
        }
    }
}

/// Options of scheme `rate` that kernels of many vectors multiply with.
fn quads() -> Vec<EncodeOptions> {
    many::options().into_iter().filter(|o| matches!(o.scheme, Scheme::Rate(_))).collect()
}

#[test]
fn factors_are_multiplied_into_many_vectors() {
    let mut rng = StdRng::seed_from_u64(122);
    let (mut kernels, mut compared) = (BTreeSet::new(), 0);
    let counts = [64, 2, 17, 33, 1, 16, 9, 32, 8, 49];
    let mut turn = 0;
    for o in quads() {
        let container = encoded(&mut rng, &[vec![112, 512], vec![37, 1130], vec![3, 20, 192], vec![2, 18, 100]], &o);
        for mut pair in pairs(&container) {
            for k in 0..6 {
                let case = 6 * turn + k;
                let (kind, n) = ([OutputKind::F16, OutputKind::BF16][case % 2], counts[case / 2 % counts.len()]);
                let inputs = Inputs::new(&mut rng, kind, n, pair.with.plan.matrix.2, 2.0);
                let strips = some_strips(&mut rng, pair.with.plan.strips());
                let (results, used) = pair.compare(&inputs, None, many::DEVICES[turn % 2], (strips, turn as u64));
                kernels.extend(used);
                compared += results;
            }
            turn += 1;
        }
    }
    assert!(kernels.len() == 16 && compared > 50_000, "{compared} {kernels:?}");
}

/// Vectors that become infinite or vanish when they are multiplied, and some that are no numbers.
#[test]
fn factors_of_any_size_and_vectors_of_any() {
    let mut rng = StdRng::seed_from_u64(123);
    let rate = Rate { bits: Bits::new(4.0).unwrap(), trellis: false };
    let pairs_of = |layout| EncodeOptions {
        scheme: Scheme::Rate(rate),
        coder: Coder::Huffman,
        layout: Some(layout),
        step: Some(0.3),
        ..Default::default()
    };
    let mut compared = 0;
    for (i, layout) in [Layout::Pair, Layout::Quad].into_iter().enumerate() {
        let source = sample(&mut rng, &[vec![32, 320]]);
        let mut o = pairs_of(layout);
        o.columns
            .insert("w0".to_owned(), (0..320).map(|c| 2f32.powi(c % 61 - 30) * (1.0 + c as f32 / 320.0)).collect());
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        let mut pair = Pair::new(&container, "w0").unwrap();
        for kind in [OutputKind::F16, OutputKind::BF16] {
            for (j, (n, limits)) in [(1, LARGE), (1, SMALL), (8, ROOMY), (40, many::DEVICES[1])].into_iter().enumerate()
            {
                if limits.many && layout == Layout::Pair {
                    continue;
                }
                for wrong in [None, Some(f32::INFINITY), Some(f32::NAN)] {
                    let mut inputs = Inputs::new(&mut rng, kind, n, 320, 1.0);
                    for c in 0..320 {
                        // In one vector nothing is infinite, in others something is.
                        let power = if j % 2 == 0 { -30 } else { 0 };
                        let element = rng.random_range(-1.0f32..1.0) * 2f32.powi(power + (c % 7) * 3 - 9);
                        inputs.memory[inputs.off + 2 * c as usize..][..2].copy_from_slice(&bits(kind, element));
                    }
                    if let Some(wrong) = wrong {
                        inputs.memory[inputs.off + 2 * 77..][..2].copy_from_slice(&bits(kind, wrong));
                    }
                    compared += pair.compare(&inputs, None, limits, (0..2, (i + j) as u64)).0;
                }
            }
        }
    }
    assert!(compared > 5000, "{compared}");
}

/// Kernels of many vectors multiply bf16 by a power of two and by factors at once, but for factors that this would make infinite.
#[test]
fn factors_too_large_for_the_power_of_many_vectors() {
    let mut rng = StdRng::seed_from_u64(125);
    let mut compared = 0;
    // A power for each block of columns: the second and the last are multiplied apart, and the fourth has the largest that are not.
    let powers = [0, 48, 3, 46, 100];
    let of = |c: usize| 2f32.powi(powers[c / 64]);
    for o in quads() {
        // Weights grow with their factors, so that levels are the usual ones.
        let mut weights = vec![];
        for i in 0..48 * 320 {
            weights.extend(bits(OutputKind::BF16, rng.random_range(-1.0f32..1.0) * of(i % 320)));
        }
        let mut source = MemorySource::new();
        source.push("w0".to_owned(), Dtype::BF16, vec![48, 320], weights.into()).unwrap();
        let mut o = EncodeOptions { step: Some(0.3), ..o };
        o.columns.insert("w0".to_owned(), (0..320).map(|c| of(c) * [1.0, 1.9][c % 2]).collect());
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        for mut pair in pairs(&container) {
            for (n, limits) in [(5, many::DEVICES[0]), (16, many::DEVICES[1]), (33, many::DEVICES[0])] {
                let mut inputs = Inputs::new(&mut rng, OutputKind::BF16, n, 320, 1.0);
                for (v, c) in (0..n).flat_map(|v| (0..320).map(move |c| (v, c))) {
                    let element = inputs.get(v, c) as f32 / of(c);
                    let at = inputs.off + (v * inputs.stride + c) * 2;
                    inputs.memory[at..at + 2].copy_from_slice(&bits(OutputKind::BF16, element));
                }
                let (results, used) = pair.compare(&inputs, None, limits, (0..3, n as u64));
                assert!(used.iter().all(|kernel| kernel.contains("many")), "{used:?}");
                compared += results;
            }
        }
    }
    assert!(compared > 5000, "{compared}");
}

/// A launch's epilogue takes results as they are, and the norm's vectors have no factors.
#[test]
fn epilogues_of_products_with_factors() {
    let mut rng = StdRng::seed_from_u64(124);
    let all = [
        (Steps { norm: true, gated: true, activation: Activation::Silu, ..Steps::default() }, 1, LARGE),
        (Steps { norm: true, residual: true, scaled: true, ..Steps::default() }, 1, SMALL),
        (Steps { norm: true, gated: true, residual: true, scaled: true, activation: Activation::Silu }, 6, ROOMY),
        (Steps { gated: true, activation: Activation::Gelu, ..Steps::default() }, 24, many::DEVICES[0]),
        (Steps { norm: true, residual: true, ..Steps::default() }, 11, many::DEVICES[1]),
    ];
    let mut kernels = BTreeSet::new();
    for (i, (steps, count, limits)) in all.into_iter().enumerate() {
        for (j, o) in quads().into_iter().enumerate().skip(i).step_by(4) {
            let (rows, cols) = [(150, 300), (64, 640)][j / 4 % 2];
            let source = sample(&mut rng, &[vec![rows, cols], vec![rows, cols]]);
            // A gate and its up projection have the same vectors: here the same factors, so that these can be multiplied before.
            let mut o = with_columns(&mut rng, &source, &o);
            o.columns.insert("w1".to_owned(), o.columns["w0"].clone());
            let container = Container::from_bytes(encode(&source, &o)).unwrap();
            let names = ["w0", "w1"].into_iter().take(1 + usize::from(steps.gated));
            let both: Vec<Pair> = names.filter_map(|name| Pair::new(&container, name)).collect();
            if both.len() < 1 + usize::from(steps.gated) {
                continue;
            }
            let kind = [OutputKind::F16, OutputKind::BF16][(i + j / 4) % 2];
            let inputs = Inputs::new(&mut rng, kind, count, cols, 0.5);
            let scaled = inputs.times(&both[0].factors[0]);
            let (mut with, mut without): (Vec<_>, Vec<_>) = both.into_iter().map(|p| (p.with, p.without)).unzip();
            let mut buffers = Buffers::new(&mut rng, &inputs, rows, cols);
            let mut run = |tensors: &mut [Loaded], inputs: &Inputs| {
                multiply_with_epilogue(tensors, inputs, None, steps, &mut buffers, limits, j as u64)
            };
            let (got, want) = (run(&mut with, &inputs), run(&mut without, &scaled));
            assert!(got == want, "{steps:?} {count} {o:?}");
            kernels.extend(got.2);
        }
    }
    assert!(kernels.len() >= 12, "{kernels:?}");
}

/// Experts with factors of their own.
#[test]
fn routed_experts_with_factors() {
    let mut rng = StdRng::seed_from_u64(125);
    let (mut kernels, mut compared) = (BTreeSet::new(), 0);
    for (i, o) in quads().into_iter().enumerate() {
        let shape = [vec![48, 512], vec![37, 1130]][i % 2].clone();
        let container = encoded(&mut rng, &vec![shape.clone(); 3], &o);
        let experts = pairs(&container);
        let is_for_many = |pair: &Pair| most_vectors(&pair.with.plan, many::DEVICES[1]) == 128;
        if experts.len() < 3 || !experts.iter().all(is_for_many) {
            continue;
        }
        let factors: Vec<_> = experts.iter().map(|pair| pair.factors[0].clone()).collect();
        let (mut with, mut without): (Vec<_>, Vec<_>) = experts.into_iter().map(|p| (p.with, p.without)).unzip();
        for k in 0..4 {
            let kind = [OutputKind::F16, OutputKind::BF16][k % 2];
            let (tokens, size) = [(6, 8), (24, 32)][k / 2];
            let inputs = Inputs::new(&mut rng, kind, tokens, shape[1], 2.0);
            let routes = some_routes(&mut rng, tokens, 3, size);
            let device = (size, many::DEVICES[i / 2 % 2]);
            let found = multiply_routed(&mut with, 1, (&inputs, false), &routes, device, i as u64);
            for &[expert, begin, routed, _] in routes.slots.iter().filter(|slot| slot[2] > 0) {
                let by_position = gathered(&inputs.times(&factors[expert as usize]), &routes.rows);
                let want = multiply_routed(&mut without, 1, (&by_position, true), &routes, device, i as u64 + 1);
                let of = |results| of_matrix(results, begin as usize..(begin + routed) as usize, 0, shape[0]);
                assert!(of(&found) == of(&want), "expert {expert}: {} {o:?}", found.kernel);
                compared += routed as usize * shape[0];
            }
            kernels.insert(found.kernel);
        }
    }
    assert!(kernels.len() == 8 && compared > 5000, "{compared} {kernels:?}");
}

/// All strips of a routed expert have the same vectors.
#[test]
fn stacks_whose_columns_have_factors_are_no_expert() {
    let mut rng = StdRng::seed_from_u64(126);
    let container = encoded(&mut rng, &vec![vec![2, 32, 512]; 2], &quads()[0]);
    let pairs = pairs(&container);
    let launches = |tensors: [&Loaded; 2]| {
        let of_one = |t| items(std::slice::from_ref(t), OutputKind::BF16, None, &|s| 0..s, &|_| abi::PART_RESULT).0;
        routed_launches(&tensors.map(of_one), many::DEVICES[0]).map(|launches| launches.len())
    };
    assert_eq!(launches([&pairs[0].without, &pairs[1].without]).unwrap(), 2);
    let e = launches([&pairs[0].with, &pairs[1].with]).unwrap_err().to_string();
    assert!(e.contains("several matrices whose columns have factors"), "{e}");
}
