//! Safetensors files made by hand, so that they can be wrong.

use serde_json::{Map, Value, json};

/// A file of `header` and `data`.
pub fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(data);
    bytes
}

/// A valid file of `tensors`: name, dtype, shape, bytes.
pub fn valid(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header
            .insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    file(Value::Object(header).to_string().as_bytes(), &data)
}
