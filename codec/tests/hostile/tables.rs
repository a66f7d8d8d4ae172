//! Inconsistent tables, with matching hashes.

use wcodec::{Container, ErrorKind};

use crate::common::image::Image;
use crate::common::{checked, read_everywhere, samples, text};

fn refused(image: &Image, table: &[u8], what: &str) {
    let container = Container::from_bytes(image.clone().replace("/tables/0/data", table).seal()).unwrap();
    for verify in [true, false] {
        let e = read_everywhere(&container, "w", verify).map(|_| ()).expect_err(what);
        assert!(e.kind() == ErrorKind::Corrupt && e.byte_offset().is_some(), "{what}: {e}");
        assert!(text(&e).contains("'w'") && text(&e).contains("table"), "{what}: {e}");
    }
    assert!(container.read("steps", &checked(true)).is_ok());
}

#[test]
fn frequencies_that_do_not_add_up() {
    for name in ["rans pair row", "rans byte block"] {
        let image = Image::new(&samples::mini(name));
        let good: Vec<u16> =
            image.segment("/tables/0/data").as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        assert_eq!(good.iter().map(|&f| u32::from(f)).sum::<u32>(), 4096);
        let bytes = |f: &[u16]| samples::as_bytes(f);
        let edited = |edit: &dyn Fn(&mut Vec<u16>)| {
            let mut f = good.clone();
            edit(&mut f);
            bytes(&f)
        };
        for (what, table) in [
            ("zeros", bytes(&[0; 256])),
            ("one too many", edited(&|f| f[0] += 1)),
            ("one too few", edited(&|f| *f.iter_mut().max().unwrap() -= 1)),
            ("all in one", edited(&|f| (f.fill(0), f[7] = 4096).1)),
            ("a sum that wraps 16 bits", edited(&|f| (f.fill(0), f[..17].fill(4095), f[17] = 17).1)),
            ("largest", bytes(&[u16::MAX; 256])),
            ("255 of them", bytes(&good[..255])),
            ("257 of them", bytes(&[&good[..], &[0]].concat())),
            ("none", Vec::new()),
        ] {
            refused(&image, &table, &format!("{name}: {what}"));
        }
    }
}

#[test]
fn code_lengths_that_do_not_fill_the_code() {
    for name in ["huffman pair tensor", "huffman byte row"] {
        let image = Image::new(&samples::mini(name));
        let good = image.segment("/tables/0/data");
        let used = good.iter().position(|&l| l > 1).unwrap();
        let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut l = good.clone();
            edit(&mut l);
            l
        };
        for (what, table) in [
            ("zeros", vec![0; 256]),
            ("one code less", edited(&|l| l[used] = 0)),
            ("one code shorter", edited(&|l| l[used] -= 1)),
            ("too long a code", edited(&|l| l[used] = 13)),
            ("far too long a code", edited(&|l| l[used] = 64)),
            ("longest", vec![255; 256]),
            ("all of 1 bit", vec![1; 256]),
            ("a lone code of 1 bit", edited(&|l| (l.fill(0), l[3] = 1).1)),
            ("255 of them", good[..255].to_vec()),
            ("257 of them", [&good[..], &[0]].concat()),
            ("none", Vec::new()),
        ] {
            refused(&image, &table, &format!("{name}: {what}"));
        }
    }
}

/// Lengths and symbols, both u16, of tables of quads.
#[test]
fn quads_that_do_not_fill_the_code() {
    let image = Image::new(&samples::mini("huffman quad row"));
    let bits = image.index["tables"][0]["bits"].as_u64().unwrap() as usize;
    let good: Vec<u16> = image.segment("/tables/0/data").as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
    let (lengths, symbols) = good.split_at(bits);
    assert_eq!(lengths.iter().map(|&n| usize::from(n)).sum::<usize>(), symbols.len());
    // Two adjacent codes of the same length.
    let long = lengths.iter().position(|&n| n > 1).unwrap();
    let first = bits + lengths[..long].iter().map(|&n| usize::from(n)).sum::<usize>();
    let edited = |edit: &dyn Fn(&mut Vec<u16>)| {
        let mut words = good.clone();
        edit(&mut words);
        samples::as_bytes(&words)
    };
    for (what, table) in [
        ("zeros", samples::as_bytes(&vec![0u16; good.len()])),
        ("one code more", edited(&|w| w[bits - 1] += 1)),
        ("one code less", edited(&|w| w[long] -= 1)),
        ("one code shorter", edited(&|w| (w[long] -= 1, w[long - 1] += 1).1)),
        ("a sum that wraps 16 bits", edited(&|w| w[..bits].fill(u16::MAX))),
        ("largest", vec![0xFF; 2 * good.len()]),
        ("lengths and no symbols", samples::as_bytes(lengths)),
        ("lengths cut", samples::as_bytes(&lengths[1..])),
        ("one symbol less", samples::as_bytes(&good[..good.len() - 1])),
        ("one symbol more", samples::as_bytes(&[&good[..], &[0x7777]].concat())),
        ("half a symbol more", [&samples::as_bytes(&good)[..], &[0]].concat()),
        ("two symbols in the wrong order", edited(&|w| w.swap(first, first + 1))),
        ("a symbol twice", edited(&|w| w[first + 1] = w[first])),
        ("a symbol of two lengths", edited(&|w| w[first] = w[bits])),
        ("a symbol with a bit of no element", edited(&|w| *w.last_mut().unwrap() |= 0x8000)),
        ("a table for other layouts", vec![8; 256]),
        ("none", Vec::new()),
    ] {
        // The symbol of the shortest code may be the only one of its length, so no fault arises.
        if what == "a symbol of two lengths" && first == bits {
            continue;
        }
        refused(&image, &table, &format!("quads: {what}"));
    }
}

