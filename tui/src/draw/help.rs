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

/// The place of the box, and the lists in it with their columns: side by side where there is room, else one below the other.
fn laid_out(map: &Keymap, tab: Tab, area: Rect) -> (Rect, Vec<(usize, Vec<Line<'_>>)>) {
    let [view, general] = lists(map, tab);
    let [left, right] = [&view, &general].map(|list| {
        let long = |l: &Line<'_>| match l {
            Line::Key(b) => b.help.len(),
            Line::Word(_, means) => means.len(),
            Line::Title(_) | Line::Empty => 0,
        };
        BEFORE + list.iter().map(long).max().unwrap_or(0) + 1
    });
    let both = left + GAP + right;
    let (columns, lists) = match usize::from(area.width) >= both + 2 && !view.is_empty() {
        true => (both, vec![(left, view), (right, general)]),
        false => {
            let between = (!view.is_empty()).then_some(Line::Empty);
            let all = view.into_iter().chain(between).chain(general).collect();
            (left.max(right), vec![(left.max(right), all)])
        }
    };
    let fit = |n: usize, most: u16| (n + 2).min(usize::from(most)) as u16;
    (middle(area, fit(columns, area.width), fit(longest(&lists), area.height)), lists)
}

/// Lines of the longest list.
fn longest(lists: &[(usize, Vec<Line<'_>>)]) -> usize {
    lists.iter().map(|(_, list)| list.len()).max().unwrap_or(0)
}

/// By how many lines the list can be scrolled at this size.
pub fn most_scroll(state: &State) -> usize {
    let (place, lists) = laid_out(&state.keys, state.tab, Rect::new(0, 0, state.size.0, state.size.1));
    longest(&lists).saturating_sub(usize::from(place.height.saturating_sub(2)))
}

/// Draws it over the view, from line `scroll` on.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, scroll: Scroll) {
    let (look, buffer) = (state.look, frame.buffer_mut());
    if area.height < 4 || area.width < 12 {
        return;
    }
    let (place, lists) = laid_out(&state.keys, state.tab, area);
    let (lines, seen) = (longest(&lists), usize::from(place.height.saturating_sub(2)));
    let scroll = scroll.0.min(lines.saturating_sub(seen));
    let more = match (scroll > 0, scroll + seen < lines) {
        (false, false) => " q closes ".to_owned(),
        (true, true) => format!(" {} more above and below, q closes ", look.sign("↕", "^v")),
        (true, false) => format!(" {} more above, q closes ", look.sign("↑", "^")),
        (false, true) => format!(" {} more below, q closes ", look.sign("↓", "v")),
    };
    let mut part = boxed(buffer, look, place, " Keys ", &more);
    let end = part.right();
    for (columns, list) in lists {
        part.width = (columns as u16).min(end - part.x);
        for (i, l) in list.iter().skip(scroll).take(seen).enumerate() {
            line(Pen::new(buffer, part, i), look, l);
        }
        part.x = (part.x + part.width + GAP as u16).min(end);
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
