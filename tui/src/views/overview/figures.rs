//! The measures of the heat map, the figures of its cells, and what scale they are on.

use std::collections::HashMap;

use crate::draw::text;
use crate::model::{FileModel, Heat, HeatCell, Original};
use crate::state::State;

worded! {
    /// A figure that the cells of the heat map are coloured by.
    #[derive(Default)]
    Measure {
        #[default]
        Bits = "bits/weight", "stored bits for each weight, scales and tables among them";
        Ratio = "ratio", "original bytes for each stored byte";
        Error = "error", "root mean square error of decoded weights, as a part of theirs";
        Share = "share of bytes", "part of the file's bytes";
        Speed = "GB/s", "1e9 bytes of decoded output a second, here";
        WouldError = "error at 4 bits", "from samples: root mean square, as a part of the weights'";
        WouldBits = "bits at 4 bits", "from samples, if all matrices together had 4 bits/weight";
        WouldError8 = "error of int8", "from samples: root mean square, as a part of the weights'";
        WouldBits8 = "bits of int8", "from samples: stored bits for each weight";
    }
}

impl Measure {
    /// Those of a file, in the order of the key. For a GGUF file there are no estimates.
    pub fn all(file: &FileModel) -> &'static [Self] {
        use Measure::*;
        match file.original() {
            Some(Original::Checkpoint(_)) => &[Share, WouldBits8, WouldBits, WouldError, WouldError8, Bits],
            Some(Original::Gguf(_)) => &[Bits, Share],
            None => &[Bits, Ratio, Error, Share, Speed],
        }
    }
}

/// Figures that differ by less than this part of the largest have one colour: a scale would make much of nothing.
const FLAT: f64 = 0.05;

/// The figures that the colours of a grid go from and to. Vectors, which are mostly stored as they are, do not widen it, and have the colour of its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest figure.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// The row and the column of the smallest.
    pub least: (usize, usize),
    /// Those of the largest.
    pub most: (usize, usize),
}

impl Range {
    /// Whether all have one colour.
    pub fn is_flat(&self) -> bool {
        self.high - self.low < FLAT * self.high.abs().max(self.low.abs()) || self.high <= self.low
    }

    /// The place of a figure on the scale, 0 to 1.
    pub fn part(&self, value: f64) -> f64 {
        if self.is_flat() { 0.5 } else { ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0) }
    }
}

/// The figures of tensors for one measure.
pub struct Figures<'a> {
    state: &'a State,
    measure: Measure,
    /// Decoded bytes and milliseconds of the tensors that were timed.
    times: HashMap<usize, (u64, f64)>,
}

impl<'a> Figures<'a> {
    /// Those of a measure.
    pub fn new(state: &'a State, measure: Measure) -> Self {
        let mut times = HashMap::new();
        if measure == Measure::Speed {
            let timed = state.views.speed.layers().iter().filter_map(|l| Some((l.tensor, (l.bytes, l.ms?))));
            times.extend(timed);
        }
        Self { state, measure, times }
    }

    /// The figure of a cell, if it is known of all its tensors.
    pub fn of(&self, cell: &HeatCell) -> Option<f64> {
        let totals = &cell.totals;
        match self.measure {
            Measure::Bits => (totals.elements > 0 && totals.stored_bytes > 0).then(|| totals.bits_per_weight()),
            Measure::Ratio => (totals.stored_bytes > 0).then(|| totals.ratio()),
            Measure::Share => {
                let all = self.state.file.file_bytes();
                (all > 0).then(|| totals.stored_bytes as f64 / all as f64)
            }
            Measure::Error if cell.tensors.iter().any(|&i| self.state.error(i).is_none()) => None,
            Measure::Error => self.mean(cell, |i| Some(self.state.error(i)?.powi(2))).map(f64::sqrt),
            // Tensors that would not be encoded have no estimates, and do not count.
            Measure::WouldError => self.mean(cell, |i| Some(self.state.would(i)?.rate_error.powi(2))).map(f64::sqrt),
            Measure::WouldError8 => self.mean(cell, |i| Some(self.state.would(i)?.int8_error.powi(2))).map(f64::sqrt),
            Measure::WouldBits => self.mean(cell, |i| Some(self.state.would(i)?.rate_bits)),
            Measure::WouldBits8 => self.mean(cell, |i| Some(self.state.would(i)?.int8_bits)),
            Measure::Speed => {
                let (mut bytes, mut ms) = (0u64, 0.0);
                for i in &cell.tensors {
                    let &(of, took) = self.times.get(i)?;
                    (bytes, ms) = (bytes.saturating_add(of), ms + took);
                }
                crate::timing::gb_per_s(bytes, ms)
            }
        }
    }

