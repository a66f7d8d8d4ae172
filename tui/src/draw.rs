//! The screen: everything is read from the state, and only what is visible is drawn.

pub mod chart;
pub mod footer;
pub mod head;
pub mod help;
pub mod page;
pub mod scroll;
pub mod table;
pub mod text;
pub mod theme;
pub mod widgets;

pub use self::chart::Chart;
pub use self::page::{Fact, Page, digits, short_count};
pub use self::scroll::{Cursor, Moves, Scroll, Scrolled};
pub use self::table::{Column, Room};
pub use self::theme::{Depth, Look, Theme};
pub use self::widgets::{Canvas, Pen, bar, diverging, long_bar};
pub use ratatui::style::{Modifier, Style};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};

use crate::menu;
use crate::state::{Overlay, State};

/// Rows above the view: the tabs and the file's line.
pub const HEAD_ROWS: usize = 2;
/// Rows below it: notice or search box, and keys.
pub const FOOT_ROWS: usize = 2;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let (area, look) = (frame.area(), state.look);
    if area.is_empty() {
        return;
    }
    let rows = [Constraint::Max(HEAD_ROWS as u16), Constraint::Min(0), Constraint::Max(FOOT_ROWS as u16)];
    let [head, body, foot] = Layout::vertical(rows).areas(area);
    head::draw(&mut Canvas::new(frame.buffer_mut(), head, look), state);
    state.tab.view().draw(&mut Canvas::new(frame.buffer_mut(), body, look), state);
    if let Some(x) = footer::draw(&mut Canvas::new(frame.buffer_mut(), foot, look), state) {
        frame.set_cursor_position((x, foot.y));
    }
    let mut canvas = Canvas::whole(frame, look);
    match state.overlay {
        Overlay::Help(scroll) => help::draw(&mut canvas, state, scroll),
        Overlay::Menu(menu, at) => menu::draw(&mut canvas, state, menu, at),
        Overlay::Search { .. } | Overlay::None => {}
    }
}
