//! A container taken apart, to be changed and put together again: the index gets the new positions of segments, with
//! their hashes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use wcodec::container::{HEADER_BYTES, Header, hash};

use crate::common::image::Image;

/// The prefix of a segment's placeholder in the index; its number follows.
const MARK: char = '@';

/// An index and its segments.
#[derive(Clone, Debug)]
pub struct Draft {
    pub index: Value,
    pub segments: Vec<Arc<Vec<u8>>>,
    pub version: (u16, u16),
}

/// A draft laid out as a file, without its header.
pub struct Laid {
    /// Room for the header, and segments.
    pub body: Vec<u8>,
    pub index: Value,
    pub version: (u16, u16),
}

impl Draft {
    /// Takes a valid container apart.
    pub fn new(bytes: &[u8]) -> Self {
        let Image { body, mut index, version } = Image::new(bytes);
        let mut segments = Vec::new();
        each_segment(&mut index, &mut |place| {
            let number = |i: usize| place[i].as_u64().expect("a valid container") as usize;
            let (offset, length) = (number(0), number(1));
            *place = mark(segments.len());
            segments.push(Arc::new(body[offset..offset + length].to_vec()));
        });
        Self { index, segments, version }
    }

    /// The bytes of the segment that `value` stands for.
    pub fn bytes(&self, value: &Value) -> Option<&[u8]> {
        Some(&self.segments.get(number_of(value)?)?[..])
    }

    /// Mutable bytes of the segment. Everything else that refers to this segment changes with it.
    pub fn bytes_mut(&mut self, value: &Value) -> Option<&mut Vec<u8>> {
        Some(Arc::make_mut(self.segments.get_mut(number_of(value)?)?))
    }

    /// Adds a segment with these bytes.
    pub fn add(&mut self, bytes: Vec<u8>) -> Value {
        self.segments.push(Arc::new(bytes));
        mark(self.segments.len() - 1)
    }

    /// Lays the segments out, one after the other, in the order in which the index refers to them.
    pub fn lay(&self) -> Laid {
        let mut body = vec![0; HEADER_BYTES];
        let mut index = self.index.clone();
        each_mark(&mut index, &mut |place| {
            let bytes = number_of(place).and_then(|n| self.segments.get(n)).map_or(&[][..], |s| &s[..]);
            let offset = if bytes.is_empty() { 0 } else { body.len().next_multiple_of(16) };
            if !bytes.is_empty() {
                body.resize(offset, 0);
                body.extend_from_slice(bytes);
            }
            *place = json!([offset, bytes.len(), hash(bytes).to_string()]);
        });
        body.resize(body.len().next_multiple_of(16), 0);
        Laid { body, index, version: self.version }
    }

    /// The file.
    pub fn seal(&self) -> Vec<u8> {
        let laid = self.lay();
        let text = serde_json::to_vec(&laid.index).expect("JSON");
        laid.seal(&text)
    }
}

impl Laid {
    /// The file with the index `text`, and a header that fits both.
    pub fn seal(self, text: &[u8]) -> Vec<u8> {
        let mut bytes = self.body;
        let header = Header {
            version: self.version,
            index_offset: bytes.len() as u64,
            index_length: text.len() as u64,
            index_hash: hash(text).0,
            file_length: (bytes.len() + text.len()) as u64,
        };
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes.extend_from_slice(text);
        bytes
    }
}

pub fn mark(number: usize) -> Value {
    format!("{MARK}{number}").into()
}

/// The number of the segment that `value` stands for.
pub fn number_of(value: &Value) -> Option<usize> {
    value.as_str()?.strip_prefix(MARK)?.parse().ok()
}

/// Visits the places at which a valid index has segments.
fn each_segment(index: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    let mut of = |entry: &mut Map<String, Value>, keys: &[&str]| {
        keys.iter().for_each(|key| {
            if let Some(place) = entry.get_mut(*key) {
                visit(place);
            }
        });
    };
    for table in list(&mut index["tables"]) {
        of(table.as_object_mut().expect("a valid container"), &["data"]);
    }
    for tensor in list(&mut index["tensors"]) {
        if let Some(scales) = tensor.get_mut("scales").and_then(Value::as_object_mut) {
            of(scales, &["data"]);
        }
        for plane in list(&mut tensor["planes"]) {
            of(plane.as_object_mut().expect("a valid container"), &["offsets", "data", "side"]);
        }
    }
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().expect("a valid container")
}

/// Visits all placeholders, wherever they are by now.
fn each_mark(value: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::String(text) if text.starts_with(MARK) => visit(value),
        Value::Array(all) => all.iter_mut().for_each(|v| each_mark(v, visit)),
        Value::Object(all) => all.values_mut().for_each(|v| each_mark(v, visit)),
        _ => {}
    }
}
