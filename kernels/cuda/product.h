// Products of matrices with a few vectors, from the compressed weights: y = W x. One vector is multiplied in integers (single.h).
//
// For several, tensor cores multiply integers with halves: of a symbol q its level q + 1/2, which f16 and bf16 hold exactly, with an element of a vector
// as it is. Sums are f32. Where levels are the symbols themselves, half of the vector's elements are taken away again by products with -1/2.
//
// A block of threads takes whole strips of one matrix. Its warps decode their chunks in turns, and leave what each chunk adds to the results
// in shared memory; when all are done, these sums are added up in the order of the columns, multiplied by the rows' scales, and written. So
// the order of all sums is that of the file, whatever is launched. A chunk that is damaged makes its rows NaN.
//
// If columns have factors, each element of a vector is multiplied by its column's where it is read, and rounded as elements are: results are those of
// the matrix without factors and of such vectors, in every kernel.
//
// The epilogue of a launch, as in a block of a model, is in product_epilogue.h.
//
// Weights do not depend on the launch before this one: where few are decoded, they are before the vectors are waited for.
#pragma once
#include "product_epilogue.h"
#include "emit.h"
#include "quad.h"
#include "single.h"
#include "tile.h"
#include "mainloop.h"

// Bytes of a line of constant memory.
#define PARAMS_LINE 64u

// N: vectors at most, 8 or 16. EARLY: decodes all of a chunk before it multiplies, and the first one before the vectors are there; it takes
// more registers. QUADS: of layout `quad`, which is decoded so fast that loads of vectors are waited for.
template <u32 N, bool BF16, bool EARLY, bool QUADS>
struct Multiply {
  // AT_ONCE: blocks whose vectors are loaded together.
  enum : u32 { SETS = N / 8, AT_ONCE = QUADS ? 4 : 1 };
  // ASKS: a block's vectors are prefetched while it is decoded. With 16 vectors that takes longer.
  enum : bool { ASKS = QUADS && !EARLY && N <= 8 };

  struct State {
    const ProductBatch& batch;
    u32 first;    // the block's first chunk
    u32 staging;  // the lane's space for the blocks of a chunk
    u32 minus;    // as in `ProductItem`
    u32 staged;   // blocks that lie there
    u32 col;      // the lane's first one in the block to be multiplied next
    u32 at[SETS];  // bytes from the first vector to the lane's
    bool waited;  // for the vectors
    float sum[SETS][4];

    static DEVICE_MEMBER State make(const ProductBatch& batch, const ProductItem& item, u32 first, u32 warp, u32 lane) {
      State state = {batch, first, batch.staging + warp * batch.staged * 2048 + lane * 16, item.minus, 0, 0, {}, false, {}};
#pragma unroll
      for (u32 s = 0; s < SETS; s++) {
        // Lanes that have no vector read the last one's, and what they get is not looked at.
        const u32 vector = s * 8 + lane / 4;
        state.at[s] = (item.vector + (vector < batch.vectors ? vector : batch.vectors - 1)) * batch.x_stride * 2;
      }
      return state;
    }

    DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
      if constexpr (EARLY) multiply_staged(t, c, lane);
      else wait();
      if (!several(t)) each([&](u32 i, u32 j, u32 v, u32 r) { sts32(place(c, v, r), f32_bits(sum[i][j])); }, lane);
    }
    DEVICE_MEMBER void lost(const Tiles& t, const Chunk& c, u32 lane) const {
      each([&](u32, u32, u32 v, u32 r) { sts32(place(c, v, r), 0x7FFFFFFFu); }, lane);
    }

    DEVICE_MEMBER void finish() { wait(); }

    // Brings what the block will be multiplied with into L1; vectors if they have been waited for.
    DEVICE_MEMBER void ask(const Tiles& t) const {
      if (t.output.columns) prefetch_l1(factors_at(t, 0));
      if (!waited) return;
#pragma unroll
      for (u32 s = 0; s < SETS; s++) prefetch_l1((const u8*)batch.x + at[s] + col * 2);
    }

