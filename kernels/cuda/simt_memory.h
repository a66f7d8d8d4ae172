// The emulator's memory: accesses to shared and global memory with their checks, and copies between the two. Only for the
// host.
#pragma once
#include "simt_engine.h"

namespace simt {

// ---- Shared memory ----

// Whether an access by `thread` at `time` happens before the running thread's current access, and is visible to it.
inline bool ordered(const Grid* g, const Lane* me, u32 time, u32 thread) {
  return thread == me->thread || g->since > time || (thread / LANES == me->warp_index && me->warp->since > time) ||
         me->warp->seen[thread / LANES] > time;
}

inline bool copy_visible(const Grid* g, const Lane* me, const Cell& c) {
  const Barrier& b = g->barriers[c.writer & ~COPIED];
  const u32 warp = b.warp_waited[me->warp_index];
  // Another warp has waited for it, and arrived at a barrier for which this one has waited.
  for (u32 w = 0; w < g->warp_count; w++) {
    if (b.warp_waited[w] > c.written && me->warp->seen[w] > b.warp_waited[w]) return true;
  }
  return g->since > c.written || b.waited[me->thread] > c.written || (warp > c.written && me->warp->since > warp);
}

[[noreturn]] __attribute__((cold, noinline)) inline void race(const Cell& c, u32 a, bool write, bool against_read,
                                                              At at) {
  const char* const what = write ? "store to" : "load from";
  if (against_read) {
    if (c.reader == READ_BY_MANY)
      fail(at, "race: %s shared byte %u, which several warps read since the last syncthreads", what, a);
    if (c.reader & READ_BY_WARP) {
      fail(at, "race: %s shared byte %u, which lanes of warp %u read without a syncwarp or syncthreads since", what, a,
           c.reader & (READ_BY_WARP - 1));
    }
    fail(at, "race: %s shared byte %u, which thread %u read without a syncwarp or syncthreads since", what, a,
         c.reader);
  }
  if (c.writer == BARRIER) fail(at, "%s shared byte %u, which belongs to a barrier", what, a);
  if (c.writer == OTHER_BLOCK)
    fail(at, "race: %s shared byte %u, to which another block of the cluster stored, without a cluster_wait since", what, a);
  if (c.writer & COPIED)
    fail(at, "race: %s shared byte %u, which a copy wrote that this thread has not waited for", what, a);
  if (c.writer == ADDED_BY_MANY)
    fail(at, "race: %s shared byte %u, to which several warps added since the last syncthreads", what, a);
  if (c.writer & ADDED_BY_WARP) {
    fail(at, "race: %s shared byte %u, to which lanes of warp %u added without a syncwarp or syncthreads since", what, a,
         c.writer & (ADDED_BY_WARP - 1));
  }
  fail(at, "race: %s shared byte %u, which thread %u wrote without a syncwarp or syncthreads since", what, a, c.writer);
}

inline bool wrote_before(const Grid* g, const Lane* me, const Cell& c) {
  if (c.written < g->begun || c.writer == me->thread) return true;
  if (c.writer == BARRIER) return false;
  if (c.writer == OTHER_BLOCK) return g->met_at > c.written;
  if (c.writer & COPIED) return copy_visible(g, me, c);
  if (!(c.writer & ADDED_BY_WARP)) return ordered(g, me, c.written, c.writer);
  const bool own = c.writer != ADDED_BY_MANY && (c.writer & (ADDED_BY_WARP - 1)) == me->warp_index;
  return g->since > c.written || (own && me->warp->since > c.written);
}

inline bool warp_seen(const Lane* me, u32 warp, u32 time) {
  return (warp == me->warp_index && me->warp->since > time) || me->warp->seen[warp] > time;
}

// The clock of the last read of a cell's line by a warp.
inline u32& line_read(const Grid* g, const Cell& c, u32 warp) {
  return g->line_reads[(u32)(&c - g->cells) / LINE * (MAX_THREADS / LANES) + warp];
}

inline bool read_before(const Grid* g, const Lane* me, const Cell& c) {
  if (g->since > c.read || c.reader == me->thread) return true;
  if (c.reader == READ_BY_MANY) {
    for (u32 rest = c.readers; rest; rest &= rest - 1) {
      const u32 warp = (u32)__builtin_ctz(rest);
      if (!warp_seen(me, warp, line_read(g, c, warp))) return false;
    }
    return true;
  }
  return warp_seen(me, c.reader & READ_BY_WARP ? c.reader & (READ_BY_WARP - 1) : c.reader / LANES, c.read);
}

inline void note_read(Grid* g, const Lane* me, u32 a, At at) {
  Cell& c = g->cells[a];
  if (!wrote_before(g, me, c)) race(c, a, false, false, at);
  if (read_before(g, me, c)) {
    c.reader = (u16)me->thread;
    c.readers = 1u << me->warp_index;
  } else {
    c.readers |= 1u << me->warp_index;
    const bool same = c.reader != READ_BY_MANY &&
                      (c.reader & READ_BY_WARP ? c.reader & (READ_BY_WARP - 1) : c.reader / LANES) == me->warp_index;
    c.reader = same ? (u16)(READ_BY_WARP | me->warp_index) : READ_BY_MANY;
  }
  c.read = g->clock;
  line_read(g, c, me->warp_index) = g->clock;
}

// `same`: the byte keeps its value, so a race of two stores is harmless.
inline void note_write(Grid* g, const Lane* me, u32 a, bool same, At at) {
  Cell& c = g->cells[a];
  if (!wrote_before(g, me, c) && !(same && !(c.writer & COPIED))) race(c, a, true, false, at);
  if (!read_before(g, me, c)) race(c, a, true, true, at);
  c.writer = (u16)me->thread;
  c.written = g->clock;
}

// Additions commute, so threads may add in any order.
inline void note_add(Grid* g, const Lane* me, u32 a, At at) {
  Cell& c = g->cells[a];
  const u16 own = (u16)(ADDED_BY_WARP | me->warp_index);
  const bool added = c.written >= g->begun && c.writer < COPIED && (c.writer & ADDED_BY_WARP);
  const bool before = wrote_before(g, me, c);
  if (!added && !before) race(c, a, true, false, at);
  if (!read_before(g, me, c)) race(c, a, true, true, at);
  c.writer = before || c.writer == own ? own : ADDED_BY_MANY;
  c.written = g->clock;
}

__attribute__((noinline)) inline void check_in_flight(Grid* g, u32 a, u32 bytes, At at) {
  for (u32 i = 0; i < g->barrier_count; i++) {
    const Barrier& b = g->barriers[i];
    for (u32 k = 0; b.started != b.done && k < b.pieces; k++) {
      if (a < b.dst[k] + b.bytes[k] && b.dst[k] < a + bytes) {
        fail(at, "shared bytes %u to %u are the target of a copy in flight (barrier %u): wait for it first", a, a + bytes,
             b.place);
      }
    }
  }
}

// The place of an address in the running block's shared memory. In a cluster, its top byte has the block's rank.
inline u32 own_place(u32 a, At at) {
  const Grid* const g = grid;
  if (g->ranks == 1) return a;
  if (a >> RANK_SHIFT != g->rank) {
    fail(at, "shared byte %u of block %u of the cluster, without whose rank in its address this is block %u's", a & ((1u << RANK_SHIFT) - 1),
         g->rank, a >> RANK_SHIFT);
  }
  return a & ((1u << RANK_SHIFT) - 1);
}

inline void check_place(Grid* g, u32 a, u32 bytes, const char* what, At at) {
  if (a > g->shared_bytes || g->shared_bytes - a < bytes) {
    fail(at, "%s of %u bytes at %u is outside the %u bytes of shared memory", what, bytes, a, g->shared_bytes);
  }
  if (a % bytes) fail(at, "%s of %u bytes at %u in shared memory is misaligned", what, bytes, a);
}

// The host's address of `bytes` at `a`, after all checks that reads and writes share.
inline u8* shared_place(Grid* g, u32 a, u32 bytes, const char* what, At at) {
  check_place(g, a, bytes, what, at);
  if (g->in_flight) check_in_flight(g, a, bytes, at);
  return g->shared + a;
}

template <class T>
inline u32 load_shared(u32 a, At at) {
  Grid* const g = grid;
  a = own_place(a, at);
  T v;
  memcpy(&v, shared_place(g, a, sizeof v, "load", at), sizeof v);
  if (g->races) {
    for (u32 i = 0; i < sizeof v; i++) note_read(g, g->now, a + i, at);
  }
  return v;
}

inline void add_shared(u32 a, u32 v, At at) {
  Grid* const g = grid;
  a = own_place(a, at);
  u8* const place = shared_place(g, a, sizeof v, "addition", at);
  u32 sum;
  memcpy(&sum, place, sizeof sum);
  sum += v;
  memcpy(place, &sum, sizeof sum);
  if (g->races) {
    for (u32 i = 0; i < sizeof v; i++) note_add(g, g->now, a + i, at);
  }
}

// Different values each time from `end` on, so that nothing can depend on them.
template <class T>
inline u32 load_stream(u32 a, u32 end, At at) {
  if (a < end) return load_shared<T>(a, at);
  check_place(grid, own_place(a, at), sizeof(T), "load", at);
  static u32 seed = 1;
  seed = seed * 1664525 + 1013904223;
  return (T)(seed >> 8);
}

template <class T>
inline void store_shared(u32 a, u32 value, At at) {
  Grid* const g = grid;
  a = own_place(a, at);
  u8* const p = shared_place(g, a, sizeof(T), "store", at);
  const T v = (T)value;
  if (g->races) {
    for (u32 i = 0; i < sizeof v; i++) note_write(g, g->now, a + i, p[i] == ((const u8*)&v)[i], at);
  } else if (g->barrier_count && g->barrier_numbers[a / 8]) {
    fail(at, "store to shared byte %u, which belongs to a barrier", a);
  }
  memcpy(p, &v, sizeof v);
}

// ---- Global memory ----

// Loads through the read-only cache, stores, and loads that may see stores.
enum Access { READ, WRITE, ANY };

inline bool inside(const Range& r, uintptr_t a, u32 bytes) {
  return a - r.begin < r.bytes && r.bytes - (a - r.begin) >= bytes;
}

[[noreturn]] __attribute__((cold, noinline)) inline void outside(const void* p, u32 bytes, Access access, At at) {
  const Launch& launch = *grid->launch;
  const uintptr_t a = (uintptr_t)p;
  const char* const what = access == WRITE ? "store" : "load";
  // The nearest range is probably the intended one.
  size_t nearest = 0, best = SIZE_MAX;
  for (size_t i = 0; i < launch.range_count; i++) {
    const Range& r = launch.ranges[i];
    const size_t distance = a < r.begin ? r.begin - a : a - r.begin >= r.bytes ? a - r.begin - r.bytes : 0;
    if (distance < best) best = distance, nearest = i;
  }
  if (best > 1 << 20)
    fail(at, "%s of %u bytes at %p, which is near no range of memory that was allowed", what, bytes, p);
  const Range& r = launch.ranges[nearest];
  const ptrdiff_t from = (ptrdiff_t)(a - r.begin);
  if (!inside(r, a, bytes))
    fail(at, "%s of %u bytes at byte %td of range %zu, which has %zu bytes", what, bytes, from, nearest, r.bytes);
  if (access == WRITE) fail(at, "store of %u bytes at byte %td of range %zu, which is read-only", bytes, from, nearest);
  fail(at, "load of %u bytes at byte %td of range %zu, which the kernel may write: ldg is for what no kernel writes",
       bytes, from, nearest);
}

// EARLY: allowed before `overlap_wait`, too.
template <bool EARLY = false>
inline void check_global(const void* p, u32 bytes, u32 alignment, Access access, At at) {
  Grid* const g = grid;
  if (!EARLY && access != READ && !g->now->alone) {
    fail(at, "%s of %u bytes at %p before overlap_wait", access == WRITE ? "store" : "load", bytes, p);
  }
  const Range*& last = g->last[access];
  const uintptr_t a = (uintptr_t)p;
  if (a % alignment) {
    fail(at, "%s of %u bytes at %p in global memory is misaligned", access == WRITE ? "store" : "load", bytes, p);
  }
  if (last && inside(*last, a, bytes)) return;
  const Range* const end = g->launch->ranges + g->launch->range_count;
  for (const Range* r = g->launch->ranges; r != end; r++) {
    if ((access == ANY || (r->writable != 0) == (access == WRITE)) && inside(*r, a, bytes)) {
      last = r;
      return;
    }
  }
  outside(p, bytes, access, at);
}

// ---- Copies from global to shared memory ----

inline Barrier& find_barrier(Grid* g, u32 address, At at) {
  const u32 place = own_place(address, at);
  if (place % 8 || place >= g->shared_bytes || g->shared_bytes - place < 8) {
    fail(at, "a barrier at %u: it takes 8 aligned bytes of the %u of shared memory", place, g->shared_bytes);
  }
  const u8 number = g->barrier_numbers[place / 8];
  if (!number) fail(at, "no copy_init for the barrier at %u before this", place);
  Barrier& b = g->barriers[number - 1];
  if (!b.fenced) fail(at, "no copy_init_fence after copy_init of the barrier at %u", place);
  if (g->races && !ordered(g, g->now, g->cells[place].written, b.fence_owner)) {
    fail(at, "race: no syncwarp or syncthreads since thread %u initialised the barrier at %u", b.fence_owner, place);
  }
  return b;
}

inline void init_barrier(u32 address, At at) {
  Grid* const g = grid;
  const u32 place = own_place(address, at);
  if (place % 8 || place >= g->shared_bytes || g->shared_bytes - place < 8) {
    fail(at, "a barrier at %u: it takes 8 aligned bytes of the %u of shared memory", place, g->shared_bytes);
  }
  if (g->barrier_numbers[place / 8]) fail(at, "copy_init of the barrier at %u, which is in use", place);
  if (g->barrier_count == MAX_BARRIERS) fail(at, "more than %u barriers in a block", MAX_BARRIERS);
  if (g->in_flight) check_in_flight(g, place, 8, at);
  for (u32 i = 0; i < 8; i++) {
    if (g->races) note_write(g, g->now, place + i, false, at);
    g->cells[place + i].writer = BARRIER;
    g->cells[place + i].written = g->clock;
  }
  Barrier& b = g->barriers[g->barrier_count++];
  g->barrier_numbers[place / 8] = (u8)g->barrier_count;
  b.place = place;
  b.fenced = false;
  b.fence_owner = g->now->thread;
  b.started = b.done = b.count = b.arrived = 0;
  memset(b.seen, 0, sizeof b.seen);
  memset(b.waited, 0, sizeof b.waited);
  memset(b.warp_waited, 0, sizeof b.warp_waited);
}

inline void fence_copies() {
  Grid* const g = grid;
  g->now->fenced = ++g->clock;
}

inline void fence_barriers() {
  Grid* const g = grid;
  for (u32 i = 0; i < g->barrier_count; i++) {
    if (g->barriers[i].fence_owner == g->now->thread) g->barriers[i].fenced = true;
  }
}

// Starts a piece of the next copy on a barrier.
inline void start_piece(Grid* g, Barrier& b, u32 dst, const void* src, u32 bytes, At at) {
  const Lane* const me = g->now;
  if (bytes == 0 || bytes % 16 || dst % 16)
    fail(at, "a copy of %u bytes to %u: both must be multiples of 16", bytes, dst);
  if (dst > g->shared_bytes || g->shared_bytes - dst < bytes) {
    fail(at, "a copy of %u bytes to %u is outside the %u bytes of shared memory", bytes, dst, g->shared_bytes);
  }
  check_global(src, bytes, 16, READ, at);
  if (g->in_flight) check_in_flight(g, dst, bytes, at);
  for (u32 a = dst; a < dst + bytes; a++) {
    if (g->barrier_numbers[a / 8])
      fail(at, "a copy of %u bytes to %u overwrites a barrier at %u", bytes, dst, a / 8 * 8);
    if (!g->races) continue;
    const Cell& c = g->cells[a];
    if (!wrote_before(g, me, c)) race(c, a, true, false, at);
    if (!read_before(g, me, c)) race(c, a, true, true, at);
    if (c.written >= g->begun && c.writer < MAX_THREADS && g->lanes[c.writer].fenced <= c.written &&
        me->fenced <= c.written) {
      fail(at, "a copy to shared byte %u, which thread %u stored to without a copy_fence since", a, c.writer);
    }
  }
  memset(g->shared + dst, POISON, bytes);
  b.dst[b.pieces] = dst;
  b.bytes[b.pieces] = bytes;
  b.src[b.pieces++] = src;
}

inline void wake_waiting(Grid* g, u32 place) {
  const u32 number = g->barrier_numbers[place / 8];
  for (u32 i = 0; i < g->threads; i++) {
    Lane& lane = g->lanes[i];
    if (lane.waits == number) {
      lane.waits = 0;
      wake(g, lane);
    }
  }
}

// The running warp learns all that is known at a barrier.
inline void learn(Grid* g, const Lane* me, const Barrier& b) {
  for (u32 w = 0; w < g->warp_count; w++) {
    if (me->warp->seen[w] < b.seen[w]) me->warp->seen[w] = b.seen[w];
  }
}

// Starts a copy of one piece, or of two if `bytes2` is not 0.
inline void start_copy(u32 dst, const void* src, u32 bytes, u32 dst2, const void* src2, u32 bytes2, u32 address, At at) {
  Grid* const g = grid;
  Barrier& b = find_barrier(g, address, at);
  const u32 place = b.place;
  dst = own_place(dst, at);
  if (bytes2) dst2 = own_place(dst2, at);
  if (b.count) fail(at, "a copy on the barrier at %u, at which warps arrive", place);
  if (b.started != b.done) fail(at, "the copy before on the barrier at %u was not waited for", place);
  b.pieces = 0;
  start_piece(g, b, dst, src, bytes, at);
  if (bytes2) {
    if (dst < dst2 + bytes2 && dst2 < dst + bytes) fail(at, "the pieces of a copy to %u and %u overlap", dst, dst2);
    start_piece(g, b, dst2, src2, bytes2, at);
  }
  b.started++;
  b.beginner = g->now->thread;
  b.number = ++g->now->copies;
  g->in_flight++;
  memcpy(b.seen, g->now->warp->seen, sizeof b.seen);
  b.seen[g->now->warp_index] = ++g->clock;
  wake_waiting(g, place);
}

// Copies happen as late as possible, so that a missing wait is detected.
inline void finish_copy(Grid* g, Barrier& b) {
  const u16 writer = (u16)(COPIED | (&b - g->barriers));
  for (u32 i = 0; i < b.pieces; i++) {
    memcpy(g->shared + b.dst[i], b.src[i], b.bytes[i]);
    for (u32 a = b.dst[i]; a < b.dst[i] + b.bytes[i]; a++) {
      g->cells[a].written = g->clock;
      g->cells[a].writer = writer;
    }
  }
  g->clock++;
  b.done++;
  g->in_flight--;
}

// Returns when the phase with this parity has ended: phase n ends with copy n, and the one before the first has ended.
// Devices without barriers for copies would wait until at most `younger` of the thread's copies are left.
inline void wait_copy(u32 address, u32 parity, u32 younger, At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  Barrier& b = find_barrier(g, address, at);
  const u32 place = b.place;
  if (parity > 1) fail(at, "parity %u", parity);
  if (b.started && b.beginner == me->thread && younger > me->copies - b.number) {
    fail(at, "a wait that lets %u younger copies be, of %u that were begun behind that to %u", younger, me->copies - b.number, b.dst[0]);
  }
  while ((b.done & 1) == parity) {
    if (b.started != b.done) {
      finish_copy(g, b);
      break;
    }
    me->waits = g->barrier_numbers[place / 8];
    me->at = at;
    suspend(g, me);
  }
  learn(g, me, b);
  b.waited[me->thread] = b.warp_waited[me->warp_index] = g->clock;
}

}  // namespace simt
