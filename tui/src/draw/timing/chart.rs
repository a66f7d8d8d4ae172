//! The last rounds, one a column.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{clip, ms};
use crate::draw::text;
use crate::draw::widgets::Pen;
use crate::state::State;

/// Columns of the axis.
const AXIS: usize = 13;

/// Draws its head and the columns, from 0 to the longest round.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let look = state.look;
    let Some(lane) = state.timing.current() else { return };
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
    let head = format!("the last {}, milliseconds", text::plural(shown.len(), "round"));
    let cut = shown.iter().filter(|&&t| t > top).count();
    let mut pen = Pen::new(buffer, area, 0);
    pen.skip(1).put(&head, look.title());
    if cut > 0 {
        let sign = look.sign("▲", "^");
        let note = format!("   {sign} {} beyond the chart, the longest {} ms", text::count(cut as u64), ms(longest));
        pen.put(&note, look.warn());
    }
    // The row of the chart, from the bottom, that a time falls into.
    let row_of = |time: f64| ((time / top * height as f64).ceil() as usize).clamp(1, height) - 1;
    let line = look.sign("│", "|");
    for row in 0..height {
        let mut pen = Pen::new(buffer, area, height - row);
        let label = match row {
            r if r == height - 1 => ms(top),
            r if r == row_of(summary.p50) => format!("p50 {}", ms(summary.p50)),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        pen.number(&label, AXIS - 1, look.dim()).put(line, look.dim());
        let columns: String =
            shown.iter().map(|time| block(look.ascii, time / top * height as f64 - row as f64)).collect();
        if row + 1 < height || cut == 0 {
            pen.put(&columns, look.bar());
            continue;
        }
        for (sign, &time) in columns.chars().zip(&shown) {
            match time > top {
                true => pen.put(look.sign("▲", "^"), look.warn()),
                false => pen.put(sign.encode_utf8(&mut [0; 4]), look.bar()),
            };
        }
    }
}

/// A column's part in a row: `fill` is how much of the row lies below the column's end.
fn block(ascii: bool, fill: f64) -> char {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let eighths = (fill.clamp(0.0, 1.0) * 8.0).round() as usize;
    match ascii {
        true if eighths >= 4 => '#',
        true => ' ',
        false => EIGHTHS[eighths.min(8)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fill_rows() {
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 9.0, f64::NAN].map(|f| block(false, f)), [' ', ' ', '▄', '█', '█', ' ']);
        assert_eq!([-1.0, 0.4, 0.6, 9.0].map(|f| block(true, f)), [' ', ' ', '#', '#']);
    }
}
