//! The coder, layout, tables and trellis for each purpose of the bytes.

use crate::coder::tile::MAX_TILE;
use crate::coder::{Coder, Layout};
use crate::named::named;
use crate::scheme::Scheme;
use crate::scheme::rate::Rate;

/// The granularity of tile widths.
const TILE_STEP: usize = 64;
/// Quantized weights of a file from which on the tables of quads take a negligible share.
const LARGE: usize = 1 << 22;

named! {
    /// The purpose of encoded bytes: one word that decides coder, layout, table size and trellis, unless they are set
    /// explicitly.
    Optimize, "purpose" {
        /// Running a model: the form that a GPU multiplies fastest with, and a CPU encodes fastest.
        Speed = "speed",
        /// Least size: the smallest form at the same quality, which takes longer to encode and to decode.
        Size = "size",
    }
}

impl Optimize {
    /// The coder.
    ///
    /// ```
    /// use wcodec::{Coder, Optimize};
    /// assert_eq!((Optimize::Speed.coder(), Optimize::Size.coder()), (Coder::Huffman, Coder::Rans));
    /// ```
    pub fn coder(self) -> Coder {
        match self {
            Self::Speed => Coder::Huffman,
            Self::Size => Coder::Rans,
        }
    }

    /// Whether levels of scheme `rate` are chosen by a trellis, if `coder` supports one.
    pub fn trellis(self, coder: Coder) -> bool {
        self == Self::Size && coder.is_tiled()
    }

    /// The layout in which `coder` codes a matrix of `cols` columns, in a file with `weights` quantized weights. Quads
    /// are for quantized weights, which products are computed with, and for large models: in small ones their tables
    /// take too much, and rows that do not fill tiles would be stored raw.
    ///
    /// ```
    /// use wcodec::{Coder, Granularity, Layout, Optimize, Scheme};
    /// let layout = |scheme, coder, cols, weights| Optimize::Speed.layout(scheme, coder, cols, weights);
    /// let int8 = Scheme::Int8(Granularity::Row);
    /// assert_eq!(layout(int8, Coder::Huffman, 4096, 1 << 30), Layout::Quad);
    /// assert_eq!(layout(int8, Coder::Huffman, 96, 1 << 30), Layout::Pair);
    /// assert_eq!(layout(int8, Coder::Huffman, 4096, 1 << 20), Layout::Pair);
    /// assert_eq!(layout(int8, Coder::Rans, 4096, 1 << 30), Layout::Pair);
    /// assert_eq!(layout(Scheme::Raw, Coder::Huffman, 4096, 1 << 30), Layout::Pair);
    /// ```
    pub fn layout(self, scheme: Scheme, coder: Coder, cols: usize, weights: usize) -> Layout {
        let quantized = matches!(scheme, Scheme::Int8(_) | Scheme::Rate(_));
        let fits = weights >= LARGE && (cols >= MAX_TILE || cols.is_multiple_of(TILE_STEP));
        if self == Self::Speed && quantized && fits && Layout::choices(coder).contains(&Layout::Quad) {
            Layout::Quad
        } else {
            Layout::Pair
        }
    }

    /// log2 of the slots of tables. A GPU's shared memory has room for more copies of a small table, and the fewer bits
    /// a weight has, the less a small table costs.
    ///
    /// ```
    /// use wcodec::{Bits, Coder, Layout, Optimize, Rate, Scheme};
    /// let table_bits = |bits| {
    ///     let scheme = Scheme::Rate(Rate { bits: Bits::new(bits).unwrap(), trellis: false });
    ///     Optimize::Speed.table_bits(scheme, Layout::Quad)
    /// };
    /// assert_eq!([3.0, 4.0, 6.0].map(table_bits), [10, 12, 12]);
    /// ```
    pub fn table_bits(self, scheme: Scheme, layout: Layout) -> u32 {
        match scheme {
            Scheme::Rate(Rate { bits, .. }) if self == Self::Speed && layout == Layout::Quad => match bits.get() {
                ..3.5 => 10,
                _ => 12,
            },
            _ => 12,
        }
    }
}
