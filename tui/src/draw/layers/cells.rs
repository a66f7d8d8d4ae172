//! What stands in the cells of a row.

use ratatui::style::{Modifier, Style};
use wcodec::TensorInfo;

use super::columns::Scale;
use crate::draw::page::digits;
use crate::draw::text;
use crate::draw::theme::Look;
use crate::draw::widgets;
use crate::model::order::Column;
use crate::model::totals::Totals;
use crate::state::State;
use crate::state::layers::Row;
use crate::stats::Fetch;

/// A row's figures.
pub struct Cells<'a> {
    tensor: Option<&'a TensorInfo>,
    totals: Totals,
    entropy: Option<f64>,
    /// Whether the entropy is being found out.
    running: bool,
    group: bool,
}

impl<'a> Cells<'a> {
    /// Those of the row at a place of the list.
    pub fn of(state: &'a State, at: usize) -> Self {
        let none = Self { tensor: None, totals: Totals::default(), entropy: None, running: false, group: false };
        match state.layers.rows.get(at) {
            Some(&Row::Group(node)) => Self { totals: super::group_totals(state, at, node), group: true, ..none },
            Some(&Row::Tensor(i)) => {
                let tensor = &state.file.tensors[i];
                let running = state.known.get(&i).is_some_and(|k| matches!(k.stats, Fetch::Running(_)));
                let entropy = state.entropy(i);
                Self { tensor: Some(tensor), totals: Totals::of([tensor]), entropy, running, group: false }
            }
            None => none,
        }
    }

    /// Those of the line of sums.
    pub fn sums(totals: Totals) -> Self {
        Self { tensor: None, totals, entropy: None, running: false, group: false }
    }

    /// A cell's text and style; the ratio is drawn otherwise.
    pub fn text(&self, column: Column, look: Look) -> (String, Style) {
        let t = self.tensor;
        let of = |f: &dyn Fn(&TensorInfo) -> String| t.map_or_else(String::new, f);
        let weights = self.totals.elements > 0;
        let text = match column {
            Column::Name => of(&|t| t.name.clone()),
            Column::Shape if self.group => {
                return (text::plural(self.totals.tensors, "tensor"), look.dim());
            }
            Column::Shape => of(&|t| text::shape(&t.shape)),
            Column::Dtype => of(&|t| t.dtype.name().to_owned()),
            Column::Scheme => of(&text::scheme),
            Column::Coder => of(&text::coder),
            Column::Original => text::size(self.totals.original_bytes),
            Column::Stored => text::size(self.totals.stored_bytes),
            Column::Ratio => self.ratio_text(),
            Column::Bits if weights => format!("{:.3}", self.totals.bits_per_weight()),
            Column::Bits => String::new(),
            Column::Error => return self.error(look),
            Column::Entropy | Column::Over => return self.entropy(column, look),
        };
        let text = text::clean(look, &text).into_owned();
        (text, if self.group { look.text().add_modifier(Modifier::BOLD) } else { look.text() })
    }

    fn error(&self, look: Look) -> (String, Style) {
        match self.tensor {
            Some(TensorInfo { error: Some(error), .. }) => (digits(*error), look.text()),
            Some(_) => (look.sign("·", "-").to_owned(), look.dim()),
            None => (String::new(), look.dim()),
        }
    }

    fn entropy(&self, column: Column, look: Look) -> (String, Style) {
        let Some(t) = self.tensor else { return (String::new(), look.dim()) };
        match self.entropy {
            Some(e) if column == Column::Entropy => (format!("{e:.3}"), look.text()),
            Some(e) if e > 0.0 => {
                let over = t.bits_per_weight() / e - 1.0;
                // Where much more is stored than the symbols say, something deserves a look.
                (text::change(over), if over > 0.05 { look.warn() } else { look.good() })
            }
            None if self.running => (look.sign("…", "~").to_owned(), look.warn()),
            _ => (look.sign("·", "-").to_owned(), look.dim()),
        }
    }

    /// Sums over its tensors.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Original bytes for each stored byte; empty where there are none of either.
    pub fn ratio_text(&self) -> String {
        if self.totals.stored_bytes == 0 { String::new() } else { text::figure(self.totals.ratio()) }
    }

    /// Nothing gained deserves a look.
    pub fn ratio_style(&self, look: Look) -> Style {
        match self.totals.ratio() {
            r if r < 1.0 => look.warn(),
            _ if self.group => look.text().add_modifier(Modifier::BOLD),
            _ => look.text(),
        }
    }

    /// The bar; one that is longer than the longest ends in an arrow.
    pub fn bar(&self, look: Look, scale: &Scale, columns: usize) -> String {
        let Some(part) = scale.part(&self.totals) else { return String::new() };
        if part > 1.0001 && columns > 0 {
            return widgets::bar(look, 1.0, columns - 1) + look.sign("▶", ">");
        }
        widgets::bar(look, part, columns)
    }
}

/// Whether a cell that says the same as the one above is dim.
pub fn repeats(column: Column) -> bool {
    matches!(column, Column::Shape | Column::Dtype | Column::Scheme | Column::Coder)
}
