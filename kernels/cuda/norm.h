// A norm of whole vectors by a kernel of its own, for what an epilogue of products (product_epilogue.h) cannot do: norms
// of products, whose results are added to a residual, and LayerNorms, which subtract the mean before they multiply.
#pragma once
#include "product_epilogue.h"

// The sum of what all threads of the block have, in the same order for every launch. All of them call it.
DEVICE float block_sum(float v) {
  const u32 lane = thread_index() % LANES, warps = block_threads() / LANES;
#pragma unroll
  for (u32 by = LANES / 2; by; by /= 2) v = add_rn(v, bits_f32(shfl(f32_bits(v), lane ^ by)));
  // Others may still read the sum before.
  syncthreads();
  if (lane == 0) sts32(TABLE_AT + thread_index() / LANES * 4, f32_bits(v));
  syncthreads();
  float sum = 0;
  for (u32 w = 0; w < warps; w++) sum = add_rn(sum, bits_f32(lds32(TABLE_AT + w * 4)));
  return sum;
}

// The block's vector, eight columns a thread at a time.
template <bool BF16>
struct Normed {
  typedef Half<BF16> H;
  const NormBatch& batch;
  u64 before;  // bytes of the vectors before this one

  static DEVICE_MEMBER float element(const u32 (&words)[4], u32 k) { return H::to_f32(words[k / 2] >> (k % 2 * 16) & 0xFFFF); }

  // The mean of all elements, or of the squares of what they are beside `mean`.
  template <bool SQUARES>
  DEVICE_MEMBER float mean_of(float mean) const {
    float sum = 0;
    for (u32 col = thread_index() * 8; col < batch.cols; col += block_threads() * 8) {
      u32 x[4];
      load_words(batch, batch.x + before, col, batch.cols, x);
#pragma unroll
      for (u32 k = 0; k < 8; k++) {
        const float v = add_rn(element(x, k), -mean);
        if (col + k < batch.cols) sum = add_rn(sum, SQUARES ? mul_rn(v, v) : v);
      }
    }
    return mul_rn(block_sum(sum), bits_f32(batch.share));
  }

  DEVICE_MEMBER void write() const {
    const float mean = batch.kind == NORM_LAYER ? mean_of<false>(0) : 0;
    const float by = div_rn(1, sqrt_rn(add_rn(mean_of<true>(mean), bits_f32(batch.epsilon))));
    for (u32 col = thread_index() * 8; col < batch.cols; col += block_threads() * 8) {
      u32 x[4], gain[4] = {}, bias[4] = {}, residual[4] = {}, next[4] = {}, y[4] = {}, scaled[4] = {};
      load_words(batch, batch.x + before, col, batch.cols, x);
      if (batch.gain) load_words(batch, batch.gain, col, batch.cols, gain);
      if (batch.bias) load_words(batch, batch.bias, col, batch.cols, bias);
      if (batch.residual) load_words(batch, batch.residual + before, col, batch.cols, residual);
      if (batch.scaled) load_words(batch, batch.next_gain, col, batch.cols, next);
#pragma unroll
      for (u32 k = 0; k < 8; k++) {
        float v = mul_rn(add_rn(element(x, k), -mean), by);
        if (batch.gain) v = mul_rn(v, add_rn(element(gain, k), bits_f32(batch.gain_offset)));
        if (batch.bias) v = add_rn(v, element(bias, k));
        v = batch.residual ? fma_rn(v, bits_f32(batch.result_scale), element(residual, k)) : mul_rn(v, bits_f32(batch.result_scale));
        const u32 rounded = H::of(v);
        y[k / 2] |= rounded << (k % 2 * 16);
        const float next_by = fma_rn(element(next, k), bits_f32(batch.next_scale), bits_f32(batch.next_offset));
        scaled[k / 2] |= H::of(mul_rn(H::to_f32(rounded), next_by)) << (k % 2 * 16);
      }
      store_words(batch, batch.y + before, col, y);
      if (batch.scaled) store_words(batch, batch.scaled + before, col, scaled);
    }
  }
};
