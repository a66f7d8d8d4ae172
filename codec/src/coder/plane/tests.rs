use super::*;
use crate::cancel::Cancel;
use crate::coder::histogram::{count_bytes, entropy};
use crate::coder::{Coder, Filter, Isa, LANES, Layout};
use crate::error::Result;
use crate::pool::Pool;
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::sync::atomic::AtomicUsize;

fn options(coder: Coder, layout: Layout) -> PlaneOptions {
    PlaneOptions {
        coder,
        layout,
        table_bits: 12,
        patch_rare: false,
        changes: false,
        tile: None,
        zstd_level: 3,
        zstd_chunk: None,
        filters: Filters::Tried,
    }
}

/// Symbols with the tails of trained weights: sums of uniforms, cubed for the outliers.
fn weights(n: usize, spread: f64, seed: u64) -> Vec<i8> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n)
        .map(|_| {
            let u: f64 = (0..4).map(|_| rng.random::<f64>() - 0.5).sum();
            (u * u * u * spread).round().clamp(-127.0, 127.0) as i8
        })
        .collect()
}

/// Symbols around 0 with magnitudes up to 2 `spread`.
fn bell(n: usize, spread: f64, seed: u64) -> Vec<i8> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n).map(|_| ((0..4).map(|_| rng.random::<f64>() - 0.5).sum::<f64>() * spread).round() as i8).collect()
}

fn encode_new(symbols: &SymbolMatrices<'_>, options: &PlaneOptions) -> EncodedPlane {
    encode(symbols, options, &Pool::new(None).unwrap(), &Cancel::new()).unwrap()
}

fn source<'a>(symbols: &SymbolMatrices<'a>, plane: &'a EncodedPlane) -> PlaneSource<'a> {
    plane.source(symbols)
}

/// Decodes everything, into memory with other content.
fn decode(source: PlaneSource<'_>, isa: Isa) -> Result<Vec<i8>> {
    let plane = Plane::new(source, isa)?;
    let mut out = vec![0x55; plane.elements()];
    let mut first_error = None;
    for i in 0..plane.pieces() {
        let piece = &mut out[plane.piece(i)];
        if let Err(e) = plane.decode_piece(i, piece, &mut Scratch::default()) {
            first_error.get_or_insert(e);
        }
    }
    first_error.map_or(Ok(out), Err)
}

fn check_round_trip(symbols: &SymbolMatrices<'_>, options: &PlaneOptions) -> EncodedPlane {
    let plane = encode_new(symbols, options);
    for isa in Isa::available() {
        assert!(decode(source(symbols, &plane), isa).unwrap() == symbols.data, "{options:?} {isa}");
    }
    plane
}

const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 1, 500),
    (1, 500, 1),
    (1, 15, 64),
    (1, 16, 64),
    (1, 17, 65),
    (1, 16, 63),
    (3, 5, 129),
    (2, 33, 1000),
    (1, 40, 640),
    (1, 3, 5000),
];

#[test]
fn every_coder_layout_and_shape_round_trips() {
    for &(count, rows, cols) in SHAPES {
        for spread in [0.0, 3.0, 30.0, 300.0, 1e9] {
            let data = weights(count * rows * cols, spread, 1);
            let symbols = SymbolMatrices { count, rows, cols, data: &data, beside: &[] };
            for &coder in Coder::ALL {
                for &layout in Layout::choices(coder) {
                    check_round_trip(&symbols, &options(coder, layout));
                }
            }
        }
    }
}

#[test]
fn every_tile_width_and_table_size_round_trips() {
    let data = weights(47 * 1000, 20.0, 2);
    let symbols = SymbolMatrices { count: 1, rows: 47, cols: 1000, data: &data, beside: &[] };
    for coder in [Coder::Rans, Coder::Huffman] {
        for &layout in Layout::choices(coder) {
            for tile in [64, 128, 192, 256, 448, 512] {
                for table_bits in if coder == Coder::Huffman { 8..=12 } else { 11..=12 } {
                    let o = PlaneOptions { tile: Some(tile), table_bits, ..options(coder, layout) };
                    let plane = check_round_trip(&symbols, &o);
                    assert_eq!(plane.coder(), coder);
                }
            }
        }
    }
}

