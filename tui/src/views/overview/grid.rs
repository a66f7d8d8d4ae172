//! The grid: its layout, its cells, the line of sums, and the lines below it: its colours, and the selected cell in words.

use super::figures::{Figures, Range};
use super::{Measure, OverviewState, panel};
use crate::draw::{Canvas, Cursor, Look, Modifier, Pen, Scrolled, Style, text};
use crate::model::{Heat, HeatCell};
use crate::state::State;
use crate::stats::Fetch;

/// Columns of the terminal that a cell takes, and at most so many; the last one is the gap.
const CELL: (usize, usize) = (7, 11);
/// Columns of a layer's label at most.
const LABEL: usize = 18;

/// Colours of the scale.
const STEPS: usize = 10;

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
        // The head and the legend are there where there is room for them.
        let heads = usize::from(height > 1) + usize::from(height > 3);
        Self { label, cell, seen, all, lines: height.saturating_sub(heads).max(1) }
    }

    /// That on the screen.
    fn of(state: &State) -> Self {
        Self::new(state.file.heat(), panel::grid_columns(state.size.0.into()), state.body_height())
    }
}

/// A line: a layer or a tensor in none, the sums of all layers, or the title of what is in none.
#[derive(Clone, Copy, PartialEq)]
enum Line {
    Row(usize),
    Sums,
    Title,
}

fn lines(heat: &Heat) -> Vec<Line> {
    let mut lines: Vec<Line> = (0..heat.rows.len()).map(Line::Row).collect();
    if heat.layers > 0 {
        let between = if heat.rows.len() > heat.layers { &[Line::Sums, Line::Title][..] } else { &[Line::Sums] };
        lines.splice(heat.layers..heat.layers, between.iter().copied());
    }
    lines
}

/// Keeps the selection within the grid, and on the screen.
pub fn fit(state: &mut State) {
    let place = Place::of(state);
    let (heat, view) = (state.file.heat(), &mut state.views.overview);
    view.row = view.row.min(heat.rows.len().saturating_sub(1));
    view.column = view.column.min(heat.columns.len().saturating_sub(1));
    let fitted = |selected, offset, len, seen| {
        let mut cursor = Cursor { selected, offset };
        cursor.fit(len, seen);
        cursor.offset
    };
    let lines = lines(heat);
    let line = lines.iter().position(|&line| line == Line::Row(view.row)).unwrap_or(0);
    view.top = fitted(line, view.top, lines.len(), place.lines);
    let column = if view.row < heat.layers { view.column } else { view.left };
    view.left = fitted(column, view.left, heat.columns.len(), place.seen);
}

/// Whether the figures of a measure have one colour, or there are none.
pub fn is_flat(state: &State, measure: Measure) -> bool {
    let range = Figures::new(state, measure).range(state.file.heat());
    range.is_none_or(|range| range.is_flat())
}

/// Lines that are seen at once.
pub fn page(state: &State) -> usize {
    Place::of(state).lines
}

/// The row at a line of the view, below its head; and the column at a column of the screen.
pub fn at(state: &State, line: usize, x: usize) -> Option<(usize, usize)> {
    let (view, heat, place) = (&state.views.overview, state.file.heat(), Place::of(state));
    let line = line.checked_sub(usize::from(state.body_height() > 1)).filter(|&l| l < place.lines)?;
    let Line::Row(row) = *lines(heat).get(line + view.top)? else { return None };
    let x = x.checked_sub(place.label + 2).filter(|_| x < panel::grid_columns(state.size.0.into()))?;
    Some((row, (view.left + x / place.cell).min(heat.columns.len().saturating_sub(1))))
}

/// Draws it.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    let (look, view, heat) = (state.look, &state.views.overview, state.file.heat());
    let (width, height) = (canvas.width(), canvas.height());
    if heat.rows.is_empty() {
        let cut = state.file.cut();
        let text = cut.as_deref().unwrap_or("there are no tensors in this file");
        canvas.pen(usize::from(height > 2)).skip(3).put(text, look.warn());
        return;
    }
    let columns = panel::grid_columns(width);
    if columns < width {
        // Above the legend.
        panel::draw(&mut canvas.part((columns, 0), (width, height.saturating_sub(1))), state);
    }
    let figures = Figures::new(state, view.measure);
    let range = figures.range(heat);
    let grid = Grid { state, view, heat, place: Place::new(heat, columns, height), figures: &figures, range };
    let first = usize::from(height > 1);
    let mut part = canvas.part((0, 0), (columns, height));
    if first > 0 {
        grid.head(part.pen(0));
    }
    let (lines, seen) = (lines(heat), grid.place.lines);
    for (i, line) in lines.iter().skip(view.top).take(seen).enumerate() {
        let mut pen = part.pen(first + i);
        match *line {
            Line::Row(row) => grid.row(pen, row),
            Line::Sums => grid.sums(pen),
            Line::Title => drop(pen.skip(1).put("in no layer", look.title())),
        }
    }
    if height > 3 {
        let from = (lines.len() > seen).then_some((view.top, seen, lines.len()));
        legend(canvas.pen(height - 1), &grid, from);
    }
}

