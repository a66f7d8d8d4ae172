// Products with one vector, in whole numbers.
//
// Tensor cores multiply symbols, which are i8, with digits of the vector's elements, which are i8 too: of a tile's columns elements are
// rounded to multiples of 2^-30 of a power of two above the largest of them, which bf16 and f16 mostly are already, and written as four
// digits to the base of 256. The digits are four columns of a tensor core's operand. Their sums are exact; of each chunk they are put together to
// one f32. Where levels are halves between symbols, half of the sum of the tile's elements is added.
//
// Symbols need no conversion, so this takes about two thirds of the instructions of products with halves (product.h), which are for several
// vectors: those have more digits than an operand has columns.
#pragma once
#include "around.h"
#include "tile.h"
#include "walk.h"

// Shared memory of the digits of a block's columns: of each digit 64 bytes, in the order of the columns.
#define DIGITS_BLOCK 256u

// v 2^power, of a power between -252 and 254.
DEVICE float times_power(float v, i32 power) {
  const i32 half = power >> 1;
  return mul_rn(mul_rn(v, bits_f32((u32)(half + 127) << 23)), bits_f32((u32)(power - half + 127) << 23));
}

// What is to be known of the digits of a tile's columns: elements are multiples of 2^-power, and their sum is `sum` of these; no number if one of
// them is none, or infinite.
struct Digits {
  i32 power;
  float sum;
};

// Writes the digits of a tile's columns to shared memory, from `to`. Columns beyond the matrix's edge are 0.
template <bool BF16>
DEVICE Digits digits_of(const FactorsBatch& batch, const Tiles& t, u32 tile, u32 to, u32 lane) {
  const u32 first = tile * t.blocks * BLOCK_COLS, end = (tile + 1 == t.tiles ? t.last_blocks : t.blocks) * BLOCK_COLS;
  u32 largest = 0;
  for (u32 col = lane * 8; col < end; col += LANES * 8) {
    float x[8];
    load_eight<BF16>(batch, batch.x, first + col, t.cols, x);
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
      const u32 size = f32_bits(x[k]) & 0x7FFFFFFFu;
      largest = size > largest ? size : largest;
    }
  }
  largest = warp_max(largest, lane);
  // The largest becomes less than 2^30.
  Digits found = {156 - (i32)(largest >> 23), 0};
  // Sums of upper and lower halves: they are exact.
  i32 upper = 0, lower = 0;
  for (u32 col = lane * 8; col < end; col += LANES * 8) {
    float x[8];
    load_eight<BF16>(batch, batch.x, first + col, t.cols, x);
    u32 d[8];
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
      const i32 v = i32_of_f32(times_power(x[k], found.power));
      upper += v >> 16;
      lower += v & 0xFFFF;
      // Each byte 128 above its digit, with what it carries, and then the digit.
      d[k] = ((u32)v + 0x80808080u) ^ 0x80808080u;
    }
    u32 halves[2][4];
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
      const u32 a = prmt(d[4 * k], d[4 * k + 1], 0x5140), b = prmt(d[4 * k + 2], d[4 * k + 3], 0x5140);
      const u32 e = prmt(d[4 * k], d[4 * k + 1], 0x7362), f = prmt(d[4 * k + 2], d[4 * k + 3], 0x7362);
      halves[k][0] = prmt(a, b, 0x5410), halves[k][1] = prmt(a, b, 0x7632);
      halves[k][2] = prmt(e, f, 0x5410), halves[k][3] = prmt(e, f, 0x7632);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      sts64(to + col / BLOCK_COLS * DIGITS_BLOCK + i * BLOCK_COLS + col % BLOCK_COLS, {halves[0][i], halves[1][i]});
    }
  }
  found.sum = fma_rn(f32_of_i32(warp_sum(upper, lane)), 65536, f32_of_i32(warp_sum(lower, lane)));
  if (largest >= 0x7F800000u) found.sum = bits_f32(0x7FFFFFFFu);
  return found;
}

