// The kernels that multiply up to 128 vectors with weights in quads (many.h), and the test of what they rely on.
#include "many.h"

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
// A kernel is compiled for so many threads, which decides its registers: up to 8 vectors need 80, and two small blocks of
// threads share a multiprocessor (gpu/plan/many/shape.rs); 128 need more than 128, of which half are their sums.
#define MANY_THREADS(n) ((n) <= 8 ? 24 * LANES : (((n) <= 64 ? MANY_WARPS : MANY_FEW_WARPS) + many_helpers(n)) * LANES)
#define MANY(mode, TRELLIS, kind, BF16, n) \
  KERNEL(wcodec_huffman_##mode##_times_##kind##_many##n, MANY_THREADS(n), 1, ProductBatch) { multiply_many<TRELLIS, n, BF16>(params); }
#define MANY_OF(mode, TRELLIS, kind, BF16) \
  MANY(mode, TRELLIS, kind, BF16, 8)       \
  MANY(mode, TRELLIS, kind, BF16, 16)      \
  MANY(mode, TRELLIS, kind, BF16, 32)      \
  MANY(mode, TRELLIS, kind, BF16, 64)      \
  MANY(mode, TRELLIS, kind, BF16, 128)
MANY_OF(quad, false, f16, false)
MANY_OF(quad, false, bf16, true)
MANY_OF(quadtrellis, true, f16, false)
MANY_OF(quadtrellis, true, bf16, true)
#define MANY_ROUTED(mode, TRELLIS, kind, BF16, n) \
  KERNEL(wcodec_huffman_##mode##_times_##kind##_routed##n, MANY_THREADS(n), 1, ProductBatch) { multiply_routed<TRELLIS, n, BF16>(params); }
MANY_ROUTED(quad, false, f16, false, 8)
MANY_ROUTED(quad, false, f16, false, 32)
MANY_ROUTED(quad, false, bf16, true, 8)
MANY_ROUTED(quad, false, bf16, true, 32)
MANY_ROUTED(quadtrellis, true, f16, false, 8)
MANY_ROUTED(quadtrellis, true, f16, false, 32)
MANY_ROUTED(quadtrellis, true, bf16, true, 8)
MANY_ROUTED(quadtrellis, true, bf16, true, 32)
#endif

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
// Whether tensor cores multiply the operands of many.h exactly: magnitudes of eight bits, with signs, by small integers.
// Sums are far below 2^24, so that f32 holds them, whatever the order of additions. Four warps check 64 rows of 16
// columns, which are other numbers in each call, and 32 vectors. The lower word of `result` becomes 1 if all is as it
// should be.
#define SELFTEST_MATRIX 2048u

// The element of a row and column, a magnitude with its sign; and of a column and vector.
DEVICE i32 selftest_weight(u32 turn, u32 row, u32 k) {
  const i32 m = (i32)((row * 16 + k + turn * 64) * 37 % 256);
  return (row + k) % 3 == 0 ? -m : m;
}
DEVICE i32 selftest_element(u32 k, u32 vector) { return (i32)((k * 5 + vector * 3) % 7) - 3; }
// That element as f16, or as bf16 times 2^80.
template <bool BF16>
DEVICE u32 selftest_vector(u32 k, u32 vector) {
  const float v = f32_of_i32(selftest_element(k, vector));
  return (BF16 ? mul_bf16(pack_bf16(v, 0), MANY_UP) : pack_f16(v, 0)) & 0xFFFF;
}

template <bool BF16>
DEVICE bool selftest_turn(u32 turn, u32 warp, u32 lane) {
  u32 a[4];
#pragma unroll
  for (u32 r = 0; r < 4; r++) {
    a[r] = 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const i32 w = selftest_weight(turn, warp * 16 + lane / 4 + r % 2 * 8, lane % 4 * 2 + r / 2 * 8 + i);
      a[r] |= (w < 0 ? (u32)-w | 0x8000u : (u32)w) << (16 * i);
    }
  }
  const float down = many_down<BF16>(false);
  bool good = true;
  const auto check = [&](u32 i, float c) {
    const u32 row = warp * 16 + lane / 4 + i / 2 % 2 * 8, vector = i / 4 * 8 + lane % 4 * 2 + i % 2;
    i32 sum = 0;
    for (u32 k = 0; k < 16; k++) sum += selftest_weight(turn, row, k) * selftest_element(k, vector);
    good = good && c * down == f32_of_i32(sum);
  };
  float c[4] = {0, 0, 0, 0};
  u32 b[2];
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
    const u32 k = lane % 4 * 2 + r * 8;
    b[r] = selftest_vector<BF16>(k, lane / 4) | selftest_vector<BF16>(k + 1, lane / 4) << 16;
  }
  Half<BF16>::mma(c, a, b);
#pragma unroll
  for (u32 i = 0; i < 4; i++) check(i, c[i]);
#if HAS_WGMMA
  // A row of the matrix is a vector: its first 32 bytes are 16 columns.
  syncthreads();
  for (u32 i = warp * LANES + lane; i < 32 * 8; i += 4 * LANES) {
    const u32 vector = i / 8, k = i % 8 * 2, flat = SELFTEST_MATRIX + vector * 128 + k * 2;
    sts32(flat ^ (flat >> 3 & 0x70), selftest_vector<BF16>(k, vector) | selftest_vector<BF16>(k + 1, vector) << 16);
  }
  copy_fence();
  syncthreads();
  float d[16];
#pragma unroll
  for (u32 i = 0; i < 16; i++) d[i] = 0;
  wgmma_fence();
  wgmma<BF16>(d, a, wgmma_matrix(SELFTEST_MATRIX), false);
  wgmma_commit();
  wgmma_wait();
  held_until_here(d);
  held_until_here(a);
#pragma unroll
  for (u32 i = 0; i < 16; i++) check(i, d[i]);
#endif
  return good;
}

KERNEL(wcodec_many_selftest, 4 * LANES, 1, ManySelftest) {
  const u32 warp = thread_index() / LANES, lane = thread_index() % LANES;
  const u32 votes = SELFTEST_MATRIX + 4096;
  bool good = true;
#pragma unroll 1
  for (u32 turn = 0; turn < 4; turn++) {
    // All threads take both, whatever they find.
    const bool f16 = selftest_turn<false>(turn, warp, lane), bf16 = selftest_turn<true>(turn, warp, lane);
    good = good && f16 && bf16;
  }
  const u32 all = ballot(good);
  if (lane == 0) sts32(votes + warp * 4, all);
  syncthreads();
  overlap_wait();
  if (thread_index() > 0) return;
  u32 every = 0xFFFFFFFFu;
  for (u32 i = 0; i < 4; i++) every &= lds32(votes + i * 4);
  stg32((void*)params.result, every == 0xFFFFFFFFu);
}
#endif
