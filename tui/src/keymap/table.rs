//! The table of keys: those of all views, those that some views have, and those of overlays. A view's own keys stand in its file.

use super::{Command, Context};

/// A line of the table.
#[derive(Debug)]
pub struct Binding {
    /// The keys by their names, with spaces between them; help and footer show those before `|`.
    pub keys: &'static str,
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

/// Some keys, and what they ask for.
pub const fn b(keys: &'static str, command: Command, help: &'static str, footer: &'static str) -> Binding {
    Binding { keys, command, scope: Scope::Usual, help, footer }
}

/// The key that some views have among their own.
pub const VERIFY: Binding = b("v", Command::Verify, "verify hashes and decoding of what is selected", "verify");

impl Binding {
    const fn of(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    const fn shared(self) -> Self {
        self.of(Scope::Sharing)
    }
}

/// A key of overlays, which the help does not tell of.
const fn over(keys: &'static str, command: Command, contexts: &'static [Context], footer: &'static str) -> Binding {
    b(keys, command, "", footer).of(Scope::Over(contexts))
}

const LISTS: &[Context] = &[Context::Help, Context::Columns];
const HELP: &[Context] = &[Context::Help];
const COLUMNS: &[Context] = &[Context::Columns];
const OVERLAYS: &[Context] = &[Context::Help, Context::Search, Context::Columns];

/// Keys before those of the views.
pub const MOVES: &[Binding] = &[
    b("k ↑", Command::Up, "one row up", ""),
    b("j ↓", Command::Down, "one row down", ""),
    b("u | Ctrl-u", Command::HalfUp, "half a page up", ""),
    b("d | Ctrl-d", Command::HalfDown, "half a page down", ""),
    b("PgUp | Ctrl-b", Command::PageUp, "a page up", ""),
    b("PgDn | Ctrl-f", Command::PageDown, "a page down", ""),
    b("g | Home", Command::Top, "to the first row", ""),
    b("G | End", Command::Bottom, "to the last row", ""),
    b("h ←", Command::Left, "a cell or column to the left; fold the module", "").shared(),
    b("l →", Command::Right, "a cell or column to the right; unfold the module", "").shared(),
    b("h ←", Command::PreviousView, "the view before", "").of(Scope::Without(Command::Left)),
    b("l →", Command::NextView, "the next view", "").of(Scope::Without(Command::Right)),
    b("Enter", Command::Enter, "look at the tensor; fold or unfold a module", "open").shared(),
    b("/", Command::Search, "filter by text or regular expression", "filter"),
    b("n", Command::Next, "the next tensor; in compare, the next difference", "").shared(),
    b("N", Command::Previous, "the one before", "").shared(),
];

/// Keys behind those of the views, before their digits.
pub const GENERAL: &[Binding] = &[
    b("V", Command::VerifyAll, "verify the whole file", ""),
    b("E", Command::Encode, "encode this checkpoint to a .wcodec file next to it", ""),
    b("y", Command::Copy, "copy the tensor's name (also over ssh)", "").shared(),
    b("r", Command::Reload, "read the file again", ""),
    b("P", Command::Picture, "write the heat map as a picture (SVG)", "picture"),
];

/// Keys behind the digits.
pub const LAST: &[Binding] = &[
    b("Tab ] | Shift-Right", Command::NextView, "the next view; Shift with an arrow does it, too", "view"),
    b("[ | Shift-Tab Shift-Left", Command::PreviousView, "the view before; so does Shift-Tab", ""),
    b("T", Command::Theme, "other colours", ""),
    b("Ctrl-L", Command::Redraw, "draw everything anew", ""),
    b("? | F1", Command::Help, "this list", "help"),
    b("q Esc", Command::Back, "back: overlay, filter, view; then quit", "back"),
    b("Ctrl-C", Command::Quit, "quit at once", ""),
];

/// Keys of overlays.
pub const OVER: &[Binding] = &[
    over("| k ↑", Command::Up, LISTS, ""),
    over("| j ↓", Command::Down, LISTS, ""),
    over("| Enter", Command::Enter, COLUMNS, ""),
    over("q | Esc", Command::Back, COLUMNS, "close"),
    over("| u PgUp", Command::PageUp, HELP, ""),
    over("| d PgDn Space", Command::PageDown, HELP, ""),
    over("| g Home", Command::Top, HELP, ""),
    over("| G End", Command::Bottom, HELP, ""),
    over("q | ? Esc Enter F1", Command::Back, HELP, "close"),
    over("| Ctrl-C", Command::Quit, OVERLAYS, ""),
];
