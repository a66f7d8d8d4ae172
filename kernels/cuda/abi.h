// The launch parameters of the kernels. Generated from kernels/src/abi.rs, which says how.
#pragma once
#include "simt.h"

// The most items of a launch.
#define MAX_ITEMS 24

// The most items of a launch of products.
#define MAX_PRODUCT_ITEMS 16

// Columns whose squares are summed together, in the same order in every kernel.
#define SQUARES_COLS 256

// Bytes of shared memory for a warp's sums of the corrections of patches: for each of 16 rows a word for each digit.
#define CHANGES_BYTES 256

// Bytes of shared memory for the facts that a warp, or a thread, knows before the vector is available.
#define KNOWN_BYTES 32

// Kernels of many vectors: a block's warps that decode, at most, and with 128 vectors, its other warps in the same two cases, and the blocks of a chunk whose side words it has at once.
#define MANY_WARPS 16
#define MANY_FEW_WARPS 8
#define MANY_HELPERS 4
#define MANY_MORE_HELPERS 8
#define MANY_GROUP 4

// Their rings: slots, at most and at least, and vectors of all slots together in between.
#define MANY_MOST_SLOTS 16
#define MANY_LEAST_SLOTS 4
#define MANY_RING_VECTORS 256
#define MANY_PARTED_VECTORS 32

// Addresses in shared memory of the barriers and of the ring of kernels of many vectors.
#define MANY_BARRIERS_AT 17408
#define MANY_RING_AT 19456

// Routes that `wcodec_route` sorts, and experts by which it does, at most.
#define MOST_ROUTES 4096
#define MOST_EXPERTS 1024

// Threads of a block of `wcodec_route_combine`.
#define COMBINE_THREADS 128

// Columns of a launch of the kernels that choose levels, and threads of a block of them, at most.
#define QUANTIZE_COLUMNS 32
#define QUANTIZE_THREADS 64

// The use of an item's results.
#define PART_RESULT 0
#define PART_GATE 1
#define PART_UP 2

// Activations.
#define ACTIVATION_NONE 0
#define ACTIVATION_SILU 1
#define ACTIVATION_GELU_TANH 2
#define ACTIVATION_GELU 3
#define ACTIVATION_RELU 4
#define ACTIVATION_RELU_SQUARED 5

// Norms.
#define NORM_RMS 0
#define NORM_LAYER 1

// The most threads of a block of `wcodec_norm`.
#define NORM_THREADS 512

// The most runs of bits of an element that a plane can hold.
#define MAX_RUNS 14

// Output types.
#define OUT_INT8 0
#define OUT_F16 1
#define OUT_BF16 2
#define OUT_F32 3

// Filters.
#define FILTER_NONE 0
#define FILTER_LEFT 1
#define FILTER_UP 2
#define FILTER_TRELLIS 3

// Layouts.
#define LAYOUT_BYTE 0
#define LAYOUT_PAIR 1
#define LAYOUT_SPLIT 2
#define LAYOUT_QUAD 3

// Modes of `Tile`: the assumptions of a kernel's compiler about planes (kernels/src/mode.rs).
#define MODE_BYTE 0
#define MODE_PAIR 1
#define MODE_LOW 3
#define MODE_TRELLIS 4
#define MODE_GENERAL 2

// Threads of the largest block of a kernel with 64 registers per thread, and with twice as many.
#define BLOCK_THREADS 1024
#define HALF_BLOCK_THREADS 512

// Threads of multiplying kernels that iterate over chunks, by the mode's name.
#define MAINLOOP_THREADS_pair 1024
#define MAINLOOP_THREADS_low 1024
#define MAINLOOP_THREADS_trellis 1024
#define MAINLOOP_THREADS_quad 768
#define MAINLOOP_THREADS_quadtrellis 768

// The position of an output element: element (row, column), with rows counted through all matrices, is at
// `out + (row - row_begin) * row_stride + column * column_stride` elements.
struct Output {
  u64 out;             // Address.
  u64 scales;          // Address of the scales; 0 for int8 output.
  u64 columns;         // Address of the columns' factors: bf16, those of each matrix after those of the matrix before. Values are multiplied by them, too. In items of products it is that of the item's only matrix, and its vectors are multiplied. 0 if there are none.
  u32 row_begin;       // Row that the output begins with.
  u32 row_stride;      // Elements.
  u32 column_stride;   // Elements.
  u32 scales_per_row;  // 0: a single scale for the tensor.
  u32 scale_columns;   // Columns that share a scale.
  u16 scale_bytes;     // Bytes of a scale: 4 is f32, 2 is bf16.
  u16 offset;          // The offset added to a symbol before it is multiplied by its scale, in 256ths: below 256.
};

// Division of numbers below 2^31 by a number known to the host: `n / d` is `(2 n * factor >> 32) >> shift`.
struct Divisor {
  u32 factor;  // ceil(2^(31 + shift) / d).
  u32 shift;   // ceil(log2 d).
};