/// Tables for another layout than the plane's, or for an unknown one.
#[test]
fn tables_for_other_layouts() {
    let (quad, pair) = ("huffman quad row", "huffman pair tensor");
    for (name, layout, says) in [
        (pair, serde_json::json!("quad"), "of a table of quads"),
        (quad, serde_json::json!("pair"), "a table for coder huffman and layout pair"),
        (quad, serde_json::json!("octet"), "'octet'"),
        (quad, serde_json::json!(null), "table"),
    ] {
        let image = Image::new(&samples::mini(name)).set("/tables/0/layout", layout.clone());
        let e = match Container::from_bytes(image.seal()) {
            Ok(container) => read_everywhere(&container, "w", true).map(|_| ()).expect_err(says),
            Err(e) => e,
        };
        assert!(text(&e).contains(says), "{name} for {layout}: {e}");
    }
    let codes = Image::new(&samples::mini(quad)).set("/tensors/0/planes/0/layout", serde_json::json!("byte"));
    let container = Container::from_bytes(codes.seal()).unwrap();
    let e = read_everywhere(&container, "w", true).map(|_| ()).expect_err("another layout's table");
    assert_eq!(e.kind(), ErrorKind::Format, "{e}");
    let rans = Image::new(&samples::mini("rans pair row")).set("/tensors/0/planes/0/layout", serde_json::json!("quad"));
    let container = Container::from_bytes(rans.seal()).unwrap();
    let e = read_everywhere(&container, "w", true).map(|_| ()).expect_err("another coder's layout");
    assert!(text(&e).contains("layout quad"), "{e}");
}

#[test]
fn sizes_that_tables_do_not_have() {
    let even = vec![8u8; 256];
    for (name, bits, says) in [
        ("huffman pair tensor", 7u32, Some("tables of coder huffman have 8 to 12 bits, not 7")),
        ("huffman byte row", 13, Some("tables of coder huffman have 8 to 12 bits, not 13")),
        ("huffman byte row", u32::MAX, Some("tables of coder huffman have 8 to 12 bits")),
        ("rans pair row", 10, Some("tables of coder rans have 11 or 12 bits, not 10")),
        // These are sizes of format 1.1; the table is not the plane's.
        ("huffman pair tensor", 8, None),
        ("huffman byte row", 9, None),
        ("huffman byte row", 10, None),
    ] {
        let image = Image::new(&samples::mini(name)).set("/tables/0/bits", serde_json::json!(bits));
        let image = if says.is_none() { image.replace("/tables/0/data", &even) } else { image };
        let container = Container::from_bytes(image.seal()).unwrap();
        for verify in [true, false] {
            let e = read_everywhere(&container, "w", verify).map(|_| ()).expect_err(name);
            let kind = if says.is_none() { ErrorKind::Corrupt } else { ErrorKind::Format };
            assert!(e.kind() == kind && text(&e).contains(says.unwrap_or("chunk")), "{name}, {bits} bits: {e}");
        }
    }
    // Codes that are too long for the size in the index.
    let long = Image::new(&samples::mini("huffman pair tensor"));
    let longest = long.segment("/tables/0/data").into_iter().max().unwrap();
    assert!(longest > 8);
    let container = Container::from_bytes(long.set("/tables/0/bits", serde_json::json!(8)).seal()).unwrap();
    let e = read_everywhere(&container, "w", true).map(|_| ()).expect_err("too long");
    assert!(text(&e).contains("a huffman code of") && text(&e).contains("in a table of 8"), "{e}");
}

/// A table of two quads.
fn two_quads() -> Vec<u8> {
    let bits = Image::new(&samples::mini("huffman quad row")).index["tables"][0]["bits"].as_u64().unwrap();
    let mut words = vec![0u16; bits as usize];
    words[0] = 2;
    samples::as_bytes(&[&words[..], &[0x0001, 0x7000]].concat())
}

/// A valid table that differs from the one the plane was coded with.
#[test]
fn tables_of_other_planes() {
    let mut flat = vec![0u16; 256];
    flat.iter_mut().for_each(|f| *f = 16);
    let mut steep = vec![0u16; 256];
    (steep[0], steep[255]) = (4095, 1);
    let mut halves = vec![0u8; 256];
    (halves[9], halves[200]) = (1, 1);
    let wrong = [
        ("rans pair row", samples::as_bytes(&flat)),
        ("rans byte block", samples::as_bytes(&flat)),
        ("rans pair row", samples::as_bytes(&steep)),
        ("rans byte block", samples::as_bytes(&steep)),
        ("huffman pair tensor", vec![8; 256]),
        ("huffman byte row", vec![8; 256]),
        ("huffman pair tensor", halves.clone()),
        ("huffman byte row", halves),
        ("huffman quad row", two_quads()),
    ];
    for (name, table) in wrong {
        let image = Image::new(&samples::mini(name)).replace("/tables/0/data", &table);
        let container = Container::from_bytes(image.seal()).unwrap();
        // The ends of the streams reveal it, even without hashes.
        for verify in [true, false] {
            let e = read_everywhere(&container, "w", verify).map(|_| ()).expect_err(name);
            assert!(e.kind() == ErrorKind::Corrupt && text(&e).contains("chunk"), "{name}: {e}");
        }
    }
}
