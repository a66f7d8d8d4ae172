//! The table of all tensors.

mod columns;
mod rows;
mod table;

pub use self::rows::{Bars, ListState, Row};
use super::{Facts, Tab, View};
use crate::draw::{Canvas, HEAD_ROWS, Moves, Pen, footer, text};
use crate::effect::Effect;
use crate::keymap::{Command, VERIFY, b};
use crate::menu::Menu;
use crate::model::{Sort, order::Column};
use crate::state::{Overlay, State};
use crate::stats::StatsEffect;
use crate::update::{verify, view};

/// All tensors.
pub struct List;

pub(super) const FACTS: Facts = Facts {
    earlier: "layers",
    words: &[
        ("scheme", "how weights become symbols: int8, rate, lossless, raw"),
        ("coder", "how symbols become bytes: rans, huffman, zstd, raw"),
        ("entropy", "bits a symbol that its frequencies alone would take"),
        ("over", "how much more is stored than the entropy"),
    ],
    keys: &[
        b("s", Command::Sort, "sort by the next column", "sort"),
        b("c", Command::Choose, "choose the column to sort by", "column"),
        b("b", Command::Bars, "bars of ratios, or of shares of the stored bytes", ""),
        b("S", Command::Reverse, "turn the order round", ""),
        b("Space", Command::Fold, "fold or unfold the module", "fold"),
        b("z", Command::FoldAll, "fold or unfold all modules", ""),
        b("t", Command::Tree, "tree of modules or flat list", "tree"),
        b("e", Command::Entropies, "compute entropies that the index has not", ""),
        VERIFY,
    ],
    shared: &[Command::Left, Command::Right, Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: true,
};

impl View for List {
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        table::draw(canvas, state);
    }

    /// The order, and the part of the file that the filter leaves.
    fn footer(&self, mut pen: Pen<'_>, state: &State) {
        let (look, list) = (state.look, &state.views.list);
        let all = state.file.tensors.len();
        pen.at_end(&list.cursor.place(list.rows.len()), look.dim());
        let arrow = look.order(list.sort.descending);
        let order = match (list.is_tree(), list.sort.column) {
            (true, _) => "tree".to_owned(),
            (false, Column::Name) if !list.sort.descending => "flat, natural order".to_owned(),
            (false, column) => format!("sorted by {} {arrow}", column.name()),
        };
        if let Some(filter) = &list.filter {
            let part = list.shown.stored_bytes as f64 / (state.file.totals.stored_bytes.max(1)) as f64;
            let found = format!(
                ": {} of {} tensors, {} of the stored bytes",
                text::count(list.shown.tensors as u64),
                text::count(all as u64),
                text::percent(part)
            );
            let name = text::fitted(look, filter.text(), pen.left() / 3);
            pen.put("filter ", look.dim()).put(&name, look.warn()).put(&found, look.dim()).dot();
        }
        if let Some(i) = state.current() {
            footer::would(&mut pen, state, i);
        }
        pen.put(&order, look.dim());
        let means = if list.is_tree() { "" } else { list.sort.column.about() };
        if !means.is_empty() && means.len() + 3 <= pen.left() {
            pen.put(": ", look.dim()).put(means, look.dim());
        }
    }

    fn command(&self, state: &mut State, command: Command) {
        let list = &mut state.views.list;
        match command {
            Command::Next | Command::Previous => next(list, command == Command::Previous),
            Command::Left => left(state),
            Command::Right => match list.row() {
                Some(Row::Group(node)) if list.folded.contains(&node) => fold(state, node),
                _ => list.scroll += 1,
            },
            Command::Enter => match list.row() {
                Some(Row::Group(node)) => fold(state, node),
                Some(Row::Tensor(_)) => view(state, Tab::Tensor),
                None => {}
            },
            Command::Fold => {
                if let Some(node) = module(state) {
                    fold(state, node);
                }
            }
            Command::FoldAll => {
                if list.folded.is_empty() {
                    let nodes = state.file.tree.nodes.iter().enumerate();
                    list.folded = nodes.filter(|(_, n)| n.tensor.is_none()).map(|(i, _)| i).collect();
                } else {
                    list.folded.clear();
                }
                rearrange(state);
            }
            Command::Tree => {
                // In another order there is no tree to turn off: the key turns it on.
                list.tree = !list.is_tree();
                list.sort = Sort::default();
                rearrange(state);
            }
            Command::Sort => {
                let next = list.sort.column.next(false);
                sort(state, next);
            }
            Command::Choose => {
                let at = Column::ALL.iter().position(|&c| c == list.sort.column).unwrap_or(0);
                state.overlay = Overlay::Menu(Menu::Columns, at);
            }
            Command::Bars => list.bars = list.bars.next(false),
            Command::Reverse => {
                list.sort.descending ^= true;
                rearrange(state);
            }
            Command::Entropies => {
                let wanted = |i: &usize| state.entropy(*i).is_none() && state.file.tensors[*i].makes_symbols;
                let tensors: Vec<usize> = (0..state.file.tensors.len()).filter(wanted).collect();
                if tensors.is_empty() || state.file.original().is_some() {
                    state.say("all entropies are known");
                } else {
                    let generation = state.generation;
                    state.effects.push(Effect::Stats(generation, StatsEffect::Entropies(tensors)));
                }
            }
            Command::Verify => {
                if let Some(row) = list.row() {
                    let tensors = list.tensors_of(&state.file, row).collect();
                    verify(state, tensors);
                }
            }
            _ => {}
        }
    }

    /// Selects the row below; the head of a column sorts by it.
    fn click(&self, state: &mut State, x: u16, y: u16) {
        if usize::from(y) == HEAD_ROWS && state.body_height() > 1 {
            if let Some(column) = columns::Columns::new(state, usize::from(state.size.0)).at(usize::from(x)) {
                choose(state, column);
            }
            return;
        }
        let height = height(state);
        let list = &mut state.views.list;
        if let Some(at) = usize::from(y).checked_sub(HEAD_ROWS + 1)
            && at < height
            && list.cursor.offset + at < list.rows.len()
        {
            list.cursor.selected = list.cursor.offset + at;
        }
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let height = height(state);
        let list = &mut state.views.list;
        Some((&mut list.cursor, list.rows.len(), height))
    }

    fn fit(&self, state: &mut State) {
        state.views.list.scroll = state.views.list.scroll.min(columns::most_scroll(state));
        if let Some((list, len, height)) = self.moves(state) {
            list.fit(len, height);
        }
    }

    /// Order and filter stay.
    fn renew(&self, state: &mut State) {
        let list = &mut state.views.list;
        list.rows.clear();
        list.folded.clear();
        list.arrange(&state.file, |_| None);
    }
}

