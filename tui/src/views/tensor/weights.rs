//! The histogram of a tensor's weights, and the largest of them.

use super::Shown;
use super::plots::nothing;
use crate::draw::chart::{Chart, room};
use crate::draw::page::{Page, digits, short_count};
use crate::draw::text;

/// Writes the histogram.
pub fn draw(page: &mut Page, of: Shown<'_>, height: usize) {
    let Shown { state, t, stats, .. } = of;
    let look = page.look;
    if !t.dtype.is_quantizable() || (state.file.original().is_some() && t.scheme != "raw") {
        page.heading("Weights", "", look.dim());
        let kind = if t.scheme == "raw" { t.dtype.name() } else { &t.scheme };
        let kind = text::clean(look, kind);
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
    let counts = found.bars(room(page));
    let most = counts.iter().copied().max().unwrap_or(0);
    let bars: Vec<f64> = counts.iter().map(|&n| n as f64 / most.max(1) as f64).collect();
    let end = digits(found.span);
    let chart = Chart {
        columns: (room(page) / bars.len().max(1)).max(1),
        bars: &bars,
        gap: 0,
        height,
        top: short_count(most),
        bottom: "0".to_owned(),
        marks: &[0.5],
        labels: &[(0.0, format!("-{end}")), (1.0, end), (0.5, "0".to_owned())],
    };
    chart.draw(page);
}

/// Writes the largest weights with their rows and columns.
pub fn outliers(page: &mut Page, of: Shown<'_>) {
    let Shown { t, stats, .. } = of;
    let look = page.look;
    let Some(found) = stats.and_then(|s| s.weights.as_ref()).filter(|w| !w.outliers.is_empty()) else { return };
    page.heading("Largest weights", "of RMS  at", look.dim());
    let columns = t.shape.last().copied().unwrap_or(1).max(1) as u64;
    for outlier in &found.outliers {
        let place = match t.shape.len() {
            0 | 1 => text::count(outlier.place),
            _ => {
                format!("row {}, column {}", text::count(outlier.place / columns), text::count(outlier.place % columns))
            }
        };
        let times = if found.rms > 0.0 { outlier.value.abs() / found.rms } else { 0.0 };
        let line = format!("{:>10}  {times:>6.1} x  {place}", digits(outlier.value));
        page.line(vec![ratatui::text::Span::raw(text::cut(look, &line, page.width).into_owned())]);
    }
}
