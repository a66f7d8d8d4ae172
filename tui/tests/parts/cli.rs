//! The command line, and colours and signs that suit the terminal.

use clap::CommandFactory;
use wcodec_tui::cli::look::look;
use wcodec_tui::cli::{Job, Options, PROGRAM, When, parse};
use wcodec_tui::draw::{Depth, Look, Theme};
use wcodec_tui::model::order::Column;
use wcodec_tui::views::Tab;
use wcodec_tui::views::speed::Device;

fn options(line: &str) -> Options {
    match parse(std::iter::once(PROGRAM).chain(line.split_whitespace())) {
        Job::Inspect(options) => *options,
        other => panic!("{other:?}"),
    }
}

fn refused(line: &str) -> String {
    match parse(std::iter::once(PROGRAM).chain(line.split_whitespace())) {
        Job::Refuse(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    Options::command().debug_assert();
}

#[test]
fn words_are_read() {
    let o = options("a b --tab compare --theme light --device cuda:3 --threads 4 --color never --ascii");
    assert_eq!((o.tab, o.theme, o.device), (Some(Tab::Compare), Some(Theme::Light), Some(Device::Gpu(3))));
    assert_eq!((o.threads, o.color, o.ascii), (Some(4), When::Never, When::Always));
    assert_eq!((o.other, o.trust), (Some("b".into()), false));
    assert!(options("a --trust").trust);
    // --ascii takes no file for its value.
    let o = options("--ascii a");
    assert_eq!((o.ascii, o.file), (When::Always, Some("a".into())));
    assert_eq!(options("a --ascii=never").ascii, When::Never);
    assert_eq!((options("a").ascii, options("a").color), (When::Auto, When::Auto));
    for tab in Tab::ALL {
        for word in [tab.name(), tab.earlier()] {
            assert_eq!(options(&format!("a --tab {word}")).tab, Some(tab));
        }
    }
    assert_eq!(options("a --device cuda").device, Some(Device::Gpu(0)));
    for column in Column::ALL {
        assert_eq!(options(&format!("a --sort {}", column.name())).sort, Some(column));
    }
}

#[test]
fn wrong_words_are_named() {
    for (line, word) in [
        ("a --device tpu", "tpu"),
        ("a --device cuda:x", "cuda:x"),
        ("a --sort colour", "colour"),
        ("a --threads 0", "0"),
        ("a --plain --json", "--json"),
        ("a b c", "c"),
        ("--sort ratio", "<FILE>"),
    ] {
        assert!(refused(line).contains(word), "{line}");
    }
}

#[test]
fn completions_and_the_manual_name_every_flag() {
    for line in ["--completions bash", "--completions zsh", "--completions fish", "--man", "--help"] {
        let Job::Print(text) = parse(std::iter::once(PROGRAM).chain(line.split_whitespace())) else { panic!("{line}") };
        for flag in ["filter", "sort", "tab", "tensor", "ref", "device", "threads", "trust", "json", "plain", "log"] {
            assert!(text.contains(flag), "{flag} in {line}");
        }
    }
}

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