#[test]
fn all_256_symbols_round_trip() {
    let mut data: Vec<i8> = weights(64 * 256, 20.0, 3);
    data[..256].iter_mut().enumerate().for_each(|(i, q)| *q = i as u8 as i8);
    let symbols = SymbolMatrices { count: 1, rows: 64, cols: 256, data: &data, beside: &[] };
    for &coder in Coder::ALL {
        for &layout in Layout::choices(coder) {
            check_round_trip(&symbols, &options(coder, layout));
        }
    }
}

#[test]
fn narrow_distributions_take_a_small_shift_and_outliers_become_patches() {
    for (spread, want) in [(6.0, 0), (15.0, 1), (19.0, 2), (63.0, 3)] {
        let mut data = bell(64 * 1024, spread, 4);
        data.iter_mut().step_by(9973).for_each(|q| *q = -128);
        let symbols = SymbolMatrices { count: 1, rows: 64, cols: 1024, data: &data, beside: &[] };
        for coder in [Coder::Rans, Coder::Huffman] {
            let plane = check_round_trip(&symbols, &options(coder, Layout::Pair));
            assert_eq!(tiling(&plane).shift, want, "spread {spread}, {coder}");
        }
    }
}

#[test]
fn dense_outliers_fall_back_to_the_shift_that_always_fits() {
    // One strip of noise in a plane that is otherwise narrow: its patches would be longer than the chunk may be.
    let mut data = weights(16 * 400 * 256, 1.0, 5);
    let mut rng = StdRng::seed_from_u64(5);
    data[..16 * 256].iter_mut().for_each(|q| *q = rng.random());
    let symbols = SymbolMatrices { count: 1, rows: 16 * 400, cols: 256, data: &data, beside: &[] };
    let plane = check_round_trip(&symbols, &options(Coder::Rans, Layout::Pair));
    assert_eq!(tiling(&plane).shift, 3);
    assert!(plane.form.max_chunk <= 16 * 256);
}

#[test]
fn noise_is_stored_raw_and_raw_chunks_lie_among_coded_ones() {
    let mut rng = StdRng::seed_from_u64(6);
    let noise: Vec<i8> = (0..64 * 512).map(|_| rng.random()).collect();
    let mut mixed = weights(64 * 512, 10.0, 6);
    mixed[..16 * 512].copy_from_slice(&noise[..16 * 512]);
    for &coder in Coder::ALL {
        for &layout in Layout::choices(coder) {
            let o = PlaneOptions { tile: Some(256), ..options(coder, layout) };
            let symbols = |data| SymbolMatrices { count: 1, rows: 64, cols: 512, data, beside: &[] };
            assert_eq!(check_round_trip(&symbols(&noise), &o).coder(), Coder::Raw);
            let plane = check_round_trip(&symbols(&mixed), &o);
            assert_eq!(plane.coder(), coder);
        }
    }
}

#[test]
fn filters_are_used_where_they_pay_and_round_trip() {
    let mut rng = StdRng::seed_from_u64(7);
    for (rows, cols, left) in [(50, 700, true), (700, 50, false), (16, 64, true)] {
        let mut data = vec![0i8; rows * cols];
        for r in 0..rows {
            for c in 0..cols {
                let before = match (left, r, c) {
                    (true, _, 0) | (false, 0, _) => 0,
                    (true, ..) => data[r * cols + c - 1],
                    (false, ..) => data[(r - 1) * cols + c],
                };
                data[r * cols + c] = before.wrapping_add(rng.random_range(-2..=2));
            }
        }
        let symbols = SymbolMatrices { count: 1, rows, cols, data: &data, beside: &[] };
        for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
            for &layout in Layout::choices(coder) {
                let plane = check_round_trip(&symbols, &options(coder, layout));
                let predicted = if left { Filter::Left } else { Filter::Up };
                assert_eq!(
                    plane.form.coding.filter(),
                    // Layout `quad` has no predictive filters.
                    if (coder, layout) == (Coder::Huffman, Layout::Quad) { Filter::None } else { predicted },
                    "{coder} {rows} x {cols}"
                );
            }
        }
        // A chunk that begins within a row restarts `left` there and cannot use `up`.
        let o = PlaneOptions { zstd_chunk: Some(333), ..options(Coder::Zstd, Layout::Byte) };
        assert_ne!(check_round_trip(&symbols, &o).form.coding.filter(), Filter::Up);
    }
    let random = weights(100 * 100, 40.0, 8);
    let plane = check_round_trip(
        &SymbolMatrices { count: 1, rows: 100, cols: 100, data: &random, beside: &[] },
        &options(Coder::Rans, Layout::Pair),
    );
    assert_eq!(plane.form.coding.filter(), Filter::None);
}

