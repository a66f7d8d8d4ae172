//! Turns driving bytes into a changed container, usually with all of its hashes correct.

use serde_json::Value;
use wcodec::container::{HEADER_BYTES, hash};
use wcodec::{Container, DecodeOptions, OpenOptions};

use super::choices::Choices;
use super::draft::{Draft, Laid};
use super::seeds::{SEEDS, SMALL};
use super::{entries, forms, stored};
use crate::common::image::reseal_header;

/// The file that `input` drives.
pub fn file(input: &[u8]) -> Vec<u8> {
    let c = &mut Choices::new(input);
    let which = |c: &mut Choices<'_>| if c.once_in(48) { c.below(SEEDS.len()) } else { c.below(*SMALL) };
    let mut draft = SEEDS[which(c)].draft.clone();
    let other = &SEEDS[c.below(*SMALL)].draft;
    for _ in 0..=[0, 0, 0, 1, 1, 2][c.below(6)] {
        change(&mut draft, other, c);
    }
    if !c.once_in(8) {
        rehash(&mut draft);
    }
    let mut laid = draft.lay();
    if c.once_in(16) {
        places(&mut laid, c);
    }
    let mut text = serde_json::to_vec(&laid.index).expect("JSON");
    if c.once_in(24) {
        text = as_text(text, c);
    }
    let mut file = laid.seal(&text);
    if c.once_in(32) {
        ends(&mut file, c);
    }
    file
}

fn change(draft: &mut Draft, other: &Draft, c: &mut Choices<'_>) {
    if !draft.index.is_object() {
        return;
    }
    match c.below(16) {
        0..=3 => entries::change(draft, c),
        4 | 5 => forms::change(draft, c),
        6..=11 => stored::meant(draft, c),
        12 => stored::any(draft, other, c),
        13 => entries::statements(draft, c),
        14 => match c.below(3) {
            0 => entries::aliases(draft, c),
            1 => draft.version = (u16::from(!c.once_in(8)), c.below(4) as u16),
            _ => transplant(draft, other, c),
        },
        _ => segments(draft, c),
    }
}

/// Uses the segment of one place in another.
fn segments(draft: &mut Draft, c: &mut Choices<'_>) {
    let n = draft.segments.len();
    let (a, b) = (c.below(n), c.below(n));
    if a < n && b < n {
        match c.below(3) {
            0 => draft.segments.swap(a, b),
            1 => draft.segments[a] = draft.segments[b].clone(),
            _ => draft.segments[a] = Vec::new().into(),
        }
    }
}

/// A tensor of another file, with its table or with whatever table has that number here.
fn transplant(draft: &mut Draft, other: &Draft, c: &mut Choices<'_>) {
    let Some(tensors) = other.index["tensors"].as_array() else { return };
    let Some(mut tensor) = tensors.get(c.below(tensors.len())).cloned() else { return };
    let bring = |draft: &mut Draft, place: &mut Value| {
        if let Some(bytes) = other.bytes(place) {
            *place = draft.add(bytes.to_vec());
        }
    };
    if let Some(scales) = tensor.get_mut("scales") {
        bring(draft, &mut scales["data"]);
    }
    for plane in tensor["planes"].as_array_mut().into_iter().flatten() {
        for key in ["offsets", "data", "side"] {
            if let Some(place) = plane.get_mut(key) {
                bring(draft, place);
            }
        }
        let table = plane["table"].as_u64().and_then(|n| other.index["tables"].get(n as usize)).cloned();
        if let (Some(mut table), Some(tables)) = (table.filter(|_| !c.once_in(4)), draft.index["tables"].as_array()) {
            plane["table"] = tables.len().into();
            bring(draft, &mut table["data"]);
            draft.index["tables"].as_array_mut().expect("it was one").push(table);
        }
    }
    tensor["name"] = format!("other.{}", c.below(3)).into();
    if let Some(tensors) = draft.index["tensors"].as_array_mut() {
        tensors.push(tensor);
    }
}

/// Updates the hashes of planes to their decoded bytes.
fn rehash(draft: &mut Draft) {
    let open = |bytes| Container::from_bytes_with(bytes, &OpenOptions::default());
    let Ok(container) = open(draft.seal()) else { return };
    let options = DecodeOptions { verify: false, ..Default::default() };
    let names: Vec<String> = container.names().into_iter().map(str::to_owned).collect();
    for (i, name) in names.iter().enumerate() {
        let Ok(info) = container.info(name) else { continue };
        if info.original_bytes > super::super::LARGEST {
            continue;
        }
        if info.scheme == "lossless" && container.read(name, &options).is_ok() {
            for p in 0..info.planes.len() {
                if let Some(decoded) = plane_alone(draft, i, p) {
                    draft.index["tensors"][i]["planes"][p]["hash"] = hash(&decoded).to_string().into();
                }
            }
            continue;
        }
        let decoded = match info.makes_symbols {
            true => container.symbols(name, &options).map(|s| bytemuck::cast_slice(&s).to_vec()),
            false => container.read(name, &options).map(|b| b.to_vec()),
        };
        if let Ok(decoded) = decoded
            && let Some(plane) = draft.index["tensors"][i]["planes"].get_mut(0).filter(|p| p.is_object())
        {
            plane["hash"] = hash(&decoded).to_string().into();
        }
    }
}

