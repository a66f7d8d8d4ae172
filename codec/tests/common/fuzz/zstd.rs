//! Planes of coder `zstd`: frames of any blocks.

use wcodec::coder::plane::{Coding, Plane, PlaneForm, PlaneSource, Scratch};
use wcodec::coder::zstd::{Compressor, frame_entry};
use wcodec::{Cancel, Filter, Isa};

use super::mutate::mutate_from;
use super::{LARGEST, Target};
use crate::common::zstd_frame::{Frame, skippable};
use crate::common::{Rng, samples};

pub const TARGET: Target = Target { name: "zstd", body, seeds, mutate };

/// Bytes that choose the form of the plane.
const HEAD: usize = 8;
/// Flags of the first byte, besides the filter.
const STREAMED: u8 = 0x20;
const ANY_BLOCKS: u8 = 0x40;
const ANY_FRAMES: u8 = 0x80;

fn body(input: &[u8]) {
    decode(input);
}

/// Decodes a plane: the first 8 bytes choose its form.
///
/// 0: filter (bits 0, 1), whether libzstd's streaming decoder must agree (5), whether blocks are left unchanged (6) or
/// their headers corrected, so that only the last one ends the frame, whether frames are left unchanged (7) or get the
/// header that the format requires; 1: not used; 2, 3: decoded bytes of a chunk; 4, 5: columns; 6, 7: decoded bytes of
/// all. Then the frames: a u16 that is the length of each but the last, and its bytes. Returns for each whether it
/// could be decoded; nothing if the parts do not fit each other.
pub fn decode(input: &[u8]) -> Vec<bool> {
    let Some((head, rest)) = input.split_first_chunk::<HEAD>() else { return Vec::new() };
    let short = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let filter = Filter::ALL[usize::from(head[0] & 3) % 3];
    let (chunk, cols, bytes) = (short(2), short(4), short(6));
    // Rows are whole, as in every tensor.
    let (rows, bytes) = match cols {
        0 => (0, 0),
        cols => (bytes / cols, bytes / cols * cols),
    };
    let count = bytes.div_ceil(chunk.max(1));
    if bytes as u64 > LARGEST || count > 64 {
        return Vec::new();
    }
    let (mut data, mut offsets, mut rest, mut frames) = (Vec::new(), Vec::new(), rest, Vec::new());
    for i in 0..count {
        let body = match rest.split_first_chunk() {
            Some((length, after)) if i + 1 < count => {
                let (body, after) = after.split_at(usize::from(u16::from_le_bytes(*length)).min(after.len()));
                rest = after;
                body
            }
            _ => std::mem::take(&mut rest),
        };
        let frame = frame(body, head[0], chunk.min(bytes - i * chunk));
        data.resize(data.len().next_multiple_of(8), 0);
        offsets.extend_from_slice(&frame_entry(data.len(), frame.len()).unwrap());
        data.extend_from_slice(&frame);
        frames.push(frame);
    }
    let max_chunk = frames.iter().map(Vec::len).max().unwrap_or(0);
    let form = PlaneForm { matrix: (1, rows, cols), coding: Coding::Zstd { chunk, filter }, max_chunk };
    let source = PlaneSource { form, data: &data, offsets: &offsets, side: &[], table: None };
    let Ok(plane) = Plane::new(source, Isa::Scalar) else { return Vec::new() };
    let mut scratch = Scratch::default();
    let mut piece = |i: usize| {
        let mut out = vec![0x55; plane.piece(i).len()];
        plane.decode_piece(i, &mut out, &mut scratch).ok().map(|()| out)
    };
    let forwards: Vec<_> = (0..count).map(&mut piece).collect();
    // Reuses the context in another order: it must not keep state.
    let backwards: Vec<_> = (0..count).rev().map(&mut piece).collect();
    assert!(forwards.iter().eq(backwards.iter().rev()), "frames depend on each other");
    if forwards.iter().all(Option::is_some) {
        plane.check_frames().unwrap();
    }
    frames.iter().zip(&forwards).filter_map(|(frame, out)| Some((frame, out.as_ref()?))).for_each(|(frame, out)| {
        assert!(is_allowed(frame, out.len()), "decoders of other programs need not take this frame");
    });
    if head[0] & STREAMED != 0 && filter == Filter::None {
        for (frame, out) in frames.iter().zip(&forwards) {
            let Some(out) = out else { continue };
            let streamed = zstd::stream::decode_all(&frame[..]).unwrap();
            assert!(streamed == bytemuck::cast_slice::<_, u8>(out), "libzstd's decoders disagree");
        }
    }
    forwards.iter().map(Option::is_some).collect()
}

