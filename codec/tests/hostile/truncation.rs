//! Truncated files.

use wcodec::container::{HEADER_BYTES, Header};
use wcodec::{Container, ErrorKind};

use crate::common::image::{Image, reseal_header};
use crate::common::{Rng, samples, text};

#[test]
fn cuts_at_every_border_and_a_thousand_other_places() {
    let folder = tempfile::tempdir().unwrap();
    for sample in samples::all() {
        let image = Image::new(&sample.bytes);
        let length = sample.bytes.len();
        let mut borders = vec![0, 1, 8, HEADER_BYTES - 1, HEADER_BYTES, image.body.len(), length - 1];
        borders.extend(image.places().iter().flat_map(|p| [p.offset, p.offset + p.length]));
        let mut rng = Rng(length as u64);
        let others: Vec<usize> = (0..1000).map(|_| rng.below(length)).collect();
        for (i, cut) in borders.iter().chain(&others).copied().enumerate() {
            let what = format!("{} cut at {cut} of {length}", sample.name);
            let bytes = &sample.bytes[..cut];
            let error = |r: wcodec::Result<Container>| r.map(|_| ()).expect_err(&what);
            let e = error(Container::from_bytes(bytes.to_vec()));
            let kind = if cut < HEADER_BYTES { ErrorKind::Format } else { ErrorKind::Corrupt };
            assert_eq!(e.kind(), kind, "{what}: {e}");
            if cut >= HEADER_BYTES {
                let e = text(&e);
                assert!(e.contains(&format!("{cut} bytes")) && e.contains("cut off"), "{what}: {e}");
            }
            if i < borders.len() {
                let path = folder.path().join("cut.wcodec");
                std::fs::write(&path, bytes).unwrap();
                let e = error(Container::open(&path));
                assert!(e.kind() == kind && text(&e).contains("cut.wcodec"), "{what}: {e}");
            }
            // A header that matches the truncated length finds no index.
            let mut resealed = bytes.to_vec();
            reseal_header(&mut resealed);
            error(Container::from_bytes(resealed));
        }
    }
}

#[test]
fn bytes_after_the_end_are_noticed() {
    for sample in samples::minis() {
        for more in [1, 16, 4096] {
            let mut bytes = sample.bytes.clone();
            bytes.resize(bytes.len() + more, 0);
            let e = Container::from_bytes(bytes.clone()).unwrap_err();
            assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains("appended"), "{e}");
            // And with the length corrected, so that the index no longer ends the file.
            let good = Header::from_bytes(&sample.bytes, sample.bytes.len() as u64).unwrap();
            let header = Header { file_length: bytes.len() as u64, ..good };
            bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
            assert_eq!(Container::from_bytes(bytes).unwrap_err().kind(), ErrorKind::Format);
        }
    }
}

/// A segment that ends early while all hashes and positions are correct: only the decoders can notice.
#[test]
fn segments_that_are_too_short_or_too_long_are_refused() {
    for sample in samples::all() {
        let image = Image::new(&sample.bytes);
        for place in image.places() {
            let bytes = image.segment(&place.pointer);
            let mut lengths = vec![0, 1, 4, bytes.len() / 2, bytes.len() - 1, bytes.len() - 4.min(bytes.len())];
            lengths.extend([bytes.len() + 1, bytes.len() + 4, bytes.len() + 4096, bytes.len() * 2]);
            for n in lengths {
                let mut other = bytes.clone();
                other.resize(n, 0);
                if other == bytes {
                    continue;
                }
                let what = format!("{}: {} of {} bytes, {n} now", sample.name, place.pointer, bytes.len());
                let container = Container::from_bytes(image.clone().replace(&place.pointer, &other).seal()).unwrap();
                for name in container.names() {
                    for verify in [true, false] {
                        let read = crate::common::read_everywhere(&container, name, verify);
                        if place.tensors.iter().any(|t| t == name) {
                            let e = read.expect_err(&what);
                            assert!(matches!(e.kind(), ErrorKind::Format | ErrorKind::Corrupt), "{what}: {e}");
                            assert!(text(&e).contains(&format!("'{name}'")), "{what}: {e}");
                        } else {
                            read.expect(&what);
                        }
                    }
                }
            }
        }
    }
}
