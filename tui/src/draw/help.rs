//! The list of keys, from the one table of them.

use super::head::title;
use super::{Canvas, Look, Scroll, Style};
use crate::keymap::{Bound, Context, Keymap};
use crate::state::State;
use crate::views::Tab;

/// Columns of the keys.
const KEYS: usize = 9;
/// Columns before a sentence.
const BEFORE: usize = KEYS + 3;
/// Columns between two lists.
const GAP: usize = 2;

/// A line of a list: keys or a word, and what they mean. A title means nothing, an empty line has no text either.
#[derive(Default)]
struct Line<'a> {
    text: String,
    style: Style,
    means: &'a str,
}

/// The text for a key: arrows as words where only ASCII is drawn.
pub fn written(look: Look, keys: &str) -> String {
    if !look.ascii {
        return keys.to_owned();
    }
    keys.replace('↑', "Up").replace('↓', "Down").replace('←', "Left").replace('→', "Right")
}

/// The keys and the words of the view, and the keys that work everywhere.
fn lists(look: Look, map: &Keymap, tab: Tab) -> [Vec<Line<'_>>; 2] {
    let here = Context::View(tab);
    let titled = |title: &str| vec![Line { text: title.to_owned(), style: look.title(), means: "" }];
    let keys = |general: bool| {
        let wanted =
            move |b: &&Bound| b.counts(here) && b.general == general && !b.help.is_empty() && !b.shown.is_empty();
        let line = move |b: &'_ Bound| Line { text: written(look, &b.shown), style: look.title(), means: b.help };
        map.bindings.iter().filter(wanted).map(line)
    };
    let mut view = titled(&format!("In the view {}", title(tab)));
    view.extend(keys(false));
    // A title alone says nothing: some views have no keys of their own.
    if view.len() == 1 {
        view.clear();
    }
    let words = tab.facts().words;
    if !words.is_empty() {
        view.extend((!view.is_empty()).then(Line::default));
        view.extend(titled("Words"));
        view.extend(words.iter().map(|&(word, means)| Line { text: word.to_owned(), style: look.bar(), means }));
    }
    let mut general = titled("Everywhere");
    general.extend(keys(true));
    [view, general]
}

/// The lists, each with its columns: side by side in a box of so many columns, if there is room, else one below the other.
fn laid_out(state: &State, room: usize) -> Vec<(usize, Vec<Line<'_>>)> {
    let [view, general] = lists(state.look, &state.keys, state.tab);
    let [left, right] =
        [&view, &general].map(|list| BEFORE + list.iter().map(|l| l.means.len()).max().unwrap_or(0) + 1);
    if left + GAP + right + 2 <= room && !view.is_empty() {
        return vec![(left, view), (right, general)];
    }
    let between = (!view.is_empty()).then(Line::default);
    vec![(left.max(right), view.into_iter().chain(between).chain(general).collect())]
}

/// Lines of the longest list, and how many of them a screen of so many rows shows.
fn lines(lists: &[(usize, Vec<Line<'_>>)], rows: usize) -> (usize, usize) {
    let all = lists.iter().map(|(_, list)| list.len()).max().unwrap_or(0);
    (all, all.min(rows.saturating_sub(2)))
}

/// By how many lines the list can be scrolled at this size.
pub fn most_scroll(state: &State) -> usize {
    let (columns, rows) = state.size;
    let (all, seen) = lines(&laid_out(state, columns.into()), rows.into());
    all - seen
}

/// Draws it over the view, from line `scroll` on.
pub fn draw(canvas: &mut Canvas<'_>, state: &State, scroll: Scroll) {
    let look = state.look;
    if canvas.height() < 4 || canvas.width() < 12 {
        return;
    }
    let lists = laid_out(state, canvas.width());
    let (all, seen) = lines(&lists, canvas.height());
    let scroll = scroll.0.min(all - seen);
    let more = match (scroll > 0, scroll + seen < all) {
        (false, false) => " q closes ".to_owned(),
        (true, true) => format!(" {} more above and below, q closes ", look.sign("↕", "^v")),
        (true, false) => format!(" {} more above, q closes ", look.sign("↑", "^")),
        (false, true) => format!(" {} more below, q closes ", look.sign("↓", "v")),
    };
    let columns = lists.iter().map(|(columns, _)| columns + GAP).sum::<usize>() - GAP;
    let (mut inner, mut at) = (canvas.boxed(columns + 2, all + 2, " Keys ", &more), 0);
    for (columns, list) in &lists {
        let mut part = inner.part((at, 0), (*columns, seen));
        for (i, line) in list.iter().skip(scroll).enumerate() {
            let mut pen = part.pen(i);
            match line.means {
                "" => pen.skip(1).put(&line.text, line.style),
                means => pen.skip(1).number(&line.text, KEYS, line.style).skip(2).cut(means, look.text()),
            };
        }
        at += columns + GAP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::text;

    #[test]
    fn every_key_with_a_sentence_is_in_some_list() {
        let (look, keys) = (Look::default(), Keymap::default());
        for b in keys.bindings.iter().filter(|b| !b.help.is_empty() && !b.shown.is_empty()) {
            let same = |l: &Line<'_>| (l.text.as_str(), l.means) == (b.shown.as_str(), b.help);
            let shown = Tab::ALL.iter().any(|&tab| lists(look, &keys, tab).iter().flatten().any(same));
            assert!(shown, "{}: {}", b.shown, b.help);
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
        for (word, means) in Tab::ALL.iter().flat_map(|tab| tab.facts().words) {
            assert!(means.is_ascii() && word.len() <= KEYS && means.len() + BEFORE + 3 <= 80, "{word}: {means}");
        }
    }
}
