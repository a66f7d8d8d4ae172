//! All that the screen shows, and nothing else: no threads, no clock, no terminal.

use std::collections::HashMap;
use std::sync::Arc;

use tui_input::Input;

use crate::draw::{Look, Scroll};
use crate::effect::Effect;
use crate::encode::EncodeState;
use crate::estimate::Would;
use crate::keymap::{Context, Keymap};
use crate::menu::Menu;
use crate::model::FileModel;
use crate::stats::{Fetch, LayerStats, Verdict};
use crate::views::{Tab, Views};

/// The thing that lies over the view and takes the keys.
#[derive(Clone, Debug, Default)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// All keys.
    Help(Scroll),
    /// A list to choose from, and its selected item.
    Menu(Menu, usize),
    /// The search box; what was filtered by before, to go back to.
    Search {
        /// The typed text.
        input: Input,
        /// The filter that was there.
        before: String,
    },
}

/// A line for the user, at the bottom until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The words.
    pub text: String,
    /// Whether something went wrong.
    pub error: bool,
}

/// Knowledge of a tensor beyond the index.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its statistics.
    pub stats: Fetch<Arc<LayerStats>>,
    /// Whether its hashes match.
    pub verdict: Fetch<Verdict>,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    /// The file.
    pub file: Arc<FileModel>,
    /// The file that it is compared with.
    pub other: Option<Arc<FileModel>>,
    /// Whether there is a reference checkpoint to compare values with.
    pub has_reference: bool,
    /// The view.
    pub tab: Tab,
    /// The overlay.
    pub overlay: Overlay,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// Colours and signs.
    pub look: Look,
    /// The keys.
    pub keys: Arc<Keymap>,
    /// A line for the user.
    pub notice: Option<Notice>,
    /// Whether the file changed on disk since it was read.
    pub changed: bool,
    /// Knowledge of tensors, by their places in the file. A new file begins anew.
    pub known: HashMap<usize, Known>,
    /// Counts file changes: reports of workers that looked at an older one are dropped.
    pub generation: u64,
    /// The list that one goes back to from a tensor: the heat map or the table.
    pub home: Tab,
    /// Encoding of the checkpoint, if the file is one.
    pub encode: EncodeState,
    /// The states of the views.
    pub views: Views,
    /// Work that is wanted outside of the state, which [`update`](crate::update::update) hands out.
    pub effects: Vec<Effect>,
}

impl State {
    /// The state after opening.
    pub fn new(file: Arc<FileModel>, other: Option<Arc<FileModel>>, look: Look, size: (u16, u16)) -> Self {
        let views = Views::new(&file, other.as_deref());
        Self {
            file,
            other,
            has_reference: false,
            tab: Tab::default(),
            overlay: Overlay::None,
            size,
            look,
            keys: Arc::default(),
            notice: None,
            changed: false,
            known: HashMap::new(),
            generation: 0,
            home: Tab::List,
            encode: EncodeState::default(),
            views,
            effects: Vec::new(),
        }
    }

    /// Rows that the view has, between the tabs and the footer.
    pub fn body_height(&self) -> usize {
        usize::from(self.size.1).saturating_sub(crate::draw::HEAD_ROWS + crate::draw::FOOT_ROWS)
    }

    /// Whether something is wrong with a tensor, as far as is known.
    pub fn is_damaged(&self, tensor: usize) -> bool {
        let Known { stats, verdict } = self.knows(tensor);
        let is_bad = matches!(verdict, Fetch::Ready(Verdict::Damaged(_)) | Fetch::Failed(_));
        is_bad || stats.failed().is_some() || self.file.missing(tensor) > 0
    }

    /// Knowledge of a tensor.
    pub fn knows(&self, tensor: usize) -> &Known {
        static NOTHING: Known = Known { stats: Fetch::Absent, verdict: Fetch::Absent };
        self.known.get(&tensor).unwrap_or(&NOTHING)
    }

    /// Root of the mean square of what is wrong in a tensor's decoded values, over that of the original's: as measured, or as the file
    /// states it; nothing is wrong where every bit is kept.
    pub fn error(&self, tensor: usize) -> Option<f64> {
        let info = self.file.tensors.get(tensor)?;
        let measured = || Some(self.knows(tensor).stats.ready()?.error.as_ref()?.relative);
        let exact = || matches!(info.scheme.as_str(), "raw" | "lossless").then_some(0.0);
        measured().or(info.error).or_else(exact)
    }

    /// The estimates of a tensor of a checkpoint, as far as they are known.
    pub fn would(&self, tensor: usize) -> Option<&Would> {
        self.encode.would.ready()?.get(&tensor)
    }

    /// The view or overlay that takes the keys now.
    pub fn context(&self) -> Context {
        match (&self.overlay, self.tab) {
            (Overlay::Search { .. }, _) => Context::Search,
            (Overlay::Help(_), _) => Context::Help,
            (Overlay::Menu(..), _) => Context::Columns,
            (Overlay::None, tab) => Context::View(tab),
        }
    }

    /// The tensor that the views of one tensor are about, by its place in the file.
    pub fn current(&self) -> Option<usize> {
        self.views.list.current(&self.file)
    }

    /// Order-0 entropy of a tensor's symbols, bits: from the index, or as computed.
    pub fn entropy(&self, tensor: usize) -> Option<f64> {
        let computed = || Some(self.knows(tensor).stats.ready()?.symbols.as_ref()?.entropy);
        self.file.tensors[tensor].entropy.or_else(computed)
    }

    /// Tells the user something.
    pub fn say(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), error: false });
    }

    /// Tells the user that something went wrong.
    pub fn fail(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), error: true });
    }
}
