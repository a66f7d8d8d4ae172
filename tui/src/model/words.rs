//! What words mean that only the format, or this program, knows.

use super::map::Kind;
use super::order::Column;
use crate::state::Tab;

/// Words of a view, and what they mean.
pub fn of(tab: Tab) -> &'static [(&'static str, &'static str)] {
    match tab {
        Tab::Overview => &[
            ("role", "the name without numbers: what tensors of all layers share"),
            ("bits/w", "stored bits for each weight, scales and tables among them"),
            ("error", "of decoded weights, root mean square, as a part of them"),
        ],
        Tab::List => &[
            ("scheme", "how weights become symbols: int8, rate, lossless, raw"),
            ("coder", "how symbols become bytes: rans, huffman, zstd, raw"),
            ("entropy", "bits a symbol that its frequencies alone would take"),
            ("over", "how much more is stored than the entropy"),
        ],
        Tab::Tensor => &[
            ("scale", "what a symbol is multiplied with; a row of weights shares one"),
            ("chunk", "what is decoded independently of all others"),
            ("side", "signs and low bits, stored as they are"),
            ("pair", "a layout: two symbols are coded as one, their low bits aside"),
            ("quad", "a layout: four symbols are coded as one, their low bits aside"),
        ],
        Tab::Speed => &[
            ("round", "every chosen tensor decoded once"),
            ("p50, p95", "half, or 95 %, of the last rounds took no longer"),
        ],
        Tab::Compare => &[
            ("recoded", "other bytes that decode to the same values"),
            ("tied", "another name for a tensor: it stores nothing itself"),
        ],
        Tab::File => &[
            ("data", "coded symbols"),
            ("side", "signs and low bits, stored as they are"),
            ("offsets", "where chunks begin"),
            ("tables", "frequencies of symbols, which the decoder needs"),
        ],
        Tab::Bits => &[
            ("KL", "how far answers are from the original's, nats a token"),
            ("trellis", "levels chosen together: worth about 0.15 bits a weight"),
        ],
    }
}

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
