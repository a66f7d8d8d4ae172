//! Changes values of an index.

use serde_json::{Map, Value, json};

use super::choices::Choices;
use super::draft::Draft;

/// Numbers at which size computations go wrong.
const HOSTILE: &[u64] = &[
    0,
    1,
    2,
    15,
    16,
    17,
    63,
    64,
    65,
    255,
    256,
    1024,
    65_535,
    65_536,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];
const DTYPES: &[&str] = &[
    "BOOL",
    "U8",
    "I8",
    "F8_E5M2",
    "F8_E4M3",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "I16",
    "U16",
    "F16",
    "BF16",
    "I32",
    "U32",
    "F32",
    "F64",
    "I64",
    "U64",
    "C64",
    "F4",
    "f32",
    "",
];
/// Names that are hard to display, or to tell apart.
const NAMES: &[&str] = &[
    "",
    "w.weight",
    "tied",
    "__metadata__",
    "a\u{1b}[2J\u{7}",
    "\u{202e}drow",
    "a\nb\tc\r",
    "\u{0}",
    "../../etc/passwd",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.18446744073709551616.q",
    "model.layers.00000000000000000000001.q",
    "x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x",
    "\u{1F600}\u{301}\u{200d}",
    "<script>alert(1)</script>",
    "a&b\"c'd",
    "@0",
    "%s%n{}",
    "w\u{AD}eight",
    "\u{FEFF}w",
    "lm_head.weight",
    "embed_tokens.weight",
    "e\u{301}",
    "é",
    ".",
    "..",
    "a..b",
    " ",
    "-1",
];
/// Keys of an index, of any of its objects.
const KEYS: &[&str] = &[
    "name",
    "dtype",
    "shape",
    "scheme",
    "matrix",
    "scales",
    "planes",
    "quality",
    "coder",
    "data",
    "hash",
    "fields",
    "chunks",
    "offsets",
    "max_chunk",
    "filter",
    "chunk",
    "layout",
    "shift",
    "tile",
    "table",
    "side",
    "per",
    "block",
    "bits",
    "entropy",
    "error",
    "config",
    "files",
    "tables",
    "tensors",
    "aliases",
    "metadata",
    "features",
    "format",
    "writer",
    "model",
    "later",
];

/// Changes a value anywhere in the index, most often below a tensor.
pub fn change(draft: &mut Draft, c: &mut Choices<'_>) {
    let root = match c.below(8) {
        0 => "tables",
        1 => *c.one(&["aliases", "metadata", "model", "features", "format", "writer", ""]),
        _ => "tensors",
    };
    let start = if root.is_empty() { Some(&mut draft.index) } else { draft.index.get_mut(root) };
    let Some(start) = start else { return };
    let (place, key) = descend(start, root.to_owned(), c, 0);
    if c.once_in(5) { structure(place, c) } else { value(place, &key, c) }
}

/// A place below `value`, and its key.
fn descend<'v>(value: &'v mut Value, key: String, c: &mut Choices<'_>, depth: usize) -> (&'v mut Value, String) {
    let children = match value {
        Value::Array(all) => all.len(),
        Value::Object(all) => all.len(),
        _ => 0,
    };
    if children == 0 || (depth > 0 && c.once_in(7)) {
        return (value, key);
    }
    let i = c.below(children);
    match value {
        Value::Array(all) => descend(&mut all[i], key, c, depth + 1),
        Value::Object(all) => {
            let (name, child) = all.iter_mut().nth(i).expect("so many");
            descend(child, name.clone(), c, depth + 1)
        }
        leaf => (leaf, key),
    }
}

/// Replaces a value, usually by one of the same type.
fn value(place: &mut Value, key: &str, c: &mut Choices<'_>) {
    if c.once_in(12) {
        *place = odd(c);
        return;
    }
    match place {
        Value::Number(n) => *place = number(n.as_u64().unwrap_or(0), key, c),
        Value::String(text) => *place = word(text, key, c),
        Value::Bool(b) => *b = !*b,
        Value::Null => *place = odd(c),
        Value::Array(_) | Value::Object(_) => structure(place, c),
    }
}

