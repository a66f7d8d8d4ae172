//! Computing all statistics of a tensor.

use wcodec::coder::histogram::count_bytes;
use wcodec::container::TensorEntry;
use wcodec::{Checkpoint, Result, TensorInfo};

use super::control::Control;
use super::error::values;
use super::pieces::{Want, pieces};
use super::weights::{WeightStats, Weights};
use super::{LayerStats, ScaleStats, Spread, SymbolStats};
use crate::model::{FileModel, Original};

/// Bytes of a checkpoint that are read at once: a whole number of elements of every dtype.
const PIECE: u64 = 4 << 20;

/// Computes what there is to know of a tensor. It is decoded piece by piece, with a second pass for the reference if there is one.
///
/// # Errors
/// The tensor is damaged, something cannot be read, or `control` says to stop.
pub fn compute(
    file: &FileModel,
    tensor: usize,
    reference: Option<&Checkpoint>,
    control: &mut Control<'_>,
) -> Result<LayerStats> {
    if let Some(original) = file.original() {
        return Ok(LayerStats { weights: of_original(file, original, tensor, control)?, ..LayerStats::default() });
    }
    let (info, container) = (file.info(tensor)?, file.container()?);
    let entry = &container.reader().index().tensors[tensor];
    let has_symbols = info.has_symbols();
    let has_weights = info.dtype.is_quantizable();
    let passes = u64::from(has_symbols) + u64::from(has_weights) + u64::from(reference.is_some());
    control.expect(info.elements.saturating_mul(passes));
    control.cancel.check()?;
    let mut stats = LayerStats { chunks: container.chunk_sizes(&info.name)?, ..Default::default() };
    stats.ratios = ratios(&stats, info);
    if has_symbols {
        let scales = if info.makes_symbols { container.scales(&info.name)? } else { Vec::new() };
        let mut groups = Groups::new(entry, info, &scales);
        let mut counts = [0u64; 256];
        pieces(container, info, Want::Symbols, control, &mut |first, bytes| {
            counts.iter_mut().zip(count_bytes(bytes)).for_each(|(sum, n)| *sum += n);
            groups.mark(first, bytes);
            Ok(())
        })?;
        let trellis = info.makes_symbols && info.planes.first().is_some_and(|p| p.filter == "trellis");
        let of = if trellis { SymbolStats::of_trellis } else { SymbolStats::of_bytes };
        stats.symbols = Some(of(&counts));
        stats.scales = (info.makes_symbols).then(|| groups.stats(&scales));
    }
    if has_weights {
        let mut weights = Weights::default();
        pieces(container, info, Want::Values, control, &mut |first, bytes| {
            weights.add(first, values(info.dtype, bytes).into_iter().flatten());
            Ok(())
        })?;
        stats.weights = Some(weights.stats());
    }
    if let Some(reference) = reference {
        super::error::compare(file, tensor, reference, control, &mut stats)?;
    }
    Ok(stats)
}

/// The weights of a tensor that is not encoded; none of blocks of GGUF's own types, and of other dtypes than floats.
fn of_original(
    file: &FileModel,
    original: &Original,
    tensor: usize,
    control: &mut Control<'_>,
) -> Result<Option<WeightStats>> {
    let info = file.info(tensor)?;
    if !info.dtype.is_quantizable() || info.scheme != "raw" {
        return Ok(None);
    }
    control.expect(info.original_bytes);
    let (mut weights, mut at) = (Weights::default(), 0);
    while at < info.original_bytes {
        let length = PIECE.min(info.original_bytes - at);
        let bytes = original.read_part(tensor, at, length as usize, control.cancel)?;
        weights.add(at / info.dtype.size() as u64, values(info.dtype, &bytes).into_iter().flatten());
        control.advance(length)?;
        at += length;
    }
    Ok(Some(weights.stats()))
}

fn ratios(stats: &LayerStats, info: &TensorInfo) -> Option<Spread> {
    let size = info.dtype.size() as f64;
    let held = stats.chunks.iter().filter(|c| c.bytes > 0 && c.elements > 0);
    Spread::of(held.map(|c| c.elements as f64 * size / c.bytes as f64).collect())
}

/// Which scales are of any use: those that a symbol other than 0 shares; in scheme `rate`, where no symbol stands for 0, those that are not 0.
struct Groups {
    used: Vec<bool>,
    /// Whether symbols say which.
    by_symbols: bool,
    /// Elements of a row of the matrix.
    cols: u64,
    /// Columns that share a scale, and scales of a row; 0 of a row where all rows share one.
    columns: u64,
    per_row: u64,
}

impl Groups {
    fn new(entry: &TensorEntry, info: &TensorInfo, scales: &[f32]) -> Self {
        let cols = (info.cols as u64).max(1);
        let (columns, per_row) = match entry.scales.as_ref().map(|s| (s.per.as_str(), s.block)) {
            Some(("block", Some(n))) => ((n as u64).max(1), cols.div_ceil((n as u64).max(1))),
            Some(("row", _)) => (cols, 1),
            _ => (u64::MAX, 0),
        };
        let by_symbols = info.scheme != "rate";
        let used = scales.iter().map(|&s| !by_symbols && s != 0.0).collect();
        Self { used, by_symbols, cols, columns, per_row }
    }

    /// Looks at the symbols from element `first` on.
    fn mark(&mut self, first: u64, symbols: &[u8]) {
        if self.used.is_empty() || !self.by_symbols {
            return;
        }
        let mut at = 0;
        while at < symbols.len() {
            let place = first.saturating_add(at as u64);
            let (row, col) = (place / self.cols, place % self.cols);
            let group = row.saturating_mul(self.per_row).saturating_add(col / self.columns);
            let until_border = (self.columns - col % self.columns).min(self.cols - col);
            let end = at.saturating_add(until_border.try_into().unwrap_or(usize::MAX)).min(symbols.len());
            if let Some(used) = usize::try_from(group).ok().and_then(|g| self.used.get_mut(g)) {
                *used = *used || symbols[at..end].iter().any(|&s| s != 0);
            }
            at = end;
        }
    }

    fn stats(&self, scales: &[f32]) -> ScaleStats {
        let mut found = ScaleStats::default();
        for (&scale, &used) in scales.iter().zip(&self.used) {
            if !used {
                found.zeros += 1;
            } else if scale.is_finite() && scale > 0.0 {
                found.sorted.push(scale);
            } else {
                found.odd += 1;
            }
        }
        found.sorted.sort_unstable_by(f32::total_cmp);
        found
    }
}
