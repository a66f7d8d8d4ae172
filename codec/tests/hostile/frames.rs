//! Zstd frames that libzstd would accept and the format does not, and frames that neither accepts.

use serde_json::json;
use wcodec::{Coder, Container, ErrorKind, Layout, Scheme};

use crate::common::image::Image;
use crate::common::zstd_frame::{Frame, skippable};
use crate::common::{Rng, read_everywhere, samples, text};

const ROWS: usize = 16;
const COLS: usize = 64;

/// The decoded bytes of [`image`].
fn plane() -> Vec<u8> {
    bytemuck::cast_slice(&samples::symbols(ROWS * COLS, 9.0, 51)).to_vec()
}

/// A container of one plane in one frame.
fn image() -> Image {
    let mut options = samples::encode_options(Coder::Zstd, Layout::Byte, Scheme::Raw);
    options.zstd_chunk = Some(ROWS * COLS);
    Image::new(&wcodec::layer::encode(bytemuck::cast_slice(&plane()), ROWS, COLS, &options).unwrap())
}

/// A container whose only chunk is `frame`, with everything around it correct.
fn with_frame(frame: &[u8]) -> Container {
    let offsets = [0u32.to_le_bytes(), (frame.len() as u32).to_le_bytes()].concat();
    let at = "/tensors/0/planes/0";
    let image = image()
        .replace(&format!("{at}/data"), frame)
        .replace(&format!("{at}/offsets"), &offsets)
        .set(&format!("{at}/max_chunk"), json!(frame.len()));
    Container::from_bytes(image.seal()).unwrap()
}

#[test]
fn frames_that_the_format_does_not_allow() {
    let plane = plane();
    let good = Frame::of(&plane);
    for verify in [true, false] {
        assert_eq!(read_everywhere(&with_frame(&good.bytes()), "layer", verify).unwrap(), plane);
    }
    let (first, second) = plane.split_at(500);
    let low = xxh64(&plane) as u32;
    let longer = [&plane[..], &[0]].concat();
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("a checksum", Frame { checksum: Some(low), ..good }.bytes()),
        ("a wrong checksum", Frame { checksum: Some(!low), ..good }.bytes()),
        ("no content size", Frame { size: None, window: Some(0), ..good }.bytes()),
        ("a dictionary", Frame { dictionary: Some(7), ..good }.bytes()),
        ("a window of 64 MiB", Frame { window: Some(16 << 3), ..good }.bytes()),
        ("a window of 2 TiB", Frame { window: Some(0xFF), ..good }.bytes()),
        ("content of 1 byte less", Frame::of(&plane[1..]).bytes()),
        ("content of 1 byte more", Frame::of(&longer).bytes()),
        ("a size of 1 less", Frame { size: Some(plane.len() as u32 - 1), ..good }.bytes()),
        ("a size of 1 more", Frame { size: Some(plane.len() as u32 + 1), ..good }.bytes()),
        ("a size of 0", Frame { size: Some(0), ..good }.bytes()),
        ("a size of 4 GiB", Frame { size: Some(u32::MAX), ..good }.bytes()),
        ("two frames", [Frame::of(first).bytes(), Frame::of(second).bytes()].concat()),
        ("an empty frame after it", [good.bytes(), Frame::of(&[]).bytes()].concat()),
        ("an empty frame before it", [Frame::of(&[]).bytes(), good.bytes()].concat()),
        ("a byte after it", [good.bytes(), vec![0]].concat()),
        ("padding after it", [good.bytes(), vec![0; 8]].concat()),
        ("a skippable frame before it", [skippable(b"hello"), good.bytes()].concat()),
        ("a skippable frame after it", [good.bytes(), skippable(b"")].concat()),
        ("a skippable frame alone", skippable(&plane)),
        ("a reserved bit", edited(&good.bytes(), 4, 0x08)),
        ("another magic", edited(&good.bytes(), 0, 0x01)),
        ("a block type that is reserved", edited(&good.bytes(), 9, 0x06)),
        ("a block that is not the last", edited(&good.bytes(), 9, 0x01)),
        ("cut off", good.bytes()[..good.bytes().len() - 1].to_vec()),
        ("a header alone", good.bytes()[..9].to_vec()),
        ("a magic alone", good.bytes()[..4].to_vec()),
        ("one byte", vec![0x28]),
    ];
    for (what, frame) in bad {
        let container = with_frame(&frame);
        for verify in [true, false] {
            let e = read_everywhere(&container, "layer", verify).map(|_| ()).expect_err(what);
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
            assert!(text(&e).contains("zstd frame 0") && text(&e).contains("'layer'"), "{what}: {e}");
        }
    }
}

fn edited(frame: &[u8], at: usize, flip: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] ^= flip;
    frame
}

/// libzstd's checksum, so that libzstd would accept the frame that has one.
fn xxh64(bytes: &[u8]) -> u64 {
    let mut c = zstd::bulk::Compressor::new(1).unwrap();
    c.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true)).unwrap();
    let frame = c.compress(bytes).unwrap();
    u64::from(u32::from_le_bytes(frame[frame.len() - 4..].try_into().unwrap()))
}

#[test]
fn the_frame_with_a_checksum_is_valid_zstd() {
    let plane = plane();
    let frame = Frame { checksum: Some(xxh64(&plane) as u32), ..Frame::of(&plane) }.bytes();
    assert_eq!(zstd::bulk::decompress(&frame, plane.len()).unwrap(), plane);
    let small = Frame { window: Some(16 << 3), ..Frame::of(&plane) }.bytes();
    assert_eq!(zstd::bulk::decompress(&small, plane.len()).unwrap(), plane);
}

#[test]
fn chunk_offsets_of_frames() {
    let options = samples::encode_options(Coder::Zstd, Layout::Byte, Scheme::Raw);
    let symbols = samples::symbols(64 * 128, 9.0, 52);
    let image = Image::new(&wcodec::layer::encode(&symbols, 64, 128, &options).unwrap());
    let at = "/tensors/0/planes/0/offsets";
    let good: Vec<u32> = image.segment(at).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    assert!(good.len() >= 8);
    let mut rng = Rng(53);
    for i in 0..good.len() {
        let random = rng.next() as u32;
        for value in
            [0, 1, good[i].wrapping_sub(1), good[i] + 1, good[i] + 8, 1 << 28, 1 << 29, 1 << 31, u32::MAX, random]
        {
            if value == good[i] {
                continue;
            }
            let mut offsets = good.clone();
            offsets[i] = value;
            let bytes = image.clone().replace(at, &samples::as_bytes(&offsets)).seal();
            let container = Container::from_bytes(bytes).unwrap();
            let e = read_everywhere(&container, "layer", false).map(|_| ()).expect_err("an offset that is not right");
            assert_eq!(e.kind(), ErrorKind::Corrupt, "offset {i} = {value}: {e}");
        }
    }
}
