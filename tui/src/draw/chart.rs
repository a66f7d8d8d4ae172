//! Charts of columns, with an axis.

use ratatui::text::Span;

use super::page::{Page, short_count};
use crate::draw::{Look, text};

/// Columns left of a chart: the figures of its upright axis, and the axis.
pub const GUTTER: usize = 9;

/// A chart.
pub struct Chart<'a> {
    /// Heights of the bars, from 0 to 1. What is above 0 is seen.
    pub bars: &'a [f64],
    /// Columns of each bar.
    pub columns: usize,
    /// Those of them that stay empty, at its end.
    pub gap: usize,
    /// Rows of the tallest.
    pub height: usize,
    /// The figure of the tallest bar.
    pub top: String,
    /// The figure of the lowest.
    pub bottom: String,
    /// Places on the axis to mark, from 0 to 1.
    pub marks: &'a [f64],
    /// Texts below the axis and their places, from 0 to 1; those come first that matter more.
    pub labels: &'a [(f64, String)],
}

/// Columns that a chart's bars can take on a page.
pub fn room(page: &Page) -> usize {
    page.width.saturating_sub(GUTTER).max(1)
}

/// Signs for eighths of a row.
pub const LEVELS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// A cell of a bar of which so many eighths are full.
fn cell(look: Look, eighths: usize) -> &'static str {
    match (look.ascii, eighths) {
        (_, 0) => " ",
        (false, n) => LEVELS[n.min(8) - 1],
        (true, 1..=2) => ".",
        (true, 3..=5) => ":",
        (true, _) => "#",
    }
}

/// Draws counts: bars that take as many columns as there are for each, the largest count at the top.
pub fn counted(page: &mut Page, counts: &[u64], height: usize, marks: &[f64], labels: &[(f64, String)]) {
    let most = counts.iter().copied().max().unwrap_or(0);
    let bars: Vec<f64> = counts.iter().map(|&n| n as f64 / most.max(1) as f64).collect();
    let columns = (room(page) / bars.len().max(1)).max(1);
    let (top, bottom) = (short_count(most), "0".to_owned());
    Chart { bars: &bars, columns, gap: 0, height, top, bottom, marks, labels }.draw(page);
}

impl Chart<'_> {
    /// Rows that a chart of this height takes.
    pub fn rows(height: usize) -> usize {
        height + 2
    }

    /// Draws it.
    pub fn draw(&self, page: &mut Page) {
        let look = page.look;
        let height = self.height.max(1);
        let levels: Vec<usize> = self.bars.iter().map(|&v| level(v, height)).collect();
        for row in (0..height).rev() {
            let label = match row {
                _ if row + 1 == height => &self.top,
                0 => &self.bottom,
                _ => "",
            };
            let tick = if label.is_empty() { look.sign("│", "|") } else { look.sign("┤", "+") };
            let label = text::start(label, GUTTER - 2);
            let filled = self.columns.saturating_sub(self.gap).max(1);
            let (gap, mut bars) = (" ".repeat(self.columns.saturating_sub(filled)), String::new());
            for level in &levels {
                bars.push_str(&cell(look, level.saturating_sub(row * 8).min(8)).repeat(filled));
                bars.push_str(&gap);
            }
            page.line(vec![
                Span::styled(format!("{}{label} {tick}", " ".repeat(GUTTER - 2 - text::width(label))), look.dim()),
                Span::styled(bars, look.bar()),
            ]);
        }
        self.axis(page);
    }

    fn axis(&self, page: &mut Page) {
        let look = page.look;
        let long = self.bars.len() * self.columns;
        let mut marked = vec![false; long];
        for mark in self.marks {
            if let Some(m) = marked.get_mut(place(*mark, long)) {
                *m = true;
            }
        }
        let (line, mark) = (look.sign("─", "-"), look.sign("┴", "^"));
        let axis: String = marked.iter().map(|&m| if m { mark } else { line }).collect();
        let corner = look.sign("└", "+");
        page.line(vec![Span::styled(format!("{}{corner}{axis}", " ".repeat(GUTTER - 1)), look.dim())]);

        // Labels may go on to the page's end.
        let room = page.width.saturating_sub(GUTTER);
        let mut taken: Vec<(usize, usize, &str)> = Vec::new();
        for (at, label) in self.labels {
            let columns = text::width(label);
            if columns > room {
                continue;
            }
            let begin = match self.gap {
                _ if *at >= 1.0 => long.saturating_sub(columns),
                0 => place(*at, long).saturating_sub(columns / 2),
                // Below the middle of a bar, not of the bar and its gap; parts are sums, which may be a trace too small.
                gap => (at * long as f64 - (gap + columns) as f64 / 2.0 + 1e-6).max(0.0) as usize,
            };
            let begin = if *at <= 0.0 { 0 } else { begin.min(room - columns) };
            if taken.iter().all(|&(b, e, _)| begin > e || begin + columns < b) {
                taken.push((begin, begin + columns, label));
            }
        }
        taken.sort_unstable();
        let mut labels = " ".repeat(GUTTER);
        let mut end = 0;
        for (begin, e, label) in taken {
            labels.push_str(&" ".repeat(begin.saturating_sub(end)));
            labels.push_str(label);
            end = e;
        }
        page.line(vec![Span::styled(labels, look.dim())]);
    }
}

/// The column at a part of so many.
fn place(part: f64, columns: usize) -> usize {
    ((part.clamp(0.0, 1.0) * columns as f64) as usize).min(columns.saturating_sub(1))
}

/// Eighths of rows of a bar.
fn level(value: f64, height: usize) -> usize {
    let most = height * 8;
    let level = (value.clamp(0.0, 1.0) * most as f64).round() as usize;
    if value > 0.0 { level.clamp(1, most) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_seen_and_no_taller_than_the_chart() {
        assert_eq!(level(0.0, 4), 0);
        assert_eq!(level(1e-9, 4), 1);
        assert_eq!(level(1.0, 4), 32);
        assert_eq!(level(9.0, 4), 32);
        assert_eq!(level(f64::NAN, 4), 0);
    }
}
