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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Job, parse};

    fn of(flags: &str, env: &[(&str, &str)]) -> Look {
        let Job::Inspect(options) = parse(["wcodec-tui", "a"].into_iter().chain(flags.split_whitespace())) else {
            panic!("{flags}")
        };
        look(&options, |name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn colors_follow_flags_then_environment() {
        let none = [("NO_COLOR", "1")];
        assert_eq!(of("", &[]).theme, Theme::Dark);
        assert_eq!(of("", &none).theme, Theme::Plain);
        assert_eq!(of("", &[("NO_COLOR", "")]).theme, Theme::Dark);
        assert_eq!(of("", &[("TERM", "dumb")]).theme, Theme::Plain);
        assert_eq!(of("--color always", &none).theme, Theme::Dark);
        assert_eq!(of("--color never --theme light", &[]).theme, Theme::Plain);
        assert_eq!(of("--theme light", &[]).theme, Theme::Light);
    }

    #[test]
    fn the_number_of_colours_is_taken_from_the_environment() {
        for (env, depth) in [
            ([("TERM", "xterm"), ("COLORTERM", "")], Depth::Sixteen),
            ([("TERM", "tmux-256color"), ("COLORTERM", "")], Depth::Palette),
            ([("TERM", "xterm-256color"), ("COLORTERM", "truecolor")], Depth::True),
            ([("TERM", "linux"), ("COLORTERM", "24bit")], Depth::True),
        ] {
            assert_eq!(of("", &env).depth, depth, "{env:?}");
        }
        assert_eq!(of("", &[]).depth, Depth::Sixteen);
    }

    #[test]
    fn the_background_is_taken_from_the_environment() {
        for (value, theme) in [
            ("0;15", Theme::Light),
            ("15;0", Theme::Dark),
            ("0;default;15", Theme::Light),
            ("0;8", Theme::Dark),
            ("", Theme::Dark),
            ("x;y", Theme::Dark),
        ] {
            assert_eq!(of("", &[("COLORFGBG", value)]).theme, theme, "{value}");
        }
        assert_eq!(of("--theme dark", &[("COLORFGBG", "0;15")]).theme, Theme::Dark);
    }

    #[test]
    fn other_character_sets_than_unicode_get_ascii() {
        assert!(!of("", &[]).ascii);
        assert!(!of("", &[("LANG", "en_GB.UTF-8")]).ascii);
        assert!(!of("", &[("LANG", "C"), ("LC_ALL", "C.utf8")]).ascii);
        assert!(of("", &[("LANG", "en_GB.UTF-8"), ("LC_ALL", "POSIX")]).ascii);
        assert!(!of("--ascii=never", &[("LANG", "C")]).ascii);
        assert!(of("--ascii", &[]).ascii);
    }
}
