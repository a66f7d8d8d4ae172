//! The one table of keys: what they do, where, and what help and footer say of them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::state::Tab;

/// What takes the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The view of all tensors.
    Layers,
    /// The view of one tensor.
    Layer,
    /// The view of timings.
    Timing,
    /// The view of two files.
    Compare,
    /// The view of the file's map.
    File,
    /// The view of plan, quality and rates.
    Rates,
    /// The list of keys.
    Help,
    /// The search box, which takes every key that writes.
    Search,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Move the selection, or scroll.
    Up,
    /// Likewise.
    Down,
    /// Half a page.
    HalfUp,
    /// Likewise.
    HalfDown,
    /// A page.
    PageUp,
    /// Likewise.
    PageDown,
    /// To the first row.
    Top,
    /// To the last row.
    Bottom,
    /// Columns to the left; fold.
    Left,
    /// Columns to the right; unfold.
    Right,
    /// Open what is selected.
    Enter,
    /// One step back: overlay, filter, view, program.
    Back,
    /// Leave at once.
    Quit,
    /// Another view.
    View(Tab),
    /// The next view.
    NextView,
    /// The view before.
    PreviousView,
    /// Open the search box.
    Search,
    /// The next tensor that the filter leaves, or the next difference.
    Next,
    /// The one before.
    Previous,
    /// Sort by the next column.
    Sort,
    /// Turn the order round.
    Reverse,
    /// Fold or unfold a module.
    Fold,
    /// Fold or unfold all.
    FoldAll,
    /// Tree or flat list.
    Tree,
    /// Compute entropies that the index has not.
    Entropies,
    /// Verify what is selected.
    Verify,
    /// Copy the name of what is selected.
    Copy,
    /// Read the file again.
    Reload,
    /// Other colours.
    Theme,
    /// The list of keys.
    Help,
    /// More bins, or threads.
    More,
    /// Fewer.
    Fewer,
    /// Logarithmic or linear axis.
    Axis,
    /// Only differences, or all.
    Differences,
    /// Pause or go on.
    Pause,
    /// Another device.
    Device,
    /// Time the layer, the selection or the file.
    Scope,
    /// Write a JSON file.
    Export,
    /// Draw everything anew.
    Redraw,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The keys.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// How help and footer write them.
    pub shown: &'static str,
    /// What they ask for.
    pub command: Command,
    /// Where; everywhere but in overlays if empty.
    pub contexts: &'static [Context],
    /// A sentence for the help.
    pub help: &'static str,
    /// A word for the footer; not shown there if empty.
    pub footer: &'static str,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

const fn c(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), NONE)
}

const fn ctrl(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), CTRL)
}

