//! Changes of stored bytes: of any, and of those with a meaning to a decoder.

use serde_json::Value;

use super::choices::Choices;
use super::draft::Draft;

/// Numbers at which streams go wrong.
const EDGES: &[u32] =
    &[0, 1, 2, 7, 8, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
/// Unusual scales as f32; the upper half of each is one as bf16.
const SCALES: &[u32] = &[
    0,
    0x8000_0000,
    1,
    0x0080_0000,
    0x0040_0000,
    0x7F7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0x7F80_0001,
    0x3F80_0000,
    0xBF80_0000,
    0x4780_0000,
    0x3380_0000,
];

/// Changes bytes of any segment.
pub fn any(draft: &mut Draft, other: &Draft, c: &mut Choices<'_>) {
    let at = c.below(draft.segments.len());
    let with = other.segments.get(c.below(other.segments.len())).cloned();
    let mark = super::draft::mark(at);
    if let Some(bytes) = draft.bytes_mut(&mark) {
        scramble(bytes, with.as_deref().map_or(&[], Vec::as_slice), c);
    }
}

/// Changes some of `bytes`; `other` is a source of more.
fn scramble(bytes: &mut Vec<u8>, other: &[u8], c: &mut Choices<'_>) {
    let at = c.below(bytes.len());
    match c.below(9) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << c.below(8),
        2 if !bytes.is_empty() => bytes[at] = c.byte(),
        3 => bytes.truncate(at),
        4 => {
            let more = 1 + c.below(16);
            bytes.extend((0..more).map(|_| c.byte()));
        }
        5 => {
            let end = (at + 1 + c.below(32)).min(bytes.len());
            let fill = [0, 0xFF, 0x80, 0x7F][c.below(4)];
            bytes[at..end].fill(fill);
        }
        6 => {
            let from = c.below(other.len());
            let n = c.below(64).min(other.len() - from).min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&other[from..from + n]);
        }
        7 => {
            let n = (1 + c.below(16)).min(bytes.len() - at);
            bytes.drain(at..at + n);
        }
        _ => {
            let number = c.one(EDGES).to_le_bytes();
            let n = [1, 2, 4][c.below(3)].min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&number[..n]);
        }
    }
}

/// A plane of the draft: the tensor's number, and its own.
fn some_plane(draft: &Draft, c: &mut Choices<'_>) -> Option<(usize, usize)> {
    let tensors = draft.index["tensors"].as_array()?;
    // Coded planes are worth more.
    (0..4).find_map(|_| {
        let t = c.below(tensors.len());
        let planes = tensors.get(t)?["planes"].as_array()?;
        let p = c.below(planes.len());
        planes.get(p)?["offsets"].as_str().map(|_| (t, p))
    })
}

/// Changes meaningful bytes: chunks, offsets, side planes, scales, tables.
pub fn meant(draft: &mut Draft, c: &mut Choices<'_>) {
    match c.below(8) {
        0 => scales(draft, c),
        1 => table(draft, c),
        2 => offsets(draft, c),
        3 => side(draft, c),
        _ => chunk(draft, c),
    }
}

fn scales(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some(tensors) = draft.index["tensors"].as_array() else { return };
    let Some(scales) = tensors.get(c.below(tensors.len())).map(|t| t["scales"].clone()) else { return };
    let size = if scales["dtype"] == "BF16" { 2 } else { 4 };
    let Some(bytes) = draft.bytes_mut(&scales["data"]).filter(|b| b.len() >= size) else { return };
    let at = c.below(bytes.len() / size) * size;
    let bits = c.one(SCALES).to_le_bytes();
    bytes[at..at + size].copy_from_slice(&bits[4 - size..]);
}

/// Changes a table so that it often stays valid.
fn table(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some(tables) = draft.index["tables"].as_array() else { return };
    let Some(entry) = tables.get(c.below(tables.len())).cloned() else { return };
    let wide = entry["coder"] == "rans" || entry["layout"] == "quad";
    let counts = if entry["layout"] == "quad" { 2 * entry["bits"].as_u64().unwrap_or(0).min(16) as usize } else { 0 };
    let Some(bytes) = draft.bytes_mut(&entry["data"]) else { return };
    let size = if wide { 2 } else { 1 };
    if bytes.len() < counts + 2 * size {
        return;
    }
    let places = (bytes.len() - counts) / size;
    let place = |c: &mut Choices<'_>| counts + c.below(places) * size;
    let (a, b) = (place(c), place(c));
    match c.below(5) {
        // Swaps the codes of two symbols.
        0 | 1 => (0..size).for_each(|i| bytes.swap(a + i, b + i)),
        // Gives one symbol part of the other's slots.
        2 if wide && counts == 0 => {
            let get = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let moved = [1, get(bytes, a), get(bytes, a) / 2][c.below(3)].min(get(bytes, a));
            let (less, more) = (get(bytes, a) - moved, get(bytes, b).wrapping_add(moved));
            bytes[a..a + 2].copy_from_slice(&less.to_le_bytes());
            bytes[b..b + 2].copy_from_slice(&more.to_le_bytes());
        }
        3 if counts > 2 => {
            // Splits one code into two that are a bit longer.
            let at = 2 * c.below(counts / 2 - 1);
            let get = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let (fewer, more) = (get(bytes, at).wrapping_sub(1), get(bytes, at + 2).wrapping_add(2));
            bytes[at..at + 2].copy_from_slice(&fewer.to_le_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&more.to_le_bytes());
            let symbol = [c.byte() & 0x77, c.byte() & 0x77];
            bytes.extend_from_slice(&symbol);
        }
        _ => bytes[a] = c.byte(),
    }
}

