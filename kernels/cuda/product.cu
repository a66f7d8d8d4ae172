// The kernels that multiply vectors with weights in tiles of one coder (WCODEC_CODER: 0 rANS, 1 Huffman).
#include "product.h"

#if WCODEC_CODER == RANS
#define NAME(mode, kind, n) wcodec_rans_##mode##_times_##kind##_##n
#else
#define NAME(mode, kind, n) wcodec_huffman_##mode##_times_##kind##_##n
#endif
// Of 64 registers a thread, two blocks of 512 threads or one of 1,024 fill a multiprocessor. For one vector, kernels named `early` begin beside
// those of the launch before; for several they take more registers, and so do those for many vectors.
#define PRODUCT(name, threads, blocks, mode, n, bf16, early) \
  KERNEL(name, threads, blocks, FactorsBatch) { multiply_all<Tile<WCODEC_CODER, mode>, n, bf16, early>(params); }
#define TIMES(mode, kind, MODE, BF16)                             \
  PRODUCT(NAME(mode, kind, 1), 1024, 1, MODE, 1, BF16, false)     \
  PRODUCT(NAME(mode, kind, 1_early), 1024, 1, MODE, 1, BF16, true) \
  PRODUCT(NAME(mode, kind, 8), 1024, 1, MODE, 8, BF16, false)     \
  PRODUCT(NAME(mode, kind, 8_early), 512, 1, MODE, 8, BF16, true) \
  PRODUCT(NAME(mode, kind, 16), 512, 1, MODE, 16, BF16, false)

TIMES(pair, f16, MODE_PAIR, false)
TIMES(low, f16, MODE_LOW, false)
TIMES(trellis, f16, MODE_TRELLIS, false)
#if MMA_BF16
TIMES(pair, bf16, MODE_PAIR, true)
TIMES(low, bf16, MODE_LOW, true)
TIMES(trellis, bf16, MODE_TRELLIS, true)
#endif
