//! Colours and signs that suit the terminal, as flags and environment tell.

use super::{Options, When};
use crate::draw::{Depth, Look, Theme};

/// Colours and signs of the screen. `env` looks a variable of the environment up.
///
/// `--color` says whether there are colours at all (NO_COLOR, and terminals that say they are dumb, count with `auto`); `--theme`
/// says which ones.
pub fn look(options: &Options, env: impl Fn(&str) -> Option<String>) -> Look {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    let colors = match options.color {
        When::Always => true,
        When::Never => false,
        When::Auto => env("NO_COLOR").is_none() && env("TERM").is_none_or(|t| t != "dumb"),
    };
    let ascii = match options.ascii {
        When::Always => true,
        When::Never => false,
        When::Auto => !is_unicode(&env),
    };
    let theme = if colors { options.theme.unwrap_or_else(|| background(&env)) } else { Theme::Plain };
    Look { theme, ascii, depth: depth(&env) }
}

/// The number of colours, as terminals tell.
fn depth(env: &impl Fn(&str) -> Option<String>) -> Depth {
    let told = |name: &str, words: &[&str]| env(name).is_some_and(|v| words.iter().any(|w| v.contains(w)));
    if told("COLORTERM", &["truecolor", "24bit"]) || told("TERM", &["direct"]) {
        Depth::True
    } else if told("TERM", &["256", "kitty", "alacritty", "ghostty"]) {
        Depth::Palette
    } else {
        Depth::Sixteen
    }
}

/// Whether the locale's characters are Unicode. Where there is none, as in many containers, the terminal's most likely are.
fn is_unicode(env: &impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(env);
    locale.is_none_or(|l| {
        let l = l.to_ascii_lowercase();
        l.contains("utf-8") || l.contains("utf8")
    })
}

/// Some terminals tell their colours, `15;0` for white on black: 7 and 9 to 15 are light.
fn background(env: &impl Fn(&str) -> Option<String>) -> Theme {
    let told = env("COLORFGBG").and_then(|v| v.rsplit(';').next()?.parse::<u8>().ok());
    if told.is_some_and(|c| c == 7 || (9..=15).contains(&c)) { Theme::Light } else { Theme::Dark }
}
