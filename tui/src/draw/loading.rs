//! The screen while a large index is read.

use std::path::Path;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::text;
use super::theme::Look;
use super::widgets::Pen;

/// Draws the file's name and size, and that its index is being read.
pub fn draw(frame: &mut Frame<'_>, path: &Path, bytes: Option<u64>, look: Look) {
    let area: Rect = frame.area();
    if area.is_empty() {
        return;
    }
    let buffer = frame.buffer_mut();
    let name = text::file_name(look, path);
    let mut pen = Pen::new(buffer, area, 1);
    pen.skip(1);
    let size = bytes.map_or_else(String::new, |n| format!("  {}", text::size(n)));
    let room = pen.left().saturating_sub(text::width(&size));
    pen.put(&text::cut_middle(look, &name, room.max(1)), look.text().add_modifier(Modifier::BOLD));
    pen.put(&size, look.text());
    Pen::new(buffer, area, 3).skip(1).put("reading the index", look.dim()).put(look.sign("…", "..."), look.dim());
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn it_fits_every_size() {
        for (columns, rows) in [(1, 1), (5, 2), (20, 5), (80, 24)] {
            for ascii in [false, true] {
                let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
                let look = Look { ascii, ..Look::default() };
                terminal.draw(|f| draw(f, Path::new("a/größe.wcodec"), Some(1 << 30), look)).unwrap();
                let shown = terminal.backend().to_string();
                assert_eq!(shown.contains("reading the index"), columns >= 20, "{shown}");
                assert!(!ascii || shown.is_ascii(), "{shown}");
            }
        }
    }
}
