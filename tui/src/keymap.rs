//! The one table of keys: what they do, where, and what help and footer say of them.

pub mod commands;
pub mod file;
pub mod names;
pub mod table;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

pub use self::commands::Command;
pub use self::table::{Binding, VERIFY, b};
use self::table::{GENERAL, LAST, MOVES, OVER, Scope};
use crate::views::Tab;

/// The part of the screen that takes the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A view.
    View(Tab),
    /// The list of keys.
    Help,
    /// The search box, which takes every key that writes.
    Search,
    /// A list to choose from: columns to sort by, or ways to encode.
    Columns,
}

impl Context {
    /// All of them, those that a file of keys names first.
    pub fn all() -> impl Iterator<Item = Self> {
        Tab::ALL.into_iter().map(Self::View).chain([Self::Help, Self::Columns, Self::Search])
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::View(tab) => tab.name(),
            Self::Help => "help",
            Self::Columns => "columns",
            Self::Search => "filter",
        }
    }

    /// The view or overlay of a name, which may be that of an earlier version.
    pub fn named(name: &str) -> Option<Self> {
        let is_named = |c: &Self| match c {
            Self::View(tab) => [tab.name(), tab.earlier()].contains(&name),
            Self::Search => false,
            other => other.name() == name,
        };
        Self::all().find(is_named)
    }
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
    /// Their text in help and footer.
    pub shown: String,
    /// The command that they ask for.
    pub command: Command,
    /// The places in which they count.
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
        let general = |b: &Binding| Bound::new(b, None);
        let of_view = |tab: Tab| tab.facts().keys.iter().map(move |b| Bound::new(b, Some(tab)));
        let digits = Tab::ALL.into_iter().zip('1'..).map(|(tab, digit)| {
            let keys = if digit == '1' { vec!['1', '0'] } else { vec![digit] };
            let keys = keys.into_iter().map(|c| (KeyCode::Char(c), KeyModifiers::NONE)).collect();
            let general = b("", Command::View(tab), tab.about(), "");
            Bound { keys, shown: digit.into(), ..Bound::new(&general, None) }
        });
        let before = MOVES.iter().map(general).chain(Tab::ALL.into_iter().flat_map(of_view));
        let behind = LAST.iter().chain(OVER).map(general);
        Self { bindings: before.chain(GENERAL.iter().map(general)).chain(digits).chain(behind).collect() }
    }
}

impl Bound {
    /// A binding of a view, or of the table of all.
    fn new(b: &Binding, view: Option<Tab>) -> Self {
        let views = |wanted: &dyn Fn(&[Command]) -> bool| {
            Tab::ALL.into_iter().filter(|t| wanted(t.facts().shared)).map(Context::View).collect()
        };
        let contexts = match (b.scope, view) {
            (Scope::Usual, Some(tab)) => vec![Context::View(tab)],
            (Scope::Usual, None) => views(&|_| true),
            (Scope::Sharing, _) => views(&|shared| shared.contains(&b.command)),
            (Scope::Without(command), _) => views(&|shared| !shared.contains(&command)),
            (Scope::Over(contexts), _) => contexts.to_vec(),
        };
        let general = matches!((b.scope, view), (Scope::Usual, None));
        let (shown, more) = b.keys.split_once('|').unwrap_or((b.keys, ""));
        let keys = shown.split_whitespace().chain(more.split_whitespace()).filter_map(names::key).collect();
        let shown = shown.trim_end().to_owned();
        Self { keys, shown, command: b.command, contexts, general, help: b.help, footer: b.footer }
    }

    /// Whether it counts in a context.
    pub fn counts(&self, context: Context) -> bool {
        self.contexts.contains(&context)
    }
}

impl Keymap {
    /// The command that a key asks for in a context.
    pub fn command(&self, context: Context, key: KeyEvent) -> Option<Command> {
        let wanted = plain(key);
        self.bindings.iter().find(|b| b.counts(context) && b.keys.contains(&wanted)).map(|b| b.command)
    }

    /// The text for the key of a command in a context, for sentences that name it.
    pub fn shown(&self, context: Context, command: Command) -> Option<&str> {
        let found = self.bindings.iter().find(|b| b.counts(context) && b.command == command)?;
        found.shown.split(' ').next().filter(|s| !s.is_empty())
    }
}

/// The one after `now` among all that a key goes round, or the one before.
///
/// ```
/// use wcodec_tui::keymap::around;
/// assert_eq!([around(&[1, 2, 3], 3, false), around(&[1, 2, 3], 1, true), around(&[1, 2, 3], 2, true)], [1, 3, 1]);
/// ```
pub fn around<T: Copy + PartialEq>(all: &[T], now: T, back: bool) -> T {
    let at = all.iter().position(|&t| t == now).unwrap_or(0);
    all[(at + if back { all.len() - 1 } else { 1 }) % all.len()]
}

/// The name of a key; none of one that no file of keys could name.
pub fn named(key: KeyEvent) -> Option<String> {
    let found = plain(key);
    (names::key(&names::key_name(found)) == Some(found)).then(|| names::key_name(found))
}

/// A key as the table has it. Terminals tell of Shift with letters or do not, and of Shift-Tab as of a key of its own, with or without it.
fn plain(key: KeyEvent) -> Key {
    let modifiers = match key.code {
        KeyCode::Char(_) => key.modifiers - KeyModifiers::SHIFT,
        KeyCode::BackTab => key.modifiers | KeyModifiers::SHIFT,
        _ => key.modifiers,
    };
    (key.code, modifiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things() {
        let keys = Keymap::default();
        let tables = [MOVES, GENERAL, LAST, OVER].into_iter().flatten();
        for binding in tables.chain(Tab::ALL.into_iter().flat_map(|tab| tab.facts().keys)) {
            let words = binding.keys.split_whitespace().filter(|w| *w != "|");
            assert_eq!(Bound::new(binding, None).keys.len(), words.count(), "{}", binding.keys);
        }
        for context in Context::all() {
            let mut seen = Vec::new();
            for binding in keys.bindings.iter().filter(|b| b.counts(context)) {
                for key in &binding.keys {
                    assert!(!seen.contains(&key), "{key:?} in {context:?}");
                    seen.push(key);
                }
            }
        }
    }
}
