//! The two lines at the top: which views there are, and what the file is; and the screen while a large index is read.

use std::path::Path;

use wcodec::CALIBRATION_KEY;

use super::{Canvas, Modifier, Pen, Style, text};
use crate::estimate;
use crate::model::statements::{Statement, calibration_line};
use crate::state::State;
use crate::stats::{Fetch, Verdict};
use crate::views::Tab;

const PROGRAM: &str = "wcodec-tui";

/// Draws them.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    tabs(canvas.pen(0), state);
    file(canvas.pen(1), state);
}

/// Draws the file's name and size, and that its index is being read.
pub fn loading(canvas: &mut Canvas<'_>, path: &Path, bytes: Option<u64>) {
    let look = canvas.look;
    let mut pen = canvas.pen(1);
    let size = bytes.map_or_else(String::new, |n| format!("  {}", text::size(n)));
    let room = pen.skip(1).left().saturating_sub(text::width(&size));
    let name = text::file_name(look, path);
    pen.put(&text::cut_middle(look, &name, room.max(1)), look.text().add_modifier(Modifier::BOLD));
    pen.put(&size, look.text());
    canvas.pen(3).skip(1).put("reading the index", look.dim()).put(look.sign("…", "..."), look.dim());
}

/// The word on a tab.
pub fn title(tab: Tab) -> String {
    let name = tab.name();
    name[..1].to_uppercase() + &name[1..]
}

fn tabs(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    let full: usize = Tab::ALL.iter().map(|t| t.name().len() + 4).sum();
    let words = pen.left() >= full;
    for (key, tab) in (1..).zip(Tab::ALL) {
        let here = tab == state.tab;
        let label = if words || here { format!("{key} {}", title(tab)) } else { key.to_string() };
        let (left, right) = if here { (look.sign(" ", "["), look.sign(" ", "]")) } else { (" ", " ") };
        let style = if here { look.selected().add_modifier(Modifier::BOLD) } else { look.text() };
        pen.put(left, style).put(&label, style).put(right, style);
    }
    pen.at_end(PROGRAM, look.dim());
}

fn file(mut pen: Pen<'_>, state: &State) {
    let (look, file) = (state.look, &state.file);
    let name = text::file_name(look, &file.path);
    let changed = state.changed.then(|| look.sign("● changed on disk", "* changed on disk").to_owned());
    let mut shown: Vec<Fact> = file.cut().or(changed).map(|words| (words, look.warn(), None)).into_iter().collect();
    shown.extend(checked(state).map(|(words, style)| (words, style, None)));
    shown.extend(facts(state));
    let between = look.between();
    let needed = |shown: &[Fact]| shown.iter().map(|f| text::width(between) + text::width(&f.0)).sum::<usize>();
    // The name keeps a third of the line; facts are left out until the rest suffices.
    let room = pen.skip(1).left();
    let least = text::width(&name).min((room / 3).max(8));
    while let Some(last) = shown.iter().filter_map(|f| f.2).max()
        && least + needed(&shown) > room
    {
        shown.retain(|f| f.2 != Some(last));
    }
    let name = text::cut_middle(look, &name, room.saturating_sub(needed(&shown)).max(1));
    pen.put(&name, look.text().add_modifier(Modifier::BOLD));
    for (fact, style, _) in shown {
        pen.dot().put(&fact, style);
    }
}

/// A fact, its style, and what goes first where there is no room: the largest number. One without a number stays.
type Fact = (String, Style, Option<u8>);

/// Facts of a file, in this order.
fn facts(state: &State) -> Vec<Fact> {
    let (look, file, totals) = (state.look, &state.file, &state.file.totals);
    if file.tensors.is_empty() {
        return Vec::new();
    }
    let mut facts = vec![(text::plural(totals.tensors, "tensor"), look.text(), Some(4))];
    let bits = |bytes: u64| format!("{:.3} bits/weight", 8.0 * bytes as f64 / totals.elements.max(1) as f64);
    if file.original().is_some() {
        facts.push((text::size(totals.stored_bytes), look.text(), Some(0)));
        facts.push((bits(totals.stored_bytes), look.text(), Some(2)));
        if let Some(would) = state.encode.would.ready().filter(|w| !w.is_empty()) {
            let (int8, four) = estimate::totals(file, would);
            let words = format!("would be: int8 {}, 4 bits {}", text::size(int8), text::size(four));
            facts.push((words, look.good(), Some(1)));
        }
        return facts;
    }
    // A header is a part of what is compared.
    let stored = file.file_bytes();
    let ratio = if stored == 0 { 1.0 } else { totals.original_bytes as f64 / stored as f64 };
    let arrow = look.sign("→", "->");
    facts.push((format!("{} {arrow} {}", text::size(totals.original_bytes), text::size(stored)), look.text(), Some(1)));
    facts.push((format!("ratio {ratio:.3}"), look.bar().add_modifier(Modifier::BOLD), Some(0)));
    facts.push((bits(stored), look.text(), Some(2)));
    if let Some(calibration) = Statement::of(&file.metadata, CALIBRATION_KEY) {
        facts.push((format!("calibrated {}", calibration_line(&calibration)), look.text(), Some(3)));
    }
    facts
}

/// The number of verified tensors, and of damaged ones among them; nothing where nobody asked.
fn checked(state: &State) -> Option<(String, Style)> {
    let (mut sound, mut damaged, mut running) = (0, 0, 0);
    for (&i, known) in &state.known {
        match known.verdict {
            _ if state.is_damaged(i) => damaged += 1,
            Fetch::Ready(Verdict::Sound) => sound += 1,
            Fetch::Running(_) => running += 1,
            _ => {}
        }
    }
    let (look, all) = (state.look, state.file.tensors.len());
    let done = format!("{}/{}", text::count(sound + damaged), text::count(all as u64));
    match (damaged, running, sound) {
        (0, 0, 0) => None,
        (0, 0, _) => Some((format!("{} verified {done}", look.sign("✓", "+")), look.good())),
        (0, ..) => Some((format!("{} verifying {done}", look.sign("◌", "~")), look.warn())),
        _ => Some((format!("{} {} damaged of {done}", look.sign("✗", "!"), text::count(damaged)), look.bad())),
    }
}
