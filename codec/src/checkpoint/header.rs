//! Headers of `.safetensors` files.

use std::collections::HashMap;

use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::file::InputFile;
use crate::foreign;
use crate::tensor::Dtype;

/// The largest header that is read: safetensors' own limit.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor with a dtype that this crate does not know, as the source describes it: its elements may have fewer bits
/// than a byte.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Opaque {
    /// The source's name of the dtype.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl Opaque {
    /// # Errors
    /// The dtype needs no such description.
    pub(crate) fn check(self) -> Result<Self> {
        let known = Dtype::from_name(&self.dtype).is_ok();
        if known || self.dtype.is_empty() {
            return Err(coded!(BAD_OPAQUE, "'{}' is no other dtype", self.dtype)
                .advice("encode the model again, or get the file again"));
        }
        Ok(self)
    }

    /// Whether it may have `bytes` bytes: for an unknown dtype, any number is possible.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        bits(&self.dtype).is_none_or(|bits| {
            let elements = self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
            elements.and_then(|n| n.checked_mul(bits)).is_some_and(|n| Some(n) == bytes.checked_mul(8))
        })
    }
}

/// A parsed header.
pub(super) struct Header {
    /// All tensors; those of unknown dtypes as lists of bytes.
    pub(super) known: Metadata,
    /// The tensors of unknown dtypes, as described in the header.
    pub(super) opaque: HashMap<String, Opaque>,
}

/// The header of a safetensors file, and the offset of its data.
pub(super) fn read_header(file: &InputFile, cut: bool) -> Result<(u64, Header)> {
    let advice = "check the path, or download the file again";
    let go = Cancel::new();
    let head = file.read(0, file.length().min(foreign::HEAD_BYTES as u64) as usize, &go)?;
    let length = head.first_chunk().map_or(u64::MAX, |&b| u64::from_le_bytes(b));
    let fits = length <= MAX_HEADER && length <= file.length().saturating_sub(8);
    if (!fits || head.get(8) != Some(&b'{'))
        && let Some(format) = foreign::known_as(file.path(), &head, file.length())
    {
        return Err(coded!(NOT_A_CONTAINER, "this is {}, not a .safetensors file", format.what).advice(format.advice));
    }
    if file.length() < 8 {
        return Err(
            coded!(NOT_SAFETENSORS, "a file of {} bytes is not a safetensors file", file.length()).advice(advice)
        );
    }
    if !fits {
        return Err(coded!(NOT_SAFETENSORS, "a safetensors header of {length} bytes does not fit the file")
            .offset(0)
            .advice(advice));
    }
    let header = file.read(8, length as usize, &go)?;
    let header = parse(&header)
        .map_err(|e| coded!(NOT_SAFETENSORS, "the safetensors header is damaged: {e}").offset(8).advice(advice))?;
    let want = (8 + length).saturating_add(header.known.data_len() as u64);
    if want != file.length() && !(cut && file.length() < want) {
        return Err(coded!(FILE_LENGTH, "the file has {} bytes, and its header says {want}", file.length())
            .offset(want.min(file.length()))
            .advice("it was cut off or appended to: download it again"));
    }
    Ok((8 + length, header))
}

fn parse(text: &[u8]) -> serde_json::Result<Header> {
    // Normally all dtypes are known, and only the library's own parse is needed.
    if let Ok(known) = serde_json::from_slice::<Metadata>(text)
        && known.tensors().values().all(|info| Dtype::from_name(&format!("{:?}", info.dtype)).is_ok())
    {
        return Ok(Header { known, opaque: HashMap::new() });
    }
    let mut all: Map<String, Value> = serde_json::from_slice(text)?;
    let mut opaque = HashMap::new();
    for (name, entry) in all.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        if let Some((said, bytes)) = other(entry) {
            entry["dtype"] = json!(Dtype::U8.name());
            entry["shape"] = json!([bytes]);
            opaque.insert(name.clone(), said);
        }
    }
    // The library checks offsets, and everything about tensors of known dtypes.
    Ok(Header { known: serde_json::from_value(Value::Object(all))?, opaque })
}

/// The tensor of an unknown dtype that an entry describes, and its bytes.
fn other(entry: &Value) -> Option<(Opaque, u64)> {
    let said = Opaque {
        dtype: entry.get("dtype")?.as_str()?.to_owned(),
        shape: serde_json::from_value(entry.get("shape")?.clone()).ok()?,
    };
    let (begin, end): (u64, u64) = serde_json::from_value(entry.get("data_offsets")?.clone()).ok()?;
    let bytes = end.checked_sub(begin)?;
    Some((said.check().ok().filter(|said| said.fits(bytes))?, bytes))
}

/// Bits of an element of a sub-byte dtype.
fn bits(dtype: &str) -> Option<u64> {
    match dtype {
        "F4" => Some(4),
        "F6_E2M3" | "F6_E3M2" => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_dtypes_are_bytes() {
        let text = r#"{"a": {"dtype": "F4", "shape": [2, 8], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [1],
            "data_offsets": [8, 12]}, "c": {"dtype": "Q3", "shape": [7], "data_offsets": [12, 15]}, "__metadata__": {"x": "y"}}"#;
        let header = parse(text.as_bytes()).unwrap();
        let kinds = ["a", "b", "c"].map(|name| {
            let info = header.known.info(name).unwrap();
            (format!("{:?}", info.dtype), info.shape.clone(), header.opaque.get(name).cloned())
        });
        let opaque = |dtype: &str, shape: &[usize]| Some(Opaque { dtype: dtype.to_owned(), shape: shape.to_vec() });
        assert_eq!(kinds[0], ("U8".to_owned(), vec![8], opaque("F4", &[2, 8])));
        assert_eq!(kinds[1], ("F32".to_owned(), vec![1], None));
        assert_eq!(kinds[2], ("U8".to_owned(), vec![3], opaque("Q3", &[7])));
        assert_eq!(header.known.metadata().as_ref().unwrap()["x"], "y");
        for wrong in [
            // Too few bytes, none at all, a hole, an invalid shape.
            r#"{"a": {"dtype": "F4", "shape": [2, 8], "data_offsets": [0, 7]}}"#,
            r#"{"a": {"dtype": "Q3", "shape": [2, 8], "data_offsets": [7, 0]}}"#,
            r#"{"a": {"dtype": "Q3", "shape": [2, 8], "data_offsets": [1, 2]}}"#,
            r#"{"a": {"dtype": "Q3", "shape": [-2], "data_offsets": [0, 2]}}"#,
            r#"{"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 2]}}"#,
            r#"{"a": {"dtype": "", "shape": [2], "data_offsets": [0, 2]}}"#,
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
