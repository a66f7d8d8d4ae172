//! A list with a selection that stays on the screen.

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
