//! The grid: its layout, its cells, and the line of sums.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::figures::{Figures, Range};
use super::{Measure, OverviewState, legend, panel};
use crate::draw::{Cursor, Look, Pen, text};
use crate::model::{Heat, HeatCell};
use crate::state::State;

/// Columns of the terminal that a cell takes, and at most so many; the last one is the gap.
const CELL: (usize, usize) = (7, 11);
/// Columns of a layer's label at most.
const LABEL: usize = 18;
/// Lines between layers and tensors in no layer: the sums, and a title.
const BETWEEN: usize = 2;

/// The layout of the view.
struct Place {
    label: usize,
    cell: usize,
    /// Columns of the grid that are seen at once.
    seen: usize,
    /// Whether there is room for the sums of each layer.
    all: bool,
    /// Lines that are seen at once, without head and legend.
    lines: usize,
}

impl Place {
    fn new(heat: &Heat, width: usize, height: usize) -> Self {
        let labels = heat.rows[..heat.layers].iter().map(|r| text::width(&r.label)).max().unwrap_or(0);
        let label = labels.clamp(5, LABEL).min(width / 3).max(1);
        let room = width.saturating_sub(label + 2);
        let columns = heat.columns.len().max(1);
        let cell = (room / (columns + 1)).clamp(CELL.0, CELL.1).min(room.max(1));
        let all = columns > 1 && room >= (columns + 1).min(3) * cell;
        let seen = (room / cell).saturating_sub(usize::from(all)).clamp(1, columns);
        Self { label, cell, seen, all, lines: height.saturating_sub(heads(height)).max(1) }
    }
}

/// Lines of the head and the legend, where there is room for them.
fn heads(height: usize) -> usize {
    usize::from(height > 1) + usize::from(height > 3)
}

/// The line of a row: sums and a title are between layers and the other tensors.
fn line_of(heat: &Heat, row: usize) -> usize {
    if row < heat.layers { row } else { row + if heat.layers > 0 { BETWEEN } else { 0 } }
}

/// Lines in all.
fn lines(heat: &Heat) -> usize {
    match heat.rows.len() {
        n if n == heat.layers => n + usize::from(heat.layers > 0),
        n => line_of(heat, n),
    }
}

/// The first line and the first column that are shown, so that the selection is, too; and how many lines are seen at once.
pub fn fit(state: &State) -> (usize, usize) {
    let view = &state.views.overview;
    let heat = state.file.heat();
    let place = Place::new(heat, panel::grid_columns(state.size.0), state.body_height());
    let fitted = |selected, offset, len, seen| {
        let mut cursor = Cursor { selected, offset };
        cursor.fit(len, seen);
        cursor.offset
    };
    let column = if view.row < heat.layers { view.column } else { view.left };
    let top = fitted(line_of(heat, view.row), view.top, lines(heat), place.lines);
    (top, fitted(column, view.left, heat.columns.len(), place.seen))
}

/// Whether the figures of a measure have one colour, or there are none.
pub fn is_flat(state: &State, measure: Measure) -> bool {
    let range = Figures::new(state, measure).range(state.file.heat());
    range.is_none_or(|range| range.is_flat())
}

/// Lines that are seen at once.
pub fn page(state: &State) -> usize {
    state.body_height().saturating_sub(heads(state.body_height())).max(1)
}

