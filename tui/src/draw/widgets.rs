//! Bars, and a pen that writes lines into a part of the screen and never out of it.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::border;
use ratatui::text::Line;
use ratatui::widgets::{Block, BorderType, Clear, Widget};

use super::text;
use super::theme::Look;

/// Borders of boxes where only ASCII is drawn.
const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// A bar of `part` of so many columns, in eighths of a column where the terminal can show them.
///
/// ```
/// use wcodec_tui::draw::{theme::Look, widgets::bar};
/// assert_eq!(bar(Look::default(), 0.5, 5), "██▌");
/// assert_eq!(bar(Look { ascii: true, ..Look::default() }, 0.5, 4), "##");
/// ```
pub fn bar(look: Look, part: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // NaN becomes 0.
    let part = part.clamp(0.0, 1.0);
    if look.ascii {
        return "#".repeat((part * columns as f64).round() as usize);
    }
    let eighths = (part * columns as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// A bar of `part` of so many columns, which ends in an arrow where it is cut: `part` is above 1.
pub fn long_bar(look: Look, part: f64, columns: usize) -> String {
    match part > 1.0001 && columns > 0 {
        true => bar(look, 1.0, columns - 1) + look.sign("▶", ">"),
        false => bar(look, part, columns),
    }
}

/// A bar of `part` of so many columns, and the dots that fill the rest of them.
pub fn part(look: Look, part: f64, columns: usize) -> (String, String) {
    let drawn = bar(look, part, columns);
    let rest = look.sign("░", ".").repeat(columns.saturating_sub(text::width(&drawn)));
    (drawn, rest)
}

/// A bar that goes from the middle to the left (`part` below 0) or to the right, 1 being half of the columns.
///
/// ```
/// use wcodec_tui::draw::{theme::Look, widgets::diverging};
/// assert_eq!(diverging(Look::default(), 0.5, 9), "    │██");
/// assert_eq!(diverging(Look::default(), -0.5, 9), "  ██│");
/// ```
pub fn diverging(look: Look, part: f64, columns: usize) -> String {
    let half = columns.saturating_sub(1) / 2;
    let middle = look.sign("│", "|");
    if part < 0.0 {
        // There are no blocks that fill a cell from the right, but for the half one.
        let halves = ((-part).clamp(0.0, 1.0) * half as f64 * 2.0).round() as usize;
        let (whole, rest) = if look.ascii { (halves.div_ceil(2), 0) } else { (halves / 2, halves % 2) };
        let blank = " ".repeat(half - whole - rest);
        return format!("{blank}{}{}{middle}", if rest > 0 { "▐" } else { "" }, look.sign("█", "#").repeat(whole));
    }
    format!("{}{middle}{}", " ".repeat(half), bar(look, part, half))
}

/// A part of the screen, and the colours and signs that are drawn there.
pub struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    /// Colours and signs.
    pub look: Look,
}

impl<'a> Canvas<'a> {
    /// The whole screen.
    pub fn whole(frame: &'a mut Frame<'_>, look: Look) -> Self {
        let area = frame.area();
        Self::new(frame.buffer_mut(), area, look)
    }

    /// An area of a buffer, as far as that has it.
    pub fn new(buffer: &'a mut Buffer, area: Rect, look: Look) -> Self {
        Self { area: area.intersection(buffer.area), buffer, look }
    }

    /// Columns.
    pub fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Rows.
    pub fn height(&self) -> usize {
        usize::from(self.area.height)
    }

    /// The part from a column and a row on, of so many columns and rows, as far as there are as many.
    pub fn part(&mut self, (column, row): (usize, usize), (columns, rows): (usize, usize)) -> Canvas<'_> {
        let clip = |n: usize, most: u16| u16::try_from(n).unwrap_or(u16::MAX).min(most);
        let Rect { x, y, width, height } = self.area;
        let (right, down) = (clip(column, width), clip(row, height));
        let (width, height) = (clip(columns, width - right), clip(rows, height - down));
        Canvas { buffer: self.buffer, area: Rect { x: x + right, y: y + down, width, height }, look: self.look }
    }

    /// Some of its rows, as far as there are as many.
    pub fn rows(&mut self, from: usize, count: usize) -> Canvas<'_> {
        self.part((0, from), (usize::MAX, count))
    }

    /// Draws an empty box over its middle, as large as there is room for, and returns the part inside of it.
    pub fn boxed(&mut self, columns: usize, rows: usize, title: &str, bottom: &str) -> Canvas<'_> {
        let (look, columns, rows) = (self.look, columns.min(self.width()), rows.min(self.height()));
        let corner = ((self.width() - columns) / 2, (self.height() - rows) / 2);
        let Canvas { buffer, area, .. } = self.part(corner, (columns, rows));
        let block =
            Block::bordered().border_style(look.dim()).title(title).title_style(look.title()).title_bottom(bottom);
        let block = if look.ascii { block.border_set(ASCII_BORDER) } else { block.border_type(BorderType::Rounded) };
        Clear.render(area, buffer);
        let inner = block.inner(area);
        block.render(area, buffer);
        Canvas { buffer, area: inner, look }
    }

    /// Draws lines from the top on, as many as there is room for.
    pub fn lines(&mut self, lines: &[Line<'_>]) {
        for (y, line) in (self.area.y..self.area.bottom()).zip(lines) {
            self.buffer.set_line(self.area.x, y, line, self.area.width);
        }
    }

    /// A pen at the beginning of a row. One that is not there takes nothing.
    pub fn pen(&mut self, row: usize) -> Pen<'_> {
        let Self { area, look, .. } = *self;
        let there = row < self.height();
        let (y, end) = if there { (area.y + row as u16, area.right()) } else { (area.y, area.x) };
        Pen { buffer: self.buffer, x: area.x, y, begin: area.x, end, over: None, look }
    }
}

