// The kernels that decode tiles of one coder (WCODEC_CODER: 0 rANS, 1 Huffman): to int8, or dequantized in the same pass.
#include "sinks.h"
#include "tile.h"
#include "walk.h"

// A kernel's bounds are the threads of its largest block, and how many such blocks a multiprocessor is to hold. Here both amount to 64
// registers a thread: two blocks of 512 threads, or one of 1,024, fill a multiprocessor (`SHAPES` of the host).
#define DECODE(name, threads, blocks, mode, out) \
  KERNEL(name, threads, blocks, TilesBatch) { walk<Tile<WCODEC_CODER, mode>, Store<out>>(params, {}); }

#if WCODEC_CODER == RANS
#define NAME(mode, out) wcodec_rans_##mode##_##out
#else
#define NAME(mode, out) wcodec_huffman_##mode##_##out
#endif
#define ALL_OUTPUTS(mode, threads, blocks, MODE)              \
  DECODE(NAME(mode, int8), threads, blocks, MODE, OUT_INT8)   \
  DECODE(NAME(mode, f16), threads, blocks, MODE, OUT_F16)     \
  DECODE(NAME(mode, bf16), threads, blocks, MODE, OUT_BF16)   \
  DECODE(NAME(mode, f32), threads, blocks, MODE, OUT_F32)

ALL_OUTPUTS(byte, 1024, 1, MODE_BYTE)
ALL_OUTPUTS(pair, 1024, 1, MODE_PAIR)
ALL_OUTPUTS(general, 1024, 1, MODE_GENERAL)
