//! Kernels of many vectors for routed experts: the products of each with its vectors, and nothing of others.

use super::many::{DEVICES, load, options};
use super::*;
use crate::gpu::decoder::RoutedVectors;
use crate::gpu::emulated::route::{Sorted, some_experts, sorted, words};
use crate::gpu::plan::{Division, RoutedLaunch, many_launch, routed_launches};

/// The matrices of experts, `parts` of each, whose results lie side by side.
fn experts(tensors: &[Loaded], parts: usize, kind: OutputKind) -> Vec<Vec<ProductTiles<'_>>> {
    fn of_expert(expert: &[Loaded], kind: OutputKind) -> Vec<ProductTiles<'_>> {
        let stride = expert.iter().map(|t| t.plan.rows()).sum::<usize>() as u32;
        let mut place = 0;
        let mut items = Vec::new();
        for t in expert {
            let tiles = t.in_tiles(0, 0..t.plan.strips(), kind);
            let product = ProductOutput { bias: 0, before: 0, stride, place, part: abi::PART_RESULT, vector: 0 };
            place += t.plan.rows() as u32;
            items.push(ProductTiles { tiles, product });
        }
        items
    }
    tensors.chunks(parts).map(|expert| of_expert(expert, kind)).collect()
}

/// The results of routed experts as bits, by position.
pub struct Results {
    bits: Vec<u16>,
    stride: usize,
    pub kernel: String,
    division: Division,
}

/// Multiplies with routed experts: rows of `inputs`, or, if they are `gathered`, the vectors by position.
pub fn multiply_routed(
    tensors: &mut [Loaded],
    parts: usize,
    (inputs, gathered): (&Inputs, bool),
    routes: &Sorted,
    (size, limits): (usize, Limits),
    seed: u64,
) -> Results {
    let all = experts(tensors, parts, inputs.kind);
    let stride = all[0][0].product.stride as usize;
    let launches = routed_launches(&all, limits).unwrap();
    let launch = launches.into_iter().find(|launch| launch.takes(size, routes.slots.len())).unwrap();
    let division = launch.division;
    let table: Vec<u8> = launch.table.iter().flat_map(|item| item.as_bytes()).copied().collect();
    let table = Buffer::from(&table[..]);
    let mut rows = words(routes.rows.iter().copied());
    let mut slots = words(routes.slots.iter().flatten().copied());
    let vectors = RoutedVectors {
        x: 0,
        x_stride: 0,
        rows: if gathered { 0 } else { rows.address() },
        slots: slots.address(),
        slot_count: routes.slots.len(),
        most: size,
        y: 0,
    };
    let (mut params, grid) = launch.at(&vectors).unwrap();
    params.stash = table.address();
    let RoutedLaunch { module, kernel, cluster, threads, shared, .. } = launch;
    let launch = ProductLaunch { module, kernel, params: Box::new(params), grid, cluster, threads, shared };
    let positions = routes.rows.len();
    let mut out = Buffer::new(positions * stride * 2 + 2 * GUARD);
    out.fill(POISON);
    let more = vec![Memory::read::<u8>(&table), Memory::write::<u8>(&mut slots), Memory::write::<u8>(&mut rows)];
    let own = |params: &mut abi::ProductBatch| {
        params.vectors = 0;
        params.vector &= u32::from(params.x.is_multiple_of(16) && inputs.stride.is_multiple_of(8));
    };
    run(std::slice::from_ref(&launch), tensors, inputs, &mut out, more, own, seed);
    let end = out.len() - GUARD;
    assert!(out[..GUARD].iter().chain(&out[end..]).all(|&b| b == POISON), "{} writes elsewhere", launch.kernel);
    let bits = out[GUARD..end].as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
    Results { bits, stride, kernel: launch.kernel, division }
}

/// These rows of the vectors, one after the other.
pub fn gathered(inputs: &Inputs, rows: &[u32]) -> Inputs {
    let bytes = inputs.stride * 2;
    let row = |&row: &u32| &inputs.memory[inputs.off + row as usize * bytes..][..bytes];
    let all = [&inputs.memory[..inputs.off], &rows.iter().flat_map(row).copied().collect::<Vec<_>>()].concat();
    Inputs { memory: Buffer::from(&all[..]), count: rows.len(), ..*inputs }
}

/// Results of rows of a matrix, `place` among those of its expert, for positions.
pub fn of_matrix(results: &Results, positions: Range<usize>, place: usize, rows: usize) -> Vec<u16> {
    let at = |position| &results.bits[position * results.stride + place..][..rows];
    positions.flat_map(at).copied().collect()
}

/// Random routes of tokens, several of which may lead to one expert.
pub fn some_routes(rng: &mut StdRng, tokens: usize, experts: usize, most: usize) -> Sorted {
    let each = rng.random_range(1..5);
    let routes = some_experts(rng, tokens * each, experts);
    let expert = |id: i64| u32::try_from(id).ok().filter(|&id| id < experts as u32);
    sorted(&routes.into_iter().map(expert).collect::<Vec<_>>(), each, experts, most)
}

