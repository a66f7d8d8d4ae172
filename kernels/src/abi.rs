//! What the kernels are launched with. `cuda/abi.h` is made from this file: `cargo test --package wcodec-kernels abi -- --ignored` writes it,
//! and a test compares.
//!
//! All addresses are of device memory, as integers. A launch takes one batch by value, at most 4,096 bytes, so that it
//! needs no memory of its own and a CUDA graph keeps it.

#[cfg(test)]
mod header;

/// Items of one launch: the linears of a decoder block. Parameters are copied with each launch, so that they are kept
/// short.
pub const MAX_ITEMS: usize = 24;

/// Items of one launch that multiplies: the linears that read the same vectors.
pub const MAX_FACTORS: usize = 16;

/// Address in shared memory of the decoding table, which launches of the decoding kernels count as used. Devices that keep more than that of
/// a block's shared memory for themselves cannot run the kernels.
pub const TABLE_AT: usize = 1024;

/// Columns whose squares are added up together, in the same way wherever they are.
pub const SQUARES_COLS: usize = 256;

/// Bytes of shared memory in which a warp adds up what patches change: of each of 16 rows a word for each digit of a vector's elements.
pub const CHANGES_BYTES: usize = 256;

/// Bytes of shared memory in which a warp, or a thread for its first result, leaves what it knows before the vector is there.
pub const KNOWN_BYTES: usize = 32;

/// A factor's results are written.
pub const PART_RESULT: u32 = 0;
/// They are gates: written are those of the factor of values, times the activation of these.
pub const PART_GATE: u32 = 1;
/// They are values that have gates.
pub const PART_VALUE: u32 = 2;

/// An activation: none.
pub const ACTIVATION_NONE: u32 = 0;
/// An activation: `v * sigmoid(v)`.
pub const ACTIVATION_SILU: u32 = 1;
/// An activation: GELU by its approximation with tanh.
pub const ACTIVATION_GELU_TANH: u32 = 2;
/// An activation: GELU by the error function.
pub const ACTIVATION_GELU: u32 = 3;
/// An activation: `max(v, 0)`.
pub const ACTIVATION_RELU: u32 = 4;
/// An activation: `max(v, 0)^2`.
pub const ACTIVATION_RELU_SQUARED: u32 = 5;

/// A norm of vectors: they are divided by the root of the mean of their squares.
pub const NORM_RMS: u32 = 0;
/// A norm of vectors: their mean is taken off before.
pub const NORM_LAYER: u32 = 1;

/// Threads of a block of `wcodec_norm`, at most.
pub const NORM_THREADS: usize = 512;

/// Runs of bits of an element that a plane can hold.
pub const MAX_RUNS: usize = 14;

/// What the elements of an output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum OutputKind {
    /// The symbols themselves, or bytes.
    Int8 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of f32.
    BF16 = 2,
    /// IEEE single precision.
    F32 = 3,
}

impl OutputKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Int8, Self::F16, Self::BF16, Self::F32];

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
        }
    }

    /// The last part of a decoding kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Value of `filter`: none.
pub const FILTER_NONE: u8 = 0;
/// Value of `filter`: left.
pub const FILTER_LEFT: u8 = 1;
/// Value of `filter`: up.
pub const FILTER_UP: u8 = 2;
/// Value of `filter`: trellis.
pub const FILTER_TRELLIS: u8 = 3;

/// Value of a plane's status where no chunk was found damaged.
pub const STATUS_GOOD: u32 = u32::MAX;

