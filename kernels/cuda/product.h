// For tests: a sink that multiplies. It feeds decoded weights to tensor cores, of each chunk with 8 vectors, and writes what each chunk
// adds to the product. Not shipped; it proves what sinks.h promises.
#pragma once
#include "sinks.h"
#include "tile.h"
#include "walk.h"

struct ProductTest {
  TilesBatch batch;  // with one scale a row
  u64 x;             // address of 8 vectors of f16, each of `x_cols`, 0 where the matrix has no column
  u64 out;           // address of 16 rows of 8 f32 for each chunk
  u64 x_cols;        // a multiple of BLOCK_COLS
};

struct Product {
  struct State {
    const u8* x;
    u64 x_cols;
    u8* out;
    float sum[4];
    bool waited;

    DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
      const u32 matrix = divide(c.strip, t.by_strips), row = (c.strip - matrix * t.strips) * TILE_ROWS + lane / 4;
      u8* const to = out + ((u64)(c.strip * t.tiles + c.tile) * TILE_ROWS + lane / 4) * 32 + lane % 4 * 8;
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 r = row + 8 * half;
        const float scale = r < t.rows ? scale_at<SCALES_ANY>(t.output, matrix * t.rows + r, 0) : 0;
        stg32(to + half * 256, f32_bits(mul_rn(sum[2 * half], scale)));
        stg32(to + half * 256 + 4, f32_bits(mul_rn(sum[2 * half + 1], scale)));
      }
    }
  };
  enum : bool { WAITS = false };

  State& state;
  u32 base;     // as in `Steps`
  const u8* x;  // of vector g, at the lane's first column in the block that comes next

  DEVICE_MEMBER Product(State& state, const Tiles& t, const Chunk& c, u32 lane) : state(state), base(steps_base<SCALES_ANY>(t.output)) {
    if (!state.waited) {
      overlap_wait();
      overlap_start();
      state.waited = true;
    }
    x = state.x + (lane / 4 * state.x_cols + c.tile * t.blocks * BLOCK_COLS + lane % 4 * 16) * 2;
#pragma unroll
    for (u32 i = 0; i < 4; i++) state.sum[i] = 0;
  }

  DEVICE_MEMBER bool takes_whole() const { return true; }
  DEVICE_MEMBER void begin_whole() {}
  DEVICE_MEMBER void whole(Block& b) { any(b); }

  // Beyond the matrix's edge x is 0, and rows are not looked at.
  DEVICE_MEMBER void any(const Block& b) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      float v[4], v8[4];
      scaled(b.q[j], {base, 1}, v);
      scaled(b.q[4 + j], {base, 1}, v8);
      const u32 weights[4] = {pack_f16(v[0], v[1]), pack_f16(v8[0], v8[1]), pack_f16(v[2], v[3]), pack_f16(v8[2], v8[3])};
      const u32 vectors[2] = {ldg32(x + 8 * j), ldg32(x + 8 * j + 4)};
      mma_f16(state.sum, weights, vectors);
    }
    x += BLOCK_COLS * 2;
  }
};