// A coded plane, or a range of its strips. FORMAT.md section 3 defines the words.
struct Tiles {
  u64 data;           // Address of the chunks, a multiple of 16.
  u64 offsets;        // Address of the chunk offsets.
  u64 side;           // Address of the side plane.
  u64 table;          // Address of the decoding table, 2^bits words.
  u64 status;         // Address of the plane's status: the smallest chunk found damaged, or all ones.
  Output output;      // Position and type of the output.
  u32 data_units;     // Length of the chunks in units of 4 bytes.
  u32 cost_begin;     // Sum of the costs of the items before this one; a chunk costs `blocks`.
  u32 chunk_begin;    // First chunk.
  u32 chunk_end;      // One past the last chunk.
  u32 max_chunk;      // Bytes of the longest chunk.
  u32 strips;         // Strips per matrix.
  u32 rows;           // Rows per matrix.
  u32 cols;           // Columns per matrix.
  u32 tiles;          // Tiles per strip.
  u32 blocks;         // Blocks of 64 columns in a tile.
  u32 last_blocks;    // Blocks in the last tile of a strip.
  u16 bits;           // log2 of the slots of the table.
  u8 layout;          // LAYOUT_*.
  u8 shift;           // Shift of layouts pair, split and quad.
  u8 filter;          // FILTER_*.
  u8 vector;          // 1: rows of the output begin at multiples of 16 bytes and are shorter than 2^29 bytes, and columns are adjacent.
  u16 block_begin;    // First block of threads that has chunks of this item only.
  u16 block_end;      // One past the last one.
  u16 changes;        // 1: patches store by how much elements exceed the values that the symbols give.
  Divisor by_tiles;   // Division by `tiles`.
  Divisor by_strips;  // Division by `strips`.
  u32 shared_begin;   // First chunk of those blocks.
  u32 shared_end;     // One past the last one.
};

// Parameters of the decoding kernels, except those named `fields`.
struct TilesBatch {
  u32 count;               // Items.
  u32 cost;                // Cost of all items together.
  u32 barriers;            // Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
  u32 buffers;             // Address in shared memory of the first buffer.
  u32 buffer_bytes;        // Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
  u32 buffers_per_warp;    // 1 or 2.
  u32 reserved[2];         // 0.
  Tiles items[MAX_ITEMS];  // The items, `count` of them.
};

// The bits of an element that a plane holds. FORMAT.md section 2, scheme `lossless`.
struct Fields {
  u8 bytes;            // Bytes of an element: 1, 2 or 4.
  u8 adds;             // 1: the bits are added to those of other planes in the output. 0: they are the whole element.
  u16 count;           // Runs of bits.
  u16 runs[MAX_RUNS];  // The runs, `count` of them: lowest bit in the element (bits 0 to 4), lowest bit in the plane's decoded value (5 to 9), width - 1 (10 to 14).
};

// Parameters of the decoding kernels named `fields`.
struct FieldsBatch {
  TilesBatch tiles;  // Planes, all of which hold these bits.
  Fields fields;     // The bits.
};

// Parameters of the kernels named `rows`, which look up rows of one matrix by indices in memory, and write them
// one after the other.
struct RowsBatch {
  u64 ids;               // Address of the indices.
  u32 wide;              // 1: 64-bit indices. 0: 32-bit ones. Indices out of range, including negative ones, give NaN.
  u32 count;             // The number of indices.
  u32 kind;              // OUT_*, but not OUT_INT8.
  u32 barriers;          // Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
  u32 buffers;           // Address in shared memory of the first buffer.
  u32 buffer_bytes;      // Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
  u32 buffers_per_warp;  // 1 or 2.
  u32 reserved;          // 0.
  Tiles tiles;           // The whole plane of one matrix; its output is that of the first index. Its fields that select chunks are ignored.
  Fields fields;         // The bits of elements that are joined.
};

// A matrix, or rows of one, to multiply vectors with.
struct ProductItem {
  Tiles tiles;   // The plane whose symbols are its weights. Of `output` only scales, factors, offset and first row are used; `block_begin` and `block_end` delimit the thread blocks that process only this item, each a run of whole strips.
  u64 bias;      // Address of the bias of the first row and of those after it, elements like those of `x`; 0 for none.
  u32 before;    // Results of the items before this one, for each vector.
  u32 stride;    // Distance from a vector's results to the next one's, elements.
  u32 place;     // Index of the first row's result among those of a vector.
  u32 strips;    // Strips of each of the item's thread blocks; the first ones have one more, as many of them as the remainder requires. Not used by kernels of many vectors.
  u32 minus;     // The offset of symbols minus 1/2, in both halves, as elements like those of `x`: -1/2, or 0. Not a constant of the kernel: NVRTC 12.4 loads operands that are negative constants from uninitialized registers.
  u32 part;      // PART_*: the use of the results.
  u32 vector;    // Index among the vectors at `x` of the item's first one.
  u32 reserved;  // 0.
};

