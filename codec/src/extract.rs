//! Copies some tensors of a container to a container of their own, without decoding them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Cursor, Seek, Write};
use std::path::Path;

use serde_json::value::RawValue;

use crate::container::metadata::OF_THE_WHOLE;
use crate::container::texts::{Object, bad_entry, raw};
use crate::container::{HEADER_BYTES, Segment, Writer};
use crate::decode::{Container, DecodeOptions};
use crate::error::{Error, Result};
use crate::file::OutputFile;
use crate::tensor::out_of_memory;

/// A complete container that holds the tensors `names` and no others.
///
/// Segments are copied unchanged, after a comparison with their hashes: nothing is decoded or encoded, so symbols,
/// scales and hashes stay the same. Tensors keep the order of the file; tied names that are all among `names` stay
/// tied, and a tied name alone becomes the tensor that holds the data. Metadata is kept, and keys of the index that
/// this version does not know; `model`, which describes the whole checkpoint, is left out, and so are
/// [`REST_KEY`](crate::REST_KEY), [`PLAN_KEY`](crate::PLAN_KEY) and [`QUALITY_KEY`](crate::QUALITY_KEY).
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
    let selection = Selection::new(container, names)?;
    let out = memory_for(container, selection.kept.keys().copied())?;
    let out = copy(&[selection], &BTreeMap::new(), Cursor::new(out), Path::new("memory"), options)?;
    Ok(out.into_inner())
}

/// As [`extract`], to a file, which the caller finishes; `metadata` is added to the container's.
///
/// # Errors
/// Those of [`extract`]; the disk is full, or the file system refuses.
pub fn extract_to(
    out: &OutputFile,
    container: &Container,
    names: &[&str],
    metadata: &BTreeMap<String, String>,
    options: &DecodeOptions,
) -> Result<()> {
    join_to(out, &[(container, names)], metadata, options)
}

/// As [`extract_to`], for several containers: the tensors of each in turn, such as layers that were compressed
/// separately and the uncompressed rest of their model. Metadata, and keys of the index unknown to this version, are
/// merged; the first container takes precedence.
///
/// # Errors
/// Those of [`extract`]; two of them have a tensor of the same name.
pub fn join_to(
    out: &OutputFile,
    parts: &[(&Container, &[&str])],
    metadata: &BTreeMap<String, String>,
    options: &DecodeOptions,
) -> Result<()> {
    let selections: Vec<Selection<'_>> =
        parts.iter().map(|(container, names)| Selection::new(container, names)).collect::<Result<_>>()?;
    copy(&selections, metadata, out.writer()?, out.path(), options).map(drop)
}

/// A container, and its tensors that are kept.
struct Selection<'a> {
    container: &'a Container,
    kept: BTreeMap<usize, Vec<&'a str>>,
}

impl<'a> Selection<'a> {
    fn new(container: &'a Container, names: &[&'a str]) -> Result<Self> {
        Ok(Self { container, kept: chosen(container, names)? })
    }
}

/// The new names of each stored tensor, by index; its own name first, if that is among them.
fn chosen<'a>(container: &Container, names: &[&'a str]) -> Result<BTreeMap<usize, Vec<&'a str>>> {
    if names.is_empty() {
        return Err(coded!(PARTS, "no tensors to extract").advice("name at least one"));
    }
    let reader = container.reader();
    let index = reader.index();
    let mut kept: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in names {
        let place = reader.place(name)?;
        let is_original = index.tensors[place].name == **name;
        let list = kept.entry(place).or_default();
        match (list.contains(name), is_original) {
            (true, _) => {}
            (false, true) => list.insert(0, name),
            (false, false) => list.push(name),
        }
    }

    Ok(kept)
}

