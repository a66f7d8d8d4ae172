//! A terminal that says how large it is, or is taken for as large as terminals used to be.

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};

/// Columns and rows of a terminal that does not know how many it has: a new one of a container, or a serial line, says 0.
pub const USUAL: (u16, u16) = (80, 24);

/// The size that a terminal says it has, without zeros.
///
/// ```
/// use wcodec_tui::terminal::usual;
/// assert_eq!((usual(0, 0), usual(0, 7), usual(132, 1)), ((80, 24), (80, 7), (132, 1)));
/// ```
pub fn usual(columns: u16, rows: u16) -> (u16, u16) {
    let or = |n, other| if n == 0 { other } else { n };
    (or(columns, USUAL.0), or(rows, USUAL.1))
}

fn sized(size: Size) -> Size {
    usual(size.width, size.height).into()
}

/// A backend whose terminal has a size.
#[derive(Debug)]
pub struct Sized<B>(pub B);

impl<B: Backend> Backend for Sized<B> {
    type Error = B::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> Result<(), B::Error> {
        self.0.draw(content)
    }

    fn append_lines(&mut self, n: u16) -> Result<(), B::Error> {
        self.0.append_lines(n)
    }

    fn hide_cursor(&mut self) -> Result<(), B::Error> {
        self.0.hide_cursor()
    }

    fn show_cursor(&mut self) -> Result<(), B::Error> {
        self.0.show_cursor()
    }

    fn get_cursor_position(&mut self) -> Result<Position, B::Error> {
        self.0.get_cursor_position()
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> Result<(), B::Error> {
        self.0.set_cursor_position(position)
    }

    fn clear(&mut self) -> Result<(), B::Error> {
        self.0.clear()
    }

    fn clear_region(&mut self, clear_type: ClearType) -> Result<(), B::Error> {
        self.0.clear_region(clear_type)
    }

    fn size(&self) -> Result<Size, B::Error> {
        self.0.size().map(sized)
    }

    fn window_size(&mut self) -> Result<WindowSize, B::Error> {
        self.0.window_size().map(|window| WindowSize { columns_rows: sized(window.columns_rows), ..window })
    }

    fn flush(&mut self) -> Result<(), B::Error> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn a_terminal_without_a_size_is_drawn_to() {
        for (size, expected) in [((0, 0), USUAL), ((0, 5), (80, 5)), ((9, 0), (9, 24)), ((1, 1), (1, 1))] {
            let terminal = Terminal::new(Sized(TestBackend::new(size.0, size.1))).unwrap();
            let found = terminal.size().unwrap();
            assert_eq!((found.width, found.height), expected);
        }
    }
}