#[test]
fn routed_experts_are_multiplied_with() {
    let mut rng = StdRng::seed_from_u64(97);
    let (mut kernels, mut divisions) = (BTreeSet::new(), BTreeSet::new());
    let mut compared = 0;
    let tokens = [1, 8, 5, 32, 17, 45];
    let shapes = [vec![48, 512], vec![37, 1130], vec![100, 192], vec![20, 2112]];
    for (i, o) in options().into_iter().enumerate() {
        let (parts, count) = ([2, 1][i % 2], [5, 3, 9][i % 3]);
        let shape = &shapes[i % shapes.len()];
        let container =
            Container::from_bytes(encode(&sample(&mut rng, &vec![shape.clone(); parts * count]), &o)).unwrap();
        let names: Vec<String> = (0..parts * count).map(|t| format!("w{t}")).collect();
        let mut tensors: Vec<Loaded> = names.iter().filter_map(|name| load(&container, name)).collect();
        if tensors.len() < names.len() {
            continue;
        }
        for (j, tokens) in [tokens[i % 6], tokens[(i + 3) % 6]].into_iter().enumerate() {
            let kind = [OutputKind::F16, OutputKind::BF16][(i / 2 + j) % 2];
            let limits = DEVICES[(i + j) % 2];
            let inputs = Inputs::new(&mut rng, kind, tokens, shape[1], 2.0);
            let size = if tokens <= 8 { 8 } else { 32 };
            let routes = some_routes(&mut rng, tokens, count, size);
            let seed = (2 * i + j) as u64;
            let found = multiply_routed(&mut tensors, parts, (&inputs, false), &routes, (size, limits), seed);
            assert!(tensors.iter().all(|t| t.status == [abi::STATUS_GOOD]));
            let what = format!("{} {tokens} tokens {shape:?} {o:?}", found.kernel);
            // Vectors that lie by position give the same bits, and so does another device with threads in another order.
            let by_position = gathered(&inputs, &routes.rows);
            let other = DEVICES[1 - (i + j) % 2];
            let again = multiply_routed(&mut tensors, parts, (&by_position, true), &routes, (size, other), seed + 1);
            assert!(found.bits == again.bits, "by position: {what}");
            for &[expert, begin, routed, _] in routes.slots.iter().filter(|slot| slot[2] > 0) {
                let positions = begin as usize..(begin + routed) as usize;
                let own = gathered(&inputs, &routes.rows[positions.clone()]);
                let mut place = 0;
                for t in &mut tensors[expert as usize * parts..][..parts] {
                    let plan = t.plan.clone();
                    let got = of_matrix(&found, positions.clone(), place, plan.rows());
                    compare(&container, &plan, &own, None, 0..plan.rows(), &got, &what);
                    // As the matrix by itself, by a kernel for as many vectors, with columns divided alike.
                    let alone = {
                        let (items, rows) =
                            items(std::slice::from_ref(t), kind, None, &|s| 0..s, &|_| abi::PART_RESULT);
                        let launches = [many_launch(&items, size, found.division, 4, limits).unwrap()];
                        let mut out = Buffer::new(rows * own.count * 2 + 2 * GUARD);
                        run(&launches, std::slice::from_mut(t), &own, &mut out, Vec::new(), |_| (), 3);
                        let end = out.len() - GUARD;
                        out[GUARD..end].as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect::<Vec<_>>()
                    };
                    assert!(alone == got, "expert {expert} alone: {what}");
                    place += plan.rows();
                    compared += 1;
                }
            }
            kernels.insert(found.kernel);
            divisions.insert(found.division);
        }
    }
    assert_eq!(kernels.len(), 8, "{kernels:?}");
    assert!(divisions.len() > 2, "{divisions:?}");
    assert!(compared > 150, "{compared}");
}

