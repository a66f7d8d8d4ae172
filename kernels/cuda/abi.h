// What the host hands to the kernels. `kernels/src/abi.rs` owns these structures; a test compares sizes and offsets.
#pragma once
#include "simt.h"

// Items of one launch: the linears of a decoder block. Parameters are copied with each launch, so that they are kept short.
#define MAX_ITEMS 24

// Output types.
#define OUT_INT8 0
#define OUT_F16 1
#define OUT_BF16 2
#define OUT_F32 3

// Filters.
#define FILTER_NONE 0
#define FILTER_LEFT 1
#define FILTER_UP 2

// Where an element of the output lies: element (row, column), rows counted through all matrices from the first row of
// the item, is at `out + row * row_stride + column * column_stride` elements.
struct Output {
  u64 out;            // address
  u64 row_stride;     // elements
  u64 column_stride;  // elements
  u64 scales;         // address of f32; 0 for int8 output
  u32 scales_per_row; // 0: one for the tensor
  u32 scale_columns;  // columns that share a scale
};

// How to divide what is below 2^31 by a number that the host knows: n / d is (2 n * factor >> 32) >> shift.
struct Divisor {
  u32 factor;  // ceil(2^(31 + shift) / d)
  u32 shift;   // ceil(log2 d)
};

// A coded plane, or a range of its strips. FORMAT.md section 3 defines the words.
struct Tiles {
  u64 data;           // address of the chunks, a multiple of 16
  u64 offsets;        // address of the chunk offsets
  u64 side;           // address of the side plane
  u64 table;          // address of the decoding table, 2^bits words
  u64 status;         // address of the plane's status: the smallest chunk found damaged, or all ones
  u64 row_begin;      // row, counted through all matrices, that the output begins with
  Output output;
  u32 data_units;     // length of the chunks in units of 4 bytes
  u32 cost_begin;     // sum of the costs of the items before this one; a chunk costs `blocks`
  u32 chunk_begin;    // first chunk
  u32 chunk_end;      // behind the last chunk
  u32 max_chunk;      // bytes
  u32 strips;         // per matrix
  u32 rows;           // per matrix
  u32 cols;
  u32 tiles;          // per strip
  u32 blocks;         // of 64 columns, in a tile
  u32 last_blocks;    // in the last tile of a strip
  u16 bits;           // log2 of the slots of the table
  u8 layout;          // 0 byte, 1 pair
  u8 shift;           // of layout pair
  u8 filter;
  u8 vector;          // rows of the output begin at multiples of 16 bytes and are below 2^29 long, columns follow each other
  u16 block_begin;    // first block of threads that has chunks of this item only
  u16 block_end;      // behind the last one
  u16 reserved;
  Divisor by_tiles;   // how to divide by `tiles`
  Divisor by_strips;  // and by `strips`
  u32 shared_begin;   // first chunk of those blocks
  u32 shared_end;     // behind the last one
};

struct TilesBatch {
  u32 count;
  u32 cost;           // of all items together
  u32 barriers;       // address in shared memory; the decoding table lies before them, at TABLE_AT
  u32 buffers;        // address in shared memory of the first buffer
  u32 buffer_bytes;   // of one buffer: a chunk, and what a damaged one may make a decoder read beyond
  u32 buffers_per_warp;  // 1 or 2
  u32 reserved[2];
  Tiles items[MAX_ITEMS];
};

// Symbols of a plane, row-major without padding, to write as what they stand for.
struct Symbols {
  u64 symbols;        // address at which the plane's first symbol would lie
  u64 begin;          // first element
  u64 end;            // behind the last element
  u64 cols;
  u64 row_begin;      // row that the output begins with
  Output output;
  u64 cost_begin;     // groups of 16 elements in the items before this one
  u32 kind;           // OUT_*
  u32 vector;         // groups of 16 lie in one row, and are multiples of 16 bytes in symbols and output
};
struct SymbolsBatch {
  u32 count;
  u32 reserved;
  u64 cost;
  Symbols items[MAX_ITEMS];
};

// Rows of a plane of coder `zstd` on which a filter was used.
struct Filtered {
  u64 symbols;        // address at which the plane's first symbol would lie
  u64 elements;       // of the plane
  u64 cols;
  u64 chunk;          // decoded bytes of a frame: the filter restarts at each
  u64 chunk_begin;    // first frame
  u64 cost_begin;     // warps that the items before this one take
  u32 filter;
  u32 reserved;
};
struct FilteredBatch {
  u32 count;
  u32 reserved;
  u64 cost;           // warps
  Filtered items[MAX_ITEMS];
};

// Frames of a plane of coder `zstd`, as nvCOMP wants them: arrays of pointers and sizes.
struct Frames {
  u64 data;           // address of the frames
  u64 offsets;        // address of pairs of u32: start in units of 8 bytes, length
  u64 output;         // address of the decoded bytes
  u64 decoded;        // of the whole plane, bytes
  u64 status;         // address of the plane's status
  u64 frame_begin;    // first frame
  u32 frames;
  u32 chunk;          // decoded bytes of a frame
  u32 first;          // place of the first frame in the arrays
  u32 reserved;
};
struct FramesBatch {
  u32 count;
  u32 frames;         // of all items together
  u64 compressed;     // the arrays, of `frames` entries each: addresses of frames
  u64 compressed_bytes;
  u64 capacity;
  u64 actual;
  u64 outputs;
  u64 statuses;       // of i32
  Frames items[MAX_ITEMS];
};

// abi.rs asserts the same sizes.
static_assert(sizeof(Tiles) == 168 && sizeof(TilesBatch) == 32 + MAX_ITEMS * 168, "differs from abi.rs");
static_assert(sizeof(Symbols) == 96 && sizeof(SymbolsBatch) == 16 + MAX_ITEMS * 96, "differs from abi.rs");
static_assert(sizeof(Filtered) == 56 && sizeof(FilteredBatch) == 16 + MAX_ITEMS * 56, "differs from abi.rs");
static_assert(sizeof(Frames) == 64 && sizeof(FramesBatch) == 56 + MAX_ITEMS * 64, "differs from abi.rs");
