//! The coder, layout, tables and trellis that go with a purpose of the bytes.

use crate::coder::tile::MAX_TILE;
use crate::coder::{Coder, Layout};
use crate::named::named;
use crate::scheme::Scheme;
use crate::scheme::rate::Rate;

/// Tiles are as wide as a multiple of this.
const TILE_STEP: usize = 64;
/// Quantized weights of a file from which on the tables of quads are next to nothing.
const LARGE: usize = 1 << 22;

named! {
    /// The purpose of encoded bytes: one word for coder, layout, size of tables and trellis, where these are not chosen by themselves.
    Optimize, "purpose" {
        /// To run a model from: what a GPU multiplies fastest with, and a CPU encodes fastest.
        Speed = "speed",
        /// To be few: the smallest form at the same quality, which takes longer to encode and to decode.
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

    /// Whether levels of scheme `rate` are chosen by a trellis, where `coder` can have one.
    pub fn trellis(self, coder: Coder) -> bool {
        self == Self::Size && matches!(coder, Coder::Rans | Coder::Huffman)
    }

    /// The layout of what `coder` codes of a matrix of so many columns, one of a file with so many quantized weights. Products are
    /// computed with quantized weights, and quads are for these. They are for large models: small ones have no room for their tables, and
    /// rows that do not fill tiles would be stored raw in them.
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

    /// log2 of the slots of tables. Small ones lie in the shared memory of a GPU in more copies; the fewer bits a weight has, the less they
    /// cost.
    ///
    /// ```
    /// use wcodec::{Bits, Coder, Layout, Optimize, Rate, Scheme};
    /// let table_bits = |bits| {
    ///     let scheme = Scheme::Rate(Rate { bits: Bits::new(bits).unwrap(), trellis: false });
    ///     Optimize::Speed.table_bits(scheme, Layout::Quad)
    /// };
    /// assert_eq!([3.0, 4.0, 6.0].map(table_bits), [10, 11, 12]);
    /// ```
    pub fn table_bits(self, scheme: Scheme, layout: Layout) -> u32 {
        match scheme {
            Scheme::Rate(Rate { bits, .. }) if self == Self::Speed && layout == Layout::Quad => match bits.get() {
                ..3.5 => 10,
                ..5.0 => 11,
                _ => 12,
            },
            _ => 12,
        }
    }
}