    // For the vectors, once.
    DEVICE_MEMBER void wait() {
      if (!waited) overlap_wait();
      waited = true;
    }

    // Puts a block's operands where they wait for the end of their chunk.
    DEVICE_MEMBER void stage(const u32 (&w)[16]) {
#pragma unroll
      for (u32 j = 0; j < 4; j++) sts128(staging + staged * 2048 + j * 512, {w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]});
      staged++;
    }

    // All blocks of the chunk. Where whole fours lie inside the matrix, their loads are on their way together, and those of factors, which do not
    // depend on the launch before this one, begin before it is waited for.
    DEVICE_MEMBER void multiply_staged(const Tiles& t, const Chunk& c, u32 lane) {
      u32 k = 0;
      if constexpr (AT_ONCE > 1) {
        const bool inside = batch.vector && !several(t) && (c.tile * t.blocks + staged) * BLOCK_COLS <= t.cols;
        if (inside && staged % AT_ONCE == 0) {
#pragma unroll 1
          for (; k < staged; k += AT_ONCE) {
            u32 x[AT_ONCE][SETS][8], factors[AT_ONCE][8];
            if (t.output.columns) {
#pragma unroll
              for (u32 i = 0; i < AT_ONCE; i++) load_factors(t, i * BLOCK_COLS, factors[i]);
            }
            wait();
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) load_vectors<false>(t, i * BLOCK_COLS, x[i]);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
              if (t.output.columns) times_all(x[i], factors[i]);
              multiply_block(k + i, x[i]);
            }
            col += AT_ONCE * BLOCK_COLS;
          }
        }
      }
      wait();
