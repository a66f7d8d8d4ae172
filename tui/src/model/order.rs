//! Orders of tensors.

use std::cmp::Ordering;

use wcodec::TensorInfo;
use wcodec::names::natural;

worded! {
    /// A column of the table of layers, by which it can be sorted, in the order of the table.
    #[derive(Default)]
    Column {
        /// Natural order of names; the only one that shows a tree.
        #[default]
        Name = "name", "";
        Shape = "shape", "number of weights";
        Dtype = "dtype", "the original's type of numbers";
        Scheme = "scheme", "how weights became symbols";
        Coder = "coder", "how symbols became bytes";
        Original = "original", "bytes of the original";
        Stored = "stored", "bytes in this file, scales and tables among them";
        Ratio = "ratio", "original bytes for each stored byte";
        Bits = "bits", "stored bits for each weight";
        Error = "error", "how far weights are from the original's: RMS of the difference over theirs";
        Entropy = "entropy", "bits a symbol that its frequencies alone would take";
        Over = "over", "how much more is stored than the entropy";
    }
}

impl Column {
    /// The letter that chooses it.
    pub fn letter(self) -> char {
        char::from(b"npdscotrbmev"[self as usize])
    }

    /// All but the name by what they tell: the first one is the last to go.
    pub fn ranked() -> [Self; 11] {
        use Column::*;
        [Ratio, Stored, Bits, Original, Over, Coder, Error, Shape, Scheme, Entropy, Dtype]
    }

    /// Whether the most interesting rows are those with the largest values.
    pub fn descends(self) -> bool {
        !matches!(self, Self::Name | Self::Dtype | Self::Scheme | Self::Coder | Self::Ratio)
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
            Column::Scheme => x.scheme.cmp(&y.scheme).then_with(|| (&x.scales, x.columns).cmp(&(&y.scales, y.columns))),
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