// Parameters of the kernels of products: results are the products of all items with each of `vectors` vectors. For
// an item after n results, those of vector v begin at `y` + (n * vectors + v * stride) elements.
struct ProductBatch {
  u32 count;                             // Items.
  u32 vectors;                           // Vectors: 1 up to the number in the kernel's name.
  u64 x;                                 // Address of the first vector.
  u64 x_stride;                          // Distance from one vector to the next, elements.
  u64 y;                                 // Address of the results.
  u32 barriers;                          // Address in shared memory of the barriers; the decoding table lies before them, at TABLE_AT.
  u32 buffers;                           // Address in shared memory of the first buffer.
  u32 buffer_bytes;                      // Bytes of one buffer: a chunk, and the bytes that a decoder may read beyond a damaged one.
  u32 buffers_per_warp;                  // 1 or 2.
  u32 staging;                           // Address in shared memory of the first warp's staging space for a chunk's blocks, in kernels named `early`; of the first warp's side words, in kernels named `many`: two groups of MANY_GROUP blocks for each warp.
  u32 staged;                            // Blocks that fit each warp's staging space: at least those of a chunk. In kernels named `many` the thread blocks of a cluster: 1 to 8.
  u32 sums;                              // Address in shared memory of the sums of each chunk; in kernels named `many`, of the sums that the blocks of a cluster leave for this one's results: for each block, as many strips as any of them has.
  u32 vector;                            // 1: vectors, including those at `squared`, and the factors of columns begin at multiples of 16 bytes.
  u64 squared;                           // Address of vectors laid out like those at `x`, or 0: each result is divided by the root of the mean of their squares, as after an RMSNorm whose gain is already in the vectors at `x`.
  u64 residual;                          // Address of the residual that is added to the results, laid out like them; 0 for none.
  u64 scaled;                            // Address of a second copy of the results, multiplied by `gain`; 0 for none.
  u64 gain;                              // Address of a factor for each result of a vector, elements like those of `x`.
  u64 stash;                             // Address of f32 for the gate projection, followed by the up projection, each as many as there are results; 0 without gates. In kernels named `routed` the address of the items of all experts.
  u64 arrivals;                          // Address of an arrival counter for each strip: the number of its gate and up projections in the stash. Counters are 0 before and after the launches that belong together.
  u32 epsilon;                           // The epsilon added to the mean of the squares: bits of f32.
  u32 share;                             // The reciprocal of the number of elements in the mean: bits of f32.
  u32 norm_factor;                       // The factor of results before the division: bits of f32.
  u32 squares;                           // Address in shared memory of sums of squares: a word for each vector and SQUARES_COLS columns.
  u32 arrived;                           // Address in shared memory of a word for each of a block's strips.
  u32 gain_scale;                        // The factor, besides `gain`, of the second copy of the results: bits of f32.
  u32 gain_offset;                       // The offset added to the product of `gain` and `gain_scale`: bits of f32.
  u32 residual_scale;                    // The factor of results before a residual is added: bits of f32.
  u32 copies;                            // log2 of the number of copies of the decoding table: 0, or 2 to 5. Only for coder `huffman` with shifts 0 to 2. In kernels named `routed` the thread blocks of a slot.
  u32 corrections;                       // Address in shared memory of CHANGES_BYTES for each warp; 0 if patches are applied before symbols are multiplied. In kernels named `many` and `routed` log2 of the parts of the columns that a block has: 0 to 2.
  u32 known;                             // Address in shared memory of the facts that are known before the vector is available: KNOWN_BYTES for each warp, then KNOWN_BYTES for each result, in kernels for one vector named `early`; KNOWN_BYTES for each row of the block's results, in kernels named `many`.
  u32 activation;                        // ACTIVATION_*: that of the gate projection, or, without one, of the results.
  ProductItem items[MAX_PRODUCT_ITEMS];  // `count` of them.
};

// Parameters of `wcodec_many_selftest`, which has one block of 128 threads.
struct ManySelftest {
  u64 result;  // Address of the result, a u32: 1 if tensor cores multiply subnormal numbers exactly, else 0.
};

// Routes that lead to one expert, at positions that follow each other: all of them, or some.
struct RouteSlot {
  u32 expert;    // The expert's index.
  u32 begin;     // Position of the first one.
  u32 count;     // The number of routes; 0 for a slot that no expert has.
  u32 reserved;  // 0.
};

