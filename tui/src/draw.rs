//! The screen: everything is read from the state, and only what is visible is drawn.

pub mod chart;
pub mod footer;
pub mod head;
pub mod help;
pub mod loading;
pub mod page;
pub mod scroll;
pub mod table;
pub mod text;
pub mod theme;
pub mod widgets;

pub use self::chart::Chart;
pub use self::page::{Fact, Page, digits, short_count};
pub use self::scroll::{Cursor, Moves, Scroll};
pub use self::table::{Column, Room};
pub use self::theme::{Depth, Look, Theme};
pub use self::widgets::{Pen, bar, boxed, diverging, long_bar, middle};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::symbols::border;

use crate::menu;
use crate::state::{Overlay, State};

/// Rows above the view: the tabs and the file's line.
pub const HEAD_ROWS: usize = 2;
/// Rows below it: notice or search box, and keys.
pub const FOOT_ROWS: usize = 2;

/// Borders of boxes where only ASCII is drawn.
pub const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let rows = [Constraint::Max(HEAD_ROWS as u16), Constraint::Min(0), Constraint::Max(FOOT_ROWS as u16)];
    let [head, body, foot] = Layout::vertical(rows).areas(area);
    head::draw(frame, head, state);
    state.tab.view().draw(frame.buffer_mut(), body, state);
    footer::draw(frame, foot, state);
    match state.overlay {
        Overlay::Help(scroll) => help::draw(frame, area, state, scroll),
        Overlay::Menu(menu, at) => menu::draw(frame.buffer_mut(), area, state, menu, at),
        Overlay::Search { .. } | Overlay::None => {}
    }
}
