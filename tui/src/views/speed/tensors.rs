//! The tensors by time.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::draw::{clip, ms, optional};
use crate::draw::table::{self, Column};
use crate::draw::text;
use crate::draw::widgets::{Pen, bar};
use crate::state::State;

/// Draws its head and the rows that fit.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (look, timing) = (state.look, &state.views.speed);
    let width = usize::from(area.width);
    let name = (width * 2 / 5).clamp(16, 70).min(width.saturating_sub(20).max(8));
    let figures = [
        Some(Column::number("ms", 9).after(1)),
        Some(Column::number("GB/s", 7)),
        (width >= 76).then_some(Column::number("share", 8)),
        (width >= 110).then_some(Column::number("output", 11)),
    ];
    let mut columns = vec![Column::text(timing.order.title(), name).after(1)];
    columns.extend(figures.into_iter().flatten().chain([Column::rest("median time")]));
    table::head(&mut Pen::new(buffer, area, 0), look, &columns);

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
        let label = state.file.tensors.get(layer.tensor).map_or("", |t| t.name.as_str());
        let label = text::clean(look, label);
        pen.skip(1).cell(&text::short_name(look, &label, name), name, over);
        if let Some(why) = &layer.error {
            pen.skip(3).put(look.sign("✗ ", "! "), over.patch(look.bad()));
            pen.cut(look, why, over.patch(look.warn()));
            continue;
        }
        let dash = || look.sign("–", "-").to_owned();
        let share = layer.ms.zip(round).filter(|(_, round)| *round > 0.0).map(|(ms, round)| ms / round);
        let texts = [
            layer.ms.map_or_else(dash, ms),
            optional(look, layer.gb_per_s()),
            share.map_or_else(dash, |s| text::percent(s.min(1.0))),
            text::size(layer.bytes),
        ];
        let cell = |(column, text): (Option<Column>, String)| Some((column?, text, over));
        table::row(&mut pen, look, figures.into_iter().zip(texts).filter_map(cell));
        pen.skip(table::GAP);
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