#[test]
fn later_planes_share_a_table_where_that_is_smaller() {
    let data = weights(64 * 256, 60.0, 9);
    let symbols = SymbolMatrices { count: 1, rows: 64, cols: 256, data: &data, beside: &[] };
    for coder in [Coder::Rans, Coder::Huffman] {
        let o = options(coder, Layout::Pair);
        let (pool, go, mut shared) = (Pool::new(None).unwrap(), Cancel::new(), Vec::new());
        let mut choice = |symbols: &SymbolMatrices<'_>| {
            let mut draft = Draft::new(symbols, &o, &pool, &go).unwrap();
            draft.choose(&mut shared);
            draft.encode(symbols, &pool, &go, &AtomicUsize::new(0)).unwrap().table.unwrap()
        };
        let first = choice(&symbols);
        assert_eq!((first.place, first.is_new), (Some(0), true));
        let other = weights(64 * 256, 60.0, 10);
        let second = choice(&SymbolMatrices { data: &other, ..symbols });
        assert_eq!((second.place, second.is_new), (Some(0), false));
        assert_eq!(second.table, first.table);
        let narrow = weights(640 * 256, 1.0, 11);
        let third = choice(&SymbolMatrices { data: &narrow, rows: 640, ..symbols });
        assert_eq!((third.place, third.is_new), (Some(1), true));
        assert_eq!(shared, [first.table, third.table]);
    }
}

#[test]
fn encoding_does_not_depend_on_threads() {
    let data = weights(200 * 3000, 60.0, 12);
    let symbols = SymbolMatrices { count: 1, rows: 200, cols: 3000, data: &data, beside: &[] };
    let run = |threads| {
        let pool = Pool::new(Some(threads)).unwrap();
        encode(&symbols, &options(Coder::Rans, Layout::Pair), &pool, &Cancel::new()).unwrap()
    };
    let (a, b) = (run(1), run(5));
    assert_eq!((a.data, a.offsets), (b.data, b.offsets));
}

#[test]
fn symbols_are_counted_and_work_can_be_stopped() {
    // The second data set has outliers enough for two attempts at a shift, the third a filter that pays.
    let ramps: Vec<i8> = (0..100 * 300).map(|i| (i % 300 / 3) as i8).collect();
    for data in [weights(100 * 300, 60.0, 13), weights(100 * 300, 4000.0, 14), ramps] {
        let symbols = SymbolMatrices { count: 1, rows: 100, cols: 300, data: &data, beside: &[] };
        for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
            let (o, pool, go) = (options(coder, Layout::Pair), Pool::new(Some(2)).unwrap(), Cancel::new());
            let draft = || {
                let mut draft = Draft::new(&symbols, &o, &pool, &go).unwrap();
                draft.choose(&mut Vec::new());
                draft
            };
            let done = AtomicUsize::new(0);
            draft().encode(&symbols, &pool, &go, &done).unwrap();
            assert!(done.into_inner() >= data.len());
            let stopped = go.part();
            let late = draft();
            stopped.cancel();
            for result in
                [late.encode(&symbols, &pool, &stopped, &AtomicUsize::new(0)), encode(&symbols, &o, &pool, &stopped)]
            {
                assert_eq!(result.unwrap_err().kind(), crate::ErrorKind::Cancelled);
            }
        }
    }
}

/// Rows of Student-t with six degrees of freedom, quantized per row as scheme `int8` does: the data measured in
/// `gpu-facts`.
fn student_t(rows: usize, cols: usize) -> Vec<i8> {
    use rand_distr::{Distribution, StudentT};
    let (mut rng, t) = (StdRng::seed_from_u64(14), StudentT::new(6.0f32).unwrap());
    let mut data = Vec::with_capacity(rows * cols);
    for _ in 0..rows {
        let row: Vec<f32> = (0..cols).map(|_| t.sample(&mut rng)).collect();
        let scale = row.iter().fold(0f32, |m, w| m.max(w.abs())) / 127.0;
        data.extend(row.iter().map(|w| (w / scale).round_ties_even() as i8));
    }
    data
}

