// The emulator's engine: runs the blocks of a grid one after another on one thread of the CPU, every GPU thread as a
// fiber, and checks their behaviour. Only for the host; `simt_host.h` builds the primitives on top of it.
//
// The lanes of a warp run one at a time from primitive to primitive. At a primitive of the whole warp ("meeting") a
// lane leaves its operand and the next lane runs; the last to arrive continues, so each meeting begins with another
// lane. Warps run until all their lanes are waiting. Nothing depends on time: threads run in the same order each time,
// and in another one for each seed.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "simt_fiber.h"

namespace simt {

constexpr u32 MAX_THREADS = 1024, MAX_SHARED = 232448, MAX_BARRIERS = 128, NEVER = 0;
constexpr u8 POISON = 0xA5;

// Memory that the kernel may access. `simt::Range` and `Launch` have the layouts of those in `kernels/src/emulate.rs`.
struct Range {
  uintptr_t begin;
  size_t bytes;
  u64 writable;
};

struct Launch {
  const char* kernel;
  const void* params;
  size_t params_bytes;
  const Range* ranges;
  size_t range_count;
  char* message;
  size_t message_bytes;
  u64 seed;  // 0: threads run in order
  u32 grid, threads, shared, races;
  u32 overlaps;  // with the preceding launch: its memory is not accessed before `overlap_wait`
};

struct Kernel {
  const char* name;
  size_t params_bytes;
  u32 max_threads;
  void (*enter)(const void* params);
  const Kernel* next;
};

// The kernels of this translation unit; the rest of the engine is shared by all of them.
static const Kernel* kernels = nullptr;

struct Register {
  Kernel kernel;
  Register(const Kernel*& list, const char* name, size_t params_bytes, u32 max_threads, void (*enter)(const void*))
      : kernel{name, params_bytes, max_threads, enter, list} {
    list = &kernel;
  }
};

// A source location.
struct At {
  const char* file;
  u32 line;
};

enum Op : u8 { BALLOT, SHFL, SHFL_UP, SYNCWARP, SYNCTHREADS, COPY_WAIT, MMA };
inline const char* const OP_NAMES[] = {"ballot", "shfl", "shfl_up", "syncwarp", "syncthreads", "copy_wait", "mma"};

struct Meeting {
  At at;
  Op op;
  u32 bits;
  u32 values[LANES];
};

struct Warp {
  Meeting meetings[2];  // alternating: lanes read the results of one while others arrive at the next
  u32 turn;
  u32 live;     // lanes that have not ended
  u32 ready;    // lanes that could run, without the running one
  u32 arrived;  // lanes at the current meeting
  u32 since;    // clock of the last syncwarp
};

struct Lane {
  void* sp;
  Warp* warp;
  u32 thread, warp_index, index, bit;
  u32 fenced;  // clock of the last copy_fence
  u32 waits;   // 1 + index of the barrier that it waits for
  u32 copies;  // copies that it has started
  bool alone;  // the preceding launch has ended
  At at;       // location of that wait
};

// The history of a byte of shared memory. Values above MAX_THREADS stand for groups of threads.
constexpr u16 READ_BY_WARP = 0x4000, READ_BY_MANY = 0x7FFF, ADDED_BY_WARP = 0x4000, ADDED_BY_MANY = 0x7FFF, COPIED = 0x8000, BARRIER = 0xFFFF;
struct Cell {
  u32 written, read;  // clock
  u16 writer, reader;
};

struct Barrier {
  u32 place;
  bool fenced;
  u32 fence_owner;
  u32 started, done;  // copies
  u32 beginner, number;  // the thread that started the last one, and the number of that among its copies, from 1 on
  u32 pieces;         // of the copy in flight
  u32 dst[2], bytes[2];
  const void* src[2];
  u32 warp_waited[MAX_THREADS / LANES];  // clock of the last wait of a lane of the warp
  u32 waited[MAX_THREADS];               // clock of the last wait of the thread
};

struct Grid {
  const Launch* launch;
  const Kernel* kernel;
  const void* params;
  Lane* now;
  void* main;
  u32 block, threads, warp_count;
  u32 shared_bytes;
  u8* shared;
  Cell* cells;
  u32 clock;
  u32 begun;     // clock of the start of the block
  u32 since;     // clock of the last syncthreads
  u32 runnable;  // warps with ready lanes, or running
  u32 live;      // warps with lanes that have not ended
  u32 waiting;   // warps at syncthreads
  u32 in_flight;
  u32 barrier_count;
  u64 random;
  bool races, failed;
  At sync_at;
  const Range* last[3];  // the range of the last access of each kind
  Barrier* barriers;
  u8* barrier_numbers;  // 1 + index of the barrier at each eighth byte of shared memory
  Lane lanes[MAX_THREADS];
  Warp warps[MAX_THREADS / LANES];
  Stacks stacks;
};

inline thread_local Grid* grid = nullptr;

inline const char* base_name(const char* path) {
  const char* const slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// Appends to the message.
__attribute__((format(printf, 1, 2))) inline void say(const char* format, ...) {
  const Launch& launch = *grid->launch;
  const size_t used = strlen(launch.message);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(launch.message + used, launch.message_bytes - used, format, arguments);
  va_end(arguments);
}

// Ends the launch with the mistake of the running thread. Its stack, and all others, are abandoned.
[[noreturn]] __attribute__((cold, noinline, format(printf, 2, 3))) inline void fail(At at, const char* format, ...) {
  Grid* const g = grid;
  const Lane& me = *g->now;
  say("kernel %s, block %u, thread %u (warp %u, lane %u), %s:%u: ", g->kernel->name, g->block, me.thread, me.warp_index,
      me.index, base_name(at.file), at.line);
  const size_t used = strlen(g->launch->message);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(g->launch->message + used, g->launch->message_bytes - used, format, arguments);
  va_end(arguments);
  g->failed = true;
  void* given_up;
  simt_switch(&given_up, g->main);
  __builtin_unreachable();
}

// ---- Scheduling ----

inline u32 random_bits(Grid* g) {
  g->random ^= g->random << 13;
  g->random ^= g->random >> 7;
  g->random ^= g->random << 17;
  return (u32)(g->random >> 20);
}

// The first set bit from `from` on, wrapping around.
inline u32 first_from(u32 mask, u32 from) {
  from &= 31;
  const u32 above = mask & (~0u << from);
  return (u32)__builtin_ctz(above ? above : mask);
}

// The stack pointer of the next to run: a lane of the same warp if one can, else of another warp, else the main
// context.
inline void* pick(Grid* g, const Lane* me) {
  u32 w = me->warp_index, lane = me->index + 1;
  if (!g->warps[w].ready) g->runnable &= ~(1u << w);
  if (!g->runnable) return g->main;
  if (g->launch->seed) {
    const u32 r = random_bits(g);
    lane = r >> 8;
    if (!(g->runnable >> w & 1) || r % 8 == 0) w = first_from(g->runnable, r >> 16);
  } else if (!(g->runnable >> w & 1)) {
    w = first_from(g->runnable, w + 1);
    lane = 0;
  }
  Warp& warp = g->warps[w];
  const u32 next = first_from(warp.ready, lane);
  warp.ready &= ~(1u << next);
  g->now = &g->lanes[w * LANES + next];
  return g->now->sp;
}

inline void suspend(Grid* g, Lane* me) {
  void* const next = pick(g, me);
  if (g->now != me || next == g->main) simt_switch(&me->sp, next);
}

// With a seed, the lane that completes a meeting does not simply continue.
inline void shuffle(Grid* g, Lane* me) {
  if (!g->launch->seed) return;
  me->warp->ready |= me->bit;
  suspend(g, me);
}

inline void wake(Grid* g, Lane& lane) {
  lane.warp->ready |= lane.bit;
  g->runnable |= 1u << lane.warp_index;
}

// ---- Meetings ----

[[noreturn]] __attribute__((cold, noinline)) inline void diverged(Grid* g, Op op, At at) {
  const Warp& w = *g->now->warp;
  const Meeting& m = w.meetings[w.turn & 1];
  fail(at, "divergence: this lane is at %s while lanes %08x wait at %s of %s:%u", OP_NAMES[op], w.arrived,
       OP_NAMES[m.op], base_name(m.at.file), m.at.line);
}

[[noreturn]] __attribute__((cold, noinline)) inline void incomplete(Grid* g, Op op, At at) {
  fail(at, "divergence: %s takes all lanes of the warp, of which %08x have ended", OP_NAMES[op], ~g->now->warp->live);
}

// Arrives at a meeting; `m` receives the meeting's record. True for the lane that completes it.
inline bool arrive(Grid* g, Lane* me, Op op, u32 value, bool bit, At at, Meeting*& m) {
  Warp* const w = me->warp;
  m = &w->meetings[w->turn & 1];
  if (w->arrived == 0) {
    m->op = op;
    m->at = at;
    m->bits = 0;
    if (w->live != ~0u && op != SYNCTHREADS) incomplete(g, op, at);
  } else if (m->op != op || m->at.line != at.line) {
    diverged(g, op, at);
  }
  m->values[me->index] = value;
  m->bits |= (u32)bit << me->index;
  w->arrived |= me->bit;
  return w->arrived == w->live;
}

inline const Meeting* meet(Op op, u32 value, bool bit, At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  Meeting* m;
  if (arrive(g, me, op, value, bit, at, m)) {
    Warp* const w = me->warp;
    w->arrived = 0;
    w->turn++;
    w->ready = w->live & ~me->bit;
    if (op == SYNCWARP) w->since = ++g->clock;
    shuffle(g, me);
  } else {
    suspend(g, me);
  }
  return m;
}

// Releases all warps from syncthreads.
inline void release(Grid* g) {
  for (u32 rest = g->waiting; rest; rest &= rest - 1) {
    Warp& w = g->warps[__builtin_ctz(rest)];
    w.arrived = 0;
    w.turn++;
    w.ready = w.live;
  }
  g->runnable |= g->waiting;
  g->waiting = 0;
  g->since = ++g->clock;
}

// All lanes of the warp that have not ended are at syncthreads.
inline void warp_waits(Grid* g, const Lane* me, At at) {
  if (g->waiting == 0) {
    g->sync_at = at;
  } else if (g->sync_at.line != at.line) {
    fail(at, "divergence: this warp is at another syncthreads than warps %08x, which wait at %s:%u", g->waiting,
         base_name(g->sync_at.file), g->sync_at.line);
  }
  g->waiting |= 1u << me->warp_index;
  if (g->waiting == g->live) release(g);
}

inline void sync_threads(At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  Meeting* m;
  if (arrive(g, me, SYNCTHREADS, 0, false, at, m)) warp_waits(g, me, at);
  if (me->warp->ready & me->bit && !g->launch->seed) {
    me->warp->ready &= ~me->bit;
    return;
  }
  suspend(g, me);
}

// The entry point of a fiber.
inline void run_thread() {
  grid->kernel->enter(grid->params);
  Grid* const g = grid;
  Lane* const me = g->now;
  Warp* const w = me->warp;
  w->live &= ~me->bit;
  if (w->arrived) {
    const Meeting& m = w->meetings[w->turn & 1];
    if (m.op != SYNCTHREADS) {
      fail(m.at, "divergence: this lane has ended while lanes %08x wait at %s", w->arrived, OP_NAMES[m.op]);
    }
    if (w->arrived == w->live) warp_waits(g, me, m.at);
  }
  if (!w->live) {
    g->live &= ~(1u << me->warp_index);
    if (g->waiting && g->waiting == g->live) release(g);
  }
  void* given_up;
  simt_switch(&given_up, pick(g, me));
  __builtin_unreachable();
}

// ---- Shared memory ----

// Whether an access by `thread` at `time` happens before the running thread's current access, and is visible to it.
inline bool ordered(const Grid* g, const Lane* me, u32 time, u32 thread) {
  return thread == me->thread || g->since > time || (thread / LANES == me->warp_index && me->warp->since > time);
}

inline bool copy_visible(const Grid* g, const Lane* me, const Cell& c) {
  const Barrier& b = g->barriers[c.writer & ~COPIED];
  const u32 warp = b.warp_waited[me->warp_index];
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
  if (c.writer & COPIED) return copy_visible(g, me, c);
  if (!(c.writer & ADDED_BY_WARP)) return ordered(g, me, c.written, c.writer);
  const bool own = c.writer != ADDED_BY_MANY && (c.writer & (ADDED_BY_WARP - 1)) == me->warp_index;
  return g->since > c.written || (own && me->warp->since > c.written);
}

inline bool read_before(const Grid* g, const Lane* me, const Cell& c) {
  if (g->since > c.read || c.reader == me->thread) return true;
  if (c.reader == READ_BY_MANY) return false;
  const u32 warp = c.reader & READ_BY_WARP ? c.reader & (READ_BY_WARP - 1) : c.reader / LANES;
  return warp == me->warp_index && me->warp->since > c.read;
}

inline void note_read(Grid* g, const Lane* me, u32 a, At at) {
  Cell& c = g->cells[a];
  if (!wrote_before(g, me, c)) race(c, a, false, false, at);
  if (read_before(g, me, c)) {
    c.reader = (u16)me->thread;
  } else {
    const bool same = c.reader != READ_BY_MANY &&
                      (c.reader & READ_BY_WARP ? c.reader & (READ_BY_WARP - 1) : c.reader / LANES) == me->warp_index;
    c.reader = same ? (u16)(READ_BY_WARP | me->warp_index) : READ_BY_MANY;
  }
  c.read = g->clock;
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
  T v;
  memcpy(&v, shared_place(g, a, sizeof v, "load", at), sizeof v);
  if (g->races) {
    for (u32 i = 0; i < sizeof v; i++) note_read(g, g->now, a + i, at);
  }
  return v;
}

inline void add_shared(u32 a, u32 v, At at) {
  Grid* const g = grid;
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
  check_place(grid, a, sizeof(T), "load", at);
  static u32 seed = 1;
  seed = seed * 1664525 + 1013904223;
  return (T)(seed >> 8);
}

template <class T>
inline void store_shared(u32 a, u32 value, At at) {
  Grid* const g = grid;
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

inline Barrier& find_barrier(Grid* g, u32 place, At at) {
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

inline void init_barrier(u32 place, At at) {
  Grid* const g = grid;
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
  b.started = b.done = 0;
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

// Starts a copy of one piece, or of two if `bytes2` is not 0.
inline void start_copy(u32 dst, const void* src, u32 bytes, u32 dst2, const void* src2, u32 bytes2, u32 place, At at) {
  Grid* const g = grid;
  Barrier& b = find_barrier(g, place, at);
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
  const u32 number = g->barrier_numbers[place / 8];
  for (u32 i = 0; i < g->threads; i++) {
    Lane& lane = g->lanes[i];
    if (lane.waits == number) {
      lane.waits = 0;
      wake(g, lane);
    }
  }
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
inline void wait_copy(u32 place, u32 parity, u32 younger, At at) {
  Grid* const g = grid;
  Lane* const me = g->now;
  Barrier& b = find_barrier(g, place, at);
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
  b.waited[me->thread] = b.warp_waited[me->warp_index] = g->clock;
}

// ---- Running a grid ----

// Lists the waiting threads and their reasons, after a block in which none could continue.
__attribute__((cold, noinline)) inline void say_deadlock(const Grid* g) {
  say("kernel %s, block %u: deadlock:", g->kernel->name, g->block);
  for (u32 i = 0, said = 0; i < g->threads && said < 4; i++) {
    const Lane& lane = g->lanes[i];
    if (lane.waits) {
      const Barrier& b = g->barriers[lane.waits - 1];
      say(" thread %u waits at %s:%u for copy %u of the barrier at %u, which nobody starts;", i,
          base_name(lane.at.file), lane.at.line, b.done, b.place);
      said++;
    }
  }
  for (u32 i = 0; i < g->warp_count; i++) {
    const Warp& w = g->warps[i];
    const Meeting& m = w.meetings[w.turn & 1];
    if (w.arrived)
      say(" lanes %08x of warp %u wait at %s of %s:%u;", w.arrived, i, OP_NAMES[m.op], base_name(m.at.file), m.at.line);
  }
}

inline bool run_block(Grid* g) {
  memset(g->shared, POISON, g->shared_bytes);
  for (u32 i = 0; i < g->barrier_count; i++) g->barrier_numbers[g->barriers[i].place / 8] = 0;
  g->barrier_count = g->in_flight = g->waiting = 0;
  g->begun = g->since = ++g->clock;
  g->live = g->runnable = g->warp_count == 32 ? ~0u : (1u << g->warp_count) - 1;
  for (u32 w = 0; w < g->warp_count; w++) {
    Warp& warp = g->warps[w];
    warp.turn = warp.arrived = 0;
    warp.live = warp.ready = ~0u;
    warp.since = g->since;
  }
  for (u32 i = 0; i < g->threads; i++) {
    Lane& lane = g->lanes[i];
    lane.sp = g->stacks.begin(i, run_thread);
    lane.warp = &g->warps[i / LANES];
    lane.thread = i;
    lane.warp_index = i / LANES;
    lane.index = i % LANES;
    lane.bit = 1u << lane.index;
    lane.fenced = g->clock;
    lane.waits = lane.copies = 0;
    lane.alone = !g->launch->overlaps;
  }
  g->now = &g->lanes[0];
  g->warps[0].ready &= ~1u;
  simt_switch(&g->main, g->now->sp);
  if (g->failed) return false;
  if (g->live) {
    say_deadlock(g);
    return false;
  }
  for (u32 i = 0; i < g->barrier_count; i++) {
    const Barrier& b = g->barriers[i];
    if (b.started != b.done) {
      say("kernel %s, block %u has ended while a copy to %u was in flight", g->kernel->name, g->block, b.dst[0]);
      return false;
    }
  }
  return true;
}

inline bool run_blocks(Grid* g, const Launch& launch, const Kernel* k) {
  while (k && strcmp(k->name, launch.kernel) != 0) k = k->next;
  if (!k) return say("no kernel %s in this module", launch.kernel), false;
  g->kernel = k;
  if (k->params_bytes != launch.params_bytes) {
    return say("kernel %s takes %zu bytes of parameters, not %zu", k->name, k->params_bytes, launch.params_bytes),
           false;
  }
  if (launch.threads == 0 || launch.threads % LANES || launch.threads > k->max_threads ||
      launch.threads > MAX_THREADS) {
    return say("kernel %s takes up to %u threads in whole warps, not %u", k->name, k->max_threads, launch.threads),
           false;
  }
  if (launch.shared > MAX_SHARED)
    return say("%u bytes of shared memory: no device has more than %u", launch.shared, MAX_SHARED), false;
  if (launch.grid == 0) return say("a grid without blocks"), false;
  g->threads = launch.threads;
  g->warp_count = launch.threads / LANES;
  g->shared_bytes = launch.shared;
  g->races = launch.races != 0;
  g->random = launch.seed * 0x9E3779B97F4A7C15u | 1;
  g->clock = NEVER;
  const size_t shared = (launch.shared + 127) / 128 * 128 + 128, params = (launch.params_bytes + 15) / 16 * 16 + 16;
  g->shared = (u8*)aligned_alloc(128, shared);
  g->cells = (Cell*)calloc(shared, sizeof(Cell));
  g->barriers = (Barrier*)calloc(MAX_BARRIERS, sizeof(Barrier));
  g->barrier_numbers = (u8*)calloc(shared / 8, 1);
  void* const copy = aligned_alloc(16, params);
  g->params = copy;
  bool good = g->shared && g->cells && g->barriers && g->barrier_numbers && copy && g->stacks.make(launch.threads);
  if (!good) {
    say("no memory for the emulation of %u threads", launch.threads);
  } else {
    memcpy(copy, launch.params, launch.params_bytes);
    for (u32 i = 0; good && i < launch.grid; i++) {
      g->block = launch.seed & 1 ? launch.grid - 1 - i : i;
      good = run_block(g);
    }
  }
  free(g->shared);
  free(g->cells);
  free(g->barriers);
  free(g->barrier_numbers);
  free(copy);
  return good;
}

// Returns 0, or 1 with a message.
inline int run(const Launch& launch, const Kernel* list) {
  launch.message[0] = 0;
  Grid* const g = (Grid*)calloc(1, sizeof(Grid));
  if (!g) {
    snprintf(launch.message, launch.message_bytes, "no memory for the emulation");
    return 1;
  }
  g->launch = &launch;
  grid = g;
  const bool good = run_blocks(g, launch, list);
  grid = nullptr;
  g->stacks.~Stacks();
  free(g);
  return good ? 0 : 1;
}

}  // namespace simt
