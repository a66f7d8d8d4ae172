//! A container taken apart, to be changed and sealed again: with every hash correct, damage reaches the code that
//! hashes protect.

use serde_json::{Value, json};
use wcodec::container::{HEADER_BYTES, Header, hash};
use wcodec::{Container, DecodeOptions};

/// A byte range that the index names.
#[derive(Clone, Debug)]
pub struct Place {
    /// JSON pointer to it, such as `/tensors/0/planes/0/side`.
    pub pointer: String,
    /// Last part of the pointer; `scales` and `table` for their `data`.
    pub role: &'static str,
    pub offset: usize,
    pub length: usize,
    /// Names of the tensors whose values depend on it.
    pub tensors: Vec<String>,
}

/// A container's bytes up to the index, and its index.
#[derive(Clone, Debug)]
pub struct Image {
    /// Header and segments; the header is rewritten by [`seal`](Self::seal).
    pub body: Vec<u8>,
    pub index: Value,
    pub version: (u16, u16),
}

impl Image {
    pub fn new(bytes: &[u8]) -> Self {
        let header = Header::from_bytes(bytes, bytes.len() as u64).unwrap();
        let (body, index) = bytes.split_at(header.index_offset as usize);
        let index = serde_json::from_slice(index).unwrap();
        Self { body: body.to_vec(), index, version: header.version }
    }

    /// All segments that are not empty, by offset.
    pub fn places(&self) -> Vec<Place> {
        let mut found = Vec::new();
        let mut add = |pointer: String, role, tensors: Vec<String>| {
            let Some(s) = self.index.pointer(&pointer) else { return };
            let number = |i: usize| s[i].as_u64().unwrap() as usize;
            let (offset, length) = (number(0), number(1));
            if length > 0 {
                found.push(Place { pointer, role, offset, length, tensors });
            }
        };
        let tensors = self.index["tensors"].as_array().unwrap();
        let name = |t: &Value| t["name"].as_str().unwrap().to_owned();
        for i in 0..self.index["tables"].as_array().unwrap().len() {
            let users = tensors.iter().filter(|t| t["planes"][0]["table"] == json!(i)).map(name).collect();
            add(format!("/tables/{i}/data"), "table", users);
        }
        for (i, t) in tensors.iter().enumerate() {
            add(format!("/tensors/{i}/scales/data"), "scales", vec![name(t)]);
            for role in ["offsets", "data", "side"] {
                add(format!("/tensors/{i}/planes/0/{role}"), role, vec![name(t)]);
            }
        }
        found.sort_by_key(|p| p.offset);
        found
    }

    pub fn place(&self, pointer: &str) -> Place {
        self.places().into_iter().find(|p| p.pointer == pointer).expect("a segment there")
    }

    pub fn segment(&self, pointer: &str) -> Vec<u8> {
        let p = self.place(pointer);
        self.body[p.offset..p.offset + p.length].to_vec()
    }

    /// Sets the index value at `pointer`, whose last component need not exist.
    pub fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, key) = pointer.rsplit_once('/').expect("a JSON pointer");
        match self.index.pointer_mut(parent).expect("the parent of the pointer") {
            Value::Array(a) => a[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        self
    }

    /// Replaces the bytes of a segment by others of any length; later segments move.
    pub fn replace(mut self, pointer: &str, bytes: &[u8]) -> Self {
        let places = self.places();
        let mut body = self.body[..HEADER_BYTES].to_vec();
        for p in &places {
            let bytes = if p.pointer == pointer { bytes } else { &self.body[p.offset..p.offset + p.length] };
            let offset = if bytes.is_empty() { 0 } else { body.len().next_multiple_of(16) };
            if !bytes.is_empty() {
                body.resize(offset, 0);
                body.extend_from_slice(bytes);
            }
            *self.index.pointer_mut(&p.pointer).unwrap() = json!([offset, bytes.len(), hash(bytes).to_string()]);
        }
        body.resize(body.len().next_multiple_of(16), 0);
        self.body = body;
        self
    }

    /// Corrects the hashes of all segments.
    pub fn rehash(mut self) -> Self {
        for p in self.places() {
            let h = hash(&self.body[p.offset..p.offset + p.length]).to_string();
            self.index.pointer_mut(&p.pointer).unwrap()[2] = h.into();
        }
        self
    }

    /// Corrects the hashes of those decoded planes that decode.
    pub fn rehash_planes(mut self) -> Self {
        let container = Container::from_bytes(self.clone().seal()).unwrap();
        let options = DecodeOptions { verify: false, ..Default::default() };
        for (i, name) in container.names().into_iter().enumerate() {
            let decoded = match container.info(name).unwrap().scheme.as_str() {
                "int8" => container.symbols(name, &options).map(|s| bytemuck::cast_slice(&s).to_vec()),
                _ => container.read(name, &options).map(|b| b.to_vec()),
            };
            if let Ok(decoded) = decoded {
                self.index["tensors"][i]["planes"][0]["hash"] = hash(&decoded).to_string().into();
            }
        }
        self
    }

    /// The image without segments, for an index that refers to none.
    pub fn empty(mut self) -> Self {
        self.body.truncate(HEADER_BYTES);
        self
    }

    /// The file, with the hash of the index and the header correct.
    pub fn seal(self) -> Vec<u8> {
        let index = serde_json::to_vec(&self.index).unwrap();
        self.seal_with(&index)
    }

    /// The file with `index` in place of the index.
    pub fn seal_with(self, index: &[u8]) -> Vec<u8> {
        let mut bytes = self.body;
        let header = Header {
            version: self.version,
            index_offset: bytes.len() as u64,
            index_length: index.len() as u64,
            index_hash: hash(index).0,
            file_length: (bytes.len() + index.len()) as u64,
        };
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes.extend_from_slice(index);
        bytes
    }
}

/// The offset of the index according to the header, or the end.
pub fn index_offset(bytes: &[u8]) -> usize {
    let said = bytes.get(16..24).map_or(u64::MAX, |b| u64::from_le_bytes(b.try_into().unwrap()));
    said.min(bytes.len() as u64) as usize
}

/// Corrects the hashes of header and index and the file's length; the other bytes may be anything.
pub fn reseal_header(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let offset = index_offset(bytes);
    let index = hash(&bytes[offset..]).0;
    let (offset, length) = (offset as u64, bytes.len() as u64);
    for (at, value) in [(16, offset), (24, length - offset), (32, index), (40, length)] {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let header = hash(&bytes[..56]).0;
    bytes[56..64].copy_from_slice(&header.to_le_bytes());
}

/// Corrects the hashes of segments wherever `[offset,length,"hash"]` occurs in the index text.
pub fn reseal_segments(bytes: &mut [u8]) {
    let offset = index_offset(bytes);
    let (body, index) = bytes.split_at_mut(offset);
    let range = |text: &[u8]| {
        let begin = text.iter().rposition(|&b| b == b'[')? + 1;
        let (offset, length) = str::from_utf8(&text[begin..]).ok()?.split_once(',')?;
        let (offset, length): (usize, usize) = (offset.parse().ok()?, length.parse().ok()?);
        body.get(offset..)?.get(..length)
    };
    for at in 0..index.len().saturating_sub(19) {
        if index[at..].starts_with(b",\"")
            && index[at + 18..].starts_with(b"\"]")
            && let Some(segment) = range(&index[at.saturating_sub(42)..at])
        {
            index[at + 2..at + 18].copy_from_slice(hash(segment).to_string().as_bytes());
        }
    }
}

/// `bytes` with one bit flipped.
pub fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}
