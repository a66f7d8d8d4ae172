//! The table of keys: those of all views, those that some views have, and those of overlays. A view's own keys stand in its file.

use crossterm::event::{KeyCode, KeyModifiers};

use super::{Command, Context};

/// A line of the table.
#[derive(Debug)]
pub struct Binding {
    /// The keys.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// The text for them in help and footer.
    pub shown: &'static str,
    /// The command that they ask for.
    pub command: Command,
    /// The places that have it.
    pub scope: Scope,
    /// A sentence for the help.
    pub help: &'static str,
    /// A word for the footer; not shown there if empty.
    pub footer: &'static str,
}

/// Places in which keys count.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    /// The view in whose file the binding stands; every view where it stands here.
    Usual,
    /// The views that name the command among those that they share.
    Sharing,
    /// The views that do not share this command: its keys are free there.
    Without(Command),
    /// Overlays.
    Over(&'static [Context]),
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

/// A character.
pub const fn c(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), NONE)
}

const fn ctrl(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), CTRL)
}

const fn k(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

/// Some keys, and what they ask for.
pub const fn b(
    keys: &'static [(KeyCode, KeyModifiers)],
    shown: &'static str,
    command: Command,
    help: &'static str,
    footer: &'static str,
) -> Binding {
    Binding { keys, shown, command, scope: Scope::Usual, help, footer }
}

/// The key that some views have among their own.
pub const VERIFY: Binding =
    b(&[c('v')], "v", Command::Verify, "verify hashes and decoding of what is selected", "verify");

impl Binding {
    const fn of(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    const fn shared(self) -> Self {
        self.of(Scope::Sharing)
    }
}

/// A key of overlays, which help and footer do not tell of.
const fn over(keys: &'static [(KeyCode, KeyModifiers)], command: Command, contexts: &'static [Context]) -> Binding {
    b(keys, "", command, "", "").of(Scope::Over(contexts))
}

const LISTS: &[Context] = &[Context::Help, Context::Columns];
const HELP: &[Context] = &[Context::Help];
const COLUMNS: &[Context] = &[Context::Columns];
const OVERLAYS: &[Context] = &[Context::Help, Context::Search, Context::Columns];

/// Keys before those of the views.
pub const MOVES: &[Binding] = &[
    b(&[k(KeyCode::Up), c('k')], "k ↑", Command::Up, "one row up", ""),
    b(&[k(KeyCode::Down), c('j')], "j ↓", Command::Down, "one row down", ""),
    b(&[c('u'), ctrl('u')], "u", Command::HalfUp, "half a page up", ""),
    b(&[c('d'), ctrl('d')], "d", Command::HalfDown, "half a page down", ""),
    b(&[k(KeyCode::PageUp), ctrl('b')], "PgUp", Command::PageUp, "a page up", ""),
    b(&[k(KeyCode::PageDown), ctrl('f')], "PgDn", Command::PageDown, "a page down", ""),
    b(&[c('g'), k(KeyCode::Home)], "g", Command::Top, "to the first row", ""),
    b(&[c('G'), k(KeyCode::End)], "G", Command::Bottom, "to the last row", ""),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::Left, "a cell or column to the left; fold the module", "").shared(),
    b(&[k(KeyCode::Right), c('l')], "l →", Command::Right, "a cell or column to the right; unfold the module", "")
        .shared(),
    b(&[k(KeyCode::Left), c('h')], "h ←", Command::PreviousView, "the view before", "")
        .of(Scope::Without(Command::Left)),
    b(&[k(KeyCode::Right), c('l')], "l →", Command::NextView, "the next view", "").of(Scope::Without(Command::Right)),
    b(&[k(KeyCode::Enter)], "Enter", Command::Enter, "look at the tensor; fold or unfold a module", "open").shared(),
    b(&[c('/')], "/", Command::Search, "filter by text or regular expression", "filter"),
    b(&[c('n')], "n", Command::Next, "the next tensor; in compare, the next difference", "").shared(),
    b(&[c('N')], "N", Command::Previous, "the one before", "").shared(),
];

/// Keys behind those of the views, before their digits.
pub const GENERAL: &[Binding] = &[
    b(&[c('V')], "V", Command::VerifyAll, "verify the whole file", ""),
    b(&[c('E')], "E", Command::Encode, "encode this checkpoint to a .wcodec file next to it", ""),
    b(&[c('y')], "y", Command::Copy, "copy the tensor's name (also over ssh)", "").shared(),
    b(&[c('r')], "r", Command::Reload, "read the file again", ""),
    b(&[c('P')], "P", Command::Picture, "write the heat map as a picture (SVG)", "picture"),
];

/// Keys behind the digits.
pub const LAST: &[Binding] = &[
    b(
        &[k(KeyCode::Tab), c(']'), (KeyCode::Right, SHIFT)],
        "Tab ]",
        Command::NextView,
        "the next view; Shift with an arrow does it, too",
        "view",
    ),
    b(
        &[k(KeyCode::BackTab), (KeyCode::BackTab, SHIFT), c('['), (KeyCode::Left, SHIFT)],
        "[",
        Command::PreviousView,
        "the view before; so does Shift-Tab",
        "",
    ),
    b(&[c('T')], "T", Command::Theme, "other colours", ""),
    b(&[ctrl('l')], "Ctrl-L", Command::Redraw, "draw everything anew", ""),
    b(&[c('?'), k(KeyCode::F(1))], "?", Command::Help, "this list", "help"),
    b(&[c('q'), k(KeyCode::Esc)], "q Esc", Command::Back, "back: overlay, filter, view; then quit", "back"),
    b(&[ctrl('c')], "Ctrl-C", Command::Quit, "quit at once", ""),
];

/// Keys of overlays.
pub const OVER: &[Binding] = &[
    over(&[k(KeyCode::Up), c('k')], Command::Up, LISTS),
    over(&[k(KeyCode::Down), c('j')], Command::Down, LISTS),
    over(&[k(KeyCode::Enter)], Command::Enter, COLUMNS),
    b(&[c('q'), k(KeyCode::Esc)], "q", Command::Back, "", "close").of(Scope::Over(COLUMNS)),
    over(&[c('u'), k(KeyCode::PageUp)], Command::PageUp, HELP),
    over(&[c('d'), k(KeyCode::PageDown), c(' ')], Command::PageDown, HELP),
    over(&[c('g'), k(KeyCode::Home)], Command::Top, HELP),
    over(&[c('G'), k(KeyCode::End)], Command::Bottom, HELP),
    b(&[c('q'), c('?'), k(KeyCode::Esc), k(KeyCode::Enter), k(KeyCode::F(1))], "q", Command::Back, "", "close")
        .of(Scope::Over(HELP)),
    over(&[ctrl('c')], Command::Quit, OVERLAYS),
];
