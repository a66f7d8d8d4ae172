// The primitives of async.h for the CPU. Phases of barriers order what warps do, for the detection of races; matrix
// products that a GPU begins are done at once; blocks of a cluster run side by side (simt_engine.h).
#pragma once
#include "simt_host.h"

namespace simt {

// A barrier whose phases end when `count` warps have arrived.
inline void init_signal(u32 place, u32 count, At at) {
  init_barrier(place, at);
  if (count == 0 || count > MAX_THREADS / LANES) fail(at, "a barrier at which %u warps arrive", count);
  grid->barriers[grid->barrier_count - 1].count = count;
}

inline Barrier& find_signal(Grid* g, u32 place, At at) {
  Barrier& b = find_barrier(g, place, at);
  if (!b.count) fail(at, "the barrier at %u is one of copies", place);
  return b;
}

inline void arrive_at(u32 place, At at) {
  Grid* const g = grid;
  Barrier& b = find_signal(g, place, at);
  const Lane* const me = g->now;
  // The barrier learns of all that the warp has done up to its last meeting, and of all that it has seen.
  for (u32 w = 0; w < g->warp_count; w++) {
    const u32 seen = w == me->warp_index ? me->warp->since : me->warp->seen[w];
    if (b.seen[w] < seen) b.seen[w] = seen;
  }
  g->rests = 0;
  if (++b.arrived < b.count) return;
  b.arrived = 0;
  b.done++;
  wake_waiting(g, b.place);
}

inline bool has_passed(u32 place, u32 parity, At at) {
  Grid* const g = grid;
  const Barrier& b = find_signal(g, place, at);
  if (parity > 1) fail(at, "parity %u", parity);
  if ((b.done & 1) == parity) return false;
  learn(g, g->now, b);
  return true;
}

inline void wait_signal(u32 place, u32 parity, At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  while (!has_passed(place, parity, at)) {
    me->waits = g->barrier_numbers[own_place(place, at) / 8];
    me->at = at;
    suspend(g, me);
  }
}

// Lets a lane of another warp run.
inline void let_others_run(At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  const u32 others = g->runnable & ~(1u << me->warp_index);
  if (++g->rests > 1u << 20) fail(at, "rests for ever: nobody arrives where it waits for");
  if (!others) return;
  wake(g, *me);
  Warp& warp = g->warps[first_from(others, g->launch->seed ? random_bits(g) : me->warp_index + 1)];
  const u32 next = first_from(warp.ready, 0);
  warp.ready &= ~(1u << next);
  g->now = &g->lanes[(&warp - g->warps) * LANES + next];
  simt_switch(&me->sp, g->now->sp);
}

// A warp's lanes arrive together. `orders`: all that they have done before is visible to those that have waited.
inline void arrive_cluster(bool orders, At at) {
  Grid* const g = grid;
  if (g->now->arrived) fail(at, "a thread arrives again where the cluster meets, and has not waited");
  g->now->arrived = true;
  meet(SYNCWARP, 0, false, at);
  Warp& warp = *g->now->warp;
  warp.left = orders ? warp.since : NEVER;
  if (g->arrived == NEVER) g->arrived = g->clock++;
}

inline void wait_cluster(At at) {
  if (!grid->now->arrived) fail(at, "a thread waits where the cluster meets, and has not arrived");
  grid->now->arrived = false;
  sync_threads(at, CLUSTER_WAIT);
}

// A store to the shared memory of another block. All that this did with the byte before it arrived, where the cluster met
// last, is done.
inline void store_of(u32 a, u32 rank, u32 value, At at) {
  Grid* const g = grid;
  if (rank >= g->ranks) fail(at, "a store to block %u of a cluster of %u", rank, g->ranks);
  Grid* const other = &g->first[rank];
  a = own_place(a, at);
  check_place(other, a, 4, "store", at);
  if (!other->live) fail(at, "a store to the shared memory of block %u of the cluster, which has ended", rank);
  if (other->barrier_numbers[a / 8]) fail(at, "a store to shared byte %u of block %u of the cluster, which belongs to a barrier", a, rank);
  if (other->in_flight) check_in_flight(other, a, 4, at);
  for (u32 i = a; g->races && i < a + 4; i++) {
    Cell& c = other->cells[i];
    if ((c.written >= other->begun && c.written > other->met) || (c.read >= other->begun && c.read > other->met)) {
      fail(at, "race: store to shared byte %u of block %u of the cluster, which that has used since it arrived", i, rank);
    }
    c.writer = OTHER_BLOCK, c.written = other->clock;
  }
  memcpy(other->shared + a, &value, sizeof value);
}

// As `multiply`, with a matrix of N columns in shared memory: swizzled rows of 128 bytes.
template <float (*WIDEN)(u32), u32 COUNT>
inline void multiply_shared(float (&c)[COUNT], const u32 (&a)[4], u32 matrix, bool add, At at) {
  const u32 lane = grid->now->index, g = lane / 4, t = lane % 4;
  float rows[2][16];
  for (u32 r = 0; r < 4; r++) {
    const Meeting* const m = meet(MMA, a[r], false, at);
    for (u32 i = 0; i < 8; i++) rows[r % 2][r / 2 * 8 + i] = WIDEN(m->values[g * 4 + i / 2] >> (i % 2 * 16) & 0xFFFF);
  }
  const u32 begin = (matrix & 0xFFFF) << 4 | grid->rank << RANK_SHIFT;
  for (u32 i = 0; i < COUNT; i++) {
    const u32 column = i / 4 * 8 + 2 * t + i % 2;
    float sum = add ? c[i] : 0;
    for (u32 k = 0; k < 16; k++) {
      const u32 flat = begin + column * 128 + k * 2;
      sum += rows[i / 2 % 2][k] * WIDEN(load_shared<u16>(flat ^ (flat >> 3 & 0x70), at));
    }
    c[i] = sum;
  }
}

}  // namespace simt

