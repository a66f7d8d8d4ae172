//! The index: one JSON object that describes the contents of the file.
//!
//! Parsing takes memory of a small multiple of the text, whatever the text is: values that may hold any JSON stay text.

use std::collections::BTreeMap;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::hash::Hash;
use super::header::{LATER_VERSION, LATEST_VERSION, NEWEST_VERSION, VERSION};
use super::segment::Segment;
use crate::checkpoint::Opaque;
use crate::coder::table::LEAST_BITS;
use crate::error::Result;
use crate::scheme::{COLUMNS, SchemeKind};
use crate::tensor::Dtype;

/// Value of `format`.
const FORMAT: &str = "wcodec";
/// The feature named by files that development versions wrote while format 1.1 could still change.
const DRAFT: &str = "draft-1.1";
/// The scheme of tensors with dtypes that this crate does not know: bytes as in scheme `raw`, and the source's
/// description of them.
pub(crate) const OPAQUE: &str = "opaque";
/// Features that this crate knows. Versions 1.0 to 1.3 define none.
const KNOWN_FEATURES: &[&str] = &[];

/// Deserializes a type from a JSON object alone. The code that serde derives also accepts a list of the values, in the
/// order of the fields, which is not an index (`FORMAT.md` section 2) and would break code that handles entries by
/// their keys.
macro_rules! only_objects {
    ($($ty:ident),*) => {$(
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $ty;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$ty, A::Error> {
                        $ty::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }
                d.deserialize_map(Visitor)
            }
        }

        impl Serialize for $ty {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                $ty::serialize(self, s)
            }
        }
    )*};
}

// `remote = "Self"` makes serde derive the functions that these call.
only_objects!(Index, TableEntry, TensorEntry, Quality, ScalesEntry, PlaneEntry);

/// The index. Keys that it does not know are ignored; the reader still has the bytes as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[allow(missing_docs)]
pub struct Index {
    pub format: String,
    #[serde(default, deserialize_with = "known_features")]
    pub features: Vec<String>,
    #[serde(default)]
    pub writer: String,
    #[serde(default, deserialize_with = "unique_keys")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<RawValue>>,
    pub tables: Vec<TableEntry>,
    pub tensors: Vec<TensorEntry>,
    #[serde(deserialize_with = "unique_keys")]
    pub aliases: BTreeMap<String, String>,
}

/// Reads names of features. Only the first unknown one is kept, since it leads to an error anyway.
fn known_features<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of strings")
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> Result<Vec<String>, A::Error> {
            let mut names: Vec<String> = Vec::new();
            while let Some(name) = access.next_element::<String>()? {
                if names.contains(&name) {
                    continue;
                }
                let known = KNOWN_FEATURES.contains(&name.as_str());
                names.push(name);
                if !known {
                    while access.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                }
            }
            Ok(names)
        }
    }
    d.deserialize_seq(Visitor)
}

/// Reads an object and refuses a key that is given twice; serde's own maps keep the last one.
fn unique_keys<'de, D: serde::Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of strings")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<String, String>()? {
                if let Some(_twice) = map.insert(key.clone(), value) {
                    return Err(serde::de::Error::custom(format!("the key '{key}' is given twice")));
                }
            }
            Ok(map)
        }
    }
    d.deserialize_map(Visitor)
}

/// A table of symbols.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[allow(missing_docs)]
pub struct TableEntry {
    pub coder: CompactString,
    /// Set for tables that are for planes of one layout only.
    #[serde(default, deserialize_with = "text_or_nothing", skip_serializing_if = "Option::is_none")]
    pub layout: Option<CompactString>,
    pub bits: u32,
    pub data: Segment,
}

/// A tensor as matrices: `[count, rows, cols, row_axis]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(usize, usize, usize, usize)", into = "(usize, usize, usize, usize)")]
#[allow(missing_docs)]
pub struct MatrixEntry {
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    pub row_axis: usize,
}

