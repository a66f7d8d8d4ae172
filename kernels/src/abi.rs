//! What the kernels are launched with: the structures of `cuda/abi.h`, field for field.
//!
//! All addresses are of device memory, as integers. A launch takes one batch by value, at most 4,096 bytes, so that it
//! needs no memory of its own and a CUDA graph keeps it.

/// Items of one launch: the linears of a decoder block. Parameters are copied with each launch, so that they are kept
/// short.
pub const MAX_ITEMS: usize = 24;

/// Address in shared memory of the decoding table, which launches of the decoding kernels count as used. Devices that keep more than that of
/// a block's shared memory for themselves cannot run the kernels.
pub const TABLE_AT: usize = 1024;

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

/// Value of a plane's status where no chunk was found damaged.
pub const STATUS_GOOD: u32 = u32::MAX;

/// Where the elements of an output lie, and what scales them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Output {
    pub out: u64,
    pub row_stride: u64,
    pub column_stride: u64,
    pub scales: u64,
    pub scales_per_row: u32,
    pub scale_columns: u32,
}

/// How a kernel divides numbers below 2^31 by one that is known before: `n / d` is `(2 n * factor >> 32) >> shift`.
///
/// `factor` exceeds 2^(31 + shift) / d by less than 1, so the product is too large by less than `2 n`, which 2^(32 + shift) / d exceeds
/// (T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", 1994).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Divisor {
    pub factor: u32,
    pub shift: u32,
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

/// Strips of a plane in tiles.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Tiles {
    pub data: u64,
    pub offsets: u64,
    pub side: u64,
    pub table: u64,
    pub status: u64,
    pub row_begin: u64,
    pub output: Output,
    pub data_units: u32,
    pub cost_begin: u32,
    pub chunk_begin: u32,
    pub chunk_end: u32,
    pub max_chunk: u32,
    pub strips: u32,
    pub rows: u32,
    pub cols: u32,
    pub tiles: u32,
    pub blocks: u32,
    pub last_blocks: u32,
    pub bits: u16,
    pub layout: u8,
    pub shift: u8,
    pub filter: u8,
    pub vector: u8,
    pub block_begin: u16,
    pub block_end: u16,
    pub reserved: u16,
    pub by_tiles: Divisor,
    pub by_strips: Divisor,
    pub shared_begin: u32,
    pub shared_end: u32,
}

/// Parameters of the decoding kernels.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct TilesBatch {
    pub count: u32,
    pub cost: u32,
    pub barriers: u32,
    pub buffers: u32,
    pub buffer_bytes: u32,
    pub buffers_per_warp: u32,
    pub reserved: [u32; 2],
    pub items: [Tiles; MAX_ITEMS],
}

/// Symbols to write as what they stand for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Symbols {
    pub symbols: u64,
    pub begin: u64,
    pub end: u64,
    pub cols: u64,
    pub row_begin: u64,
    pub output: Output,
    pub cost_begin: u64,
    pub kind: u32,
    pub vector: u32,
}

/// Parameters of `wcodec_dequantize`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SymbolsBatch {
    pub count: u32,
    pub reserved: u32,
    pub cost: u64,
    pub items: [Symbols; MAX_ITEMS],
}

/// A filtered plane of coder `zstd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Filtered {
    pub symbols: u64,
    pub elements: u64,
    pub cols: u64,
    pub chunk: u64,
    pub chunk_begin: u64,
    pub cost_begin: u64,
    pub filter: u32,
    pub reserved: u32,
}

/// Parameters of `wcodec_unfilter`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FilteredBatch {
    pub count: u32,
    pub reserved: u32,
    pub cost: u64,
    pub items: [Filtered; MAX_ITEMS],
}

/// Frames of a plane of coder `zstd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Frames {
    pub data: u64,
    pub offsets: u64,
    pub output: u64,
    pub decoded: u64,
    pub status: u64,
    pub frame_begin: u64,
    pub frames: u32,
    pub chunk: u32,
    pub first: u32,
    pub reserved: u32,
}

/// Parameters of `wcodec_frames` and `wcodec_frames_check`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FramesBatch {
    pub count: u32,
    pub frames: u32,
    pub compressed: u64,
    pub compressed_bytes: u64,
    pub capacity: u64,
    pub actual: u64,
    pub outputs: u64,
    pub statuses: u64,
    pub items: [Frames; MAX_ITEMS],
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

/// Whether fields of these sizes leave no gap in a structure, and fill it.
macro_rules! parameters {
    ($($name:ident = $bytes:expr;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes && size_of::<$name>() <= 4096);
        // SAFETY: its size is the sum of its fields' sizes.
        unsafe impl Parameters for $name {}
    )*};
}

const OUTPUT: usize = 4 * 8 + 2 * 4;
const TILES: usize = 6 * 8 + OUTPUT + 11 * 4 + 2 + 4 + 3 * 2 + 6 * 4;
const SYMBOLS: usize = 6 * 8 + OUTPUT + 2 * 4;
const FILTERED: usize = 6 * 8 + 2 * 4;
const FRAMES: usize = 6 * 8 + 4 * 4;

parameters! {
    TilesBatch = 8 * 4 + MAX_ITEMS * TILES;
    SymbolsBatch = 2 * 4 + 8 + MAX_ITEMS * SYMBOLS;
    FilteredBatch = 2 * 4 + 8 + MAX_ITEMS * FILTERED;
    FramesBatch = 2 * 4 + 6 * 8 + MAX_ITEMS * FRAMES;
}
