// Products with one vector, in whole numbers.
//
// Tensor cores multiply symbols, which are i8, with digits of the vector's elements, which are i8 too: elements are
// rounded to multiples of 2^-28 of a power of two above the largest of them, and written as four digits: three to the base of 256, and one of 128ths.
// The digits are four columns of a tensor core's operand. Their sums are exact; of each chunk they are put together to one f32. Where levels are halves between symbols,
// half of the sum of the elements is added.
//
// Symbols need no conversion, so this takes about two thirds of the instructions of products with halves (product.h), which are for several
// vectors: those have more digits than an operand has columns.
#pragma once
#include "around.h"
#include "tile.h"
#include "walk.h"

#define DIGITS 4u
// Shared memory of the digits of a block's columns: of each digit 64 bytes, in the order of the columns.
#define DIGITS_BLOCK (DIGITS * BLOCK_COLS)

// v 2^power, of a power between -252 and 254.
DEVICE float times_power(float v, i32 power) {
  const i32 half = power >> 1;
  return mul_rn(mul_rn(v, bits_f32((u32)(half + 127) << 23)), bits_f32((u32)(power - half + 127) << 23));
}

// A whole number, less than 2^21 from zero, and this have as a sum, 2^23 to 2^24, an f32 that ends with all bits of the number; by what is added
// to it, its bytes are above the number's digits: the lower two by 128, the third by 64.
#define DIGITS_ABOVE 0x4B408080u
// The same for a number of less than 2^7: of the lowest byte.
#define DIGIT_ABOVE 0x4B400080u

// Shared memory besides the digits: the power, elements times 2^power being what the upper three digits say; and of each warp the largest of the elements
// that it has seen, as 15 bits, and the sums of those that it has written: of the upper three digits all above 16 bits, and these 16; of the lowest digit.
// So all sums are exact.
#define FACTS_LARGEST 16u
#define FACTS_SUMS (FACTS_LARGEST + LANES * 4)
#define FACTS_BYTES (FACTS_SUMS + LANES * 12)

// The vector's columns, with those beyond the matrix's edge that the last tile has.
DEVICE u32 digit_cols(const Tiles& t) { return ((t.tiles - 1) * t.blocks + t.last_blocks) * BLOCK_COLS; }

// Of the vector's largest element, without its sign, as f32: the power for which it becomes less than 2^21.
DEVICE i32 digits_power(float largest) { return 147 - (i32)(f32_bits(largest) >> 23); }

// Brings the vector nearer, before the block asks for all of its weights. It may not be there yet: nothing is read.
DEVICE void expect_vector(const FactorsBatch& batch, const Tiles& t) {
  if (thread_index() < t.cols / 64) prefetch((const u8*)batch.x + thread_index() * 128);
}

// The block's part in what `State::prepare` does, in two steps. Between launches nothing else is done, and each block of threads does it: so all of its
// threads share it, and elements are rounded by a sum, without a conversion.
template <bool BF16>
DEVICE void find_largest(const FactorsBatch& batch, const Tiles& t, u32 facts, u32 lane) {
  const u32 cols = digit_cols(t);
  u32 largest = 0;
#pragma unroll 4
  for (u32 col = thread_index() * 8; col < cols; col += block_threads() * 8) {
    u32 words[4];
    load_words(batch, batch.x, col, t.cols, words);
#pragma unroll
    for (u32 k = 0; k < 4; k++) largest = max_halves(largest, words[k] & 0x7FFF7FFFu);
  }
  largest = warp_max(largest >> 16 > (largest & 0xFFFF) ? largest >> 16 : largest & 0xFFFF, lane);
  if (lane == 0) sts32(facts + FACTS_LARGEST + thread_index() / LANES * 4, largest);
}

// Writes the digits of the vector's columns to shared memory, from `to`. Columns beyond the matrix's edge are 0.
template <bool BF16>
DEVICE void write_digits(const FactorsBatch& batch, const Tiles& t, u32 to, u32 facts, u32 lane) {
  typedef Half<BF16> H;
  const u32 largest = warp_max(lane < block_threads() / LANES ? lds32(facts + FACTS_LARGEST + lane * 4) : 0, lane);
  const i32 power = digits_power(H::to_f32(largest));
  // As a factor it would be infinite for elements that are very small: those are made larger before.
  const bool small = power > 83;
  const float factor = bits_f32((u32)(power + 127 - (small ? 64 : 0)) << 23);
  const u32 cols = digit_cols(t);
  u32 sum = 0, rests = 0;
#pragma unroll 1
  for (u32 col = thread_index() * 8; col < cols; col += block_threads() * 8) {
    float x[8];
    load_eight<BF16>(batch, batch.x, col, t.cols, x);
    u32 d[8], e[8];
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
      if (small) x[k] = mul_rn(x[k], 0x1p64f);
      const float whole = fma_rn(x[k], factor, bits_f32(DIGITS_ABOVE));
      // What rounding has left: both sums are exact.
      const float rest = fma_rn(x[k], factor, bits_f32(DIGITS_ABOVE) - whole);
      d[k] = f32_bits(whole);
      e[k] = f32_bits(fma_rn(rest, 128, bits_f32(DIGIT_ABOVE)));
      sum += d[k];
      rests += e[k];
    }
    sum -= 8 * DIGITS_ABOVE;
    rests -= 8 * DIGIT_ABOVE;
    u32 halves[2][DIGITS];
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
      const u32 a = prmt(d[4 * k], d[4 * k + 1], 0x5140), b = prmt(d[4 * k + 2], d[4 * k + 3], 0x5140);
      const u32 f = prmt(d[4 * k], d[4 * k + 1], 0x0062), g = prmt(d[4 * k + 2], d[4 * k + 3], 0x0062);
      const u32 h = prmt(e[4 * k], e[4 * k + 1], 0x0040), i = prmt(e[4 * k + 2], e[4 * k + 3], 0x0040);
      halves[k][0] = prmt(h, i, 0x5410) ^ 0x80808080u;
      halves[k][1] = prmt(a, b, 0x5410) ^ 0x80808080u;
      halves[k][2] = prmt(a, b, 0x7632) ^ 0x80808080u;
      halves[k][3] = (prmt(f, g, 0x5410) + 0x40404040u) ^ 0x80808080u;
    }