impl MatrixEntry {
    /// Elements of all matrices.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): a product of some of the numbers, leaving out zeros, is 2^63 or
    /// more, so that no caller need check partial products.
    pub fn elements(&self) -> Result<usize> {
        let parts = [self.count, self.rows, self.cols];
        let product = parts.iter().try_fold(1usize, |n, &part| n.checked_mul(part.max(1)));
        match product.filter(|&n| n <= isize::MAX as usize) {
            Some(n) => Ok(if parts.contains(&0) { 0 } else { n }),
            None => Err(coded!(BAD_SIZES, "{} matrices of {} x {} are too large", self.count, self.rows, self.cols)),
        }
    }
}

impl From<(usize, usize, usize, usize)> for MatrixEntry {
    fn from((count, rows, cols, row_axis): (usize, usize, usize, usize)) -> Self {
        Self { count, rows, cols, row_axis }
    }
}

impl From<MatrixEntry> for (usize, usize, usize, usize) {
    fn from(m: MatrixEntry) -> Self {
        (m.count, m.rows, m.cols, m.row_axis)
    }
}

/// A tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[allow(missing_docs)]
pub struct TensorEntry {
    pub name: String,
    pub dtype: CompactString,
    pub shape: Vec<usize>,
    pub scheme: CompactString,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<MatrixEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<ScalesEntry>,
    #[serde(deserialize_with = "short_list")]
    pub planes: Vec<PlaneEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Any JSON; interpreted in scheme `opaque` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<RawValue>>,
}

/// Measured figures. Other figures of the file remain in the index as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Quality {
    /// Order-0 entropy of the symbols, bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// RMS of decoded - source, divided by the RMS of the source.
    #[serde(default, deserialize_with = "number_or_nothing", skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
}

/// Reads a key that version 1.0 does not define, and that may therefore hold anything.
fn number_or_nothing<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    let text = Option::<Box<RawValue>>::deserialize(d)?;
    Ok(text.and_then(|text| serde_json::from_str(text.get()).ok()))
}

/// Reads a key that version 1.0 does not define. A value that is not text is kept as a text that names nothing.
fn text_or_nothing<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<CompactString>, D::Error> {
    let text = Option::<Box<RawValue>>::deserialize(d)?;
    Ok(text.map(|text| serde_json::from_str(text.get()).unwrap_or_else(|_| text.get().chars().take(32).collect())))
}

/// Reads a list that nearly always has one element, with exact capacity: vectors grow to four, and there may be 50,000
/// of these.
fn short_list<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    struct Visitor<T>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::with_capacity(1);
            while let Some(element) = access.next_element()? {
                list.push(element);
            }
            Ok(list)
        }
    }
    d.deserialize_seq(Visitor(std::marker::PhantomData))
}

/// The scales of a tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[allow(missing_docs)]
pub struct ScalesEntry {
    pub per: CompactString,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<usize>,
    /// Any JSON; interpreted in scheme `rate` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Box<RawValue>>,
    pub data: Segment,
}

/// A plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[allow(missing_docs)]
pub struct PlaneEntry {
    pub coder: CompactString,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<CompactString>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<CompactString>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_chunk: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<Segment>,
    pub data: Segment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Segment>,
    pub hash: Hash,
}

impl PlaneEntry {
    /// Its segments and descriptions of their contents.
    pub fn segments(&self) -> impl Iterator<Item = (&'static str, &Segment)> {
        self.offsets
            .iter()
            .map(|s| ("offsets", s))
            .chain([("data", &self.data)])
            .chain(self.side.iter().map(|s| ("side", s)))
    }
}

impl TensorEntry {
    /// The source's description of a tensor of scheme `opaque`; `None` for other schemes.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): the description is missing or contradicts the entry.
    pub(crate) fn opaque(&self) -> Result<Option<Opaque>> {
        if self.scheme != OPAQUE {
            return Ok(None);
        }
        let said = self.source.as_ref().filter(|text| text.get().starts_with('{'));
        let said = said.and_then(|text| serde_json::from_str::<Opaque>(text.get()).ok());
        let said = said.ok_or_else(|| coded!(BAD_OPAQUE, "scheme opaque needs 'source'"))?.check()?;
        match self.shape[..] {
            [bytes] if self.dtype == Dtype::U8.name() && said.fits(bytes as u64) => {}
            _ => return Err(coded!(BAD_OPAQUE, "scheme opaque is a list of U8, as long as its source")),
        }
        Ok(Some(said))
    }

