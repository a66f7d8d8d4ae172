//! Commands, and their words in a file of keys.

use crate::views::Tab;

macro_rules! commands {
    ($($command:ident = $word:literal, $about:literal;)*) => {
        /// Something that a key asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            /// Another view.
            View(Tab),
            $(#[doc = $about] $command,)*
        }

        /// Commands but those for single views, by their words.
        const WORDS: &[(&str, Command)] = &[$(($word, Command::$command)),*];
    };
}

commands! {
    Up = "up", "Move the selection, or scroll.";
    Down = "down", "Move down.";
    HalfUp = "half-up", "Half a page up.";
    HalfDown = "half-down", "Half a page down.";
    PageUp = "page-up", "A page up.";
    PageDown = "page-down", "A page down.";
    Top = "top", "To the first row.";
    Bottom = "bottom", "To the last row.";
    Left = "left", "Columns to the left; fold.";
    Right = "right", "Columns to the right; unfold.";
    Enter = "open", "Open what is selected.";
    Back = "back", "One step back: overlay, filter, view, program.";
    Quit = "quit", "Leave at once.";
    NextView = "next-view", "The next view.";
    PreviousView = "previous-view", "The view before.";
    Search = "filter", "Open the search box.";
    Next = "next", "The next tensor that the filter leaves, or the next difference.";
    Previous = "previous", "The one before.";
    Sort = "sort", "Sort by the next column; in compare and timing, by something else.";
    Choose = "column", "Choose the column to sort by.";
    Measure = "measure", "Colour by the next measure.";
    MeasureBack = "measure-back", "Colour by the measure before.";
    Bars = "bars", "Bars of ratios, or of shares of the stored bytes.";
    Reverse = "reverse", "Turn the order round.";
    Fold = "fold", "Fold or unfold a module.";
    FoldAll = "fold-all", "Fold or unfold all.";
    Tree = "tree", "Tree or flat list.";
    Entropies = "entropies", "Compute entropies that the index has not.";
    Verify = "verify", "Verify what is selected.";
    VerifyAll = "verify-all", "Verify the whole file.";
    Encode = "encode", "Encode a checkpoint to a file next to it.";
    Copy = "copy", "Copy the name of what is selected.";
    Reload = "reload", "Read the file again.";
    Theme = "theme", "Other colours.";
    Help = "help", "The list of keys.";
    More = "more", "More bins, or threads.";
    Fewer = "fewer", "Fewer.";
    Axis = "axis", "Logarithmic or linear axis.";
    Differences = "differences", "Only differences, or all.";
    Pause = "pause", "Pause or go on.";
    Device = "device", "Another device.";
    Scope = "scope", "Time the layer, the selection or the file.";
    Export = "export", "Write a JSON file.";
    Picture = "picture", "Write the heat map as a picture.";
    Redraw = "redraw", "Draw everything anew.";
}

/// All commands by name.
pub fn commands() -> impl Iterator<Item = (String, Command)> {
    let views = Tab::ALL.into_iter().map(|tab| (format!("view-{}", tab.name()), Command::View(tab)));
    WORDS.iter().map(|&(word, command)| (word.to_owned(), command)).chain(views)
}

/// The command of a name, which may be that of an earlier version.
pub fn command(name: &str) -> Option<Command> {
    let found = commands().find(|(n, _)| n == name).map(|(_, command)| command);
    let earlier = || Tab::ALL.into_iter().find(|t| name.strip_prefix("view-") == Some(t.earlier())).map(Command::View);
    found.or_else(earlier)
}

/// The name of a command.
pub fn name_of(command: Command) -> String {
    commands().find(|(_, c)| *c == command).map_or_else(String::new, |(name, _)| name)
}