#[test]
fn damage_shows_in_the_results_of_its_expert() {
    let mut rng = StdRng::seed_from_u64(98);
    let (mut found, mut whole) = (0, 0);
    for (i, o) in options().into_iter().enumerate().step_by(2) {
        let container = Container::from_bytes(encode(&sample(&mut rng, &vec![vec![40, 640]; 6]), &o)).unwrap();
        let mut tensors: Vec<Loaded> = (0..6).filter_map(|t| load(&container, &format!("w{t}"))).collect();
        if tensors.len() < 6 {
            continue;
        }
        let ((tokens, size), kind) = ([(6, 8), (24, 32)][i / 2 % 2], [OutputKind::F16, OutputKind::BF16][i / 4 % 2]);
        let inputs = Inputs::new(&mut rng, kind, tokens, 640, 2.0);
        let routes: Vec<Option<u32>> = (0..2 * tokens as u32).map(|route| Some((route / 2 + route % 2) % 3)).collect();
        let routes = sorted(&routes, 2, 3, size);
        let multiply = |tensors: &mut [Loaded]| {
            multiply_routed(tensors, 2, (&inputs, false), &routes, (size, DEVICES[i % 2]), i as u64)
        };
        let sound = multiply(&mut tensors);
        // The second matrix of the expert in the middle.
        let part = tensors[3].plan.packed.planes[0].data.clone();
        damage(&mut rng, &mut tensors[3].packed[part]);
        let damaged = multiply(&mut tensors);
        let status = tensors[3].status[0];
        assert!(tensors.iter().enumerate().all(|(t, tensor)| t == 3 || tensor.status == [abi::STATUS_GOOD]));
        let tiles = match &tensors[3].plan.planes[0] {
            Method::Tiles(tiles) => tiles.geometry.tiles(),
            _ => unreachable!(),
        };
        let first_bad = if status == abi::STATUS_GOOD { usize::MAX } else { status as usize / tiles };
        for &[expert, begin, routed, _] in &routes.slots {
            for position in begin as usize..(begin + routed) as usize {
                for row in 0..80 {
                    let at = position * 80 + row;
                    if expert != 1 || row < 40 {
                        assert_eq!(damaged.bits[at], sound.bits[at], "expert {expert}, row {row}");
                        whole += 1;
                    } else if (row - 40) / 16 == first_bad {
                        assert!(number(kind, &damaged.bits[at].to_le_bytes()).is_nan(), "row {row}");
                        found += 1;
                    }
                }
            }
        }
    }
    assert!(found > 300 && whole > 10_000, "{found} {whole}");
}

#[test]
fn experts_that_differ_have_no_launch() {
    let mut rng = StdRng::seed_from_u64(99);
    let quads = options().swap_remove(0);
    let source = sample(&mut rng, &[vec![48, 512], vec![64, 512], vec![48, 512], vec![48, 576]]);
    let container = Container::from_bytes(encode(&source, &quads)).unwrap();
    let tensors: Vec<Loaded> = (0..4).map(|t| load(&container, &format!("w{t}")).unwrap()).collect();
    let all = experts(&tensors, 1, OutputKind::BF16);
    let [device, _] = DEVICES;
    let refused = |which: &[usize], limits| {
        let some: Vec<_> = which.iter().map(|&expert| all[expert].clone()).collect();
        routed_launches(&some, limits).err().map(|e| e.to_string())
    };
    assert_eq!(refused(&[0, 2], device), None);
    assert!(refused(&[0, 2, 1], device).unwrap().contains("another shape"));
    assert!(refused(&[0, 3], device).unwrap().contains("'w3'"));
    assert!(refused(&[0, 2], LARGE).unwrap().contains("the device has none"));
    assert!(refused(&[], device).unwrap().contains("none are given"));
    let narrow = Limits { shared_per_block: 24 << 10, ..device };
    assert!(refused(&[0, 2], narrow).unwrap().contains("no room"));
    let pairs = EncodeOptions { layout: Some(Layout::Pair), table_bits: Some(12), ..quads };
    let container = Container::from_bytes(encode(&source, &pairs)).unwrap();
    let other = [Loaded::new(&container.bytes_of("w0", &oracle()).unwrap()).unwrap()];
    let why = routed_launches(&experts(&other, 1, OutputKind::BF16), device).unwrap_err();
    assert!(why.to_string().contains("do not take it"), "{why}");
}

/// Wherever a kernel of many vectors multiplies with one matrix, there are launches for experts like it, too.
#[test]
fn experts_have_launches_wherever_one_of_them_fits() {
    let mut rng = StdRng::seed_from_u64(100);
    let (mut found, mut refused, mut divided_otherwise) = (0, 0, 0);
    for (i, o) in options().into_iter().enumerate() {
        let shape = [[512, 2048], [192, 2048], [48, 1130]][i % 3].to_vec();
        let container = Container::from_bytes(encode(&sample(&mut rng, &[shape]), &o)).unwrap();
        let Some(tensor) = load(&container, "w0") else { continue };
        let tensors = [tensor];
        let one = experts(&tensors, 1, OutputKind::BF16).swap_remove(0);
        let pair = [one[0], one[0]].to_vec();
        for count in [3, 8, 64] {
            let all = vec![pair.clone(); count];
            let roomy = routed_launches(&all, DEVICES[0]).unwrap();
            for kib in (40..=228).step_by(4) {
                let limits = Limits { shared_per_block: kib << 10, shared_per_multiprocessor: kib << 10, ..DEVICES[0] };
                match routed_launches(&all, limits) {
                    Ok(launches) => {
                        assert!(launches.iter().all(|launch| launch.shared as usize <= kib << 10));
                        let pairs = || launches.iter().zip(&roomy);
                        divided_otherwise += pairs().filter(|(a, b)| a.division != b.division).count();
                        found += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("do not take it, or have no room"), "{kib} KiB: {error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(found > 1000 && refused > 100 && divided_otherwise > 0, "{found} {refused} {divided_otherwise}");
}