/// The row at a line of the view, below its head; and the column at a column of the screen.
pub fn at(state: &State, line: usize, x: usize) -> Option<(usize, usize)> {
    let (view, height, width) = (&state.views.overview, state.body_height(), panel::grid_columns(state.size.0));
    let heat = state.file.heat();
    let place = Place::new(heat, width, height);
    let line = line.checked_sub(usize::from(height > 1)).filter(|&l| l < place.lines)? + view.top;
    let row = (0..heat.rows.len()).find(|&r| line_of(heat, r) == line)?;
    let column = view.left + x.checked_sub(place.label + 2).filter(|_| x < width)? / place.cell;
    Some((row, column.min(heat.columns.len().saturating_sub(1))))
}

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (look, view) = (state.look, &state.views.overview);
    let heat = state.file.heat();
    let height = usize::from(area.height);
    if height == 0 {
        return;
    }
    if heat.rows.is_empty() {
        let cut = state.file.cut();
        let text = cut.as_deref().unwrap_or("there are no tensors in this file");
        Pen::new(buffer, area, usize::from(height > 2)).skip(3).put(text, look.warn());
        return;
    }
    let columns = panel::grid_columns(area.width);
    panel::draw(buffer, area, state, heat);
    let (whole, area) = (area, Rect { width: columns as u16, ..area });
    let place = Place::new(heat, columns, height);
    let figures = Figures::new(state, view.measure);
    let range = figures.range(heat);
    let grid = Grid { state, view, heat, place: &place, figures: &figures, range };
    let first = usize::from(height > 1);
    if first > 0 {
        grid.head(Pen::new(buffer, area, 0));
    }
    for at in 0..place.lines {
        let line = view.top + at;
        let pen = Pen::new(buffer, area, first + at);
        match line {
            _ if line < heat.layers => grid.layer(pen, line),
            _ if line == heat.layers && heat.layers > 0 => grid.sums(pen),
            _ if line == heat.layers + 1 && heat.layers > 0 && heat.rows.len() > heat.layers => {
                Pen::new(buffer, area, first + at).skip(1).put("in no layer", look.title());
            }
            _ => {
                let before = if heat.layers > 0 { BETWEEN } else { 0 };
                if let Some(row) = line.checked_sub(before).filter(|&r| r < heat.rows.len()) {
                    grid.loose(pen, row);
                }
            }
        }
    }
    if height > 3 {
        let from = (lines(heat) > place.lines).then(|| (view.top, place.lines, lines(heat)));
        legend::draw(Pen::new(buffer, whole, height - 1), state, heat, &figures, range, from);
    }
}

/// All that the lines are drawn from.
struct Grid<'a> {
    state: &'a State,
    view: &'a OverviewState,
    heat: &'a Heat,
    place: &'a Place,
    figures: &'a Figures<'a>,
    range: Option<Range>,
}

