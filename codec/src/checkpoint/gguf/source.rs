//! A GGUF file as a source to encode.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Gguf;
use super::header::LONGEST;
use super::values::not_to;
use crate::cancel::Cancel;
use crate::checkpoint::{Source, SourceBytes, SourceTensor};
use crate::error::Result;
use crate::foreign;
use crate::pool::Pool;
use crate::tensor::Dtype;

/// The tensors of a GGUF file, under its names for them, with weights as numbers: blocks are decoded one tensor at a
/// time.
///
/// ```no_run
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::{Dtype, EncodeOptions, GgufSource, encode};
/// let source = GgufSource::open("model.gguf".as_ref(), Dtype::BF16)?;
/// encode(&source, "model.wcodec".as_ref(), &EncodeOptions::default(), &mut |_| Ok(()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufSource {
    file: Gguf,
    path: PathBuf,
    dtype: Dtype,
    tensors: Vec<SourceTensor>,
}

impl GgufSource {
    /// Opens an unsplit file. Weights in blocks are converted to `dtype`: `F32`, `F16` or `BF16`.
    ///
    /// # Errors
    /// Those of [`Gguf::open`]; the file is a part of a split one.
    pub fn open(path: &Path, dtype: Dtype) -> Result<Self> {
        if !dtype.is_quantizable() {
            return Err(not_to(dtype));
        }
        let file = Gguf::open(path)?;
        if let Some((part, count)) = file.part() {
            let what = format!("this is part {part} of {count} of a split GGUF file");
            return Err(coded!(GGUF_SPLIT, what).file(path).advice(foreign::MERGE_GGUF));
        }
        let tensors = file
            .tensors()
            .iter()
            .map(|t| SourceTensor {
                name: t.name.clone(),
                // Reading reports a type that cannot be decoded, so that such a tensor can be left out.
                dtype: t.dtype.unwrap_or(dtype),
                shape: t.shape.clone(),
                alias_of: None,
                opaque: None,
            })
            .collect();
        Ok(Self { file, path: path.to_owned(), dtype, tensors })
    }

    /// The file.
    pub fn file(&self) -> &Gguf {
        &self.file
    }
}

impl Source for GgufSource {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        let t = &self.file.tensors()[index];
        // A count that memory cannot hold is beyond the file as well, so the read below fails.
        let count = usize::try_from(t.elements).unwrap_or(usize::MAX);
        self.file.read_values(index, (0, count), self.dtype, pool, cancel).map(SourceBytes::Owned)
    }

    /// The model's metadata that fit one line each; the tokenizer's vocabulary and templates are left out.
    fn metadata(&self) -> BTreeMap<String, String> {
        let kept = |(key, value): &(&String, &String)| {
            !key.starts_with("tokenizer.") && !value.starts_with("list of ") && value.chars().count() < LONGEST
        };
        let all = self.file.metadata().iter().filter(kept);
        all.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}
