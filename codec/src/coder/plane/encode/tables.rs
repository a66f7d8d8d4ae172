//! Chooses the table of a plane: one of its own, or one that earlier planes added.

use crate::coder::histogram::{HighPairs, Histogram};
use crate::coder::plane::encoded::TableChoice;
use crate::coder::quad::{self, QuadCounts};
use crate::coder::table::{CodeTable, Table};
use crate::coder::{Coder, Layout, rare};

/// The number of the latest tables that are tried before a plane gets its own.
const TABLES_TRIED: usize = 16;

/// The properties that a plane's tables must have.
#[derive(Clone, Copy)]
pub struct TableKind {
    pub coder: Coder,
    pub layout: Layout,
    /// log2 of the slots.
    pub bits: u32,
}

/// The counts that a table is made for.
pub enum Counts {
    /// Symbols, each of which needs a code.
    Symbols(Box<Histogram>),
    /// Pairs, with the best table for them; rare ones may become patches.
    Pairs(HighPairs, CodeTable),
    /// Quads; rare ones may become patches.
    Quads(QuadCounts),
}

impl Counts {
    /// The bits that `table` codes them in; `None` if it lacks a symbol they need.
    fn cost(&self, table: &Table) -> Option<f64> {
        match (self, table) {
            (Counts::Symbols(histogram), _) => table.cost(histogram),
            (Counts::Pairs(pairs, _), Table::Huffman(table)) => Some(rare::cost(table, pairs) as f64),
            (Counts::Quads(quads), Table::Quads(table)) => Some(quad::cost(table, quads) as f64),
            (Counts::Pairs(..) | Counts::Quads(_), _) => None,
        }
    }
}

/// A table made for a plane.
pub struct OwnTable {
    table: Table,
    /// The bits that symbols and table take.
    bits: f64,
}

impl TableKind {
    /// Makes a table for a plane that has `factor` times as many symbols as `counts`.
    pub fn make(self, counts: &Counts, factor: f64) -> OwnTable {
        let table = match counts {
            Counts::Symbols(histogram) => self.new_table(histogram, factor),
            Counts::Pairs(_, new) => Table::Huffman(new.clone()),
            Counts::Quads(quads) if factor > 1.0 => Table::Quads(quad::choose(self.bits, &quads.times(factor))),
            Counts::Quads(quads) => Table::Quads(quad::choose(self.bits, quads)),
        };
        let bits = counts.cost(&table).expect("made for it") + table.to_bytes().len() as f64 * 8.0 / factor;
        OwnTable { table, bits }
    }

    /// Chooses a table for `counts`: one of `shared`, or `own` where that makes the plane smaller.
    pub fn choose(self, counts: &Counts, own: OwnTable, shared: &[Table]) -> TableChoice {
        shared
            .iter()
            .enumerate()
            .rev()
            .take(TABLES_TRIED)
            .filter(|(_, t)| t.check(self.coder, self.layout).is_ok() && t.bits() == self.bits)
            .filter_map(|(i, t)| counts.cost(t).map(|bits| (i, t, bits)))
            .min_by(|a, b| a.2.total_cmp(&b.2))
            .filter(|&(_, _, bits)| bits <= own.bits)
            .map_or(TableChoice { table: own.table, place: None, is_new: true }, |(i, table, _)| TableChoice {
                table: table.clone(),
                place: Some(i),
                is_new: false,
            })
    }

    /// A new table for a plane that has `factor` times as many symbols as `histogram`.
    fn new_table(self, histogram: &Histogram, factor: f64) -> Table {
        let counts = &if factor > 1.0 { expected(self.layout, histogram, factor) } else { *histogram };
        let exact = Table::from_histogram(self.coder, self.bits, counts);
        let shareable = Table::from_histogram(self.coder, self.bits, &with_neighbours(self.layout, counts));
        let table_bits = exact.to_bytes().len() as f64 * 8.0 / factor;
        let cost = |t: &Table| t.cost(histogram).expect("made for it");
        // The table dominates small planes. A slightly larger one spares the next planes a table of their own.
        if cost(&shareable) < cost(&exact) + table_bits / 4.0 { shareable } else { exact }
    }
}

/// `histogram` with counts for symbols that did not occur but are no larger than those that did, because the next plane
/// may have them.
fn with_neighbours(layout: Layout, histogram: &Histogram) -> Histogram {
    // Symbols of other elements are not numbers around 0, so only those that occur are known.
    if layout == Layout::Split {
        return *histogram;
    }
    let size = |s: usize| match layout {
        Layout::Byte | Layout::Split => usize::from((s as u8 as i8).unsigned_abs()),
        Layout::Pair | Layout::Quad => (s & 15).max(s >> 4),
    };
    let largest = (0..256).filter(|&s| histogram[s] > 0).map(size).max().unwrap_or(0);
    std::array::from_fn(|s| if size(s) <= largest { histogram[s].max(1) } else { histogram[s] })
}

/// Occurrences that a pair is expected to have in a sample from which on its absence says that it never occurs: columns
/// of different sizes side by side make some pairs impossible.
const SEEN: f64 = 4.0;

/// The expected histogram of a plane `factor` times as large as the sample. It includes rare pairs that the sample lacks,
/// because each of them takes a slot of the table from the others. The two elements of a pair are treated as
/// independent, which they nearly are.
fn expected(layout: Layout, histogram: &Histogram, factor: f64) -> Histogram {
    let mut counts = histogram.map(|count| (count as f64 * factor).round() as u64);
    if layout == Layout::Pair {
        let mut single = [0u64; 16];
        for (pair, &count) in histogram.iter().enumerate() {
            single[pair & 15] += count;
            single[pair >> 4] += count;
        }
        let all: u64 = single.iter().sum();
        let pairs = all as f64 / 2.0 * factor;
        for (pair, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count == 0) {
            let chance = single[pair & 15] as f64 / all as f64 * (single[pair >> 4] as f64 / all as f64);
            *count = u64::from(pairs * chance >= 0.5 && pairs / factor * chance < SEEN);
        }
    }
    counts
}