/// Copies the kept tensors to `out`, which errors call `path`.
fn copy<W: Write + Seek>(
    selections: &[Selection<'_>],
    metadata: &BTreeMap<String, String>,
    out: W,
    path: &Path,
    options: &DecodeOptions,
) -> Result<W> {
    let mut writer = Writer::new(out, path)?;
    let mut copied = Copied::default();
    let (mut version, mut texts) = (None, Vec::new());
    let mut all = metadata.clone();
    for selection in selections {
        let container = selection.container;
        copied.add(selection, &mut writer, options)?;
        version = version.max(Some(container.reader().header().version));
        texts.push(container.index_texts()?);
        for (key, value) in container.metadata().iter().filter(|(key, _)| !OF_THE_WHOLE.contains(&key.as_str())) {
            all.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let version =
        version.ok_or_else(|| coded!(CONTAINERS_TO_JOIN, "no containers to copy from").advice("name at least one"))?;
    let mut keys = Object::default();
    for text in &texts {
        keys.add_missing(Object::parse(text.file())?);
    }
    keys.set("tables", &copied.tables)?;
    keys.set("tensors", &copied.tensors)?;
    keys.set("aliases", &copied.aliases)?;
    keys.set("metadata", &all)?;
    writer.finish_with(version, raw(&keys)?.get().as_bytes())
}

/// Entries of the new index.
#[derive(Default)]
struct Copied {
    tables: Vec<Box<RawValue>>,
    tensors: Vec<Box<RawValue>>,
    aliases: BTreeMap<String, String>,
    names: HashSet<String>,
}

impl Copied {
    /// Copies the kept tensors of a container.
    fn add<W: Write + Seek>(
        &mut self,
        selection: &Selection<'_>,
        writer: &mut Writer<W>,
        options: &DecodeOptions,
    ) -> Result<()> {
        let reader = selection.container.reader();
        let index = reader.index();
        let texts = selection.container.index_texts()?;
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for (&place, names) in &selection.kept {
            let entry = &index.tensors[place];
            let named = |e: Error| reader.name(e.tensor(&entry.name));
            if let Some(twice) = names.iter().find(|name| !self.names.insert((**name).to_owned())) {
                return Err(coded!(CONTAINERS_TO_JOIN, "it is in two of the containers")
                    .tensor(twice)
                    .advice("leave it out of one of them"));
            }
            let mut copy = |segment: &Segment| -> Result<Segment> {
                writer.segment(&reader.segment_with(segment, true, &options.cancel).map_err(named)?)
            };
            let mut text = Object::parse(texts.tensor(place)?).map_err(named)?;
            text.set("name", &names[0])?;
            if let (Some(scales), Some(old)) = (&entry.scales, text.get("scales")) {
                let old = old.to_owned();
                let mut scales_text = Object::parse(old.get()).map_err(named)?;
                scales_text.set("data", &copy(&scales.data)?)?;
                text.set("scales", &scales_text)?;
            }
            let old = text.get("planes").unwrap_or(RawValue::NULL).to_owned();
            let mut planes: Vec<Object<'_>> = serde_json::from_str(old.get()).map_err(|e| named(bad_entry(e)))?;
            for (plane, text) in entry.planes.iter().zip(&mut planes) {
                if let Some(number) = plane.table {
                    let new = match numbers.entry(number) {
                        Entry::Occupied(new) => *new.get(),
                        Entry::Vacant(new) => {
                            let mut table = Object::parse(texts.table(number)?).map_err(named)?;
                            table.set("data", &copy(&index.tables[number].data)?)?;
                            self.tables.push(raw(&table)?);
                            *new.insert(self.tables.len() - 1)
                        }
                    };
                    text.set("table", &new)?;
                }
                for (key, segment) in
                    [("offsets", plane.offsets.as_ref()), ("data", Some(&plane.data)), ("side", plane.side.as_ref())]
                {
                    if let Some(segment) = segment {
                        text.set(key, &copy(segment)?)?;
                    }
                }
            }
            text.set("planes", &planes)?;
            self.tensors.push(raw(&text)?);
            self.aliases.extend(names[1..].iter().map(|alias| ((*alias).to_owned(), names[0].to_owned())));
        }
        Ok(())
    }
}

/// An empty vector with room for the tensors at `places`, or an error if memory does not suffice: segments, their
/// padding and some space for the index.
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
