// The epilogue of a launch of products, as in blocks of models: the RMSNorm of the vectors, a residual, or the activation
// of a gate projection times an up projection.
//
// An RMSNorm is y_i = x_i g_i / sqrt(mean(x^2) + epsilon). The products take x_i g_i, which the preceding launch has
// rounded and written besides x_i, and the epilogue divides results by the root, so that no block waits for the mean.
//
// Gate and up projections are results of different blocks of threads, perhaps of different launches. Each block stores
// its results of a strip and increments the strip's arrival counter. The second of the two to arrive writes
// activation(gate) * up, so no block waits, and the result does not depend on the order of arrival.
#pragma once
#include "emit.h"

// The elements of vectors, and of operands.
template <bool BF16>
struct Half {
  // 128 + v or 1024 + v of byte v, and what is to be added for v + 1/2.
  enum : u32 { ONES = BF16 ? 0x43434343u : 0x64646464u, LESS = BF16 ? 0xC2FFC2FFu : 0xE3FFE3FFu };

  static DEVICE_MEMBER u32 add(u32 a, u32 b) {
    if constexpr (BF16) return add_bf16(a, b);
    else return add_f16(a, b);
  }
  // Elements times factors of columns, which are bf16, rounded once: f32 holds products of f16 with them, and what it
  // loses of the smallest ones changes nothing.
  static DEVICE_MEMBER u32 times_factors(u32 elements, u32 factors) {
    if constexpr (BF16) return mul_bf16(elements, factors);
    else return pack_f16(mul_rn(f32_of_f16(elements & 0xFFFF), lower_factor(factors)),
                         mul_rn(f32_of_f16(elements >> 16), upper_factor(factors)));
  }
  static DEVICE_MEMBER void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (BF16) mma_bf16(c, a, b);
    else mma_f16(c, a, b);
  }
  // The bits of an infinite number without its sign; those of a NaN are larger.
  enum : u32 { INFINITE = BF16 ? 0x7F80u : 0x7C00u };

  static DEVICE_MEMBER u32 of(float v) { return (BF16 ? pack_bf16(v, 0) : pack_f16(v, 0)) & 0xFFFF; }
  static DEVICE_MEMBER float to_f32(u32 h) {
    if constexpr (BF16) return bits_f32(h << 16);
    else return f32_of_f16(h);
  }
};

// Whether rows have several scales, each of whole blocks: then sums are scaled block by block.
DEVICE bool several(const Tiles& t) { return t.output.scales_per_row > 1; }

// Segments of SQUARES_COLS columns of a vector.
DEVICE u32 segments(u32 cols) { return (cols + SQUARES_COLS - 1) / SQUARES_COLS; }

// Eight elements at a multiple of 16 bytes, two a word.
DEVICE void load_vector(u64 from, u32 (&words)[4]) {
  const Vec4 a = load128((const u8*)from);
  words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
}

// Eight elements of the vector at `from`, two a word, the first one of column `col`, a multiple of 8. What is beyond the last column is 0.
template <class Batch>
DEVICE void load_words(const Batch& batch, u64 from, u32 col, u32 cols, u32 (&words)[4]) {
  const u8* const at = (const u8*)from + (u64)col * 2;
  if (batch.vector && col + 8 <= cols) {
    load_vector((u64)at, words);
    return;
  }
#pragma unroll
  for (u32 k = 0; k < 4; k++) words[k] = 0;
#pragma unroll
  for (u32 k = 0; k < 8; k++) {
    if (col + k < cols) words[k / 2] |= load16(at + 2 * k) << (k % 2 * 16);
  }
}

// The factors of those columns, two a word; 0 beyond the last column.
DEVICE void load_factors(const ProductBatch& batch, const Tiles& t, u32 col, u32 (&words)[4]) {
  const u8* const at = (const u8*)t.output.columns + (u64)col * 2;
  if (batch.vector && col + 8 <= t.cols) {
    const Vec4 a = ldg128(at);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    return;
  }
#pragma unroll
  for (u32 k = 0; k < 4; k++) words[k] = 0;
#pragma unroll
  for (u32 k = 0; k < 8; k++) {
    if (col + k < t.cols) words[k / 2] |= ldg16(at + 2 * k) << (k % 2 * 16);
  }
}

// Elements times the factors of their columns.
template <bool BF16>
DEVICE void multiply_by(u32 (&words)[4], const u32 (&factors)[4]) {
#pragma unroll
  for (u32 k = 0; k < 4; k++) words[k] = Half<BF16>::times_factors(words[k], factors[k]);
}

// Prefetches the factors of a block's columns, counted through the matrix, if there are some.
DEVICE void prefetch_factors(const Tiles& t, u32 block) {
  if (t.output.columns && block * BLOCK_COLS < t.cols) prefetch((const u8*)t.output.columns + block * (BLOCK_COLS * 2));
}

