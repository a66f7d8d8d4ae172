//! Decodes a whole container into a `.safetensors` file.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};

use super::container::Container;
use super::options::DecodeOptions;
use super::whole::Bytes;
use crate::cancel::Cancel;
use crate::checkpoint::{Opaque, Source};
use crate::container::metadata::REST_KEY;
use crate::error::{Error, Result};
use crate::file::{NamedWriter, OutputFile, OutputKind};
use crate::pool::Pool;
use crate::progress::{Progress, ProgressEvent};
use crate::tensor::{Dtype, check_bytes};

/// Writes all tensors of `container` to the `.safetensors` file `dst`, dequantized, in their own dtypes. Tied tensors
/// are written under each of their names, since the format cannot share data.
///
/// If the container holds only a part of a model, [`Container::open_rest`] opens the other tensors; passed as `rest`,
/// they are written, too.
///
/// Memory is bounded by the stored bytes of the largest tensor and some tens of MB. Matrices that are stored transposed
/// add their symbols, and `rest` adds its largest tensor. `dst` appears when it is complete.
///
/// # Errors
/// A damaged tensor, or one that is in both (named); an output that is one of the input files, has another format's
/// extension, or is not a regular file; a transposed tensor that is too large for a file that is not
/// [trusted](crate::OpenOptions::trusted); the operating system. Nothing is left behind.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("model.wcodec");
/// # let mut source = wcodec::MemorySource::new();
/// # source.push("w".into(), wcodec::Dtype::F32, vec![2, 2], vec![0; 16].into())?;
/// # wcodec::encode(&source, &path, &wcodec::EncodeOptions::default(), &mut |_| Ok(()))?;
/// use wcodec::{Checkpoint, Container, DecodeOptions, Source, decode};
/// let container = Container::open(&path)?;
/// let rest = container.open_rest()?;
/// let dst = dir.path().join("restored.safetensors");
/// let rest = rest.as_ref().map(|r| r as &dyn Source);
/// decode(&container, rest, &dst, &DecodeOptions::default(), false, &mut |_| Ok(()))?;
/// assert_eq!(Checkpoint::open(&dst)?.tensors().len(), container.names().len());
/// # Ok(())
/// # }
/// ```
pub fn decode(
    container: &Container,
    rest: Option<&dyn Source>,
    dst: &Path,
    options: &DecodeOptions,
    overwrite: bool,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let infos = container.infos()?;
    let by_name: HashMap<&str, usize> = infos.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let mut names: Vec<(&str, usize)> = infos.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    names.extend(container.aliases().iter().map(|(alias, target)| (alias.as_str(), by_name[target.as_str()])));
    let mut tensors: Vec<Stored<'_>> = names
        .into_iter()
        .map(|(name, i)| {
            let entry = &container.reader().index().tensors[i];
            let opaque = entry.opaque().map_err(|e| container.reader().name(e.tensor(name)))?;
            Ok(Stored { name, dtype: infos[i].dtype, shape: &infos[i].shape, of_rest: None, opaque })
        })
        .collect::<Result<_>>()?;
    if let Some(rest) = rest {
        for tensor in stored(rest) {
            if container.reader().find(tensor.name).is_some() {
                let e = coded!(REST_OVERLAPS, "it is in the container and in the rest of the model")
                    .tensor(tensor.name)
                    .advice("put the file beside the container that was saved with it");
                return Err(match rest.path() {
                    Some(path) => e.file(path),
                    None => e,
                });
            }
            tensors.push(tensor);
        }
    }
    let mut metadata = rest.map(Source::metadata).unwrap_or_default();
    metadata.extend(container.metadata().clone());
    if rest.is_some() {
        metadata.remove(REST_KEY);
    }
    let mut inputs: Vec<PathBuf> = container.path().map(Path::to_owned).into_iter().collect();
    inputs.extend(rest.map(Source::files).unwrap_or_default());
    let out = OutputFile::create(dst, OutputKind::Safetensors, &inputs, overwrite)?;
    let pool = container.pool(options.threads)?;
    let mut read = |tensor: &Stored<'_>, put: &mut Bytes<'_>| match (tensor.of_rest, rest) {
        (Some(i), Some(rest)) => put(&rest.read_with(i, &pool, &options.cancel)?),
        _ => container.read_in_order(tensor.name, options, put),
    };
    write(tensors, metadata, &out, &mut read, progress)?;
    out.finish()
}

/// Writes the tensors of `source` unchanged to `out`, in the format of `.safetensors` files; the caller finishes `out`.
/// Tied tensors are written under each of their names.
///
/// # Errors
/// A tensor cannot be read (named), the operating system refuses, or `cancel` was used.
pub fn write_safetensors(source: &dyn Source, out: &OutputFile, cancel: &Cancel) -> Result<()> {
    let pool = Pool::new(None)?;
    let mut read = |tensor: &Stored<'_>, put: &mut Bytes<'_>| {
        put(&source.read_with(tensor.of_rest.expect("of a source"), &pool, cancel)?)
    };
    write(stored(source).collect(), source.metadata(), out, &mut read, &mut |_| cancel.check())
}

