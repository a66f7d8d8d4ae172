//! What words mean that only the format, or this program, knows.

use super::map::Kind;
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

/// What a part of the file holds.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Header => "where the index is",
        Kind::Data => "coded symbols",
        Kind::Side => "signs and low bits, stored as they are",
        Kind::Scales => "what symbols are multiplied with",
        Kind::Offsets => "where chunks begin",
        Kind::Tables => "frequencies of symbols",
        Kind::Index => "names, shapes, and where everything is",
        Kind::Padding => "zeros between segments",
    }
}