    /// Its segments and descriptions of their contents, tables excluded.
    pub fn segments(&self) -> impl Iterator<Item = (&'static str, &Segment)> {
        self.scales.iter().map(|s| ("scales", &s.data)).chain(self.planes.iter().flat_map(PlaneEntry::segments))
    }
}

impl Index {
    /// An empty index.
    pub fn new() -> Self {
        Self {
            format: FORMAT.to_owned(),
            features: Vec::new(),
            writer: concat!("wcodec ", env!("CARGO_PKG_VERSION")).to_owned(),
            metadata: BTreeMap::new(),
            model: None,
            tables: Vec::new(),
            tensors: Vec::new(),
            aliases: BTreeMap::new(),
        }
    }

    /// The first version of the format that has all features that the index uses.
    pub(crate) fn version(&self) -> (u16, u16) {
        let later = [SchemeKind::Lossless, SchemeKind::Rate].map(SchemeKind::name);
        let schemes = self.tensors.iter().any(|t| later.contains(&t.scheme.as_str()));
        let tables = self.tables.iter().any(|t| t.bits < LEAST_BITS);
        let quads = self.tables.iter().any(|t| t.layout.is_some());
        if self.tensors.iter().any(|t| t.scheme == OPAQUE || t.scheme == COLUMNS) {
            return NEWEST_VERSION;
        }
        match (quads, schemes || tables) {
            (true, _) => LATEST_VERSION,
            (_, true) => LATER_VERSION,
            _ => VERSION,
        }
    }

    /// Sets the model's `config` and `files`.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn set_model(&mut self, model: Option<&serde_json::Value>) -> Result<()> {
        let text = model.map(serde_json::value::to_raw_value).transpose();
        self.model = text.map_err(|e| coded!(BAD_TEXT, "metadata cannot be written: {e}"))?;
        Ok(())
    }

    /// Parses the stored form and checks properties of the file as a whole.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format) for JSON that is not an index, and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a feature that this version does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        // Features first: an index with an unknown one may look different everywhere else.
        #[derive(Deserialize)]
        struct Preamble {
            format: String,
            #[serde(default, deserialize_with = "known_features")]
            features: Vec<String>,
        }
        // Strings under unknown keys are skipped unchecked, and would fail later when the index is shown.
        let text = std::str::from_utf8(bytes).map_err(|e| coded!(BAD_INDEX, "the index is not UTF-8: {e}"))?;
        if !text.trim_ascii_start().starts_with('{') {
            return Err(coded!(BAD_INDEX, "the index is not a JSON object"));
        }
        let parse_error = |e: serde_json::Error| coded!(BAD_INDEX, "the index is not what it should be: {e}");
        let parsed = serde_json::from_str::<Self>(text);
        let (format, features) = match &parsed {
            Ok(index) => (index.format.clone(), index.features.clone()),
            Err(_) => {
                let p: Preamble = serde_json::from_str(text).map_err(parse_error)?;
                (p.format, p.features)
            }
        };
        if format != FORMAT {
            return Err(coded!(BAD_INDEX, "the index is of format '{format}', not '{FORMAT}'"));
        }
        if let Some(f) = features.iter().find(|f| !KNOWN_FEATURES.contains(&f.as_str())) {
            if f == DRAFT {
                let what = format!("the file is of a draft of format 1.1 ('{f}'), which is settled now");
                return Err(coded!(DRAFT_FORMAT, what).advice("compress the model again"));
            }
            return Err(coded!(NEWER_FORMAT, "the file needs the feature '{f}', which this version does not know")
                .advice("upgrade wcodec"));
        }
        parsed.map_err(parse_error)
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}
