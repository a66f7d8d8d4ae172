//! Decoding tables as the kernels read them: one u32 a slot.

use crate::coder::plane::Tiling;
use crate::coder::table::Table;
use crate::coder::{Coder, Layout};

/// The facts about a plane that its table's words depend on, beside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A symbol lies in one piece.
    Whole,
    /// The two high parts of a symbol lie apart, in layout `pair` of coder `huffman`, for this shift.
    Halves(u32),
    /// The four high parts of a symbol lie apart, in layout `quad`.
    Quarters,
}

impl Form {
    /// That of planes that are coded so.
    pub fn of(tiling: &Tiling) -> Self {
        match tiling.layout {
            Layout::Pair if tiling.coder == Coder::Huffman => Form::Halves(tiling.shift),
            Layout::Quad => Form::Quarters,
            Layout::Byte | Layout::Pair | Layout::Split => Form::Whole,
        }
    }
}

/// The table of a plane of this form: `2^bits` words.
///
/// `rans`: frequency in bits 0 to 11, slot minus start in bits 12 to 23, symbol in bits 24 to 31. `huffman`: length of the code in
/// bits 0 to 4; the symbol in bits 24 to 31, or, in layout `pair` with shift s, its lower half from bit 16 + s on and its upper half from
/// bit 24 + s on, where the kernels' merge with the side plane wants them. In layout `quad` the length is in bits 0 to 3, and high part i in bits
/// 8 i + 4 to 8 i + 6.
pub fn device_table(table: &Table, form: Form) -> Vec<u32> {
    match table {
        Table::Rans(t) => {
            let mut words = Vec::with_capacity(1 << t.bits());
            for (symbol, &f) in t.frequencies().iter().enumerate() {
                words.extend((0..u32::from(f)).map(|i| u32::from(f) | i << 12 | (symbol as u32) << 24));
            }
            words
        }
        Table::Huffman(t) => t
            .lookup()
            .into_iter()
            .map(|entry| {
                let (symbol, length) = (u32::from(entry >> 8), u32::from(entry & 0xFF));
                match form {
                    Form::Whole => length | symbol << 24,
                    Form::Quarters => unreachable!("tables of quads are others"),
                    Form::Halves(shift) => length | (symbol & 15) << (16 + shift) | (symbol >> 4) << (24 + shift),
                }
            })
            .collect(),
        Table::Quads(t) => t
            .lookup()
            .into_iter()
            .map(|entry| {
                let (quad, length) = (entry >> 16, entry & 0xFF);
                (0..4).fold(length, |word, i| word | (quad >> (4 * i) & 7) << (8 * i + 4))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::Coder;
    use crate::coder::histogram::Histogram;

    fn histogram() -> Histogram {
        std::array::from_fn(|s| if s % 3 == 0 { 1 + (s as u64) * 7 } else { 0 })
    }

    #[test]
    fn every_slot_of_a_rans_table_names_its_symbol() {
        for bits in [11, 12] {
            let Table::Rans(t) = Table::from_histogram(Coder::Rans, bits, &histogram()) else { unreachable!() };
            let words = device_table(&Table::Rans(t.clone()), Form::Whole);
            assert_eq!(words.len(), 1 << bits);
            for (slot, w) in words.iter().enumerate() {
                let symbol = (w >> 24) as usize;
                assert_eq!(w & 0xFFF, u32::from(t.frequencies()[symbol]));
                assert_eq!(slot as u32 - (w >> 12 & 0xFFF), u32::from(t.starts()[symbol]));
            }
        }
    }

    #[test]
    fn a_huffman_table_has_lengths_and_symbols_apart() {
        let table = Table::from_histogram(Coder::Huffman, 12, &histogram());
        let Table::Huffman(t) = &table else { unreachable!() };
        let whole = device_table(&table, Form::Whole);
        for shift in 0..4 {
            let halves = device_table(&table, Form::Halves(shift));
            for (slot, entry) in t.lookup().into_iter().enumerate() {
                let (symbol, length) = (u32::from(entry >> 8), u32::from(entry & 0xFF));
                assert_eq!(whole[slot], symbol << 24 | length);
                assert_eq!(halves[slot] & 0xFFFF, length);
                // The kernels rely on it that beside the halves there is nothing.
                assert_eq!(halves[slot] >> 16, (symbol & 15 | (symbol >> 4) << 8) << shift);
            }
        }
    }
}