// Stores them so.
template <class Batch>
DEVICE void store_words(const Batch& batch, u64 to, u32 col, const u32 (&words)[4]) {
  u8* const at = (u8*)to + (u64)col * 2;
  if (batch.vector && col + 8 <= batch.cols) {
    stg128(at, {words[0], words[1], words[2], words[3]});
    return;
  }
#pragma unroll
  for (u32 k = 0; k < 8; k++) {
    if (col + k < batch.cols) stg16(at + 2 * k, words[k / 2] >> (k % 2 * 16) & 0xFFFF);
  }
}

// Sums of squares of all segments of all vectors, which are left in shared memory. All warps of the block call these; 8 elements a lane are added
// up, and then lanes, in the same order for every launch.
template <bool BF16>
struct Squares {
  float first_sum;  // of the lane's elements of the warp's first segment

  // Adds those up, if there are any.
  DEVICE_MEMBER void begin(const ProductBatch& batch, u32 cols, u32 lane) {
    const u32 each = segments(cols), i = thread_index() / LANES;
    if (batch.squared && i < each * batch.vectors) first_sum = of_lane(batch, i, each, cols, lane);
  }

  DEVICE_MEMBER void finish(const ProductBatch& batch, u32 cols, u32 lane) const {
    const u32 each = segments(cols), warps = block_threads() / LANES;
#pragma unroll 1
    for (u32 i = thread_index() / LANES; i < each * batch.vectors; i += warps) {
      float sum = i < warps ? first_sum : of_lane(batch, i, each, cols, lane);
#pragma unroll
      for (u32 by = LANES / 2; by; by /= 2) sum = add_rn(sum, bits_f32(shfl(f32_bits(sum), lane ^ by)));
      if (lane == 0) sts32(batch.squares + i * 4, f32_bits(sum));
    }
  }

 private:
  static DEVICE_MEMBER float of_lane(const ProductBatch& batch, u32 i, u32 each, u32 cols, u32 lane) {
    const u32 v = i / each;
    u32 words[4];
    load_words(batch, batch.squared + (u64)v * batch.x_stride * 2, (i - v * each) * SQUARES_COLS + lane * 8, cols, words);
    float sum = 0;
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
      const float x = Half<BF16>::to_f32(words[k / 2] >> (k % 2 * 16) & 0xFFFF);
      sum = add_rn(sum, mul_rn(x, x));
    }
    return sum;
  }
};

// The factor of a vector's results, once all sums of squares are available.
DEVICE float norm_factor(const ProductBatch& batch, u32 cols, u32 vector) {
  const u32 each = segments(cols);
  float sum = 0;
  for (u32 k = 0; k < each; k++) sum = add_rn(sum, bits_f32(lds32(batch.squares + (vector * each + k) * 4)));
  const float mean = add_rn(mul_rn(sum, bits_f32(batch.share)), bits_f32(batch.epsilon));
  return div_rn(bits_f32(batch.norm_factor), sqrt_rn(mean));
}

// An activation of what is no number is none either.
DEVICE float activated(u32 kind, float v) {
  if (kind == ACTIVATION_NONE) return v;
  if (kind >= ACTIVATION_RELU) {
    const float above = v < 0 ? 0 : v;
    return kind == ACTIVATION_RELU ? above : mul_rn(above, above);
  }
  if (kind == ACTIVATION_GELU) return mul_rn(mul_rn(0.5f, v), add_rn(1, erf_f32(mul_rn(v, 0.70710678f))));
  // GELU with tanh is v * sigmoid(2 * sqrt(2 / pi) * (v + 0.044715 v^3)).
  const float at = kind == ACTIVATION_SILU ? v : mul_rn(v, fma_rn(mul_rn(v, v), 0.07135481f, 1.5957691f));
  return div_rn(v, add_rn(1, exp_f32(-at)));
}

// The stash of a gate or up projection, and the arrival counters of its strips.
struct Stash {
  float* results;            // of this projection
  const float* counterpart;  // the results of the other one
  u32* arrivals;

  DEVICE_MEMBER Stash(const ProductBatch& batch, const ProductItem& item) {
    const u64 half = (u64)batch.vectors * item.stride;
    float* const gates = (float*)batch.stash;
    results = gates + (item.part == PART_GATE ? 0 : half);
    counterpart = gates + (item.part == PART_GATE ? half : 0);
    arrivals = (u32*)batch.arrivals;
  }
  // Counts the block in for `strips` strips from `first`, all of whose results are in the stash. Shared memory then says
  // 1 for a strip whose counterpart has arrived, too. All threads of the block call it.
  DEVICE_MEMBER void arrive(const ProductBatch& batch, u32 first, u32 strips) const {
    syncthreads();
    for (u32 i = thread_index(); i < strips; i += block_threads()) {
      // All stores of the block's threads come before the count, and their loads after it.
      fence_device();
      const u32 before = atomic_add(arrivals + first + i, 1);
      fence_device();
      // Zero again for the next launch.
      if (before) stg32(arrivals + first + i, 0);
      sts32(batch.arrived + i * 4, before);
    }
    syncthreads();
  }
};