/// A tensor of the output.
struct Stored<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a [usize],
    /// Its position in the source with the model's other tensors.
    of_rest: Option<usize>,
    /// Its original dtype and shape, if it is stored as opaque bytes.
    opaque: Option<Opaque>,
}

/// The text of a header; tensors of unknown dtypes keep their source's description.
fn header_of(metadata: &Metadata, tensors: &[Stored<'_>]) -> serde_json::Result<Vec<u8>> {
    if tensors.iter().all(|t| t.opaque.is_none()) {
        return serde_json::to_vec(metadata);
    }
    let mut all = serde_json::to_value(metadata)?;
    for tensor in tensors {
        if let Some(said) = &tensor.opaque {
            all[tensor.name]["dtype"] = said.dtype.as_str().into();
            all[tensor.name]["shape"] = serde_json::to_value(&said.shape)?;
        }
    }
    serde_json::to_vec(&all)
}

fn stored(source: &dyn Source) -> impl Iterator<Item = Stored<'_>> {
    let tensors = source.tensors().iter().enumerate();
    tensors.map(|(i, t)| Stored {
        name: &t.name,
        dtype: t.dtype,
        shape: &t.shape,
        of_rest: Some(i),
        opaque: t.opaque.clone(),
    })
}

/// Writes header and tensors.
fn write(
    mut tensors: Vec<Stored<'_>>,
    metadata: BTreeMap<String, String>,
    out: &OutputFile,
    read: &mut dyn FnMut(&Stored<'_>, &mut Bytes<'_>) -> Result<()>,
    progress: &mut Progress<'_>,
) -> Result<()> {
    // Wide elements first, as the safetensors library does, so that every tensor is aligned to its elements.
    tensors.sort_by_key(|t| std::cmp::Reverse(t.dtype.size()));
    let mut end = 0usize;
    let mut entries = Vec::new();
    for tensor in &tensors {
        if tensor.name == "__metadata__" {
            return Err(coded!(RESERVED_NAME, "safetensors keeps this name for itself")
                .tensor(tensor.name)
                .advice("encode it under another name"));
        }
        let dtype = serde_json::from_value(tensor.dtype.name().into()).map_err(|e| {
            coded!(LIBRARY_DTYPE, "safetensors has no dtype {}: {e}", tensor.dtype)
                .tensor(tensor.name)
                .advice("read it with load_file instead")
        })?;
        let length = check_bytes(tensor.shape, tensor.dtype).map_err(|e| e.tensor(tensor.name).of_container())?;
        let next = usize::try_from(length).ok().and_then(|n| end.checked_add(n));
        let next =
            next.ok_or_else(|| coded!(BAD_SIZES, "the tensors are too large").tensor(tensor.name).of_container())?;
        entries.push((
            tensor.name.to_owned(),
            TensorInfo { dtype, shape: tensor.shape.to_vec(), data_offsets: (end, next) },
        ));
        end = next;
    }
    let lengths: Vec<usize> = entries.iter().map(|(_, t)| t.data_offsets.1 - t.data_offsets.0).collect();
    let text: HashMap<String, String> = metadata.into_iter().collect();
    let bad = |e: String| coded!(FORMAT, "the safetensors header cannot be written: {e}");
    let metadata = Metadata::new((!text.is_empty()).then_some(text), entries).map_err(|e| bad(e.to_string()))?;
    let mut header = header_of(&metadata, &tensors).map_err(|e| bad(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut writer = NamedWriter::new(out.writer()?, out.path());
    writer.write(&(header.len() as u64).to_le_bytes())?;
    writer.write(&header)?;
    let (mut done, total) = (0, end as u64);
    for (tensor, length) in tensors.iter().zip(lengths) {
        progress(&ProgressEvent { tensor: tensor.name, done, total })?;
        let mut written = 0;
        // Kept apart, because an error of the output does not name a tensor.
        let mut failed = None;
        let read = read(tensor, &mut |bytes| {
            written += bytes.len();
            writer.write(bytes).map_err(|e| {
                failed = Some(e);
                Error::cancelled()
            })
        });
        failed.map_or(read, Err)?;
        if written != length {
            let what = format!("the source gives {written} bytes for {:?}", tensor.shape);
            return Err(coded!(INPUT_BUG, what).tensor(tensor.name));
        }
        done += length as u64;
        progress(&ProgressEvent { tensor: tensor.name, done, total })?;
    }
    let flushed = writer.into_inner()?.flush();
    flushed.map_err(|e| Error::io("write", out.path(), e))
}
