//! Routes of tokens to experts: sorted, and results added up, against plain functions.

use super::*;
use crate::gpu::route::{Combination, Routes, combine_launch, route_launch};
use crate::gpu::work_item::RowIds;
use half::{bf16, f16};

/// Routes by expert: what the kernel writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// The row of vectors at each position.
    pub rows: Vec<u32>,
    /// The position of each route, or -1.
    pub positions: Vec<i32>,
    /// Expert, first position and count; then as many empty ones as there is room for.
    pub slots: Vec<[u32; 4]>,
}

/// Sorts the routes of tokens to experts, of which each row of vectors has `each`, and a slot `most`.
pub fn sorted(experts: &[Option<u32>], each: usize, count: usize, most: usize) -> Sorted {
    let mut order: Vec<usize> = (0..experts.len()).filter(|&route| experts[route].is_some()).collect();
    order.sort_by_key(|&route| experts[route]);
    let mut positions = vec![-1; experts.len()];
    order.iter().enumerate().for_each(|(position, &route)| positions[route] = position as i32);
    let of_expert = order.chunk_by(|&a, &b| experts[a] == experts[b]).flat_map(|routes| routes.chunks(most));
    let slot = |routes: &[usize]| [experts[routes[0]].unwrap(), positions[routes[0]] as u32, routes.len() as u32, 0];
    let mut slots: Vec<[u32; 4]> = of_expert.map(slot).collect();
    let all = count.min(experts.len());
    let all = all + (experts.len() - all) / most;
    assert!(slots.len() <= all, "more slots than there is room for");
    slots.resize(all, [0; 4]);
    Sorted { rows: order.iter().map(|&route| (route / each) as u32).collect(), positions, slots }
}

pub fn words(numbers: impl IntoIterator<Item = u32>) -> Buffer {
    Buffer::from(&numbers.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()[..])
}