/// A frame of `body`, corrected as far as `first` asks for. `size` bytes are to be decoded.
fn frame(body: &[u8], first: u8, size: usize) -> Vec<u8> {
    if first & ANY_FRAMES != 0 {
        return body.to_vec();
    }
    // RFC 8878, section 3.1.1: a single segment, its size in four bytes.
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0xA0];
    frame.extend_from_slice(&(size as u32).to_le_bytes());
    let begin = frame.len();
    frame.extend_from_slice(body);
    if first & ANY_BLOCKS == 0 {
        link_blocks(&mut frame, begin);
    }
    frame
}

/// Walks over the blocks from `at` on; a block that would exceed the end becomes the last one.
fn link_blocks(frame: &mut Vec<u8>, mut at: usize) {
    loop {
        let left = frame.len().saturating_sub(at + 3);
        frame.resize(frame.len().max(at + 3), 0);
        let header = u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], 0]);
        let (kind, size) = (header >> 1 & 3, header >> 3);
        // A block of one repeated byte stores one byte, whatever its size.
        let stored = if kind == 1 { 1 } else { size as usize };
        let last = stored >= left;
        let header = match last {
            true if kind == 1 => {
                frame.resize(at + 4, 0);
                header | 1
            }
            true => (left as u32) << 3 | kind << 1 | 1,
            false => header & !1,
        };
        frame[at..at + 3].copy_from_slice(&header.to_le_bytes()[..3]);
        if last {
            return;
        }
        at += 3 + stored;
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut add = |flags: u8, chunk: usize, cols: usize, bytes: usize, frames: &[Vec<u8>]| {
        let mut seed = vec![flags, 0];
        [chunk, cols, bytes].iter().for_each(|&n| seed.extend_from_slice(&(n as u16).to_le_bytes()));
        for (i, frame) in frames.iter().enumerate() {
            if i + 1 < frames.len() {
                seed.extend_from_slice(&(frame.len() as u16).to_le_bytes());
            }
            seed.extend_from_slice(frame);
        }
        seeds.push(seed);
    };
    for (what, symbols) in samples::layer_symbols(20, 96) {
        for level in [-5, 1, 19] {
            let mut compressor = Compressor::new(level).unwrap();
            let frames: Vec<_> = symbols.chunks(960).map(|c| compressor.frame(c, &Cancel::new()).unwrap()).collect();
            add(ANY_FRAMES | STREAMED, 960, 96, symbols.len(), &frames);
            let blocks: Vec<_> = frames.iter().map(|f| f[header_length(f)..].to_vec()).collect();
            let filter = match what.as_str() {
                "left" => 1,
                "up" => 2,
                _ => STREAMED,
            };
            add(filter, 960, 96, symbols.len(), &blocks);
        }
    }
    let content: Vec<u8> = (0..200).collect();
    let plain = Frame::of(&content);
    for frame in [
        plain.bytes(),
        Frame { size: None, window: Some(8), ..plain }.bytes(),
        Frame { window: Some(8), ..plain }.bytes(),
        Frame { checksum: Some(0), ..plain }.bytes(),
        Frame { dictionary: Some(1), ..plain }.bytes(),
        [skippable(b"skip"), plain.bytes()].concat(),
        [plain.bytes(), plain.bytes()].concat(),
    ] {
        add(ANY_FRAMES | STREAMED, 200, 200, 200, &[frame]);
    }
    // One block of each kind: raw bytes, a repeated byte, and a compressed one without sequences.
    let rle = [(150u32 << 3 | 1 << 1).to_le_bytes()[..3].to_vec(), vec![7]].concat();
    let raw = [(10u32 << 3).to_le_bytes()[..3].to_vec(), vec![9; 10]].concat();
    let literals = [(7u32 << 3 | 2 << 1).to_le_bytes()[..3].to_vec(), vec![5 << 3, 1, 2, 3, 4, 5, 0]].concat();
    add(STREAMED, 165, 11, 165, &[[rle, raw, literals].concat()]);
    seeds
}

/// The requirements of FORMAT.md, section 8, on a frame's header: no checksum, no dictionary, a window not larger than
/// `size`.
fn is_allowed(frame: &[u8], size: usize) -> bool {
    let window = || (8 + u64::from(frame[5] & 7)) << (7 + u32::from(frame[5] >> 3));
    frame[4] & 7 == 0 && (frame[4] >> 5 & 1 == 1 || window() <= size as u64)
}

/// Length of a frame's header; RFC 8878, section 3.1.1.1.
fn header_length(frame: &[u8]) -> usize {
    let (size, single) = (frame[4] >> 6, frame[4] >> 5 & 1 == 1);
    let size = match (size, single) {
        (0, true) => 1,
        (0, false) => 0,
        (n, _) => 1 << n,
    };
    5 + usize::from(!single) + size
}

fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    mutate_from(rng, seed, other, HEAD)
}
