//! Products with matrices of random shapes, schemes, rates and tables, sound and damaged, for random vectors on random devices.

use super::*;
use crate::scheme::rate::{Bits, Rate};

/// Options of an encoding that kernels multiply with.
fn encoding(rng: &mut StdRng) -> EncodeOptions {
    let coder = [Coder::Rans, Coder::Huffman][rng.random_range(0..2)];
    let tile = [None, Some(64), Some(128), Some(192), Some(256), Some(512)][rng.random_range(0..6)];
    let layout = if coder == Coder::Huffman && rng.random() { Layout::Quad } else { Layout::Pair };
    let o = EncodeOptions { coder, layout: Some(layout), tile, ..Default::default() };
    let table_bits = rng.random_range(if coder == Coder::Huffman { 8 } else { 11 }..13);
    if rng.random() {
        // Tables of fewer bits with layout `pair` have other shifts than int8's, or are not multiplied with.
        let table_bits = if layout == Layout::Quad { table_bits } else { 12 };
        let blocks = 64 * rng.random_range(1..5);
        let by = [Granularity::Row, Granularity::Row, Granularity::Tensor, Granularity::Block(blocks)];
        return EncodeOptions { scheme: Scheme::Int8(by[rng.random_range(0..4)]), table_bits: Some(table_bits), ..o };
    }
    let scheme = Scheme::Rate(Rate { bits: Bits::new(4.0).unwrap(), trellis: rng.random() });
    // From less than two bits a weight to seven.
    EncodeOptions { scheme, table_bits: Some(table_bits), step: Some(2f32.powf(rng.random_range(-6.0..1.0))), ..o }
}

/// Any widths, whole blocks, or more columns than small devices have room for.
fn shape(rng: &mut StdRng) -> Vec<usize> {
    let (rows, cols): (usize, usize) = match rng.random_range(0..9) {
        0..=4 => (rng.random_range(1..120), rng.random_range(1..1400)),
        5..=7 => (rng.random_range(1..120), 64 * rng.random_range(1..20)),
        _ => (rng.random_range(1..40), 4096),
    };
    if rng.random_range(0..4) == 0 { vec![rng.random_range(1..4), rows.div_ceil(2), cols] } else { vec![rows, cols] }
}

/// As many cases as WCODEC_CASES says. Decoded values are the oracle's bit for bit, products are within their bound of
/// its sums, and the same on another device; damage is found as decoders find it.
#[test]
fn random_shapes_rates_and_damage() {
    let cases: usize = std::env::var("WCODEC_CASES").map_or(80, |n| n.parse().expect("WCODEC_CASES is a number"));
    let (mut sound, mut found, mut unseen, mut by_many) = (0, 0, 0, 0);
    for case in 0.. {
        // Some are so small that they are stored as they are, or their table is.
        if sound == cases {
            break;
        }
        assert!(case < 4 * cases as u64 + 20, "{sound} of {case}");
        let mut rng = StdRng::seed_from_u64(9000 + case);
        let (o, shape) = (encoding(&mut rng), shape(&mut rng));
        let what = format!("case {case}, {shape:?} {o:?}");
        let source = sample(&mut rng, std::slice::from_ref(&shape));
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        let parts = container.bytes_of("w0", &oracle()).unwrap();
        let Some(mut t) = Loaded::new(&parts) else { continue };
        if can_fuse(&t.plan).is_some() {
            continue;
        }
        let decoded = run_all(std::slice::from_mut(&mut t), OutputKind::F32).remove(0);
        assert!(
            decoded.status.is_none() && *decoded.bytes == *container.read_as("w0", Dtype::F32, &oracle()).unwrap(),
            "{what}"
        );
        let kind = [OutputKind::F16, OutputKind::BF16][rng.random_range(0..2)];
        let of_many = most_vectors(&t.plan, many::DEVICES[1]) == 128 && rng.random();
        by_many += usize::from(of_many);
        let usual = [1, 1, rng.random_range(2..17)][rng.random_range(0..3)];
        let count = if of_many { rng.random_range(1..129) } else { usual };
        let size = 2f32.powf(rng.random_range(-8.0..6.0));
        let inputs = Inputs::new(&mut rng, kind, count, t.plan.matrix.2, size);
        let (plan, all) = (t.plan.clone(), t.plan.rows());
        // Some devices with the least memory refuse wide tiles and many columns.
        let (one, few) = (Limits { multiprocessors: 1, ..LARGE }, Limits { multiprocessors: 1, ..ROOMY });
        let [large, narrow] = many::DEVICES;
        let devices = match shape.last() > Some(&1400) {
            _ if of_many => [large, narrow, large, narrow],
            true => [LARGE, one, LARGE, one],
            false => [few, ROOMY, LARGE, one],
        };
        let at = rng.random_range(0..devices.len());
        let mut tensors = [t];
        let (got, used) = multiply(&mut tensors, &inputs, None, &|s| 0..s, devices[at], case);
        assert_eq!(tensors[0].status, [abi::STATUS_GOOD], "{what}");
        compare(&container, &plan, &inputs, None, 0..all, &got[0], &format!("{used:?} {what}"));
        let (again, other) = multiply(&mut tensors, &inputs, None, &|s| 0..s, devices[(at + 1) % 4], case + 1);
        assert!(got == again, "{used:?} and {other:?} differ: {what}");
        sound += 1;
        let mut t = Loaded::new(&parts).unwrap();
        let plane = &t.plan.packed.planes[0];
        let part = [&plane.data, &plane.offsets, &plane.side][rng.random_range(0..4) % 3].clone();
        damage(&mut rng, &mut t.packed[part]);
        if let Some((more, others)) = damaged(t, &inputs, devices[at], case, &what) {
            found += more;
            unseen += others;
        }
    }
    assert!(found > cases && unseen > cases && by_many > cases / 20, "{found}, {unseen}, {by_many}");
}
