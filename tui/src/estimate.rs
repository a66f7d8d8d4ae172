//! Estimates of the size and the error of a checkpoint's tensors, encoded, from samples of their rows.

use std::collections::HashMap;

use wcodec::{
    Bits, Cancel, Container, DecodeOptions, EncodeOptions, Granularity, MemorySource, Pool, Rate, Result, Scheme,
    Source, SourceBytes, SourceTensor, encode_to_container,
};

use crate::model::{FileModel, Original};
use crate::stats::error::{Differences, values};

/// Bits of scheme `rate` that are tried.
pub const BITS: f64 = 4.0;
/// Weights of all samples together, about.
const WEIGHTS: u64 = 12 << 20;
/// Rows of a sample are whole strips of so many.
const STRIP: usize = 16;
/// Bytes of a sample at most: one row may be a whole tensor.
const MOST: u64 = 64 << 20;

/// The estimates of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Would {
    /// Stored bits for each weight with scheme `int8`.
    pub int8_bits: f64,
    /// And what is wrong in decoded weights: the root of its mean square, as a part of theirs.
    pub int8_error: f64,
    /// Stored bits with scheme `rate` and 4 bits for all tensors together.
    pub rate_bits: f64,
    /// Its error.
    pub rate_error: f64,
}

/// Samples rows of every matrix that would be quantized, and encodes them both ways. `tell` hears of the part that is done, 0 to 1.
///
/// Rows are taken evenly from the whole tensor, of large tensors more of them, so that all have the share of the bits that they would have.
///
/// # Errors
/// The file cannot be read, weights are not finite, or `cancel` was used.
pub fn estimate(file: &FileModel, cancel: &Cancel, tell: &mut dyn FnMut(f32)) -> Result<HashMap<usize, Would>> {
    let Some(original) = file.original() else { return Ok(HashMap::new()) };
    let wanted: Vec<usize> = (0..file.tensors.len()).filter(|&i| is_sampled(file, i)).collect();
    let all: u64 = wanted.iter().map(|&i| file.tensors[i].elements).sum();
    let part = (WEIGHTS as f64 / all.max(1) as f64).min(1.0);
    let model = match original {
        Original::Checkpoint(checkpoint) => checkpoint.model(),
        Original::Gguf(_) => None,
    };
    let mut source = MemorySource::new();
    for (n, &i) in wanted.iter().enumerate() {
        let t = &file.tensors[i];
        let (columns, size) = (t.cols, t.dtype.size());
        let row = columns * size;
        let strips = t.rows / STRIP;
        let most = ((MOST as usize) / (row * STRIP).max(1)).max(1);
        let taken = ((strips as f64 * part).round() as usize).clamp(1, strips.max(1)).min(most);
        let mut bytes = Vec::new();
        for at in 0..taken {
            let (first, rows) = if strips == 0 { (0, t.rows) } else { (at * strips / taken * STRIP, STRIP) };
            let begin = (first as u64).saturating_mul(row as u64);
            bytes.extend_from_slice(&original.read_part(i, begin, rows * row, cancel)?);
        }
        let rows = bytes.len() / row.max(1);
        source.push(t.name.clone(), t.dtype, vec![rows, columns], bytes.into())?;
        tell(0.2 * (n + 1) as f32 / wanted.len() as f32);
    }
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    // Samples are weights by themselves: the config's quantization is of others.
    let mut model = model;
    if let Some(config) = model.as_mut().and_then(|m| m.get_mut("config")).and_then(|c| c.as_object_mut()) {
        for key in ["quantization_config", "compression_config"] {
            config.remove(key);
            if let Some(inner) = config.get_mut("text_config").and_then(|c| c.as_object_mut()) {
                inner.remove(key);
            }
        }
    }
    let source = Samples { tensors: source, model };
    let mut found = Vec::new();
    let default = EncodeOptions { cancel: cancel.clone(), ..EncodeOptions::default() };
    let rate = Rate { bits: Bits::new(BITS)?, trellis: default.optimize.trellis(default.coder) };
    for (scheme, begin) in [(Scheme::Int8(Granularity::Row), 0.2), (Scheme::Rate(rate), 0.4)] {
        let options = EncodeOptions { scheme, ..default.clone() };
        let share = if begin < 0.3 { 0.2 } else { 0.6 };
        let progress = &mut |e: &wcodec::ProgressEvent<'_>| {
            tell(begin + share * e.done as f32 / e.total.max(1) as f32);
            cancel.check()
        };
        found.push(figures(&source, &encode_to_container(&source, &options, progress)?.0, cancel)?);
    }
    let both = found[0].iter().zip(&found[1]);
    let would = both.map(|(a, b)| Would { int8_bits: a.0, int8_error: a.1, rate_bits: b.0, rate_error: b.1 });
    Ok(wanted.iter().copied().zip(would).collect())
}

/// Bytes of the whole file with `int8`, and with 4 bits: tensors that were not sampled stay as they are.
pub fn totals(file: &FileModel, would: &HashMap<usize, Would>) -> (u64, u64) {
    let bytes = |bits: fn(&Would) -> f64| {
        let of = |(i, t): (usize, &wcodec::TensorInfo)| match would.get(&i) {
            Some(w) => (bits(w) * t.elements as f64 / 8.0) as u64,
            None => t.stored_bytes,
        };
        file.tensors.iter().enumerate().map(of).sum()
    };
    (bytes(|w| w.int8_bits), bytes(|w| w.rate_bits))
}

/// Samples with what is known of their model, on which the steps of some roles depend.
struct Samples<'a> {
    tensors: MemorySource<'a>,
    model: Option<serde_json::Value>,
}

impl Source for Samples<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        self.tensors.tensors()
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        self.tensors.read_with(index, pool, cancel)
    }

    fn model(&self) -> Option<serde_json::Value> {
        self.model.clone()
    }
}

/// Whether a tensor is a matrix of weights that is there.
fn is_sampled(file: &FileModel, i: usize) -> bool {
    let t = &file.tensors[i];
    t.dtype.is_quantizable() && t.shape.len() == 2 && t.elements > 0 && file.missing(i) == 0
}

/// Bits per weight and relative error of each tensor, in the order of the source.
fn figures(source: &Samples<'_>, container: &Container, cancel: &Cancel) -> Result<Vec<(f64, f64)>> {
    let infos = container.infos()?;
    let mut found = Vec::new();
    for (i, t) in source.tensors().iter().enumerate() {
        cancel.check()?;
        let info = infos.iter().find(|info| info.name == t.name);
        let bits = info.map_or(0.0, wcodec::TensorInfo::bits_per_weight);
        let decoded = container.read(&t.name, &DecodeOptions { verify: false, ..DecodeOptions::default() })?;
        let mut sums = Differences::default();
        if let (Some(ours), Some(theirs)) = (values(t.dtype, &decoded), values(t.dtype, &source.read(i)?)) {
            ours.zip(theirs).for_each(|(decoded, original)| sums.add(decoded, original));
        }
        found.push((bits, sums.stats().relative));
    }
    Ok(found)
}