#pragma unroll 1
      for (; k < staged; k++) {
        u32 x[SETS][8];
        load<true>(t, x);
        multiply_block(k, x);
        done<true>(t, c, lane);
      }
    }
    // A block that was put there.
    DEVICE_MEMBER void multiply_block(u32 k, const u32 (&x)[SETS][8]) {
      u32 w[16];
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        const Vec4 v = lds128(staging + k * 2048 + j * 512);
        w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
      }
      multiply_all(w, x);
    }

    // A block's operands with the vectors. EDGE: as in `load` and `done`.
    template <bool EDGE>
    DEVICE_MEMBER void product(const Tiles& t, const Chunk& c, u32 lane, const u32 (&w)[16]) {
      u32 x[SETS][8];
      load<EDGE>(t, x);
      multiply_all(w, x);
      done<EDGE>(t, c, lane);
    }
    DEVICE_MEMBER void multiply_all(const u32 (&w)[16], const u32 (&x)[SETS][8]) {
#pragma unroll
      for (u32 j = 0; j < 4; j++) multiply({w[2 * j], w[8 + 2 * j], w[2 * j + 1], w[9 + 2 * j]}, x, j);
    }

    // The lane's elements of the vectors in the block's columns, times the columns' factors. EDGE: zeros beyond the matrix's edge, and vectors and
    // factors anywhere.
    template <bool EDGE>
    DEVICE_MEMBER void load(const Tiles& t, u32 (&x)[SETS][8]) const {
      const bool vector = !EDGE || (batch.vector && col + 16 <= t.cols);
      load_vectors<EDGE>(t, 0, x);
      if (t.output.columns == 0) return;
      if (vector) {
        // Loaded one after the other: all at once they would take registers of the decoder.
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
          const Vec4 f = load128(factors_at(t, 0) + 16 * h);
          const u32 factors[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
          for (u32 k = 0; k < 4; k++) times_factors(x, 4 * h + k, factors[k]);
        }
      } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) times_factors(x, i, edge_word(t, factors_at(t, 0), i));
      }
    }
    // The lane's elements so many columns further on.
    template <bool EDGE>
    DEVICE_MEMBER void load_vectors(const Tiles& t, u32 more, u32 (&x)[SETS][8]) const {
#pragma unroll
      for (u32 s = 0; s < SETS; s++) {
        const u8* const from = (const u8*)batch.x + at[s] + (col + more) * 2;
        if (!EDGE || (batch.vector && col + 16 <= t.cols)) {
          const Vec4 a = load128(from), b = load128(from + 16);
          x[s][0] = a.x, x[s][1] = a.y, x[s][2] = a.z, x[s][3] = a.w;
          x[s][4] = b.x, x[s][5] = b.y, x[s][6] = b.z, x[s][7] = b.w;
        } else {
          edge(t, from, x[s]);
        }
      }
    }
    // The factors of these columns.
    DEVICE_MEMBER const u8* factors_at(const Tiles& t, u32 more) const { return (const u8*)t.output.columns + (u64)(col + more) * 2; }
    DEVICE_MEMBER void load_factors(const Tiles& t, u32 more, u32 (&factors)[8]) const {
      const Vec4 a = ldg128(factors_at(t, more)), b = ldg128(factors_at(t, more) + 16);
      factors[0] = a.x, factors[1] = a.y, factors[2] = a.z, factors[3] = a.w;
      factors[4] = b.x, factors[5] = b.y, factors[6] = b.z, factors[7] = b.w;
    }
    static DEVICE_MEMBER void times_all(u32 (&x)[SETS][8], const u32 (&factors)[8]) {
#pragma unroll
      for (u32 i = 0; i < 8; i++) times_factors(x, i, factors[i]);
    }

    // Columns 4 j to 4 j + 3 of each lane.
    DEVICE_MEMBER void multiply(const u32 (&a)[4], const u32 (&x)[SETS][8], u32 j) {
#pragma unroll
      for (u32 s = 0; s < SETS; s++) {
        const u32 b[2] = {x[s][2 * j], x[s][2 * j + 1]};
        Half<BF16>::mma(sum[s], a, b);
        if (minus) Half<BF16>::mma(sum[s], {minus, minus, minus, minus}, b);
      }
    }

    // After a block. EDGE: rows may have several scales.
    template <bool EDGE>
    DEVICE_MEMBER void done(const Tiles& t, const Chunk& c, u32 lane) {
      if (EDGE && several(t)) rescale(t, c, lane);
      col += BLOCK_COLS;
    }

   private:
    // The place of the chunk's sum of vector v and row r.
    DEVICE_MEMBER u32 place(const Chunk& c, u32 v, u32 r) const {
      return batch.sums + (((c.index - first) * batch.vectors + v) * TILE_ROWS + r) * 4;
    }

    // `what(s, j, v, r)` for what the lane holds of each vector v and row r.
    template <class What>
    DEVICE_MEMBER void each(What what, u32 lane) const {
#pragma unroll
      for (u32 s = 0; s < SETS; s++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          const u32 v = s * 8 + lane % 4 * 2 + j % 2;
          if (v < batch.vectors) what(s, j, v, lane / 4 + j / 2 * 8);
        }
      }
    }

    DEVICE_MEMBER void rescale(const Tiles& t, const Chunk& c, u32 lane) {
      const u32 matrix = divide(c.strip, t.by_strips), row = (c.strip - matrix * t.strips) * TILE_ROWS;
      const u32 begin = col - lane % 4 * 16;
      const bool begins = begin == c.tile * t.blocks * BLOCK_COLS;
      const auto add = [&](u32 s, u32 j, u32 v, u32 r) {
        const bool inside = row + r < t.rows && begin < t.cols;
        const float scale = inside ? scale_at<SCALES_ANY>(t.output, (u64)matrix * t.rows + row + r, begin) : 0;
        const u32 to = place(c, v, r);
        const float before = begins ? 0 : bits_f32(lds32(to));
        sts32(to, f32_bits(add_rn(before, mul_rn(sum[s][j], scale))));
        sum[s][j] = 0;
      };
      each(add, lane);
    }

    DEVICE_MEMBER void edge(const Tiles& t, const u8* from, u32 (&x)[8]) const {
#pragma unroll
      for (u32 i = 0; i < 8; i++) x[i] = edge_word(t, from, i);
    }
    // Word i of the lane's columns, the first of which is at `from`.
    DEVICE_MEMBER u32 edge_word(const Tiles& t, const u8* from, u32 i) const {
      const u32 lower = col + 2 * i < t.cols ? load16(from + 4 * i) : 0;
      return lower | (col + 2 * i + 1 < t.cols ? load16(from + 4 * i + 2) : 0) << 16;
    }

    // Word i of all vectors, times factors.
    static DEVICE_MEMBER void times_factors(u32 (&x)[SETS][8], u32 i, u32 factors) {
#pragma unroll
      for (u32 s = 0; s < SETS; s++) x[s][i] = Half<BF16>::times_factors(x[s][i], factors);
    }
  };

  enum : bool { WAITS = false, OPERANDS = true, PREPARES = false, CHECKS = false, COPIES = false, CORRECTS = false, BESIDE = false, RAISED = false };

  State& state;
  const Tiles& t;
  const Chunk& c;
  u32 lane;
  u32 w[EARLY ? 16 : 8];
  u32 x[SETS][8];

  DEVICE_MEMBER Multiply(State& state, const Tiles& t, const Chunk& c, u32 lane) : state(state), t(t), c(c), lane(lane) {
    state.col = c.tile * t.blocks * BLOCK_COLS + lane % 4 * 16;
    state.staged = 0;
#pragma unroll
    for (u32 s = 0; s < SETS; s++) {
#pragma unroll
      for (u32 j = 0; j < 4; j++) state.sum[s][j] = 0;
    }
  }
  DEVICE_MEMBER bool takes_interior() const { return state.batch.vector && !several(t); }
  DEVICE_MEMBER void begin_interior(u32) {}

  DEVICE_MEMBER void interior(Block& b) {
#pragma unroll
    for (u32 k = 0; k < 8; k++) operands(k, split_merged(b.q[k]));
    next();
  }

  // Beyond the matrix's edge vectors are 0, and rows are not looked at.
  DEVICE_MEMBER void any(const Block& b) {
    u32 all[16];
#pragma unroll
    for (u32 k = 0; k < 8; k++) pairs(split_merged(b.q[k]), all + 2 * k);
    if constexpr (EARLY) {
      state.stage(all);
    } else {
      state.wait();
      state.template product<true>(t, c, lane, all);
    }
  }

  // Words of the first row wait for those of the second.
  DEVICE_MEMBER void operands(u32 k, Signed s) {
    if (ASKS && k == 0) state.ask(t);
    if (EARLY || k < 4) {
      pairs(s, w + 2 * k);
    } else {
      if (k == 4) {
        state.wait();
        state.template load<false>(t, x);
      }
      u32 other[2];
      pairs(s, other);
      const u32 j = k - 4;
      state.multiply({w[2 * j], other[0], w[2 * j + 1], other[1]}, x, j);
    }
  }

  DEVICE_MEMBER void next() {
    if constexpr (EARLY) state.stage(w);
    else state.template done<false>(t, c, lane);
  }

 private:
  static DEVICE_MEMBER void pairs(Signed s, u32* w) {
    w[0] = pair(prmt(s.v, Half<BF16>::ONES, 0x4140), s.first);
    w[1] = pair(prmt(s.v, Half<BF16>::ONES, 0x4342), s.second);
  }
  static DEVICE_MEMBER u32 pair(u32 more, u32 signs) { return Half<BF16>::add(more, Half<BF16>::LESS) ^ (signs & 0x80008000u); }
};

