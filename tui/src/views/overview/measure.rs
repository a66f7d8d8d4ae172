//! The measures of the heat map.

use crate::keymap::around;
use crate::model::FileModel;
use crate::model::original::Original;

/// A figure that the cells of the heat map are coloured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Stored bits for each weight.
    #[default]
    Bits,
    /// Original bytes for each stored byte.
    Ratio,
    /// Root of the mean square of what is wrong in decoded values, over that of the original's.
    Error,
    /// Part of the file's bytes.
    Share,
    /// Decoded bytes a second, as timed here.
    Speed,
    /// Error that 4 bits would make, from samples.
    WouldError,
    /// Bits that 4 bits for all would give it.
    WouldBits,
    /// Error that `int8` would make.
    WouldError8,
    /// Bits that `int8` would take.
    WouldBits8,
}

impl Measure {
    /// Those of a container, in the order of the key.
    pub const STORED: [Self; 5] = [Self::Bits, Self::Ratio, Self::Error, Self::Share, Self::Speed];
    /// Those of a checkpoint that is not encoded.
    pub const CHECKPOINT: [Self; 6] =
        [Self::Share, Self::WouldBits8, Self::WouldBits, Self::WouldError, Self::WouldError8, Self::Bits];
    /// Those of a GGUF file, for which there are no estimates.
    pub const GGUF: [Self; 2] = [Self::Bits, Self::Share];

    /// Those of a file.
    pub fn all(file: &FileModel) -> &'static [Self] {
        match file.original() {
            Some(Original::Checkpoint(_)) => &Self::CHECKPOINT,
            Some(Original::Gguf(_)) => &Self::GGUF,
            None => &Self::STORED,
        }
    }

    /// The words for it, and a sentence on it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Bits => ("bits/weight", "stored bits for each weight, scales and tables among them"),
            Self::Ratio => ("ratio", "original bytes for each stored byte"),
            Self::Error => ("error", "root mean square error of decoded weights, as a part of theirs"),
            Self::Share => ("share of bytes", "part of the file's bytes"),
            Self::Speed => ("GB/s", "1e9 bytes of decoded output a second, here"),
            Self::WouldError => ("error at 4 bits", "from samples: root mean square, as a part of the weights'"),
            Self::WouldBits => ("bits at 4 bits", "from samples, if all matrices together had 4 bits/weight"),
            Self::WouldError8 => ("error of int8", "from samples: root mean square, as a part of the weights'"),
            Self::WouldBits8 => ("bits of int8", "from samples: stored bits for each weight"),
        }
    }

    /// Its name where it stands.
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// A sentence on it.
    pub fn about(self) -> &'static str {
        self.words().1
    }

    /// The next one, around.
    pub fn next(self, file: &FileModel, back: bool) -> Self {
        around(Self::all(file), self, back)
    }
}
