//! Keys and colours from a file in TOML.
//!
//! ```toml
//! theme = "safe"
//!
//! [keys]              # in every view that has the command
//! down = ["j", "Down"]
//! reload = []         # no key at all
//!
//! [keys.speed]        # in one view
//! pause = "p"
//! ```

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use wcodec::text::{safe, safe_path};

use super::commands::{command, commands, name_of};
use super::names;
use super::{Command, Context, Key, Keymap};
use crate::draw::Theme;

/// The name of such a file, in the folder of the user's settings.
const PLACE: [&str; 2] = ["wcodec", "tui.toml"];
/// Bytes at most: a file of another kind is not read into memory.
const MOST: u64 = 1 << 20;

/// The settings of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The keys.
    pub keys: Keymap,
    /// The colours, if it says which.
    pub theme: Option<Theme>,
}

/// The place of the file if no flag names one: `$XDG_CONFIG_HOME/wcodec/tui.toml`, or `~/.config/wcodec/tui.toml`. `env` looks a
/// variable of the environment up.
pub fn default_path(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder = |name: &str| env(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(PLACE.iter().fold(config, |path, part| path.join(part)))
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, or says what cannot be understood: the message names the file, the line and what is wrong with it.
pub fn read(path: &Path) -> Result<Settings, String> {
    let whole = safe_path(path);
    let bytes = wcodec::read_small(path, MOST).map_err(|e| e.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{whole}: not UTF-8"))?;
    parse(&text).map_err(|(line, why)| format!("{whole}:{line}: {why}"))
}

/// Reads the text of a file.
///
/// ```
/// use wcodec_tui::keymap::file::parse;
/// assert!(parse("[keys]\nverify = 'x'").is_ok());
/// let (line, why) = parse("[keys]\nverfiy = 'x'").unwrap_err();
/// assert_eq!((line, why.as_str()), (2, "there is no command 'verfiy' (did you mean 'verify'?)"));
/// ```
///
/// # Errors
/// The line, from 1 on, and what is wrong there.
pub fn parse(text: &str) -> Result<Settings, (usize, String)> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count();
    let table = DeTable::parse(text).map_err(|e| {
        let why = e.message().split_whitespace().collect::<Vec<_>>().join(" ");
        (e.span().map_or(1, |s| line(s.start)), format!("not TOML: {}", safe(&why)))
    })?;
    let (mut settings, mut changed) = (Settings::default(), Vec::new());
    for (name, value) in table.get_ref() {
        let at = line(name.span().start);
        match (name.get_ref().as_ref(), value.get_ref()) {
            ("theme", DeValue::String(word)) => {
                let found = Theme::ALL.into_iter().find(|t| t.name() == word.as_ref());
                let unknown = || (at, unknown("theme", word, &Theme::ALL.map(Theme::name)));
                settings.theme = Some(found.ok_or_else(unknown)?);
            }
            ("keys", DeValue::Table(keys)) => {
                // A key of a single view counts more than one of all views.
                let (views, all): (Vec<_>, Vec<_>) = keys.iter().partition(|(_, v)| v.get_ref().is_table());
                let mut wanted: Vec<_> = all.into_iter().map(|(command, value)| (None, command, value)).collect();
                let known: Vec<&str> = Context::all().filter(|c| *c != Context::Search).map(Context::name).collect();
                for (view, of) in views {
                    let unknown = || (line(view.span().start), unknown("view", view.get_ref(), &known));
                    let context = Context::named(view.get_ref()).ok_or_else(unknown)?;
                    let commands = of.get_ref().as_table().into_iter().flatten();
                    wanted.extend(commands.map(|(command, value)| (Some(context), command, value)));
                }
                for (context, command, value) in wanted {
                    let (at, command) = (line(command.span().start), command.get_ref());
                    bind(&mut settings.keys, command, value.get_ref(), context).map_err(|why| (at, why))?;
                    changed.push((command.to_string(), context, at));
                }
            }
            ("theme", other) => return Err((at, format!("theme is a word in quotes, not {}", kind(other)))),
            ("keys", other) => return Err((at, format!("keys is a table, [keys], not {}", kind(other)))),
            (other, _) => return Err((at, unknown("setting", other, &["theme", "keys"]))),
        }
    }
    check(&settings.keys, &changed)?;
    Ok(settings)
}

/// Gives a command other keys, everywhere or in one view.
fn bind(map: &mut Keymap, name: &str, value: &DeValue<'_>, context: Option<Context>) -> Result<(), String> {
    let all: Vec<String> = commands().map(|(n, _)| n).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let command = command(name).ok_or_else(|| unknown("command", name, &all))?;
    let texts: Vec<&str> = match value {
        DeValue::String(text) => vec![text],
        DeValue::Array(list) => {
            let text =
                |v: &toml::Spanned<DeValue<'_>>| format!("a key of '{name}' is {}, not a text", kind(v.get_ref()));
            list.iter().map(|v| v.get_ref().as_str().ok_or_else(|| text(v))).collect::<Result<_, _>>()?
        }
        other => return Err(format!("the keys of '{name}' are a text or a list of texts, not {}", kind(other))),
    };
    let key = |text: &&str| {
        let advice = "a character, or a name as Up, PgDn, Space, F5, with Ctrl-, Alt- or Shift- before it";
        names::key(text).ok_or_else(|| format!("there is no key '{}' ({advice})", safe(text)))
    };
    let keys: Vec<Key> = texts.iter().map(key).collect::<Result<_, _>>()?;
    let wanted = |c: Context| context.map_or(matches!(c, Context::View(_)), |w| w == c);
    let mut fresh = Vec::new();
    for bound in map.bindings.iter_mut().filter(|b| b.command == command) {
        let contexts: Vec<Context> = bound.contexts.iter().copied().filter(|&c| wanted(c)).collect();
        if contexts.is_empty() {
            continue;
        }
        bound.contexts.retain(|c| !contexts.contains(c));
        let general = bound.general && context.is_none();
        fresh.push(super::Bound { keys: keys.clone(), shown: shown(&keys), contexts, general, ..bound.clone() });
    }
    if fresh.is_empty() {
        let place = context.map_or("any view", Context::name);
        return Err(format!("'{name}' does nothing in {place}"));
    }
    map.bindings.retain(|b| !b.contexts.is_empty());
    // They stand in the place that the table has for them, so that help and footer keep their order.
    let at = Keymap::default().bindings.iter().position(|b| b.command == command).unwrap_or(0).min(map.bindings.len());
    map.bindings.splice(at..at, fresh);
    Ok(())
}

/// Refuses keys that mean two things, and maps that nobody could leave.
fn check(map: &Keymap, changed: &[(String, Option<Context>, usize)]) -> Result<(), (usize, String)> {
    let line_of = |command: Command, context: Context| {
        let says = |(name, of, _): &&(String, Option<Context>, usize)| {
            super::commands::command(name) == Some(command) && of.is_none_or(|c| c == context)
        };
        changed.iter().filter(says).map(|(.., line)| *line).max()
    };
    for context in Context::all() {
        let mut seen: Vec<(Key, Command)> = Vec::new();
        for bound in map.bindings.iter().filter(|b| b.counts(context)) {
            for &key in &bound.keys {
                if let Some(&(_, other)) = seen.iter().find(|(k, c)| *k == key && *c != bound.command) {
                    let (first, second) = (line_of(other, context), line_of(bound.command, context));
                    // The one that the file has, the later one of two.
                    let (mine, theirs) = if second >= first { (bound.command, other) } else { (other, bound.command) };
                    let (mine_name, their_name) = (name_of(mine), name_of(theirs));
                    let why = format!(
                        "'{}' for '{mine_name}' is '{their_name}' in view {} already (give that another key, or none: {their_name} = [])",
                        names::key_name(key),
                        context.name(),
                    );
                    return Err((first.max(second).unwrap_or(1), why));
                }
                seen.push((key, bound.command));
            }
        }
        let leaves = |c: Command| matches!(c, Command::Quit | Command::Back);
        if !matches!(context, Context::Search) && !seen.iter().any(|&(_, c)| leaves(c)) {
            let line = line_of(Command::Back, context).max(line_of(Command::Quit, context)).unwrap_or(1);
            let why = format!("no key would leave view {}: 'back' or 'quit' needs one", context.name());
            return Err((line, why));
        }
    }
    Ok(())
}

/// The text for some keys in help and footer: as many as there is room for.
fn shown(keys: &[Key]) -> String {
    const ROOM: usize = 9;
    let mut text = String::new();
    for key in keys {
        let name = names::key_name(*key);
        if !text.is_empty() && text.len() + 1 + name.len() > ROOM {
            break;
        }
        text.push_str(if text.is_empty() { "" } else { " " });
        text.push_str(&name);
    }
    text.chars().take(ROOM).collect()
}

/// Says that there is no such word, and the nearest of those that there are, if one is near.
fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let advice = match wcodec::names::near(word, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None if known.len() <= 10 => format!("there are {}", known.join(", ")),
        None => "docs/inspector.md lists them".to_owned(),
    };
    format!("there is no {what} '{}' ({advice})", safe(word))
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
