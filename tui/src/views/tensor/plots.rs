//! Histograms of scales and [`symbols`], or of weights where there are none, and the ratio of each chunk.

use ratatui::text::Span;
use wcodec::{ChunkSize, TensorInfo};

use super::{Shown, symbols};
use crate::draw::{Chart, Page, chart::counted, chart::room, digits, short_count, text};
use crate::stats::ScaleStats;
use crate::stats::histogram::{Axis, bins};

/// Rows of everything but the bars of both histograms, so that what is left of a screen can be given to these.
pub const FIXED: usize = 16 + STRIP;
/// Rows of the strip of chunks.
const STRIP: usize = 3;

/// Writes all of them, with histograms of so many rows.
pub fn draw(page: &mut Page, of: Shown<'_>, height: usize) {
    if !of.t.has_symbols() && of.t.dtype.is_quantizable() {
        weights(page, of, height);
        outliers(page, of);
    } else {
        scales(page, of, height);
        symbols::draw(page, of, height);
    }
    chunks(page, of);
}

/// In the place of something that is not known yet: as many rows as it will take.
pub fn nothing(page: &mut Page, of: Shown<'_>, rows: usize) {
    let failed = of.state.knows(of.tensor).stats.failed().is_some();
    let style = if failed { page.look.bad() } else { page.look.dim() };
    let before = page.lines.len();
    page.sentence(&of.wait(), style);
    page.blank(rows.saturating_sub(page.lines.len() - before));
}

fn scales(page: &mut Page, of: Shown<'_>, height: usize) {
    let Shown { state, t, stats, .. } = of;
    let look = page.look;
    if !t.makes_symbols {
        page.heading("Scales", "none", look.dim());
        page.sentence(&format!("scheme {} has no scales", t.scheme), look.dim());
        return;
    }
    let bars = state.views.tensor.bins.clamp(1, room(page));
    let axis = if state.views.tensor.log { "logarithmic" } else { "linear" };
    let marks = look.sign("┴ p1 p50 p99 · ", "^ p1 p50 p99 | ");
    page.heading("Scales", &format!("{marks}{axis} axis, {}", text::plural(bars, "bin")), look.dim());
    match stats.map(|s| &s.scales) {
        Some(Some(found)) if found.sorted.is_empty() => {
            page.sentence("none that a symbol makes use of", look.dim());
            page.items(&scale_items(found, t));
        }
        Some(Some(found)) => {
            let log = state.views.tensor.log;
            let (min, max) = (found.percentile(0.0).unwrap_or(0.0), found.percentile(100.0).unwrap_or(0.0));
            let axis = Axis::new(min, max, log);
            let marks = [1.0, 50.0, 99.0].map(|p| axis.part(found.percentile(p).unwrap_or(min)));
            let labels = match min < max {
                true => vec![(0.0, digits(min)), (1.0, digits(max)), (0.5, digits(axis.value(0.5)))],
                false => vec![(0.5, digits(min))],
            };
            counted(page, &bins(&found.sorted, bars, log), height, &marks, &labels);
            page.items(&scale_items(found, t));
        }
        _ => nothing(page, of, Chart::rows(height) + 1),
    }
}

fn scale_items(found: &ScaleStats, t: &TensorInfo) -> Vec<(&'static str, String)> {
    let at = |percent| found.percentile(percent).map_or_else(|| "-".to_owned(), digits);
    let zeros = match t.scales.as_deref() {
        Some("row") => "zero rows",
        Some("tensor") => "zero tensors",
        _ => "zero blocks",
    };
    let mut items = vec![
        ("min", at(0.0)),
        ("p1", at(1.0)),
        ("p50", at(50.0)),
        ("p99", at(99.0)),
        ("max", at(100.0)),
        (zeros, text::count(found.zeros as u64)),
    ];
    if found.odd > 0 {
        items.push(("odd scales", text::count(found.odd as u64)));
    }
    items
}

/// Writes the histogram of weights.
pub fn weights(page: &mut Page, of: Shown<'_>, height: usize) {
    let Shown { state, t, stats, .. } = of;
    let look = page.look;
    if !t.dtype.is_quantizable() || (state.file.original().is_some() && t.scheme != "raw") {
        page.heading("Weights", "", look.dim());
        let kind = if t.scheme == "raw" { t.dtype.name() } else { &t.scheme };
        return page.sentence(&format!("{kind} is not decoded here: there is no histogram"), look.dim());
    }
    let Some(found) = stats.and_then(|s| s.weights.as_ref()) else {
        page.heading("Weights", "", look.dim());
        return nothing(page, of, Chart::rows(height));
    };
    let mut note = format!("RMS {}", digits(found.rms));
    if found.beyond > 0 {
        note.push_str(&format!(", {} beyond 6 RMS", short_count(found.beyond)));
    }
    if found.odd > 0 {
        note.push_str(&format!(", {} not finite", text::count(found.odd)));
    }
    page.heading("Weights", &note, if found.odd > 0 { look.bad() } else { look.dim() });
    let end = digits(found.span);
    let labels = [(0.0, format!("-{end}")), (1.0, end), (0.5, "0".to_owned())];
    counted(page, &found.bars(room(page)), height, &[0.5], &labels);
}

