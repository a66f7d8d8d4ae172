//! Some tensors of a container as a container of their own, without decoding them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Seek, Write};
use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::container::{HEADER_BYTES, Segment, Writer};
use crate::decode::{Container, DecodeOptions};
use crate::error::{Error, Result};
use crate::file::OutputFile;
use crate::rest::REST_KEY;
use crate::tensor::out_of_memory;

/// The index as text, cut so that an entry can be taken out without parsing the others: a model may be taken apart tensor
/// by tensor, and have 50,000 of them.
#[derive(Debug)]
pub(crate) struct IndexTexts {
    /// What concerns the file as a whole, without lists of what it holds.
    whole: BTreeMap<String, Value>,
    tables: Vec<Box<RawValue>>,
    tensors: Vec<Box<RawValue>>,
}

impl IndexTexts {
    /// Cuts the text of an index that was read before, and so is known to be one.
    pub(crate) fn new(json: &str) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::format(format!("the index is not what it should be: {e}"));
        let mut keys: BTreeMap<String, &RawValue> = serde_json::from_str(json).map_err(bad)?;
        let mut list = |key: &str| match keys.remove(key) {
            Some(text) => serde_json::from_str::<Vec<Box<RawValue>>>(text.get()).map_err(bad),
            None => Err(Error::format(format!("an index without '{key}'"))),
        };
        let (tables, tensors) = (list("tables")?, list("tensors")?);
        let whole = keys
            .into_iter()
            .filter(|(key, _)| !matches!(key.as_str(), "aliases" | "model"))
            .map(|(key, text)| Ok((key, serde_json::from_str(text.get()).map_err(bad)?)))
            .collect::<Result<_>>()?;
        Ok(Self { whole, tables, tensors })
    }
}

/// A complete container that holds the tensors `names` and no others.
///
/// Segments are copied as they are stored, after a comparison with their hashes: nothing is decoded and nothing is
/// encoded, so that symbols, scales and hashes stay what they were. Tensors keep the order of the file; tied names that
/// are all among `names` stay tied, and a tied name alone becomes the tensor that holds the data. Metadata is kept, and
/// keys of the index that this version does not know; `model`, which describes the whole checkpoint, is left out, and so is
/// [`REST_KEY`].
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::{Container, DecodeOptions, Dtype, EncodeOptions, MemorySource, encode_to_vec, extract};
/// let mut source = MemorySource::new();
/// for name in ["a", "b", "c"] {
///     source.push(name.into(), Dtype::F32, vec![16, 64], vec![1; 4096].into())?;
/// }
/// let whole = Container::from_bytes(encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(()))?.0)?;
/// let options = DecodeOptions::default();
/// let part = Container::from_bytes(extract(&whole, &["b"], &options)?)?;
/// assert_eq!(part.names(), ["b"]);
/// assert_eq!(part.symbols("b", &options)?, whole.symbols("b", &options)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no such tensor, `names` is empty, a segment is damaged, which names the tensor, or the work was cancelled.
pub fn extract(container: &Container, names: &[&str], options: &DecodeOptions) -> Result<Vec<u8>> {
    let kept = chosen(container, names)?;
    let out = memory_for(container, kept.keys().copied())?;
    let out = copy(container, &kept, &BTreeMap::new(), Cursor::new(out), Path::new("memory"), options)?;
    Ok(out.into_inner())
}

/// As [`extract`], to a file, which its owner finishes; `metadata` is added to the container's.
///
/// # Errors
/// As for [`extract`]; the disk is full, or the file system refuses.
pub fn extract_to(
    out: &OutputFile,
    container: &Container,
    names: &[&str],
    metadata: &BTreeMap<String, String>,
    options: &DecodeOptions,
) -> Result<()> {
    let kept = chosen(container, names)?;
    copy(container, &kept, metadata, out.writer()?, out.path(), options).map(drop)
}

