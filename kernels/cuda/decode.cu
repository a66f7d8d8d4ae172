// The kernels that decode tiles of one coder (WCODEC_CODER: 0 rANS, 1 Huffman): to int8, dequantized in the same pass,
// or to elements some of whose bits are the symbols.
#include "join.h"
#include "quad.h"
#include "chunk_epilogue.h"
#include "split.h"
#include "tile.h"
#include "mainloop.h"

// A kernel's bounds are the threads of its largest block, and the number of such blocks per multiprocessor. Here both
// amount to 64 registers per thread: two blocks of 512 threads, or one of 1,024, fill a multiprocessor (`SHAPES` of the
// host).
#define DECODE(name, threads, blocks, mode, scales, out) \
  KERNEL(name, threads, blocks, TilesBatch) { mainloop<Tile<WCODEC_CODER, mode>, Store<out, scales>>(params, {}); }

#if WCODEC_CODER == RANS
#define NAME(mode, out) wcodec_rans_##mode##_##out
#else
#define NAME(mode, out) wcodec_huffman_##mode##_##out
#endif
#define ALL_OUTPUTS(mode, threads, blocks, MODE, SCALES)              \
  DECODE(NAME(mode, int8), threads, blocks, MODE, SCALES, OUT_INT8)   \
  DECODE(NAME(mode, f16), threads, blocks, MODE, SCALES, OUT_F16)     \
  DECODE(NAME(mode, bf16), threads, blocks, MODE, SCALES, OUT_BF16)   \
  DECODE(NAME(mode, f32), threads, blocks, MODE, SCALES, OUT_F32)

ALL_OUTPUTS(byte, BLOCK_THREADS, 1, MODE_BYTE, SCALES_INT8)
ALL_OUTPUTS(pair, BLOCK_THREADS, 1, MODE_PAIR, SCALES_INT8)
ALL_OUTPUTS(low, BLOCK_THREADS, 1, MODE_LOW, SCALES_ANY)
ALL_OUTPUTS(trellis, BLOCK_THREADS, 1, MODE_TRELLIS, SCALES_ANY)
ALL_OUTPUTS(general, BLOCK_THREADS, 1, MODE_GENERAL, SCALES_ANY)

// Layout `quad`, which only coder `huffman` supports.
#if WCODEC_CODER == HUFFMAN
#define QUADS(name, trellis, scales, out) \
  KERNEL(name, BLOCK_THREADS, 1, TilesBatch) { mainloop<QuadTile<trellis>, Store<out, scales>>(params, {}); }
#define ALL_QUADS(mode, trellis)                                  \
  QUADS(NAME(mode, int8), trellis, SCALES_INT8, OUT_INT8)         \
  QUADS(NAME(mode, f16), trellis, SCALES_ANY, OUT_F16)            \
  QUADS(NAME(mode, bf16), trellis, SCALES_ANY, OUT_BF16)          \
  QUADS(NAME(mode, f32), trellis, SCALES_ANY, OUT_F32)
ALL_QUADS(quad, false)
ALL_QUADS(quadtrellis, true)
#endif

// Joined elements of the common kinds.
#define JOIN(name, out) \
  KERNEL(name, BLOCK_THREADS, 1, TilesBatch) { mainloop<SplitTile<WCODEC_CODER, StoreJoined<out>::REST>, StoreJoined<out>>(params, {}); }
JOIN(NAME(split, f16), OUT_F16)
JOIN(NAME(split, bf16), OUT_BF16)
JOIN(NAME(split, f32), OUT_F32)

// All other joined elements.
#define JOIN_ANY(name) \
  KERNEL(name, BLOCK_THREADS, 1, FieldsBatch) { mainloop<SplitTile<WCODEC_CODER, ANY_REST>, StoreFields<>>(params.tiles, {{}, params.fields}); }
#if WCODEC_CODER == RANS
JOIN_ANY(wcodec_rans_fields)
#else
JOIN_ANY(wcodec_huffman_fields)
#endif