/// Rows of the table without its head and the line of totals.
fn height(state: &State) -> usize {
    state.body_height().saturating_sub(2)
}

/// Works out the rows anew.
pub fn rearrange(state: &mut State) {
    let mut list = std::mem::take(&mut state.views.list);
    list.arrange(&state.file, |i| state.entropy(i));
    state.views.list = list;
}

/// Sorts by a column, the most interesting rows first.
fn sort(state: &mut State, column: Column) {
    state.views.list.sort = Sort::by(column);
    rearrange(state);
    state.views.list.cursor = Default::default();
}

/// Sorts by a column; by the one that it is sorted by already, the other way round.
pub fn choose(state: &mut State, column: Column) {
    if state.views.list.sort.column == column && column != Column::Name {
        state.views.list.sort.descending ^= true;
        rearrange(state);
    } else {
        sort(state, column);
    }
}

/// The next tensor, past modules.
fn next(list: &mut ListState, back: bool) {
    let found = list.cursor.next(back, list.rows.len(), |at| matches!(list.rows[at], Row::Tensor(_)));
    list.cursor.selected = found.unwrap_or(list.cursor.selected);
}

/// The module that is selected, or that the selected tensor is in.
fn module(state: &State) -> Option<usize> {
    match state.views.list.row().filter(|_| state.views.list.is_tree())? {
        Row::Group(node) => Some(node),
        Row::Tensor(i) => state.file.tree.parent_of(i),
    }
}

fn fold(state: &mut State, node: usize) {
    let list = &mut state.views.list;
    if !list.folded.remove(&node) {
        list.folded.insert(node);
        list.select(&state.file, Row::Group(node));
    }
    rearrange(state);
}

/// Columns back, or the module folded, or its parent selected.
fn left(state: &mut State) {
    let list = &mut state.views.list;
    if list.scroll > 0 {
        list.scroll -= 1;
        return;
    }
    let parent = match list.row().filter(|_| list.is_tree()) {
        Some(Row::Group(node)) if !list.folded.contains(&node) => return fold(state, node),
        Some(Row::Group(node)) => state.file.tree.nodes[node].parent,
        Some(Row::Tensor(_)) => module(state),
        None => None,
    };
    if let Some(parent) = parent {
        state.views.list.select(&state.file, Row::Group(parent));
    }
}
