//! The table of keys.

use crossterm::event::{KeyCode, KeyModifiers};

use super::{Command, Context};
use crate::state::Tab;

/// A line of the table.
#[derive(Debug)]
pub struct Binding {
    /// The keys.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// The text for them in help and footer.
    pub shown: &'static str,
    /// The command that they ask for.
    pub command: Command,
    /// The views that have it; everywhere but in overlays if empty.
    pub contexts: &'static [Context],
    /// A sentence for the help.
    pub help: &'static str,
    /// A word for the footer; not shown there if empty.
    pub footer: &'static str,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

const fn c(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), NONE)
}

const fn ctrl(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), CTRL)
}

const fn k(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

/// The views: everywhere but in overlays.
pub const VIEWS: &[Context] = &[
    Context::Overview,
    Context::List,
    Context::Tensor,
    Context::Bits,
    Context::Speed,
    Context::Compare,
    Context::File,
];
const LISTS: &[Context] = &[Context::Overview, Context::List, Context::Compare, Context::File, Context::Speed];
const NAMED: &[Context] = &[Context::Overview, Context::List, Context::Tensor, Context::Speed, Context::Compare];
/// Views in which something moves to the left and to the right; in the others these keys change the view.
const GRIDS: &[Context] = &[Context::Overview, Context::List];
const STILL: &[Context] = &[Context::Tensor, Context::Bits, Context::Speed, Context::Compare, Context::File];
const ROWS: &[Context] = &[Context::List, Context::Tensor, Context::Speed, Context::Compare];

const OVERLAYS: &[Context] = &[Context::Help, Context::Columns];

/// The keys that there are unless a [file](file) says otherwise. Of two lines with a key, the first one whose context fits counts.
pub const BINDINGS: &[Binding] = &[
    b(&[k(KeyCode::Up), c('k')], "k ↑", Command::Up, &[], "one row up", ""),
    b(&[k(KeyCode::Down), c('j')], "j ↓", Command::Down, &[], "one row down", ""),
    b(&[c('u'), ctrl('u')], "u", Command::HalfUp, &[], "half a page up", ""),
    b(&[c('d'), ctrl('d')], "d", Command::HalfDown, &[], "half a page down", ""),
    b(&[k(KeyCode::PageUp), ctrl('b')], "PgUp", Command::PageUp, &[], "a page up", ""),
    b(&[k(KeyCode::PageDown), ctrl('f')], "PgDn", Command::PageDown, &[], "a page down", ""),
    b(&[c('g'), k(KeyCode::Home)], "g", Command::Top, &[], "to the first row", ""),
    b(&[c('G'), k(KeyCode::End)], "G", Command::Bottom, &[], "to the last row", ""),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::Left, GRIDS, "a cell or column to the left; fold the module", ""),
    b(
        &[k(KeyCode::Right), c('l')],
        "l →",
        Command::Right,
        GRIDS,
        "a cell or column to the right; unfold the module",
        "",
    ),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::PreviousView, STILL, "the view before", ""),
    b(&[k(KeyCode::Right), c('l')], "l →", Command::NextView, STILL, "the next view", ""),
    b(&[k(KeyCode::Enter)], "Enter", Command::Enter, LISTS, "look at the tensor; fold or unfold a module", "open"),
    b(&[c('/')], "/", Command::Search, &[], "filter by text or regular expression", "filter"),
    b(&[c('n')], "n", Command::Next, ROWS, "the next tensor; in compare, the next difference", ""),
    b(&[c('N')], "N", Command::Previous, ROWS, "the one before", ""),
    b(&[c('m')], "m", Command::Measure, &[Context::Overview], "colour by the next measure", "measure"),
    b(&[c('M')], "M", Command::MeasureBack, &[Context::Overview], "colour by the measure before", ""),
    b(&[c('s')], "s", Command::Sort, &[Context::List], "sort by the next column", "sort"),
    b(&[c('c')], "c", Command::Choose, &[Context::List], "choose the column to sort by", "column"),
    b(&[c('b')], "b", Command::Bars, &[Context::List], "bars of ratios, or of shares of the stored bytes", ""),
    b(&[c('s')], "s", Command::Sort, &[Context::Compare], "sort by size of the difference, or by name", "sort"),
    b(&[c('s')], "s", Command::Sort, &[Context::Speed], "sort by time, by GB/s, by size or by name", "sort"),
    b(&[c('S')], "S", Command::Reverse, &[Context::List], "turn the order round", ""),
    b(&[c(' ')], "Space", Command::Fold, &[Context::List], "fold or unfold the module", "fold"),
    b(&[c('z')], "z", Command::FoldAll, &[Context::List], "fold or unfold all modules", ""),
    b(&[c('t')], "t", Command::Tree, &[Context::List], "tree of modules or flat list", "tree"),
    b(&[c('e')], "e", Command::Entropies, &[Context::List], "compute entropies that the index has not", ""),
    b(
        &[c('v')],
        "v",
        Command::Verify,
        &[Context::Overview, Context::List, Context::Tensor],
        "verify hashes and decoding of what is selected",
        "verify",
    ),
    b(&[c('V')], "V", Command::VerifyAll, &[], "verify the whole file", ""),
    b(&[c('E')], "E", Command::Encode, &[], "encode this checkpoint to a .wcodec file next to it", ""),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Tensor], "more bins", "bins"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Tensor], "fewer bins", ""),
    b(&[c('a')], "a", Command::Axis, &[Context::Tensor], "logarithmic or linear axis of scales", "axis"),
    b(&[c(' ')], "Space", Command::Pause, &[Context::Speed], "pause or go on", "pause"),
    b(&[c('+'), c('=')], "+", Command::More, &[Context::Speed], "more threads", "threads"),
    b(&[c('-')], "-", Command::Fewer, &[Context::Speed], "fewer threads", ""),
    b(&[c('D')], "D", Command::Device, &[Context::Speed], "the next device", "device"),
    b(&[c('m')], "m", Command::Scope, &[Context::Speed], "time the whole file, the layer or its module", "scope"),
    b(&[c('x')], "x", Command::Export, &[Context::Speed], "write the timings to a JSON file", "export"),
    b(
        &[c('o')],
        "o",
        Command::Differences,
        &[Context::Compare],
        "only tensors with other values, or all",
        "only differences",
    ),
    b(&[c('y')], "y", Command::Copy, NAMED, "copy the tensor's name (also over ssh)", ""),
    b(&[c('r')], "r", Command::Reload, &[], "read the file again", ""),
    b(&[c('P')], "P", Command::Picture, &[], "write the heat map as a picture (SVG)", "picture"),
    b(&[c('1'), c('0')], "1", Command::View(Tab::Overview), &[], "Overview: layers by role, and where the bits go", ""),
    b(&[c('2')], "2", Command::View(Tab::List), &[], "List: all tensors", ""),
    b(&[c('3')], "3", Command::View(Tab::Tensor), &[], "Tensor: one of them, with histograms and hashes", ""),
    b(&[c('4')], "4", Command::View(Tab::Bits), &[], "Bits: plan, quality, bits by role and layer", ""),
    b(&[c('5')], "5", Command::View(Tab::Speed), &[], "Speed: how fast it decodes here", ""),
    b(&[c('6')], "6", Command::View(Tab::Compare), &[], "Compare: two files side by side", ""),
    b(&[c('7')], "7", Command::View(Tab::File), &[], "File: its map", ""),
    b(
        &[k(KeyCode::Tab), c(']'), (KeyCode::Right, SHIFT)],
        "Tab ]",
        Command::NextView,
        &[],
        "the next view; Shift with an arrow does it, too",
        "view",
    ),
    b(
        &[k(KeyCode::BackTab), (KeyCode::BackTab, SHIFT), c('['), (KeyCode::Left, SHIFT)],
        "[",
        Command::PreviousView,
        &[],
        "the view before; so does Shift-Tab",
        "",
    ),
    b(&[c('T')], "T", Command::Theme, &[], "other colours", ""),
    b(&[ctrl('l')], "Ctrl-L", Command::Redraw, &[], "draw everything anew", ""),
    b(&[c('?'), k(KeyCode::F(1))], "?", Command::Help, &[], "this list", "help"),
    b(&[c('q'), k(KeyCode::Esc)], "q Esc", Command::Back, &[], "back: overlay, filter, view; then quit", "back"),
    b(&[ctrl('c')], "Ctrl-C", Command::Quit, &[], "quit at once", ""),
    b(&[k(KeyCode::Up), c('k')], "", Command::Up, OVERLAYS, "", ""),
    b(&[k(KeyCode::Down), c('j')], "", Command::Down, OVERLAYS, "", ""),
    b(&[k(KeyCode::Enter)], "", Command::Enter, &[Context::Columns], "", ""),
    b(&[c('q'), k(KeyCode::Esc)], "q", Command::Back, &[Context::Columns], "", "close"),
    b(&[c('u'), k(KeyCode::PageUp)], "", Command::PageUp, &[Context::Help], "", ""),
    b(&[c('d'), k(KeyCode::PageDown), c(' ')], "", Command::PageDown, &[Context::Help], "", ""),
    b(&[c('g'), k(KeyCode::Home)], "", Command::Top, &[Context::Help], "", ""),
    b(&[c('G'), k(KeyCode::End)], "", Command::Bottom, &[Context::Help], "", ""),
    b(
        &[c('q'), c('?'), k(KeyCode::Esc), k(KeyCode::Enter), k(KeyCode::F(1))],
        "q",
        Command::Back,
        &[Context::Help],
        "",
        "close",
    ),
    b(&[ctrl('c')], "", Command::Quit, &[Context::Help, Context::Search, Context::Columns], "", ""),
];

const fn b(
    keys: &'static [(KeyCode, KeyModifiers)],
    shown: &'static str,
    command: Command,
    contexts: &'static [Context],
    help: &'static str,
    footer: &'static str,
) -> Binding {
    Binding { keys, shown, command, contexts, help, footer }
}