/// One of several planes, decoded chunk by chunk from a file in which the tensor has no other plane.
fn plane_alone(draft: &Draft, tensor: usize, plane: usize) -> Option<Vec<u8>> {
    let mut alone = draft.clone();
    let mut entry = alone.index["tensors"][tensor].clone();
    entry["planes"] = vec![entry["planes"].get(plane)?.clone()].into();
    entry["name"] = "alone".into();
    alone.index["tensors"] = vec![entry].into();
    alone.index["aliases"] = serde_json::json!({});
    let container = Container::from_bytes(alone.seal()).ok()?;
    let info = container.info("alone").ok()?;
    let options = DecodeOptions { verify: false, ..Default::default() };
    let elements = usize::try_from(info.elements).ok()?;
    let mut out = Vec::new();
    for i in 0..info.chunks() {
        let chunk = container.chunk("alone", i).ok()?;
        let decoded = container.read_chunk("alone", i, &options).ok()?;
        let (rows, cols) = (chunk.rows.len(), chunk.cols.len());
        let tiled = matches!(info.coder(), "rans" | "huffman");
        if !tiled {
            out.extend(decoded.iter().map(|&b| b as u8));
            continue;
        }
        let bytes = decoded.len() / (rows * cols).max(1);
        out.resize(elements * bytes, 0);
        for (r, row) in decoded.chunks_exact((cols * bytes).max(1)).enumerate() {
            let row_at = (chunk.matrix * info.rows + chunk.rows.start + r) * info.cols + chunk.cols.start;
            let to = out.get_mut(row_at * bytes..(row_at + cols) * bytes)?;
            to.iter_mut().zip(row).for_each(|(to, &b)| *to = b as u8);
        }
    }
    Some(out)
}

/// Corrupts the stated position of a segment.
fn places(laid: &mut Laid, c: &mut Choices<'_>) {
    fn find<'v>(value: &'v mut Value, found: &mut Vec<&'v mut Value>) {
        let is_place = value.as_array().is_some_and(|a| a.len() == 3 && a[2].is_string());
        match value {
            _ if is_place => found.push(value),
            Value::Array(all) => all.iter_mut().for_each(|v| find(v, found)),
            Value::Object(all) => all.values_mut().for_each(|v| find(v, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    find(&mut laid.index, &mut found);
    let (i, j) = (c.below(found.len()), c.below(found.len()));
    if i >= found.len() {
        return;
    }
    let other = found[j].clone();
    let part = c.below(3);
    match (c.below(5), part) {
        (0, _) => *found[i] = other,
        (1, 0 | 1) => {
            let old = found[i][part].as_u64().unwrap_or(0);
            found[i][part] = old.wrapping_add([16, u64::MAX - 15, 1, u64::MAX, 1 << 63][c.below(5)]).into();
        }
        (2, 0 | 1) => found[i][part] = c.number().into(),
        _ => found[i][2] = format!("{:016x}", c.number()).into(),
    }
}

/// Changes the index as text: duplicate keys, other spellings, invalid bytes.
fn as_text(text: Vec<u8>, c: &mut Choices<'_>) -> Vec<u8> {
    let mut out = text;
    let at = c.below(out.len());
    let next = |out: &[u8], byte: u8| out[at..].iter().position(|&b| b == byte).map(|i| at + i);
    match c.below(9) {
        0 => {
            // Duplicates the member that begins here.
            if let (Some(begin), Some(end)) = (next(&out, b'{'), next(&out, b','))
                && begin < end
            {
                let member = [&out[begin + 1..end], b","].concat();
                out.splice(begin + 1..begin + 1, member);
            }
        }
        1 => {
            let space = [&b" "[..], b"\n", b"\t\r", b"\xEF\xBB\xBF", b"\0"][c.below(5)].to_vec();
            let place = [0, out.len(), at][c.below(3)];
            out.splice(place..place, space);
        }
        2 => {
            // A letter as an escape sequence.
            if let Some(i) = out[at..].iter().position(u8::is_ascii_lowercase).map(|i| at + i) {
                out.splice(i..=i, format!("\\u{:04x}", out[i]).into_bytes());
            }
        }
        3 => {
            if let Some(i) = out[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) {
                let end = out[i..].iter().position(|b| !b.is_ascii_digit()).map_or(out.len(), |n| i + n);
                let number =
                    ["1e3", "1.0", "-0", "0x10", "01", "1e99999", "18446744073709551616", "NaN", "\"1\"", "+1"];
                out.splice(i..end, c.one(&number).bytes());
            }
        }
        4 => drop(out.drain(at..)),
        5 => out[at] = c.byte(),
        6 => {
            let deep = 100 + c.below(200);
            out.splice(at..at, vec![b"[{\""[c.below(3)]; deep]);
        }
        7 => drop(out.remove(at)),
        _ => out.push([b'}', b',', b'x', 0xFF][c.below(4)]),
    }
    out
}

/// Header and end of the file, with and without a matching hash.
fn ends(file: &mut Vec<u8>, c: &mut Choices<'_>) {
    match c.below(6) {
        0 => {
            let at = c.below(HEADER_BYTES);
            file[at] = c.byte();
            let header = hash(&file[..56]).0;
            file[56..64].copy_from_slice(&header.to_le_bytes());
        }
        1 => {
            let at = c.below(HEADER_BYTES);
            file[at] ^= 1 << c.below(8);
        }
        2 => {
            file.truncate(c.below(file.len()));
            reseal_header(file);
        }
        3 => {
            let more = 1 + c.below(40);
            file.extend((0..more).map(|_| c.byte()));
            if c.once_in(2) {
                reseal_header(file);
            }
        }
        4 => {
            let offset = (c.number() >> c.below(64)).to_le_bytes();
            file[16..24].copy_from_slice(&offset);
            reseal_header(file);
        }
        _ => {
            let at = c.below(file.len());
            file[at] ^= 1 << c.below(8);
        }
    }
}
