// Routes of tokens to the experts of a mixture: sorted by expert for the products (many.h, kernels named `routed`), and
// the experts' results added up by token. The host waits for neither.
#pragma once
#include "product_epilogue.h"

// Places in shared memory of the expert of each route, and of the sums of warps.
#define ROUTE_EXPERTS_AT TABLE_AT
#define ROUTE_SUMS_AT (ROUTE_EXPERTS_AT + MOST_ROUTES * 4)
// A route that leads to no expert.
#define NO_EXPERT 0xFFFFFFFFu

// The expert of a route. Negative numbers are large ones here.
DEVICE u32 expert_of(const RouteBatch& batch, u32 route) {
  const u64 id = batch.wide ? load64((const u64*)batch.ids + route) : load32((const u32*)batch.ids + route);
  if (id >= (batch.places ? batch.named : batch.experts)) return NO_EXPERT;
  const u32 expert = batch.places ? load32((const u32*)batch.places + id) : (u32)id;
  return expert < batch.experts ? expert : NO_EXPERT;
}

// A counting sort in which a thread has an expert and goes through all routes, which are few: nothing is counted by
// atomic operations, so that routes to one expert keep their order.
DEVICE void sort_routes(const RouteBatch& batch) {
  const u32 expert = thread_index(), threads = block_threads(), lane = expert % LANES, warp = expert / LANES;
  const u32 padded = (batch.routes + 3) / 4 * 4;
  for (u32 i = expert; i < padded; i += threads) {
    const u32 own = i < batch.routes ? expert_of(batch, i) : NO_EXPERT;
    sts32(ROUTE_EXPERTS_AT + i * 4, own);
    if (own == NO_EXPERT && i < batch.routes) stg32((u32*)batch.positions + i, NO_EXPERT);
  }
  syncthreads();
  u32 count = 0;
  for (u32 i = 0; i < padded; i += 4) {
    const Vec4 of = lds128(ROUTE_EXPERTS_AT + i * 4);
    count += (of.x == expert) + (of.y == expert) + (of.z == expert) + (of.w == expert);
  }
  // Routes in the lower half, slots in the upper one.
  const u32 slots = (count + batch.most - 1) / batch.most, own = count | slots << 16, in_warp = sum_up_to(own, lane);
  if (lane == LANES - 1) sts32(ROUTE_SUMS_AT + warp * 4, in_warp);
  syncthreads();
  u32 before = in_warp - own, all = 0;
  for (u32 w = 0; w < threads / LANES; w++) {
    const u32 sum = lds32(ROUTE_SUMS_AT + w * 4);
    if (w < warp) before += sum;
    all += sum;
  }
  for (u32 i = (all >> 16) + expert; i < batch.slot_count; i += threads) stg128((RouteSlot*)batch.slots + i, {0, 0, 0, 0});
  u32 position = before & 0xFFFF;
  for (u32 i = 0; i < slots; i++) {
    const u32 first = i * batch.most, left = count - first;
    stg128((RouteSlot*)batch.slots + (before >> 16) + i, {expert, position + first, left < batch.most ? left : batch.most, 0});
  }
  const auto take = [&](u32 of, u32 route) {
    if (of != expert) return;
    stg32((u32*)batch.positions + route, position);
    stg32((u32*)batch.rows + position, route / batch.each);
    position++, count--;
  };
  for (u32 i = 0; count; i += 4) {
    const Vec4 of = lds128(ROUTE_EXPERTS_AT + i * 4);
    take(of.x, i), take(of.y, i + 1), take(of.z, i + 2), take(of.w, i + 3);
  }
}

// Eight columns of a token.
template <bool BF16>
DEVICE void combine_routes(const CombineBatch& batch, u32 token, u32 col) {
  typedef Half<BF16> H;
  float sum[8];
#pragma unroll
  for (u32 k = 0; k < 8; k++) sum[k] = 0;
  for (u32 i = 0; i < batch.each; i++) {
    const u32 route = token * batch.each + i, position = load32((const u32*)batch.positions + route);
    if (position == NO_EXPERT) continue;
    float share = 1;
    if (batch.shares) {
      share = batch.wide ? bits_f32(load32((const u32*)batch.shares + route)) : H::to_f32(load16((const u16*)batch.shares + route));
    }
    u32 y[4];
    load_words(batch, batch.y + (u64)position * batch.cols * 2, col, batch.cols, y);
#pragma unroll
    for (u32 k = 0; k < 8; k++) sum[k] = add_rn(sum[k], mul_rn(share, H::to_f32(y[k / 2] >> (k % 2 * 16) & 0xFFFF)));
  }
  u32 out[4] = {};
#pragma unroll
  for (u32 k = 0; k < 8; k++) out[k / 2] |= H::of(sum[k]) << (k % 2 * 16);
  store_words(batch, batch.out + (u64)token * batch.cols * 2, col, out);
}
