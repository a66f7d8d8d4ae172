//! The table of all tensors.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Facts, View};
use crate::draw::footer;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::{VERIFY, b, c};
use crate::state::State;
use crate::update::layers;

/// All tensors.
pub struct List;

const FACTS: Facts = Facts {
    name: "list",
    earlier: "layers",
    help: "List: all tensors",
    words: &[
        ("scheme", "how weights become symbols: int8, rate, lossless, raw"),
        ("coder", "how symbols become bytes: rans, huffman, zstd, raw"),
        ("entropy", "bits a symbol that its frequencies alone would take"),
        ("over", "how much more is stored than the entropy"),
    ],
    keys: &[
        b(&[c('s')], "s", Command::Sort, "sort by the next column", "sort"),
        b(&[c('c')], "c", Command::Choose, "choose the column to sort by", "column"),
        b(&[c('b')], "b", Command::Bars, "bars of ratios, or of shares of the stored bytes", ""),
        b(&[c('S')], "S", Command::Reverse, "turn the order round", ""),
        b(&[c(' ')], "Space", Command::Fold, "fold or unfold the module", "fold"),
        b(&[c('z')], "z", Command::FoldAll, "fold or unfold all modules", ""),
        b(&[c('t')], "t", Command::Tree, "tree of modules or flat list", "tree"),
        b(&[c('e')], "e", Command::Entropies, "compute entropies that the index has not", ""),
        VERIFY,
    ],
    shared: &[Command::Left, Command::Right, Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: true,
};

impl View for List {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        crate::draw::layers::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::list(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        layers::command(state, command)
    }

    fn click(&self, state: &mut State, x: u16, y: u16) {
        layers::click(state, x, y);
    }

    fn fit(&self, state: &mut State) {
        layers::fit(state);
    }
}
