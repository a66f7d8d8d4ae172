// The emulator's engine: runs the blocks of a grid on one thread of the CPU, cluster after cluster, every GPU thread as a
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
// An address in the shared memory of a cluster's block has its rank from this bit on.
constexpr u32 RANK_SHIFT = 24;
// Bytes of a line of shared memory, for which reads are told apart by warps.
constexpr u32 LINE = 128;
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
  u32 cluster;   // blocks of a cluster, which run side by side
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

enum Op : u8 { BALLOT, SHFL, SHFL_UP, SYNCWARP, SYNCTHREADS, CLUSTER_WAIT, COPY_WAIT, MMA };
inline const char* const OP_NAMES[] = {"ballot", "shfl", "shfl_up", "syncwarp", "syncthreads", "cluster_wait", "copy_wait", "mma"};

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
  u32 left;     // clock of the arrival where the cluster meets, or NEVER if that orders nothing
  // Clock up to which it has seen what each warp did: by barriers at which that arrived and for which this one waited.
  u32 seen[MAX_THREADS / LANES];
};

struct Lane {
  void* sp;
  Warp* warp;
  u32 thread, warp_index, index, bit;
  u32 fenced;  // clock of the last copy_fence
  u32 waits;   // 1 + index of the barrier that it waits for
  u32 copies;  // copies that it has started
  bool alone;  // the preceding launch has ended
  bool arrived;  // where the cluster meets
  At at;       // location of that wait
};

// The history of a byte of shared memory. Values above MAX_THREADS stand for groups of threads.
constexpr u16 READ_BY_WARP = 0x4000, READ_BY_MANY = 0x7FFF, ADDED_BY_WARP = 0x4000, ADDED_BY_MANY = 0x7FFF, COPIED = 0x8000, OTHER_BLOCK = 0xFFFE, BARRIER = 0xFFFF;
struct Cell {
  u32 written, read;  // clock
  u16 writer, reader;
  u32 readers;  // the warps of READ_BY_MANY
};

struct Barrier {
  u32 place;
  bool fenced;
  u32 fence_owner;
  u32 count;          // warps whose arrivals end a phase, or 0 if copies do
  u32 arrived;        // in this phase
  u32 seen[MAX_THREADS / LANES];  // by whoever has arrived, as in `Warp`
  u32 started, done;  // copies, or phases
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
  u32* line_reads;  // clock of the last read of a line by each warp
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
  bool at_cluster;  // all of its threads wait for the other blocks of the cluster
  Op sync_op;
  u32 arrived;      // clock of the first arrival where the cluster meets next, or NEVER,
  u32 met;          // and where it has met
  u32 met_at;       // clock at which it has met
  u32 rests;        // since a warp arrived at a barrier
  u32 rank, ranks;
  Grid* first;      // the cluster's blocks
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

// Releases all warps from where the cluster meets. Each learns of all that others have done before they arrived there.
inline void release_met(Grid* g) {
  const u32 since = g->since;
  release(g);
  g->since = since;
  g->met_at = g->clock;
  for (u32 w = 0; w < g->warp_count; w++) {
    Warp& warp = g->warps[w];
    for (u32 k = 0; k < g->warp_count; k++) {
      if (warp.seen[k] < g->warps[k].left) warp.seen[k] = g->warps[k].left;
    }
  }
}

// All lanes of the warp that have not ended are at syncthreads.
inline void all_wait(Grid* g) {
  if (g->sync_op == CLUSTER_WAIT) g->at_cluster = true;
  else release(g);
}
inline void warp_waits(Grid* g, const Lane* me, Op op, At at) {
  if (g->waiting == 0) {
    g->sync_at = at;
    g->sync_op = op;
  } else if (g->sync_at.line != at.line) {
    fail(at, "divergence: this warp is at another syncthreads than warps %08x, which wait at %s:%u", g->waiting,
         base_name(g->sync_at.file), g->sync_at.line);
  }
  g->waiting |= 1u << me->warp_index;
  if (g->waiting == g->live) all_wait(g);
}

inline void sync_threads(At at, Op op = SYNCTHREADS) {
  Grid* const g = grid;
  Lane* const me = g->now;
  Meeting* m;
  if (arrive(g, me, op, 0, false, at, m)) warp_waits(g, me, op, at);
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
    if (w->arrived == w->live) warp_waits(g, me, m.op, m.at);
  }
  if (!w->live) {
    g->live &= ~(1u << me->warp_index);
    if (g->waiting && g->waiting == g->live) all_wait(g);
  }
  void* given_up;
  simt_switch(&given_up, pick(g, me));
  __builtin_unreachable();
}

}  // namespace simt
