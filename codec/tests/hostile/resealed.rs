//! Damage that hashes do not reveal, because they are not compared or were recomputed.

use std::collections::BTreeMap;

use wcodec::{Container, Dtype, ErrorKind, MemorySource, VerifyStatus};

use crate::allocator::assert_modest;
use crate::common::image::{Image, flipped};
use crate::common::{Rng, checked, fuzz, options, read_everywhere, samples, text, values};

/// Bits that are tried in a long segment.
const SAMPLE: usize = 250;

/// Bits of a range of bytes, all or a sample, always including the first and last 16: counts and ends are there.
fn bits(offset: usize, length: usize, rng: &mut Rng) -> Vec<usize> {
    let (begin, end) = (offset * 8, (offset + length) * 8);
    if end - begin <= SAMPLE {
        return (begin..end).collect();
    }
    let edges = (begin..begin + 16).chain(end - 16..end);
    edges.chain((0..SAMPLE - 32).map(|_| begin + rng.below(end - begin))).collect()
}

/// Without hashes every instruction set must agree on the damage; with new segment hashes, only the plane's own hash
/// remains, which must notice every changed value.
#[test]
fn flipped_bits_meet_the_decoders() {
    let mut outcomes: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for sample in samples::minis().into_iter().chain(samples::all_layers()) {
        let image = Image::new(&sample.bytes);
        let good: BTreeMap<String, Vec<u8>> = values(&sample.bytes).into_iter().collect();
        let mut rng = Rng(41);
        for place in image.places() {
            for bit in bits(place.offset, place.length, &mut rng) {
                let bytes = flipped(&sample.bytes, bit);
                let what = format!("{}: {}, bit {bit}", sample.name, place.pointer);
                let container = Container::from_bytes(bytes.clone()).expect(&what);
                let mut body = image.clone();
                body.body.copy_from_slice(&bytes[..image.body.len()]);
                let resealed = Container::from_bytes(body.rehash().seal()).expect(&what);
                // A changed bit of a symbol makes another valid table if the order is kept.
                let quads =
                    place.role == "table" && image.index.pointer(&place.pointer.replace("/data", "/layout")).is_some();
                let role = if quads { "quads" } else { place.role };
                for name in &place.tensors {
                    let decoded = read_everywhere(&container, name, false);
                    outcomes.entry(role).or_default()[usize::from(decoded.is_err())] += 1;
                    let verified = resealed.read(name, &checked(true));
                    match (&decoded, &verified) {
                        // Scales are covered by the segment's hash alone.
                        (Ok(d), Ok(v)) => {
                            assert_eq!(d[..], v[..], "{what}");
                            assert!(place.role == "scales" || d[..] == good[name][..], "{what}: wrong and unnoticed");
                        }
                        (Err(d), Err(v)) => assert_eq!(d.kind(), v.kind(), "{what}"),
                        (Ok(d), Err(v)) => {
                            assert!(v.kind() == ErrorKind::Corrupt && d[..] != good[name][..], "{what}: {v}");
                        }
                        (Err(d), Ok(_)) => panic!("{what}: '{d}' only where no hash is compared"),
                    }
                    for e in decoded.err().iter().chain(&verified.err()) {
                        assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Format), "{what}: {e}");
                        assert!(text(e).contains(&format!("'{name}'")), "{what}: {e}");
                    }
                }
                assert_modest(&what);
            }
        }
    }
    // Both outcomes must occur for every role, or else the test does not reach its target.
    for role in ["data", "side", "table", "offsets"] {
        let [fine, refused] = outcomes[role];
        // A table with one changed bit never adds up, and offsets with one changed bit never fit.
        let strict = matches!(role, "table" | "offsets");
        assert!(strict == (fine == 0) && (strict || fine > 50), "{role}: {fine} flips decode");
        assert!(role == "side" || refused > 50, "{role}: only {refused} flips are refused");
    }
}

