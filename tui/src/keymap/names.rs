//! Words for commands and keys, as a file of keys has them.

use crossterm::event::{KeyCode, KeyModifiers};

use super::{Command, Context, Key};
use crate::state::Tab;

/// Commands by name. Those that are about a view alone are named with it.
const COMMANDS: [(&str, Command); 51] = [
    ("up", Command::Up),
    ("down", Command::Down),
    ("half-up", Command::HalfUp),
    ("half-down", Command::HalfDown),
    ("page-up", Command::PageUp),
    ("page-down", Command::PageDown),
    ("top", Command::Top),
    ("bottom", Command::Bottom),
    ("left", Command::Left),
    ("right", Command::Right),
    ("open", Command::Enter),
    ("back", Command::Back),
    ("quit", Command::Quit),
    ("view-overview", Command::View(Tab::Overview)),
    ("view-list", Command::View(Tab::List)),
    ("view-tensor", Command::View(Tab::Tensor)),
    ("view-bits", Command::View(Tab::Bits)),
    ("view-speed", Command::View(Tab::Speed)),
    ("view-compare", Command::View(Tab::Compare)),
    ("view-file", Command::View(Tab::File)),
    ("next-view", Command::NextView),
    ("previous-view", Command::PreviousView),
    ("filter", Command::Search),
    ("next", Command::Next),
    ("previous", Command::Previous),
    ("sort", Command::Sort),
    ("column", Command::Choose),
    ("measure", Command::Measure),
    ("measure-back", Command::MeasureBack),
    ("bars", Command::Bars),
    ("reverse", Command::Reverse),
    ("fold", Command::Fold),
    ("fold-all", Command::FoldAll),
    ("tree", Command::Tree),
    ("entropies", Command::Entropies),
    ("verify", Command::Verify),
    ("verify-all", Command::VerifyAll),
    ("encode", Command::Encode),
    ("copy", Command::Copy),
    ("reload", Command::Reload),
    ("theme", Command::Theme),
    ("help", Command::Help),
    ("more", Command::More),
    ("fewer", Command::Fewer),
    ("axis", Command::Axis),
    ("differences", Command::Differences),
    ("pause", Command::Pause),
    ("device", Command::Device),
    ("scope", Command::Scope),
    ("export", Command::Export),
    ("picture", Command::Picture),
];

/// The one that is named neither above nor in the help's list of views.
const REDRAW: (&str, Command) = ("redraw", Command::Redraw);

/// All commands by name.
pub fn commands() -> impl Iterator<Item = (&'static str, Command)> {
    COMMANDS.into_iter().chain([REDRAW])
}

/// The command of a name, which may be that of an earlier version.
pub fn command(name: &str) -> Option<Command> {
    let found = commands().find(|(n, _)| *n == name).map(|(_, command)| command);
    let earlier = || Tab::ALL.into_iter().find(|t| name.strip_prefix("view-") == Some(t.earlier())).map(Command::View);
    found.or_else(earlier)
}

/// The name of a command.
pub fn name_of(command: Command) -> &'static str {
    commands().find(|(_, c)| *c == command).map_or("", |(name, _)| name)
}

/// What can be said of keys in single views: the view, or an overlay.
pub const CONTEXTS: [(&str, Context); 9] = [
    ("overview", Context::Overview),
    ("list", Context::List),
    ("tensor", Context::Tensor),
    ("bits", Context::Bits),
    ("speed", Context::Speed),
    ("compare", Context::Compare),
    ("file", Context::File),
    ("help", Context::Help),
    ("columns", Context::Columns),
];

/// The context of a name, which may be that of an earlier version.
pub fn context(name: &str) -> Option<Context> {
    let now = Tab::ALL.into_iter().find(|t| t.earlier() == name).map_or(name, |t| t.name());
    CONTEXTS.iter().find(|(n, _)| *n == now).map(|(_, context)| *context)
}

/// The name of a context.
pub fn context_name(context: Context) -> &'static str {
    CONTEXTS.iter().find(|(_, c)| *c == context).map_or("filter", |(name, _)| name)
}

/// Keys that write nothing, by name.
const KEYS: [(&str, KeyCode); 15] = [
    ("Up", KeyCode::Up),
    ("Down", KeyCode::Down),
    ("Left", KeyCode::Left),
    ("Right", KeyCode::Right),
    ("Home", KeyCode::Home),
    ("End", KeyCode::End),
    ("PgUp", KeyCode::PageUp),
    ("PgDn", KeyCode::PageDown),
    ("Enter", KeyCode::Enter),
    ("Esc", KeyCode::Esc),
    ("Tab", KeyCode::Tab),
    ("Space", KeyCode::Char(' ')),
    ("Backspace", KeyCode::Backspace),
    ("Delete", KeyCode::Delete),
    ("Insert", KeyCode::Insert),
];