/// All that the lines are drawn from.
struct Grid<'a> {
    state: &'a State,
    view: &'a OverviewState,
    heat: &'a Heat,
    place: Place,
    figures: &'a Figures<'a>,
    range: Option<Range>,
}

impl Grid<'_> {
    /// Words above the columns; the selected one's is underlined.
    fn head(&self, mut pen: Pen<'_>) {
        let (look, left, width) = (self.state.look, self.view.left, self.place.cell - 1);
        let title = |pen: &mut Pen<'_>, label: &str, style: Style| {
            let label = text::fitted(look, label, width);
            let gap = width.saturating_sub(text::width(&label));
            pen.skip(gap / 2).put(&label, style).skip(gap - gap / 2);
        };
        pen.skip(1).cell(text::start("layer", self.place.label), self.place.label, look.title()).skip(1);
        for (c, column) in self.heat.columns.iter().enumerate().skip(left).take(self.place.seen) {
            let style = match c == self.view.column && self.view.row < self.heat.layers {
                true => look.title().add_modifier(Modifier::UNDERLINED),
                false => look.title(),
            };
            title(&mut pen, &column.label, style);
            pen.skip(1);
        }
        if self.place.all {
            title(&mut pen, "all", look.title());
        }
        pen.put(look.beyond(left > 0, left + self.place.seen < self.heat.columns.len()), look.warn());
    }

    /// A layer: its label, its cells, and all of it. A tensor in none: its cell, then its name.
    fn row(&self, mut pen: Pen<'_>, row: usize) {
        let (look, of, place) = (self.state.look, &self.heat.rows[row], &self.place);
        let (selected, is_layer) = (row == self.view.row, row < self.heat.layers);
        let style = match (selected, is_layer) {
            (true, _) => look.text().add_modifier(Modifier::BOLD),
            (false, true) => look.dim(),
            (false, false) => look.text(),
        };
        pen.put(if selected { look.sign("▌", ">") } else { " " }, look.text());
        if !is_layer {
            self.cell(pen.skip(place.label + 1), of.cell(0), selected);
            pen.short(&of.name, style);
            return;
        }
        let label = text::clean(look, &of.label);
        pen.number(&text::cut_left(look, &label, place.label), place.label, style).skip(1);
        for column in self.view.left..self.view.left + place.seen {
            self.cell(&mut pen, of.cell(column), selected && column == self.view.column);
        }
        if place.all {
            self.sum(&mut pen, &of.all);
        }
    }

    /// All layers, by role.
    fn sums(&self, mut pen: Pen<'_>) {
        let label = text::start("all", self.place.label);
        pen.skip(1).number(label, self.place.label, self.state.look.title()).skip(1);
        for column in self.heat.columns.iter().skip(self.view.left).take(self.place.seen) {
            self.sum(&mut pen, &column.all);
        }
    }

    /// The figure of a cell, or the sign that nobody knows it.
    fn figure(&self, cell: &HeatCell) -> String {
        self.figures.of(cell).map_or_else(|| self.state.look.unknown().to_owned(), |v| self.figures.text(v))
    }

    /// A sum, without colour: it is no cell.
    fn sum(&self, pen: &mut Pen<'_>, cell: &HeatCell) {
        pen.put(&centred(&self.figure(cell), self.place.cell - 1), self.state.look.dim()).skip(1);
    }

    fn cell(&self, pen: &mut Pen<'_>, cell: Option<&HeatCell>, selected: bool) {
        let (look, width) = (self.state.look, self.place.cell - 1);
        let figure = cell.map_or_else(String::new, |cell| self.figure(cell));
        let damaged = cell.is_some_and(|c| c.tensors.iter().any(|&i| self.state.is_damaged(i)));
        let sign = if damaged { look.sign("✗", "!") } else { "" };
        if selected {
            // Brackets, too: reversed is hard to see among colours.
            let (text, inner) = (format!("{sign}{figure}"), width.saturating_sub(2));
            let line = if text::width(&text) > inner { format!("[{text}") } else { format!("[{text:^inner$}]") };
            let line = format!("{line:width$}");
            pen.put(text::start(&line, width), look.selected().add_modifier(Modifier::BOLD)).skip(1);
            return;
        }
        let room = width.saturating_sub(text::width(sign));
        let part = cell.and_then(|c| self.figures.of(c)).zip(self.range).map(|(v, range)| range.part(v));
        pen.put(sign, look.bad());
        match part.and_then(|p| look.heat(p)) {
            Some(style) => pen.put(&centred(&figure, room), style).skip(1),
            None => {
                let text = text::start(&figure, room);
                let gap = room - text::width(text);
                let shades = part.map_or_else(String::new, |p| shade(look, p).repeat(gap.min(2)));
                pen.put(&shades, look.bar()).skip(gap - text::width(&shades));
                pen.put(text, if part.is_some() { look.text() } else { look.dim() }).skip(1)
            }
        };
    }
}