// Parameters of `wcodec_route`, which has one block of threads, one at least for each expert. It sorts routes of
// tokens to experts by expert, those to one expert in their order: a route's place in that order is its position.
struct RouteBatch {
  u64 ids;         // Address of the expert's number for each route, those of a token side by side. Numbers out of range are of no expert, negative ones too.
  u64 places;      // Address of an i32 for each of `named` numbers: the expert's index, or one out of range for none. 0 if numbers are indices.
  u64 rows;        // Address of a u32 for each position, to be written: the route's number, divided by `each`.
  u64 positions;   // Address of an i32 for each route, to be written: its position, or -1 if it leads to no expert.
  u64 slots;       // Address of the slots of experts with routes, by ascending index, to be written.
  u32 routes;      // The number of routes, up to MOST_ROUTES.
  u32 each;        // Routes that read the same row of vectors.
  u32 wide;        // 1: 64-bit numbers. 0: 32-bit ones.
  u32 named;       // Entries at `places`, fewer than 2^31.
  u32 experts;     // The number of experts, up to MOST_EXPERTS.
  u32 most;        // Routes of a slot, at most: an expert with more of them has several.
  u32 slot_count;  // The number of slots, as many as there can be. Those without an expert count 0.
  u32 reserved;    // 0.
};

// Parameters of `wcodec_route_combine`: each token gets the sum of its routes' vectors, times their shares, added
// up as f32 in the order of the routes. A token's columns are divided among blocks of threads, eight a thread.
struct CombineBatch {
  u64 y;          // Address of a vector for each position.
  u64 shares;     // Address of a factor for each route; 0 if all are 1.
  u64 positions;  // Address of an i32 for each route: its position, or -1 if it adds nothing.
  u64 out;        // Address of a vector for each token, to be written.
  u32 cols;       // Elements of a vector.
  u32 each;       // Routes of a token.
  u32 bf16;       // 1 for bf16, 0 for f16.
  u32 wide;       // 1: shares are f32. 0: they are like the vectors' elements.
  u32 vector;     // 1: vectors begin at multiples of 16 bytes.
  u32 reserved;   // 0.
};

// Parameters of `wcodec_round_columns`, which rounds weights of some columns to levels at halves, column by column, a
// row for each thread. Errors of a column are added to the targets of those after it. Numbers are f32, and arrays
// have a row for each column.
struct RoundBatch {
  u64 x;         // Address of the weights, in steps of their rows.
  u64 carry;     // Address of the sums that errors of earlier columns add to them.
  u64 feed;      // Address of the share of each column's error that each later one gets.
  u64 prices;    // Address of the cost of each magnitude, with two places before the first that are never chosen; 0 to round to the nearest level.
  u64 levels;    // Address of an i8 for each weight, to be written: symbol n stands for n + 1/2.
  u64 errors;    // Address of the error of each weight, to be written.
  u32 rows;      // The number of rows.
  u32 columns;   // The number of columns, up to QUANTIZE_COLUMNS.
  u32 stride;    // The distance of rows of `feed`.
  u32 reserved;  // 0.
};

// Parameters of `wcodec_trellis_columns`, which extends the four survivors of a trellis by some columns, in four
// threads for each row of weights. Numbers are f32, and arrays have a row for each column.
struct TrellisBatch {
  u64 x;         // Address of the weights, in fine steps of their rows.
  u64 added;     // Address of the sums that errors of earlier columns add to them, those of each survivor.
  u64 weights;   // Address of the cost of an error in each column.
  u64 feed;      // Address of the share of each column's error that each later one gets; 0 if they get none.
  u64 prices;    // Address of the cost of each symbol from -128 on.
  u64 costs;     // Address of the costs of survivors so far.
  u64 symbols;   // Address of an i8 for each weight and survivor, to be written: its symbols.
  u64 origin;    // Address of an i64 for each survivor, to be written: the state in which it was before these columns.
  u64 sums;      // Address of the costs of survivors, to be written.
  u32 rows;      // The number of rows.
  u32 columns;   // The number of columns, up to QUANTIZE_COLUMNS.
  u32 stride;    // The distance of rows of `feed`.
  u32 reserved;  // 0.
};

// Parameters of `wcodec_norm`, in which each block of threads takes a vector: y is the norm of x, times
// `result_scale`, plus a residual. Elements of all vectors have one type, and vectors of an array are contiguous.
struct NormBatch {
  u64 x;             // Address of the vectors.
  u64 residual;      // Address of the residual that is added to their norms; 0 for none. It may be `y`.
  u64 y;             // Address of the results. It may be `x`.
  u64 gain;          // Address of a factor for each column; 0 for none.
  u64 bias;          // Address of a bias for each column; 0 for none.
  u64 scaled;        // Address of a second copy of the results, for the next norm; 0 for none.
  u64 next_gain;     // Address of a factor for each column of that copy.
  u32 cols;          // Elements of a vector.
  u32 bf16;          // 1 for bf16, 0 for f16.
  u32 kind;          // NORM_*.
  u32 vector;        // 1: all arrays and their vectors begin at multiples of 16 bytes.
  u32 epsilon;       // The epsilon added to the mean of the squares: bits of f32.
  u32 share;         // The reciprocal of `cols`: bits of f32.
  u32 gain_offset;   // The offset added to `gain`: bits of f32.
  u32 result_scale;  // The factor of the norm before the residual is added: bits of f32.
  u32 next_scale;    // The factor of `next_gain`: bits of f32.
  u32 next_offset;   // The offset added to that product: bits of f32.
};

