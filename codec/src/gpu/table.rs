//! Decoding tables as the kernels read them: one u32 a slot.

use crate::coder::Layout;
use crate::coder::table::Table;

/// The table of a plane in `layout`: `2^bits` words.
///
/// `rans`: frequency in bits 0 to 11, slot minus start in bits 12 to 23, symbol in bits 24 to 31. `huffman`: length of the code in
/// bits 0 to 4; in layout `byte` the symbol in bits 24 to 31, in layout `pair` its lower half in bits 19 to 22 and its upper half
/// in bits 27 to 30, where the kernels' merge with the side plane wants them.
pub fn device_table(table: &Table, layout: Layout) -> Vec<u32> {
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
                match layout {
                    Layout::Byte | Layout::Split => length | symbol << 24,
                    Layout::Pair => length | (symbol & 15) << 19 | (symbol >> 4) << 27,
                }
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
            let words = device_table(&Table::Rans(t.clone()), Layout::Pair);
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
        let (byte, pair) = (device_table(&table, Layout::Byte), device_table(&table, Layout::Pair));
        for (slot, entry) in t.lookup().into_iter().enumerate() {
            let (symbol, length) = (u32::from(entry >> 8), u32::from(entry & 0xFF));
            assert_eq!(byte[slot], symbol << 24 | length);
            assert_eq!(pair[slot] & 0xFFFF, length);
            assert_eq!(pair[slot] >> 19 & 15 | (pair[slot] >> 27) << 4, symbol);
        }
    }
}
