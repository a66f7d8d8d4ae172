//! Single chunks whose bytes contradict each other, with all hashes correct: only the decoders' own checks remain.

use serde_json::json;
use wcodec::{Coder, Container, ErrorKind, Isa, Layout, layer};

use crate::common::image::Image;
use crate::common::{options, read_everywhere, samples, text};

const AT: &str = "/tensors/0/planes/0";

/// A change of a chunk's bytes.
type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);

/// The layer of [`samples::layers`] called `what`, which must have been coded.
fn layer_of(coder: Coder, layout: Layout, what: &str) -> Image {
    let name = format!("{coder} {layout} {what}");
    let all = samples::layers(coder, layout, 48, 192);
    let image = Image::new(&all.into_iter().find(|s| s.name == name).expect("a layer of this name").bytes);
    assert_eq!(plane(&image)["coder"], coder.name());
    image
}

fn plane(image: &Image) -> &serde_json::Value {
    &image.index["tensors"][0]["planes"][0]
}

/// `image` with the first chunk replaced; chunk offsets and all hashes except the plane's are corrected.
fn with_first_chunk(image: &Image, change: impl FnOnce(&mut Vec<u8>)) -> Container {
    let mut offsets: Vec<u32> = numbers(&image.segment(&format!("{AT}/offsets")));
    let data = image.segment(&format!("{AT}/data"));
    let end = offsets[1] as usize * 4;
    let mut chunk = data[..end].to_vec();
    change(&mut chunk);
    let shift = (chunk.len() as i64 - end as i64) / 4;
    offsets[1..].iter_mut().for_each(|o| *o = (i64::from(*o) + shift) as u32);
    let longest = offsets.windows(2).map(|w| (w[1] - w[0]) * 4).max();
    let image = image
        .clone()
        .replace(&format!("{AT}/data"), &[&chunk, &data[end..]].concat())
        .replace(&format!("{AT}/offsets"), &samples::as_bytes(&offsets))
        .set(&format!("{AT}/max_chunk"), json!(longest));
    Container::from_bytes(image.seal()).unwrap()
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// Asserts that every instruction set refuses it, whether hashes are compared or not, and names the chunk.
fn assert_refused(container: &Container, words: &str, what: &str) {
    for verify in [true, false] {
        let e = read_everywhere(container, "layer", verify).map(|_| ()).expect_err(what);
        assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains(words), "{what}: {e}");
        assert!(text(&e).contains("chunk 0"), "{what}: {e}");
    }
}