DEVICE void signal_init(u32 barrier, u32 count, SIMT_AT) { simt::init_signal(barrier, count, SIMT_HERE); }
DEVICE void signal_arrive(u32 barrier, u32 lane, SIMT_AT) {
  if (lane == 0) simt::arrive_at(barrier, SIMT_HERE);
}
DEVICE void signal_wait(u32 barrier, u32 parity, SIMT_AT) { simt::wait_signal(barrier, parity, SIMT_HERE); }
DEVICE bool signal_passed(u32 barrier, u32 parity, SIMT_AT) { return simt::has_passed(barrier, parity, SIMT_HERE); }
DEVICE void rest(SIMT_AT) { simt::let_others_run(SIMT_HERE); }
DEVICE u32 shared_window() { return simt::grid->rank << simt::RANK_SHIFT; }
DEVICE void cluster_arrive(SIMT_AT) { simt::arrive_cluster(true, SIMT_HERE); }
DEVICE void cluster_begin(SIMT_AT) { simt::arrive_cluster(false, SIMT_HERE); }
DEVICE void cluster_wait(SIMT_AT) { simt::wait_cluster(SIMT_HERE); }
DEVICE void sts128_of(u32 a, u32 rank, Vec4 v, SIMT_AT) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  if (a % 16) simt::fail(SIMT_HERE, "a store of 16 bytes at %u in shared memory is misaligned", a);
  for (u32 i = 0; i < 4; i++) simt::store_of(a + i * 4, rank, words[i], SIMT_HERE);
}
template <u32 COUNT>
DEVICE void any_values(u32 (&v)[COUNT]) {
  memset(v, simt::POISON, sizeof v);
}
DEVICE u32 found_again(u32 v) { return v; }
template <u32 COUNT>
DEVICE void more_registers() {}
template <u32 COUNT>
DEVICE void fewer_registers() {}
DEVICE void wgmma_fence() {}
DEVICE void wgmma_commit() {}
// All lanes have multiplied: a GPU's products are done for all of them at once.
DEVICE void wgmma_wait(SIMT_AT) { simt::meet(simt::SYNCWARP, 0, false, SIMT_HERE); }
template <class Registers>
DEVICE void held_until_here(Registers&) {}
template <bool BF16, u32 COUNT>
DEVICE void wgmma(float (&c)[COUNT], const u32 (&a)[4], u32 matrix, bool add, SIMT_AT) {
  simt::multiply_shared<BF16 ? simt::f32_of_bf16 : simt::f32_of_f16>(c, a, matrix, add, SIMT_HERE);
}