/// A replacement for the number `old`, valid or invalid for `key`.
fn number(old: u64, key: &str, c: &mut Choices<'_>) -> Value {
    let of_key: &[u64] = match key {
        "tile" => &[64, 128, 192, 256, 512, 1024, 1088, 96, 0],
        "shift" => &[0, 1, 2, 3, 4, 5, 7, 8, 16, 24, 32],
        "bits" => &[7, 8, 9, 10, 11, 12, 13, 16],
        "block" => &[16, 32, 48, 64, 128, 144, 4096, 8, 17],
        "table" => &[0, 1, 2, 3],
        "chunk" => &[1, 2, 63, 64, 1024, 1920, 1 << 24, (1 << 24) + 1],
        _ => &[],
    };
    if !of_key.is_empty() && c.once_in(2) {
        return json!(c.one(of_key));
    }
    match c.below(10) {
        0 => json!(c.one(HOSTILE)),
        1 => json!(old.wrapping_add(1)),
        2 => json!(old.wrapping_sub(1)),
        3 => json!(old.saturating_mul(2)),
        4 => json!(old / 2),
        5 => json!(c.below(300)),
        6 => json!(old.wrapping_add([4, 8, 16, 32, 64][c.below(5)])),
        7 => json!(-(c.below(300) as i64)),
        8 => json!([0.5, 1e308, -0.0, 1e-300, 2.0, 3e9][c.below(6)]),
        _ => json!(c.number() >> c.below(64)),
    }
}

/// A replacement for the word `old`.
fn word(old: &str, key: &str, c: &mut Choices<'_>) -> Value {
    let of_key: &[&str] = match key {
        "coder" => &["rans", "huffman", "zstd", "raw", "lzma", "RANS"],
        "layout" => &["byte", "pair", "quad", "split", "octet"],
        "filter" => &["left", "up", "none", "trellis", "down"],
        "scheme" => &["int8", "rate", "columns", "lossless", "raw", "int4", "fractal"],
        "dtype" => DTYPES,
        "per" => &["row", "tensor", "block", "column", ""],
        "name" => NAMES,
        _ => &[],
    };
    if !of_key.is_empty() && !c.once_in(8) {
        return json!(c.one(of_key));
    }
    match c.below(6) {
        0 => json!(c.one(NAMES)),
        1 => json!(format!("{:016x}", c.number())),
        2 => json!(old.repeat(2 + c.below(40))),
        3 => json!(old.chars().rev().collect::<String>()),
        4 => json!(old.to_uppercase()),
        _ => json!(text(old, c)),
    }
}

/// `old` with some of its characters changed.
fn text(old: &str, c: &mut Choices<'_>) -> String {
    let mut all: Vec<char> = old.chars().collect();
    for _ in 0..=c.below(3) {
        let at = c.below(all.len() + 1);
        let new = char::from_u32((c.number() >> c.below(64)) as u32 & 0x1F_FFFF).unwrap_or('x');
        match c.below(3) {
            0 => all.insert(at, new),
            1 if at < all.len() => all[at] = new,
            _ if at < all.len() => drop(all.remove(at)),
            _ => {}
        }
    }
    all.into_iter().collect()
}

/// A value of any type.
fn odd(c: &mut Choices<'_>) -> Value {
    match c.below(10) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!([]),
        3 => json!({}),
        4 => json!(c.one(HOSTILE)),
        5 => json!(c.one(NAMES)),
        6 => json!([0, 0, "2d06800538d394c2"]),
        7 => json!([64, c.below(4096), format!("{:016x}", c.number())]),
        8 => json!([[c.below(20), c.below(20)], [c.below(20), c.below(20)]]),
        _ => (0..c.below(200)).fold(json!(0), |inner, i| if i % 2 == 0 { json!([inner]) } else { json!({"a": inner}) }),
    }
}

