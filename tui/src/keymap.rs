//! The one table of keys: what they do, where, and what help and footer say of them.

pub mod file;
pub mod names;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::state::Tab;

/// What takes the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The heat map.
    Overview,
    /// The view of all tensors.
    List,
    /// The view of one tensor.
    Tensor,
    /// The view of plan, quality and rates.
    Bits,
    /// The view of timings.
    Speed,
    /// The view of two files.
    Compare,
    /// The view of the file's map.
    File,
    /// The list of keys.
    Help,
    /// The search box, which takes every key that writes.
    Search,
    /// The list of columns to sort by.
    Columns,
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
    /// Sort by the next column; in compare and timing, by something else.
    Sort,
    /// Choose the column to sort by.
    Choose,
    /// Colour by the next measure.
    Measure,
    /// Colour by the measure before.
    MeasureBack,
    /// Bars of ratios, or of shares of the stored bytes.
    Bars,
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
    /// Verify the whole file.
    VerifyAll,
    /// Encode a checkpoint to a file next to it.
    Encode,
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
    /// Write the heat map as a picture.
    Picture,
    /// Draw everything anew.
    Redraw,
}

/// A line of the table.
#[derive(Debug)]
struct Binding {
    /// The keys.
    keys: &'static [(KeyCode, KeyModifiers)],
    /// How help and footer write them.
    shown: &'static str,
    /// What they ask for.
    command: Command,
    /// Where; everywhere but in overlays if empty.
    contexts: &'static [Context],
    /// A sentence for the help.
    help: &'static str,
    /// A word for the footer; not shown there if empty.
    footer: &'static str,
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

const VIEWS: &[Context] = &[
    Context::Overview,
    Context::List,
    Context::Tensor,
    Context::Bits,
    Context::Speed,
    Context::Compare,
    Context::File,
];
const LISTS: &[Context] = &[Context::Overview, Context::List, Context::Compare, Context::File, Context::Speed];
const NAMED: &[Context] = &[Context::Overview, Context::List, Context::Tensor, Context::Speed, Context::Compare];
/// Views in which something moves to the left and to the right; in the others these keys change the view.
const GRIDS: &[Context] = &[Context::Overview, Context::List];
const STILL: &[Context] = &[Context::Tensor, Context::Bits, Context::Speed, Context::Compare, Context::File];
const ROWS: &[Context] = &[Context::List, Context::Tensor, Context::Speed, Context::Compare];

const OVERLAYS: &[Context] = &[Context::Help, Context::Columns];

/// The keys that there are unless a [file](file) says otherwise. Of two lines with a key, the first one whose context fits counts.
const BINDINGS: &[Binding] = &[
    b(&[k(KeyCode::Up), c('k')], "k ↑", Command::Up, &[], "one row up", ""),
    b(&[k(KeyCode::Down), c('j')], "j ↓", Command::Down, &[], "one row down", ""),
    b(&[c('u'), ctrl('u')], "u", Command::HalfUp, &[], "half a page up", ""),
    b(&[c('d'), ctrl('d')], "d", Command::HalfDown, &[], "half a page down", ""),
    b(&[k(KeyCode::PageUp), ctrl('b')], "PgUp", Command::PageUp, &[], "a page up", ""),
    b(&[k(KeyCode::PageDown), ctrl('f')], "PgDn", Command::PageDown, &[], "a page down", ""),
    b(&[c('g'), k(KeyCode::Home)], "g", Command::Top, &[], "to the first row", ""),
    b(&[c('G'), k(KeyCode::End)], "G", Command::Bottom, &[], "to the last row", ""),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::Left, GRIDS, "a cell or column to the left; fold the module", ""),
    b(
        &[k(KeyCode::Right), c('l')],
        "l →",
        Command::Right,
        GRIDS,
        "a cell or column to the right; unfold the module",
        "",
    ),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::PreviousView, STILL, "the view before", ""),
    b(&[k(KeyCode::Right), c('l')], "l →", Command::NextView, STILL, "the next view", ""),
    b(&[k(KeyCode::Enter)], "Enter", Command::Enter, LISTS, "look at the tensor; fold or unfold a module", "open"),
    b(&[c('/')], "/", Command::Search, &[], "filter by text or regular expression", "filter"),
    b(&[c('n')], "n", Command::Next, ROWS, "the next tensor; in compare, the next difference", ""),
    b(&[c('N')], "N", Command::Previous, ROWS, "the one before", ""),
    b(&[c('m')], "m", Command::Measure, &[Context::Overview], "colour by the next measure", "measure"),
    b(&[c('M')], "M", Command::MeasureBack, &[Context::Overview], "colour by the measure before", ""),
    b(&[c('s')], "s", Command::Sort, &[Context::List], "sort by the next column", "sort"),
    b(&[c('c')], "c", Command::Choose, &[Context::List], "choose the column to sort by", "column"),
    b(&[c('b')], "b", Command::Bars, &[Context::List], "bars of ratios, or of shares of the stored bytes", ""),
    b(&[c('s')], "s", Command::Sort, &[Context::Compare], "sort by size of the difference, or by name", "sort"),
    b(&[c('s')], "s", Command::Sort, &[Context::Speed], "sort by time, by GB/s, by size or by name", "sort"),
    b(&[c('S')], "S", Command::Reverse, &[Context::List], "turn the order round", ""),
    b(&[c(' ')], "Space", Command::Fold, &[Context::List], "fold or unfold the module", "fold"),
    b(&[c('z')], "z", Command::FoldAll, &[Context::List], "fold or unfold all modules", ""),
    b(&[c('t')], "t", Command::Tree, &[Context::List], "tree of modules or flat list", "tree"),
    b(&[c('e')], "e", Command::Entropies, &[Context::List], "compute entropies that the index has not", ""),
    b(
        &[c('v')],
        "v",
        Command::Verify,
        &[Context::Overview, Context::List, Context::Tensor],
        "verify hashes and decoding of what is selected",
        "verify",
    ),
    b(&[c('V')], "V", Command::VerifyAll, &[], "verify the whole file", ""),
    b(&[c('E')], "E", Command::Encode, &[], "encode this checkpoint to a .wcodec file next to it", ""),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Tensor], "more bins", "bins"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Tensor], "fewer bins", ""),
    b(&[c('a')], "a", Command::Axis, &[Context::Tensor], "logarithmic or linear axis of scales", "axis"),
    b(&[c(' ')], "Space", Command::Pause, &[Context::Speed], "pause or go on", "pause"),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Speed], "more threads", "threads"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Speed], "fewer threads", ""),
    b(&[c('D')], "D", Command::Device, &[Context::Speed], "the next device", "device"),
    b(&[c('m')], "m", Command::Scope, &[Context::Speed], "time the whole file, the layer or its module", "scope"),
    b(&[c('x')], "x", Command::Export, &[Context::Speed], "write the timings to a JSON file", "export"),
    b(
        &[c('o')],
        "o",
        Command::Differences,
        &[Context::Compare],
        "only tensors with other values, or all",
        "only differences",
    ),
    b(&[c('y')], "y", Command::Copy, NAMED, "copy the tensor's name (also over ssh)", ""),
    b(&[c('r')], "r", Command::Reload, &[], "read the file again", ""),
    b(&[c('P')], "P", Command::Picture, &[], "write the heat map as a picture (SVG)", "picture"),
    b(&[c('1'), c('0')], "1", Command::View(Tab::Overview), &[], "Overview: layers by role, and where the bits go", ""),
    b(&[c('2')], "2", Command::View(Tab::List), &[], "List: all tensors", ""),
    b(&[c('3')], "3", Command::View(Tab::Tensor), &[], "Tensor: one of them, with histograms and hashes", ""),
    b(&[c('4')], "4", Command::View(Tab::Bits), &[], "Bits: plan, quality, bits by role and layer", ""),
    b(&[c('5')], "5", Command::View(Tab::Speed), &[], "Speed: how fast it decodes here", ""),
    b(&[c('6')], "6", Command::View(Tab::Compare), &[], "Compare: two files side by side", ""),
    b(&[c('7')], "7", Command::View(Tab::File), &[], "File: its map", ""),
    b(
        &[k(KeyCode::Tab), c(']'), (KeyCode::Right, SHIFT)],
        "Tab ]",
        Command::NextView,
        &[],
        "the next view; Shift with an arrow does it, too",
        "view",
    ),
    b(
        &[k(KeyCode::BackTab), (KeyCode::BackTab, SHIFT), c('['), (KeyCode::Left, SHIFT)],
        "[",
        Command::PreviousView,
        &[],
        "the view before; so does Shift-Tab",
        "",
    ),
    b(&[c('T')], "T", Command::Theme, &[], "other colours", ""),
    b(&[ctrl('l')], "Ctrl-L", Command::Redraw, &[], "draw everything anew", ""),
    b(&[c('?'), k(KeyCode::F(1))], "?", Command::Help, &[], "this list", "help"),
    b(&[c('q'), k(KeyCode::Esc)], "q Esc", Command::Back, &[], "back: overlay, filter, view; then quit", "back"),
    b(&[ctrl('c')], "Ctrl-C", Command::Quit, &[], "quit at once", ""),
    b(&[k(KeyCode::Up), c('k')], "", Command::Up, OVERLAYS, "", ""),
    b(&[k(KeyCode::Down), c('j')], "", Command::Down, OVERLAYS, "", ""),
    b(&[k(KeyCode::Enter)], "", Command::Enter, &[Context::Columns], "", ""),
    b(&[c('q'), k(KeyCode::Esc)], "q", Command::Back, &[Context::Columns], "", "close"),
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
    b(&[ctrl('c')], "", Command::Quit, &[Context::Help, Context::Search, Context::Columns], "", ""),
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

