//! Which table a plane is encoded with: one of its own, or one that planes before it wanted.

use crate::coder::histogram::{HighPairs, Histogram};
use crate::coder::plane::encoded::TableChoice;
use crate::coder::table::{CodeTable, Table};
use crate::coder::{Coder, Layout, rare};

/// How many of the latest tables are tried before a plane gets its own.
const TABLES_TRIED: usize = 16;

/// What tables of a plane have to be like.
#[derive(Clone, Copy)]
pub struct TableKind {
    pub coder: Coder,
    pub layout: Layout,
    /// log2 of the slots.
    pub bits: u32,
}

/// What a table is to be for.
pub enum Counts {
    /// Symbols, each of which needs a code.
    Symbols(Box<Histogram>),
    /// Pairs, of which rare ones may become patches, and the table that is best for them.
    Pairs(HighPairs, CodeTable),
}

impl Counts {
    /// Bits that a table makes of them; `None` where it lacks what it needs.
    fn cost(&self, table: &Table) -> Option<f64> {
        match (self, table) {
            (Counts::Symbols(histogram), _) => table.cost(histogram),
            (Counts::Pairs(pairs, _), Table::Huffman(table)) => Some(rare::cost(table, pairs) as f64),
            (Counts::Pairs(..), Table::Rans(_)) => None,
        }
    }
}

impl TableKind {
    /// The table for what occurs so often: of `shared` or a new one, whichever makes the plane smaller.
    pub fn choose(self, counts: &Counts, shared: &[Table]) -> TableChoice {
        let own = match counts {
            Counts::Symbols(histogram) => self.own(histogram),
            Counts::Pairs(_, own) => Table::Huffman(own.clone()),
        };
        let own_bits = counts.cost(&own).expect("made for it") + own.to_bytes().len() as f64 * 8.0;
        shared
            .iter()
            .enumerate()
            .rev()
            .take(TABLES_TRIED)
            .filter(|(_, t)| t.coder() == self.coder && t.bits() == self.bits)
            .filter_map(|(i, t)| counts.cost(t).map(|bits| (i, t, bits)))
            .min_by(|a, b| a.2.total_cmp(&b.2))
            .filter(|&(_, _, bits)| bits <= own_bits)
            .map_or(TableChoice { table: own, place: None, is_new: true }, |(i, table, _)| TableChoice {
                table: table.clone(),
                place: Some(i),
                is_new: false,
            })
    }

    /// A table of its own for symbols that occur so often.
    fn own(self, histogram: &Histogram) -> Table {
        let exact = Table::from_histogram(self.coder, self.bits, histogram);
        let shareable = Table::from_histogram(self.coder, self.bits, &with_neighbours(self.layout, histogram));
        let table_bits = exact.to_bytes().len() as f64 * 8.0;
        let cost = |t: &Table| t.cost(histogram).expect("made for it");
        // Small planes are dominated by their table. A little more for this one lets the next ones do without.
        if cost(&shareable) < cost(&exact) + table_bits / 4.0 { shareable } else { exact }
    }
}

/// `histogram` with symbols that did not occur but are no larger than those that did: the next plane may have them.
fn with_neighbours(layout: Layout, histogram: &Histogram) -> Histogram {
    // Symbols of other elements are not numbers around 0: those that occur are all that is known.
    if layout == Layout::Split {
        return *histogram;
    }
    let size = |s: usize| match layout {
        Layout::Byte | Layout::Split => usize::from((s as u8 as i8).unsigned_abs()),
        Layout::Pair => (s & 15).max(s >> 4),
    };
    let largest = (0..256).filter(|&s| histogram[s] > 0).map(size).max().unwrap_or(0);
    std::array::from_fn(|s| if size(s) <= largest { histogram[s].max(1) } else { histogram[s] })
}
