//! The texts in the cells of a row.

use ratatui::style::{Modifier, Style};
use wcodec::TensorInfo;

use super::columns::{Part, Scale};
use super::{Bars, Row};
use crate::draw::page::digits;
use crate::draw::text;
use crate::draw::widgets;
use crate::model::order::Column;
use crate::model::totals::Totals;
use crate::state::State;
use crate::stats::Fetch;

/// The tensors that a row stands for.
#[derive(Clone, Copy)]
enum Subject<'a> {
    /// One of them, and its place.
    Tensor(usize, &'a TensorInfo),
    Module,
    /// All that are listed.
    All,
}

/// A row's figures.
pub struct Cells<'a> {
    state: &'a State,
    subject: Subject<'a>,
    totals: Totals,
}

impl<'a> Cells<'a> {
    /// Those of the row at a place of the list.
    pub fn of(state: &'a State, at: usize) -> Self {
        let (subject, totals) = match state.views.list.rows[at] {
            Row::Group(node) => (Subject::Module, module_totals(state, at, node)),
            Row::Tensor(i) => (Subject::Tensor(i, &state.file.tensors[i]), Totals::of([&state.file.tensors[i]])),
        };
        Self { state, subject, totals }
    }

    /// Those of the line of sums.
    pub fn sums(state: &'a State) -> Self {
        Self { state, subject: Subject::All, totals: state.views.list.shown }
    }

    /// The style of the row where nothing deserves another one.
    pub fn style(&self) -> Style {
        match self.subject {
            Subject::Tensor(..) => self.state.look.text(),
            Subject::Module | Subject::All => self.state.look.text().add_modifier(Modifier::BOLD),
        }
    }

    /// A cell's text and style, where a bar has so many columns.
    pub fn text(&self, part: Part, scale: &Scale, columns: usize) -> (String, Style) {
        let (look, totals) = (self.state.look, &self.totals);
        let Part::Of(column) = part else { return (self.bar(scale, columns), look.bar()) };
        let of = |f: &dyn Fn(&TensorInfo) -> String| match self.subject {
            Subject::Tensor(_, t) => f(t),
            _ => String::new(),
        };
        let text = match (column, self.subject) {
            (Column::Name, _) => of(&|t| t.name.clone()),
            (Column::Shape, Subject::Module) => return (text::plural(totals.tensors, "tensor"), look.dim()),
            (Column::Shape, Subject::All) => weights(totals.elements),
            (Column::Shape, _) => of(&|t| text::shape(&t.shape)),
            (Column::Dtype, _) => of(&|t| t.dtype.name().to_owned()),
            (Column::Scheme, _) => of(&text::scheme),
            (Column::Coder, _) => of(&text::coder),
            (Column::Original, _) => text::size(totals.original_bytes),
            (Column::Stored, _) => text::size(totals.stored_bytes),
            (Column::Ratio, subject) => {
                // Nothing gained deserves a look.
                let style = match subject {
                    Subject::All => self.style(),
                    _ if self.state.views.list.bars == Bars::Share => look.text(),
                    _ if totals.ratio() < 1.0 => look.warn(),
                    _ => self.style(),
                };
                return (scale.figure(totals), style);
            }
            (Column::Bits, _) if totals.elements > 0 => format!("{:.3}", totals.bits_per_weight()),
            (Column::Bits, _) => String::new(),
            (Column::Error, Subject::Tensor(_, t)) => {
                let none = || (look.sign("·", "-").to_owned(), look.dim());
                return t.error.map_or_else(none, |error| (digits(error), look.text()));
            }
            (Column::Entropy | Column::Over, Subject::Tensor(i, t)) => return self.entropy(column, i, t),
            (Column::Error | Column::Entropy | Column::Over, _) => String::new(),
        };
        (text::clean(look, &text).into_owned(), self.style())
    }

    fn entropy(&self, column: Column, tensor: usize, t: &TensorInfo) -> (String, Style) {
        let look = self.state.look;
        let is_running = || self.state.known.get(&tensor).is_some_and(|k| matches!(k.stats, Fetch::Running(_)));
        match self.state.entropy(tensor) {
            Some(e) if column == Column::Entropy => (format!("{e:.3}"), look.text()),
            Some(e) if e > 0.0 => {
                let over = t.bits_per_weight() / e - 1.0;
                // Something deserves a look if much more is stored than the symbols say.
                (text::change(over), if over > 0.05 { look.warn() } else { look.good() })
            }
            None if is_running() => (look.sign("…", "~").to_owned(), look.warn()),
            _ => (look.sign("·", "-").to_owned(), look.dim()),
        }
    }

    /// The bar; one that is longer than the longest ends in an arrow.
    fn bar(&self, scale: &Scale, columns: usize) -> String {
        let look = self.state.look;
        match scale.part(&self.totals).filter(|_| !matches!(self.subject, Subject::All)) {
            Some(part) if part > 1.0001 && columns > 0 => widgets::bar(look, 1.0, columns - 1) + look.sign("▶", ">"),
            part => part.map_or_else(String::new, |part| widgets::bar(look, part, columns)),
        }
    }
}

/// Whether a cell that says the same as the one above is dim.
pub fn repeats(part: Part) -> bool {
    matches!(part, Part::Of(Column::Shape | Column::Dtype | Column::Scheme | Column::Coder))
}

/// A number of weights as models are named: `3.15 M weights`.
pub fn weights(n: u64) -> String {
    short_count(n) + " weights"
}

fn short_count(n: u64) -> String {
    match n as f64 {
        v if v >= 1e12 => format!("{:.2} T", v / 1e12),
        v if v >= 1e9 => format!("{:.2} B", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e4 => format!("{:.1} k", v / 1e3),
        _ => text::count(n),
    }
}

/// Sums over the tensors of a module that the filter leaves; those of the module where there is no filter.
fn module_totals(state: &State, at: usize, node: usize) -> Totals {
    let (file, list) = (&state.file, &state.views.list);
    let whole = &file.tree.nodes[node];
    if list.filter.is_none() {
        return whole.totals;
    }
    // With a filter nothing is folded: the rows that follow are the module's.
    let rows = list.rows.get(at + 1..).unwrap_or_default().iter().map(|&row| match row {
        Row::Group(node) => (node, None),
        Row::Tensor(i) => (file.tree.node_of[i], Some(i)),
    });
    let inside = rows.take_while(|&(node, _)| node < whole.end);
    Totals::of(inside.filter_map(|(_, tensor)| file.tensors.get(tensor?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_weights_are_short() {
        assert_eq!(
            [short_count(9_999), short_count(3_146_000), short_count(1_100_048_384)],
            ["9,999", "3.15 M", "1.10 B"]
        );
        assert_eq!([short_count(10_000), short_count(u64::MAX)], ["10.0 k", "18446744.07 T"]);
    }
}