// The chunk epilogue that multiplies with N vectors at most.
template <u32 N, bool BF16, bool EARLY, bool QUADS>
struct Multiplier {
  typedef Multiply<N, BF16, EARLY, QUADS> Type;
};
template <bool BF16, bool EARLY, bool QUADS>
struct Multiplier<1, BF16, EARLY, QUADS> {
  typedef MultiplyOne<BF16, EARLY> Type;
};

// The steps of this launch's epilogue (product_epilogue.h).
#define EPILOGUE_NORM 1u
#define EPILOGUE_RESIDUAL 2u
#define EPILOGUE_SCALED 4u
#define EPILOGUE_PART 8u

// One of a block's results: number `at` of them, rows of a strip before vectors before strips.
template <bool BF16>
struct Result {
  typedef Half<BF16> H;
  // As they lie in memory: who has only asked for them does not wait.
  u32 scale, bias, gain, residual;
  u32 place;  // among all results, elements; ~0 for a row beyond the matrix's edge
  // Set by `settle`.
  u32 from, tiles;  // address of the first chunk's sum, and the number of chunks
  float by;         // the row's scale
  u64 to;           // address of the result
  u32 epilogue;     // EPILOGUE_*

  DEVICE_MEMBER Result() : scale(0), bias(0), gain(0), residual(0), place(~0u) {}
  DEVICE_MEMBER Result(const ProductItem& item, u32 begin_strip, u32 at, u32 each, const ProductBatch& batch) : Result() {
    const Tiles& t = item.tiles;
    const u32 strip = begin_strip + at / each, matrix = divide(strip, t.by_strips);
    const u32 in_matrix = (strip - matrix * t.strips) * TILE_ROWS + at % TILE_ROWS;
    if (in_matrix >= t.rows) return;
    const u64 row = (u64)matrix * t.rows + in_matrix;
    // All rows may have one.
    const u64 number = row * t.output.scales_per_row;
    if (!several(t)) scale = t.output.scale_bytes == 2 ? ldg16((const u8*)t.output.scales + number * 2) : ldg32((const u8*)t.output.scales + number * 4);
    place = item.before * batch.vectors + at % each / TILE_ROWS * item.stride + item.place + (u32)row - t.output.row_begin;
  }
  DEVICE_MEMBER bool exists() const { return place != ~0u; }

