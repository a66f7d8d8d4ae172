// The kernels around the products with routed experts (route.h).
#include "route.h"

KERNEL(wcodec_route, MOST_EXPERTS, 1, RouteBatch) {
  overlap_start();
  overlap_wait();
  if (table_fits()) sort_routes(params);
}

KERNEL(wcodec_route_combine, COMBINE_THREADS, 1, CombineBatch) {
  overlap_start();
  overlap_wait();
  const u32 of_block = block_threads() * 8, blocks = (params.cols + of_block - 1) / of_block;
  const u32 token = block_index() / blocks, col = (block_index() - token * blocks) * of_block + thread_index() * 8;
  if (col >= params.cols) return;
  if (params.bf16) combine_routes<true>(params, token, col);
  else combine_routes<false>(params, token, col);
}
