//! Histograms of scales and symbols, and the ratio of each chunk.

use wcodec::{ChunkSize, TensorInfo};

use super::chart::{Chart, room};
use super::facts::{stats_of, wait};
use super::page::{Page, digits, short_count};
use crate::draw::text;
use crate::state::State;
use crate::stats::histogram::{Axis, bins};
use crate::stats::{Fetch, LayerStats, ScaleStats, SymbolStats};

/// Rows of everything but the bars of both histograms, so that what is left of a screen can be given to these.
pub const FIXED: usize = 16 + STRIP;
/// Rows of the strip of chunks.
const STRIP: usize = 3;

/// Writes all of them, with histograms of so many rows.
pub fn draw(page: &mut Page, state: &State, tensor: usize, t: &TensorInfo, height: usize) {
    let stats = stats_of(state, tensor).and_then(Fetch::ready).map(AsRef::as_ref);
    scales(page, state, tensor, t, stats, height);
    symbols(page, state, tensor, t, stats, height);
    chunks(page, state, tensor, t, stats);
}

/// In the place of something that is not known yet: as many rows as it will take.
fn nothing(page: &mut Page, state: &State, tensor: usize, rows: usize) {
    let failed = matches!(stats_of(state, tensor), Some(Fetch::Failed(_)));
    let style = if failed { page.look.bad() } else { page.look.dim() };
    let before = page.lines.len();
    page.sentence(&wait(state, tensor), style);
    page.blank(rows.saturating_sub(page.lines.len() - before));
}

fn scales(page: &mut Page, state: &State, tensor: usize, t: &TensorInfo, stats: Option<&LayerStats>, height: usize) {
    let look = page.look;
    if !t.makes_symbols {
        page.heading("Scales", "none", look.dim());
        page.sentence(&format!("scheme {} has no scales", text::clean(look, &t.scheme)), look.dim());
        return;
    }
    let bars = state.layer.bins.clamp(1, room(page));
    let axis = if state.layer.log { "logarithmic" } else { "linear" };
    let marks = look.sign("┴ p1 p50 p99 · ", "^ p1 p50 p99 | ");
    page.heading("Scales", &format!("{marks}{axis} axis, {}", text::plural(bars, "bin")), look.dim());
    match stats.map(|s| &s.scales) {
        Some(Some(found)) if found.sorted.is_empty() => {
            page.sentence("none that a symbol makes use of", look.dim());
            page.items(&scale_items(found, t));
        }
        Some(Some(found)) => {
            histogram(page, found, bars, state.layer.log, height);
            page.items(&scale_items(found, t));
        }
        _ => nothing(page, state, tensor, Chart::rows(height) + 1),
    }
}

