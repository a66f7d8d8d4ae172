//! Decoding a whole container into a `.safetensors` file.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};

use super::{Container, DecodeOptions};
use crate::error::{Error, Result};
use crate::file::{NamedWriter, OutputFile};
use crate::progress::{Progress, ProgressEvent};

/// Writes all tensors of `container` to the `.safetensors` file `dst`, dequantized, in their own dtypes. Tied tensors are
/// written under each of their names, since the format cannot share data.
///
/// Memory is bounded by the stored bytes of the largest tensor and some tens of MB, and for matrices that are stored transposed by
/// their symbols. `dst` appears when it is complete.
///
/// # Errors
/// A damaged tensor (named), a transposed one that is too large for a file that is not [trusted](crate::OpenOptions::trusted), or the
/// operating system; nothing is left behind.
pub fn decode(
    container: &Container,
    dst: &Path,
    options: &DecodeOptions,
    overwrite: bool,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let infos = container.infos()?;
    let by_name: HashMap<&str, usize> = infos.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let mut names: Vec<(&str, usize)> = infos.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    names.extend(container.aliases().iter().map(|(alias, target)| (alias.as_str(), by_name[target.as_str()])));
    // Wide elements first, as the safetensors library does: every tensor is aligned to its elements.
    names.sort_by_key(|&(_, i)| std::cmp::Reverse(infos[i].dtype.size()));

    let mut end = 0usize;
    let mut entries = Vec::new();
    for &(name, i) in &names {
        if name == "__metadata__" {
            return Err(Error::input("safetensors keeps this name for itself")
                .tensor(name)
                .advice("encode it under another name"));
        }
        let info = &infos[i];
        let dtype = serde_json::from_value(info.dtype.name().into()).map_err(|e| {
            Error::unsupported(format!("safetensors has no dtype {}: {e}", info.dtype))
                .tensor(name)
                .advice("read it with load_file instead")
        })?;
        let next = usize::try_from(info.original_bytes).ok().and_then(|n| end.checked_add(n));
        let next = next.ok_or_else(|| Error::format("the tensors are too large").tensor(name).of_container())?;
        entries.push((name.to_owned(), TensorInfo { dtype, shape: info.shape.clone(), data_offsets: (end, next) }));
        end = next;
    }
    let text: HashMap<String, String> = container.metadata().clone().into_iter().collect();
    let bad = |e: String| Error::format(format!("the safetensors header cannot be written: {e}"));
    let metadata = Metadata::new((!text.is_empty()).then_some(text), entries).map_err(|e| bad(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| bad(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let out = OutputFile::create(dst, overwrite)?;
    let mut writer = NamedWriter::new(out.writer()?, out.path());
    writer.write(&(header.len() as u64).to_le_bytes())?;
    writer.write(&header)?;
    let (mut done, total) = (0, end as u64);
    for (name, i) in names {
        progress(&ProgressEvent { tensor: name, done, total })?;
        // An error of the output is not one of the tensor.
        let mut failed = None;
        let read = container.read_in_order(name, options, &mut |bytes| {
            writer.write(bytes).map_err(|e| {
                failed = Some(e);
                Error::cancelled()
            })
        });
        failed.map_or(read, Err)?;
        done += infos[i].original_bytes;
        progress(&ProgressEvent { tensor: name, done, total })?;
    }
    let flushed = writer.into_inner()?.flush();
    flushed.map_err(|e| Error::io("write", dst, e))?;
    out.finish()
}
