//! The launch parameters of the kernels. `cuda/abi.h` is generated from this file: `cargo test --package wcodec-kernels
//! abi -- --ignored` writes it, and a test compares.
//!
//! All addresses are of device memory, as integers. A launch takes one batch by value, at most 4,096 bytes, so that it
//! needs no memory of its own and a CUDA graph keeps it.

#[cfg(test)]
mod header;

/// The most items of a launch: the linear layers of a decoder block. Parameters are copied with each launch, so they
/// are kept short.
pub const MAX_ITEMS: usize = 24;

/// The most items of a launch of products: the linear layers that read the same vectors.
pub const MAX_PRODUCT_ITEMS: usize = 16;

/// Address in shared memory of the decoding table; launches of the decoding kernels count the space below it as used.
/// Devices that reserve more than that of a block's shared memory cannot run the kernels.
pub const TABLE_AT: usize = 1024;

/// Columns whose squares are summed together, in the same order in every kernel.
pub const SQUARES_COLS: usize = 256;

/// Bytes of shared memory in which a warp sums the corrections of patches: for each of 16 rows a word for each digit of
/// a vector's elements.
pub const CHANGES_BYTES: usize = 256;

/// Bytes of shared memory in which a warp, or a thread for its first result or a row of results, stores the facts that it
/// knows before the vector is available, or the sum.
pub const KNOWN_BYTES: usize = 32;

/// Warps of a block of the kernels of many vectors that decode and multiply, at most: one for each strip and part.
pub const MANY_WARPS: usize = 16;
/// Those warps where vectors are more than 64, at most: sums take half of the registers then.
pub const MANY_FEW_WARPS: usize = 8;
/// Warps of such a block beside them: three prepare the vectors, one requests chunks.
pub const MANY_HELPERS: usize = 4;
/// Those beside where vectors are more than 64: seven prepare them.
pub const MANY_MORE_HELPERS: usize = 8;
/// Slots of the rings in which a block of those kernels has the vectors, at most: 64 columns of all vectors each.
pub const MANY_MOST_SLOTS: usize = 16;
/// The fewest slots.
pub const MANY_LEAST_SLOTS: usize = 4;
/// The most vectors of kernels whose blocks may have several parts of the columns.
pub const MANY_PARTED_VECTORS: usize = 32;
/// Vectors of all slots together, where slots are between the fewest and the most.
pub const MANY_RING_VECTORS: usize = 256;
/// Blocks of a chunk whose side words a warp of those kernels has at once.
pub const MANY_GROUP: usize = 4;
/// Address in shared memory of the barriers of the kernels of many vectors; the largest decoding table ends below it.
pub const MANY_BARRIERS_AT: usize = 17408;
/// Address in shared memory of their ring, and of the sums if they take its place in the end.
pub const MANY_RING_AT: usize = 19456;

/// Routes that `wcodec_route` sorts at most.
pub const MOST_ROUTES: usize = 4096;
/// Experts that it sorts them by, at most: a thread each.
pub const MOST_EXPERTS: usize = 1024;
/// Threads of a block of `wcodec_route_combine`.
pub const COMBINE_THREADS: usize = 128;

/// Columns of a launch of `wcodec_round_columns` or `wcodec_trellis_columns`, at most.
pub const QUANTIZE_COLUMNS: usize = 32;
/// The most threads of a block of these kernels.
pub const QUANTIZE_THREADS: usize = 64;

/// The item's results are written.
pub const PART_RESULT: u32 = 0;
/// They are a gate projection: the activation of it, times the matching up projection, is written.
pub const PART_GATE: u32 = 1;
/// They are the up projection that belongs to a gate projection.
pub const PART_UP: u32 = 2;

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

/// A norm of vectors: RMSNorm.
pub const NORM_RMS: u32 = 0;
/// A norm of vectors: LayerNorm.
pub const NORM_LAYER: u32 = 1;

/// The most threads of a block of `wcodec_norm`.
pub const NORM_THREADS: usize = 512;

/// The most runs of bits of an element that a plane can hold.
pub const MAX_RUNS: usize = 14;

/// The type of an output's elements.
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

    /// The last part of the name of a decoding kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Value of `layout`: `byte`.
pub const LAYOUT_BYTE: u8 = 0;
/// Value of `layout`: `pair`.
pub const LAYOUT_PAIR: u8 = 1;
/// Value of `layout`: `split`.
pub const LAYOUT_SPLIT: u8 = 2;
/// Value of `layout`: `quad`.
pub const LAYOUT_QUAD: u8 = 3;

