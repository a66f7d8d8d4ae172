//! The views. Each is a file, with a folder where it is large, that implements [`View`]; this file names them once.

pub mod bits;
pub mod compare;
pub mod file;
pub mod list;
pub mod overview;
pub mod speed;
pub mod tensor;

use crate::draw::{Canvas, Cursor, Moves, Pen, Scroll};
use crate::keymap::{Binding, Command};
use crate::model::FileModel;
use crate::run::once::Once;
use crate::state::State;

worded! {
    /// The views, in the order of their keys, which are digits from 1 on. The word is that on the tab, on the command line and in files of keys; the
    /// sentence is the help's.
    #[derive(Default)]
    Tab {
        Overview = "overview", "Overview: layers by role, and where the bits go";
        #[default]
        List = "list", "List: all tensors";
        Tensor = "tensor", "Tensor: one of them, with histograms and hashes";
        Bits = "bits", "Bits: plan, quality, bits by role and layer";
        Speed = "speed", "Speed: how fast it decodes here";
        Compare = "compare", "Compare: two files side by side";
        File = "file", "File: its map";
    }
}

impl Tab {
    fn parts(self) -> (&'static dyn View, &'static Facts) {
        match self {
            Self::Overview => (&overview::Overview, &overview::FACTS),
            Self::List => (&list::List, &list::FACTS),
            Self::Tensor => (&tensor::Tensor, &tensor::FACTS),
            Self::Bits => (&bits::Bits, &bits::FACTS),
            Self::Speed => (&speed::Speed, &speed::FACTS),
            Self::Compare => (&compare::Compare, &compare::FACTS),
            Self::File => (&file::File, &file::FACTS),
        }
    }

    /// The view that it shows.
    pub fn view(self) -> &'static dyn View {
        self.parts().0
    }

    /// The keys of that view, and words on them.
    pub fn facts(self) -> &'static Facts {
        self.parts().1
    }

    /// The word of earlier versions, which is still understood.
    pub fn earlier(self) -> &'static str {
        self.facts().earlier
    }
}

/// The states of the views.
#[derive(Debug, Default)]
pub struct Views {
    /// Lines of [`bits`] that are scrolled out at the top.
    pub bits: Scroll,
    /// The state of [`compare`].
    pub compare: compare::CompareState,
    /// The selected region of [`mod@file`].
    pub file: Cursor,
    /// The state of [`list`].
    pub list: list::ListState,
    /// The state of [`overview`].
    pub overview: overview::OverviewState,
    /// The state of [`speed`].
    pub speed: speed::SpeedState,
    /// The state of [`tensor`].
    pub tensor: tensor::TensorState,
}

impl Views {
    /// Views of a file, and of one that it is compared with.
    pub fn new(file: &FileModel, other: Option<&FileModel>) -> Self {
        Self {
            compare: compare::CompareState::new(file, other),
            list: list::ListState::new(file),
            overview: overview::OverviewState::new(file),
            ..Self::default()
        }
    }
}

/// Facts of a view that never change, and the keys that it has beside those of all views.
#[derive(Debug)]
pub struct Facts {
    /// The word of earlier versions, which is still understood.
    pub earlier: &'static str,
    /// Words that the view makes use of, and their meanings.
    pub words: &'static [(&'static str, &'static str)],
    /// Keys that are its own, in the order of footer and help.
    pub keys: &'static [Binding],
    /// Commands that some views have and others have not, and that this one has.
    pub shared: &'static [Command],
    /// Whether `back` leads to it from the views of one tensor.
    pub is_home: bool,
}

/// All that the program asks of a view. A view keeps nothing itself: it reads and changes the [`State`].
pub trait View: Sync {
    /// Whether it times decoding while it is shown.
    fn times(&self, _state: &State) -> bool {
        false
    }

    /// Draws the part of the screen between the tabs and the footer.
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State);

    /// Draws the line above the keys where there is nothing else to say.
    fn footer(&self, pen: Pen<'_>, state: &State);

    /// The text that `--plain` prints for it.
    ///
    /// # Errors
    /// It cannot be printed, and why.
    fn print(&self, once: &Once<'_>) -> Result<String, String> {
        once.table()
    }

    /// Does the work of a key that neither moves nor is the same everywhere.
    fn command(&self, _state: &mut State, _command: Command) {}

    /// Selects the thing at a column and a row of the screen.
    fn click(&self, _state: &mut State, _x: u16, _y: u16) {}

    /// The list or text that moving keys move in.
    fn moves<'a>(&self, _state: &'a mut State) -> Moves<'a> {
        None
    }

    /// Keeps its selection within its list, and on the screen. After each action the view that is shown is asked, and the list of all
    /// tensors, whose selection the views of one tensor share.
    fn fit(&self, state: &mut State) {
        if let Some((list, len, height)) = self.moves(state) {
            list.fit(len, height);
        }
    }

    /// Asks for facts that the screen lacks. After each action the view that is shown is asked.
    fn watch(&self, _state: &mut State) {}

    /// It is opened; `again` where it was shown already.
    fn enter(&self, state: &mut State, again: bool) {
        if !again {
            self.resume(state);
        }
    }

    /// It goes on with its work: it was opened, or its file was read again.
    fn resume(&self, _state: &mut State) {}

    /// The file was replaced: what is known of the one before is forgotten.
    fn renew(&self, _state: &mut State) {}

    /// Another view takes its place.
    fn leave(&self, _state: &mut State) {}

    /// The name of the selected tensor.
    fn selected_name(&self, state: &State) -> Option<String> {
        state.current().map(|i| state.file.tensors[i].name.clone())
    }
}
