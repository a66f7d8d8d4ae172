//! Lists and texts that are longer than the screen.

use super::text::count;
use super::theme::Look;
use crate::keymap::Command;

/// Rows by which a command moves where `page` of them are shown; none of commands that are about something else.
fn rows(command: Command, page: usize) -> Option<isize> {
    let page = page.max(1) as isize;
    Some(match command {
        Command::Up => -1,
        Command::Down => 1,
        Command::HalfUp => -(page / 2).max(1),
        Command::HalfDown => (page / 2).max(1),
        Command::PageUp => -page,
        Command::PageDown => page,
        Command::Top => isize::MIN,
        Command::Bottom => isize::MAX,
        _ => return None,
    })
}

/// The selection in a list, and the part of the list that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The selected row; 0 where there is none.
    pub selected: usize,
    /// The first row that is shown.
    pub offset: usize,
}

impl Cursor {
    /// Moves the selection by so many rows, as far as there are some.
    pub fn step(&mut self, by: isize, len: usize) {
        self.selected = self.selected.saturating_add_signed(by).min(len.saturating_sub(1));
    }

    /// The next row of a list of `len` that is wanted, or the one before; none where there is none.
    pub fn next(&self, back: bool, len: usize, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let (mut before, mut behind) = (0..self.selected.min(len), self.selected + 1..len);
        if back { before.rfind(|&at| wanted(at)) } else { behind.find(|&at| wanted(at)) }
    }

    /// The place of the selection among so many rows, for a footer; empty where there are none.
    pub fn place(&self, len: usize) -> String {
        if len == 0 { String::new() } else { format!("{}/{}", count(self.selected as u64 + 1), count(len as u64)) }
    }
}

/// The selection moves, and what is shown follows it.
///
/// ```
/// use wcodec_tui::draw::{Cursor, Scrolled};
/// use wcodec_tui::keymap::Command;
/// let mut cursor = Cursor::default();
/// assert!(cursor.moved(Command::PageDown, 50, 20) && cursor.moved(Command::HalfUp, 50, 20));
/// assert_eq!(cursor.selected, 10);
/// assert!(!cursor.moved(Command::Help, 50, 20));
/// let mut cursor = Cursor { selected: 90, offset: 0 };
/// cursor.fit(50, 10);
/// assert_eq!((cursor.selected, cursor.offset), (49, 40));
/// ```
impl Scrolled for Cursor {
    fn moved(&mut self, command: Command, len: usize, page: usize) -> bool {
        let by = rows(command, page);
        by.into_iter().for_each(|by| self.step(by, len));
        by.is_some()
    }

    fn fit(&mut self, len: usize, height: usize) {
        self.selected = self.selected.min(len.saturating_sub(1));
        let height = height.max(1);
        self.offset = self.offset.min(len.saturating_sub(height)).min(self.selected);
        if self.selected >= self.offset + height {
            self.offset = self.selected + 1 - height;
        }
    }
}

/// Lines of a text that are scrolled out at the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scroll(pub usize);

impl Scrolled for Scroll {
    fn moved(&mut self, command: Command, len: usize, page: usize) -> bool {
        let by = rows(command, page);
        by.into_iter().for_each(|by| self.0 = self.0.saturating_add_signed(by));
        self.fit(len, page);
        by.is_some()
    }

    fn fit(&mut self, len: usize, height: usize) {
        self.0 = self.0.min(len.saturating_sub(height));
    }
}

impl Scroll {
    /// The lines that are seen, of how many, with arrows to where there are more; none where all are seen, or none.
    ///
    /// ```
    /// use wcodec_tui::draw::{scroll::Scroll, theme::Look};
    /// assert_eq!(Scroll(2).part(Look::default(), 45, 20).as_deref(), Some("↑↓ 3-22/45"));
    /// assert_eq!(Scroll(0).part(Look::default(), 20, 20), None);
    /// ```
    pub fn part(&self, look: Look, len: usize, height: usize) -> Option<String> {
        let from = self.0.min(len.checked_sub(height).filter(|&more| more > 0 && height > 0)?);
        let arrows = match (from > 0, from + height < len) {
            (true, true) => look.sign("↑↓", "^v"),
            (true, false) => look.sign("↑", "^"),
            _ => look.sign("↓", "v"),
        };
        Some(format!("{arrows} {}-{}/{}", count(from as u64 + 1), count((from + height) as u64), count(len as u64)))
    }
}

/// Something that is longer than the screen, in which keys move.
pub trait Scrolled {
    /// Does the work of a command that moves in `len` rows, of which `page` are shown; otherwise says no.
    fn moved(&mut self, command: Command, len: usize, page: usize) -> bool;

    /// Keeps what is selected, or the last row, within `len` rows and the `height` of them that are shown.
    fn fit(&mut self, len: usize, height: usize);
}

/// The list or text that moving keys move in, its length, and the rows of it that are seen at once; none if there is none.
pub type Moves<'a> = Option<(&'a mut dyn Scrolled, usize, usize)>;
