//! The heat map as a picture in SVG: a row for each role, a column for each layer.

use ratatui::style::Color;
use wcodec::text::safe;

use super::figures::{Figures, Range};
use crate::draw::{Depth, Look, Theme, text};
use crate::model::{Heat, HeatCell, heat::loose};
use crate::state::State;

/// Height of a row, of a line of text below or above, and of all that is above the rows.
const ROW: usize = 24;
const LINE: usize = 22;
const ABOVE: usize = 84;
/// Columns of the picture left of the cells, and right of them.
const LEFT: usize = 116;
const RIGHT: usize = 24;
/// All cells of a row take so much, if a cell is not narrower or wider than this.
const CELLS: usize = 860;
const CELL: (usize, usize) = (12, 64);
/// A cell as wide as this has its figure.
const WRITTEN: usize = 34;
/// Numbers of layers below the picture at most.
const MARKS: usize = 16;

/// The picture of what the heat map shows now.
///
/// # Errors
/// There is nothing to draw, and why.
pub fn picture(state: &State) -> Result<String, &'static str> {
    let heat = state.file.heat();
    let figures = Figures::new(state, state.views.overview.measure);
    let range = figures.range(heat).ok_or("there are no figures for a picture yet: m chooses others")?;
    Ok(Picture { state, heat, figures: &figures, range }.draw())
}

struct Picture<'a> {
    state: &'a State,
    heat: &'a Heat,
    figures: &'a Figures<'a>,
    range: Range,
}

impl Picture<'_> {
    fn draw(&self) -> String {
        let heat = self.heat;
        let is_matrix = |cell: &HeatCell| self.figures.is_matrix(cell);
        let columns: Vec<usize> = (0..heat.columns.len()).filter(|&c| is_matrix(&heat.columns[c].all)).collect();
        let others: Vec<_> = heat.rows[heat.layers..].iter().filter(|row| is_matrix(&row.all)).collect();
        let layers = heat.layers.max(1);
        let cell = (CELLS / layers).clamp(CELL.0, CELL.1);
        let gap = if heat.layers > 0 && !others.is_empty() { ROW / 3 } else { 0 };
        let numbers = if heat.layers > 0 { 2 * LINE } else { LINE };
        let width = LEFT + (cell * layers).max(420) + RIGHT;
        let height = ABOVE + ROW * (columns.len() + others.len()) + gap + numbers;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        self.head(&mut out);
        let mut y = ABOVE;
        for column in columns {
            put(&mut out, (LEFT - 8, y + 16), "end", "#222222", &heat.columns[column].label);
            for row in 0..heat.layers {
                if let Some(found) = heat.cell(row, column) {
                    self.cell(&mut out, (LEFT + row * cell, y), cell, found);
                }
            }
            y += ROW;
        }
        if heat.layers > 0 {
            // Below the layers, above what is in none.
            let step = heat.layers.div_ceil(MARKS);
            for row in (0..heat.layers).step_by(step) {
                let x = LEFT + row * cell + cell / 2;
                put(&mut out, (x, y + 15), "middle", "#555555", &heat.rows[row].label);
            }
            put(&mut out, (LEFT - 8, y + 15), "end", "#555555", "layer");
            y += LINE + gap;
        }
        for row in others {
            put(&mut out, (LEFT - 8, y + 16), "end", "#222222", loose(&row.name));
            self.cell(&mut out, (LEFT, y), cell * layers, &row.all);
            y += ROW;
        }
        out.push_str("</svg>\n");
        out
    }

    /// Title, and what the colours stand for.
    fn head(&self, out: &mut String) {
        let (file, measure) = (&self.state.file, self.state.views.overview.measure);
        let totals = &file.totals;
        let size = match file.original() {
            Some(_) => text::size(totals.stored_bytes),
            None => {
                let bits = 8.0 * file.file_bytes() as f64 / totals.elements.max(1) as f64;
                let (before, after) = (text::size(totals.original_bytes), text::size(file.file_bytes()));
                format!("{bits:.2} bits/weight, {before} → {after}")
            }
        };
        let title = format!("{}: {size}", file.name());
        out.push_str(&format!(
            "<text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#222222\">{}</text>\n",
            escaped(&title)
        ));
        let (low, high) = (self.figures.text(self.range.low), self.figures.text(self.range.high));
        put(out, (16, 54), "start", "#222222", measure.name());
        if self.range.is_flat() {
            let flat = format!("{low} to {high}: less than 5 % apart, so one colour");
            return put(out, (LEFT, 54), "start", "#555555", &flat);
        }
        const STEPS: usize = 32;
        put(out, (LEFT + 44, 54), "end", "#222222", &low);
        for step in 0..STEPS {
            let (ground, _) = self.colors(step as f64 / (STEPS - 1) as f64);
            out.push_str(&format!(
                "<rect x=\"{}\" y=\"44\" width=\"6\" height=\"12\" fill=\"{ground}\"/>\n",
                LEFT + 50 + 6 * step
            ));
        }
        let ends = [("most", self.range.most, &high), ("least", self.range.least, &low)];
        let ends = ends.map(|(word, place, value)| format!("{word}: {} {value}", self.heat.short(place))).join(", ");
        put(out, (LEFT + 56 + 6 * STEPS, 54), "start", "#222222", &high);
        put(out, (LEFT, 74), "start", "#555555", &ends);
    }

    fn cell(&self, out: &mut String, (x, y): (usize, usize), width: usize, cell: &HeatCell) {
        let Some(value) = self.figures.of(cell) else { return };
        let (ground, ink) = self.colors(self.range.part(value));
        let figure = self.figures.text(value);
        out.push_str(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{ground}\"><title>{}</title></rect>\n",
            x + 1,
            y + 1,
            width - 2,
            ROW - 2,
            escaped(&figure)
        ));
        if width >= WRITTEN {
            put(out, (x + width / 2, y + 16), "middle", &ink, &figure);
        }
    }

    /// The colours of a place on the scale, and of what is written on it: those of the screen, or of a dark one where that has none.
    fn colors(&self, part: f64) -> (String, String) {
        let theme = if self.state.look.theme == Theme::Plain { Theme::Dark } else { self.state.look.theme };
        let style = Look { theme, depth: Depth::True, ascii: false }.heat(part).unwrap_or_default();
        let hex = |color: Option<Color>| match color {
            Some(Color::Rgb(r, g, b)) => format!("#{r:02x}{g:02x}{b:02x}"),
            _ => "#888888".to_owned(),
        };
        (hex(style.bg), hex(style.fg))
    }
}

fn put(out: &mut String, (x, y): (usize, usize), anchor: &str, color: &str, text: &str) {
    let text = escaped(text);
    out.push_str(&format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>\n"));
}

/// A text that any file may have made up, for XML.
fn escaped(text: &str) -> String {
    safe(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