// Symbols of a plane, row-major without padding, to be written as values.
struct Symbols {
  u64 symbols;     // Address at which the plane's first symbol would lie.
  u64 begin;       // First element.
  u64 end;         // One past the last element.
  u32 rows;        // Rows per matrix.
  u32 cols;        // Columns per matrix.
  Output output;   // Position and type of the output.
  u64 cost_begin;  // Groups of 16 elements in the items before this one.
  u32 kind;        // OUT_*.
  u32 vector;      // 1: each group of 16 lies in one row, and is aligned to 16 bytes in symbols and output.
};

// Parameters of `wcodec_dequantize`.
struct SymbolsBatch {
  u32 count;                 // Items.
  u32 reserved;              // 0.
  u64 cost;                  // Groups of all items together.
  Symbols items[MAX_ITEMS];  // `count` of them.
};

// Symbols of a plane that hold bits of elements.
struct FieldsSymbols {
  Symbols symbols;  // The plane; `kind` is 0.
  Fields fields;    // The bits.
};

// Parameters of `wcodec_fields`.
struct FieldsSymbolsBatch {
  u32 count;                       // Items, no two of them with the same output.
  u32 reserved;                    // 0.
  u64 cost;                        // Groups of all items together.
  FieldsSymbols items[MAX_ITEMS];  // `count` of them.
};

// Rows of a plane of coder `zstd` that a filter was applied to.
struct Filtered {
  u64 symbols;      // Address at which the plane's first symbol would lie.
  u64 elements;     // Elements of the plane.
  u64 cols;         // Columns of each row.
  u64 chunk;        // Decoded bytes of a frame: the filter restarts at each.
  u64 chunk_begin;  // First frame.
  u64 cost_begin;   // Warps that the items before this one take.
  u32 filter;       // FILTER_*.
  u32 reserved;     // 0.
};

// Parameters of `wcodec_unfilter`.
struct FilteredBatch {
  u32 count;                  // Items.
  u32 reserved;               // 0.
  u64 cost;                   // Warps.
  Filtered items[MAX_ITEMS];  // `count` of them.
};

// Frames of a plane of coder `zstd`, for nvCOMP: arrays of pointers and sizes.
struct Frames {
  u64 data;         // Address of the frames.
  u64 offsets;      // Address of pairs of u32: start in units of 8 bytes, length.
  u64 output;       // Address of the decoded bytes.
  u64 decoded;      // Decoded bytes of the whole plane.
  u64 status;       // Address of the plane's status.
  u64 frame_begin;  // First frame.
  u32 frames;       // The number of frames.
  u32 chunk;        // Decoded bytes of a frame.
  u32 first;        // Index of the first frame in the arrays.
  u32 reserved;     // 0.
};

// Parameters of `wcodec_frames` and `wcodec_frames_check`.
struct FramesBatch {
  u32 count;                // Items.
  u32 frames;               // Frames of all items together.
  u64 compressed;           // The arrays, of `frames` entries each: addresses of frames.
  u64 compressed_bytes;     // Their bytes.
  u64 capacity;             // Capacities for their decoded bytes.
  u64 actual;               // Actual lengths of their decoded bytes.
  u64 outputs;              // Addresses of decoded bytes.
  u64 statuses;             // Addresses of i32 statuses.
  Frames items[MAX_ITEMS];  // `count` of them.
};

// Every compiler of this text must lay the structures out as Rust does.
static_assert(TABLE_AT == 1024, "differs from abi.rs");
#ifdef __CUDACC__
// NVRTC has no offsetof. The fields' sizes add up to the structure's, so that they leave no gaps.
#define LIES_AT(structure, field, offset, bytes) static_assert(sizeof(structure::field) == bytes, "differs from abi.rs");
#else
#define LIES_AT(structure, field, offset, bytes)                                                             \
  static_assert(__builtin_offsetof(structure, field) == offset && sizeof(structure::field) == bytes, \
                "differs from abi.rs");