/// The keys as they are now: the table's, or as a [file](mod@file) has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Keymap {
    /// Keys and what they ask for. Of two with a key, the first one whose context fits counts.
    pub bindings: Vec<Bound>,
}

/// Some keys, and what they ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The keys.
    pub keys: Vec<Key>,
    /// How help and footer write them.
    pub shown: String,
    /// What they ask for.
    pub command: Command,
    /// Where.
    pub contexts: Vec<Context>,
    /// Whether they are the same in every view.
    pub general: bool,
    /// A sentence for the help.
    pub help: &'static str,
    /// A word for the footer; not shown there if empty.
    pub footer: &'static str,
}

/// A key with what is held down beside it.
pub type Key = (KeyCode, KeyModifiers);

impl Default for Keymap {
    fn default() -> Self {
        let bound = |b: &Binding| Bound {
            keys: b.keys.to_vec(),
            shown: b.shown.to_owned(),
            command: b.command,
            contexts: if b.contexts.is_empty() { VIEWS } else { b.contexts }.to_vec(),
            general: b.contexts.is_empty(),
            help: b.help,
            footer: b.footer,
        };
        Self { bindings: BINDINGS.iter().map(bound).collect() }
    }
}

impl Bound {
    /// Whether it counts in a context.
    pub fn counts(&self, context: Context) -> bool {
        self.contexts.contains(&context)
    }
}

