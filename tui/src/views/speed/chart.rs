//! The last rounds, one a column.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::draw::{clip, ms};
use crate::draw::text;
use crate::draw::widgets::Pen;
use crate::state::State;

/// Columns of the axis.
const AXIS: usize = 13;

/// Draws its head and a point for each round: from 0 on, or from near the shortest where all take about as long.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let look = state.look;
    let Some(lane) = state.views.speed.current() else { return };
    let Some(summary) = lane.series.summary() else { return };
    let height = usize::from(area.height.saturating_sub(1));
    let columns = usize::from(area.width).saturating_sub(AXIS + 1);
    let recent = lane.series.recent();
    let skipped = recent.len().saturating_sub(columns);
    let shown: Vec<f64> = recent.skip(skipped).collect();
    let (longest, top) = (shown.iter().copied().fold(0.0, f64::max), clip(shown.iter().copied()));
    if height == 0 || shown.is_empty() || top <= 0.0 {
        return;
    }
    let bottom = beginning(shown.iter().copied().fold(top, f64::min), top);
    let head = format!("the last {}, milliseconds", text::plural(shown.len(), "round"));
    let cut = shown.iter().filter(|&&t| t > top).count();
    let mut pen = Pen::new(buffer, area, 0);
    pen.skip(1).put(&head, look.title());
    if cut > 0 {
        let sign = look.sign("▲", "^");
        let note = format!("   {sign} {} beyond the chart, the longest {} ms", text::count(cut as u64), ms(longest));
        pen.put(&note, look.warn());
    }
    // The row of the chart, from the bottom, that a time falls into; and the upper or lower half of it.
    let half_of = |time: f64| halves(time, bottom, top, height);
    let line = look.sign("│", "|");
    for row in 0..height {
        let mut pen = Pen::new(buffer, area, height - row);
        let label = match row {
            r if r == height - 1 => ms(top),
            r if r == half_of(summary.p50) / 2 => format!("p50 {}", ms(summary.p50)),
            0 if bottom == 0.0 => "0".to_owned(),
            0 => ms(bottom),
            _ => String::new(),
        };
        pen.number(&label, AXIS - 1, look.dim()).put(line, look.dim());
        for &time in &shown {
            match half_of(time) {
                _ if time > top && row + 1 == height => pen.put(look.sign("▲", "^"), look.warn()),
                half if time <= top && half / 2 == row => {
                    pen.put(look.sign(if half % 2 == 1 { "▀" } else { "▄" }, "*"), look.bar())
                }
                _ => pen.skip(1),
            };
        }
    }
}

/// The time at the bottom of the chart: 0, unless that would leave all points at the top.
fn beginning(shortest: f64, top: f64) -> f64 {
    if shortest > 0.5 * top { shortest - 0.1 * (top - shortest).max(0.05 * top) } else { 0.0 }
}

/// The half row of so many rows, from the bottom, that a time falls into.
fn halves(time: f64, bottom: f64, top: f64, height: usize) -> usize {
    let part = if top > bottom { (time - bottom) / (top - bottom) } else { 1.0 };
    ((part * 2.0 * height as f64) as usize).min(2 * height - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_the_chart() {
        assert_eq!([-1.0, 0.0, 0.49, 0.5, 1.0, 9.0, f64::NAN].map(|t| halves(t, 0.0, 1.0, 4)), [0, 0, 3, 4, 7, 7, 0]);
        assert_eq!(halves(3.0, 3.0, 3.0, 2), 3);
        assert_eq!(beginning(0.2, 1.0), 0.0);
        for (shortest, top) in [(0.9, 1.0), (1.0, 1.0), (0.51, 1.0)] {
            assert!(beginning(shortest, top) < shortest && beginning(shortest, top) > 0.4, "{shortest}");
        }
    }
}
