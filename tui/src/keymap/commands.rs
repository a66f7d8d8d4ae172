//! Commands, and their words in a file of keys.

use crate::views::Tab;

macro_rules! commands {
    ($($(#[$doc:meta])* $command:ident = $word:literal,)*) => {
        /// Something that a key asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            /// Another view.
            View(Tab),
            $($(#[$doc])* $command,)*
        }

        /// Commands but those for single views, by their words.
        const WORDS: &[(&str, Command)] = &[$(($word, Command::$command)),*];
    };
}

commands! {
    /// Move the selection, or scroll.
    Up = "up",
    /// Move down.
    Down = "down",
    /// Half a page up.
    HalfUp = "half-up",
    /// Half a page down.
    HalfDown = "half-down",
    /// A page up.
    PageUp = "page-up",
    /// A page down.
    PageDown = "page-down",
    /// To the first row.
    Top = "top",
    /// To the last row.
    Bottom = "bottom",
    /// Columns to the left; fold.
    Left = "left",
    /// Columns to the right; unfold.
    Right = "right",
    /// Open what is selected.
    Enter = "open",
    /// One step back: overlay, filter, view, program.
    Back = "back",
    /// Leave at once.
    Quit = "quit",
    /// The next view.
    NextView = "next-view",
    /// The view before.
    PreviousView = "previous-view",
    /// Open the search box.
    Search = "filter",
    /// The next tensor that the filter leaves, or the next difference.
    Next = "next",
    /// The one before.
    Previous = "previous",
    /// Sort by the next column; in compare and timing, by something else.
    Sort = "sort",
    /// Choose the column to sort by.
    Choose = "column",
    /// Colour by the next measure.
    Measure = "measure",
    /// Colour by the measure before.
    MeasureBack = "measure-back",
    /// Bars of ratios, or of shares of the stored bytes.
    Bars = "bars",
    /// Turn the order round.
    Reverse = "reverse",
    /// Fold or unfold a module.
    Fold = "fold",
    /// Fold or unfold all.
    FoldAll = "fold-all",
    /// Tree or flat list.
    Tree = "tree",
    /// Compute entropies that the index has not.
    Entropies = "entropies",
    /// Verify what is selected.
    Verify = "verify",
    /// Verify the whole file.
    VerifyAll = "verify-all",
    /// Encode a checkpoint to a file next to it.
    Encode = "encode",
    /// Copy the name of what is selected.
    Copy = "copy",
    /// Read the file again.
    Reload = "reload",
    /// Other colours.
    Theme = "theme",
    /// The list of keys.
    Help = "help",
    /// More bins, or threads.
    More = "more",
    /// Fewer.
    Fewer = "fewer",
    /// Logarithmic or linear axis.
    Axis = "axis",
    /// Only differences, or all.
    Differences = "differences",
    /// Pause or go on.
    Pause = "pause",
    /// Another device.
    Device = "device",
    /// Time the layer, the selection or the file.
    Scope = "scope",
    /// Write a JSON file.
    Export = "export",
    /// Write the heat map as a picture.
    Picture = "picture",
    /// Draw everything anew.
    Redraw = "redraw",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::{Context, Keymap};

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
}