  // Finds all that does not depend on other launches.
  DEVICE_MEMBER void settle(const ProductBatch& batch, const ProductItem& item, u32 at, u32 each) {
    const Tiles& t = item.tiles;
    from = batch.sums + (at / each * t.tiles * each + at % each) * 4;
    tiles = t.tiles;
    by = several(t) ? 1 : bits_f32(t.output.scale_bytes == 2 ? scale << 16 : scale);
    to = batch.y + (u64)place * 2;
    epilogue = (batch.squared ? EPILOGUE_NORM : 0) | (batch.residual ? EPILOGUE_RESIDUAL : 0) | (batch.scaled ? EPILOGUE_SCALED : 0) |
               (item.part != PART_RESULT ? EPILOGUE_PART : 0);
  }
  // Leaves that in shared memory, where it takes no register meanwhile, and finds it again.
  DEVICE_MEMBER void leave(u32 known) const {
    sts128(known, {from, tiles << 4 | epilogue, f32_bits(by), place});
    sts64(known + 16, {(u32)to, (u32)(to >> 32)});
  }
  static DEVICE_MEMBER Result left(u32 known) {
    const Vec4 a = lds128(known);
    const Vec2 b = lds64(known + 16);
    Result r;
    r.from = a.x, r.tiles = a.y >> 4, r.epilogue = a.y & 15, r.by = bits_f32(a.z), r.place = a.w;
    r.to = (u64)b.y << 32 | b.x;
    return r;
  }

