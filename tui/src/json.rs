//! `--json`: everything that the views know.
//!
//! All of it is printable ASCII, other characters as `\uXXXX`. The document has the keys of `wcodec inspect --json`, with the same meaning and figures, and more beside them: `schema_version`
//! grows when a key changes its meaning or goes away, not when one is added.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use wcodec::text::{ascii_json, path_json};
use wcodec::{
    CompareStatus, ComparedTensor, Comparisons, Container, Dtype, PLAN_KEY, PlaneInfo, QUALITY_KEY, SegmentInfo,
    TensorInfo, TensorInfos,
};

use crate::model::rates::{self, groups, layers, roles};
use crate::model::statements::Statement;
use crate::model::{FileModel, Totals};

/// The version of the document's schema.
pub const SCHEMA_VERSION: u32 = 2;

/// All that a document is made of.
struct Parts<'a> {
    file: &'a FileModel,
    container: Option<&'a Container>,
    model: Option<&'a Value>,
    shown: &'a [usize],
    compared: Option<(&'a FileModel, &'a Comparisons)>,
}

/// Keys of an object, each with its type and its value.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident of $t:ident: &$from:ty; $($(#[$meta:meta])* $key:ident: $type:ty = $value:expr;)*) => {
        $(#[$doc])*
        #[derive(Serialize)]
        struct $name<'a> {
            $($(#[$meta])* $key: $type,)*
        }

        impl<'a> $name<'a> {
            fn new($t: &'a $from) -> Self {
                Self { $($key: $value,)* }
            }
        }
    };
}

object! {
    Document of of: &Parts<'a>;
    schema_version: u32 = SCHEMA_VERSION;
    command: &'static str = "tui";
    path: Box<RawValue> = path_of(&of.file.path);
    kind: &'static str = of.file.original().map_or("wcodec", |o| o.kind());
    format_version: Option<[u16; 2]> = of.container.map(|c| [c.version().0, c.version().1]);
    writer: Option<&'a str> = of.container.map(Container::writer);
    metadata: &'a BTreeMap<String, String> = &of.file.metadata;
    plan: Option<Value> = Statement::of(&of.file.metadata, PLAN_KEY).map(|s| s.0);
    quality: Option<Value> = Statement::of(&of.file.metadata, QUALITY_KEY).map(|s| s.0);
    model: Option<&'a Value> = of.model;
    file: Layout = Layout::new(of);
    totals: Sums = Sums::new(of.file);
    by_scheme: BTreeMap<String, Group> = named(groups(&of.file.tensors, |t| t.scheme.to_string()));
    by_coder: BTreeMap<String, Group> = named(groups(&of.file.tensors, |t| t.coder().to_owned()));
    by_dtype: BTreeMap<String, Group> = named(groups(&of.file.tensors, |t| t.dtype.name().to_owned()));
    by_role: BTreeMap<String, Group> = named(roles(&of.file.tensors));
    by_layer: BTreeMap<String, Group> = named(layers(&of.file.tensors));
    aliases: BTreeMap<&'a str, &'a str> = of.file.aliases.iter().map(|(a, t)| (a.as_str(), t.as_str())).collect();
    tensors: Vec<Tensor<'a>> = of.shown.iter().filter_map(|&i| of.file.tensors.get(i)).map(Tensor::new).collect();
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<Compare<'a>> = of.compared.as_ref().map(Compare::new);
}

/// The parts of the file that belong to no tensor, bytes.
#[derive(Serialize)]
struct Layout {
    length: u64,
    index_offset: Option<u64>,
    index_length: Option<u64>,
}

impl Layout {
    fn new(of: &Parts<'_>) -> Self {
        let header = of.container.map(|c| c.reader().header());
        let (index_offset, index_length) = (header.map(|h| h.index_offset), header.map(|h| h.index_length));
        Self { length: of.file.file_bytes(), index_offset, index_length }
    }
}

/// Sums of the whole file, whatever is shown of it.
#[derive(Serialize)]
struct Sums {
    tensors: usize,
    aliases: usize,
    elements: u64,
    original_bytes: u64,
    stored_bytes: u64,
    overhead_bytes: u64,
    ratio: Option<f64>,
    bits_per_weight: Option<f64>,
}

impl Sums {
    fn new(file: &FileModel) -> Self {
        let (stored, Totals { tensors, elements, original_bytes, stored_bytes }) = (file.file_bytes(), file.totals);
        Self {
            tensors,
            aliases: file.aliases.len(),
            elements,
            original_bytes,
            stored_bytes: stored,
            overhead_bytes: stored.saturating_sub(stored_bytes),
            ratio: ratio(original_bytes, stored),
            bits_per_weight: bits(stored, elements),
        }
    }
}

/// Sums of tensors that have something in common: the bytes of their segments.
#[derive(Serialize)]
struct Group {
    #[serde(flatten)]
    totals: Totals,
    ratio: Option<f64>,
    bits_per_weight: Option<f64>,
}

impl Group {
    fn new(totals: Totals) -> Self {
        Self {
            ratio: ratio(totals.original_bytes, totals.stored_bytes),
            bits_per_weight: bits(totals.stored_bytes, totals.elements),
            totals,
        }
    }
}

