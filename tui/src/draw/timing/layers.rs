//! The tensors by time.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{clip, ms, optional};
use crate::draw::text;
use crate::draw::widgets::{Pen, bar};
use crate::state::State;

/// Draws its head and the rows that fit.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (look, timing) = (state.look, &state.timing);
    let width = usize::from(area.width);
    let (sizes, shares) = (width >= 110, width >= 76);
    let name_columns = (width * 2 / 5).clamp(16, 70).min(width.saturating_sub(20).max(8));
    let style = look.title();
    let mut pen = Pen::new(buffer, area, 0);
    pen.skip(1);
    pen.cell(timing.order.title(), name_columns, style).skip(1).number("ms", 9, style);
    pen.skip(2).number("GB/s", 7, style);
    if shares {
        pen.skip(2).number("share", 8, style);
    }
    if sizes {
        pen.skip(2).number("output", 11, style);
    }
    pen.skip(2).put("median time", style);

    let layers = timing.layers();
    let height = usize::from(area.height.saturating_sub(1));
    if layers.is_empty() {
        let text = match (timing.subject.as_ref(), timing.running) {
            (None, _) if state.file.container().is_err() => "it is not encoded: there is nothing to decode",
            (None, _) => "no tensor is selected",
            (Some(_), Some(_)) => "the first round is under way",
            (Some(_), None) => "nothing was timed yet",
        };
        Pen::new(buffer, area, 1).skip(1).put(text, look.dim());
        return;
    }
    // The longest bar; much longer times have one that is cut.
    let longest = clip(layers.iter().filter_map(|l| l.ms));
    let round = timing.current().and_then(|l| l.series.summary()).map(|s| s.p50);
    for (i, layer) in layers.iter().enumerate().skip(timing.cursor.offset).take(height) {
        let mut pen = Pen::new(buffer, area, i - timing.cursor.offset + 1);
        let selected = i == timing.cursor.selected;
        let over = if selected { look.selected() } else { look.text() };
        if selected {
            pen.fill(over);
        }
        let name = state.file.tensors.get(layer.tensor).map_or("", |t| t.name.as_str());
        let name = text::clean(look, name);
        pen.skip(1).cell(&text::short_name(look, &name, name_columns), name_columns, over).skip(1);
        if let Some(why) = &layer.error {
            let why = text::clean(look, why);
            pen.skip(2).put(look.sign("✗ ", "! "), over.patch(look.bad()));
            let why = text::cut(look, &why, pen.left());
            pen.put(&why, over.patch(look.warn()));
            continue;
        }
        let time = layer.ms.map_or_else(|| look.sign("–", "-").to_owned(), ms);
        pen.number(&time, 9, over).skip(2).number(&optional(look, layer.gb_per_s()), 7, over);
        if shares {
            let share = layer.ms.zip(round).filter(|(_, round)| *round > 0.0).map(|(ms, round)| ms / round);
            let share = share.map_or_else(|| look.sign("–", "-").to_owned(), |s| text::percent(s.min(1.0)));
            pen.skip(2).number(&share, 8, over);
        }
        if sizes {
            pen.skip(2).number(&text::size(layer.bytes), 11, over);
        }
        pen.skip(2);
        let part = layer.ms.filter(|_| longest > 0.0).map_or(0.0, |ms| ms / longest);
        let columns = pen.left().saturating_sub(1);
        if part > 1.0001 && columns > 1 {
            pen.put(&bar(look, 1.0, columns - 1), over.patch(look.bar()));
            pen.put(look.sign("▶", ">"), over.patch(look.warn()));
        } else {
            pen.put(&bar(look, part, columns), over.patch(look.bar()));
        }
    }
}