/// A key by its name: a character, `Up`, `F5`, with `Ctrl-`, `Alt-` or `Shift-` before it.
///
/// ```
/// use crossterm::event::{KeyCode, KeyModifiers};
/// use wcodec_tui::keymap::names::{key, key_name};
/// assert_eq!(key("Ctrl-b"), Some((KeyCode::Char('b'), KeyModifiers::CONTROL)));
/// assert_eq!(key("-"), Some((KeyCode::Char('-'), KeyModifiers::NONE)));
/// assert_eq!(key("Hyper-b"), None);
/// assert_eq!(key_name(key("F5").unwrap()), "F5");
/// ```
pub fn key(name: &str) -> Option<Key> {
    let (mut rest, mut modifiers) = (name, KeyModifiers::NONE);
    for (word, modifier) in
        [("Ctrl-", KeyModifiers::CONTROL), ("Alt-", KeyModifiers::ALT), ("Shift-", KeyModifiers::SHIFT)]
    {
        if let Some(after) = rest.strip_prefix(word).filter(|a| !a.is_empty()) {
            (rest, modifiers) = (after, modifiers | modifier);
        }
    }
    let mut chars = rest.chars();
    let code = match (chars.next(), chars.next()) {
        (Some(c), None) if !c.is_control() => KeyCode::Char(c),
        _ => match KEYS.iter().find(|(n, _)| n.eq_ignore_ascii_case(rest)) {
            Some((_, code)) => *code,
            None => KeyCode::F(rest.strip_prefix(['F', 'f'])?.parse().ok().filter(|n| (1..=24).contains(n))?),
        },
    };
    // Terminals tell of these by keys of their own.
    match (code, modifiers) {
        (KeyCode::Tab, m) if m == KeyModifiers::SHIFT => Some((KeyCode::BackTab, m)),
        (KeyCode::Char(c), m) if m.contains(KeyModifiers::SHIFT) => {
            let upper = if c.is_ascii_lowercase() { c.to_ascii_uppercase() } else { c };
            Some((KeyCode::Char(upper), m - KeyModifiers::SHIFT))
        }
        (KeyCode::Char(c), m) if m.contains(KeyModifiers::CONTROL) => Some((KeyCode::Char(c.to_ascii_lowercase()), m)),
        other => Some(other),
    }
}

/// The name of a key.
pub fn key_name((code, modifiers): Key) -> String {
    let mut name = String::new();
    for (word, modifier) in [("Ctrl-", KeyModifiers::CONTROL), ("Alt-", KeyModifiers::ALT)] {
        name.push_str(if modifiers.contains(modifier) { word } else { "" });
    }
    if modifiers.contains(KeyModifiers::SHIFT) || code == KeyCode::BackTab {
        name.push_str("Shift-");
    }
    match code {
        KeyCode::BackTab => name.push_str("Tab"),
        KeyCode::Char(c) if c != ' ' => name.push(c),
        KeyCode::F(n) => name.push_str(&format!("F{n}")),
        _ => name.push_str(KEYS.iter().find(|(_, c)| *c == code).map_or("?", |(n, _)| n)),
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::Keymap;

    #[test]
    fn every_command_of_the_table_has_one_name() {
        for bound in &Keymap::default().bindings {
            let name = name_of(bound.command);
            assert!(!name.is_empty(), "{:?}", bound.command);
            assert_eq!(command(name), Some(bound.command));
        }
        for tab in Tab::ALL {
            assert_eq!(command(&format!("view-{}", tab.earlier())), Some(Command::View(tab)));
            assert_eq!(context(tab.earlier()), context(tab.name()));
        }
        assert_eq!((context("heat"), context("no")), (Some(Context::Overview), None));
        let names: Vec<&str> = commands().map(|(n, _)| n).collect();
        assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])));
    }

    #[test]
    fn every_key_of_the_table_is_found_by_its_name() {
        for k in Keymap::default().bindings.iter().flat_map(|b| b.keys.clone()) {
            let found = key(&key_name(k));
            assert!(found == Some(k) || k.0 == KeyCode::BackTab, "{k:?} as {}", key_name(k));
        }
        for name in ["", "Ctrl-", "jj", "F0", "F25", "Meta-x", "\u{1b}"] {
            assert!(key(name).is_none(), "{name:?}");
        }
    }
}
