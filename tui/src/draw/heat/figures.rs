//! The figures of the heat map's cells, and what scale they are on.

use std::collections::HashMap;

use crate::draw::text;
use crate::model::heat::{Heat, HeatCell};
use crate::state::State;
use crate::state::heat::Measure;

/// A cell with less than this part of all weights does not widen the scale: vectors that are stored as they are would make all matrices
/// alike.
const SMALL: f64 = 1e-3;

/// What is known of tensors for one measure.
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
            let timed = state.timing.layers().iter().filter_map(|l| Some((l.tensor, (l.bytes, l.ms?))));
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
                let all = self.state.file.totals.stored_bytes;
                (all > 0).then(|| totals.stored_bytes as f64 / all as f64)
            }
            Measure::Error => {
                let (mut squares, mut weights) = (0.0, 0.0);
                for &i in &cell.tensors {
                    let elements = self.state.file.tensors.get(i)?.elements as f64;
                    squares += self.state.error(i)?.powi(2) * elements;
                    weights += elements;
                }
                (weights > 0.0).then(|| (squares / weights).sqrt())
            }
            Measure::WouldError | Measure::WouldError8 => {
                let (mut squares, mut weights) = (0.0, 0.0);
                for &i in &cell.tensors {
                    let elements = self.state.file.tensors.get(i)?.elements as f64;
                    let would = self.state.would(i)?;
                    let error = if self.measure == Measure::WouldError { would.rate_error } else { would.int8_error };
                    squares += error.powi(2) * elements;
                    weights += elements;
                }
                (weights > 0.0).then(|| (squares / weights).sqrt())
            }
            Measure::WouldBits | Measure::WouldBits8 => {
                let (mut bits, mut weights) = (0.0, 0.0);
                for &i in &cell.tensors {
                    let elements = self.state.file.tensors.get(i)?.elements as f64;
                    let would = self.state.would(i)?;
                    bits +=
                        elements * if self.measure == Measure::WouldBits { would.rate_bits } else { would.int8_bits };
                    weights += elements;
                }
                (weights > 0.0).then(|| bits / weights)
            }
            Measure::Speed => {
                let (mut bytes, mut ms) = (0u64, 0.0);
                for i in &cell.tensors {
                    let &(of, took) = self.times.get(i)?;
                    (bytes, ms) = (bytes.saturating_add(of), ms + took);
                }
                crate::timing::series::gb_per_s(bytes, ms)
            }
        }
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

    /// The smallest and the largest figure of the cells that count.
    pub fn range(&self, heat: &Heat) -> Option<(f64, f64)> {
        let all = self.state.file.totals.elements as f64;
        let cells = || heat.rows.iter().flat_map(|r| r.cells.iter().map(|(_, cell)| cell));
        let over = |least: f64| {
            let counted = cells().filter(|c| c.totals.elements as f64 >= least * all);
            counted.filter_map(|c| self.of(c)).fold(None, |range: Option<(f64, f64)>, v| {
                Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
            })
        };
        over(SMALL).or_else(|| over(0.0))
    }
}

/// Where a figure is in a range, 0 to 1; what is beyond is at the end.
pub fn part(value: f64, (low, high): (f64, f64)) -> f64 {
    if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
}
