//! Keys, their names, and files that change them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use wcodec_tui::draw::Theme;
use wcodec_tui::keymap::commands::{command, commands, name_of};
use wcodec_tui::keymap::file::{Settings, default_path, parse, read};
use wcodec_tui::keymap::names::{key, key_name};
use wcodec_tui::keymap::{Command, Context, Keymap};
use wcodec_tui::views::Tab;

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

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
        assert_eq!(Keymap::default().command(Context::View(Tab::List), key), Some(Command::Bottom));
    }
}

#[test]
fn every_command_of_the_table_has_one_name() {
    for bound in &Keymap::default().bindings {
        let name = name_of(bound.command);
        assert!(!name.is_empty(), "{:?}", bound.command);
        assert_eq!(command(&name), Some(bound.command));
    }
    for tab in Tab::ALL {
        assert_eq!(command(&format!("view-{}", tab.earlier())), Some(Command::View(tab)));
        assert_eq!(Context::named(tab.earlier()), Context::named(tab.name()));
    }
    assert_eq!((Context::named("heat"), Context::named("no")), (Some(Context::View(Tab::Overview)), None));
    let names: Vec<String> = commands().map(|(n, _)| n).collect();
    assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])));
}

#[test]
fn every_key_of_the_table_is_found_by_its_name() {
    for k in Keymap::default().bindings.iter().flat_map(|b| b.keys.clone()) {
        let found = key(&key_name(k));
        assert_eq!(found, Some(k), "{}", key_name(k));
    }
    for name in ["", "Ctrl-", "jj", "F0", "F25", "Meta-x", "\u{1b}"] {
        assert!(key(name).is_none(), "{name:?}");
    }
}

fn pressed(map: &Keymap, context: Context, c: char) -> Option<Command> {
    map.command(context, KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE))
}

#[test]
fn keys_are_given_everywhere_or_in_one_view() {
    let text = "theme = 'safe'\n[keys]\nverify = ['x', 'F5']\nexport = []\n[keys.speed]\npause = 'p'\n";
    let settings = parse(text).unwrap();
    assert_eq!(settings.theme, Some(Theme::Safe));
    let map = settings.keys;
    for context in [Context::View(Tab::List), Context::View(Tab::Tensor), Context::View(Tab::Overview)] {
        assert_eq!(pressed(&map, context, 'x'), Some(Command::Verify));
        assert_eq!(pressed(&map, context, 'v'), None);
    }
    assert_eq!(pressed(&map, Context::View(Tab::Speed), 'p'), Some(Command::Pause));
    assert_eq!(pressed(&map, Context::View(Tab::Speed), ' '), None);
    assert_eq!(pressed(&map, Context::View(Tab::List), ' '), Some(Command::Fold));
    assert_eq!(map.shown(Context::View(Tab::List), Command::Verify), Some("x"));
    assert_eq!(parse("").unwrap(), Settings::default());
}

#[test]
fn one_view_may_differ_from_the_others() {
    let map = parse("[keys.rates]\ndown = 'n'\n").unwrap().keys;
    assert_eq!(pressed(&map, Context::View(Tab::Bits), 'n'), Some(Command::Down));
    assert_eq!(pressed(&map, Context::View(Tab::Bits), 'j'), None);
    assert_eq!(pressed(&map, Context::View(Tab::List), 'j'), Some(Command::Down));
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (text, line, words) in [
        ("theme = 'drak'", 1, "no theme 'drak' (did you mean 'dark'?)"),
        ("\ntheme = 3", 2, "theme is a word in quotes, not a number"),
        ("keys = 'x'", 1, "keys is a table"),
        ("[key]\n", 1, "no setting 'key' (did you mean 'keys'?)"),
        ("[keys]\n\nrelaod = 'x'", 3, "did you mean 'reload'?"),
        ("[keys]\nreload = 'Hyper-x'", 2, "no key 'Hyper-x'"),
        ("[keys]\nreload = [3]", 2, "a key of 'reload' is a number"),
        ("[keys]\nreload = true", 2, "a text or a list of texts, not true or false"),
        ("[keys.tesor]\nreload = 'x'", 1, "no view 'tesor' (did you mean 'tensor'?)"),
        ("[keys.rates]\nexport = 'x'", 2, "'export' does nothing in bits"),
        ("[keys]\nreload = 'v'\n", 2, "'v' for 'reload' is 'verify' in view overview already"),
        ("[keys]\nback = []\nquit = []\n", 3, "no key would leave"),
        ("[keys]\nreload = 'x\n", 2, "not TOML"),
        ("a = 1\na = 2", 2, "not TOML"),
    ] {
        let (at, why) = parse(text).unwrap_err();
        assert!(at == line && why.contains(words), "{text}: {at}: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tui.toml");
    assert!(read(&path).unwrap_err().contains("tui.toml"));
    std::fs::write(&path, "[keys]\nx = 1").unwrap();
    assert!(read(&path).unwrap_err().contains("tui.toml:2: there is no command 'x'"));
}

#[test]
fn the_folder_of_settings_is_that_of_the_environment() {
    let path =
        |env: &[(&str, &str)]| default_path(|name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()));
    assert_eq!(path(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), Some("/x/wcodec/tui.toml".into()));
    assert_eq!(path(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]), Some("/h/.config/wcodec/tui.toml".into()));
    assert_eq!(path(&[]), None);
}