  // Asks for what other launches may have written: bias and gain, too, are tensors of a model, which an optimizer may have changed. `vector` is
  // whose result it is.
  DEVICE_MEMBER void ask(const ProductBatch& batch, const ProductItem& item, u32 vector) {
    if (!exists()) return;
    const u32 in_vector = place - item.before * batch.vectors - vector * item.stride;
    if (epilogue & EPILOGUE_RESIDUAL) residual = load16((const u8*)batch.residual + (u64)place * 2);
    if (epilogue & EPILOGUE_SCALED) gain = load16((const u8*)batch.gain + (u64)in_vector * 2);
    if (item.bias) bias = load16((const u8*)item.bias + (u64)(in_vector - item.place) * 2);
  }

  // The sum of what all chunks of the strip have left, in the order of the columns.
  DEVICE_MEMBER float sum(const ProductBatch& batch, const Tiles& t, u32 at, u32 each) const {
    float sum = 0;
#pragma unroll 8
    for (u32 k = 0; k < tiles; k++) sum = add_rn(sum, bits_f32(lds32(from + k * each * 4)));
    const float all = epilogue & EPILOGUE_NORM ? mul_rn(by, norm_factor(batch, t.cols, at % each / TILE_ROWS)) : by;
    return add_rn(mul_rn(sum, all), H::to_f32(bias));
  }
  DEVICE_MEMBER void write(const ProductBatch& batch, float v) const {
    if (epilogue & EPILOGUE_RESIDUAL) v = fma_rn(v, bits_f32(batch.residual_scale), H::to_f32(residual));
    const u32 y = H::of(v);
    stg16((u8*)to, y);
    if (epilogue & EPILOGUE_SCALED) {
      const float by = fma_rn(H::to_f32(gain), bits_f32(batch.gain_scale), bits_f32(batch.gain_offset));
      stg16((u8*)batch.scaled + (u64)place * 2, H::of(mul_rn(H::to_f32(y), by)));
    }
  }
};

// Parameters come from memory in lines, and those of a launch are new to the multiprocessor: warps ask for a line each, so that they wait once and not
// line after line.
DEVICE void prefetch_params(const ProductBatch& batch) {
  const u32 line = thread_index() / LANES, lines = sizeof(ProductBatch) / PARAMS_LINE;
  keep(((const u32*)&batch)[(line < lines ? line : lines - 1) * (PARAMS_LINE / 4)]);
}