fn offsets(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some((t, p)) = some_plane(draft, c) else { return };
    let place = draft.index["tensors"][t]["planes"][p]["offsets"].clone();
    let Some(bytes) = draft.bytes_mut(&place).filter(|b| b.len() >= 4) else { return };
    let at = c.below(bytes.len() / 4) * 4;
    let old = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let new = match c.below(4) {
        0 => *c.one(EDGES),
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        _ => old ^ 1 << c.below(32),
    };
    bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
}

/// Any side plane decodes.
fn side(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some((t, p)) = some_plane(draft, c) else { return };
    let place = draft.index["tensors"][t]["planes"][p]["side"].clone();
    if let Some(bytes) = draft.bytes_mut(&place).filter(|b| !b.is_empty()) {
        let (at, n) = (c.below(bytes.len()), c.below(64));
        let end = (at + n + 1).min(bytes.len());
        bytes[at..end].iter_mut().for_each(|b| *b = c.byte());
    }
}

/// Changes a chunk, possibly its length; offsets and the length of the longest one are updated.
fn chunk(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some((t, p)) = some_plane(draft, c) else { return };
    let plane = draft.index["tensors"][t]["planes"][p].clone();
    let zstd = plane["coder"] == "zstd";
    let Some(mut chunks) = chunks_of(draft, &plane, zstd) else { return };
    let i = c.below(chunks.len());
    let with = chunks.get(c.below(chunks.len())).cloned().unwrap_or_default();
    let Some(own) = chunks.get_mut(i) else { return };
    match c.below(6) {
        0 => scramble(own, &with, c),
        1 => *own = with,
        _ if zstd => scramble(own, &with, c),
        2 => body_length(own, &plane, c),
        3 | 4 => patches(own, &plane, c),
        _ => head(own, &plane, c),
    }
    put_chunks(draft, (t, p), &chunks, zstd);
}

/// The chunks of a plane, if its offsets are in order.
fn chunks_of(draft: &Draft, plane: &Value, zstd: bool) -> Option<Vec<Vec<u8>>> {
    let (offsets, data) = (draft.bytes(&plane["offsets"])?, draft.bytes(&plane["data"])?);
    let words: Vec<usize> = offsets.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b) as usize).collect();
    let ranges: Vec<_> = match zstd {
        true => words.chunks_exact(2).map(|w| 8 * w[0]..8 * w[0] + w[1]).collect(),
        false => words.windows(2).map(|w| 4 * w[0]..4 * w[1]).collect(),
    };
    ranges.into_iter().map(|r| data.get(r).map(<[u8]>::to_vec)).collect()
}

fn put_chunks(draft: &mut Draft, (t, p): (usize, usize), chunks: &[Vec<u8>], zstd: bool) {
    let (mut data, mut offsets, mut longest) = (Vec::new(), Vec::new(), 0);
    let mut put = |n: usize| offsets.extend_from_slice(&(n as u32).to_le_bytes());
    for chunk in chunks {
        if zstd {
            data.resize(data.len().next_multiple_of(8), 0);
            put(data.len() / 8);
            put(chunk.len());
        } else {
            put(data.len() / 4);
        }
        data.extend_from_slice(chunk);
        if !zstd {
            data.resize(data.len().next_multiple_of(4), 0);
        }
        longest = longest.max(if zstd { chunk.len() } else { chunk.len().next_multiple_of(4) });
    }
    if !zstd {
        put(data.len() / 4);
    }
    let (offsets, data) = (draft.add(offsets), draft.add(data));
    let plane = &mut draft.index["tensors"][t]["planes"][p];
    (plane["offsets"], plane["data"], plane["max_chunk"]) = (offsets, data, longest.into());
}