/// The beginning of a text in the middle of so many columns.
fn centred(text: &str, columns: usize) -> String {
    let text = text::start(text, columns);
    let gap = columns - text::width(text);
    format!("{}{text}{}", " ".repeat(gap.div_ceil(2)), " ".repeat(gap / 2))
}

/// A sign as dark as a part of 1 says.
fn shade(look: Look, part: f64) -> &'static str {
    const SHADES: [&str; 5] = ["·", "░", "▒", "▓", "█"];
    const ASCII: [&str; 5] = [".", ":", "+", "*", "#"];
    let at = (part.clamp(0.0, 1.0) * 5.0).floor().min(4.0) as usize;
    if look.ascii { ASCII[at] } else { SHADES[at] }
}

/// Draws what the colours mean, or why there are none. `seen` are the first line, how many are seen, and all of them, where that are more.
fn legend(mut pen: Pen<'_>, grid: &Grid<'_>, seen: Option<(usize, usize, usize)>) {
    let Grid { state, heat, figures, range, .. } = *grid;
    let (look, measure) = (state.look, state.views.overview.measure);
    pen.skip(1);
    if let Some((from, count, lines)) = seen {
        pen.at_end(&format!("{}-{}/{lines}", from + 1, (from + count).min(lines)), look.dim());
    }
    pen.at_end(&state.encode.sampling(), look.warn());
    pen.put(measure.name(), look.title()).skip(1);
    let Some(range) = range else {
        pen.cut(&why_not(state, measure), look.warn());
        return;
    };
    let (low, high) = (figures.text(range.low), figures.text(range.high));
    if range.is_flat() {
        let all = if low == high { format!("all {low}") } else { format!("{low} to {high}") };
        let flat = format!("{all}: less than 5 % apart, so one colour");
        pen.cut(&flat, look.text());
    } else {
        pen.put(&low, look.text()).skip(1);
        for step in 0..STEPS {
            let part = step as f64 / (STEPS - 1) as f64;
            match look.heat(part) {
                Some(style) => pen.put(" ", style),
                None => pen.put(shade(look, part), look.bar()),
            };
        }
        pen.skip(1).put(&high, look.text());
        for (word, place, value) in [("most", range.most, high), ("least", range.least, low)] {
            let text = format!("{word}: {} {value}", text::clean(look, &heat.short(place)));
            if text::width(&text) + 3 <= pen.left() {
                pen.skip(3).put(&text, look.text());
            }
        }
    }
    let about = measure.about();
    if text::width(about) + 3 <= pen.left() {
        pen.skip(3).put(about, look.dim());
    }
}

/// Why there are no figures.
fn why_not(state: &State, measure: Measure) -> String {
    let why = match measure {
        Measure::WouldError | Measure::WouldBits | Measure::WouldError8 | Measure::WouldBits8 => {
            match &state.encode.would {
                Fetch::Running(_) => "not known yet",
                Fetch::Failed(why) => return why.clone(),
                _ => "there are no estimates: nothing here can be encoded",
            }
        }
        Measure::Error => "not known: scheme rate states errors; --ref and a look at a tensor measure them",
        Measure::Speed => "decoding the file once on each round; figures come with the first one",
        _ => "there are no figures",
    };
    why.to_owned()
}

/// The line above the keys: the selected cell in words.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let (look, heat) = (state.look, state.file.heat());
    let Some(row) = heat.rows.get(state.views.overview.row) else { return };
    let Some(cell) = heat.cell(state.views.overview.row, state.views.overview.column) else {
        pen.cut(&format!("{} has no such tensor", row.name), look.dim());
        return;
    };
    let name = match (&cell.tensors[..], heat.columns.get(state.views.overview.column)) {
        ([one], _) => state.file.tensors.get(*one).map_or(String::new(), |t| t.name.clone()),
        (many, Some(column)) => format!("{}.{} ({})", row.name, column.role, text::plural(many.len(), "tensor")),
        _ => row.name.clone(),
    };
    let figures = Measure::all(&state.file).iter().map(|&measure| Figures::new(state, measure));
    let mut facts: Vec<String> = figures.filter_map(|f| f.of(cell).map(|value| f.words(value))).collect();
    let name = text::clean(look, &name);
    let room = pen.left();
    let between = text::width(look.between());
    let needed = |facts: &[String]| facts.iter().map(|f| text::width(f) + between).sum::<usize>();
    // The name keeps half of the line; the last facts go.
    while facts.len() > 1 && needed(&facts) + text::width(&name).min(room / 2) > room {
        facts.pop();
    }
    let name = text::short_name(look, &name, room.saturating_sub(needed(&facts)).max(1));
    pen.put(&name, look.text().add_modifier(Modifier::BOLD));
    for fact in facts {
        pen.dot().put(&fact, look.text());
    }
}
