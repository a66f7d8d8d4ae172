//! Single flipped bits, with unchanged hashes: each is noticed, and only by readers of the affected bytes.

use wcodec::container::Header;
use wcodec::{Container, DecodeOptions, ErrorKind};

use crate::common::image::{Image, flipped};
use crate::common::{Rng, checked, samples, text, values};

/// Bits that are tried in segments too long to try every bit.
const SAMPLE: usize = 300;

#[test]
fn every_bit_of_header_and_index_is_noticed_when_opening() {
    for sample in samples::minis() {
        let header = Header::from_bytes(&sample.bytes, sample.bytes.len() as u64).unwrap();
        let index = header.index_offset as usize..sample.bytes.len();
        for bit in (0..64 * 8).chain(index.start * 8..index.end * 8) {
            let e = Container::from_bytes(flipped(&sample.bytes, bit)).map(|_| ()).expect_err(&sample.name);
            assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt), "{}, bit {bit}: {e}", sample.name);
            assert!(e.byte_offset().is_some(), "{}, bit {bit}: no place in '{e}'", sample.name);
        }
    }
}

#[test]
fn every_bit_of_segments_is_noticed_in_the_tensors_that_need_it() {
    for sample in samples::all() {
        let image = Image::new(&sample.bytes);
        let good = values(&sample.bytes);
        let mut rng = Rng(31);
        for place in image.places() {
            let all: Vec<usize> = (place.offset * 8..(place.offset + place.length) * 8).collect();
            let dense = matches!(place.role, "table" | "offsets" | "scales") || all.len() <= SAMPLE;
            let mut bits = if dense { all } else { (0..SAMPLE).map(|_| all[rng.below(all.len())]).collect() };
            // The first and the last bit are where a length may be off by one.
            bits.extend([place.offset * 8, (place.offset + place.length) * 8 - 1]);
            for (i, &bit) in bits.iter().enumerate() {
                let what = format!("{}: {}, bit {bit}", sample.name, place.pointer);
                let container = Container::from_bytes(flipped(&sample.bytes, bit)).expect(&what);
                for name in &place.tensors {
                    let e = container.read(name, &DecodeOptions::default()).expect_err(&what);
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
                    assert!(text(&e).starts_with(&format!("tensor '{name}', byte {}: ", place.offset)), "{what}: {e}");
                }
                // All other tensors for some bits, one for the others.
                let others: Vec<_> = good.iter().filter(|(n, _)| !place.tensors.contains(n)).collect();
                let turn = if i % 64 == 0 { &others[..] } else { &others[i % others.len()..][..1] };
                for (name, want) in turn {
                    assert_eq!(container.read(name, &checked(true)).expect(&what)[..], want[..], "{what}: '{name}'");
                }
            }
        }
    }
}

#[test]
fn a_damaged_tensor_is_damaged_under_all_its_names_and_in_all_its_parts() {
    let sample = &samples::all()[0];
    let place = Image::new(&sample.bytes).place("/tensors/0/planes/0/data");
    let container = Container::from_bytes(flipped(&sample.bytes, place.offset * 8 + 77)).unwrap();
    for name in ["a.weight", "tied"] {
        let errors = [
            container.read(name, &checked(true)).map(|_| ()),
            container.read_as(name, wcodec::Dtype::F32, &checked(true)).map(|_| ()),
            container.symbols(name, &checked(true)).map(|_| ()),
            container.read_chunk(name, 0, &checked(true)).map(|_| ()),
        ];
        for e in errors.map(Result::unwrap_err) {
            assert_eq!(e.kind(), ErrorKind::Corrupt);
            assert!(text(&e).contains(&format!("'{name}'")) && text(&e).contains("still readable"), "{e}");
        }
        // Reads that avoid the damaged bytes still work.
        assert!(container.scales(name).is_ok() && container.chunk(name, 0).is_ok());
    }
    let report = wcodec::verify(&container, None, &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
    let bad: Vec<_> = report.tensors.iter().filter(|t| t.status != wcodec::VerifyStatus::Ok).collect();
    assert!(!report.ok() && bad.len() == 1 && bad[0].name == "a.weight", "{report:?}");
}

#[test]
fn padding_is_noticed_by_verify_and_harms_nobody() {
    let mut tried = 0;
    for sample in samples::all() {
        let image = Image::new(&sample.bytes);
        let good = values(&sample.bytes);
        let mut end = 64;
        let places = image.places();
        let starts = places.iter().map(|p| (p.offset, p.offset + p.length));
        for (start, next) in starts.chain([(image.body.len(), 0)]) {
            for at in end..start {
                let bytes = flipped(&sample.bytes, at * 8 + at % 8);
                let container = Container::from_bytes(bytes.clone()).unwrap();
                let report = wcodec::verify(&container, None, &DecodeOptions::default(), &mut |_| Ok(())).unwrap();
                let file = report.file.clone().unwrap_or_default();
                assert!(!report.ok() && file.contains(&format!("byte {at}")), "{}: {report:?}", sample.name);
                assert_eq!(values(&bytes), good);
                tried += 1;
            }
            end = next;
        }
    }
    assert!(tried > 10, "only {tried} bytes of padding in all samples");
}
