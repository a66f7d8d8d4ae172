//! The frames that are tried.

use std::io::{self, Write};

use zstd::stream::write::Encoder;

#[path = "../../tests/common/zstd_frame.rs"]
mod zstd_frame;

use zstd_frame::{Frame, skippable};

/// Frames, and what has to come out of each.
#[derive(Default)]
pub struct Case {
    pub frames: Vec<(Vec<u8>, Vec<u8>)>,
    /// Addresses lie so far from multiples of 16.
    pub input_shift: usize,
    pub output_shift: usize,
}

impl Case {
    fn one(frame: Vec<u8>, content: Vec<u8>) -> Self {
        Self { frames: vec![(frame, content)], ..Self::default() }
    }
}

type Make = fn() -> io::Result<Case>;

/// First the ones that the format uses, then what others may write, at last what is damaged.
const CASES: [(&str, Make); 32] = [
    ("plain", || encoded(64 << 10, 3)),
    ("1,024 frames of 8 KiB", many),
    ("one byte", || encoded(1, 3)),
    ("empty", || encoded(0, 3)),
    ("level -5", || encoded(64 << 10, -5)),
    ("level 19", || encoded(64 << 10, 19)),
    ("level 22, 1 MiB", || encoded(1 << 20, 22)),
    ("many blocks, 4 MiB", || encoded(4 << 20, 3)),
    ("16 MiB", || encoded(16 << 20, 1)),
    ("constant", || Ok(from(vec![7; 64 << 10]))),
    ("raw block", || Ok(raw_block(|f| f))),
    ("rle block", || Ok(rle_block())),
    ("input 1 byte off", || Ok(Case { input_shift: 1, ..encoded(64 << 10, 3)? })),
    ("input 4 bytes off", || Ok(Case { input_shift: 4, ..encoded(64 << 10, 3)? })),
    ("input 8 bytes off", || Ok(Case { input_shift: 8, ..encoded(64 << 10, 3)? })),
    ("output 1 byte off", || Ok(Case { output_shift: 1, ..encoded(64 << 10, 3)? })),
    ("checksum", || streamed(|e| e.include_checksum(true), true)),
    ("no content size", || streamed(|_| Ok(()), false)),
    ("content size of 8 bytes", wide_size),
    ("match 4 MiB back", far_match),
    ("window of 1 KiB", || windowed(10, None)),
    ("window of 128 MiB", || windowed(20, Some(17 << 3))),
    ("two frames", || joined(|a, b| [a, b].concat(), true)),
    ("skippable frame before", || joined(|a, _| [skippable(b"before").as_slice(), a].concat(), false)),
    ("skippable frame after", || joined(|a, _| [a, skippable(b"after").as_slice()].concat(), false)),
    ("16 zeros after", || joined(|a, _| [a, &[0; 16]].concat(), false)),
    ("garbage after", || joined(|a, _| [a, b"neither a frame nor zeros"].concat(), false)),
    ("unused dictionary id", || Ok(raw_block(|f| Frame { dictionary: Some(7), ..f }))),
    ("dictionary", dictionary),
    ("damaged: wrong checksum", || Ok(raw_block(|f| Frame { checksum: Some(1), ..f }))),
    ("damaged: last third missing", || joined(|a, _| a[..a.len() * 2 / 3].to_vec(), false)),
    ("damaged: a byte in the middle", || joined(flipped, false)),
];

/// The cases' names, in order.
pub fn names() -> Vec<&'static str> {
    CASES.iter().map(|(name, _)| *name).collect()
}

/// A case by its name.
pub fn case(name: &str) -> io::Result<Case> {
    let (_, make) = CASES.iter().find(|(n, _)| *n == name).ok_or_else(|| io::Error::other("no such case"))?;
    make()
}

/// An ordinary case, which has to succeed beside any other.
pub fn neighbour() -> io::Result<(Vec<u8>, Vec<u8>)> {
    Ok(encoded(20_000, 3)?.frames.swap_remove(0))
}

/// Bytes distributed as quantized weights are.
fn symbols(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Sums of eight numbers of five bits, centred.
    let symbol = |word: u64| ((0..8).map(|i| (word >> (8 * i) & 31) as i32).sum::<i32>() - 124) as i8 as u8;
    (0..len).map(|_| symbol(next())).collect()
}

fn encoded(len: usize, level: i32) -> io::Result<Case> {
    let content = symbols(len, len as u64);
    Ok(Case::one(zstd::bulk::compress(&content, level)?, content))
}

fn from(content: Vec<u8>) -> Case {
    Case::one(zstd::bulk::compress(&content, 3).expect("libzstd compresses anything"), content)
}

fn many() -> io::Result<Case> {
    let frame = |i| {
        let content = symbols(8 << 10, i);
        Ok((zstd::bulk::compress(&content, 3)?, content))
    };
    Ok(Case { frames: (0..1024).map(frame).collect::<io::Result<_>>()?, ..Case::default() })
}