object! {
    /// A tensor, as the Python command writes it.
    Tensor of t: &TensorInfo;
    name: &'a str = &t.name;
    #[serde(serialize_with = "dtype")]
    dtype: Dtype = t.dtype;
    shape: &'a [usize] = &t.shape;
    scheme: &'a str = &t.scheme;
    scale: Option<&'a str> = t.scales.as_deref();
    columns: bool = t.columns;
    makes_symbols: bool = t.makes_symbols;
    planes: &'a [PlaneInfo] = &t.planes;
    count: usize = t.count;
    rows: usize = t.rows;
    cols: usize = t.cols;
    row_axis: usize = t.row_axis;
    cut: usize = t.cut;
    elements: u64 = t.elements;
    original_bytes: u64 = t.original_bytes;
    stored_bytes: u64 = t.stored_bytes;
    entropy: Option<f64> = t.entropy;
    error: Option<f64> = t.error;
    segments: &'a [SegmentInfo] = &t.segments;
    ratio: Option<f64> = ratio(t.original_bytes, t.stored_bytes);
    bits_per_weight: Option<f64> = bits(t.stored_bytes, t.elements);
}

object! {
    Pair of t: &ComparedTensor;
    name: &'a str = &t.name;
    status: CompareStatus = t.status;
    detail: &'a str = &t.detail;
    a: Option<Tensor<'a>> = t.a.as_ref().map(Tensor::new);
    b: Option<Tensor<'a>> = t.b.as_ref().map(Tensor::new);
}

object! {
    Compare of compared: &(&'a FileModel, &'a Comparisons);
    path: Box<RawValue> = path_of(&compared.0.path);
    same: bool = compared.1.same();
    tensors: Vec<Pair<'a>> = compared.1.tensors.iter().map(Pair::new).collect();
}

fn dtype<S: Serializer>(dtype: &Dtype, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

/// None where nothing is stored.
fn ratio(original: u64, stored: u64) -> Option<f64> {
    (stored > 0).then(|| original as f64 / stored as f64)
}

/// None where there is no element.
fn bits(stored: u64, elements: u64) -> Option<f64> {
    (elements > 0).then(|| stored.saturating_mul(8) as f64 / elements as f64)
}

fn named(found: Vec<rates::Group>) -> BTreeMap<String, Group> {
    found.into_iter().map(|g| (g.name, Group::new(g.totals))).collect()
}

/// The document of a file: all of it, what the index says of the model, of its tensors those given by their places, and what differs
/// from a second file.
///
/// # Errors
/// It cannot be written as JSON.
pub fn document(
    file: &FileModel,
    model: Option<&Value>,
    shown: &[usize],
    compared: Option<(&FileModel, &Comparisons)>,
) -> serde_json::Result<String> {
    let parts = Parts { file, container: file.container().ok(), model, shown, compared };
    let mut text = serde_json::to_string_pretty(&Document::new(&parts))?;
    text.push('\n');
    Ok(ascii_json(&text).into_owned())
}

fn path_of(path: &Path) -> Box<RawValue> {
    // That function writes nothing but JSON.
    RawValue::from_string(path_json(path)).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The entries of a list of tensors, those at these places of a file, as `wcodec inspect --json` has them: one a line and with a comma
/// before each; in parts, which follow each other.
///
/// # Errors
/// A tensor of which there is nothing to say, or that cannot be written as JSON.
pub fn tensors(tensors: &TensorInfos, places: &[usize]) -> io::Result<Vec<String>> {
    entries(places, |&place, out| match tensors.get(place).map_err(io::Error::other)? {
        Some(t) => line(out, &Tensor::new(&t)),
        None => Ok(()),
    })
}

/// The entries of a list of compared tensors in the same form, as `wcodec compare --json` has them.
///
/// # Errors
/// It cannot be written as JSON.
pub fn compared(found: &Comparisons) -> io::Result<Vec<String>> {
    entries(&found.tensors, |t, out| line(out, &Pair::new(t)))
}

/// Entries that are worth a thread of their own.
const PART: usize = 1 << 10;
/// About what an entry takes, bytes.
const ENTRY: usize = 768;

/// Entries in parts that are written side by side where there are many.
fn entries<T: Sync>(
    items: &[T],
    write: impl Fn(&T, &mut Vec<u8>) -> io::Result<()> + Copy + Send,
) -> io::Result<Vec<String>> {
    let lines = move |part: &[T]| {
        let mut out = Vec::with_capacity(part.len() * ENTRY);
        part.iter().try_for_each(|item| write(item, &mut out))?;
        let text = String::from_utf8(out).map_err(io::Error::other)?;
        io::Result::Ok(match ascii_json(&text) {
            Cow::Owned(ascii) => ascii,
            Cow::Borrowed(_) => text,
        })
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len().div_ceil(PART)).max(1);
    let (first, others) = items.split_at(items.len().div_ceil(threads));
    thread::scope(|scope| {
        let started: Vec<_> = others
            .chunks(first.len().max(1))
            .map(|part| (part, thread::Builder::new().spawn_scoped(scope, move || lines(part))))
            .collect();
        let mut parts = vec![lines(first)];
        // If no thread can be had, this one does it.
        parts.extend(started.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => lines(part),
        }));
        parts.into_iter().collect()
    })
}

fn line(out: &mut Vec<u8>, entry: &impl Serialize) -> io::Result<()> {
    out.extend_from_slice(b",\n    ");
    Ok(serde_json::to_writer(out, entry)?)
}
