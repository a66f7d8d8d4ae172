//! The list of keys, from the one table of them.

use ratatui::Frame;
use ratatui::layout::Rect;

use super::head::title;
use super::scroll::Scroll;
use super::text;
use super::theme::Look;
use super::widgets::{Pen, boxed, middle};
use crate::keymap::{Bound, Context, Keymap};
use crate::state::State;
use crate::views::Tab;

/// Columns of the keys.
const KEYS: usize = 9;
/// Columns before a sentence.
const BEFORE: usize = KEYS + 3;
/// Columns between two lists.
const GAP: usize = 2;

/// A line of the list.
enum Line<'a> {
    Title(String),
    Key(&'a Bound),
    /// A word, and what it means.
    Word(&'static str, &'static str),
    Empty,
}

/// The text for a key: arrows as words where only ASCII is drawn.
pub fn written(look: Look, keys: &str) -> String {
    if !look.ascii {
        return keys.to_owned();
    }
    keys.replace('↑', "Up").replace('↓', "Down").replace('←', "Left").replace('→', "Right")
}

/// The keys and the words of the view, and the keys that work everywhere.
fn lists(map: &Keymap, tab: Tab) -> [Vec<Line<'_>>; 2] {
    let here = Context::View(tab);
    let keys = |general: bool| {
        let wanted =
            move |b: &&Bound| b.counts(here) && b.general == general && !b.help.is_empty() && !b.shown.is_empty();
        map.bindings.iter().filter(wanted).map(Line::Key)
    };
    let titled = |title: String, general| std::iter::once(Line::Title(title)).chain(keys(general)).collect();
    let mut view: Vec<Line<'_>> = titled(format!("In the view {}", title(tab)), false);
    let words = tab.view().facts().words;
    if !words.is_empty() {
        // Some views have no keys of their own.
        if view.len() > 1 {
            view.push(Line::Empty);
        } else {
            view.clear();
        }
        view.push(Line::Title("Words".to_owned()));
        view.extend(words.iter().map(|(word, means)| Line::Word(word, means)));
    }
    // A title alone says nothing: some views have no keys of their own.
    [if view.len() > 1 { view } else { Vec::new() }, titled("Everywhere".to_owned(), true)]
}

/// The layout of the lists.
struct Place {
    /// The box.
    area: Rect,
    /// Columns of each list, if they are side by side.
    sides: Option<[usize; 2]>,
    /// Lines of the list, or of the longer one.
    lines: usize,
    /// Lines that are seen at once.
    seen: usize,
}

impl Place {
    fn new(area: Rect, lists: &[Vec<Line<'_>>; 2]) -> Self {
        let columns = |list: &Vec<Line<'_>>| {
            let long = |l: &Line<'_>| match l {
                Line::Key(b) => b.help.len(),
                Line::Word(_, means) => means.len(),
                Line::Title(_) | Line::Empty => 0,
            };
            BEFORE + list.iter().map(long).max().unwrap_or(0) + 1
        };
        let [left, right] = [columns(&lists[0]), columns(&lists[1])];
        let both = left + GAP + right + 2;
        let wide = usize::from(area.width) >= both && !lists[0].is_empty();
        let [above, below] = [lists[0].len(), lists[1].len()];
        let (columns, lines) =
            if wide { (both, above.max(below)) } else { (left.max(right) + 2, above + usize::from(above > 0) + below) };
        let columns = columns.min(usize::from(area.width)) as u16;
        let rows = (lines + 2).min(usize::from(area.height)) as u16;
        let (area, seen) = (middle(area, columns, rows), usize::from(rows.saturating_sub(2)));
        Self { area, sides: wide.then_some([left, right]), lines, seen }
    }
}

/// By how many lines the list can be scrolled at this size.
pub fn most_scroll(state: &State) -> usize {
    let place = Place::new(Rect::new(0, 0, state.size.0, state.size.1), &lists(&state.keys, state.tab));
    place.lines.saturating_sub(place.seen)
}

/// Draws it over the view, from line `scroll` on.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, scroll: Scroll) {
    let look = state.look;
    let lists = lists(&state.keys, state.tab);
    let Place { area: place, sides, lines, seen } = Place::new(area, &lists);
    if area.height < 4 || area.width < 12 {
        return;
    }
    let scroll = scroll.0.min(lines.saturating_sub(seen));
    let more = match (scroll > 0, scroll + seen < lines) {
        (false, false) => " q closes ".to_owned(),
        (true, true) => format!(" {} more above and below, q closes ", look.sign("↕", "^v")),
        (true, false) => format!(" {} more above, q closes ", look.sign("↑", "^")),
        (false, true) => format!(" {} more below, q closes ", look.sign("↓", "v")),
    };
    let inner = boxed(frame.buffer_mut(), look, place, " Keys ", &more);
    let buffer = frame.buffer_mut();
    let [view, general] = lists;
    if let Some([left, right]) = sides {
        let (left, right) = (left as u16, right as u16);
        let right = Rect { x: inner.x + left + GAP as u16, width: right, ..inner };
        let left = Rect { width: left, ..inner };
        for (part, list) in [(left, view), (right, general)] {
            list.iter().skip(scroll).take(seen).enumerate().for_each(|(i, l)| line(Pen::new(buffer, part, i), look, l));
        }
    } else {
        let between = (!view.is_empty()).then_some(&Line::Empty);
        let all = view.iter().chain(between).chain(&general);
        all.skip(scroll).take(seen).enumerate().for_each(|(i, l)| line(Pen::new(buffer, inner, i), look, l));
    }
}

fn line(mut pen: Pen<'_>, look: Look, line: &Line<'_>) {
    pen.skip(1);
    match line {
        Line::Title(title) => {
            pen.put(title, look.title());
        }
        Line::Key(binding) => {
            let keys = written(look, &binding.shown);
            pen.skip(KEYS.saturating_sub(text::width(&keys))).put(&keys, look.title()).skip(2);
            pen.cut(look, binding.help, look.text());
        }
        Line::Word(word, means) => {
            pen.skip(KEYS.saturating_sub(text::width(word))).put(word, look.bar()).skip(2);
            pen.cut(look, means, look.text());
        }
        Line::Empty => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_with_a_sentence_is_in_some_list() {
        let keys = Keymap::default();
        let same = |l: &Line<'_>, b: &Bound| matches!(l, Line::Key(k) if (&k.shown, k.help) == (&b.shown, b.help));
        for binding in keys.bindings.iter().filter(|b| !b.help.is_empty() && !b.shown.is_empty()) {
            let shown = Tab::ALL.iter().any(|&tab| lists(&keys, tab).iter().flatten().any(|l| same(l, binding)));
            assert!(shown, "{}: {}", binding.shown, binding.help);
        }
    }

    #[test]
    fn keys_and_sentences_fit() {
        for binding in &Keymap::default().bindings {
            for ascii in [false, true] {
                let keys = written(Look { ascii, ..Look::default() }, &binding.shown);
                assert!(text::width(&keys) <= KEYS && (!ascii || keys.is_ascii()), "{keys}");
            }
            assert!(binding.help.is_ascii() && binding.help.len() + BEFORE + 3 <= 80, "{}", binding.help);
        }
        for (word, means) in Tab::ALL.iter().flat_map(|tab| tab.view().facts().words) {
            assert!(means.is_ascii() && word.len() <= KEYS && means.len() + BEFORE + 3 <= 80, "{word}: {means}");
        }
    }
}
