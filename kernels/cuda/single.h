// Products with one vector, in integer arithmetic.
//
// This is error-free int8 splitting: the Ozaki scheme (K. Ozaki, T. Ogita, S. Oishi and S. Rump, "Error-free
// transformations of matrix multiplication by using fast routines of matrix multiplication and its applications",
// Numerical Algorithms 59(1), 2012), on integer tensor cores (H. Ootomo, K. Ozaki and R. Yokota, "DGEMM on integer
// matrix multiplication unit", International Journal of High Performance Computing Applications 38(4), 2024). Tensor
// cores multiply i8 symbols with i8 digits of the vector's elements. The elements of a tile's columns are rounded to
// multiples of 2^-28 of a power of two above the largest of them, and written as four digits: three in base 256, and
// one of 128ths. The sums are exact; for each chunk they are combined into one f32. If levels lie halfway between
// symbols, half of the sum of the elements is added.
//
// A tensor core's operand of digits has eight columns. The digits for two words of a lane fill four of them, and those
// for its other two words of the same row can fill the other four: then the row's words, unchanged, are the operand of
// symbols, once as its upper and once as its lower eight rows. That takes twice as many sums, and no words of other
// rows. Alternatively, all eight columns hold the same digits twice, and two rows are multiplied at a time.
//
// Symbols need no conversion, so this takes about two thirds of the instructions of 16-bit products (product.h), which
// are for several vectors: those have more digits than an operand has columns.
//
// A warp computes the digits of a tile by itself: between two launches there is nothing else to do, and waiting for
// other warps would take longer.
//
// If columns have factors, digits are those of elements times factors, as `Half::times_factors` rounds them.
#pragma once
#include "product_epilogue.h"
#include "tile.h"
#include "mainloop.h"

#define DIGITS 4u
// Shared memory of the digits of a block's columns: 64 bytes for each digit, in the order of the columns.
#define DIGITS_BLOCK (DIGITS * BLOCK_COLS)

// 2^power as two factors, for a power between -252 and 254.
struct Power {
  float first, second;
  DEVICE_MEMBER float scale(float v) const { return mul_rn(mul_rn(v, first), second); }
};
DEVICE Power power_of_two(i32 power) {
  const i32 half = power >> 1;
  return {bits_f32((u32)(half + 127) << 23), bits_f32((u32)(power - half + 127) << 23)};
}

// An integer of magnitude less than 2^21 plus this constant is an f32 from 2^23 to 2^24 that ends with all bits of the
// integer. The constant biases the bytes above the integer's digits: the lower two by 128, the third by 64.
#define DIGITS_ABOVE 0x4B408080u
// The counterpart for an integer of magnitude less than 2^7: it biases the lowest byte.
#define DIGIT_ABOVE 0x4B400080u

// Columns that a warp converts to digits at a time.
#define DIGITS_COLS (LANES * 8)

// The record of a tile's digits in shared memory: the sum of each digit over all columns, and the factors that convert
// sums to values.
#define SCALED_POWER (DIGITS * 4)
#define SCALED_BYTES 32u

// Facts about the columns of a warp's only chunk, stored by `State::leave`: all lie in the matrix and begin at
// multiples of 16 bytes; rows have several scales; levels exceed symbols by a half; columns have factors; and the number
// of columns.
#define KNOWN_VECTOR 1u
#define KNOWN_SEVERAL 2u
#define KNOWN_HALF 4u
#define KNOWN_FACTORS 8u
#define KNOWN_COLS 16u

// The power of two that scales a tile's largest element, given without its sign as f32, to less than 2^21. The factor
// must itself be an f32: with the largest possible one, the last digit stands for 2^-134, and elements, even subnormal
// bf16, are multiples of 2^-133.
DEVICE i32 digits_power(float largest) {
  const i32 power = 147 - (i32)(f32_bits(largest) >> 23);
  return power < 127 ? power : 127;
}

// The offset of the first digit of a column of a tile, from the digits of its first column.
DEVICE u32 digit_place(u32 col) { return col / BLOCK_COLS * DIGITS_BLOCK + col % BLOCK_COLS; }

