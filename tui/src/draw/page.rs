//! Lines that are written one below the other: headings, facts, sentences.

use ratatui::text::{Line, Span};

use super::{Column, Look, Style, text};

/// Columns of the names of facts.
const LABEL: usize = 12;
/// From so many columns on, facts stand in two columns.
const TWO: usize = 76;

/// A name and what it is.
pub struct Fact {
    /// The name.
    pub label: &'static str,
    /// Its text.
    pub value: String,
    /// Its style.
    pub style: Style,
}

impl Fact {
    /// A fact in the style of plain text.
    pub fn new(label: &'static str, value: impl Into<String>) -> Self {
        Self { label, value: value.into(), style: Style::new() }
    }
}

/// Lines for a part of the screen of so many columns. The part may have fewer rows: it is scrolled.
pub struct Page {
    /// The lines so far.
    pub lines: Vec<Line<'static>>,
    /// Columns.
    pub width: usize,
    /// Colours and signs.
    pub look: Look,
}

impl Page {
    /// An empty one.
    pub fn new(look: Look, width: usize) -> Self {
        Self { lines: Vec::new(), width, look }
    }

    /// Adds a line as it is.
    pub fn line(&mut self, spans: Vec<Span<'static>>) {
        self.lines.push(Line::from(spans));
    }

    /// Adds empty lines.
    pub fn blank(&mut self, count: usize) {
        self.lines.extend(std::iter::repeat_n(Line::default(), count));
    }

    /// A heading: title, a rule, and a note at the right end where there is room for it.
    pub fn heading(&mut self, title: &str, note: &str, style: Style) {
        if !self.lines.is_empty() {
            self.blank(1);
        }
        let look = self.look;
        let columns = text::width(title);
        let note = match text::cut(look, note, self.width.saturating_sub(columns + 4)) {
            note if note.is_empty() => String::new(),
            note => format!(" {note}"),
        };
        let used = columns + 1 + text::width(&note);
        let rule = format!(" {}", look.sign("─", "-").repeat(self.width.saturating_sub(used)));
        let rule = Span::styled(rule, look.dim());
        self.line(vec![Span::styled(title.to_owned(), look.title()), rule, Span::styled(note, style)]);
    }

    /// Adds a row of a table; texts that are too long are cut.
    pub fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = (Column, T, Style)>) {
        let mut spans = Vec::new();
        for (column, text, style) in cells {
            let text = text::fitted(self.look, text.as_ref(), column.width);
            let blank = " ".repeat(column.width - text::width(&text));
            let (before, behind) = if column.is_number { (&*blank, "") } else { ("", &*blank) };
            let before = format!("{}{before}", " ".repeat(column.gap));
            spans.extend([Span::raw(before), Span::styled(text, style), Span::raw(behind.to_owned())]);
        }
        self.line(spans);
    }

    /// Columns that what a fact says can take.
    pub fn fact_room(&self) -> usize {
        let columns = if self.width >= TWO { 2 } else { 1 };
        (self.width / columns).saturating_sub(LABEL + 1)
    }

    /// Facts, in two columns where there is room, in the order of reading down.
    pub fn facts(&mut self, facts: &[Fact]) {
        let columns = if self.width >= TWO { 2 } else { 1 };
        let rows = facts.len().div_ceil(columns);
        let room = self.width / columns;
        for row in 0..rows {
            let mut spans = Vec::new();
            for fact in facts.iter().skip(row).step_by(rows.max(1)) {
                let value = text::fitted(self.look, &fact.value, self.fact_room());
                let gap = room.saturating_sub(LABEL + text::width(&value));
                spans.push(Span::styled(format!("{:LABEL$}", fact.label), self.look.dim()));
                spans.push(Span::styled(value, fact.style));
                spans.push(Span::raw(" ".repeat(gap)));
            }
            spans.pop();
            self.line(spans);
        }
    }

    /// Names and figures side by side, on as many lines as they need.
    pub fn items(&mut self, items: &[(&str, String)]) {
        let (look, width) = (self.look, self.width);
        // A hostile file's numbers may have hundreds of digits.
        let value = |value: &str| Span::raw(text::fitted(look, value, width.max(8)));
        let pair = |(label, of): &(&str, String)| vec![Span::styled(format!("{label} "), look.dim()), value(of)];
        self.flow(items.iter().map(pair), 3);
    }

    /// A sentence, broken into lines between words. It may be from outside, as all texts of facts and rows may.
    pub fn sentence(&mut self, words: &str, style: Style) {
        let clean = text::clean(self.look, words);
        self.flow(clean.split_whitespace().map(|word| vec![Span::styled(word.to_owned(), style)]), 1);
    }

    /// Texts side by side, so many columns apart, on as many lines as they need.
    fn flow(&mut self, texts: impl Iterator<Item = Vec<Span<'static>>>, gap: usize) {
        let mut line = Line::default();
        for text in texts.map(Line::from) {
            if line.width() > 0 && line.width() + gap + text.width() > self.width {
                self.lines.push(std::mem::take(&mut line));
            }
            if line.width() > 0 {
                line.push_span(" ".repeat(gap));
            }
            line.extend(text);
        }
        if line.width() > 0 {
            self.lines.push(line);
        }
    }
}

/// A figure of any size with four digits that count: `0.001234`, `12.34`, `1.234e-5`.
///
/// ```
/// use wcodec_tui::draw::page::digits;
/// assert_eq!([digits(0.0), digits(0.0012344), digits(1.0), digits(1.2344e-5)], ["0", "0.001234", "1.000", "1.234e-5"]);
/// assert_eq!([digits(12345.6), digits(-0.5), digits(f64::INFINITY)], ["1.235e4", "-0.5000", "inf"]);
/// ```
pub fn digits(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() || !(1e-3..1e4).contains(&magnitude) {
        return if value.is_finite() { format!("{value:.3e}") } else { value.to_string() };
    }
    let before = magnitude.log10().floor() as i32;
    format!("{value:.*}", (3 - before).max(0) as usize)
}

/// A count in few columns: `99,999`, `1.2M`.
///
/// ```
/// use wcodec_tui::draw::page::short_count;
/// assert_eq!([short_count(99_999), short_count(100_000), short_count(12_345_678)], ["99,999", "100k", "12.3M"]);
/// ```
pub fn short_count(n: u64) -> String {
    if n < 100_000 {
        return text::count(n);
    }
    let (mut value, mut unit) = (n as f64 / 1e3, 0);
    while value >= 999.5 && unit < 3 {
        value /= 1e3;
        unit += 1;
    }
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$}{}", ["k", "M", "G", "T"][unit])
}
