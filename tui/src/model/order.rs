//! Orders of tensors.

use std::cmp::Ordering;

use wcodec::TensorInfo;
use wcodec::names::natural;

use crate::keymap::around;

/// A column of the table of layers, by which it can be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Column {
    /// Natural order of names; the only one that shows a tree.
    #[default]
    Name,
    /// Number of elements.
    Shape,
    /// Dtype of the source.
    Dtype,
    /// `int8` or `raw`.
    Scheme,
    /// `rans`, `huffman`, `zstd` or `raw`.
    Coder,
    /// Bytes in the source.
    Original,
    /// Bytes here.
    Stored,
    /// Original bytes for each stored byte.
    Ratio,
    /// Stored bits for each element.
    Bits,
    /// The distance of decoded elements from the source's, where the file says it.
    Error,
    /// Order-0 entropy of the symbols, bits.
    Entropy,
    /// Stored bits above the entropy, as a part of it.
    Over,
}

/// Word, letter and meaning of each column, and its rank by what it tells, in the order of [`Column::ALL`].
const FACTS: [(&str, char, &str, u8); 12] = [
    ("name", 'n', "", 0),
    ("shape", 'p', "number of weights", 8),
    ("dtype", 'd', "the original's type of numbers", 11),
    ("scheme", 's', "how weights became symbols", 9),
    ("coder", 'c', "how symbols became bytes", 6),
    ("original", 'o', "bytes of the original", 4),
    ("stored", 't', "bytes in this file, scales and tables among them", 2),
    ("ratio", 'r', "original bytes for each stored byte", 1),
    ("bits", 'b', "stored bits for each weight", 3),
    ("error", 'm', "how far weights are from the original's: RMS of the difference over theirs", 7),
    ("entropy", 'e', "bits a symbol that its frequencies alone would take", 10),
    ("over", 'v', "how much more is stored than the entropy", 5),
];

impl Column {
    /// All of them, as they stand in the table.
    pub const ALL: [Self; 12] = [
        Self::Name,
        Self::Shape,
        Self::Dtype,
        Self::Scheme,
        Self::Coder,
        Self::Original,
        Self::Stored,
        Self::Ratio,
        Self::Bits,
        Self::Error,
        Self::Entropy,
        Self::Over,
    ];

    /// The word for it on the command line and in the table's head.
    pub fn name(self) -> &'static str {
        FACTS[self as usize].0
    }

    /// The letter that chooses it.
    pub fn letter(self) -> char {
        FACTS[self as usize].1
    }

    /// All but the name by what they tell: the first one is the last to go.
    pub fn ranked() -> [Self; 11] {
        let mut columns: [Self; 11] = std::array::from_fn(|at| Self::ALL[at + 1]);
        columns.sort_by_key(|&c| FACTS[c as usize].3);
        columns
    }

    /// A few words on its figures.
    pub fn means(self) -> &'static str {
        FACTS[self as usize].2
    }

    /// Whether the most interesting rows are those with the largest values.
    pub fn descends(self) -> bool {
        !matches!(self, Self::Name | Self::Dtype | Self::Scheme | Self::Coder | Self::Ratio)
    }

    /// The next one, around.
    pub fn next(self, back: bool) -> Self {
        around(&Self::ALL, self, back)
    }
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// By what.
    pub column: Column,
    /// Largest first.
    pub descending: bool,
}

impl Sort {
    /// The order that a column is first shown in.
    pub fn by(column: Column) -> Self {
        Self { column, descending: column.descends() }
    }
}

/// Tensors in natural order of their names.
pub fn natural_order(tensors: &[TensorInfo]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| natural(&tensors[a].name, &tensors[b].name));
    order
}

/// Sorts tensors by a column; equal ones stay in their order. `entropy` tells what is known of a tensor's.
pub fn sort(tensors: &[TensorInfo], rows: &mut [usize], sort: Sort, entropy: impl Fn(usize) -> Option<f64>) {
    let over = |i: usize| entropy(i).filter(|&e| e > 0.0).map(|e| tensors[i].bits_per_weight() / e);
    let by = |a: usize, b: usize| {
        let (x, y) = (&tensors[a], &tensors[b]);
        match sort.column {
            Column::Name => natural(&x.name, &y.name),
            Column::Shape => x.elements.cmp(&y.elements),
            Column::Dtype => x.dtype.name().cmp(y.dtype.name()),
            Column::Scheme => x.scheme.cmp(&y.scheme).then_with(|| x.scales.cmp(&y.scales)),
            Column::Coder => x.coder().cmp(y.coder()),
            Column::Original => x.original_bytes.cmp(&y.original_bytes),
            Column::Stored => x.stored_bytes.cmp(&y.stored_bytes),
            Column::Ratio => x.ratio().total_cmp(&y.ratio()),
            Column::Bits => x.bits_per_weight().total_cmp(&y.bits_per_weight()),
            Column::Error | Column::Entropy | Column::Over => Ordering::Equal,
        }
    };
    let known = |i: usize| match sort.column {
        Column::Error => tensors[i].error,
        Column::Entropy => entropy(i),
        _ => over(i),
    };
    rows.sort_by(|&a, &b| match sort.column {
        // Unknown values come last, whatever the direction.
        Column::Error | Column::Entropy | Column::Over => match (known(a), known(b)) {
            (Some(x), Some(y)) if sort.descending => y.total_cmp(&x),
            (Some(x), Some(y)) => x.total_cmp(&y),
            (x, y) => y.is_some().cmp(&x.is_some()),
        },
        _ if sort.descending => by(b, a),
        _ => by(a, b),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_is_one_columns_alone() {
        for (i, column) in Column::ALL.iter().enumerate() {
            // The list itself takes j, k and q.
            assert!(!"jkq".contains(column.letter()));
            assert!(Column::ALL[..i].iter().all(|c| c.letter() != column.letter()));
        }
    }

    #[test]
    fn columns_go_around() {
        let mut column = Column::Name;
        for _ in 0..Column::ALL.len() {
            assert_eq!(column.next(false).next(true), column);
            column = column.next(false);
        }
        assert_eq!(column, Column::Name);
    }
}