fn raw_block(change: fn(Frame<'_>) -> Frame<'_>) -> Case {
    let content = symbols(64 << 10, 2);
    Case::one(change(Frame::of(&content)).bytes(), content)
}

fn rle_block() -> Case {
    let content = vec![0xC3; 64 << 10];
    // The header of a raw block's frame, then a block of type 1 with one byte.
    let mut frame = Frame::of(&content).bytes();
    frame.truncate(9);
    let block = (content.len() as u32) << 3 | 1 << 1 | 1;
    frame.extend_from_slice(&block.to_le_bytes()[..3]);
    frame.push(0xC3);
    Case::one(frame, content)
}

fn stream(
    content: &[u8],
    set: impl Fn(&mut Encoder<'_, Vec<u8>>) -> io::Result<()>,
    sized: bool,
) -> io::Result<Vec<u8>> {
    let mut encoder = Encoder::new(Vec::new(), 3)?;
    set(&mut encoder)?;
    if sized {
        encoder.set_pledged_src_size(Some(content.len() as u64))?;
    }
    encoder.write_all(content)?;
    encoder.finish()
}

fn streamed(set: fn(&mut Encoder<'_, Vec<u8>>) -> io::Result<()>, sized: bool) -> io::Result<Case> {
    let content = symbols(64 << 10, 3);
    Ok(Case::one(stream(&content, set, sized)?, content))
}

/// Repeats at a distance that needs the whole window.
fn far_match() -> io::Result<Case> {
    let mut content = symbols(4 << 20, 4);
    content.extend_from_within(..64 << 10);
    let set = |e: &mut Encoder<'_, Vec<u8>>| {
        e.window_log(23)?;
        e.long_distance_matching(true)
    };
    Ok(Case::one(stream(&content, set, true)?, content))
}

/// A frame that has both a window and its content's size, which libzstd writes for large contents only.
fn windowed(log: u32, descriptor: Option<u8>) -> io::Result<Case> {
    let content = symbols(64 << 10, 5);
    let mut frame = stream(&content, |e| e.window_log(log), false)?;
    // Descriptor of the frame, then of the window, then the size: flag 2 makes it 4 bytes.
    assert_eq!(frame[4], 0, "neither size nor checksum nor a single segment");
    frame[4] = 2 << 6;
    frame[5] = descriptor.unwrap_or(frame[5]);
    frame.splice(6..6, (content.len() as u32).to_le_bytes());
    Ok(Case::one(frame, content))
}

fn wide_size() -> io::Result<Case> {
    let mut case = windowed(16, None)?;
    let frame = &mut case.frames[0].0;
    frame[4] = 3 << 6;
    frame.splice(10..10, [0; 4]);
    Ok(case)
}

/// Two frames joined to one case, whose expected content is that of both if `both`, and else that of the first.
fn joined(join: fn(&[u8], &[u8]) -> Vec<u8>, both: bool) -> io::Result<Case> {
    let (a, b) = (symbols(40_000, 6), symbols(24_000, 7));
    let frame = join(&zstd::bulk::compress(&a, 3)?, &zstd::bulk::compress(&b, 3)?);
    Ok(Case::one(frame, if both { [a, b].concat() } else { a }))
}

fn flipped(frame: &[u8], _: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let middle = frame.len() / 2;
    frame[middle] ^= 0x10;
    frame
}

/// nvCOMP takes no dictionary: what becomes of a frame that needs one?
fn dictionary() -> io::Result<Case> {
    let dictionary = symbols(16 << 10, 8);
    let mut content = symbols(8 << 10, 9);
    content.extend_from_slice(&dictionary[..8 << 10]);
    let frame = zstd::bulk::Compressor::with_dictionary(3, &dictionary)?.compress(&content)?;
    Ok(Case::one(frame, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_what_they_are_called() {
        for (name, make) in CASES {
            let case = make().expect(name);
            for (frame, content) in case.frames.iter().chain([&neighbour().expect("made")]) {
                let decoded = zstd::stream::decode_all(&frame[..]);
                let fails = name.starts_with("damaged")
                    || ["garbage after", "16 zeros after", "dictionary", "unused dictionary id"].contains(&name);
                match decoded {
                    Ok(bytes) => assert!(bytes == *content || fails, "{name}"),
                    Err(e) => assert!(fails, "{name}: {e}"),
                }
            }
        }
        let frame = |name| case(name).expect("made").frames.swap_remove(0).0;
        let size = |name| zstd::zstd_safe::get_frame_content_size(&frame(name)).expect("a frame");
        assert_eq!(size("no content size"), None);
        assert_eq!(size("content size of 8 bytes"), Some(64 << 10));
        assert_eq!(frame("checksum")[4] & 4, 4);
        assert_eq!(frame("window of 128 MiB")[5], 17 << 3);
        assert_eq!(frame("window of 1 KiB")[5], 0);
        // The far match was found, and needs a window of more than 4 MiB.
        assert!(frame("match 4 MiB back").len() < frame("many blocks, 4 MiB").len() + (16 << 10));
    }
}
