//! Words for keys, as a file of keys has them.

use crossterm::event::{KeyCode, KeyModifiers};

use super::Key;

/// Keys that write nothing, by name.
const KEYS: [(&str, KeyCode); 19] = [
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
    ("↑", KeyCode::Up),
    ("↓", KeyCode::Down),
    ("←", KeyCode::Left),
    ("→", KeyCode::Right),
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
    let known = KEYS.iter().find(|(n, _)| n.eq_ignore_ascii_case(rest)).map(|(_, code)| *code);
    let code = match (known, chars.next(), chars.next()) {
        (Some(code), ..) => code,
        (None, Some(c), None) if !c.is_control() => KeyCode::Char(c),
        _ => KeyCode::F(rest.strip_prefix(['F', 'f'])?.parse().ok().filter(|n| (1..=24).contains(n))?),
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