#[test]
fn patches() {
    for coder in [Coder::Rans, Coder::Huffman] {
        let image = layer_of(coder, Layout::Pair, "patches");
        assert!(plane(&image)["shift"].as_u64().unwrap() < 3);
        let first = &image.segment(&format!("{AT}/data"))[..16];
        let [count, one, two, ..] = numbers(first)[..] else { unreachable!("16 bytes") };
        assert!(count >= 2 && one & 0xFFFF < two & 0xFFFF, "{coder}: {count} patches");
        let put = |chunk: &mut Vec<u8>, at: usize, value: u32| {
            chunk[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        };
        for huge in [1 << 16, 1 << 30, (1 << 30) + 1, 1 << 31, u32::MAX] {
            assert_refused(&with_first_chunk(&image, |c| put(c, 0, huge)), "patches", "too many");
        }
        let edits: [(&str, Edit<'_>); 6] = [
            ("the same place twice", &|c| put(c, 2, one)),
            ("the wrong order", &|c| (put(c, 1, two), put(c, 2, one)).1),
            ("a place beyond the tile", &|c| put(c, 1, (one & 0xFFFF_0000) | 1024)),
            ("the last place there can be", &|c| put(c, 1, one | 0xFFFF)),
            ("a byte that is not 0", &|c| put(c, 1, one | 1 << 24)),
            ("one patch that is the body's", &|c| put(c, 0, count + 1)),
        ];
        for (what, edit) in edits {
            assert_refused(&with_first_chunk(&image, edit), "", what);
        }
        assert_refused(&with_first_chunk(&image, Vec::clear), "too short", "no count");
        // Another value of a patch is valid; only the plane's hash notices it.
        let other = with_first_chunk(&image, |c| put(c, 1, one ^ 0x0001_0000));
        assert!(read_everywhere(&other, "layer", false).is_ok());
        assert!(text(&read_everywhere(&other, "layer", true).unwrap_err()).contains("hash"));
    }
}

#[test]
fn bodies() {
    for (coder, layout) in [
        (Coder::Rans, Layout::Byte),
        (Coder::Rans, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
    ] {
        // Without patches.
        let fits = |i: &Image| {
            let p = plane(i);
            p["coder"] == coder.name() && p.get("filter").is_none() && (layout == Layout::Byte || p["shift"] == 3)
        };
        let images = samples::layers(coder, layout, 48, 192).into_iter().map(|s| Image::new(&s.bytes));
        let image = images.into_iter().find(fits).expect("a layer without patches");
        let what = format!("{coder} {layout}");
        let refused = |change: Edit<'_>, how: &str| {
            assert_refused(&with_first_chunk(&image, change), "", &format!("{what}: {how}"));
        };
        refused(&Vec::clear, "nothing");
        refused(&|c| c.truncate(4), "one word");
        refused(&|c| c.truncate(60), "states cut");
        refused(&|c| c.truncate(c.len() - 4), "the end cut");
        refused(&|c| c.extend([0; 4]), "zeros after it");
        refused(&|c| c.extend([1; 4]), "a word after it");
        refused(&|c| c.resize(4096, 0), "longer than raw");
        refused(&|c| c.fill(0), "zeros");
        refused(&|c| c.fill(0xFF), "ones");
        if coder == Coder::Huffman {
            refused(&|c| c[0] ^= 1, "all lanes of another length");
            refused(&|c| c[4] ^= 1, "lane 0 of another length");
            refused(&|c| c[2] = 1, "lengths taken for wide ones");
            refused(&|c| c[2] = 2, "lengths of an unknown width");
            refused(&|c| c[36] ^= 1, "bit 0 is not 0");
            refused(&|c| c[36] ^= 2, "bit 1 is not 0");
            refused(&|c| c[35] = 0xFF, "the last lane ends beyond the end");
        } else {
            refused(&|c| *c.last_mut().unwrap() |= 0x80, "a bit behind the tails");
            refused(&|c| c[3] ^= 0x40, "a state that is too large");
            refused(&|c| c[..4].fill(0), "a state of 0");
        }
    }
}

/// Patches of layout `quad`, which store by how much they change the coded value.
#[test]
fn patches_of_quads() {
    let image = layer_of(Coder::Huffman, Layout::Quad, "patches");
    let [count, one, two, ..] = numbers(&image.segment(&format!("{AT}/data"))[..16])[..] else {
        unreachable!("16 bytes")
    };
    assert!(count >= 2 && one >> 24 != 0 && one & 0xFFFF < two & 0xFFFF, "{count} patches");
    let put = |chunk: &mut Vec<u8>, at: usize, value: u32| {
        chunk[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
    };
    for huge in [1 << 16, 1 << 30, (1 << 30) + 1, 1 << 31, u32::MAX] {
        assert_refused(&with_first_chunk(&image, |c| put(c, 0, huge)), "patches", "too many");
    }
    let edits: [(&str, Edit<'_>); 7] = [
        ("the same place twice", &|c| put(c, 2, one)),
        ("the wrong order", &|c| (put(c, 1, two), put(c, 2, one)).1),
        ("a place beyond the tile", &|c| put(c, 1, (one & 0xFFFF_0000) | 1024)),
        ("the last place there can be", &|c| put(c, 1, one | 0xFFFF)),
        ("another change", &|c| put(c, 1, one ^ 1 << 24)),
        ("another value", &|c| put(c, 1, one ^ 1 << 16)),
        ("one patch that is the body's", &|c| put(c, 0, count + 1)),
    ];
    for (what, edit) in edits {
        assert_refused(&with_first_chunk(&image, edit), "", what);
    }
    assert_refused(&with_first_chunk(&image, Vec::clear), "too short", "no count");
}

/// A lane has two streams, whose lengths exceed the shortest one by units.
#[test]
fn bodies_of_quads() {
    let images = samples::layers(Coder::Huffman, Layout::Quad, 48, 192).into_iter().map(|s| Image::new(&s.bytes));
    let image = images.into_iter().find(|i| i.segment(&format!("{AT}/data"))[..4] == [0; 4]).expect("no patches");
    // After the count of patches: least length, unit, a byte for each lane, and words.
    let refused = |change: Edit<'_>, how: &str| assert_refused(&with_first_chunk(&image, change), "", how);
    refused(&Vec::clear, "nothing");
    refused(&|c| c.truncate(4), "no body");
    refused(&|c| c.truncate(20), "lengths cut");
    refused(&|c| c.truncate(c.len() - 4), "the end cut");
    refused(&|c| c.extend([0; 4]), "zeros after it");
    refused(&|c| c.resize(4096, 0), "longer than raw");
    refused(&|c| c.fill(0xFF), "ones");
    refused(&|c| c[4..].fill(0), "zeros");
    refused(&|c| c[4..6].fill(0xFF), "streams longer than the body");
    refused(&|c| c[6] += 1, "another unit");
    refused(&|c| c[6] = 9, "a unit that there is not");
    refused(&|c| c[7] = 1, "a unit of two bytes");
    refused(&|c| c[8] ^= 1, "a stream of another length");
    refused(&|c| c[8] ^= 0x10, "the lane's second stream of another length");
    refused(&|c| c[39] = 0xFF, "the last lane ends beyond the end");
    refused(&|c| c[40] ^= 1, "bit 0 is not 0");
    refused(&|c| c[40] ^= 2, "bit 1 is not 0");
}

/// Chunks with no bytes, all bytes, and in between, at every position.
#[test]
fn chunk_offsets_of_tiles() {
    for (coder, layout) in [(Coder::Rans, Layout::Pair), (Coder::Huffman, Layout::Byte), (Coder::Huffman, Layout::Quad)]
    {
        let image = layer_of(coder, layout, "spread 30");
        let at = format!("{AT}/offsets");
        let good = numbers(&image.segment(&at));
        assert_eq!(good.len(), 10);
        for i in 0..good.len() {
            for value in [0, 1, good[i].wrapping_sub(1), good[i] + 1, good[9], 1 << 30, 1 << 31, u32::MAX] {
                if value == good[i] {
                    continue;
                }
                let mut offsets = good.clone();
                offsets[i] = value;
                let bytes = image.clone().replace(&at, &samples::as_bytes(&offsets)).seal();
                let container = Container::from_bytes(bytes).unwrap();
                let e = read_everywhere(&container, "layer", false).map(|_| ()).expect_err("wrong offsets");
                assert_eq!(e.kind(), ErrorKind::Corrupt, "offset {i} = {value}: {e}");
            }
        }
    }
}

/// Raw chunks have no structure: any bytes are symbols, and only the plane's hash identifies the right ones.
#[test]
fn raw_chunks_take_any_bytes() {
    for coder in [Coder::Rans, Coder::Huffman] {
        let image = layer_of(coder, Layout::Byte, "raw chunks");
        let mut body = image.clone();
        let place = image.place(&format!("{AT}/data"));
        // The last chunk.
        body.body[place.offset + place.length - 1024..place.offset + place.length].fill(0x81);
        let bytes = body.rehash().seal();
        let good = layer::decode(&image.seal(), &options(Isa::Scalar, true)).unwrap().2;
        for isa in Isa::available() {
            let got = layer::decode(&bytes, &options(isa, false)).unwrap().2;
            assert!(got[..32 * 192] == good[..32 * 192], "{coder} {isa}: the other chunks");
            let last = got[32 * 192..].chunks(192).all(|row| row[128..].iter().all(|&q| q == -127));
            assert!(last, "{coder} {isa}: the last chunk");
            assert_eq!(layer::decode(&bytes, &options(isa, true)).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