#pragma unroll
    for (u32 i = 0; i < DIGITS; i++) {
      sts64(to + col / BLOCK_COLS * DIGITS_BLOCK + i * BLOCK_COLS + col % BLOCK_COLS, {halves[0][i], halves[1][i]});
    }
  }
  const i32 upper = warp_sum((i32)sum >> 16, lane), lower = warp_sum((i32)(sum & 0xFFFF), lane);
  const i32 lowest = warp_sum((i32)rests, lane);
  if (lane == 0) {
    const u32 sums_at = facts + FACTS_SUMS + thread_index() / LANES * 12;
    sts32(sums_at, (u32)upper), sts32(sums_at + 4, (u32)lower), sts32(sums_at + 8, (u32)lowest);
    // Who looks at it has waited for all warps.
    if (thread_index() == 0) sts32(facts, (u32)power), sts32(facts + 4, largest);
  }
}

// The sum of all elements, where what the threads have written is there; no number if one of them is none, or infinite. All warps call it.
template <bool BF16>
DEVICE float sum_of_elements(u32 facts, u32 lane) {
  const bool there = lane < block_threads() / LANES;
  const i32 upper = warp_sum(there ? (i32)lds32(facts + FACTS_SUMS + lane * 12) : 0, lane);
  const i32 lower = warp_sum(there ? (i32)lds32(facts + FACTS_SUMS + lane * 12 + 4) : 0, lane);
  const i32 lowest = warp_sum(there ? (i32)lds32(facts + FACTS_SUMS + lane * 12 + 8) : 0, lane);
  if (lds32(facts + 4) >= Half<BF16>::INFINITE) return bits_f32(0x7FFFFFFFu);
  const float whole = fma_rn(f32_of_i32(upper), 65536, f32_of_i32(lower));
  return times_power(fma_rn(f32_of_i32(lowest), 1.0f / 128, whole), -(i32)lds32(facts));
}

// EARLY: each warp has one chunk, of which it leaves the symbols in shared memory before the vector is there. Then, or first of all, the block of threads
// makes the digits of all columns.
template <bool BF16, bool EARLY>
struct MultiplyOne {
  struct State {
    const FactorsBatch& batch;
    u32 first;    // the block's first chunk
    u32 digits;   // where they lie
    u32 facts;    // behind them, FACTS_*
    u32 room;     // of the lane, for the symbols of a chunk's blocks
    bool half;    // levels are a half more than symbols
    u32 staged;   // blocks that lie in the room
    bool gone;    // what lies there is of a chunk that is not valid
    u32 at;       // of the lane's digits of the block to be multiplied next
    u32 col;      // that block's first column, where rows may have several scales
    i32 sum[4];
    u32 corrections;  // of the warp
    Patches changes;

    static DEVICE_MEMBER State make(const FactorsBatch& batch, const Factor& f, u32 first, u32 warp, u32 lane) {
      const Tiles& t = f.tiles;
      const u32 facts = batch.staging + t.tiles * t.blocks * DIGITS_BLOCK;
      const u32 rooms = facts + FACTS_BYTES;
      // Where levels are the symbols themselves, others take half of each element away again.
      return {batch, first, batch.staging, facts, rooms + warp * t.blocks * 1024 + lane * 16, f.minus == 0, 0, false, 0, 0, {},
              batch.corrections + warp * CHANGES_BYTES, {}};
    }

    // Makes the digits; all warps of the block call it, and wait for each other behind it.
    DEVICE_MEMBER void prepare(const Tiles& t, u32 lane) {
      overlap_wait();
      find_largest<BF16>(batch, t, facts, lane);
      syncthreads();
      write_digits<BF16>(batch, t, digits, facts, lane);
    }
    // What is to be added to the sums of all chunks of a row: where levels are halves between symbols, half of the elements. All warps call it.
    DEVICE_MEMBER float rest(u32 lane) const { return mul_rn(sum_of_elements<BF16>(facts, lane), half ? 0.5f : 0); }