// Address of the item's first vector.
DEVICE u64 vector_of(const ProductBatch& batch, const ProductItem& item) { return batch.x + (u64)item.vector * batch.x_stride * 2; }

// Prefetches the vector, before the block requests all of its weights. It may not be written yet: nothing is read.
DEVICE void prefetch_vector(u64 x, const Tiles& t) {
  if (thread_index() < t.cols / 64) prefetch((const u8*)x + thread_index() * 128);
}

// Writes the digits of eight elements to shared memory at `to`. Elements are rounded by an addition, without a
// conversion.
template <bool BF16>
DEVICE void write_digits(const u32 (&words)[4], i32 power, u32 to) {
  const float factor = bits_f32((u32)(power + 127) << 23);
  u32 halves[2][DIGITS];
#pragma unroll
  for (u32 k = 0; k < 2; k++) {
    u32 d[4], e[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const float x = Half<BF16>::to_f32(words[2 * k + j / 2] >> (j % 2 * 16) & 0xFFFF);
      const float upper = fma_rn(x, factor, bits_f32(DIGITS_ABOVE));
      // The rounding error: both sums are exact.
      const float rest = fma_rn(x, factor, bits_f32(DIGITS_ABOVE) - upper);
      d[j] = f32_bits(upper);
      e[j] = f32_bits(fma_rn(rest, 128, bits_f32(DIGIT_ABOVE)));
    }
    const u32 a = prmt(d[0], d[1], 0x5140), b = prmt(d[2], d[3], 0x5140);
    halves[k][0] = prmt(prmt(e[0], e[1], 0x0040), prmt(e[2], e[3], 0x0040), 0x5410) ^ 0x80808080u;
    halves[k][1] = prmt(a, b, 0x5410) ^ 0x80808080u;
    halves[k][2] = prmt(a, b, 0x7632) ^ 0x80808080u;
    halves[k][3] = (prmt(prmt(d[0], d[1], 0x0062), prmt(d[2], d[3], 0x0062), 0x5410) + 0x40404040u) ^ 0x80808080u;
  }
#pragma unroll
  for (u32 i = 0; i < DIGITS; i++) sts64(to + i * BLOCK_COLS, {halves[0][i], halves[1][i]});
}

// The larger half of each of the words and of `largest`, without signs.
DEVICE u32 largest_of(const u32 (&words)[4], u32 largest) {
#pragma unroll
  for (u32 k = 0; k < 4; k++) largest = max_halves(largest, words[k] & 0x7FFF7FFFu);
  return largest;
}

// The lane's elements of a tile's first DIGITS_HELD times DIGITS_COLS columns.
#define DIGITS_HELD 2u
typedef u32 HeldWords[DIGITS_HELD][4];

// Loads those of a tile of `cols` columns from `begin` on, of the vector at `x`.
DEVICE void load_held(const ProductBatch& batch, u64 x, const Tiles& t, u32 begin, u32 cols, u32 lane, HeldWords& words) {
#pragma unroll
  for (u32 h = 0; h < DIGITS_HELD; h++) {
    const u32 k = h * DIGITS_COLS + lane * 8;
#pragma unroll
    for (u32 i = 0; i < 4; i++) words[h][i] = 0;
    if (k < cols) load_words(batch, x, begin + k, t.cols, words[h]);
  }
}

// Loads the factors of the same columns, or multiplies by them.
DEVICE void load_held_factors(const ProductBatch& batch, const Tiles& t, u32 begin, u32 cols, u32 lane, HeldWords& factors) {
#pragma unroll
  for (u32 h = 0; h < DIGITS_HELD; h++) {
    const u32 k = h * DIGITS_COLS + lane * 8;
#pragma unroll
    for (u32 i = 0; i < 4; i++) factors[h][i] = 0;
    if (k < cols) load_factors(batch, t, begin + k, factors[h]);
  }
}
template <bool BF16>
DEVICE void multiply_held(HeldWords& words, const HeldWords& factors) {
#pragma unroll
  for (u32 h = 0; h < DIGITS_HELD; h++) multiply_by<BF16>(words[h], factors[h]);
}

