//! The one table of keys: what they do, where, and what help and footer say of them.

pub mod file;
pub mod names;
mod table;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use self::table::{BINDINGS, Binding, VIEWS};
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
        KeyCode::Char(_) => key.modifiers - KeyModifiers::SHIFT,
        _ => key.modifiers,
    };
    (key.code, modifiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: KeyModifiers = KeyModifiers::NONE;
    const CTRL: KeyModifiers = KeyModifiers::CONTROL;
    const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

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