/// Writes a line from left to right.
pub struct Pen<'a> {
    buffer: &'a mut Buffer,
    x: u16,
    y: u16,
    begin: u16,
    end: u16,
    /// The one style of a selected row, which is to be seen without colours.
    over: Option<Style>,
    /// Colours and signs.
    pub look: Look,
}

impl Pen<'_> {
    /// Columns that are left.
    pub fn left(&self) -> usize {
        usize::from(self.end.saturating_sub(self.x))
    }

    /// The column of the screen that comes next.
    pub fn column(&self) -> u16 {
        self.x
    }

    /// Gives the whole row a style.
    pub fn fill(&mut self, style: Style) -> &mut Self {
        let row = Rect { x: self.begin, y: self.y, width: self.end.saturating_sub(self.begin), height: 1 };
        self.buffer.set_style(row, style);
        self
    }

    /// Writes a text, as far as there is room.
    pub fn put(&mut self, text: &str, style: Style) -> &mut Self {
        if self.x < self.end {
            let left = self.left();
            let style = self.over.unwrap_or(style);
            self.x = self.buffer.set_stringn(self.x, self.y, text, left, style).0.min(self.end);
        }
        self
    }

    /// Begins a row of a list, with a mark where it is selected.
    pub fn mark(&mut self, selected: bool) -> &mut Self {
        let look = self.look;
        if selected {
            self.fill(look.selected());
            self.over = Some(look.selected());
        }
        self.put(if selected { look.sign("▌", ">") } else { " " }, look.text())
    }

    /// Writes a text from outside, as far as there is room.
    pub fn cut(&mut self, text: &str, style: Style) -> &mut Self {
        self.put(&text::fitted(self.look, text, self.left()), style)
    }

    /// Writes a tensor's name, shortened as far as there is need.
    pub fn short(&mut self, name: &str, style: Style) -> &mut Self {
        self.put(&text::short(self.look, name, self.left()), style)
    }

    /// Writes a dot between two facts.
    pub fn dot(&mut self) -> &mut Self {
        self.put(self.look.between(), self.look.dim())
    }

    /// Leaves columns out.
    pub fn skip(&mut self, columns: usize) -> &mut Self {
        self.x = self.x.saturating_add(columns.min(usize::from(u16::MAX)) as u16).min(self.end);
        self
    }

    /// Goes to a column of the row.
    pub fn to(&mut self, column: usize) -> &mut Self {
        self.x = self.begin;
        self.skip(column)
    }

    /// Writes a text, which may be from outside, at the left of a cell; one that is too long is cut.
    pub fn cell(&mut self, text: &str, columns: usize, style: Style) -> &mut Self {
        let text = text::fitted(self.look, text, columns);
        self.put(&text, style).skip(columns - text::width(&text))
    }

    /// Writes a number at the right of a cell. One that is too long may begin up to two columns before the cell, in the
    /// gap between columns.
    pub fn number(&mut self, text: &str, columns: usize, style: Style) -> &mut Self {
        let long = text::width(text);
        if long <= columns {
            return self.skip(columns - long).put(text, style);
        }
        let excess = (long - columns).min(2) as u16;
        self.x = self.x.saturating_sub(excess).max(self.begin);
        self.put(text::start(text, columns + usize::from(excess)), style)
    }

    /// Writes a text at the right end of the line if there is room for it and two columns before it, and ends the line
    /// there.
    pub fn at_end(&mut self, text: &str, style: Style) -> &mut Self {
        let columns = text::width(text);
        if columns > 0 && columns + 2 <= self.left() {
            let x = self.end - columns as u16;
            self.buffer.set_stringn(x, self.y, text, columns, style);
            self.end = x - 2;
        }
        self
    }
}