// Eight elements of the vector at `x` from a column on, times their columns' factors.
template <bool BF16>
DEVICE void load_elements(const ProductBatch& batch, u64 x, const Tiles& t, u32 col, u32 (&words)[4]) {
  load_words(batch, x, col, t.cols, words);
  if (t.output.columns == 0) return;
  u32 factors[4];
  load_factors(batch, t, col, factors);
  multiply_by<BF16>(words, factors);
}

// Writes the digits of a tile's `cols` columns from `begin` on to shared memory from `to`; those beyond the matrix's
// edge are 0. All lanes call it. Returns the factor of sums of products with them: NaN if one of the elements is NaN or
// infinite.
template <bool BF16>
DEVICE Power make_digits(const ProductBatch& batch, u64 x, const Tiles& t, u32 begin, u32 cols, const HeldWords& words, u32 to, u32 lane) {
  u32 largest = 0, more[4];
#pragma unroll
  for (u32 h = 0; h < DIGITS_HELD; h++) largest = largest_of(words[h], largest);
#pragma unroll 1
  for (u32 k = DIGITS_HELD * DIGITS_COLS + lane * 8; k < cols; k += DIGITS_COLS) {
    load_elements<BF16>(batch, x, t, begin + k, more);
    largest = largest_of(more, largest);
  }
  largest = warp_max(largest >> 16 > (largest & 0xFFFF) ? largest >> 16 : largest & 0xFFFF, lane);
  const i32 power = digits_power(Half<BF16>::to_f32(largest));
#pragma unroll
  for (u32 h = 0; h < DIGITS_HELD; h++) {
    const u32 k = h * DIGITS_COLS + lane * 8;
    if (k < cols) write_digits<BF16>(words[h], power, to + digit_place(k));
  }
#pragma unroll 1
  for (u32 k = DIGITS_HELD * DIGITS_COLS + lane * 8; k < cols; k += DIGITS_COLS) {
    load_elements<BF16>(batch, x, t, begin + k, more);
    write_digits<BF16>(more, power, to + digit_place(k));
  }
  Power back = power_of_two(-8 - power);
  if (largest >= Half<BF16>::INFINITE) back.second = bits_f32(0x7FFFFFFFu);
  return back;
}

// Adds the products of the words of a row, 16 columns per lane, with digits, which differ between the upper and lower
// half of lanes.
DEVICE void mma_row(i32 (&sum)[4], const Vec4& w, const Vec2& x) { mma_s8(sum, {w.x, w.y, w.z, w.w}, {x.x, x.y}); }

// Adds the digits alone. As sums of symbols they are the same in all rows.
DEVICE void sum_digits(i32 (&all)[4], const Vec2& x) {
  const u32 one = 0x01010101u;
  mma_row(all, {one, one, one, one}, x);
}

// Adds the two halves of a row's sums, which cover different columns. All lanes call it; lanes 0 and 1 of each four
// have two digits each.
DEVICE void add_halves(const i32 (&sum)[4], u32 lane, i32* both) {
#pragma unroll
  for (u32 j = 0; j < 2; j++) both[j] = sum[j] + (i32)shfl((u32)sum[2 + j], lane ^ 2);
}

// EARLY: each warp has one chunk, whose symbols it stores in shared memory before the vector is available. Otherwise
// the thread block first computes the digits of all columns.
template <bool BF16, bool EARLY>
struct MultiplyOne {
  struct State {
    const ProductBatch& batch;
    u64 x;        // address of the vector
    u32 first;    // the block's first chunk
    u32 digits;   // their address: EARLY: of the warp's tile; otherwise of all tiles
    u32 scaled;   // not EARLY: SCALED_BYTES of each tile, after them
    u32 staging;     // the lane's space for the symbols of a chunk's blocks
    bool half;    // levels exceed symbols by a half
    u32 staged;   // blocks stored there
    bool invalid; // the chunk stored there is not valid
    u32 at;       // the lane's digits of the next block to multiply
    u32 col;      // that block's first column, if rows may have several scales
    i32 sum[4];
    u32 corrections;  // of the warp
    u32 raised;       // symbols of the chunk are multiplied by two to this power
    Patches changes;