impl Keymap {
    /// What a key asks for in a context.
    pub fn command(&self, context: Context, key: KeyEvent) -> Option<Command> {
        let wanted = plain(key);
        self.bindings.iter().find(|b| b.counts(context) && b.keys.contains(&wanted)).map(|b| b.command)
    }

    /// How the key for a command is written in a context, for sentences that name it.
    pub fn shown(&self, context: Context, command: Command) -> Option<&str> {
        let found = self.bindings.iter().find(|b| b.counts(context) && b.command == command)?;
        found.shown.split(' ').next().filter(|s| !s.is_empty())
    }
}

/// The name of a key; none of one that no file of keys could name.
pub fn named(key: KeyEvent) -> Option<String> {
    let found = plain(key);
    let known = names::key(&names::key_name(found)) == Some(found) || found.0 == KeyCode::BackTab;
    known.then(|| names::key_name(found))
}

/// A key as the table has it. Terminals tell of Shift with letters or do not; the letter says it already.
fn plain(key: KeyEvent) -> Key {
    let modifiers = match key.code {
        KeyCode::Char(_) => key.modifiers - SHIFT,
        _ => key.modifiers,
    };
    (key.code, modifiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXTS: [Context; 10] = [
        Context::Overview,
        Context::Columns,
        Context::List,
        Context::Tensor,
        Context::Speed,
        Context::Compare,
        Context::File,
        Context::Bits,
        Context::Help,
        Context::Search,
    ];

    #[test]
    fn no_key_means_two_things() {
        let keys = Keymap::default();
        for context in CONTEXTS {
            let mut seen = Vec::new();
            for binding in keys.bindings.iter().filter(|b| b.counts(context)) {
                for key in &binding.keys {
                    assert!(!seen.contains(&key), "{key:?} in {context:?}");
                    seen.push(key);
                }
            }
        }
    }

    #[test]
    fn the_search_box_leaves_letters_to_itself() {
        for letter in ('a'..='z').chain('A'..='Z').chain("0123456789/?.+-".chars()) {
            assert_eq!(Keymap::default().command(Context::Search, KeyEvent::new(KeyCode::Char(letter), NONE)), None);
        }
        assert_eq!(
            Keymap::default().command(Context::Search, KeyEvent::new(KeyCode::Char('c'), CTRL)),
            Some(Command::Quit)
        );
    }

    #[test]
    fn shifted_letters_are_found_however_they_are_told() {
        for modifiers in [NONE, SHIFT] {
            let key = KeyEvent::new(KeyCode::Char('G'), modifiers);
            assert_eq!(Keymap::default().command(Context::List, key), Some(Command::Bottom));
        }
    }
}