#[test]
fn stored_size_stays_close_to_the_entropy() {
    for (rows, limits) in [(4096, [1.5, 2.2]), (256, [2.5, 3.5])] {
        let data = student_t(rows, 2048);
        let symbols = SymbolMatrices { count: 1, rows, cols: 2048, data: &data, beside: &[] };
        let bound = entropy(&count_bytes(bytemuck::cast_slice(&data))) * data.len() as f64 / 8.0;
        for (coder, limit) in [Coder::Rans, Coder::Huffman].into_iter().zip(limits) {
            for &layout in Layout::choices(coder) {
                // `pair` is the default. `byte` also codes bits that are noise, and pays a little more per lane. Quads
                // have twice as many streams in a tile, and by default no wider tiles than others, since a GPU would
                // have too few of those.
                let widths: &[_] = match layout {
                    Layout::Byte => &[(None, limit + 1.0)],
                    Layout::Quad => &[(Some(512), limit + 1.0), (None, 4.0)],
                    _ => &[(None, limit)],
                };
                for &(tile, limit) in widths {
                    let plane = encode_new(&symbols, &PlaneOptions { tile, ..options(coder, layout) });
                    let over = (plane.stored_bytes() as f64 / bound - 1.0) * 100.0;
                    let width = tiling(&plane).tile;
                    println!("{rows} x 2048 {coder} {layout}: {over:.2} % over entropy, W = {width}");
                    assert!(over < limit, "{rows} rows, {coder} {layout}, W = {width}: {over:.2} % over entropy");
                }
            }
        }
    }
}

/// The lists of patches of a plane's chunks, as positions and values.
fn patches(plane: &EncodedPlane) -> Vec<Vec<(u16, u8)>> {
    let starts: Vec<usize> = plane.offsets.as_chunks().0.iter().map(|b| 4 * u32::from_le_bytes(*b) as usize).collect();
    let list = |start: usize| {
        let (count, rest) = plane.data[start..].split_first_chunk::<4>().unwrap();
        let list = rest.as_chunks::<4>().0.iter().take(u32::from_le_bytes(*count) as usize);
        list.map(|p| (u16::from_le_bytes([p[0], p[1]]), p[2])).collect()
    };
    starts[..starts.len() - 1].iter().map(|&start| list(start)).collect()
}

