// The emulator's grids: runs the blocks of a launch, cluster by cluster. Only for the host.
#pragma once
#include "simt_memory.h"

namespace simt {

// Lists the waiting threads and their reasons, after a block in which none could continue.
__attribute__((cold, noinline)) inline void say_deadlock(const Grid* g) {
  say("kernel %s, block %u: deadlock:", g->kernel->name, g->block);
  for (u32 i = 0, said = 0; i < g->threads && said < 4; i++) {
    const Lane& lane = g->lanes[i];
    if (lane.waits) {
      const Barrier& b = g->barriers[lane.waits - 1];
      say(b.count ? " thread %u waits at %s:%u for phase %u of the barrier at %u, at which not all arrive;"
                  : " thread %u waits at %s:%u for copy %u of the barrier at %u, which nobody starts;",
          i, base_name(lane.at.file), lane.at.line, b.done, b.place);
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

// Makes a block ready to run.
inline void begin_block(Grid* g) {
  memset(g->shared, POISON, g->shared_bytes);
  for (u32 i = 0; i < g->barrier_count; i++) g->barrier_numbers[g->barriers[i].place / 8] = 0;
  g->barrier_count = g->in_flight = g->waiting = g->rests = 0;
  g->at_cluster = false;
  g->arrived = g->met = g->met_at = NEVER;
  g->begun = g->since = ++g->clock;
  g->live = g->runnable = g->warp_count == 32 ? ~0u : (1u << g->warp_count) - 1;
  for (u32 w = 0; w < g->warp_count; w++) {
    Warp& warp = g->warps[w];
    warp.turn = warp.arrived = 0;
    warp.live = warp.ready = ~0u;
    warp.since = g->since;
    warp.left = NEVER;
    memset(warp.seen, 0, sizeof warp.seen);
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
    lane.arrived = false;
  }
}

// Runs a block until all of its threads wait, or have ended.
inline void resume(Grid* g) {
  grid = g;
  Warp& warp = g->warps[first_from(g->runnable, 0)];
  const u32 lane = first_from(warp.ready, 0);
  warp.ready &= ~(1u << lane);
  g->now = &g->lanes[(&warp - g->warps) * LANES + lane];
  simt_switch(&g->main, g->now->sp);
}

inline bool ended_well(const Grid* g) {
  for (u32 i = 0; i < g->barrier_count; i++) {
    const Barrier& b = g->barriers[i];
    if (!b.count && b.started != b.done) {
      say("kernel %s, block %u has ended while a copy to %u was in flight", g->kernel->name, g->block, b.dst[0]);
      return false;
    }
  }
  return true;
}

// Runs the blocks of a cluster: one after the other, from one meeting of all of them to the next.
inline bool run_cluster(Grid* first) {
  const u32 ranks = first->ranks;
  for (u32 r = 0; r < ranks; r++) begin_block(&first[r]);
  while (true) {
    u32 live = 0, waiting = 0;
    for (u32 i = 0; i < ranks; i++) {
      Grid* const g = &first[first->launch->seed & 1 ? ranks - 1 - i : i];
      if (g->runnable) resume(g);
      if (g->failed) return false;
      live += g->live != 0, waiting += g->at_cluster;
    }
    if (live == 0) break;
    if (live != waiting) {
      for (u32 r = 0; r < ranks; r++) {
        if (first[r].live && !first[r].at_cluster) return grid = &first[r], say_deadlock(&first[r]), false;
      }
    }
    for (u32 r = 0; r < ranks; r++) {
      if (!first[r].at_cluster) continue;
      first[r].at_cluster = false;
      first[r].met = first[r].arrived;
      first[r].arrived = NEVER;
      release_met(&first[r]);
    }
  }
  for (u32 r = 0; r < ranks; r++) {
    if (!ended_well(&first[r])) return false;
  }
  return true;
}

inline bool prepare(Grid* g, const Launch& launch) {
  g->threads = launch.threads;
  g->warp_count = launch.threads / LANES;
  g->shared_bytes = launch.shared;
  g->races = launch.races != 0;
  g->random = launch.seed * 0x9E3779B97F4A7C15u | 1;
  g->clock = NEVER;
  const size_t shared = (launch.shared + 127) / 128 * 128 + 128;
  g->shared = (u8*)aligned_alloc(128, shared);
  g->cells = (Cell*)calloc(shared, sizeof(Cell));
  g->line_reads = (u32*)calloc((shared / LINE + 1) * (MAX_THREADS / LANES), sizeof(u32));
  g->barriers = (Barrier*)calloc(MAX_BARRIERS, sizeof(Barrier));
  g->barrier_numbers = (u8*)calloc(shared / 8, 1);
  return g->shared && g->cells && g->line_reads && g->barriers && g->barrier_numbers && g->stacks.make(launch.threads);
}

inline bool run_blocks(Grid* first, const Launch& launch, const Kernel* k) {
  while (k && strcmp(k->name, launch.kernel) != 0) k = k->next;
  if (!k) return say("no kernel %s in this module", launch.kernel), false;
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
  const u32 ranks = first->ranks;
  if (launch.grid % ranks) return say("%u blocks in clusters of %u", launch.grid, ranks), false;
  const size_t params = (launch.params_bytes + 15) / 16 * 16 + 16;
  void* const copy = aligned_alloc(16, params);
  bool good = copy != nullptr;
  for (u32 r = 0; good && r < ranks; r++) good = prepare(&first[r], launch);
  if (!good) {
    say("no memory for the emulation of %u threads", launch.threads);
  } else {
    memcpy(copy, launch.params, launch.params_bytes);
    for (u32 i = 0; good && i < launch.grid; i += ranks) {
      for (u32 r = 0; r < ranks; r++) {
        first[r].kernel = k;
        first[r].params = copy;
        first[r].block = (launch.seed & 1 ? launch.grid - ranks - i : i) + r;
      }
      good = run_cluster(first);
    }
  }
  for (u32 r = 0; r < ranks; r++) {
    free(first[r].shared);
    free(first[r].cells);
    free(first[r].line_reads);
    free(first[r].barriers);
    free(first[r].barrier_numbers);
  }
  free(copy);
  return good;
}

// Returns 0, or 1 with a message.
inline int run(const Launch& launch, const Kernel* list) {
  launch.message[0] = 0;
  const u32 ranks = launch.cluster ? launch.cluster : 1;
  Grid* const g = (Grid*)calloc(ranks, sizeof(Grid));
  if (!g) {
    snprintf(launch.message, launch.message_bytes, "no memory for the emulation");
    return 1;
  }
  for (u32 r = 0; r < ranks; r++) g[r].launch = &launch, g[r].first = g, g[r].rank = r, g[r].ranks = ranks;
  grid = g;
  const bool good = run_blocks(g, launch, list);
  grid = nullptr;
  for (u32 r = 0; r < ranks; r++) g[r].stacks.~Stacks();
  free(g);
  return good ? 0 : 1;
}

}  // namespace simt
