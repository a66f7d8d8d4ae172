//! The command line.

pub mod look;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, ValueEnum};
use clap_complete::Shell;

use crate::draw::Theme;
use crate::model::order::Column;
use crate::views::Tab;
use crate::views::speed::Device;

/// The name that messages begin with.
pub const PROGRAM: &str = "wcodec-tui";

const ABOUT: &str = "\
Like `less` for model weights: opens .wcodec files, checkpoints (.safetensors, a file or a folder) and .gguf files.

It shows a heat map of layers by role, and every layer with its scheme, coder, size, ratio, bits per weight and \
entropy. Other views show one layer's scales, symbols and chunks, the speed of decoding on this machine, the \
differences between two files, the map of the file, and the choice of its bits. \
For checkpoints it estimates from samples what encoding would give, and a key encodes them.

Without a terminal, the table of layers is printed once instead. Press ? inside for all keys.";

const AFTER: &str = "\
Examples:
  wcodec-tui model.wcodec                              look around
  wcodec-tui model.wcodec --filter q_proj --sort ratio the attention's queries, worst ratio first
  wcodec-tui model.wcodec --tensor lm_head.weight --ref model.safetensors
                                                       one layer, and its errors against the original
  wcodec-tui model.wcodec --tab speed --device cuda:0  the speed of decoding on the first GPU
  wcodec-tui old.wcodec new.wcodec --tab compare       two files side by side
  wcodec-tui model.wcodec --tab bits                   plan, measured quality, bits by role and by layer
  wcodec-tui model.safetensors                         estimates of encoding; the key E encodes
  wcodec-tui model.wcodec --plain | less -S            the table as text
  wcodec-tui a.wcodec b.wcodec --json | jq .compare.same
  source <(wcodec-tui --completions bash)              completion in this shell

Exit status:
  0  done, and nothing differs
  1  with --plain or --json: FILE_B holds other tensors than FILE
  2  an error: a file that cannot be read or is damaged, a wrong argument
  128 + N  ended by signal N";

/// Terminal inspector of entropy-coded model weights.
#[derive(Clone, Debug, Parser)]
#[command(name = PROGRAM, version, long_about = ABOUT, after_help = AFTER, max_term_width = 110)]
pub struct Options {
    /// The file to look into: a container, a .safetensors file or a folder of them, or a .gguf file.
    #[arg(value_name = "FILE", required_unless_present_any = ["completions", "man"])]
    pub file: Option<PathBuf>,
    /// Another container, to compare it with.
    #[arg(value_name = "FILE_B")]
    pub other: Option<PathBuf>,

    /// Show only tensors whose names contain this text or match this regular expression.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Sort by this column, the most interesting rows first.
    #[arg(long, value_name = "COLUMN", value_parser = words(Column::ALL, Column::name))]
    pub sort: Option<Column>,
    /// Begin with this view; with --plain, `bits`, `compare` or `speed` is printed instead of the table of tensors.
    #[arg(long, value_name = "NAME", value_parser = tabs())]
    pub tab: Option<Tab>,
    /// Begin with this tensor.
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
    /// Compare decoded values with those of this checkpoint: a .safetensors file, or a folder of them.
    #[arg(long = "ref", value_name = "PATH")]
    pub reference: Option<PathBuf>,

    /// Decode on this device in the view Speed: cpu, cuda (the first GPU) or cuda:N.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads that the view Speed uses on the CPU [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Open files without the size limits that protect against malicious files: for files whose origin you know.
    #[arg(long)]
    pub trust: bool,
    /// Print everything that the views know as one JSON document, with a schema version.
    #[arg(long, conflicts_with = "plain")]
    pub json: bool,
    /// Print the table of layers as text; so, too, where the output is no terminal.
    #[arg(long)]
    pub plain: bool,

    /// Use colours; `auto` leaves them where NO_COLOR is set.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: When,
    /// Colours for a dark or a light background, for eyes that see no red or no green (safe), or none [default: as the file of keys or
    /// COLORFGBG tells, or dark].
    #[arg(long, value_name = "THEME", value_parser = words(Theme::ALL, Theme::name))]
    pub theme: Option<Theme>,
    /// Take keys and colours from this TOML file [default: wcodec/tui.toml in $XDG_CONFIG_HOME or ~/.config, if it is there].
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// Draw with characters of ASCII only; `auto` does so where the locale has another character set than UTF-8.
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto", default_missing_value = "always")]
    pub ascii: When,
    /// Use the mouse: wheel and clicks. The terminal's own selection then needs Shift.
    #[arg(long)]
    pub mouse: bool,

    /// Append what happens to this file, with times.
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Print completions for a shell.
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
    /// Print the manual page.
    #[arg(long, exclusive = true)]
    pub man: bool,

    /// Folders in which nvCOMP is looked for, too: the caller's, no flag.
    #[arg(skip)]
    pub nvcomp_folders: Vec<PathBuf>,
}

/// Whether something is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// As the surroundings tell.
    Auto,
    /// In any case.
    Always,
    /// In no case.
    Never,
}

/// A value parser of words, each of which stands for one of `all`.
fn words<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |word| {
        // Only these words get here.
        all.into_iter().find(|&t| name(t) == word).ok_or("no such word")
    })
}

fn tabs() -> impl TypedValueParser<Value = Tab> {
    let word = |tab: Tab| PossibleValue::new(tab.name()).alias(tab.earlier());
    PossibleValuesParser::new(Tab::ALL.map(word))
        .try_map(|word| Tab::ALL.into_iter().find(|t| t.name() == word || t.earlier() == word).ok_or("no such word"))
}

fn device(text: &str) -> Result<Device, String> {
    let wrong = || format!("'{text}' is none of cpu, cuda and cuda:N");
    match text.split_once(':') {
        None if text == "cpu" => Ok(Device::Cpu),
        None if text == "cuda" => Ok(Device::Gpu(0)),
        Some(("cuda", n)) => n.parse().map(Device::Gpu).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// The job that a command line asks for.
#[derive(Clone, Debug)]
pub enum Job {
    /// To look into a file.
    Inspect(Box<Options>),
    /// To print a text on stdout, and end well: help, version, completions, the manual page.
    Print(String),
    /// To print a message on stderr and end with status 2.
    Refuse(String),
}

/// Reads a command line, the program's name first.
///
/// ```
/// use wcodec_tui::cli::{Job, parse};
/// let Job::Inspect(options) = parse(["wcodec-tui", "a.wcodec", "--sort", "ratio"]) else { panic!() };
/// assert_eq!(options.sort.map(|c| c.name()), Some("ratio"));
/// assert!(matches!(parse(["wcodec-tui"]), Job::Refuse(why) if why.contains("<FILE>")));
/// ```
pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Job {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(e) if e.use_stderr() => return Job::Refuse(e.render().to_string()),
        Err(e) => return Job::Print(e.render().to_string()),
    };
    let mut text = Vec::new();
    if let Some(shell) = options.completions {
        clap_complete::generate(shell, &mut Options::command(), PROGRAM, &mut text);
    } else if options.man {
        if let Err(e) = clap_mangen::Man::new(Options::command()).render(&mut text) {
            return Job::Refuse(format!("{PROGRAM}: error: {e}"));
        }
    } else {
        return Job::Inspect(Box::new(options));
    }
    Job::Print(String::from_utf8_lossy(&text).into_owned())
}