/// Changes the members of an object or a list.
fn structure(place: &mut Value, c: &mut Choices<'_>) {
    match place {
        Value::Array(all) if !all.is_empty() => {
            let (i, j) = (c.below(all.len()), c.below(all.len()));
            match c.below(6) {
                0 => drop(all.remove(i)),
                1 => all.push(all[i].clone()),
                2 => all.insert(j, all[i].clone()),
                3 => all.swap(i, j),
                4 => all[j] = all[i].clone(),
                _ => all.push(odd(c)),
            }
        }
        Value::Array(all) => all.push(odd(c)),
        Value::Object(all) => keys(all, c),
        leaf => *leaf = odd(c),
    }
}

fn keys(all: &mut Map<String, Value>, c: &mut Choices<'_>) {
    let key = |all: &Map<String, Value>, c: &mut Choices<'_>| all.keys().nth(c.below(all.len())).cloned();
    let (Some(one), Some(two)) = (key(all, c), key(all, c)) else {
        all.insert((*c.one(KEYS)).to_owned(), odd(c));
        return;
    };
    match c.below(5) {
        0 => drop(all.remove(&one)),
        1 => {
            let value = odd(c);
            all.insert((*c.one(KEYS)).to_owned(), value);
        }
        2 => {
            let value = all[&one].clone();
            all.insert((*c.one(KEYS)).to_owned(), value);
        }
        3 => {
            let (a, b) = (all[&one].clone(), all[&two].clone());
            all.insert(one, b);
            all.insert(two, a);
        }
        _ => {
            let value = all[&one].clone();
            all.insert(two, value);
        }
    }
}

/// Changes descriptions of the whole file that people read: plans, figures, models, names.
pub fn statements(draft: &mut Draft, c: &mut Choices<'_>) {
    let key = *c.one(&["wcodec.plan", "wcodec.quality", "wcodec.rest", "format"]);
    if c.once_in(3) {
        let model = draft.index.get("model").cloned().unwrap_or_else(|| json!({"config": {"a": 1}, "files": ["b"]}));
        draft.index["model"] = inside(model, c);
        return;
    }
    let Some(metadata) = draft.index["metadata"].as_object_mut() else { return };
    let old = metadata.get(key).and_then(Value::as_str).unwrap_or("{\"version\":1,\"bits\":3}").to_owned();
    let new = match (serde_json::from_str::<Value>(&old), c.below(4)) {
        (Ok(statement), 0..=2) => {
            let mut text = inside(statement, c).to_string();
            if c.once_in(4) {
                // Numbers that JSON allows and machines cannot represent.
                text = text.replacen(
                    ":1",
                    [":1e999", ":-1e400", ":0.0000000000000000000001e-400", ":100000000000000000000000000"][c.below(4)],
                    1,
                );
            }
            text
        }
        (_, 3) => "[".repeat(c.below(3000)),
        _ => text(&old, c),
    };
    metadata.insert(key.to_owned(), new.into());
}

/// `statement` with a part changed.
fn inside(mut statement: Value, c: &mut Choices<'_>) -> Value {
    for _ in 0..=c.below(2) {
        let (place, key) = descend(&mut statement, String::new(), c, 0);
        if c.once_in(3) { structure(place, c) } else { value(place, &key, c) }
    }
    statement
}

/// Ties names, to anything.
pub fn aliases(draft: &mut Draft, c: &mut Choices<'_>) {
    let names: Vec<String> = draft.index["tensors"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|t| Some(t["name"].as_str()?.to_owned()))
        .collect();
    let Some(aliases) = draft.index["aliases"].as_object_mut() else { return };
    let known = |c: &mut Choices<'_>| names.get(c.below(names.len())).cloned().unwrap_or_default();
    let from = if c.once_in(4) { known(c) } else { (*c.one(NAMES)).to_owned() };
    let to = match c.below(4) {
        0 => (*c.one(NAMES)).to_owned(),
        1 => aliases.keys().next().cloned().unwrap_or_default(),
        _ => known(c),
    };
    aliases.insert(from, to.into());
}