#endif
static_assert(sizeof(Output) == 48, "differs from abi.rs");
LIES_AT(Output, out, 0, 8)
LIES_AT(Output, scales, 8, 8)
LIES_AT(Output, columns, 16, 8)
LIES_AT(Output, row_begin, 24, 4)
LIES_AT(Output, row_stride, 28, 4)
LIES_AT(Output, column_stride, 32, 4)
LIES_AT(Output, scales_per_row, 36, 4)
LIES_AT(Output, scale_columns, 40, 4)
LIES_AT(Output, scale_bytes, 44, 2)
LIES_AT(Output, offset, 46, 2)
static_assert(sizeof(Divisor) == 8, "differs from abi.rs");
LIES_AT(Divisor, factor, 0, 4)
LIES_AT(Divisor, shift, 4, 4)
static_assert(sizeof(Tiles) == 168, "differs from abi.rs");
LIES_AT(Tiles, data, 0, 8)
LIES_AT(Tiles, offsets, 8, 8)
LIES_AT(Tiles, side, 16, 8)
LIES_AT(Tiles, table, 24, 8)
LIES_AT(Tiles, status, 32, 8)
LIES_AT(Tiles, output, 40, 48)
LIES_AT(Tiles, data_units, 88, 4)
LIES_AT(Tiles, cost_begin, 92, 4)
LIES_AT(Tiles, chunk_begin, 96, 4)
LIES_AT(Tiles, chunk_end, 100, 4)
LIES_AT(Tiles, max_chunk, 104, 4)
LIES_AT(Tiles, strips, 108, 4)
LIES_AT(Tiles, rows, 112, 4)
LIES_AT(Tiles, cols, 116, 4)
LIES_AT(Tiles, tiles, 120, 4)
LIES_AT(Tiles, blocks, 124, 4)
LIES_AT(Tiles, last_blocks, 128, 4)
LIES_AT(Tiles, bits, 132, 2)
LIES_AT(Tiles, layout, 134, 1)
LIES_AT(Tiles, shift, 135, 1)
LIES_AT(Tiles, filter, 136, 1)
LIES_AT(Tiles, vector, 137, 1)
LIES_AT(Tiles, block_begin, 138, 2)
LIES_AT(Tiles, block_end, 140, 2)
LIES_AT(Tiles, changes, 142, 2)
LIES_AT(Tiles, by_tiles, 144, 8)
LIES_AT(Tiles, by_strips, 152, 8)
LIES_AT(Tiles, shared_begin, 160, 4)
LIES_AT(Tiles, shared_end, 164, 4)
static_assert(sizeof(TilesBatch) == 4064, "differs from abi.rs");
LIES_AT(TilesBatch, count, 0, 4)
LIES_AT(TilesBatch, cost, 4, 4)
LIES_AT(TilesBatch, barriers, 8, 4)
LIES_AT(TilesBatch, buffers, 12, 4)
LIES_AT(TilesBatch, buffer_bytes, 16, 4)
LIES_AT(TilesBatch, buffers_per_warp, 20, 4)
LIES_AT(TilesBatch, reserved, 24, 8)
LIES_AT(TilesBatch, items, 32, 4032)
static_assert(sizeof(Fields) == 32, "differs from abi.rs");
LIES_AT(Fields, bytes, 0, 1)
LIES_AT(Fields, adds, 1, 1)
LIES_AT(Fields, count, 2, 2)
LIES_AT(Fields, runs, 4, 28)
static_assert(sizeof(FieldsBatch) == 4096, "differs from abi.rs");
LIES_AT(FieldsBatch, tiles, 0, 4064)
LIES_AT(FieldsBatch, fields, 4064, 32)
static_assert(sizeof(RowsBatch) == 240, "differs from abi.rs");
LIES_AT(RowsBatch, ids, 0, 8)
LIES_AT(RowsBatch, wide, 8, 4)
LIES_AT(RowsBatch, count, 12, 4)
LIES_AT(RowsBatch, kind, 16, 4)
LIES_AT(RowsBatch, barriers, 20, 4)
LIES_AT(RowsBatch, buffers, 24, 4)
LIES_AT(RowsBatch, buffer_bytes, 28, 4)
LIES_AT(RowsBatch, buffers_per_warp, 32, 4)
LIES_AT(RowsBatch, reserved, 36, 4)
LIES_AT(RowsBatch, tiles, 40, 168)
LIES_AT(RowsBatch, fields, 208, 32)
static_assert(sizeof(ProductItem) == 208, "differs from abi.rs");
LIES_AT(ProductItem, tiles, 0, 168)
LIES_AT(ProductItem, bias, 168, 8)
LIES_AT(ProductItem, before, 176, 4)
LIES_AT(ProductItem, stride, 180, 4)
LIES_AT(ProductItem, place, 184, 4)
LIES_AT(ProductItem, strips, 188, 4)
LIES_AT(ProductItem, minus, 192, 4)
LIES_AT(ProductItem, part, 196, 4)
LIES_AT(ProductItem, vector, 200, 4)
LIES_AT(ProductItem, reserved, 204, 4)
static_assert(sizeof(ProductBatch) == 3488, "differs from abi.rs");
LIES_AT(ProductBatch, count, 0, 4)
LIES_AT(ProductBatch, vectors, 4, 4)
LIES_AT(ProductBatch, x, 8, 8)
LIES_AT(ProductBatch, x_stride, 16, 8)
LIES_AT(ProductBatch, y, 24, 8)
LIES_AT(ProductBatch, barriers, 32, 4)
LIES_AT(ProductBatch, buffers, 36, 4)
LIES_AT(ProductBatch, buffer_bytes, 40, 4)
LIES_AT(ProductBatch, buffers_per_warp, 44, 4)
LIES_AT(ProductBatch, staging, 48, 4)
LIES_AT(ProductBatch, staged, 52, 4)
LIES_AT(ProductBatch, sums, 56, 4)
LIES_AT(ProductBatch, vector, 60, 4)
LIES_AT(ProductBatch, squared, 64, 8)
LIES_AT(ProductBatch, residual, 72, 8)
LIES_AT(ProductBatch, scaled, 80, 8)
LIES_AT(ProductBatch, gain, 88, 8)
LIES_AT(ProductBatch, stash, 96, 8)
LIES_AT(ProductBatch, arrivals, 104, 8)
LIES_AT(ProductBatch, epsilon, 112, 4)
LIES_AT(ProductBatch, share, 116, 4)
LIES_AT(ProductBatch, norm_factor, 120, 4)
LIES_AT(ProductBatch, squares, 124, 4)
LIES_AT(ProductBatch, arrived, 128, 4)
LIES_AT(ProductBatch, gain_scale, 132, 4)
LIES_AT(ProductBatch, gain_offset, 136, 4)
LIES_AT(ProductBatch, residual_scale, 140, 4)
LIES_AT(ProductBatch, copies, 144, 4)
LIES_AT(ProductBatch, corrections, 148, 4)
LIES_AT(ProductBatch, known, 152, 4)
LIES_AT(ProductBatch, activation, 156, 4)
LIES_AT(ProductBatch, items, 160, 3328)
static_assert(sizeof(ManySelftest) == 8, "differs from abi.rs");
LIES_AT(ManySelftest, result, 0, 8)
static_assert(sizeof(RouteSlot) == 16, "differs from abi.rs");
LIES_AT(RouteSlot, expert, 0, 4)
LIES_AT(RouteSlot, begin, 4, 4)
LIES_AT(RouteSlot, count, 8, 4)
LIES_AT(RouteSlot, reserved, 12, 4)
static_assert(sizeof(RouteBatch) == 72, "differs from abi.rs");
LIES_AT(RouteBatch, ids, 0, 8)
LIES_AT(RouteBatch, places, 8, 8)
LIES_AT(RouteBatch, rows, 16, 8)
LIES_AT(RouteBatch, positions, 24, 8)
LIES_AT(RouteBatch, slots, 32, 8)
LIES_AT(RouteBatch, routes, 40, 4)
LIES_AT(RouteBatch, each, 44, 4)
LIES_AT(RouteBatch, wide, 48, 4)
LIES_AT(RouteBatch, named, 52, 4)
LIES_AT(RouteBatch, experts, 56, 4)
LIES_AT(RouteBatch, most, 60, 4)
LIES_AT(RouteBatch, slot_count, 64, 4)
LIES_AT(RouteBatch, reserved, 68, 4)
static_assert(sizeof(CombineBatch) == 56, "differs from abi.rs");
LIES_AT(CombineBatch, y, 0, 8)
LIES_AT(CombineBatch, shares, 8, 8)
LIES_AT(CombineBatch, positions, 16, 8)
LIES_AT(CombineBatch, out, 24, 8)
LIES_AT(CombineBatch, cols, 32, 4)
LIES_AT(CombineBatch, each, 36, 4)
LIES_AT(CombineBatch, bf16, 40, 4)
LIES_AT(CombineBatch, wide, 44, 4)
LIES_AT(CombineBatch, vector, 48, 4)
LIES_AT(CombineBatch, reserved, 52, 4)
static_assert(sizeof(RoundBatch) == 64, "differs from abi.rs");
LIES_AT(RoundBatch, x, 0, 8)
LIES_AT(RoundBatch, carry, 8, 8)
LIES_AT(RoundBatch, feed, 16, 8)
LIES_AT(RoundBatch, prices, 24, 8)
LIES_AT(RoundBatch, levels, 32, 8)
LIES_AT(RoundBatch, errors, 40, 8)
LIES_AT(RoundBatch, rows, 48, 4)
LIES_AT(RoundBatch, columns, 52, 4)
LIES_AT(RoundBatch, stride, 56, 4)
LIES_AT(RoundBatch, reserved, 60, 4)
static_assert(sizeof(TrellisBatch) == 88, "differs from abi.rs");
LIES_AT(TrellisBatch, x, 0, 8)
LIES_AT(TrellisBatch, added, 8, 8)
LIES_AT(TrellisBatch, weights, 16, 8)
LIES_AT(TrellisBatch, feed, 24, 8)
LIES_AT(TrellisBatch, prices, 32, 8)
LIES_AT(TrellisBatch, costs, 40, 8)
LIES_AT(TrellisBatch, symbols, 48, 8)
LIES_AT(TrellisBatch, origin, 56, 8)
LIES_AT(TrellisBatch, sums, 64, 8)
LIES_AT(TrellisBatch, rows, 72, 4)
LIES_AT(TrellisBatch, columns, 76, 4)
LIES_AT(TrellisBatch, stride, 80, 4)
LIES_AT(TrellisBatch, reserved, 84, 4)
static_assert(sizeof(NormBatch) == 96, "differs from abi.rs");
LIES_AT(NormBatch, x, 0, 8)
LIES_AT(NormBatch, residual, 8, 8)
LIES_AT(NormBatch, y, 16, 8)
LIES_AT(NormBatch, gain, 24, 8)
LIES_AT(NormBatch, bias, 32, 8)
LIES_AT(NormBatch, scaled, 40, 8)
LIES_AT(NormBatch, next_gain, 48, 8)
LIES_AT(NormBatch, cols, 56, 4)
LIES_AT(NormBatch, bf16, 60, 4)
LIES_AT(NormBatch, kind, 64, 4)
LIES_AT(NormBatch, vector, 68, 4)
LIES_AT(NormBatch, epsilon, 72, 4)
LIES_AT(NormBatch, share, 76, 4)
LIES_AT(NormBatch, gain_offset, 80, 4)
LIES_AT(NormBatch, result_scale, 84, 4)
LIES_AT(NormBatch, next_scale, 88, 4)
LIES_AT(NormBatch, next_offset, 92, 4)
static_assert(sizeof(Symbols) == 96, "differs from abi.rs");
LIES_AT(Symbols, symbols, 0, 8)
LIES_AT(Symbols, begin, 8, 8)
LIES_AT(Symbols, end, 16, 8)
LIES_AT(Symbols, rows, 24, 4)
LIES_AT(Symbols, cols, 28, 4)
LIES_AT(Symbols, output, 32, 48)
LIES_AT(Symbols, cost_begin, 80, 8)
LIES_AT(Symbols, kind, 88, 4)
LIES_AT(Symbols, vector, 92, 4)
static_assert(sizeof(SymbolsBatch) == 2320, "differs from abi.rs");
LIES_AT(SymbolsBatch, count, 0, 4)
LIES_AT(SymbolsBatch, reserved, 4, 4)
LIES_AT(SymbolsBatch, cost, 8, 8)
LIES_AT(SymbolsBatch, items, 16, 2304)
static_assert(sizeof(FieldsSymbols) == 128, "differs from abi.rs");
LIES_AT(FieldsSymbols, symbols, 0, 96)
LIES_AT(FieldsSymbols, fields, 96, 32)
static_assert(sizeof(FieldsSymbolsBatch) == 3088, "differs from abi.rs");
LIES_AT(FieldsSymbolsBatch, count, 0, 4)
LIES_AT(FieldsSymbolsBatch, reserved, 4, 4)
LIES_AT(FieldsSymbolsBatch, cost, 8, 8)
LIES_AT(FieldsSymbolsBatch, items, 16, 3072)
static_assert(sizeof(Filtered) == 56, "differs from abi.rs");
LIES_AT(Filtered, symbols, 0, 8)
LIES_AT(Filtered, elements, 8, 8)
LIES_AT(Filtered, cols, 16, 8)
LIES_AT(Filtered, chunk, 24, 8)
LIES_AT(Filtered, chunk_begin, 32, 8)
LIES_AT(Filtered, cost_begin, 40, 8)
LIES_AT(Filtered, filter, 48, 4)
LIES_AT(Filtered, reserved, 52, 4)
static_assert(sizeof(FilteredBatch) == 1360, "differs from abi.rs");
LIES_AT(FilteredBatch, count, 0, 4)
LIES_AT(FilteredBatch, reserved, 4, 4)
LIES_AT(FilteredBatch, cost, 8, 8)
LIES_AT(FilteredBatch, items, 16, 1344)
static_assert(sizeof(Frames) == 64, "differs from abi.rs");
LIES_AT(Frames, data, 0, 8)
LIES_AT(Frames, offsets, 8, 8)
LIES_AT(Frames, output, 16, 8)
LIES_AT(Frames, decoded, 24, 8)
LIES_AT(Frames, status, 32, 8)
LIES_AT(Frames, frame_begin, 40, 8)
LIES_AT(Frames, frames, 48, 4)
LIES_AT(Frames, chunk, 52, 4)
LIES_AT(Frames, first, 56, 4)
LIES_AT(Frames, reserved, 60, 4)
static_assert(sizeof(FramesBatch) == 1592, "differs from abi.rs");
LIES_AT(FramesBatch, count, 0, 4)
LIES_AT(FramesBatch, frames, 4, 4)
LIES_AT(FramesBatch, compressed, 8, 8)
LIES_AT(FramesBatch, compressed_bytes, 16, 8)
LIES_AT(FramesBatch, capacity, 24, 8)
LIES_AT(FramesBatch, actual, 32, 8)
LIES_AT(FramesBatch, outputs, 40, 8)
LIES_AT(FramesBatch, statuses, 48, 8)
LIES_AT(FramesBatch, items, 56, 1536)
#undef LIES_AT
