// The kernels that multiply vectors with weights in tiles of one coder (WCODEC_CODER: 0 rANS, 1 Huffman).
#include "product.h"

#if WCODEC_CODER == RANS
#define NAME(mode, kind, n) wcodec_rans_##mode##_times_##kind##_##n
#else
#define NAME(mode, kind, n) wcodec_huffman_##mode##_times_##kind##_##n
#endif
// With 64 registers per thread, two blocks of 512 threads or one of 1,024 fill a multiprocessor. For one vector,
// kernels named `early` begin beside those of the preceding launch; for several they take more registers, and so do
// those for many vectors. Kernels that iterate over chunks have as many as their mode says (kernels/src/mode.rs).
#define PRODUCT(name, threads, blocks, TILE, n, bf16, early) \
  KERNEL(name, threads, blocks, ProductBatch) { multiply_all<TILE, n, bf16, early>(params); }
#define TIMES(mode, kind, TILE, BF16)                                            \
  PRODUCT(NAME(mode, kind, 1), MAINLOOP_THREADS_##mode, 1, TILE, 1, BF16, false)  \
  PRODUCT(NAME(mode, kind, 1_early), BLOCK_THREADS, 1, TILE, 1, BF16, true)      \
  PRODUCT(NAME(mode, kind, 8), MAINLOOP_THREADS_##mode, 1, TILE, 8, BF16, false)  \
  PRODUCT(NAME(mode, kind, 8_early), HALF_BLOCK_THREADS, 1, TILE, 8, BF16, true) \
  PRODUCT(NAME(mode, kind, 16), HALF_BLOCK_THREADS, 1, TILE, 16, BF16, false)

typedef Tile<WCODEC_CODER, MODE_PAIR> PairTile;
typedef Tile<WCODEC_CODER, MODE_LOW> LowTile;
typedef Tile<WCODEC_CODER, MODE_TRELLIS> TrellisTile;
#if WCODEC_CODER == RANS
#define ALL_TIMES(kind, BF16)               \
  TIMES(pair, kind, PairTile, BF16)         \
  TIMES(low, kind, LowTile, BF16)           \
  TIMES(trellis, kind, TrellisTile, BF16)
#else
#define ALL_TIMES(kind, BF16)               \
  TIMES(pair, kind, PairTile, BF16)         \
  TIMES(low, kind, LowTile, BF16)           \
  TIMES(trellis, kind, TrellisTile, BF16)   \
  TIMES(quad, kind, QuadTile<false>, BF16)  \
  TIMES(quadtrellis, kind, QuadTile<true>, BF16)
#endif

ALL_TIMES(f16, false)
#if MMA_BF16
ALL_TIMES(bf16, true)
#endif
