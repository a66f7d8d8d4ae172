//! Statistics of one tensor: what its scales, symbols and chunks are like.

pub mod compute;
pub mod control;
pub mod error;
pub mod histogram;
pub mod pieces;
pub mod verify;
pub mod weights;

use std::sync::Arc;

use wcodec::ChunkSize;

use self::weights::WeightStats;

/// Something that takes time to find out.
#[derive(Clone, Debug, Default)]
pub enum Fetch<T> {
    /// It was not asked for.
    #[default]
    Absent,
    /// A worker is at it; so much of the work is done, from 0 to 1.
    Running(f32),
    /// Here it is.
    Ready(T),
    /// It cannot be had, and why.
    Failed(String),
}

impl<T> Fetch<T> {
    /// The result, if it is there.
    pub fn ready(&self) -> Option<&T> {
        match self {
            Self::Ready(found) => Some(found),
            _ => None,
        }
    }

    /// Whether a worker is at it.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    /// The reason why it cannot be had.
    pub fn failed(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            _ => None,
        }
    }
}

/// Whether a tensor is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All hashes match and it decodes.
    Sound,
    /// It does not, and what is wrong.
    Damaged(String),
}

/// The statistics of a tensor.
#[derive(Clone, Debug, Default)]
pub struct LayerStats {
    /// Statistics of scales: schemes `int8` and `rate`.
    pub scales: Option<ScaleStats>,
    /// Statistics of symbols, if there are some: schemes `int8` and `rate`, and elements of 8 bits.
    pub symbols: Option<SymbolStats>,
    /// Weights in `F32`, `F16` and `BF16`, as they are in a checkpoint, or as they are decoded.
    pub weights: Option<WeightStats>,
    /// Each chunk, in order.
    pub chunks: Vec<ChunkSize>,
    /// Original bytes for each stored byte, over the chunks; scales and tables are not counted.
    pub ratios: Option<Spread>,
    /// Against the reference, if there is one that has the tensor.
    pub error: Option<ErrorStats>,
    /// Why there is a reference and yet no comparison with it.
    pub uncompared: Option<String>,
}

/// Scales of a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleStats {
    /// Those that are finite, above 0, and in scheme `int8` shared by at least one symbol that is not 0, ascending.
    pub sorted: Vec<f32>,
    /// Those of nothing but zeros. In scheme `int8` all symbols that share them are 0 (writers give them the scale 1, which says nothing); in
    /// scheme `rate`, where no symbol stands for 0, they are 0.
    pub zeros: usize,
    /// Those that no writer should have written: negative, infinite or not a number, or 0 in scheme `int8`.
    pub odd: usize,
}

impl ScaleStats {
    /// The value below which `percent` of the scales lie, interpolated between its neighbours as NumPy's `percentile` does.
    ///
    /// ```
    /// let scales = wcodec_tui::stats::ScaleStats { sorted: vec![1.0, 2.0, 4.0], ..Default::default() };
    /// assert_eq!(scales.percentile(50.0), Some(2.0));
    /// assert_eq!(scales.percentile(75.0), Some(3.0));
    /// ```
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        let at = (percent / 100.0).clamp(0.0, 1.0) * last as f64;
        let (low, high) = (self.sorted.get(at.floor() as usize)?, self.sorted.get(at.ceil() as usize)?);
        Some(f64::from(*low) + (f64::from(*high) - f64::from(*low)) * at.fract())
    }
}

/// Symbols of a tensor, as they are coded.
#[derive(Clone, Debug)]
pub struct SymbolStats {
    /// The count of each symbol, from -128 on.
    pub counts: [u64; 256],
    /// Order-0 entropy, bits a symbol.
    pub entropy: f64,
    /// With the filter `trellis`, how many different levels there are of these symbols, of each of which there are two.
    pub levels: Option<usize>,
}

impl SymbolStats {
    /// From counts of bytes, which are symbols modulo 256.
    pub fn of_bytes(bytes: &[u64; 256]) -> Self {
        // Symbol -128 is byte 128.
        let counts = std::array::from_fn(|i| bytes[(i + 128) % 256]);
        Self { counts, entropy: wcodec::coder::histogram::entropy(bytes), levels: None }
    }

    /// From counts of what the filter `trellis` gives: a level is twice the symbol and one bit, which the symbols before it say.
    pub fn of_trellis(bytes: &[u64; 256]) -> Self {
        let mut coded = [0u64; 256];
        for (byte, &n) in bytes.iter().enumerate() {
            // The sign stays: writers keep symbols where that loses nothing.
            let symbol = byte as u8 as i8 >> 1;
            coded[usize::from(symbol as u8)] += n;
        }
        Self { levels: Some(bytes.iter().filter(|&&n| n > 0).count()), ..Self::of_bytes(&coded) }
    }

    /// The number of symbols.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The count of one of them.
    pub fn count(&self, symbol: i8) -> u64 {
        self.counts[(i16::from(symbol) + 128) as usize]
    }
}

/// Smallest, middle and largest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// The one in the middle, or the mean of the two that are.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// That of some figures; none where there are none.
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*figures.first()?, *figures.last()?);
        let half = figures.len() / 2;
        let middle = figures[half];
        let median = if figures.len().is_multiple_of(2) { (figures[half - 1] + middle) / 2.0 } else { middle };
        Some(Self { min, median, max })
    }
}

/// The distance of decoded values from those of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorStats {
    /// Largest magnitude of decoded - original.
    pub max: f64,
    /// Root of its mean square.
    pub rms: f64,
    /// 10 log10 of the original's mean square over that of the error; infinite where nothing differs.
    pub snr_db: f64,
    /// `rms` over the root of the original's mean square; 0 where nothing differs.
    pub relative: f64,
    /// Whether this error is at most the one that the file states, if it does, as verifying judges it.
    pub fits: Option<bool>,
}

/// A question of the state. Tensors are told by their places in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum StatsEffect {
    /// Statistics of a tensor.
    Compute(usize),
    /// Statistics of these, one after the other, when there is nothing else to do: for the entropies in the table of layers.
    Entropies(Vec<usize>),
    /// Verify these.
    Verify(Vec<usize>),
    /// Stop what is going on.
    Cancel,
}

/// An answer of a worker.
#[derive(Clone, Debug)]
pub struct StatsReport {
    /// The file that was looked at.
    pub generation: u64,
    /// The tensor.
    pub tensor: usize,
    /// The result, or how far it is.
    pub found: Found,
}

/// A result.
#[derive(Clone, Debug)]
pub enum Found {
    /// Statistics of a tensor.
    Stats(Fetch<Arc<LayerStats>>),
    /// A verdict on it.
    Verdict(Fetch<Verdict>),
}