const fn k(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

const LISTS: &[Context] = &[Context::Layers, Context::Compare, Context::File, Context::Timing];
const ROWS: &[Context] = &[Context::Layers, Context::Layer, Context::Timing, Context::Compare];

/// All keys. Of two lines with a key, the first one whose context fits counts.
pub const BINDINGS: &[Binding] = &[
    b(&[k(KeyCode::Up), c('k')], "k ↑", Command::Up, &[], "one row up", ""),
    b(&[k(KeyCode::Down), c('j')], "j ↓", Command::Down, &[], "one row down", ""),
    b(&[c('u'), ctrl('u')], "u", Command::HalfUp, &[], "half a page up", ""),
    b(&[c('d'), ctrl('d')], "d", Command::HalfDown, &[], "half a page down", ""),
    b(&[k(KeyCode::PageUp), ctrl('b')], "PgUp", Command::PageUp, &[], "a page up", ""),
    b(&[k(KeyCode::PageDown), ctrl('f')], "PgDn", Command::PageDown, &[], "a page down", ""),
    b(&[c('g'), k(KeyCode::Home)], "g", Command::Top, &[], "to the first row", ""),
    b(&[c('G'), k(KeyCode::End)], "G", Command::Bottom, &[], "to the last row", ""),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::Left, &[], "fold the module, or columns to the left", ""),
    b(&[k(KeyCode::Right), c('l')], "l →", Command::Right, &[], "unfold the module, or columns to the right", ""),
    b(&[k(KeyCode::Enter)], "Enter", Command::Enter, LISTS, "look at the layer; fold or unfold a module", "open"),
    b(&[c('/')], "/", Command::Search, &[], "filter by text or regular expression", "filter"),
    b(&[c('n')], "n", Command::Next, ROWS, "the next tensor; in compare, the next difference", ""),
    b(&[c('N')], "N", Command::Previous, ROWS, "the one before", ""),
    b(&[c('s')], "s", Command::Sort, &[Context::Layers], "sort by the next column", "sort"),
    b(&[c('S')], "S", Command::Reverse, &[Context::Layers], "turn the order round", ""),
    b(&[c(' ')], "Space", Command::Fold, &[Context::Layers], "fold or unfold the module", "fold"),
    b(&[c('z')], "z", Command::FoldAll, &[Context::Layers], "fold or unfold all modules", ""),
    b(&[c('t')], "t", Command::Tree, &[Context::Layers], "tree of modules or flat list", "tree"),
    b(&[c('e')], "e", Command::Entropies, &[Context::Layers], "compute entropies that the index has not", ""),
    b(
        &[c('v')],
        "v",
        Command::Verify,
        &[Context::Layers, Context::Layer],
        "verify hashes and decoding of what is selected",
        "verify",
    ),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Layer], "more bins", "bins"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Layer], "fewer bins", ""),
    b(&[c('a')], "a", Command::Axis, &[Context::Layer], "logarithmic or linear axis of scales", "axis"),
    b(&[c(' ')], "Space", Command::Pause, &[Context::Timing], "pause or go on", "pause"),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Timing], "more threads", "threads"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Timing], "fewer threads", ""),
    b(&[c('D')], "D", Command::Device, &[Context::Timing], "the next device", "device"),
    b(&[c('m')], "m", Command::Scope, &[Context::Timing], "time the layer, its module or the whole file", "scope"),
    b(&[c('x')], "x", Command::Export, &[Context::Timing], "write the timings to a JSON file", "export"),
    b(&[c('o')], "o", Command::Differences, &[Context::Compare], "only differences, or all", "only differences"),
    b(&[c('y')], "y", Command::Copy, ROWS, "copy the tensor's name (also over ssh)", ""),
    b(&[c('r')], "r", Command::Reload, &[], "read the file again", ""),
    b(&[c('1')], "1", Command::View(Tab::Layers), &[], "all layers", ""),
    b(&[c('2')], "2", Command::View(Tab::Layer), &[], "one layer: scales, symbols, chunks, hashes", ""),
    b(&[c('3')], "3", Command::View(Tab::Timing), &[], "decode timings", ""),
    b(&[c('4')], "4", Command::View(Tab::Compare), &[], "two files side by side", ""),
    b(&[c('5')], "5", Command::View(Tab::File), &[], "map of the file", ""),
    b(&[c('6')], "6", Command::View(Tab::Rates), &[], "plan, quality, bits by role and layer", ""),
    b(&[k(KeyCode::Tab)], "Tab", Command::NextView, &[], "the next view", "view"),
    b(
        &[k(KeyCode::BackTab), (KeyCode::BackTab, SHIFT)],
        "Shift-Tab",
        Command::PreviousView,
        &[],
        "the view before",
        "",
    ),
    b(&[c('T')], "T", Command::Theme, &[], "other colours", ""),
    b(&[ctrl('l')], "Ctrl-L", Command::Redraw, &[], "draw everything anew", ""),
    b(&[c('?'), k(KeyCode::F(1))], "?", Command::Help, &[], "this list", "help"),
    b(&[c('q'), k(KeyCode::Esc)], "q Esc", Command::Back, &[], "back: overlay, filter, view; then quit", "back"),
    b(&[ctrl('c')], "Ctrl-C", Command::Quit, &[], "quit at once", ""),
    b(&[k(KeyCode::Up), c('k')], "", Command::Up, &[Context::Help], "", ""),
    b(&[k(KeyCode::Down), c('j')], "", Command::Down, &[Context::Help], "", ""),
    b(&[c('u'), k(KeyCode::PageUp)], "", Command::PageUp, &[Context::Help], "", ""),
    b(&[c('d'), k(KeyCode::PageDown), c(' ')], "", Command::PageDown, &[Context::Help], "", ""),
    b(&[c('g'), k(KeyCode::Home)], "", Command::Top, &[Context::Help], "", ""),
    b(&[c('G'), k(KeyCode::End)], "", Command::Bottom, &[Context::Help], "", ""),
    b(
        &[c('q'), c('?'), k(KeyCode::Esc), k(KeyCode::Enter), k(KeyCode::F(1))],
        "q",
        Command::Back,
        &[Context::Help],
        "",
        "close",
    ),
    b(&[ctrl('c')], "", Command::Quit, &[Context::Help, Context::Search], "", ""),
];

const fn b(
    keys: &'static [(KeyCode, KeyModifiers)],
    shown: &'static str,
    command: Command,
    contexts: &'static [Context],
    help: &'static str,
    footer: &'static str,
) -> Binding {
    Binding { keys, shown, command, contexts, help, footer }
}

impl Binding {
    /// Whether it counts in a context.
    pub fn counts(&self, context: Context) -> bool {
        if self.contexts.is_empty() {
            !matches!(context, Context::Help | Context::Search)
        } else {
            self.contexts.contains(&context)
        }
    }
}

/// What a key asks for in a context.
pub fn command(context: Context, key: KeyEvent) -> Option<Command> {
    // Terminals tell of Shift with letters or do not; the letter says it already.
    let modifiers = match key.code {
        KeyCode::Char(_) => key.modifiers - SHIFT,
        _ => key.modifiers,
    };
    let wanted = (key.code, modifiers);
    BINDINGS.iter().find(|b| b.counts(context) && b.keys.contains(&wanted)).map(|b| b.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXTS: [Context; 8] = [
        Context::Layers,
        Context::Layer,
        Context::Timing,
        Context::Compare,
        Context::File,
        Context::Rates,
        Context::Help,
        Context::Search,
    ];

    #[test]
    fn no_key_means_two_things() {
        for context in CONTEXTS {
            let mut seen = Vec::new();
            for binding in BINDINGS.iter().filter(|b| b.counts(context)) {
                for key in binding.keys {
                    assert!(!seen.contains(&key), "{key:?} in {context:?}");
                    seen.push(key);
                }
            }
        }
    }

    #[test]
    fn the_search_box_leaves_letters_to_itself() {
        for letter in ('a'..='z').chain('A'..='Z').chain("0123456789/?.+-".chars()) {
            assert_eq!(command(Context::Search, KeyEvent::new(KeyCode::Char(letter), NONE)), None);
        }
        assert_eq!(command(Context::Search, KeyEvent::new(KeyCode::Char('c'), CTRL)), Some(Command::Quit));
    }

    #[test]
    fn shifted_letters_are_found_however_they_are_told() {
        for modifiers in [NONE, SHIFT] {
            let key = KeyEvent::new(KeyCode::Char('G'), modifiers);
            assert_eq!(command(Context::Layers, key), Some(Command::Bottom));
        }
    }
}