// EARLY: each warp decodes its first chunk before the vector is there. Then, or first of all, the block of threads makes the digits of all columns.
template <bool BF16, bool EARLY>
struct MultiplyOne {
  struct State {
    const FactorsBatch& batch;
    u32 first;    // the block's first chunk
    u32 digits;   // where they lie
    u32 facts;    // behind them, `Digits` of all tiles
    u32 room;     // of the lane, for the symbols of a chunk's blocks
    bool half;    // levels are a half more than symbols
    bool ready;   // the digits are there
    u32 staged;   // blocks that lie in the room
    u32 at;       // of the lane's digits of the block to be multiplied next
    u32 col;      // that block's first column, where rows may have several scales
    i32 sum[4];
    u32 corrections;  // of the warp
    Patches changes;

    static DEVICE_MEMBER State make(const FactorsBatch& batch, const Factor& f, u32 first, u32 warp, u32 lane) {
      const Tiles& t = f.tiles;
      const u32 facts = batch.staging + t.tiles * t.blocks * DIGITS_BLOCK;
      const u32 rooms = (facts + t.tiles * 8 + 15) & ~15u;
      // Where levels are the symbols themselves, others take half of each element away again.
      return {batch, first, batch.staging, facts, rooms + warp * t.blocks * 1024 + lane * 16, f.minus == 0, false, 0, 0, 0, {},
              batch.corrections + warp * CHANGES_BYTES, {}};
    }

    // Makes the digits of all tiles; all warps of the block call it.
    DEVICE_MEMBER void prepare(const Tiles& t, u32 lane) {
      overlap_wait();
      ready = true;
#pragma unroll 1
      for (u32 tile = thread_index() / LANES; tile < t.tiles; tile += block_threads() / LANES) {
        const Digits d = digits_of<BF16>(batch, t, tile, digits + tile * t.blocks * DIGITS_BLOCK, lane);
        if (lane == 0) sts64(facts + tile * 8, {(u32)d.power, f32_bits(d.sum)});
      }
    }
    // When the vector is wanted first. All warps of the block call it, each at its time.
    DEVICE_MEMBER void expect(const Tiles& t, u32 lane) {
      if (ready) return;
      prepare(t, lane);
      syncthreads();
    }
    DEVICE_MEMBER void finish(const Tiles& t, u32 lane) {
      if (EARLY) expect(t, lane);
    }

    DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
      if constexpr (EARLY) {
        expect(t, lane);
#pragma unroll 1
        for (u32 k = 0; k < staged; k++) {
          const Vec4 a = lds128(room + k * 1024), b = lds128(room + k * 1024 + 512);
          product({a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w});
          if (several(t)) rescale(t, c, lane);
        }
      }
      if (!EARLY && batch.corrections && changes.next < changes.end) correct(t, c, lane);
      if (!several(t)) put(t, c, lane, level(c, lane));
    }
    DEVICE_MEMBER void lost(const Tiles& t, const Chunk& c, u32 lane) {
      finish(t, lane);
      put(t, c, lane, bits_f32(0x7FFFFFFFu));
    }

    // A block's symbols with the vector.
    DEVICE_MEMBER void product(const u32 (&w)[8]) {
      const Vec4 x = lds128(at);
      mma_s8(sum, {w[0], w[4], w[1], w[5]}, {x.x, x.y});
      mma_s8(sum, {w[2], w[6], w[3], w[7]}, {x.z, x.w});
      at += DIGITS_BLOCK;
    }

    // Whether a row has several scales, each of whole blocks: then sums are scaled block by block.
    static DEVICE_MEMBER bool several(const Tiles& t) { return t.output.scales_per_row > 1; }

    // Adds a block's sums, with their scale, to those of the chunk.
    DEVICE_MEMBER void rescale(const Tiles& t, const Chunk& c, u32 lane) {
      const u32 matrix = divide(c.strip, t.by_strips);
      const u32 row = (c.strip - matrix * t.strips) * TILE_ROWS + row_of(lane);
      const bool there = row < t.rows && col < t.cols, begins = col == c.tile * t.blocks * BLOCK_COLS;
      const float scale = there ? scale_at<SCALES_ANY>(t.output, (u64)matrix * t.rows + row, col) : 0;
      const float v = level(c, lane);
      const float before = begins || lane % 4 > 1 ? 0 : bits_f32(lds32(place(t, c, lane)));
      put(t, c, lane, add_rn(before, mul_rn(v, scale)));
      clear();
      col += BLOCK_COLS;
    }