fn lengths(plane: &EncodedPlane) -> [u8; 256] {
    match &plane.table.as_ref().unwrap().table {
        crate::coder::table::Table::Huffman(table) => *table.lengths(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rare_pairs_become_patches_with_tables_of_every_size_and_shift() {
    let mut seen = std::collections::BTreeSet::new();
    for spread in [3.0, 5.0, 8.0, 12.0, 15.0, 17.0, 19.0, 20.0, 22.0, 26.0, 70.0] {
        let mut data = bell(64 * 1024, spread, 21);
        data.iter_mut().step_by(4999).for_each(|q| *q = -128);
        let symbols = SymbolMatrices { count: 1, rows: 64, cols: 1024, data: &data, beside: &[] };
        let mut sizes = Vec::new();
        for table_bits in 8..=12 {
            let changes = table_bits % 2 == 0;
            let o = PlaneOptions { table_bits, patch_rare: true, changes, ..options(Coder::Huffman, Layout::Pair) };
            let plane = check_round_trip(&symbols, &o);
            assert!(lengths(&plane).iter().all(|&l| u32::from(l) <= table_bits));
            sizes.push(plane.stored_bytes() as f64);
            let shift = tiling(&plane).shift;
            if shift < 3 {
                let escapes = data.iter().filter(|&&q| (q ^ (q >> 7)) as u8 >> shift > 15).count();
                let patched: usize = patches(&plane).iter().map(Vec::len).sum();
                assert!(
                    patched >= escapes && patched < data.len() / 50,
                    "{shift} {table_bits}: {patched}, {escapes} escapes"
                );
            }
            seen.insert((table_bits, shift));
            if table_bits == 10 {
                let o = PlaneOptions { patch_rare: false, ..o };
                assert_eq!(check_round_trip(&symbols, &o).data, plane.data, "small tables always do without");
            }
        }
        assert!(sizes.windows(2).all(|pair| pair[1] < 1.002 * pair[0]), "{sizes:?}");
        // A code for every pair, as other schemes store them, does not make the plane smaller.
        let all = check_round_trip(&symbols, &options(Coder::Huffman, Layout::Pair));
        assert!(all.stored_bytes() as f64 >= sizes[4]);
    }
    assert_eq!(seen.len(), 5 * 4, "{seen:?}");
}

#[test]
fn quads_have_few_patches_for_kernels_to_mend() {
    for spread in [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0] {
        let data = bell(256 * 2048, spread, 31);
        let symbols = SymbolMatrices { count: 1, rows: 256, cols: 2048, data: &data, beside: &[] };
        let o = PlaneOptions { table_bits: 11, ..options(Coder::Huffman, Layout::Quad) };
        let plane = check_round_trip(&symbols, &o);
        let patched: usize = patches(&plane).iter().map(Vec::len).sum();
        assert!(patched * 1000 < data.len(), "spread {spread}: {patched} patches at shift {}", tiling(&plane).shift);
    }
}

#[test]
fn patches_of_a_trellis_give_the_bytes_that_its_parity_is_of() {
    for (spread, shift) in [(4.0, 0), (14.0, 1), (21.0, 2)] {
        let (rows, cols, tile) = (50, 700, 192);
        let mut data = bell(rows * cols, spread, 22);
        data.iter_mut().step_by(997).for_each(|q| *q = 63);
        data.iter_mut().skip(500).step_by(1013).for_each(|q| *q = -64);
        // The levels that a path's symbols stand for.
        data.chunks_mut(cols).flat_map(|row| row.chunks_mut(tile)).for_each(crate::coder::filter::trellis::levels_of);
        let symbols = SymbolMatrices { count: 1, rows, cols, data: &data, beside: &[] };
        for table_bits in 8..=12 {
            let o = PlaneOptions {
                table_bits,
                patch_rare: true,
                changes: table_bits != 9,
                tile: Some(tile),
                filters: Filters::Trellis,
                ..options(Coder::Huffman, Layout::Pair)
            };
            let plane = check_round_trip(&symbols, &o);
            assert!(tiling(&plane).shift <= shift + 1 && tiling(&plane).filter == Filter::Trellis);
            let odd = patches(&plane).concat().iter().filter(|(_, value)| value & 1 == 1).count();
            assert!(odd > 0, "no patch has a lowest bit that counts");
        }
    }
}

#[test]
fn a_chunk_of_rare_pairs_is_stored_raw_without_patches() {
    // A strip of pairs that are rare elsewhere, without escapes.
    let mut data = bell(2048 * 256, 3.0, 23);
    let mut rng = StdRng::seed_from_u64(23);
    data[16 * 256..32 * 256].iter_mut().for_each(|q| *q = rng.random_range(-16..16));
    let symbols = SymbolMatrices { count: 1, rows: 2048, cols: 256, data: &data, beside: &[] };
    for table_bits in 8..=12 {
        let o = PlaneOptions { table_bits, patch_rare: true, tile: Some(256), ..options(Coder::Huffman, Layout::Pair) };
        let plane = check_round_trip(&symbols, &o);
        let lists = patches(&plane);
        let noise = plane.offsets.as_chunks().0[1..3].iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>();
        assert!(tiling(&plane).shift < 2);
        assert_eq!((lists[1].len(), 4 * (noise[1] - noise[0])), (0, 4 + 8 * 256));
    }
}

/// Changes bytes and checks that every instruction set decodes them alike.
fn agree_on_damage(symbols: &SymbolMatrices<'_>, plane: &mut EncodedPlane, rng: &mut impl Rng, rounds: usize) {
    for _ in 0..rounds {
        let at = rng.random_range(0..plane.data.len());
        let before = plane.data[at];
        plane.data[at] = rng.random();
        let s = source(symbols, plane);
        let mut results = Vec::new();
        for isa in Isa::available() {
            let p = Plane::new(s, isa).unwrap();
            let mut out = vec![0x55i8; p.elements()];
            let errors: Vec<bool> = (0..p.pieces())
                .map(|i| p.decode_piece(i, &mut out[p.piece(i)], &mut Scratch::default()).is_err())
                .collect();
            results.push((out, errors));
        }
        assert!(results.windows(2).all(|r| r[0] == r[1]), "byte {at}");
        plane.data[at] = before;
    }
}

#[test]
fn instruction_sets_agree_on_damaged_chunks() {
    let mut rng = StdRng::seed_from_u64(15);
    for spread in [5.0, 14.0, 30.0, 45.0] {
        let mut data = bell(47 * 700, spread, 16);
        data.iter_mut().step_by(977).for_each(|q| *q = 127);
        let symbols = SymbolMatrices { count: 1, rows: 47, cols: 700, data: &data, beside: &[] };
        for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
            for &layout in Layout::choices(coder) {
                let mut plane = encode_new(&symbols, &PlaneOptions { tile: Some(128), ..options(coder, layout) });
                assert_eq!(plane.coder(), coder);
                agree_on_damage(&symbols, &mut plane, &mut rng, 60);
            }
        }
        for table_bits in 8..=10 {
            let o = PlaneOptions { tile: Some(128), table_bits, ..options(Coder::Huffman, Layout::Pair) };
            agree_on_damage(&symbols, &mut encode_new(&symbols, &o), &mut rng, 60);
        }
    }
}

fn tiling(plane: &EncodedPlane) -> Tiling {
    match plane.form.coding {
        Coding::Tiles(tiling) => tiling,
        other => panic!("{other:?}"),
    }
}

#[test]
fn contradicting_parts_are_refused() {
    let data = weights(40 * 300, 15.0, 17);
    let symbols = SymbolMatrices { count: 1, rows: 40, cols: 300, data: &data, beside: &[] };
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd] {
        let plane = encode_new(&symbols, &options(coder, Layout::Pair));
        assert_eq!(plane.coder(), coder);
        let good = source(&symbols, &plane);
        let refuse = |what: &str, s: PlaneSource<'_>| {
            let e = decode(s, Isa::Scalar).expect_err(what);
            assert!(matches!(e.kind(), crate::ErrorKind::Corrupt | crate::ErrorKind::Format), "{what}: {e}");
        };
        refuse("less data", PlaneSource { data: &good.data[..good.data.len() - 4], ..good });
        refuse("no data", PlaneSource { data: &[], ..good });
        refuse("fewer offsets", PlaneSource { offsets: &good.offsets[..good.offsets.len() - 4], ..good });
        refuse("no offsets", PlaneSource { offsets: &[], ..good });
        let with = |matrix, coding, max_chunk| PlaneSource { form: PlaneForm { matrix, coding, max_chunk }, ..good };
        let PlaneForm { matrix, coding, max_chunk } = good.form;
        refuse("more rows", with((1, 57, 300), coding, max_chunk));
        refuse("huge", with((1 << 30, 1 << 30, 1 << 30), coding, max_chunk));
        refuse("smaller bound", with(matrix, coding, max_chunk - 4));
        for i in 0..good.offsets.len() {
            let mut offsets = good.offsets.to_vec();
            offsets[i] ^= 0x41;
            refuse("other offset", PlaneSource { offsets: &offsets, ..good });
        }
        let coded = |coding| with(matrix, coding, max_chunk);
        let zstd = |chunk, filter| coded(Coding::Zstd { chunk, filter });
        match coding {
            Coding::Tiles(tiling) => {
                refuse("no table", PlaneSource { table: None, ..good });
                refuse("less side", PlaneSource { side: &good.side[1..], ..good });
                refuse("other tile", coded(Coding::Tiles(Tiling { tile: 64, ..tiling })));
                refuse("odd tile", coded(Coding::Tiles(Tiling { tile: 100, ..tiling })));
                refuse("other shift", coded(Coding::Tiles(Tiling { shift: 7, ..tiling })));
                let other = if coder == Coder::Rans { Coder::Huffman } else { Coder::Rans };
                refuse("other coder", coded(Coding::Tiles(Tiling { coder: other, ..tiling })));
            }
            _ => {
                refuse("chunk of nothing", zstd(0, Filter::None));
                refuse("other chunk", zstd(100, Filter::None));
                refuse("up within rows", zstd(1000, Filter::Up));
            }
        }
    }
}