/// Value of `filter`: none.
pub const FILTER_NONE: u8 = 0;
/// Value of `filter`: left.
pub const FILTER_LEFT: u8 = 1;
/// Value of `filter`: up.
pub const FILTER_UP: u8 = 2;
/// Value of `filter`: trellis.
pub const FILTER_TRELLIS: u8 = 3;

/// Value of a plane's status if no chunk was found damaged.
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
            // No padding, so that all of its bytes are initialized; and no more than the limit of a launch's
            // parameters.
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())* && size_of::<$name>() <= 4096);
        )*
        /// The structures of `cuda/abi.h`.
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
    /// The position of an output element: element (row, column), with rows counted through all matrices, is at
    /// `out + (row - row_begin) * row_stride + column * column_stride` elements.
    pub struct Output {
        /// Address.
        pub out: u64,
        /// Address of the scales; 0 for int8 output.
        pub scales: u64,
        /// Address of the columns' factors: bf16, those of each matrix after those of the matrix before. Values are
        /// multiplied by them, too. In items of products it is that of the item's only matrix, and its vectors are
        /// multiplied. 0 if there are none.
        pub columns: u64,
        /// Row that the output begins with.
        pub row_begin: u32,
        /// Elements.
        pub row_stride: u32,
        /// Elements.
        pub column_stride: u32,
        /// 0: a single scale for the tensor.
        pub scales_per_row: u32,
        /// Columns that share a scale.
        pub scale_columns: u32,
        /// Bytes of a scale: 4 is f32, 2 is bf16.
        pub scale_bytes: u16,
        /// The offset added to a symbol before it is multiplied by its scale, in 256ths: below 256.
        pub offset: u16,
    }

    /// Division of numbers below 2^31 by a number known to the host: `n / d` is `(2 n * factor >> 32) >> shift`.
    ///
    /// `factor` exceeds 2^(31 + shift) / d by less than 1, so the product is too large by less than `2 n`, which is
    /// less than 2^(32 + shift) / d (T. Granlund and P. Montgomery, "Division by Invariant Integers using
    /// Multiplication", 1994).
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
        /// Position and type of the output.
        pub output: Output,
        /// Length of the chunks in units of 4 bytes.
        pub data_units: u32,
        /// Sum of the costs of the items before this one; a chunk costs `blocks`.
        pub cost_begin: u32,
        /// First chunk.
        pub chunk_begin: u32,
        /// One past the last chunk.
        pub chunk_end: u32,
        /// Bytes of the longest chunk.
        pub max_chunk: u32,
        /// Strips per matrix.
        pub strips: u32,
        /// Rows per matrix.
        pub rows: u32,
        /// Columns per matrix.
        pub cols: u32,
        /// Tiles per strip.
        pub tiles: u32,
        /// Blocks of 64 columns in a tile.
        pub blocks: u32,
        /// Blocks in the last tile of a strip.
        pub last_blocks: u32,
        /// log2 of the slots of the table.
        pub bits: u16,
        /// LAYOUT_*.
        pub layout: u8,
        /// Shift of layouts pair, split and quad.
        pub shift: u8,
        /// FILTER_*.
        pub filter: u8,
        /// 1: rows of the output begin at multiples of 16 bytes and are shorter than 2^29 bytes, and columns are
        /// adjacent.
        pub vector: u8,
        /// First block of threads that has chunks of this item only.
        pub block_begin: u16,
        /// One past the last one.
        pub block_end: u16,
        /// 1: patches store by how much elements exceed the values that the symbols give.
        pub changes: u16,
        /// Division by `tiles`.
        pub by_tiles: Divisor,
        /// Division by `strips`.
        pub by_strips: Divisor,
        /// First chunk of those blocks.
        pub shared_begin: u32,
        /// One past the last one.
        pub shared_end: u32,
    }

    /// Parameters of the decoding kernels, except those named `fields`.
    pub struct TilesBatch {
        /// Items.
        pub count: u32,
        /// Cost of all items together.
        pub cost: u32,
        /// Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// 0.
        pub reserved: [u32; 2],
        /// The items, `count` of them.
        pub items: [Tiles; MAX_ITEMS],
    }

    /// The bits of an element that a plane holds. FORMAT.md section 2, scheme `lossless`.
    pub struct Fields {
        /// Bytes of an element: 1, 2 or 4.
        pub bytes: u8,
        /// 1: the bits are added to those of other planes in the output. 0: they are the whole element.
        pub adds: u8,
        /// Runs of bits.
        pub count: u16,
        /// The runs, `count` of them: lowest bit in the element (bits 0 to 4), lowest bit in the plane's decoded value
        /// (5 to 9), width - 1 (10 to 14).
        pub runs: [u16; MAX_RUNS],
    }

    /// Parameters of the decoding kernels named `fields`.
    pub struct FieldsBatch {
        /// Planes, all of which hold these bits.
        pub tiles: TilesBatch,
        /// The bits.
        pub fields: Fields,
    }

    /// Parameters of the kernels named `rows`, which look up rows of one matrix by indices in memory, and write them
    /// one after the other.
    pub struct RowsBatch {
        /// Address of the indices.
        pub ids: u64,
        /// 1: 64-bit indices. 0: 32-bit ones. Indices out of range, including negative ones, give NaN.
        pub wide: u32,
        /// The number of indices.
        pub count: u32,
        /// OUT_*, but not OUT_INT8.
        pub kind: u32,
        /// Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// 0.
        pub reserved: u32,
        /// The whole plane of one matrix; its output is that of the first index. Its fields that select chunks are
        /// ignored.
        pub tiles: Tiles,
        /// The bits of elements that are joined.
        pub fields: Fields,
    }

    /// A matrix, or rows of one, to multiply vectors with.
    pub struct ProductItem {
        /// The plane whose symbols are its weights. Of `output` only scales, factors, offset and first row are used;
        /// `block_begin` and `block_end` delimit the thread blocks that process only this item, each a run of whole
        /// strips.
        pub tiles: Tiles,
        /// Address of the bias of the first row and of those after it, elements like those of `x`; 0 for none.
        pub bias: u64,
        /// Results of the items before this one, for each vector.
        pub before: u32,
        /// Distance from a vector's results to the next one's, elements.
        pub stride: u32,
        /// Index of the first row's result among those of a vector.
        pub place: u32,
        /// Strips of each of the item's thread blocks; the first ones have one more, as many of them as the remainder
        /// requires. Not used by kernels of many vectors.
        pub strips: u32,
        /// The offset of symbols minus 1/2, in both halves, as elements like those of `x`: -1/2, or 0. Not a constant
        /// of the kernel: NVRTC 12.4 loads operands that are negative constants from uninitialized registers.
        pub minus: u32,
        /// PART_*: the use of the results.
        pub part: u32,
        /// Index among the vectors at `x` of the item's first one.
        pub vector: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of the kernels of products: results are the products of all items with each of `vectors` vectors. For
    /// an item after n results, those of vector v begin at `y` + (n * vectors + v * stride) elements.
    ///
    /// Kernels named `many` interpret some of the fields in their own way. Their blocks have some strips of one item and
    /// 2^`corrections` parts of the columns, a warp for each strip and part, MANY_HELPERS warps more, and form clusters of
    /// `staged` blocks, which have the same strips: of all n parts of the cluster, counted block by block, part p has tiles
    /// [tiles * p / n, tiles * (p + 1) / n), and together they add up.
    /// `block_begin` and `block_end` of an item are multiples of `staged`. `barriers` is MANY_BARRIERS_AT, `sums` is
    /// MANY_RING_AT or behind all else, `buffers_per_warp` is 2, and `copies` is 0.
    ///
    /// Kernels named `routed` are like those, but that each thread block finds its item and its vectors in memory. `stash`
    /// is the address of the items of all experts, `count` of each expert, whose `block_begin` and `block_end` count the
    /// `copies` blocks of an expert. `arrivals` is the address of a RouteSlot for each `copies` blocks of the launch, which
    /// says the expert and its vectors; blocks of a slot without vectors end at once. `gain` is the address of a u32 for
    /// each vector, the vector's number among those at `x`, or 0 if that is its position. Results lie by position.
    /// `vectors`, `items` and the rest of the epilogue are 0.
    pub struct ProductBatch {
        /// Items.
        pub count: u32,
        /// Vectors: 1 up to the number in the kernel's name.
        pub vectors: u32,
        /// Address of the first vector.
        pub x: u64,
        /// Distance from one vector to the next, elements.
        pub x_stride: u64,
        /// Address of the results.
        pub y: u64,
        /// Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
        pub barriers: u32,
        /// Address in shared memory of the first buffer.
        pub buffers: u32,
        /// Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
        pub buffer_bytes: u32,
        /// 1 or 2.
        pub buffers_per_warp: u32,
        /// Address in shared memory of the first warp's staging space for a chunk's blocks, in kernels named `early`; of
        /// the first warp's side words, in kernels named `many`: two groups of MANY_GROUP blocks for each warp.
        pub staging: u32,
        /// Blocks that fit each warp's staging space: at least those of a chunk. In kernels named `many` the thread blocks
        /// of a cluster: 1 to 8.
        pub staged: u32,
        /// Address in shared memory of the sums of each chunk; in kernels named `many`, of the sums that the blocks of a
        /// cluster leave for this one's results: for each block, as many strips as any of them has.
        pub sums: u32,
        /// 1: vectors, including those at `squared`, and the factors of columns begin at multiples of 16 bytes.
        pub vector: u32,
        /// Address of vectors laid out like those at `x`, or 0: each result is divided by the root of the mean of their
        /// squares, as after an RMSNorm whose gain is already in the vectors at `x`.
        pub squared: u64,
        /// Address of the residual that is added to the results, laid out like them; 0 for none.
        pub residual: u64,
        /// Address of a second copy of the results, multiplied by `gain`; 0 for none.
        pub scaled: u64,
        /// Address of a factor for each result of a vector, elements like those of `x`.
        pub gain: u64,
        /// Address of f32 for the gate projection, followed by the up projection, each as many as there are results; 0
        /// without gates. In kernels named `routed` the address of the items of all experts.
        pub stash: u64,
        /// Address of an arrival counter for each strip: the number of its gate and up projections in the stash. Counters
        /// are 0 before and after the launches that belong together.
        pub arrivals: u64,
        /// The epsilon added to the mean of the squares: bits of f32.
        pub epsilon: u32,
        /// The reciprocal of the number of elements in the mean: bits of f32.
        pub share: u32,
        /// The factor of results before the division: bits of f32.
        pub norm_factor: u32,
        /// Address in shared memory of sums of squares: a word for each vector and SQUARES_COLS columns.
        pub squares: u32,
        /// Address in shared memory of a word for each of a block's strips.
        pub arrived: u32,
        /// The factor, besides `gain`, of the second copy of the results: bits of f32.
        pub gain_scale: u32,
        /// The offset added to the product of `gain` and `gain_scale`: bits of f32.
        pub gain_offset: u32,
        /// The factor of results before a residual is added: bits of f32.
        pub residual_scale: u32,
        /// log2 of the number of copies of the decoding table: 0, or 2 to 5. Only for coder `huffman` with shifts 0 to
        /// 2. In kernels named `routed` the thread blocks of a slot.
        pub copies: u32,
        /// Address in shared memory of CHANGES_BYTES for each warp; 0 if patches are applied before symbols are
        /// multiplied. In kernels named `many` and `routed` log2 of the parts of the columns that a block has: 0 to 2.
        pub corrections: u32,
        /// Address in shared memory of the facts that are known before the vector is available: KNOWN_BYTES for each
        /// warp, then KNOWN_BYTES for each result, in kernels for one vector named `early`; KNOWN_BYTES for each row of the
        /// block's results, in kernels named `many`.
        pub known: u32,
        /// ACTIVATION_*: that of the gate projection, or, without one, of the results.
        pub activation: u32,
        /// `count` of them.
        pub items: [ProductItem; MAX_PRODUCT_ITEMS],
    }

    /// Parameters of `wcodec_many_selftest`, which has one block of 128 threads.
    pub struct ManySelftest {
        /// Address of the result, a u32: 1 if tensor cores multiply subnormal numbers exactly, else 0.
        pub result: u64,
    }

    /// Routes that lead to one expert, at positions that follow each other: all of them, or some.
    pub struct RouteSlot {
        /// The expert's index.
        pub expert: u32,
        /// Position of the first one.
        pub begin: u32,
        /// The number of routes; 0 for a slot that no expert has.
        pub count: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_route`, which has one block of threads, one at least for each expert. It sorts routes of
    /// tokens to experts by expert, those to one expert in their order: a route's place in that order is its position.
    pub struct RouteBatch {
        /// Address of the expert's number for each route, those of a token side by side. Numbers out of range are of no
        /// expert, negative ones too.
        pub ids: u64,
        /// Address of an i32 for each of `named` numbers: the expert's index, or one out of range for none. 0 if numbers
        /// are indices.
        pub places: u64,
        /// Address of a u32 for each position, to be written: the route's number, divided by `each`.
        pub rows: u64,
        /// Address of an i32 for each route, to be written: its position, or -1 if it leads to no expert.
        pub positions: u64,
        /// Address of the slots of experts with routes, by ascending index, to be written.
        pub slots: u64,
        /// The number of routes, up to MOST_ROUTES.
        pub routes: u32,
        /// Routes that read the same row of vectors.
        pub each: u32,
        /// 1: 64-bit numbers. 0: 32-bit ones.
        pub wide: u32,
        /// Entries at `places`, fewer than 2^31.
        pub named: u32,
        /// The number of experts, up to MOST_EXPERTS.
        pub experts: u32,
        /// Routes of a slot, at most: an expert with more of them has several.
        pub most: u32,
        /// The number of slots, as many as there can be. Those without an expert count 0.
        pub slot_count: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_route_combine`: each token gets the sum of its routes' vectors, times their shares, added
    /// up as f32 in the order of the routes. A token's columns are divided among blocks of threads, eight a thread.
    pub struct CombineBatch {
        /// Address of a vector for each position.
        pub y: u64,
        /// Address of a factor for each route; 0 if all are 1.
        pub shares: u64,
        /// Address of an i32 for each route: its position, or -1 if it adds nothing.
        pub positions: u64,
        /// Address of a vector for each token, to be written.
        pub out: u64,
        /// Elements of a vector.
        pub cols: u32,
        /// Routes of a token.
        pub each: u32,
        /// 1 for bf16, 0 for f16.
        pub bf16: u32,
        /// 1: shares are f32. 0: they are like the vectors' elements.
        pub wide: u32,
        /// 1: vectors begin at multiples of 16 bytes.
        pub vector: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_round_columns`, which rounds weights of some columns to levels at halves, column by column, a
    /// row for each thread. Errors of a column are added to the targets of those after it. Numbers are f32, and arrays
    /// have a row for each column.
    pub struct RoundBatch {
        /// Address of the weights, in steps of their rows.
        pub x: u64,
        /// Address of the sums that errors of earlier columns add to them.
        pub carry: u64,
        /// Address of the share of each column's error that each later one gets.
        pub feed: u64,
        /// Address of the cost of each magnitude, with two places before the first that are never chosen; 0 to round to
        /// the nearest level.
        pub prices: u64,
        /// Address of an i8 for each weight, to be written: symbol n stands for n + 1/2.
        pub levels: u64,
        /// Address of the error of each weight, to be written.
        pub errors: u64,
        /// The number of rows.
        pub rows: u32,
        /// The number of columns, up to QUANTIZE_COLUMNS.
        pub columns: u32,
        /// The distance of rows of `feed`.
        pub stride: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_trellis_columns`, which extends the four survivors of a trellis by some columns, in four
    /// threads for each row of weights. Numbers are f32, and arrays have a row for each column.
    pub struct TrellisBatch {
        /// Address of the weights, in fine steps of their rows.
        pub x: u64,
        /// Address of the sums that errors of earlier columns add to them, those of each survivor.
        pub added: u64,
        /// Address of the cost of an error in each column.
        pub weights: u64,
        /// Address of the share of each column's error that each later one gets; 0 if they get none.
        pub feed: u64,
        /// Address of the cost of each symbol from -128 on.
        pub prices: u64,
        /// Address of the costs of survivors so far.
        pub costs: u64,
        /// Address of an i8 for each weight and survivor, to be written: its symbols.
        pub symbols: u64,
        /// Address of an i64 for each survivor, to be written: the state in which it was before these columns.
        pub origin: u64,
        /// Address of the costs of survivors, to be written.
        pub sums: u64,
        /// The number of rows.
        pub rows: u32,
        /// The number of columns, up to QUANTIZE_COLUMNS.
        pub columns: u32,
        /// The distance of rows of `feed`.
        pub stride: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_norm`, in which each block of threads takes a vector: y is the norm of x, times
    /// `result_scale`, plus a residual. Elements of all vectors have one type, and vectors of an array are contiguous.
    pub struct NormBatch {
        /// Address of the vectors.
        pub x: u64,
        /// Address of the residual that is added to their norms; 0 for none. It may be `y`.
        pub residual: u64,
        /// Address of the results. It may be `x`.
        pub y: u64,
        /// Address of a factor for each column; 0 for none.
        pub gain: u64,
        /// Address of a bias for each column; 0 for none.
        pub bias: u64,
        /// Address of a second copy of the results, for the next norm; 0 for none.
        pub scaled: u64,
        /// Address of a factor for each column of that copy.
        pub next_gain: u64,
        /// Elements of a vector.
        pub cols: u32,
        /// 1 for bf16, 0 for f16.
        pub bf16: u32,
        /// NORM_*.
        pub kind: u32,
        /// 1: all arrays and their vectors begin at multiples of 16 bytes.
        pub vector: u32,
        /// The epsilon added to the mean of the squares: bits of f32.
        pub epsilon: u32,
        /// The reciprocal of `cols`: bits of f32.
        pub share: u32,
        /// The offset added to `gain`: bits of f32.
        pub gain_offset: u32,
        /// The factor of the norm before the residual is added: bits of f32.
        pub result_scale: u32,
        /// The factor of `next_gain`: bits of f32.
        pub next_scale: u32,
        /// The offset added to that product: bits of f32.
        pub next_offset: u32,
    }

    /// Symbols of a plane, row-major without padding, to be written as values.
    pub struct Symbols {
        /// Address at which the plane's first symbol would lie.
        pub symbols: u64,
        /// First element.
        pub begin: u64,
        /// One past the last element.
        pub end: u64,
        /// Rows per matrix.
        pub rows: u32,
        /// Columns per matrix.
        pub cols: u32,
        /// Position and type of the output.
        pub output: Output,
        /// Groups of 16 elements in the items before this one.
        pub cost_begin: u64,
        /// OUT_*.
        pub kind: u32,
        /// 1: each group of 16 lies in one row, and is aligned to 16 bytes in symbols and output.
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

    /// Symbols of a plane that hold bits of elements.
    pub struct FieldsSymbols {
        /// The plane; `kind` is 0.
        pub symbols: Symbols,
        /// The bits.
        pub fields: Fields,
    }

    /// Parameters of `wcodec_fields`.
    pub struct FieldsSymbolsBatch {
        /// Items, no two of them with the same output.
        pub count: u32,
        /// 0.
        pub reserved: u32,
        /// Groups of all items together.
        pub cost: u64,
        /// `count` of them.
        pub items: [FieldsSymbols; MAX_ITEMS],
    }

    /// Rows of a plane of coder `zstd` that a filter was applied to.
    pub struct Filtered {
        /// Address at which the plane's first symbol would lie.
        pub symbols: u64,
        /// Elements of the plane.
        pub elements: u64,
        /// Columns of each row.
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

    /// Frames of a plane of coder `zstd`, for nvCOMP: arrays of pointers and sizes.
    pub struct Frames {
        /// Address of the frames.
        pub data: u64,
        /// Address of pairs of u32: start in units of 8 bytes, length.
        pub offsets: u64,
        /// Address of the decoded bytes.
        pub output: u64,
        /// Decoded bytes of the whole plane.
        pub decoded: u64,
        /// Address of the plane's status.
        pub status: u64,
        /// First frame.
        pub frame_begin: u64,
        /// The number of frames.
        pub frames: u32,
        /// Decoded bytes of a frame.
        pub chunk: u32,
        /// Index of the first frame in the arrays.
        pub first: u32,
        /// 0.
        pub reserved: u32,
    }

    /// Parameters of `wcodec_frames` and `wcodec_frames_check`.
    pub struct FramesBatch {
        /// Items.
        pub count: u32,
        /// Frames of all items together.
        pub frames: u32,
        /// The arrays, of `frames` entries each: addresses of frames.
        pub compressed: u64,
        /// Their bytes.
        pub compressed_bytes: u64,
        /// Capacities for their decoded bytes.
        pub capacity: u64,
        /// Actual lengths of their decoded bytes.
        pub actual: u64,
        /// Addresses of decoded bytes.
        pub outputs: u64,
        /// Addresses of i32 statuses.
        pub statuses: u64,
        /// `count` of them.
        pub items: [Frames; MAX_ITEMS],
    }
}

impl Divisor {
    /// The constants for division by `d`, from 1 to 2^31.
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

/// Structures that a kernel takes as its only parameter, or finds in memory.
///
/// # Safety
/// The type has no padding, so that all of its bytes are initialized.
pub unsafe trait Parameters: Copy {
    /// The bytes that the kernel gets.
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
parameters!(TilesBatch FieldsBatch RowsBatch ProductItem ProductBatch ManySelftest RouteBatch CombineBatch RoundBatch TrellisBatch NormBatch SymbolsBatch FieldsSymbolsBatch FilteredBatch FramesBatch);