fn histogram(page: &mut Page, found: &ScaleStats, bars: usize, log: bool, height: usize) {
    let counts = bins(&found.sorted, bars, log);
    let most = counts.iter().copied().max().unwrap_or(0);
    let bars: Vec<f64> = counts.iter().map(|&n| n as f64 / most.max(1) as f64).collect();
    let (min, max) = (found.percentile(0.0).unwrap_or(0.0), found.percentile(100.0).unwrap_or(0.0));
    let axis = Axis::new(min, max, log);
    let marks = [1.0, 50.0, 99.0].map(|p| axis.part(found.percentile(p).unwrap_or(min)));
    let labels = if min < max {
        vec![(0.0, digits(min)), (1.0, digits(max)), (0.5, digits(axis.value(0.5)))]
    } else {
        vec![(0.5, digits(min))]
    };
    let chart = Chart {
        bars: &bars,
        columns: (room(page) / bars.len().max(1)).max(1),
        height,
        top: short_count(most),
        bottom: "0".to_owned(),
        marks: &marks,
        labels: &labels,
    };
    chart.draw(page);
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

fn symbols(page: &mut Page, state: &State, tensor: usize, t: &TensorInfo, stats: Option<&LayerStats>, height: usize) {
    let look = page.look;
    if !t.has_symbols() {
        page.heading("Symbols", "none", look.dim());
        let bits = 8 * t.dtype.size();
        page.sentence(&format!("elements of {bits} bits, which make no symbols"), look.dim());
        return;
    }
    let reach = stats.and_then(|s| s.symbols.as_ref()).map_or(WIDEST, reach);
    let (step, bars) = symbol_bins(room(page), reach);
    let note = match (step, t.makes_symbols) {
        (1, true) => "each symbol".to_owned(),
        (n, true) => format!("{n} symbols a bar"),
        (_, false) => format!("bytes as signed numbers, {step} a bar"),
    };
    page.heading("Symbols", &note, look.dim());
    let Some(found) = stats.and_then(|s| s.symbols.as_ref()) else {
        return nothing(page, state, tensor, Chart::rows(height) + 1);
    };
    let shares = symbol_shares(found, step, bars, reach);
    let most = shares.iter().copied().fold(0.0, f64::max);
    let heights: Vec<f64> = shares.iter().map(|&s| if most > 0.0 { s / most } else { 0.0 }).collect();
    // Bars are as wide as their symbols: 0 is in the middle of the middle one.
    let part = |symbol: f64| 0.5 + symbol / (step * bars) as f64;
    let labels: Vec<(f64, String)> = [0, -reach, reach, -(reach + 1) / 2, (reach + 1) / 2]
        .iter()
        .map(|&q| (part(f64::from(q)), q.to_string()))
        .collect();
    let chart = Chart {
        bars: &heights,
        columns: (room(page) / bars.max(1)).max(1),
        height,
        top: text::percent(most),
        bottom: "0 %".to_owned(),
        marks: &[part(0.0)],
        labels: &labels,
    };
    chart.draw(page);
    page.items(&symbol_items(found, t));
}

/// The farthest symbol from 0 that is shown, of all symbols.
const WIDEST: i16 = 127;

/// And of these symbols: few bits have few of them. Halves of the whole range, so that layers can be compared.
fn reach(found: &SymbolStats) -> i16 {
    let farthest = (-128i16..).zip(found.counts).filter(|(_, n)| *n > 0).map(|(q, _)| q.abs()).max().unwrap_or(0);
    [15, 31, 63].into_iter().find(|&reach| farthest <= reach).unwrap_or(WIDEST)
}

/// How many symbols share a bar, and how many bars there are, of symbols to `reach` on both sides: an odd number of each, so that 0 is in
/// the middle.
fn symbol_bins(room: usize, reach: i16) -> (usize, usize) {
    let bars = |step: usize| 2 * (reach as usize).saturating_sub((step - 1) / 2).div_ceil(step) + 1;
    let step = (1..=255).step_by(2).find(|&s| bars(s) <= room).unwrap_or(255);
    (step, bars(step))
}

/// The part of all symbols that one symbol of each bar has on average: bars at the ends hold fewer.
fn symbol_shares(found: &SymbolStats, step: usize, bars: usize, reach: i16) -> Vec<f64> {
    let total = found.total().max(1) as f64;
    let mut sums = vec![(0u64, 0u64); bars];
    for q in -reach..=reach {
        let at = (q + (step * bars / 2) as i16).max(0) as usize / step;
        if let Some((sum, held)) = sums.get_mut(at) {
            // -128 is in no file of scheme int8; where it occurs, it stands with its neighbour.
            *sum += found.count(q as i8) + if q == -WIDEST { found.count(-128) } else { 0 };
            *held += 1;
        }
    }
    sums.into_iter().map(|(sum, held)| sum as f64 / held.max(1) as f64 / total).collect()
}

fn symbol_items(found: &SymbolStats, t: &TensorInfo) -> Vec<(&'static str, String)> {
    let total = found.total().max(1) as f64;
    let mean: f64 = (-128i32..).zip(found.counts).map(|(q, n)| f64::from(q.abs()) * n as f64).sum::<f64>() / total;
    // In scheme rate 0 and -1 are half a step above and below nothing.
    let least = match t.scheme == "rate" {
        true => ("smallest", text::percent((found.count(0) + found.count(-1)) as f64 / total)),
        false => ("zeros", text::percent(found.count(0) as f64 / total)),
    };
    vec![
        ("entropy", format!("{:.4} of 8 bits", found.entropy)),
        least,
        ("mean magnitude", text::figure(mean)),
        ("different", found.counts.iter().filter(|&&n| n > 0).count().to_string()),
    ]
}

fn chunks(page: &mut Page, state: &State, tensor: usize, t: &TensorInfo, stats: Option<&LayerStats>) {
    let look = page.look;
    page.heading("Ratio per chunk", &text::plural(t.chunks(), "chunk"), look.dim());
    let Some(stats) = stats else {
        let rows = if t.chunks() > 1 { Chart::rows(STRIP) + 1 } else { 1 };
        return nothing(page, state, tensor, rows);
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
    fn symbols_fall_into_bars_around_zero() {
        for room in 1..400 {
            let (step, bars) = symbol_bins(room, WIDEST);
            assert!(bars <= room && step * bars >= 255 && step % 2 == 1 && bars % 2 == 1, "{room}: {step} {bars}");
            // Every symbol once in a hundred: all bars are equal.
            let found = SymbolStats { counts: [1; 256], entropy: 8.0 };
            let shares = symbol_shares(&found, step, bars, WIDEST);
            assert_eq!(shares.len(), bars);
            let inner = &shares[usize::from(bars > 1)..];
            assert!(inner.iter().all(|s| (s - 1.0 / 256.0).abs() < 1.0 / 256.0 / 200.0 + 1e-9 || bars == 1), "{room}");
            // The zeros are in the middle.
            let mut counts = [0; 256];
            counts[128] = 7;
            let zeros = SymbolStats { counts, entropy: 0.0 };
            assert_eq!(reach(&zeros), 15);
            for reach in [WIDEST, 63, 15] {
                let (step, bars) = symbol_bins(room, reach);
                assert!(bars <= room && step * bars > 2 * reach as usize, "{room}: {step} {bars}");
                let shares = symbol_shares(&zeros, step, bars, reach);
                assert!(shares.iter().enumerate().all(|(i, &s)| (s > 0.0) == (i == bars / 2)), "{room}");
            }
        }
    }

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