impl Grid<'_> {
    /// Words above the columns; the selected one's is underlined.
    fn head(&self, mut pen: Pen<'_>) {
        let (look, heat) = (self.state.look, self.heat);
        let left = self.view.left;
        pen.skip(1).cell("layer", self.place.label, look.title()).skip(1);
        for (c, column) in heat.columns.iter().enumerate().skip(left).take(self.place.seen) {
            let style = match c == self.view.column && self.view.row < heat.layers {
                true => look.title().add_modifier(Modifier::UNDERLINED),
                false => look.title(),
            };
            let label = text::clean(look, &column.label);
            let label = text::cut(look, &label, self.place.cell - 1);
            let gap = (self.place.cell - 1).saturating_sub(text::width(&label));
            pen.skip(gap / 2).put(&label, style).skip(gap - gap / 2 + 1);
        }
        if self.place.all {
            let gap = (self.place.cell - 1).saturating_sub(3);
            pen.skip(gap / 2).put("all", look.title()).skip(gap - gap / 2);
        }
        pen.put(look.beyond(left > 0, left + self.place.seen < heat.columns.len()), look.warn());
    }

    /// A layer: its label, its cells, and all of it.
    fn layer(&self, mut pen: Pen<'_>, row: usize) {
        let (look, of) = (self.state.look, &self.heat.rows[row]);
        let selected = row == self.view.row;
        let style = if selected { look.text().add_modifier(Modifier::BOLD) } else { look.dim() };
        let label = text::clean(look, &of.label);
        let label = text::cut_left(look, &label, self.place.label);
        pen.put(if selected { look.sign("▌", ">") } else { " " }, look.text());
        pen.number(&label, self.place.label, style).skip(1);
        let left = self.view.left;
        for column in left..left + self.place.seen {
            self.cell(&mut pen, of.cell(column), selected && column == self.view.column);
        }
        if self.place.all {
            self.sum(&mut pen, &of.all);
        }
    }

    /// All layers, by role.
    fn sums(&self, mut pen: Pen<'_>) {
        let look = self.state.look;
        pen.skip(1).number(text::start("all", self.place.label), self.place.label, look.title()).skip(1);
        for column in self.heat.columns.iter().skip(self.view.left).take(self.place.seen) {
            self.sum(&mut pen, &column.all);
        }
    }

    /// A tensor in no layer: its cell, then its name.
    fn loose(&self, mut pen: Pen<'_>, row: usize) {
        let (look, of) = (self.state.look, &self.heat.rows[row]);
        let selected = row == self.view.row;
        pen.put(if selected { look.sign("▌", ">") } else { " " }, look.text()).skip(self.place.label + 1);
        self.cell(&mut pen, of.cell(0), selected);
        let style = if selected { look.text().add_modifier(Modifier::BOLD) } else { look.text() };
        pen.short(look, &of.name, style);
    }

    /// A sum, without colour: it is no cell.
    fn sum(&self, pen: &mut Pen<'_>, cell: &HeatCell) {
        let (look, width) = (self.state.look, self.place.cell - 1);
        let text = self.figures.of(cell).map_or_else(|| look.unknown().to_owned(), |v| self.figures.text(v));
        let text = text::start(&text, width);
        let gap = width - text::width(text);
        pen.skip(gap.div_ceil(2)).put(text, look.dim()).skip(gap / 2 + 1);
    }

    fn cell(&self, pen: &mut Pen<'_>, cell: Option<&HeatCell>, selected: bool) {
        let (look, width) = (self.state.look, self.place.cell - 1);
        let value = cell.and_then(|c| self.figures.of(c));
        let figure = match (cell, value) {
            (None, _) => String::new(),
            (Some(_), None) => look.unknown().to_owned(),
            (Some(_), Some(v)) => self.figures.text(v),
        };
        let damaged = cell.is_some_and(|c| c.tensors.iter().any(|&i| self.state.is_damaged(i)));
        let sign = if damaged { look.sign("✗", "!") } else { "" };
        let part = value.zip(self.range).map(|(v, range)| range.part(v));
        let room = width.saturating_sub(text::width(sign));
        let text = text::start(&figure, room);
        if selected {
            // Brackets, too: reversed is hard to see among colours.
            let inner = width.saturating_sub(2);
            let text = format!("{sign}{text}");
            let text = text::start(&text, inner);
            let gap = inner - text::width(text);
            let line = match text::width(&figure) + text::width(sign) > inner {
                true => format!("[{sign}{figure}"),
                false => format!("[{}{text}{}]", " ".repeat(gap / 2), " ".repeat(gap - gap / 2)),
            };
            let line = format!("{line:width$}");
            pen.put(text::start(&line, width), look.selected().add_modifier(Modifier::BOLD)).skip(1);
            return;
        }
        let gap = room - text::width(text);
        match part.and_then(|p| look.heat(p)) {
            Some(style) => {
                pen.put(sign, look.bad());
                let line = format!("{}{text}{}", " ".repeat(gap.div_ceil(2)), " ".repeat(gap / 2));
                pen.put(&line, style);
            }
            None => {
                let shades = part.map_or_else(String::new, |p| shade(look, p).repeat(gap.min(2)));
                pen.put(sign, look.bad()).put(&shades, look.bar());
                pen.skip(gap - text::width(&shades)).put(text, if part.is_some() { look.text() } else { look.dim() });
            }
        }
        pen.skip(1);
    }
}

/// A sign as dark as a part of 1 says.
pub fn shade(look: Look, part: f64) -> &'static str {
    const SHADES: [&str; 5] = ["·", "░", "▒", "▓", "█"];
    const ASCII: [&str; 5] = [".", ":", "+", "*", "#"];
    let at = (part.clamp(0.0, 1.0) * 5.0).floor().min(4.0) as usize;
    if look.ascii { ASCII[at] } else { SHADES[at] }
}