#[test]
fn patches_that_point_elsewhere_are_refused() {
    let mut data = weights(16 * 64, 1.0, 18);
    data[5] = 100;
    data[9] = -100;
    let symbols = SymbolMatrices { count: 1, rows: 16, cols: 64, data: &data, beside: &[] };
    let good = encode_new(&symbols, &options(Coder::Rans, Layout::Pair));
    assert_eq!(good.data[..12], [2, 0, 0, 0, 5, 0, 100, 0, 9, 0, 156, 0]);
    for (at, value) in [(0, 1), (0, 255), (3, 1), (5, 4), (7, 1), (4, 9), (4, 10), (8, 5)] {
        let mut bad = encode_new(&symbols, &options(Coder::Rans, Layout::Pair));
        bad.data[at] = value;
        for isa in Isa::available() {
            assert!(decode(source(&symbols, &bad), isa).is_err(), "byte {at} = {value}");
        }
    }
}

#[test]
fn changes_that_do_not_give_the_value_are_refused() {
    let mut data = weights(16 * 64, 1.0, 18);
    data[5] = 100;
    data[9] = -100;
    let symbols = SymbolMatrices { count: 1, rows: 16, cols: 64, data: &data, beside: &[] };
    let o = PlaneOptions { changes: true, ..options(Coder::Rans, Layout::Pair) };
    let good = encode_new(&symbols, &o);
    // The coded values are 15 and -16, the largest high parts.
    assert_eq!(good.data[..12], [2, 0, 0, 0, 5, 0, 100, 85, 9, 0, 156, 172]);
    // The last case stores a change, but one for another element.
    for (at, value) in [(6, 99), (7, 84), (7, 0), (10, 155), (11, 173), (4, 6)] {
        let mut bad = encode_new(&symbols, &o);
        bad.data[at] = value;
        for isa in Isa::available() {
            let error = decode(source(&symbols, &bad), isa).unwrap_err();
            assert!(error.message().contains("a patch at position"), "byte {at} = {value}: {error}");
        }
    }
    // A sum that is only valid for bytes.
    let mut bad = encode_new(&symbols, &o);
    (bad.data[6], bad.data[7]) = (128, 113);
    Isa::available().into_iter().for_each(|isa| assert!(decode(source(&symbols, &bad), isa).is_err()));
}