    /// The mean over a cell's weights of a figure of its tensors, of those that have one.
    fn mean(&self, cell: &HeatCell, of: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (i, figure) in cell.tensors.iter().filter_map(|&i| Some((i, of(i)?))) {
            let elements = self.state.file.tensors[i].elements as f64;
            (sum, weights) = (sum + figure * elements, weights + elements);
        }
        (weights > 0.0).then(|| sum / weights)
    }

    /// A figure as short as it can be read.
    pub fn text(&self, value: f64) -> String {
        match self.measure {
            Measure::Share => match 100.0 * value {
                p if p < 0.01 => "<.01%".to_owned(),
                p if p < 10.0 => format!("{p:.2}%"),
                p => format!("{p:.1}%"),
            },
            Measure::Error | Measure::WouldError | Measure::WouldError8 => match value {
                0.0 => "0".to_owned(),
                v if v < 0.001 => text::general(v, 1),
                v => format!("{v:.3}"),
            },
            _ if value < 10.0 => format!("{value:.2}"),
            _ if value < 100.0 => format!("{value:.1}"),
            _ if value < 100_000.0 => format!("{value:.0}"),
            _ => text::general(value, 2),
        }
    }

    /// A figure with its unit, for a sentence.
    pub fn words(&self, value: f64) -> String {
        let figure = self.text(value);
        match self.measure {
            Measure::Bits => format!("{value:.3} bits/w"),
            Measure::Ratio => format!("ratio {}", text::figure(value)),
            Measure::Error => format!("error {figure}"),
            Measure::Share => format!("{} of the file", text::percent(value)),
            Measure::Speed => format!("{figure} GB/s"),
            Measure::WouldError => format!("4 bits: error {figure}"),
            Measure::WouldError8 => format!("int8: error {figure}"),
            Measure::WouldBits | Measure::WouldBits8 => format!("{value:.2} bits/w"),
        }
    }

    /// The scale of the cells that hold matrices; of all cells where none does.
    pub fn range(&self, heat: &Heat) -> Option<Range> {
        let over = |counts: &dyn Fn(&HeatCell) -> bool| {
            let mut range: Option<Range> = None;
            for (row, (column, cell)) in
                heat.rows.iter().enumerate().flat_map(|(r, of)| of.cells.iter().map(move |c| (r, c)))
            {
                let Some(value) = Some(cell).filter(|c| counts(c)).and_then(|c| self.of(c)) else { continue };
                let place = (row, *column);
                let range = range.get_or_insert(Range { low: value, high: value, least: place, most: place });
                if value < range.low {
                    (range.low, range.least) = (value, place);
                }
                if value > range.high {
                    (range.high, range.most) = (value, place);
                }
            }
            range
        };
        over(&|c| self.is_matrix(c)).or_else(|| over(&|_| true))
    }

    /// Whether a cell has a matrix, and not vectors alone.
    pub fn is_matrix(&self, cell: &HeatCell) -> bool {
        let weights = |&i: &usize| self.state.file.tensors.get(i).is_some_and(|t| t.shape.len() > 1 && t.elements > 0);
        cell.tensors.iter().any(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_the_same_has_one_colour() {
        let range = |low, high| Range { low, high, least: (0, 0), most: (0, 0) };
        let noise = range(0.0712, 0.0719);
        assert!(noise.is_flat() && noise.part(0.0712) == 0.5 && noise.part(0.0719) == 0.5);
        let wide = range(1.4, 4.84);
        assert!(!wide.is_flat() && wide.part(1.4) == 0.0 && wide.part(4.84) == 1.0 && wide.part(16.0) == 1.0);
        assert!(range(0.0, 0.0).is_flat() && !range(0.0, 1e-9).is_flat() && range(3.0, 3.0).is_flat());
    }
}
