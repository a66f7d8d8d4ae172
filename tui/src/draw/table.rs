//! Tables and lists: columns are data, and all rows are drawn in one way.

use super::{Canvas, Cursor, Pen, Style, text};

/// Columns of the terminal between two columns of a table.
pub const GAP: usize = 2;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The text in the table's head.
    pub title: &'static str,
    /// Columns of the terminal.
    pub width: usize,
    /// Columns of the terminal before it.
    pub gap: usize,
    /// Whether its texts stand at the right.
    pub is_number: bool,
}

impl Column {
    /// A column of figures.
    pub const fn number(title: &'static str, width: usize) -> Self {
        Self { title, width, gap: GAP, is_number: true }
    }

    /// A column of words.
    pub const fn text(title: &'static str, width: usize) -> Self {
        Self { title, width, gap: GAP, is_number: false }
    }

    /// The rest of the line.
    pub const fn rest(title: &'static str) -> Self {
        Self::text(title, usize::MAX)
    }

    /// The column with another gap before it.
    pub const fn after(self, gap: usize) -> Self {
        Self { gap, ..self }
    }

    /// Columns of the terminal that it takes, its gap among them.
    pub const fn needs(&self) -> usize {
        self.width.saturating_add(self.gap)
    }
}

/// Columns of the terminal that are not given away yet.
#[derive(Clone, Copy, Debug)]
pub struct Room(pub usize);

impl Room {
    /// Takes so many if there are as many; whether there were.
    pub fn take(&mut self, columns: usize) -> bool {
        let fits = columns <= self.0;
        self.0 -= if fits { columns } else { 0 };
        fits
    }

    /// Takes as many as there are, but no more than these.
    pub fn most(&mut self, columns: usize) -> usize {
        let taken = self.0.min(columns);
        self.0 -= taken;
        taken
    }
}

/// Writes titles of columns.
pub fn head(pen: &mut Pen<'_>, columns: &[Column]) {
    let style = pen.look.title();
    for &Column { title, width, gap, is_number } in columns {
        match is_number {
            true => pen.skip(gap).number(title, width, style),
            false => pen.skip(gap).cell(text::start(title, width), width, style),
        };
    }
}

/// Writes texts into their columns; those that are too long are cut.
pub fn row<T: AsRef<str>>(pen: &mut Pen<'_>, cells: impl IntoIterator<Item = (Column, T, Style)>) {
    for (column, text, style) in cells {
        let rest = pen.skip(column.gap).left();
        match column.is_number {
            true => pen.number(text.as_ref(), column.width, style),
            false => pen.cell(text.as_ref(), if column.width == usize::MAX { rest } else { column.width }, style),
        };
    }
}

/// Draws the rows of a list that are seen, so many from row `first` of the part on: `draw` is given a row's place, and a pen behind the mark
/// of the selection.
pub fn list(
    canvas: &mut Canvas<'_>,
    (first, height): (usize, usize),
    (cursor, len): (Cursor, usize),
    mut draw: impl FnMut(Pen<'_>, usize),
) {
    for (i, at) in (cursor.offset..len).take(height).enumerate() {
        let mut pen = canvas.pen(first + i);
        pen.mark(at == cursor.selected);
        draw(pen, at);
    }
}