/// Writes the largest weights with their rows and columns.
pub fn outliers(page: &mut Page, of: Shown<'_>) {
    let Shown { t, stats, .. } = of;
    let look = page.look;
    let Some(found) = stats.and_then(|s| s.weights.as_ref()).filter(|w| !w.outliers.is_empty()) else { return };
    page.heading("Largest weights", "of RMS  at", look.dim());
    let columns = if t.shape.len() < 2 { u64::MAX } else { t.shape.last().copied().unwrap_or(1).max(1) as u64 };
    for outlier in &found.outliers {
        let (row, column) = (text::count(outlier.place / columns), text::count(outlier.place % columns));
        let place = if t.shape.len() < 2 { column } else { format!("row {row}, column {column}") };
        let times = if found.rms > 0.0 { outlier.value.abs() / found.rms } else { 0.0 };
        let line = format!("{:>10}  {times:>6.1} x  {place}", digits(outlier.value));
        page.line(vec![Span::raw(text::cut(look, &line, page.width).into_owned())]);
    }
}

fn chunks(page: &mut Page, of: Shown<'_>) {
    let Shown { t, stats, .. } = of;
    let look = page.look;
    page.heading("Ratio per chunk", &text::plural(t.chunks(), "chunk"), look.dim());
    let Some(stats) = stats else {
        let rows = if t.chunks() > 1 { Chart::rows(STRIP) + 1 } else { 1 };
        return nothing(page, of, rows);
    };
    let Some(spread) = stats.ratios else {
        return page.sentence("nothing is stored", look.dim());
    };
    let all = &stats.chunks;
    if all.len() > 1 {
        let columns = room(page);
        let bars = strip(all, all.len().min(columns), t.dtype.size());
        let scaled: Vec<f64> = bars.iter().map(|&r| height(r, spread.min, spread.max)).collect();
        let chart = Chart {
            bars: &scaled,
            columns: (columns / scaled.len().max(1)).max(1),
            gap: 0,
            height: STRIP,
            top: format!("{:.3}", spread.max),
            bottom: if spread.min < spread.max { format!("{:.3}", spread.min) } else { String::new() },
            marks: &[],
            labels: &[(0.0, "first".to_owned()), (1.0, "last".to_owned())],
        };
        chart.draw(page);
    }
    page.items(&[
        ("min", format!("{:.3}", spread.min)),
        ("median", format!("{:.3}", spread.median)),
        ("max", format!("{:.3}", spread.max)),
    ]);
}

/// Ratios of so many runs of neighbouring chunks.
fn strip(chunks: &[ChunkSize], bars: usize, size: usize) -> Vec<f64> {
    let bars = bars.max(1);
    let border = |i: usize| (i as u128 * chunks.len() as u128 / bars as u128) as usize;
    let ratio = |i: usize| {
        let run = chunks.get(border(i)..border(i + 1)).unwrap_or_default();
        let sum = |f: fn(&ChunkSize) -> u64| run.iter().fold(0u64, |sum, c| sum.saturating_add(f(c)));
        let (bytes, elements) = (sum(|c| c.bytes), sum(|c| c.elements));
        elements as f64 * size as f64 / bytes.max(1) as f64
    };
    (0..bars).map(ratio).collect()
}

/// The height of a ratio's bar: the smallest has an eighth of a row, since small differences are to be seen.
fn height(ratio: f64, min: f64, max: f64) -> f64 {
    const LEAST: f64 = 1.0 / (8.0 * STRIP as f64);
    if min < max { LEAST + (1.0 - LEAST) * (ratio - min) / (max - min) } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_hold_every_chunk() {
        let chunks: Vec<ChunkSize> = (1..=10).map(|i| ChunkSize { bytes: i, elements: 10 * i }).collect();
        for bars in 1..=10 {
            assert_eq!(strip(&chunks, bars, 2), vec![20.0; bars]);
        }
        assert_eq!(strip(&[], 3, 2), [0.0; 3]);
        assert_eq!(height(3.0, 1.0, 3.0), 1.0);
        assert_eq!(height(3.0, 3.0, 3.0), 0.5);
    }
}