/// Everything resealed, including the planes' hashes: whatever decodes is a valid container.
#[test]
fn damage_with_all_hashes_right_is_a_container_like_any_other() {
    let mut rng = Rng(42);
    let mut readable = 0;
    for sample in samples::minis().into_iter().chain(samples::all_layers()) {
        let image = Image::new(&sample.bytes);
        for place in image.places() {
            for _ in 0..6 {
                let mut body = image.clone();
                for _ in 0..=rng.below(3) {
                    let at = place.offset + rng.below(place.length);
                    body.body[at] = rng.next() as u8;
                }
                let bytes = body.rehash().rehash_planes().seal();
                let container = Container::from_bytes(bytes).unwrap();
                for name in container.names() {
                    let (plain, verified) =
                        (read_everywhere(&container, name, false), read_everywhere(&container, name, true));
                    readable += usize::from(verified.is_ok());
                    assert_eq!(plain.ok(), verified.ok(), "{}: {}", sample.name, place.pointer);
                }
                fuzz::container::exercise(&container);
                assert_modest(&sample.name);
            }
        }
    }
    assert!(readable > 100);
}

/// Random bytes in place of whole segments.
#[test]
fn garbage_segments() {
    let mut rng = Rng(43);
    for sample in samples::minis().into_iter().chain(samples::all_layers()) {
        let image = Image::new(&sample.bytes);
        for place in image.places() {
            for fill in 0..4 {
                let mut body = image.clone();
                let range = place.offset..place.offset + place.length;
                body.body[range].fill_with(|| match fill {
                    0 => 0,
                    1 => 0xFF,
                    _ => rng.next() as u8,
                });
                let container = Container::from_bytes(body.rehash().seal()).unwrap();
                let what = format!("{}: {} filled", sample.name, place.pointer);
                for name in &place.tensors {
                    let plain = read_everywhere(&container, name, false);
                    let verified = container.read(name, &options(wcodec::Isa::Scalar, true));
                    assert!(place.role == "scales" || verified.is_err() || plain.is_ok(), "{what}");
                    if place.role == "offsets" || (place.role == "table" && fill < 2) {
                        assert!(plain.is_err(), "{what}: decodes");
                    }
                }
                assert_modest(&what);
            }
        }
    }
}

/// Scales are not interpreted: NaN stays NaN in every dtype, and infinity times 0 is NaN.
#[test]
fn scales_that_are_not_finite() {
    use wcodec::Dtype::{BF16, F16, F32};
    let image = Image::new(&samples::mini("rans pair row"));
    let symbols = Container::from_bytes(image.clone().seal()).unwrap().symbols("w", &checked(true)).unwrap();
    for bits in [0x7FFF_FFFFu32, 0xFFFF_FFFF, 0x7F80_0001, 0x7FC0_0000, f32::INFINITY.to_bits(), f32::MAX.to_bits()] {
        let mut scales = image.segment("/tensors/0/scales/data");
        scales[..4].copy_from_slice(&bits.to_le_bytes());
        let container = Container::from_bytes(image.clone().replace("/tensors/0/scales/data", &scales).seal()).unwrap();
        let scale = f32::from_bits(bits);
        for verify in [true, false] {
            let read = |dtype| container.read_as("w", dtype, &checked(verify)).unwrap();
            let (wide, half, brain) = (read(F32), read(F16), read(BF16));
            let wide: &[f32] = bytemuck::cast_slice(&wide);
            let half: &[half::f16] = bytemuck::cast_slice(&half);
            let brain: &[half::bf16] = bytemuck::cast_slice(&brain);
            for (i, &q) in symbols[..128].iter().enumerate() {
                let want = f32::from(q) * scale;
                let same = |got: f32, want: f32| got == want || (got.is_nan() && want.is_nan());
                assert!(same(wide[i], want), "{bits:x} * {q}: {}", wide[i]);
                assert!(same(half[i].to_f32(), half::f16::from_f32(want).to_f32()), "{bits:x} * {q}: {}", half[i]);
                assert!(same(brain[i].to_f32(), half::bf16::from_f32(want).to_f32()), "{bits:x} * {q}: {}", brain[i]);
            }
            assert!(wide[128..].iter().all(|w| w.is_finite()));
        }
    }
}

