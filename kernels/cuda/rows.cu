// The kernels that look up rows of one matrix by indices in memory, in tiles of one coder (WCODEC_CODER: 0 rANS, 1
// Huffman).
#include "quad.h"
#include "rows.h"
#include "split.h"
#include "tile.h"

#if WCODEC_CODER == RANS
#define NAME(mode) wcodec_rans_rows_##mode
#else
#define NAME(mode) wcodec_huffman_rows_##mode
#endif

// Bounds as in decode.cu.
#define ROWS(name, TILE) \
  KERNEL(name, BLOCK_THREADS, 1, RowsBatch) { gather_rows<TILE, StoreRow>(params, {params, 0, nullptr}); }
typedef Tile<WCODEC_CODER, MODE_GENERAL> GeneralTile;
ROWS(NAME(general), GeneralTile)
#if WCODEC_CODER == HUFFMAN
ROWS(NAME(quad), QuadTile<false>)
ROWS(NAME(quadtrellis), QuadTile<true>)
#endif

// Joined elements, of any kind.
#define JOINED_ROWS(name)                                                                                            \
  KERNEL(name, BLOCK_THREADS, 1, RowsBatch) {                                                                        \
    gather_rows<SplitTile<WCODEC_CODER, ANY_REST>, StoreFields<RowCells>>(params, {{params, 0, nullptr}, params.fields}); \
  }
JOINED_ROWS(NAME(fields))