    static DEVICE_MEMBER State make(const ProductBatch& batch, const ProductItem& item, u32 first, u32 warp, u32 lane) {
      const Tiles& t = item.tiles;
      // A warp that has decoded its only chunk no longer reads its buffer.
      const u32 digits = EARLY ? batch.buffers + warp * batch.buffer_bytes : batch.staging;
      // `minus` is 0 if levels exceed symbols by a half; otherwise 16-bit products (product.h) subtract it.
      const u32 scaled = digits + t.tiles * t.blocks * DIGITS_BLOCK;
      return {batch, vector_of(batch, item), first, digits, scaled, batch.staging + warp * t.blocks * 1024 + lane * 16, item.minus == 0, 0, false, 0, 0, {},
              batch.corrections + warp * CHANGES_BYTES, 0, {}};
    }

    // Computes the digits; all warps of the block call it, and synchronize afterwards.
    DEVICE_MEMBER void prepare(const Tiles& t, u32 lane) {
      overlap_wait();
#pragma unroll 1
      for (u32 tile = thread_index() / LANES; tile < t.tiles; tile += block_threads() / LANES) {
        const u32 cols = (tile + 1 == t.tiles ? t.last_blocks : t.blocks) * BLOCK_COLS, to = digits + tile * t.blocks * DIGITS_BLOCK;
        HeldWords words;
        load_held(batch, x, t, tile * t.blocks * BLOCK_COLS, cols, lane, words);
        if (t.output.columns) {
          HeldWords factors;
          load_held_factors(batch, t, tile * t.blocks * BLOCK_COLS, cols, lane, factors);
          multiply_held<BF16>(words, factors);
        }
        const Power back = make_digits<BF16>(batch, x, t, tile * t.blocks * BLOCK_COLS, cols, words, to, lane);
        if (half) {
          i32 sums[4] = {0, 0, 0, 0}, all[2];
          syncwarp();
#pragma unroll 4
          for (u32 k = 0; k < cols / BLOCK_COLS; k++) sum_digits(sums, lds64(half_digits(to, lane) + k * DIGITS_BLOCK));
          add_halves(sums, lane, all);
          if (lane < 2) sts64(scaled_at(tile) + lane * 8, {(u32)all[0], (u32)all[1]});
        }
        if (lane == 0) sts64(scaled_at(tile) + SCALED_POWER, {f32_bits(back.first), f32_bits(back.second)});
      }
    }

    // Stores in shared memory the facts about the warp's only chunk that are needed once the vector is available: the
    // compiler loads parameters where they are used, which takes time when nothing else is left to do.
    DEVICE_MEMBER void leave(const Tiles& t, const Chunk& c, u32 lane) const {
      if (lane > 0) return;
      const u32 begin = c.tile * t.blocks * BLOCK_COLS, cols = c.blocks * BLOCK_COLS;
      const u64 from = x + (u64)begin * 2;
      const bool vector = batch.vector && begin + cols <= t.cols;
      sts128(known(), {(u32)from, (u32)(from >> 32), sums_at(c),
                       (vector ? KNOWN_VECTOR : 0) | (several(t) ? KNOWN_SEVERAL : 0) | (half ? KNOWN_HALF : 0) |
                           (t.output.columns ? KNOWN_FACTORS : 0) | cols * KNOWN_COLS});
      sts128(known() + 16, {digits, staging, begin, 0});
    }

