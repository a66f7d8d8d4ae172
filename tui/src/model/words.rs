//! What words mean that only the format, or this program, knows.

use super::order::Column;

/// What a column of the table of layers tells.
pub fn column(column: Column) -> &'static str {
    match column {
        Column::Name => "",
        Column::Shape => "number of weights",
        Column::Dtype => "the original's type of numbers",
        Column::Scheme => "how weights became symbols",
        Column::Coder => "how symbols became bytes",
        Column::Original => "bytes of the original",
        Column::Stored => "bytes in this file, scales and tables among them",
        Column::Ratio => "original bytes for each stored byte",
        Column::Bits => "stored bits for each weight",
        Column::Error => "how far weights are from the original's: RMS of the difference over theirs",
        Column::Entropy => "bits a symbol that its frequencies alone would take",
        Column::Over => "how much more is stored than the entropy",
    }
}