macro_rules! structures {
    ($(
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $($(#[doc = $what:literal])* pub $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[repr(C)]
            pub struct $name {
                $($(#[doc = $what])* pub $field: $type,)*
            }
            // No padding, so that all of its bytes are initialized; and what a launch may have of parameters.
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())* && size_of::<$name>() <= 4096);
        )*
        /// What `cuda/abi.h` is made of.
        #[cfg(test)]
        const STRUCTURES: &[header::Structure] = &[$(header::Structure {
            name: stringify!($name),
            about: &[$($about),*],
            bytes: size_of::<$name>(),
            fields: &[$(header::Field {
                name: stringify!($field),
                kind: stringify!($type),
                offset: std::mem::offset_of!($name, $field),
                bytes: size_of::<$type>(),
                what: concat!($($what),*),
            }),*],
        }),*];
    };
}

structures! {
    /// Where an element of the output lies: element (row, column), rows counted through all matrices from the first row of the item, is at
    /// `out + row * row_stride + column * column_stride` elements.
    pub struct Output {
        /// Address.
        pub out: u64,
        /// Elements.
        pub row_stride: u64,
        /// Address of the scales; 0 for int8 output.
        pub scales: u64,
        /// Elements.
        pub column_stride: u32,
        /// 0: one for the tensor.
        pub scales_per_row: u32,
        /// Columns that share a scale.
        pub scale_columns: u32,
        /// Of a scale: 4 is f32, 2 is bf16.
        pub scale_bytes: u16,
        /// What is added to a symbol before it is multiplied by its scale, in 256ths: below 256.
        pub offset: u16,
    }

    /// How a kernel divides numbers below 2^31 by one that the host knows: `n / d` is `(2 n * factor >> 32) >> shift`.
    ///
    /// `factor` exceeds 2^(31 + shift) / d by less than 1, so the product is too large by less than `2 n`, which 2^(32 + shift) / d exceeds
    /// (T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    pub struct Divisor {
        /// ceil(2^(31 + shift) / d).
        pub factor: u32,
        /// ceil(log2 d).
        pub shift: u32,
    }

    /// A coded plane, or a range of its strips. FORMAT.md section 3 defines the words.
    pub struct Tiles {
        /// Address of the chunks, a multiple of 16.
        pub data: u64,
        /// Address of the chunk offsets.
        pub offsets: u64,
        /// Address of the side plane.
        pub side: u64,
        /// Address of the decoding table, 2^bits words.
        pub table: u64,
        /// Address of the plane's status: the smallest chunk found damaged, or all ones.
        pub status: u64,
        /// Row, counted through all matrices, that the output begins with.
        pub row_begin: u64,
        /// Where the elements go.
        pub output: Output,
        /// Length of the chunks in units of 4 bytes.
        pub data_units: u32,
        /// Sum of the costs of the items before this one; a chunk costs `blocks`.
        pub cost_begin: u32,
        /// First chunk.
        pub chunk_begin: u32,
        /// Behind the last chunk.
        pub chunk_end: u32,
        /// Bytes.
        pub max_chunk: u32,
        /// Per matrix.
        pub strips: u32,
        /// Per matrix.
        pub rows: u32,
        /// Of each matrix.
        pub cols: u32,
        /// Per strip.
        pub tiles: u32,
        /// Of 64 columns, in a tile.
        pub blocks: u32,
        /// In the last tile of a strip.
        pub last_blocks: u32,
        /// log2 of the slots of the table.
        pub bits: u16,
        /// 0 byte, 1 pair, 2 split.
        pub layout: u8,
        /// Of layouts pair and split.
        pub shift: u8,
        /// FILTER_*.
        pub filter: u8,
        /// Rows of the output begin at multiples of 16 bytes, are below 2^29 long, columns follow each other.
        pub vector: u8,
        /// First block of threads that has chunks of this item only.
        pub block_begin: u16,
        /// Behind the last one.
        pub block_end: u16,
        /// 1: patches say by how much elements exceed what the symbols say.
        pub changes: u16,
        /// How to divide by `tiles`.
        pub by_tiles: Divisor,
        /// And by `strips`.
        pub by_strips: Divisor,
        /// First chunk of those blocks.
        pub shared_begin: u32,
        /// Behind the last one.
        pub shared_end: u32,
    }

    /// Parameters of the decoding kernels, those named `fields` aside.
    pub struct TilesBatch {
        /// Items.
        pub count: u32,
        /// Of all items together.
        pub cost: u32,
        /// Address in shared memory; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Of one buffer: a chunk, and what a damaged one may make a decoder read beyond.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// 0.
        pub reserved: [u32; 2],
        /// `count` of them.
        pub items: [Tiles; MAX_ITEMS],
    }

    /// Which bits of an element a plane holds. FORMAT.md section 2, scheme `lossless`.
    pub struct Fields {
        /// Of an element: 1, 2 or 4.
        pub bytes: u8,
        /// 1: the bits join those that other planes have left in the output. 0: they are all of an element.
        pub adds: u8,
        /// Runs of bits.
        pub count: u16,
        /// `count` of them: lowest bit in the element (bits 0 to 4), lowest bit in what the plane decodes to (5 to 9), width - 1 (10 to 14).
        pub runs: [u16; MAX_RUNS],
    }

    /// Parameters of the decoding kernels named `fields`.
    pub struct FieldsBatch {
        /// Planes, all of which hold these bits.
        pub tiles: TilesBatch,
        /// The bits.
        pub fields: Fields,
    }

    /// Parameters of the kernels named `rows`, which write rows of one matrix, those whose numbers lie in memory, one behind the other.
    pub struct RowsBatch {
        /// Address of the numbers.
        pub ids: u64,
        /// 1: they are of 64 bits. 0: of 32. Those that are not of rows of the matrix, negative ones too, give NaN.
        pub wide: u32,
        /// How many.
        pub count: u32,
        /// OUT_*, but not OUT_INT8.
        pub kind: u32,
        /// Address in shared memory; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Of one buffer: a chunk, and what a damaged one may make a decoder read beyond.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// 0.
        pub reserved: u32,
        /// All of a plane of one matrix; its output is of the first number. What says which of its chunks are meant is not looked at.
        pub tiles: Tiles,
        /// The bits of elements that are put together.
        pub fields: Fields,
    }

    /// A matrix, or rows of one, to multiply vectors with.
    pub struct Factor {
        /// The plane whose symbols are its weights. Of `output` only scales and offset count; `block_begin` and `block_end` are the blocks
        /// of threads that have this item and nothing else, each a run of whole strips.
        pub tiles: Tiles,
        /// Address of what is added to the results of the first row and of those behind it, elements like those of `x`; 0 for nothing.
        pub bias: u64,
        /// Results of the items before this one, for each vector.
        pub before: u32,
        /// From a vector's results to the next one's, elements.
        pub stride: u32,
        /// Place of the first row's result among those of a vector.
        pub place: u32,
        /// Strips of each of the item's blocks of threads; as many of them as it takes, the first ones, have one more.
        pub strips: u32,
        /// Two of what is added to a symbol and 1/2 for its level, as elements like those of `x`: of -1/2, or 0. Not a constant of the kernel:
        /// NVRTC 12.4 makes operands of constants that are negative from registers that nobody set.
        pub minus: u32,
        /// PART_*: what becomes of the results.
        pub part: u32,
        /// Which of the vectors at `x` is the item's first one.
        pub vector: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of the multiplying kernels: results are the products of all items with each of `vectors` vectors. Of an item that stands
    /// behind n results, those of vector v begin at `y` + (n * vectors + v * stride) elements.
    pub struct FactorsBatch {
        /// Items.
        pub count: u32,
        /// Vectors: 1 to 8, or 16 with the kernels named so.
        pub vectors: u32,
        /// Address of the first vector.
        pub x: u64,
        /// From one vector to the next, elements.
        pub x_stride: u64,
        /// Address of the results.
        pub y: u64,
        /// Address in shared memory; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Of one buffer: a chunk, and what a damaged one may make a decoder read beyond.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// Address in shared memory of the room of the first warp for a chunk's blocks, with kernels named `early`.
        pub staging: u32,
        /// How many blocks each warp has room for there: those of a chunk at least.
        pub staged: u32,
        /// Address in shared memory of the sums of each chunk.
        pub sums: u32,
        /// Vectors, those at `squared` too, begin at multiples of 16 bytes.
        pub vector: u32,
        /// Address of vectors that lie as those at `x` do, or 0: each result is divided by the root of the mean of their squares, as behind an
        /// RMSNorm whose gain is in those at `x`.
        pub squared: u64,
        /// Address of what is added to the results, which lies as they do; 0 for nothing.
        pub residual: u64,
        /// Address of results that are written a second time, multiplied by `gain`; 0 for none.
        pub scaled: u64,
        /// Address of a factor for each result of a vector, elements like those of `x`.
        pub gain: u64,
        /// Address of f32 for the results of gates, and behind them of values, as many each as there are results; 0 where there are no gates.
        pub stash: u64,
        /// Address of a word for each strip of gates: how many of it and of its values are in the stash. They are 0 before the launches that
        /// belong together, and behind them.
        pub arrivals: u64,
        /// What is added to the mean of the squares: bits of f32.
        pub epsilon: u32,
        /// Of how many elements the mean is: its reciprocal, bits of f32.
        pub share: u32,
        /// By what results are multiplied before they are divided: bits of f32.
        pub norm_factor: u32,
        /// Address in shared memory of sums of squares: a word for each vector and SQUARES_COLS columns.
        pub squares: u32,
        /// Address in shared memory of a word for each of a block's strips.
        pub arrived: u32,
        /// By what those that are written a second time are multiplied besides `gain`: bits of f32.
        pub gain_scale: u32,
        /// Is added to the product of `gain` and `gain_scale`: bits of f32.
        pub gain_offset: u32,
        /// By what results are multiplied before a residual is added: bits of f32.
        pub residual_scale: u32,
        /// log2 of the copies in which the decoding table is to lie: 0, or 2 to 5. Only of coder `huffman`, with shifts 0 to 2.
        pub copies: u32,
        /// Address in shared memory of CHANGES_BYTES for each warp; 0 where patches are applied before symbols are multiplied.
        pub corrections: u32,
        /// Address in shared memory of what is known before the vector is there: KNOWN_BYTES for each warp, and behind them KNOWN_BYTES for each
        /// result; with kernels for one vector named `early`.
        pub known: u32,
        /// ACTIVATION_*: of gates; of launches without gates, of the results.
        pub activation: u32,
        /// `count` of them.
        pub items: [Factor; MAX_FACTORS],
    }

    /// Parameters of `wcodec_norm`, of which each block of threads takes a vector: y is the norm of x, times `result_scale`, and a residual.
    /// Elements of all vectors are of one type, and vectors of one array lie one behind the other.
    pub struct NormBatch {
        /// Address of the vectors.
        pub x: u64,
        /// Address of what is added to their norms; 0 for nothing. It may be `y`.
        pub residual: u64,
        /// Address of the results. It may be `x`.
        pub y: u64,
        /// Address of a factor for each column; 0 for none.
        pub gain: u64,
        /// Address of what is added for each column; 0 for nothing.
        pub bias: u64,
        /// Address of results that are written a second time, for the norm that comes next; 0 for none.
        pub scaled: u64,
        /// Address of a factor for each column of those.
        pub next_gain: u64,
        /// Elements of a vector.
        pub cols: u32,
        /// 1 if they are bf16; else they are f16.
        pub bf16: u32,
        /// NORM_*.
        pub kind: u32,
        /// All arrays begin at multiples of 16 bytes, and so do their vectors.
        pub vector: u32,
        /// Is added to the mean of the squares: bits of f32.
        pub epsilon: u32,
        /// The reciprocal of `cols`: bits of f32.
        pub share: u32,
        /// Is added to `gain`: bits of f32.
        pub gain_offset: u32,
        /// By what the norm is multiplied before a residual is added: bits of f32.
        pub result_scale: u32,
        /// By what `next_gain` is multiplied: bits of f32.
        pub next_scale: u32,
        /// Is added to that product: bits of f32.
        pub next_offset: u32,
    }

    /// Symbols of a plane, row-major without padding, to write as what they stand for.
    pub struct Symbols {
        /// Address at which the plane's first symbol would lie.
        pub symbols: u64,
        /// First element.
        pub begin: u64,
        /// Behind the last element.
        pub end: u64,
        /// Of each row.
        pub cols: u64,
        /// Row that the output begins with.
        pub row_begin: u64,
        /// Where the elements go.
        pub output: Output,
        /// Groups of 16 elements in the items before this one.
        pub cost_begin: u64,
        /// OUT_*.
        pub kind: u32,
        /// Groups of 16 lie in one row, and are multiples of 16 bytes in symbols and output.
        pub vector: u32,
    }

    /// Parameters of `wcodec_dequantize`.
    pub struct SymbolsBatch {
        /// Items.
        pub count: u32,
        /// 0.
        pub reserved: u32,
        /// Groups of all items together.
        pub cost: u64,
        /// `count` of them.
        pub items: [Symbols; MAX_ITEMS],
    }

    /// Symbols of a plane that are bits of elements.
    pub struct FieldsSymbols {
        /// The plane; `kind` is 0.
        pub symbols: Symbols,
        /// The bits.
        pub fields: Fields,
    }

    /// Parameters of `wcodec_fields`.
    pub struct FieldsSymbolsBatch {
        /// Items, no two of them of one output.
        pub count: u32,
        /// 0.
        pub reserved: u32,
        /// Groups of all items together.
        pub cost: u64,
        /// `count` of them.
        pub items: [FieldsSymbols; MAX_ITEMS],
    }

    /// Rows of a plane of coder `zstd` on which a filter was used.
    pub struct Filtered {
        /// Address at which the plane's first symbol would lie.
        pub symbols: u64,
        /// Of the plane.
        pub elements: u64,
        /// Of each row.
        pub cols: u64,
        /// Decoded bytes of a frame: the filter restarts at each.
        pub chunk: u64,
        /// First frame.
        pub chunk_begin: u64,
        /// Warps that the items before this one take.
        pub cost_begin: u64,
        /// FILTER_*.
        pub filter: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_unfilter`.
    pub struct FilteredBatch {
        /// Items.
        pub count: u32,
        /// 0.
        pub reserved: u32,
        /// Warps.
        pub cost: u64,
        /// `count` of them.
        pub items: [Filtered; MAX_ITEMS],
    }

    /// Frames of a plane of coder `zstd`, as nvCOMP wants them: arrays of pointers and sizes.
    pub struct Frames {
        /// Address of the frames.
        pub data: u64,
        /// Address of pairs of u32: start in units of 8 bytes, length.
        pub offsets: u64,
        /// Address of the decoded bytes.
        pub output: u64,
        /// Of the whole plane, bytes.
        pub decoded: u64,
        /// Address of the plane's status.
        pub status: u64,
        /// First frame.
        pub frame_begin: u64,
        /// How many.
        pub frames: u32,
        /// Decoded bytes of a frame.
        pub chunk: u32,
        /// Place of the first frame in the arrays.
        pub first: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_frames` and `wcodec_frames_check`.
    pub struct FramesBatch {
        /// Items.
        pub count: u32,
        /// Of all items together.
        pub frames: u32,
        /// The arrays, of `frames` entries each: addresses of frames.
        pub compressed: u64,
        /// Their bytes.
        pub compressed_bytes: u64,
        /// Bytes that they may decode to.
        pub capacity: u64,
        /// Bytes that they decoded to.
        pub actual: u64,
        /// Addresses of decoded bytes.
        pub outputs: u64,
        /// Of i32.
        pub statuses: u64,
        /// `count` of them.
        pub items: [Frames; MAX_ITEMS],
    }
}

impl Divisor {
    /// Of the division by `d`, from 1 to 2^31.
    ///
    /// ```
    /// let by = wcodec_kernels::abi::Divisor::new(7);
    /// assert_eq!((2 * 1_000_000_u64 * u64::from(by.factor) >> 32) >> by.shift, 1_000_000 / 7);
    /// ```
    pub fn new(d: u32) -> Self {
        let shift = d.next_power_of_two().trailing_zeros();
        Self { factor: (1u64 << (31 + shift)).div_ceil(d.into()) as u32, shift }
    }
}

/// Structures that a kernel takes as its one parameter.
///
/// # Safety
/// The type has no padding, so that all of its bytes are initialized.
pub unsafe trait Parameters: Copy {
    /// The bytes that are handed to the kernel.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: implementors have no padding; the slice borrows `self`.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

macro_rules! parameters {
    ($($name:ident)*) => {$(
        // SAFETY: `structures` compares its size with the sum of its fields' sizes.
        unsafe impl Parameters for $name {}
    )*};
}
parameters!(TilesBatch FieldsBatch RowsBatch FactorsBatch NormBatch SymbolsBatch FieldsSymbolsBatch FilteredBatch FramesBatch);