/// Whether chunks of the plane begin with patches.
fn has_patches(plane: &Value) -> bool {
    plane["layout"] == "quad" || (plane["layout"] == "pair" && plane["shift"].as_u64().is_some_and(|s| s < 3))
}

/// The offset at which the body of a chunk begins.
fn body_at(chunk: &[u8], plane: &Value) -> usize {
    let count = chunk.first_chunk().map_or(0, |b| u32::from_le_bytes(*b) as usize);
    if has_patches(plane) { (4 + 4 * count.min(1 << 16)).min(chunk.len()) } else { 0 }
}

/// Makes the body as long as an uncoded one, or a word shorter or longer.
fn body_length(chunk: &mut Vec<u8>, plane: &Value, c: &mut Choices<'_>) {
    let width = plane["tile"].as_u64().unwrap_or(64).min(1024) as usize;
    let narrow = plane["layout"] == "pair" || plane["layout"] == "quad";
    let tails = if plane["coder"] == "rans" && plane["layout"] != "byte" { 128 } else { 0 };
    let raw = if narrow { 8 } else { 16 } * [width, 64][c.below(2)] + tails;
    let wanted = (body_at(chunk, plane) + raw + 4).saturating_sub([4, 4, 4, 8, 0][c.below(5)]);
    let fill = c.byte();
    chunk.resize(wanted, fill);
}

/// Changes patches, with or without their count, or adds some.
fn patches(chunk: &mut Vec<u8>, plane: &Value, c: &mut Choices<'_>) {
    if !has_patches(plane) || chunk.len() < 4 {
        return head(chunk, plane, c);
    }
    let count = (body_at(chunk, plane) - 4) / 4;
    let at = 4 + 4 * c.below(count);
    match c.below(8) {
        0 => chunk[..4].copy_from_slice(&c.one(EDGES).to_le_bytes()),
        1 => {
            let count = (count as u32).wrapping_add([1, u32::MAX][c.below(2)]);
            chunk[..4].copy_from_slice(&count.to_le_bytes());
        }
        2 | 3 => {
            // Adds a patch, after the others or not.
            let last = if count == 0 { 0 } else { usize::from(u16::from_le_bytes([chunk[at], chunk[at + 1]])) };
            let position = ((last + c.below(40)) as u16).to_le_bytes();
            let patch = [position[0], position[1], c.byte(), if c.once_in(2) { 0 } else { c.byte() }];
            let place = if c.once_in(3) { at } else { 4 + 4 * count };
            chunk.splice(place..place, patch);
            chunk[..4].copy_from_slice(&(count as u32 + 1).to_le_bytes());
        }
        _ if count == 0 => {}
        4 => {
            chunk.drain(at..at + 4);
            chunk[..4].copy_from_slice(&(count as u32 - 1).to_le_bytes());
        }
        5 => {
            // Changes the value and the change equally, so that the element without the patch stays the same.
            let more = c.byte();
            chunk[at + 2] = chunk[at + 2].wrapping_add(more);
            chunk[at + 3] = chunk[at + 3].wrapping_add(more);
        }
        6 => {
            let position = (c.one(EDGES) & 0xFFFF) as u16;
            chunk[at..at + 2].copy_from_slice(&position.to_le_bytes());
        }
        _ => chunk[at + c.below(4)] = c.byte(),
    }
}

/// Changes the beginning of a body, states of lanes or lengths of streams, or its end.
fn head(chunk: &mut [u8], plane: &Value, c: &mut Choices<'_>) {
    let from = body_at(chunk, plane);
    let body = &mut chunk[from..];
    if body.len() < 4 {
        return;
    }
    if c.once_in(5) {
        let at = body.len() - 1 - c.below(body.len().min(12));
        body[at] ^= 1 << c.below(8);
        return;
    }
    if plane["coder"] == "rans" {
        let at = 4 * c.below((body.len() / 4).min(32));
        let word = *c.one(EDGES);
        body[at..at + 4].copy_from_slice(&word.to_le_bytes());
        return;
    }
    match c.below(4) {
        0 => {
            let least = i32::from(u16::from_le_bytes([body[0], body[1]])) + [-2, -1, 1, 2][c.below(4)];
            body[..2].copy_from_slice(&(least as u16).to_le_bytes());
        }
        1 => body[2] = [0, 1, 2, 8, 9, 0xFF][c.below(6)],
        2 => {
            // Moves a bit from one lane to another.
            let n = (body.len() - 4).min(32);
            if n > 1 {
                let (a, b) = (4 + c.below(n), 4 + c.below(n));
                let step = [1, 16][c.below(2)];
                (body[a], body[b]) = (body[a].wrapping_add(step), body[b].wrapping_sub(if a == b { 0 } else { step }));
            }
        }
        _ => {
            let at = c.below(body.len().min(40));
            body[at] = c.byte();
        }
    }
}