/// The names that each stored tensor is to have, by its place; its own first, if that is among them.
fn chosen<'a>(container: &Container, names: &[&'a str]) -> Result<BTreeMap<usize, Vec<&'a str>>> {
    if names.is_empty() {
        return Err(Error::input("no tensors to extract").advice("name at least one"));
    }
    let reader = container.reader();
    let index = reader.index();
    let mut kept: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in names {
        let place = reader.place(name)?;
        let own = index.tensors[place].name == **name;
        let list = kept.entry(place).or_default();
        match (list.contains(name), own) {
            (true, _) => {}
            (false, true) => list.insert(0, name),
            (false, false) => list.push(name),
        }
    }

    Ok(kept)
}

/// Copies the tensors that are kept to `out`, which is called `path` in errors.
fn copy<W: Write + Seek>(
    container: &Container,
    kept: &BTreeMap<usize, Vec<&str>>,
    metadata: &BTreeMap<String, String>,
    out: W,
    path: &Path,
    options: &DecodeOptions,
) -> Result<W> {
    let reader = container.reader();
    let index = reader.index();
    let texts = container.index_texts()?;
    let parse = |text: &RawValue| -> Result<Value> {
        serde_json::from_str(text.get()).map_err(|e| Error::format(format!("an entry of the index: {e}")))
    };
    let mut writer = Writer::new(out, path)?;
    let (mut tables, mut tensors, mut aliases) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    for (&place, names) in kept {
        let entry = &index.tensors[place];
        let named = |e: Error| reader.name(e.tensor(&entry.name));
        let mut copy = |segment: &Segment| -> Result<Value> {
            let moved = writer.segment(&reader.segment_with(segment, true, &options.cancel).map_err(named)?)?;
            serde_json::to_value(moved).map_err(|e| Error::format(format!("a segment: {e}")))
        };
        let mut text = parse(&texts.tensors[place]).map_err(named)?;
        text["name"] = names[0].into();
        if let Some(scales) = &entry.scales {
            text["scales"]["data"] = copy(&scales.data)?;
        }
        for (i, plane) in entry.planes.iter().enumerate() {
            let text = &mut text["planes"][i];
            if let Some(number) = plane.table {
                text["table"] = match numbers.entry(number) {
                    Entry::Occupied(new) => (*new.get()).into(),
                    Entry::Vacant(new) => {
                        let mut table = parse(&texts.tables[number]).map_err(named)?;
                        table["data"] = copy(&index.tables[number].data)?;
                        tables.push(table);
                        (*new.insert(tables.len() - 1)).into()
                    }
                };
            }
            for (key, segment) in
                [("offsets", plane.offsets.as_ref()), ("data", Some(&plane.data)), ("side", plane.side.as_ref())]
            {
                if let Some(segment) = segment {
                    text[key] = copy(segment)?;
                }
            }
        }
        tensors.push(text);
        aliases.extend(names[1..].iter().map(|alias| ((*alias).to_owned(), names[0].to_owned())));
    }

    let mut whole = texts.whole.clone();
    whole.insert("tables".to_owned(), tables.into());
    whole.insert("tensors".to_owned(), tensors.into());
    whole.insert("aliases".to_owned(), serde_json::json!(aliases));
    let kept = container.metadata().iter().filter(|(key, _)| *key != REST_KEY);
    let metadata: BTreeMap<_, _> = kept.chain(metadata).collect();
    whole.insert("metadata".to_owned(), serde_json::json!(metadata));
    let json = serde_json::to_vec(&whole).map_err(|e| Error::format(format!("the index cannot be written: {e}")))?;
    writer.finish_with(reader.header().version, &json)
}

/// An empty vector with room for the tensors at `places`, and an error where there is none: segments, their padding and
/// something for the index.
fn memory_for(container: &Container, places: impl Iterator<Item = usize>) -> Result<Vec<u8>> {
    const MORE: u64 = 4096;
    let tensors = &container.reader().index().tensors;
    let bytes = places
        .flat_map(|i| tensors[i].segments())
        .fold(HEADER_BYTES as u64 + MORE, |sum, (_, segment)| sum.saturating_add(segment.length).saturating_add(MORE));
    let mut out = Vec::new();
    let room = usize::try_from(bytes).unwrap_or(usize::MAX);
    out.try_reserve(room).map_err(|_| out_of_memory(room))?;
    Ok(out)
}
