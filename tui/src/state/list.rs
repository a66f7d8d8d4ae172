//! A list with a selection that stays on the screen.

use crate::keymap::Command;

/// Where the selection is, and what part of a list is shown.
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

    /// Does what a key asks for, if it is about moving in a list of `len` rows, of which `page` are shown; otherwise says no.
    ///
    /// ```
    /// use wcodec_tui::{keymap::Command, state::list::Cursor};
    /// let mut cursor = Cursor::default();
    /// assert!(cursor.moved(Command::PageDown, 50, 20) && cursor.moved(Command::HalfUp, 50, 20));
    /// assert_eq!(cursor.selected, 10);
    /// assert!(!cursor.moved(Command::Help, 50, 20));
    /// ```
    pub fn moved(&mut self, command: Command, len: usize, page: usize) -> bool {
        let page = page.max(1) as isize;
        let by = match command {
            Command::Up => -1,
            Command::Down => 1,
            Command::HalfUp => -(page / 2).max(1),
            Command::HalfDown => (page / 2).max(1),
            Command::PageUp => -page,
            Command::PageDown => page,
            Command::Top => isize::MIN,
            Command::Bottom => isize::MAX,
            _ => return false,
        };
        self.step(by, len);
        true
    }

    /// Keeps the selection within a list of `len` rows, and within the `height` of them that are shown.
    ///
    /// ```
    /// use wcodec_tui::state::list::Cursor;
    /// let mut cursor = Cursor { selected: 90, offset: 0 };
    /// cursor.fit(50, 10);
    /// assert_eq!((cursor.selected, cursor.offset), (49, 40));
    /// ```
    pub fn fit(&mut self, len: usize, height: usize) {
        self.selected = self.selected.min(len.saturating_sub(1));
        let height = height.max(1);
        self.offset = self.offset.min(len.saturating_sub(height)).min(self.selected);
        if self.selected >= self.offset + height {
            self.offset = self.selected + 1 - height;
        }
    }
}