    DEVICE_MEMBER void clear() {
#pragma unroll
      for (u32 j = 0; j < 4; j++) sum[j] = 0;
    }

   private:
    // What patches change: a patch a lane. Sums are of whole numbers, so that their order is no matter.
    DEVICE_MEMBER void correct(const Tiles& t, const Chunk& c, u32 lane) {
      // Of each row a word for each digit.
      sts64(corrections + lane * 8, {0, 0});
      syncwarp();
#pragma unroll 1
      for (u32 from = changes.next + lane * 4; from < changes.end; from += LANES * 4) {
        const Change change(lds32(from));
        const u32 digit = digits + (c.tile * t.blocks + change.block) * DIGITS_BLOCK + change.col;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const i32 d = (i32)(lds8(digit + i * BLOCK_COLS) << 24) >> 24;
          add_shared(corrections + change.row * 16 + i * 4, (u32)(change.by * d));
        }
      }
      syncwarp();
      if (lane % 4 > 1) return;
#pragma unroll
      for (u32 j = 0; j < 4; j++) sum[j] += (i32)lds32(corrections + (lane / 4 + j / 2 * 8) * 16 + lane % 4 * 8 + j % 2 * 4);
    }

    // Lanes 0 and 1 of four have the chunk's sums of a row each.
    static DEVICE_MEMBER u32 row_of(u32 lane) { return lane / 4 + lane % 2 * 8; }
    DEVICE_MEMBER u32 place(const Tiles& t, const Chunk& c, u32 lane) const {
      return batch.sums + ((c.strip * t.tiles + c.tile - first) * TILE_ROWS + row_of(lane)) * 4;
    }
    DEVICE_MEMBER void put(const Tiles& t, const Chunk& c, u32 lane, float v) const {
      if (lane % 4 < 2) sts32(place(t, c, lane), f32_bits(v));
    }

    // What the sums make of the lane's row.
    DEVICE_MEMBER float level(const Chunk& c, u32 lane) const {
      const Digits d = {(i32)lds32(facts + c.tile * 8), bits_f32(lds32(facts + c.tile * 8 + 4))};
      // Digits 0 and 1 are of lanes 0 of four, 2 and 3 of lanes 1.
      const float a = fma_rn(f32_of_i32(sum[1]), 256, f32_of_i32(sum[0]));
      const float b = fma_rn(f32_of_i32(sum[3]), 256, f32_of_i32(sum[2]));
      const float c0 = bits_f32(shfl(f32_bits(a), lane ^ 1)), c1 = bits_f32(shfl(f32_bits(b), lane ^ 1));
      const float all = lane % 2 ? fma_rn(b, 65536, c1) : fma_rn(c0, 65536, a);
      return times_power(add_rn(all, mul_rn(d.sum, half ? 0.5f : 0)), -d.power);
    }
  };

  enum : bool { WAITS = false, OPERANDS = false, PREPARES = !EARLY, CHECKS = false, COPIES = !EARLY, CORRECTS = !EARLY };

  State& state;
  const Tiles& t;
  const Chunk& c;
  u32 lane;

  DEVICE_MEMBER MultiplyOne(State& state, const Tiles& t, const Chunk& c, u32 lane) : state(state), t(t), c(c), lane(lane) {
    state.staged = 0;
    state.at = state.digits + c.tile * t.blocks * DIGITS_BLOCK + lane / 4 % 4 * BLOCK_COLS + lane % 4 * 16;
    state.col = c.tile * t.blocks * BLOCK_COLS;
    state.clear();
  }
  DEVICE_MEMBER bool takes_whole() const { return !State::several(t); }
  DEVICE_MEMBER void begin_whole() {}
  DEVICE_MEMBER void whole(Block& b) { take(b); }
  DEVICE_MEMBER void any(const Block& b) {
    take(b);
    if (State::several(t) && (!EARLY || state.ready)) state.rescale(t, c, lane);
  }

 private:
  DEVICE_MEMBER void take(const Block& b) {
    if (EARLY && !state.ready) {
      const u32 to = state.room + state.staged * 1024;
      sts128(to, {b.q[0], b.q[1], b.q[2], b.q[3]});
      sts128(to + 512, {b.q[4], b.q[5], b.q[6], b.q[7]});
      state.staged++;
    } else {
      state.product(b.q);
    }
  }
};
