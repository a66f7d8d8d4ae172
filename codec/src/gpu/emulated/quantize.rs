//! Levels of weights with error feedback, against plain functions.

use super::*;
use crate::gpu::quantize::{ColumnSizes, RoundColumns, TrellisColumns, round_launch, trellis_launch};

const STATES: usize = 4;

/// A buffer of numbers.
fn floats(numbers: &[f32]) -> Buffer {
    Buffer::from(&numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()[..])
}

fn random(rng: &mut StdRng, count: usize, most: f32) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-most..most)).collect()
}

fn lent<'a>(given: &'a [Buffer], made: &'a mut [Buffer]) -> Vec<Memory<'a>> {
    let given = given.iter().map(|buffer| Memory::read::<u8>(buffer));
    given.chain(made.iter_mut().map(|buffer| Memory::write::<u8>(buffer))).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Symbols and errors of a row, rounded as the kernel is asked to.
fn rounded(x: &[f32], carry: &[f32], feed: &[f32], prices: Option<&[f32]>) -> (Vec<i8>, Vec<f32>) {
    let columns = x.len();
    let (mut carry, mut levels, mut errors) = (carry.to_vec(), Vec::new(), Vec::new());
    for j in 0..columns {
        let target = x[j] + carry[j];
        let size = target.abs();
        let nearest = size.floor().min(127.0);
        let off = size - nearest - 0.5;
        let mut m = nearest;
        if let Some(prices) = prices {
            let cost =
                |down: usize| (off + down as f32).mul_add(off + down as f32, prices[nearest as usize + 2 - down]);
            let best = (1..3).fold(0, |best, down| if cost(down) < cost(best) { down } else { best });
            m -= best as f32;
        }
        let q = if target < 0.0 { -1.0 - m } else { m };
        let error = x[j] - (q + 0.5);
        (j + 1..columns).for_each(|k| carry[k] = feed[j * columns + k].mul_add(error, carry[k]));
        levels.push(q as i8);
        errors.push(error);
    }
    (levels, errors)
}

#[test]
fn columns_are_rounded_as_by_a_plain_function() {
    let mut rng = StdRng::seed_from_u64(191);
    for (case, (rows, columns)) in [(1, 1), (3, 32), (64, 7), (70, 32), (200, 31), (65, 2)].into_iter().enumerate() {
        let mut x = random(&mut rng, columns * rows, 9.0);
        // Weights that are out of range, and zeros of both signs.
        [300.0, -1e30, 0.0, -0.0].iter().zip(&mut x).for_each(|(&v, x)| *x = v);
        let carry = random(&mut rng, columns * rows, 0.5);
        let feed = random(&mut rng, columns * columns, 0.4);
        let costs = [vec![f32::INFINITY; 2], random(&mut rng, 128, 0.3)].concat();
        let prices = (case % 2 == 0).then_some(&costs[..]);
        let given = [floats(&x), floats(&carry), floats(&feed), floats(&costs)];
        let mut made = [guarded(columns * rows), guarded(4 * columns * rows)];
        let call = RoundColumns {
            sizes: ColumnSizes { rows, columns, stride: columns },
            x: given[0].address(),
            carry: given[1].address(),
            feed: given[2].address(),
            prices: prices.map_or(0, |_| given[3].address()),
            levels: made[0].address() + GUARD as u64,
            errors: made[1].address() + GUARD as u64,
        };
        let (params, grid, threads) = round_launch(&call).unwrap().unwrap();
        let memory: Vec<Memory<'_>> = lent(&given, &mut made);
        let run = Launch::new(Module::Quantize, "wcodec_round_columns").grid(grid).threads(threads).seed(case as u64);
        run.run(params.as_bytes(), &memory).unwrap_or_else(|e| panic!("{e}"));
        drop(memory);
        let (levels, errors) = (inside(&made[0]), numbers(inside(&made[1])));
        for row in 0..rows {
            let of = |array: &[f32]| -> Vec<f32> { array.iter().skip(row).step_by(rows).copied().collect() };
            let (q, e) = rounded(&of(&x), &of(&carry), &feed, prices);
            assert_eq!(levels.iter().skip(row).step_by(rows).map(|&b| b as i8).collect::<Vec<_>>(), q, "{case} {row}");
            assert_eq!(of(&errors), e, "case {case}, row {row}");
        }
    }
}

/// Symbols of each survivor, the state that it comes from, and its cost.
type Survivors = (Vec<[i8; STATES]>, [i64; STATES], [f32; STATES]);

/// The survivors of a row, as the kernel is asked to extend them. Each has a path and targets of its own.
fn extended(
    x: &[f32],
    added: &[[f32; STATES]],
    weights: &[f32],
    feed: Option<&[f32]>,
    prices: &[f32],
    costs: [f32; STATES],
) -> Survivors {
    let columns = x.len();
    struct Path {
        cost: f32,
        origin: usize,
        added: Vec<f32>,
        symbols: Vec<i8>,
    }
    let begin =
        |s: usize| Path { cost: costs[s], origin: s, added: added.iter().map(|a| a[s]).collect(), symbols: vec![] };
    let mut paths: [Path; STATES] = std::array::from_fn(begin);
    for j in 0..columns {
        paths = std::array::from_fn(|state| {
            let (p, m) = (state % 2, state / 2);
            let mut best = None::<(f32, f32, usize)>;
            for b in 0..2 {
                let before = &paths[2 * p + b];
                let target = x[j] + before.added[j];
                // Symbols of the branch, four apart, that have a next one.
                let kind = (p + 2 * (m ^ b)) as f32;
                let k = ((target - (kind + 0.5)) * 0.25).floor();
                let k = k.max(((-126.0 - kind) / 4.0).ceil()).min(((125.0 - kind) / 4.0).floor() - 1.0);
                let off = k.mul_add(-4.0, target - (kind + 0.5));
                let n = k.mul_add(4.0, kind);
                let price = |n: f32| prices[(n as i32 + 128) as usize];
                let below = (off * weights[j]).mul_add(off, price(n));
                let off = off - 4.0;
                let above = (off * weights[j]).mul_add(off, price(n + 4.0));
                let (cost, symbol) = if above < below { (above, n + 4.0) } else { (below, n) };
                let cost = cost + before.cost;
                if best.is_none_or(|best| cost < best.0) {
                    best = Some((cost, symbol, b));
                }
            }
            let (cost, symbol, b) = best.unwrap();
            let before = &paths[2 * p + b];
            let error = x[j] - 0.5 - symbol;
            let later = |(k, &a): (usize, &f32)| match feed {
                Some(feed) if k > j => feed[j * columns + k].mul_add(error, a),
                _ => a,
            };
            let mut symbols = before.symbols.clone();
            symbols.push(symbol as i8);
            let added = before.added.iter().enumerate().map(later).collect();
            Path { cost, origin: before.origin, added, symbols }
        });
    }
    let symbols = (0..columns).map(|j| std::array::from_fn(|s| paths[s].symbols[j])).collect();
    (symbols, std::array::from_fn(|s| paths[s].origin as i64), std::array::from_fn(|s| paths[s].cost))
}

#[test]
fn survivors_are_extended_as_by_a_plain_function() {
    let mut rng = StdRng::seed_from_u64(192);
    for (case, (rows, columns)) in [(1, 1), (3, 32), (16, 7), (33, 32), (40, 31), (17, 2)].into_iter().enumerate() {
        let mut x = random(&mut rng, columns * rows, 20.0);
        [500.0, -1e30, 0.0, -0.0].iter().zip(&mut x).for_each(|(&v, x)| *x = v);
        let added = random(&mut rng, columns * STATES * rows, 0.5);
        let weights: Vec<f32> = (0..columns).map(|_| rng.random_range(0.5..2.0)).collect();
        let feed = random(&mut rng, columns * columns, 0.4);
        let prices = random(&mut rng, 260, 0.5);
        let mut costs = random(&mut rng, STATES * rows, 3.0);
        if case % 3 == 0 {
            // The beginning of a tile.
            costs.iter_mut().enumerate().for_each(|(i, c)| *c = if i < rows { 0.0 } else { f32::INFINITY });
        }
        let fed = (case % 2 == 1).then_some(&feed[..]);
        let given = [&x, &added, &weights, &feed, &prices, &costs].map(|numbers: &Vec<f32>| floats(numbers));
        let survivors = STATES * rows;
        let mut made = [guarded(columns * survivors), guarded(8 * survivors), guarded(4 * survivors)];
        let call = TrellisColumns {
            sizes: ColumnSizes { rows, columns, stride: columns },
            x: given[0].address(),
            added: given[1].address(),
            weights: given[2].address(),
            feed: fed.map_or(0, |_| given[3].address()),
            prices: given[4].address(),
            costs: given[5].address(),
            symbols: made[0].address() + GUARD as u64,
            origin: made[1].address() + GUARD as u64,
            sums: made[2].address() + GUARD as u64,
        };
        let (params, grid, threads) = trellis_launch(&call).unwrap().unwrap();
        let memory: Vec<Memory<'_>> = lent(&given, &mut made);
        let run = Launch::new(Module::Quantize, "wcodec_trellis_columns").grid(grid).threads(threads).seed(case as u64);
        run.run(params.as_bytes(), &memory).unwrap_or_else(|e| panic!("{e}"));
        drop(memory);
        let symbols = inside(&made[0]);
        let origin: Vec<i64> = inside(&made[1]).as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
        let sums = numbers(inside(&made[2]));
        for row in 0..rows {
            let of = |array: &[f32]| -> Vec<f32> { array.iter().skip(row).step_by(rows).copied().collect() };
            let survivors = extended(
                &of(&x),
                of(&added).as_chunks::<STATES>().0,
                &weights,
                fed,
                &prices,
                of(&costs).try_into().unwrap(),
            );
            let found: Vec<i8> = symbols.iter().skip(row).step_by(rows).map(|&b| b as i8).collect();
            let from: Vec<i64> = origin.iter().skip(row).step_by(rows).copied().collect();
            assert_eq!(found.as_chunks::<STATES>().0, survivors.0, "case {case}, row {row}");
            assert_eq!(from, survivors.1, "case {case}, row {row}");
            assert_eq!(of(&sums), survivors.2, "case {case}, row {row}");
        }
    }
}

#[test]
fn too_much_for_a_launch_is_refused() {
    let sizes = ColumnSizes { rows: 4, columns: 33, stride: 33 };
    let call = RoundColumns { sizes, x: 0, carry: 0, feed: 0, prices: 0, levels: 0, errors: 0 };
    assert!(round_launch(&call).unwrap_err().to_string().contains("fewer columns"));
    let of = |rows, columns| RoundColumns { sizes: ColumnSizes { rows, columns, stride: 1 }, ..call };
    for rows in [1 << 31, usize::MAX] {
        assert!(round_launch(&of(rows, 1)).unwrap_err().to_string().contains("fewer rows"));
    }
    assert!(round_launch(&of(0, 5)).unwrap().is_none() && round_launch(&of(5, 0)).unwrap().is_none());
}