// All of the launch.
template <class Tile, u32 N, bool BF16, bool EARLY>
DEVICE void multiply_all(const ProductBatch& batch) {
  // Results are written, and vectors are read, behind `overlap_wait` only: the next launch may begin, and decode.
  overlap_start();
  prefetch_params(batch);
  // A chunk for each warp.
  constexpr bool ONE = N == 1 && EARLY;
  u32 i = 0;
  while (i + 1 < batch.count && batch.items[i].tiles.block_end <= block_index()) i++;
  const ProductItem& item = batch.items[i];
  const Tiles& t = item.tiles;
  const u32 strips = divide(t.chunk_end - t.chunk_begin, t.by_tiles), block = block_index() - t.block_begin;
  // Blocks of threads that come first have one more, if it does not come out even.
  const u32 more = strips - item.strips * (t.block_end - t.block_begin);
  const u32 begin = block * item.strips + (block < more ? block : more), end = begin + item.strips + (block < more);
  const u32 first = t.chunk_begin + begin * t.tiles, last = t.chunk_begin + end * t.tiles;
  const u32 warp = thread_index() / LANES, threads = block_threads();
  const bool enough = !ONE || last - first <= threads / LANES;
  if (!table_fits() || !enough) {
    // The host does not launch so, or on such devices. What nobody multiplies must not pass for good.
    atomic_min((u32*)t.status, t.chunk_begin);
    return;
  }
  typedef typename Multiplier<N, BF16, EARLY, Tile::SMALL>::Type Epilogue;
  const bool spread = Epilogue::COPIES && Tile::COPIES && batch.copies != 0;
  // Everything else waits for the first chunk: it is requested first.
  const u32 held = first + warp < last ? load_arrival(t, first + warp, thread_index() % LANES) : 0;
  SpreadTable table;
  if (ONE && spread) table.begin(t, batch.copies);
  Warp w = make_warp<ONE>(batch);
  if (warp == 0 && !spread) warp_copy(TABLE_AT, (const u8*)t.table, 4u << t.bits, batch.barriers, w.lane);
  if constexpr (N == 1) prefetch_vector(vector_of(batch, item), t);
  prefetch_factors(t, thread_index());
  const u32 each = N == 1 ? TILE_ROWS : batch.vectors * TILE_ROWS, results = (end - begin) * each;
  const u32 begin_strip = divide(first, t.by_tiles);
  const auto asked = [&](u32 at) {
    Result<BF16> result(item, begin_strip, at, each, batch);
    result.settle(batch, item, at, each);
    result.ask(batch, item, at % each / TILE_ROWS);
    return result;
  };
  typename Epilogue::State state = Epilogue::State::make(batch, item, first, warp, w.lane);
  const bool has_result = thread_index() < results;
  Result<BF16> result;
  Squares<BF16> squares;
  u32 table_parity = 0;
  if constexpr (ONE) {
    OnlyChunk<Tile, Epilogue> only(state, t, w, first + warp, first + warp < last, held);
    // While that is on its way.
    if (has_result) result = Result<BF16>(item, begin_strip, thread_index(), each, batch);
    if (only.exists) state.leave(t, only.place, w.lane);
    if (spread) {
      table.finish(t, batch.copies);
      syncthreads();
    } else {
      wait_for_table(batch, table_parity, only.exists);
    }
    // Not before: the other warps need not wait for it.
    const u32 known = batch.known + (threads / LANES + thread_index()) * KNOWN_BYTES;
    if (has_result) {
      result.settle(batch, item, thread_index(), each);
      result.leave(known);
    }
    only.decode(state, t, w);
    const auto ask = [&] {
      if (has_result) {
        result = Result<BF16>::left(known);
        result.ask(batch, item, 0);
      }
      squares.begin(batch, t.cols, w.lane);
    };
    state.finish(t, w.lane, ask);
  } else {
    // Requests the data that the thread needs after its last chunk.
    if (has_result) result = Result<BF16>(item, begin_strip, thread_index(), each, batch);
    bool unused = true;
    mainloop_of_plane<Tile, Epilogue>(state, batch, t, w, first + warp, threads / LANES, last, held, spread ? TABLE_SPREAD : TABLE_COPIED, table_parity, unused);
    state.finish();
    if (has_result) {
      result.settle(batch, item, thread_index(), each);
      result.ask(batch, item, thread_index() % each / TILE_ROWS);
    }
    squares.begin(batch, t.cols, w.lane);
  }
  if (batch.squared) squares.finish(batch, t.cols, w.lane);
  syncthreads();
#pragma unroll 1
  for (u32 at = thread_index(); at < results; at += threads) {
    if (at != thread_index()) result = asked(at);
    if (!result.exists()) continue;
    const float v = result.sum(batch, t, at, each);
    if (result.epilogue & EPILOGUE_PART) stg32(Stash(batch, item).results + result.place, f32_bits(v));
    else result.write(batch, activated(batch.activation, v));
  }
  if (item.part == PART_RESULT) return;
  const Stash stash(batch, item);
  const u32 first_strip = (item.place + begin_strip * TILE_ROWS - t.output.row_begin) / TILE_ROWS;
  stash.arrive(batch, first_strip, end - begin);
#pragma unroll 1
  for (u32 at = thread_index(); at < results; at += threads) {
    if (!lds32(batch.arrived + at / each * 4)) continue;
    result = asked(at);
    if (!result.exists()) continue;
    const float mine = bits_f32(load32(stash.results + result.place)), other = bits_f32(load32(stash.counterpart + result.place));
    const bool gate = item.part == PART_GATE;
    // The activation of the gate projection, times the up projection.
    result.write(batch, mul_rn(activated(batch.activation, gate ? mine : other), gate ? other : mine));
  }
}
