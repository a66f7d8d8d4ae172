// Levels of weights with error feedback, some columns at a time: rounding, and the paths of a trellis. The loops over
// columns are unrolled, since what later columns are given stays in registers. Launches begin when the work before them
// has ended.
#include "abi.h"
#include "simt.h"

#define LARGEST_MAGNITUDE 127.0f
#define STATES 4
// The least and the largest symbol of a path.
#define LEAST_SYMBOL -126
#define MOST_SYMBOL 125

DEVICE float number(u64 array, u64 i) { return bits_f32(ldg32((const float*)array + i)); }
DEVICE void put_number(u64 array, u64 i, float v) { stg32((float*)array + i, f32_bits(v)); }
DEVICE float of_lane(float v, u32 lane) { return bits_f32(shfl(f32_bits(v), lane)); }

// The magnitude of least error and cost for a target of that size: the nearest one, or one of the next two below it.
DEVICE float magnitude(const RoundBatch& batch, float size) {
  const float floor = floor_f32(size);
  const float nearest = floor < LARGEST_MAGNITUDE ? floor : LARGEST_MAGNITUDE;
  if (!batch.prices) return nearest;
  const float off = add_rn(add_rn(size, -nearest), -0.5f);
  const u32 place = (u32)nearest + 2;
  float best = fma_rn(off, off, number(batch.prices, place)), chosen = nearest;
#pragma unroll
  for (u32 down = 1; down <= 2; down++) {
    const float far = add_rn(off, (float)down), cost = fma_rn(far, far, number(batch.prices, place - down));
    if (cost < best) {
      best = cost;
      chosen = add_rn(nearest, -(float)down);
    }
  }
  return chosen;
}

KERNEL(wcodec_round_columns, QUANTIZE_THREADS, 1, RoundBatch) {
  const u64 rows = params.rows, row = (u64)block_index() * block_threads() + thread_index();
  if (row >= rows) return;
  float carry[QUANTIZE_COLUMNS];
#pragma unroll
  for (u32 k = 0; k < QUANTIZE_COLUMNS; k++) carry[k] = k < params.columns ? number(params.carry, k * rows + row) : 0;
#pragma unroll
  for (u32 j = 0; j < QUANTIZE_COLUMNS; j++) {
    if (j >= params.columns) break;
    const float x = number(params.x, j * rows + row), target = add_rn(x, carry[j]);
    const float m = magnitude(params, bits_f32(f32_bits(target) & 0x7FFFFFFFu));
    const float q = target < 0 ? add_rn(-1.0f, -m) : m, error = add_rn(x, -add_rn(q, 0.5f));
    stg8((u8*)params.levels + j * rows + row, (u32)(i32)q);
    put_number(params.errors, j * rows + row, error);
#pragma unroll
    for (u32 k = j + 1; k < QUANTIZE_COLUMNS; k++)
      if (k < params.columns) carry[k] = fma_rn(number(params.feed, (u64)j * params.stride + k), error, carry[k]);
  }
}

// A branch into a state: the cost of the path through it, and its symbol.
struct Branch {
  float cost;
  float symbol;
};

// The better of the two symbols around a target. Those of a branch are four apart; the first is `kind`.
DEVICE Branch branch(const TrellisBatch& batch, float target, float weight, u32 kind) {
  const float first = (float)kind;
  // Both symbols have to be in range: quotients rounded up and down, the upper one less 1.
  const float least = kind < 2 ? -31.0f : -32.0f, most = kind < 2 ? 30.0f : 29.0f;
  static_assert(LEAST_SYMBOL == -126 && MOST_SYMBOL == 125, "the quotients are of these");
  float off = add_rn(target, -(first + 0.5f));
  float k = floor_f32(mul_rn(off, 0.25f));
  k = k > least ? k : least;
  k = k < most ? k : most;
  off = fma_rn(k, -4.0f, off);
  const float symbol = fma_rn(k, 4.0f, first);
  const u32 place = (u32)((i32)symbol + 128);
  const float below = fma_rn(mul_rn(off, weight), off, number(batch.prices, place));
  off = add_rn(off, -4.0f);
  const float above = fma_rn(mul_rn(off, weight), off, number(batch.prices, place + 4));
  return above < below ? Branch{above, add_rn(symbol, 4.0f)} : Branch{below, symbol};
}

// Four threads a row, one for each state: state p + 2 m comes from states 2 p and 2 p + 1.
KERNEL(wcodec_trellis_columns, QUANTIZE_THREADS, 1, TrellisBatch) {
  const u64 rows = params.rows, place = ((u64)block_index() * block_threads() + thread_index()) / STATES;
  // All threads exchange numbers, those beyond the last row as well.
  const bool is_row = place < rows;
  const u64 row = is_row ? place : rows - 1;
  const u32 lane = thread_index() % LANES, state = lane % STATES, first_lane = lane - state;
  const u32 from = state % 2 * 2, low_bit = state / 2;
  float added[QUANTIZE_COLUMNS];
#pragma unroll
  for (u32 k = 0; k < QUANTIZE_COLUMNS; k++)
    added[k] = k < params.columns ? number(params.added, ((u64)k * STATES + state) * rows + row) : 0;
  float cost = number(params.costs, state * rows + row);
  // By column: which of both states a path comes from, and its symbol.
  u32 seconds = 0, symbols[QUANTIZE_COLUMNS / 4] = {};
#pragma unroll
  for (u32 j = 0; j < QUANTIZE_COLUMNS; j++) {
    if (j >= params.columns) break;
    const float x = number(params.x, j * rows + row), weight = number(params.weights, j);
    const float target = add_rn(x, added[j]);
    Branch branches[2];
#pragma unroll
    for (u32 b = 0; b < 2; b++) {
      branches[b] = branch(params, of_lane(target, first_lane + from + b), weight, state % 2 + 2 * (low_bit ^ b));
      branches[b].cost = add_rn(branches[b].cost, of_lane(cost, first_lane + from + b));
    }
    const u32 second = branches[1].cost < branches[0].cost;
    const float symbol = second ? branches[1].symbol : branches[0].symbol;
    cost = second ? branches[1].cost : branches[0].cost;
    seconds |= second << j;
    symbols[j / 4] |= ((u32)(i32)symbol & 0xFF) << (j % 4 * 8);
    const float error = add_rn(add_rn(x, -0.5f), -symbol);
#pragma unroll
    for (u32 k = j + 1; k < QUANTIZE_COLUMNS; k++) {
      if (k >= params.columns) break;
      const float before = of_lane(added[k], first_lane + from + second);
      added[k] = params.feed ? fma_rn(number(params.feed, (u64)j * params.stride + k), error, before) : before;
    }
  }
  // The path of each survivor, from its end.
  u32 at = state;
#pragma unroll
  for (u32 back = 1; back <= QUANTIZE_COLUMNS; back++) {
    const u32 j = QUANTIZE_COLUMNS - back;
    if (j >= params.columns) continue;
    const u32 word = shfl(symbols[j / 4], first_lane + at), choices = shfl(seconds, first_lane + at);
    if (is_row) stg8((u8*)params.symbols + ((u64)j * STATES + state) * rows + row, word >> (j % 4 * 8) & 0xFF);
    at = at % 2 * 2 + (choices >> j & 1);
  }
  if (!is_row) return;
  u8* origin = (u8*)params.origin + (state * rows + row) * 8;
  stg32(origin, at);
  stg32(origin + 4, 0);
  put_number(params.sums, state * rows + row, cost);
}