proptest! {
    #[test]
    fn any_symbols_round_trip(
        count in 1usize..3, rows in 1usize..40, cols in 1usize..200,
        seed: u64, spread in 0.0f64..500.0, outliers in 0usize..40,
        coder in prop::sample::select(Coder::ALL), layout in prop::sample::select(Layout::CHOICES),
        tile in prop::sample::select(vec![None, Some(64), Some(128)]),
        small in 8u32..13, patch_rare: bool, changes: bool,
    ) {
        let mut data = weights(count * rows * cols, spread, seed);
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..outliers {
            let at = rng.random_range(0..data.len());
            data[at] = rng.random();
        }
        let symbols = SymbolMatrices { count, rows, cols, data: &data, beside: &[] };
        let table_bits = if coder == Coder::Huffman { small } else { 12 };
        let layout = if Layout::choices(coder).contains(&layout) { layout } else { Layout::Pair };
        check_round_trip(&symbols, &PlaneOptions { tile, table_bits, patch_rare, changes, ..options(coder, layout) });
    }
}

#[test]
fn states_cost_what_the_format_says() {
    // A tile of one symbol: nothing but states and an empty stream.
    let data = vec![3i8; 16 * 64];
    let symbols = SymbolMatrices { count: 1, rows: 16, cols: 64, data: &data, beside: &[] };
    let o = PlaneOptions { tile: Some(64), ..options(Coder::Rans, Layout::Byte) };
    let plane = encode_new(&symbols, &o);
    if plane.coder() == Coder::Rans {
        assert!(plane.data.len() >= 4 * LANES && plane.data.len() < 4 * LANES + 16);
    }
}