fn numbers(buffer: &[u8]) -> Vec<u32> {
    buffer.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Sorts routes by the kernel.
fn route(
    (ids, wide): (&[i64], bool),
    places: Option<&[i32]>,
    experts: usize,
    (each, most): (usize, usize),
    seed: u64,
) -> Sorted {
    let bytes: Vec<u8> = match wide {
        true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        false => ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
    };
    let mut memory = [Buffer::from(&bytes[..]), words(places.into_iter().flatten().map(|&place| place as u32))];
    let ids = RowIds { ptr: memory[0].address(), count: ids.len(), wide };
    let some = experts.min(ids.count);
    let mut found = [ids.count, ids.count, 4 * (some + (ids.count - some) / most)].map(|words| guarded(4 * words));
    let [rows, positions, slots] = found.each_ref().map(|buffer| buffer.address() + GUARD as u64);
    let routes = Routes {
        ids,
        each,
        places: places.map_or(0, |_| memory[1].address()),
        named: places.map_or(0, <[i32]>::len),
        experts,
        most,
        rows,
        positions,
        slots,
    };
    let (params, threads, shared) = route_launch(&routes).unwrap().unwrap();
    // Another launch may have written the numbers, too.
    let lent: Vec<Memory<'_>> = memory.iter_mut().chain(&mut found).map(|buffer| Memory::write::<u8>(buffer)).collect();
    let run = Launch::new(Module::Route, "wcodec_route").threads(threads).shared(shared).seed(seed).overlaps(true);
    run.run(params.as_bytes(), &lent).unwrap_or_else(|e| panic!("{e}"));
    drop(lent);
    let [rows, positions, slots] = found.each_ref().map(|buffer| numbers(inside(buffer)));
    let routed = positions.iter().filter(|&&position| position != u32::MAX).count();
    assert!(rows[routed..].iter().all(|&row| row == u32::from_le_bytes([POISON; 4])), "rows of no route");
    Sorted {
        rows: rows[..routed].to_vec(),
        positions: positions.into_iter().map(|position| position as i32).collect(),
        slots: slots.as_chunks::<4>().0.to_vec(),
    }
}

/// Random numbers of experts, some of which there are not.
pub fn some_experts(rng: &mut StdRng, routes: usize, experts: usize) -> Vec<i64> {
    let strange = [-1, -1, i64::from(i32::MIN), experts as i64, i64::from(i32::MAX)];
    // Some experts have many routes, and others none.
    let busy = rng.random_range(0..experts as i64);
    let some = |_| match rng.random_range(0..8) {
        0 => strange[rng.random_range(0..strange.len())],
        1 => busy,
        _ => rng.random_range(0..experts as i64),
    };
    (0..routes).map(some).collect()
}

#[test]
fn routes_are_sorted_by_expert() {
    let mut rng = StdRng::seed_from_u64(95);
    let cases =
        [(1, 1, 1), (1, 8, 128), (9, 2, 4), (5, 3, 33), (32, 8, 128), (64, 16, 1024), (64, 16, 7), (2, 512, 40)];
    for (case, (tokens, each, experts)) in cases.into_iter().cycle().take(24).enumerate() {
        let (wide, by_place, row) = (case % 2 == 0, case % 3 == 1, case % 5 == 2);
        // All experts of the model, of which only some are here.
        let all = if by_place { 2 * experts + 1 } else { experts };
        let places: Vec<i32> = (0..all).map(|_| rng.random_range(-1..experts as i32 + 1)).collect();
        let mut ids = some_experts(&mut rng, tokens * each, all);
        if wide {
            // Numbers whose lower half is that of an expert.
            ids[0] = 1 << 32;
        }
        let expert = |&id: &i64| {
            let id = usize::try_from(id).ok().filter(|&id| id < all)?;
            let place = if by_place { usize::try_from(places[id]).ok()? } else { id };
            (place < experts).then_some(place as u32)
        };
        let wanted: Vec<Option<u32>> = ids.iter().map(expert).collect();
        let each = if row { 1 } else { each };
        let most = [8, 32, 1][case % 7 % 3];
        let found = route((&ids, wide), by_place.then_some(&places), experts, (each, most), case as u64);
        assert_eq!(found, sorted(&wanted, each, experts, most), "case {case}");
    }
}

fn rounded(dtype: Dtype, value: f32) -> u16 {
    if dtype == Dtype::F16 { f16::from_f32(value).to_bits() } else { bf16::from_f32(value).to_bits() }
}

fn number(dtype: Dtype, bits: u16) -> f32 {
    if dtype == Dtype::F16 { f16::from_bits(bits).to_f32() } else { bf16::from_bits(bits).to_f32() }
}

#[test]
fn results_are_added_up_by_token() {
    let mut rng = StdRng::seed_from_u64(96);
    // One block of few threads, columns that no thread has eight of, several blocks.
    for (case, cols) in [5, 64, 300, 1024, 2500].into_iter().cycle().take(15).enumerate() {
        let dtype = [Dtype::F16, Dtype::BF16][case % 2];
        let share_dtype = [Some(Dtype::F32), Some(dtype), None][case % 3];
        let (tokens, each) = (rng.random_range(1..6), rng.random_range(1..9));
        let experts = some_experts(&mut rng, tokens * each, 6);
        let experts: Vec<Option<u32>> = experts.iter().map(|&id| (0..6).contains(&id).then_some(id as u32)).collect();
        let positions = sorted(&experts, each, 6, 8).positions;
        let y: Vec<u16> = (0..tokens * each * cols).map(|_| rounded(dtype, rng.random_range(-2.0..2.0))).collect();
        let shares: Vec<f32> = (0..tokens * each).map(|_| rng.random_range(0.0..1.0)).collect();
        let bytes = |halves: &[u16]| halves.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<u8>>();
        let share_bytes = match share_dtype {
            Some(Dtype::F32) => shares.iter().flat_map(|share| share.to_le_bytes()).collect(),
            _ => bytes(&shares.iter().map(|&share| rounded(dtype, share)).collect::<Vec<_>>()),
        };
        let mut memory = [
            Buffer::from(&bytes(&y)[..]),
            Buffer::from(&share_bytes[..]),
            words(positions.iter().map(|&position| position as u32)),
            Buffer::new(tokens * cols * 2 + 2 * GUARD),
        ];
        memory[3].fill(POISON);
        let combination = Combination {
            dtype,
            tokens,
            each,
            cols,
            y: memory[0].address(),
            shares: share_dtype.map_or(0, |_| memory[1].address()),
            share_dtype: share_dtype.unwrap_or(dtype),
            positions: memory[2].address(),
            out: memory[3].address() + GUARD as u64,
        };
        let (params, grid, threads) = combine_launch(&combination).unwrap().unwrap();
        let lent: Vec<Memory<'_>> = memory.iter_mut().map(|buffer| Memory::write::<u8>(buffer)).collect();
        let run = Launch::new(Module::Route, "wcodec_route_combine").grid(grid).threads(threads).overlaps(true);
        run.run(params.as_bytes(), &lent).unwrap_or_else(|e| panic!("{e}"));
        drop(lent);
        let out = &memory[3];
        let end = out.len() - GUARD;
        assert!(out[..GUARD].iter().chain(&out[end..]).all(|&b| b == POISON), "it writes elsewhere");
        let found: Vec<u16> = out[GUARD..end].as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        for (i, found) in found.into_iter().enumerate() {
            let (token, col) = (i / cols, i % cols);
            let mut sum = 0f32;
            for route in token * each..(token + 1) * each {
                let Ok(position) = usize::try_from(positions[route]) else { continue };
                let share = match share_dtype {
                    Some(Dtype::F32) => shares[route],
                    Some(dtype) => number(dtype, rounded(dtype, shares[route])),
                    None => 1.0,
                };
                sum += share * number(dtype, y[position * cols + col]);
            }
            assert_eq!(found, rounded(dtype, sum), "case {case}: ({token}, {col})");
        }
    }
}

#[test]
fn routes_that_are_too_many_are_refused() {
    let routes = Routes {
        ids: RowIds { ptr: 16, count: 4097, wide: false },
        each: 1,
        places: 0,
        named: 0,
        experts: 8,
        most: 8,
        rows: 16,
        positions: 16,
        slots: 16,
    };
    assert!(route_launch(&routes).unwrap_err().to_string().contains("4097 routes to 8 experts"));
    let none = Routes { ids: RowIds { count: 0, ..routes.ids }, ..routes };
    assert!(route_launch(&none).unwrap().is_none());
    let combination = Combination {
        dtype: Dtype::F32,
        tokens: 1,
        each: 1,
        cols: 8,
        y: 16,
        shares: 0,
        share_dtype: Dtype::F32,
        positions: 16,
        out: 16,
    };
    assert!(combine_launch(&combination).unwrap_err().to_string().contains("F16 or BF16"));
    let shares = Combination { dtype: Dtype::BF16, share_dtype: Dtype::F16, ..combination };
    assert!(combine_launch(&shares).unwrap_err().to_string().contains("by F16"));
    let nothing = Combination { dtype: Dtype::BF16, tokens: 0, ..combination };
    assert!(combine_launch(&nothing).unwrap().is_none());
}