/// Symbols that become non-finite are damage, which verifying finds and locates. Reading returns them unchanged
/// (above).
#[test]
fn values_that_are_not_finite_are_found_by_verifying() {
    let verify = |image: &Image, scales: &[f32]| {
        let bytes = image.clone().replace("/tensors/0/scales/data", &samples::as_bytes(scales)).seal();
        let container = Container::from_bytes(bytes).unwrap();
        let report = wcodec::verify(&container, None, &checked(true), &mut |_| Ok(())).unwrap();
        let found = report.tensors.iter().find(|t| t.name == "w").unwrap().clone();
        assert_eq!(report.ok(), found.status == VerifyStatus::Ok);
        assert_eq!(container.check("w", &checked(false)).is_ok(), found.status == VerifyStatus::Ok);
        found
    };
    // The number of columns that share a scale.
    for (name, columns) in [("rans pair row", 128), ("rans byte block", 64), ("huffman pair tensor", 48 * 128)] {
        let image = Image::new(&samples::mini(name));
        let container = Container::from_bytes(image.clone().seal()).unwrap();
        let good = container.scales("w").unwrap();
        let symbols = container.symbols("w", &checked(true)).unwrap();
        assert_eq!(verify(&image, &good).status, VerifyStatus::Ok);
        for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e37] {
            for group in [0, good.len() / 2, good.len() - 1] {
                let mut scales = good.clone();
                scales[group] = scale;
                let bad = |&q: &i8| !(f32::from(q) * scale).is_finite();
                let at = group * columns + symbols[group * columns..][..columns].iter().position(bad).unwrap();
                let found = verify(&image, &scales);
                assert_eq!(found.status, VerifyStatus::Damaged, "{name}: {scale} of {group}");
                let place = format!("row {}, column {} is not finite", at / 128, at % 128);
                assert!(found.detail.contains(&place) && found.detail.contains("older wcodec"), "{}", found.detail);
            }
        }
        // The largest symbol present decides, not the largest possible one.
        let largest = f32::from(symbols[..columns].iter().map(|q| q.unsigned_abs()).max().unwrap());
        let most = f32::from(half::bf16::MAX) / largest;
        let mut scales = good.clone();
        scales[0] = most;
        assert_eq!(verify(&image, &scales).status, VerifyStatus::Ok, "{name}: {most}");
        scales[0] = most * 1.01;
        assert_eq!(verify(&image, &scales).status, VerifyStatus::Damaged, "{name}: {most}");
    }
}

/// With a source, too: it would report that a scale differs, but not the non-finite values.
#[test]
fn values_that_are_not_finite_are_damage_whatever_the_source_is() {
    let weights = samples::weights(48 * 128, 11);
    let mut source = MemorySource::new();
    source.push("w".to_owned(), Dtype::BF16, vec![48, 128], samples::as_bf16(&weights).into()).unwrap();
    let mut odd = MemorySource::new();
    let infinite: Vec<f32> = weights.iter().map(|w| w / 0.0).collect();
    odd.push("w".to_owned(), Dtype::BF16, vec![48, 128], samples::as_bf16(&infinite).into()).unwrap();
    let image = Image::new(&samples::mini("rans pair row"));
    let mut scales = image.segment("/tensors/0/scales/data");
    for (bits, statuses) in [
        (None, [VerifyStatus::Ok, VerifyStatus::Differs]),
        (Some(f32::INFINITY), [VerifyStatus::Damaged, VerifyStatus::Damaged]),
    ] {
        if let Some(scale) = bits {
            scales[..4].copy_from_slice(&scale.to_le_bytes());
        }
        let container = Container::from_bytes(image.clone().replace("/tensors/0/scales/data", &scales).seal()).unwrap();
        for (source, status) in [&source, &odd].into_iter().zip(statuses) {
            let report = wcodec::verify(&container, Some(source), &checked(true), &mut |_| Ok(())).unwrap();
            let found = report.tensors.iter().find(|t| t.name == "w").unwrap();
            assert_eq!(found.status, status, "{bits:?}: {}", found.detail);
        }
    }
}