    // After the last chunk. All warps of the block call it.
    DEVICE_MEMBER void finish(const Tiles& t, u32 lane) {
      if constexpr (EARLY) {
        prepare(t, lane);
        syncthreads();
        if (staged == 0 && !gone) return;
        const Chunk c = chunk_at(t, first + thread_index() / LANES);
        begin(t, c, lane);
#pragma unroll 1
        for (u32 k = 0; k < staged; k++) {
          const Vec4 a = lds128(room + k * 1024), b = lds128(room + k * 1024 + 512);
          product({a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w});
          if (several(t)) rescale(t, c, lane);
        }
        if (gone || !several(t)) put(t, c, lane, gone ? bits_f32(0x7FFFFFFFu) : level(lane));
      }
    }

    DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
      if constexpr (EARLY) {
        if (changes.next < changes.end) patch(lane);
      } else {
        if (batch.corrections && changes.next < changes.end) correct(t, c, lane);
        if (!several(t)) put(t, c, lane, level(lane));
      }
    }
    DEVICE_MEMBER void lost(const Tiles& t, const Chunk& c, u32 lane) {
      gone = true;
      if (!EARLY) put(t, c, lane, bits_f32(0x7FFFFFFFu));
    }

    // Before the products of a chunk.
    DEVICE_MEMBER void begin(const Tiles& t, const Chunk& c, u32 lane) {
      // The operand has twice as many columns as there are digits.
      at = digits + c.tile * t.blocks * DIGITS_BLOCK + lane / 4 % DIGITS * BLOCK_COLS + lane % 4 * 16;
      col = c.tile * t.blocks * BLOCK_COLS;
      clear();
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
      const float v = level(lane);
      const float before = begins || lane % 4 > 1 ? 0 : bits_f32(lds32(place(t, c, lane)));
      put(t, c, lane, add_rn(before, mul_rn(v, scale)));
      clear();
      col += BLOCK_COLS;
    }

    DEVICE_MEMBER void clear() {
#pragma unroll
      for (u32 j = 0; j < 4; j++) sum[j] = 0;
    }

    // Whether it takes the patches of the next chunk.
    DEVICE_MEMBER bool takes_patches() const { return EARLY || batch.corrections; }

   private:
    // Puts what patches say among the symbols of a chunk: a patch a lane.
    DEVICE_MEMBER void patch(u32 lane) {
      syncwarp();
#pragma unroll 1
      for (u32 from = changes.next + lane * 4; from < changes.end; from += LANES * 4) {
        const u32 patch = lds32(from), word = patch >> 2 & 7;
        const u32 to = room - lane * 16 + (patch >> 10 & 63) * 1024 + (word >> 2) * 512 + (patch >> 5 & 31) * 16;
        sts8(to + (word & 3) * 4 + (patch & 3), patch >> 16 & 0xFF);
      }
      syncwarp();
    }
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
        for (u32 i = 0; i < DIGITS; i++) {
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
    DEVICE_MEMBER float level(u32 lane) const {
      // Digits 0 and 1 are of lanes 0 of four, 2 and 3 of lanes 1.
      const float next = lane % 2 ? 256 : 128;
      const float a = fma_rn(f32_of_i32(sum[1]), next, f32_of_i32(sum[0]));
      const float b = fma_rn(f32_of_i32(sum[3]), next, f32_of_i32(sum[2]));
      const float c0 = bits_f32(shfl(f32_bits(a), lane ^ 1)), c1 = bits_f32(shfl(f32_bits(b), lane ^ 1));
      const float all = lane % 2 ? fma_rn(b, 32768, c1) : fma_rn(c0, 32768, a);
      return times_power(all, -7 - (i32)lds32(facts));
    }
  };

  enum : bool { WAITS = false, OPERANDS = false, PREPARES = !EARLY, CHECKS = false, COPIES = true, CORRECTS = true };

  State& state;
  const Tiles& t;
  const Chunk& c;
  u32 lane;

  DEVICE_MEMBER MultiplyOne(State& state, const Tiles& t, const Chunk& c, u32 lane) : state(state), t(t), c(c), lane(lane) {
    if (!EARLY) state.begin(t, c, lane);
  }
  DEVICE_MEMBER bool takes_whole() const { return !State::several(t); }
  DEVICE_MEMBER void begin_whole() {}
  DEVICE_MEMBER void whole(Block& b) { take(b); }
  DEVICE_MEMBER void any(const Block& b) {
    take(b);
    if (State::several(t) && !EARLY) state.rescale(t, c, lane);
  }

 private:
  DEVICE_MEMBER void take(const Block& b) {
    if constexpr (EARLY) {
      const u32 to = state.room + state.staged * 1024;
      sts128(to, {b.q[0], b.q[1], b.q[2], b.q[3]});
      sts128(to + 512, {b.q[4], b.q[5], b.q[6], b.q[7]});
      state.staged++;
    } else {
      state.product(b.q);
    }
  }
};