    // Called after the only chunk. All warps of the block call it; `ask` requests other data that other launches have
    // written.
    template <class Ask>
    DEVICE_MEMBER void finish(const Tiles& t, u32 lane, Ask ask) {
      if constexpr (EARLY) {
        const Vec4 left = lds128(known());
        const Vec4 more = lds128(known() + 16);
        const u32 to_digits = more.x, staged_at = more.y + lane * 16, begin = more.z;
        const u64 from = (u64)left.y << 32 | left.x;
        const u32 is = left.w, cols = is / KNOWN_COLS;
        const bool has_chunk = staged != 0 || invalid;
        // Factors do not depend on the launch before this one.
        HeldWords words, factors = {};
        if (is & KNOWN_FACTORS) load_held_factors(batch, t, begin, has_chunk ? cols : 0, lane, factors);
        // All lanes have decoded: digits replace the chunk.
        syncwarp();
        overlap_wait();
        if (is & KNOWN_VECTOR) {
#pragma unroll
          for (u32 h = 0; h < DIGITS_HELD; h++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) words[h][i] = 0;
            if (has_chunk && h * DIGITS_COLS + lane * 8 < cols) load_vector(from + h * DIGITS_COLS * 2 + lane * 16, words[h]);
          }
        } else {
          load_held(batch, from - (u64)begin * 2, t, begin, has_chunk ? cols : 0, lane, words);
        }
        ask();
        if (!has_chunk) return;
        if (is & KNOWN_FACTORS) multiply_held<BF16>(words, factors);
        const Power back = make_digits<BF16>(batch, from - (u64)begin * 2, t, begin, cols, words, to_digits, lane);
        syncwarp();
        const u32 at = half_digits(to_digits, lane);
        i32 upper[4] = {0, 0, 0, 0}, lower[4] = {0, 0, 0, 0}, sums[4] = {0, 0, 0, 0}, all[2];
        if (staged % 4 == 0 && !(is & KNOWN_SEVERAL)) {
          // A tile usually has four or eight blocks: four at once.
#pragma unroll 1
          for (u32 j = 0; j < staged; j += 4) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
              const u32 k = j + i;
              const Vec4 a = lds128(staged_at + k * 1024), b = lds128(staged_at + k * 1024 + 512);
              const Vec2 x = lds64(at + k * DIGITS_BLOCK);
              mma_row(upper, a, x);
              mma_row(lower, b, x);
              if (is & KNOWN_HALF) sum_digits(sums, x);
            }
          }
        } else {
          const Chunk c = chunk_at(t, first + thread_index() / LANES);
          col = begin;
#pragma unroll 1
          for (u32 k = 0; k < staged; k++) {
            const Vec2 x = lds64(at + k * DIGITS_BLOCK);
            mma_row(upper, lds128(staged_at + k * 1024), x);
            mma_row(lower, lds128(staged_at + k * 1024 + 512), x);
            if (is & KNOWN_HALF) sum_digits(sums, x);
            if (!(is & KNOWN_SEVERAL)) continue;
            add_halves(upper, lane, sum);
            add_halves(lower, lane, sum + 2);
            rescale(t, c, lane, back);
#pragma unroll
            for (u32 j = 0; j < 4; j++) upper[j] = lower[j] = 0;
          }
          if (is & KNOWN_SEVERAL && !invalid) return;
        }
        add_halves(upper, lane, sum);
        add_halves(lower, lane, sum + 2);
        add_halves(sums, lane, all);
        const float v = invalid ? bits_f32(0x7FFFFFFFu) : level(lane, back, all);
        if (lane % 4 < 2) sts32(left.z + row_of(lane) * 4, f32_bits(v));
      }
    }
    DEVICE_MEMBER void finish() {}

    DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
      if (EARLY || several(t)) return;
      i32 sums[2] = {0, 0};
      if (half) {
        const u32 all = scaled_at(c.tile) + lane % 2 * 8;
        sums[0] = (i32)lds32(all), sums[1] = (i32)lds32(all + 4);
      }
      put(c, lane, level(lane, back(c), sums));
    }
    DEVICE_MEMBER void lost(const Tiles& t, const Chunk& c, u32 lane) {
      invalid = true;
      if (!EARLY) put(c, lane, bits_f32(0x7FFFFFFFu));
    }

    // Called before the products of a chunk.
    DEVICE_MEMBER void begin(const Tiles& t, const Chunk& c, u32 lane) {
      at = lane_digits(digits + (EARLY ? 0 : c.tile * t.blocks * DIGITS_BLOCK), lane);
      col = c.tile * t.blocks * BLOCK_COLS;
      raised = 0;
      clear();
    }

    // Multiplies a block's symbols with the vector.
    DEVICE_MEMBER void product(const u32 (&w)[8]) {
      const Vec4 x = lds128(at);
      mma_s8(sum, {w[0], w[4], w[1], w[5]}, {x.x, x.y});
      mma_s8(sum, {w[2], w[6], w[3], w[7]}, {x.z, x.w});
      at += DIGITS_BLOCK;
    }

    // Adds a block's sums, with their scale, to those of the chunk.
    DEVICE_MEMBER void rescale(const Tiles& t, const Chunk& c, u32 lane, Power back) {
      const u32 matrix = divide(c.strip, t.by_strips);
      const u32 row = (c.strip - matrix * t.strips) * TILE_ROWS + row_of(lane);
      const bool inside = row < t.rows && col < t.cols, begins = col == c.tile * t.blocks * BLOCK_COLS;
      const float scale = inside ? scale_at<SCALES_ANY>(t.output, (u64)matrix * t.rows + row, col) : 0;
      const float v = level(lane, back, {0, 0});
      const float before = begins || lane % 4 > 1 ? 0 : bits_f32(lds32(place(c, lane)));
      put(c, lane, add_rn(before, mul_rn(v, scale)));
      clear();
      col += BLOCK_COLS;
    }

    DEVICE_MEMBER void clear() {
#pragma unroll
      for (u32 j = 0; j < 4; j++) sum[j] = 0;
    }

    // The address for `bytes` bytes of the only chunk's side words: at the end of the space for its symbols, where each
    // block's words are read before its symbols overwrite them.
    DEVICE_MEMBER u32 space_for_side(const Tiles& t, u32 bytes) const {
      return batch.staging + (thread_index() / LANES + 1) * t.blocks * 1024 - bytes;
    }

    // Whether it applies the patches of the next chunk.
    DEVICE_MEMBER bool takes_patches() const { return EARLY || batch.corrections; }
    DEVICE_MEMBER bool change(const Tiles& t, const Chunk& c, u32 lane) {
      if (changes.next == changes.end) return true;
      return EARLY ? patch(c, lane) : correct(t, c, lane);
    }

    // The factor of a chunk's sums.
    DEVICE_MEMBER Power back(const Chunk& c) const {
      const Vec2 v = lds64(scaled_at(c.tile) + SCALED_POWER);
      return {bits_f32(v.x), bits_f32(v.y)};
    }

   private:
    // The facts that `leave` stored about the warp's only chunk.
    DEVICE_MEMBER u32 known() const { return batch.known + thread_index() / LANES * KNOWN_BYTES; }
    // The lane's digits of a tile's first block: for all of its four words' columns, or for the half of them that
    // belongs to its column of an operand.
    static DEVICE_MEMBER u32 lane_digits(u32 from, u32 lane) { return from + lane / 4 % DIGITS * BLOCK_COLS + lane % 4 * 16; }
    static DEVICE_MEMBER u32 half_digits(u32 from, u32 lane) { return lane_digits(from, lane) + lane / 4 / DIGITS * 8; }
    DEVICE_MEMBER u32 scaled_at(u32 tile) const { return scaled + tile * SCALED_BYTES; }

    // Applies patches to the stored symbols of a chunk, one patch per lane.
    DEVICE_MEMBER bool patch(const Chunk& c, u32 lane) {
      bool bad = false;
      syncwarp();
#pragma unroll 1
      for (u32 from = changes.next + lane * 4; from < changes.end; from += LANES * 4) {
        const u32 patch = lds32(from), word = patch >> 2 & 7;
        if (!is_sound(changes, from, patch, c.blocks)) {
          bad = true;
          break;
        }
        const u32 to = staging - lane * 16 + (patch >> 10 & 63) * 1024 + (word >> 2) * 512 + (patch >> 5 & 31) * 16;
        // Words 1 and 2 of four are swapped.
        sts8(to + (word & 1) * 8 + (word >> 1 & 1) * 4 + (patch & 3), patch >> 16 & 0xFF);
      }
      syncwarp();
      return ballot(bad) == 0;
    }
    // Sums the corrections of patches, one patch per lane. The sums are integers, so their order does not matter.
    DEVICE_MEMBER bool correct(const Tiles& t, const Chunk& c, u32 lane) {
      bool bad = false;
      // One word per row and digit.
      sts64(corrections + lane * 8, {0, 0});
      syncwarp();
#pragma unroll 1
      for (u32 from = changes.next + lane * 4; from < changes.end; from += LANES * 4) {
        const u32 patch = lds32(from);
        if (!is_sound(changes, from, patch, c.blocks)) {
          bad = true;
          break;
        }
        const Change change(patch);
        const u32 digit = digits + (c.tile * t.blocks + change.block) * DIGITS_BLOCK + change.col;
#pragma unroll
        for (u32 i = 0; i < DIGITS; i++) {
          const i32 d = (i32)(lds8(digit + i * BLOCK_COLS) << 24) >> 24;
          add_shared(corrections + change.row * 16 + i * 4, (u32)(change.by * d) << raised);
        }
      }
      syncwarp();
      if (lane % 4 < 2) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) sum[j] += (i32)lds32(corrections + (lane / 4 + j / 2 * 8) * 16 + lane % 4 * 8 + j % 2 * 4);
      }
      return ballot(bad) == 0;
    }

    // Lanes 0 and 1 of each four have the chunk's sums of one row each.
    static DEVICE_MEMBER u32 row_of(u32 lane) { return lane / 4 + lane % 2 * 8; }
    DEVICE_MEMBER u32 sums_at(const Chunk& c) const { return batch.sums + (c.index - first) * TILE_ROWS * 4; }
    DEVICE_MEMBER u32 place(const Chunk& c, u32 lane) const { return sums_at(c) + row_of(lane) * 4; }
    DEVICE_MEMBER void put(const Chunk& c, u32 lane, float v) const {
      if (lane % 4 < 2) sts32(place(c, lane), f32_bits(v));
    }

    // The value of the lane's row from its sums, given the sums of all columns for the lane's two digits in `sums`.
    DEVICE_MEMBER float level(u32 lane, Power back, const i32 (&sums)[2]) const {
      // Lanes 0 of each four have digits 0 and 1, lanes 1 have digits 2 and 3.
      const float next = lane % 2 ? 256 : 128;
      const i32 halves[2] = {sums[0] * (1 << raised), sums[1] * (1 << raised)};
      const float a = fma_rn(f32_of_i32(2 * sum[1] + halves[1]), next, f32_of_i32(2 * sum[0] + halves[0]));
      const float b = fma_rn(f32_of_i32(2 * sum[3] + halves[1]), next, f32_of_i32(2 * sum[2] + halves[0]));
      const float c0 = bits_f32(shfl(f32_bits(a), lane ^ 1)), c1 = bits_f32(shfl(f32_bits(b), lane ^ 1));
      const float all = lane % 2 ? fma_rn(b, 32768, c1) : fma_rn(c0, 32768, a);
      return back.scale(mul_rn(all, bits_f32((127 - raised) << 23)));
    }
  };

  enum : bool { WAITS = false, OPERANDS = false, PREPARES = !EARLY, CHECKS = false, COPIES = true, CORRECTS = true, BESIDE = EARLY, RAISED = !EARLY };

  State& state;
  const Tiles& t;
  const Chunk& c;
  u32 lane;

  DEVICE_MEMBER MultiplyOne(State& state, const Tiles& t, const Chunk& c, u32 lane) : state(state), t(t), c(c), lane(lane) {
    if (!EARLY) state.begin(t, c, lane);
  }
  DEVICE_MEMBER bool takes_interior() const { return !several(t); }
  DEVICE_MEMBER void begin_interior(u32 raised) { state.raised = raised; }
  DEVICE_MEMBER void interior(Block& b) { take(b); }
  DEVICE_MEMBER void any(const Block& b) {
    take(b);
    if (several(t) && !EARLY) state.rescale(t, c, lane, state.back(c));
  }

 private:
  DEVICE_MEMBER void take(const Block& b) {
    if constexpr (EARLY) {
      const u32 to = state.staging + state.staged * 1024;
      // In the order of tensor cores: of a row's words the first two become the operand's upper rows, the others its
      // lower ones.
      sts128(to, {b.q[0], b.q[2], b.q[1], b.q[3]});
      sts128(to + 512, {b.q[4], b.q[6], b.q[5], b.q[7]});
      state.staged++;
    } else {
      state.product(b.q);
    }
  }
};
