// The tile scheduler and main loop of a launch: the assignment of the chunks of its planes to warps, and the copies of
// chunks and tables to shared memory.
//
// A thread block takes a share of the launch's chunks, measured by cost; within it, warps take the chunks of an item in
// turn. Each warp copies its next chunk into shared memory while it decodes the current one. Blocks change the table
// where their share crosses from one plane into another.
//
// Tile (tile.h) decodes a chunk, and Epilogue (chunk_epilogue.h) uses its weights; the main loop only connects the two. A
// Tile is the state of a warp from one chunk of a plane to the next:
//
//   void prefetch_side<ALL>(t, c, lane)
//                             called for the warp's first chunk of a plane, while its bytes are in flight; ALL: its other data will be
//                             needed soon
//   bool decode<Epilogue>(state, t, c, a, buffer, lane, following, more)
//                             decodes a chunk whose bytes have arrived; `following` is the warp's next one, if there are `more`.
//                             Returns whether it was valid: the main loop records invalid ones in the plane's status
//   enum : bool { SMALL = ... }
//                             whether chunks are small copies, for epilogues whose tables may be stored in copies
//   enum : bool { COPIES = ... }
//                             whether its table may be stored in copies, if the epilogue allows it, and side words beside those of a
//                             warp's only chunk
//   void forget()             called after a chunk that was not valid, or not even decoded
//
// A main loop counts the chunks of a plane in their order there, unless told otherwise (`InPlane`).
//
// Offsets are not trusted: a chunk that does not lie inside its plane, or is larger than a buffer, is not decoded.
#pragma once
#include "chunk.h"

// Both ends in one register: even lanes hold the first, odd lanes the second.
DEVICE u32 load_arrival(const Tiles& t, u32 chunk, u32 lane) { return ldg32((const u32*)t.offsets + chunk + (lane & 1)); }
DEVICE Arrival arrival_of(u32 held) { return {shfl(held, 0), shfl(held, 1)}; }

// Whether a chunk lies inside its plane and fits a buffer.
DEVICE bool is_sound(const Tiles& t, Arrival a) {
  return a.from <= a.to && a.to <= t.data_units && a.to - a.from <= t.max_chunk / 4;
}

// The source of a chunk's copy, in whole units of 16 bytes. An unsound or empty chunk is not copied, but something must
// complete the barrier's phase: a part of the table, because the memory around the chunk may not exist.
struct Source {
  const u8* from;
  u32 bytes;
  bool sound;
};
DEVICE Source source_of(const Tiles& t, Arrival a) {
  const u32 first = a.from & ~3u, last = (a.to + 3) & ~3u;
  const bool sound = is_sound(t, a), some = sound && first < last;
  return {some ? (const u8*)t.data + (u64)first * 4 : (const u8*)t.table, some ? (last - first) * 4 : 16, sound};
}

// Starts the copy of a chunk; returns whether it is sound. SMALL: through `small_copy`.
template <bool SMALL = false>
DEVICE bool start(const Tiles& t, Arrival a, u32 buffer, u32 barrier, u32 lane) {
  const Source s = source_of(t, a);
  if constexpr (SMALL) small_copy(buffer, s.from, s.bytes, barrier, lane);
  else warp_copy(buffer, s.from, s.bytes, barrier, lane);
  return s.sound;
}
// As `start`, with `side_bytes` of side words.
DEVICE bool start_beside(const Tiles& t, Arrival a, u32 buffer, u32 to, const u8* side, u32 side_bytes, u32 barrier, u32 lane) {
  const Source s = source_of(t, a);
  warp_copy_two(buffer, s.from, s.bytes, to, side, side_bytes, barrier, lane);
  return s.sound;
}

// A warp's state over all of its chunks.
struct Warp {
  u32 lane;
  u32 barrier;  // the first of its two
  u32 buffer;   // the first of its one or two
  u32 parity;   // bit b: parity of the next phase of barrier b
};

// The state of the table: available, being copied, or to be spread.
#define TABLE_READY 0u
#define TABLE_COPIED 1u
#define TABLE_SPREAD 2u

// Writes 2^copies copies of a table, at least four, entry by entry, in two steps. All threads of the block call these.
struct SpreadTable {
  u32 first[4];  // the first entries that the thread writes

  static DEVICE_MEMBER u32 entry(const Tiles& t, u32 copies, u32 i) { return ldg32((const u32*)t.table + (i >> (copies - 2))); }
  // Loads the first ones.
  DEVICE_MEMBER void begin(const Tiles& t, u32 copies) {
    const u32 end = 1u << (t.bits + copies - 2);
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      const u32 i = thread_index() + k * block_threads();
      first[k] = i < end ? entry(t, copies, i) : 0;
    }
  }
  DEVICE_MEMBER void finish(const Tiles& t, u32 copies) const {
    const u32 end = 1u << (t.bits + copies - 2), step = block_threads();
    u32 i = thread_index();
#pragma unroll
    for (u32 k = 0; k < 4; k++, i += step) {
      if (i < end) put(i, first[k]);
    }
#pragma unroll 4
    for (; i < end; i += step) put(i, entry(t, copies, i));
  }

 private:
  static DEVICE_MEMBER void put(u32 i, u32 entry) { sts128(TABLE_AT + i * 16, {entry, entry, entry, entry}); }
};

// Makes a warp, with its barriers, before its first chunk: two, or ONE. The first warp also makes the table's barrier,
// which precedes those of all warps.
template <bool ONE, class Batch>
DEVICE Warp make_warp(const Batch& batch) {
  const u32 warp = thread_index() / LANES;
  Warp w;
  w.lane = thread_index() % LANES;
  w.barrier = batch.barriers + 8 + warp * 16;
  w.buffer = batch.buffers + warp * batch.buffers_per_warp * batch.buffer_bytes;
  w.parity = 0;
  if (w.lane == 0) {
    if (warp == 0) copy_init(batch.barriers);
    copy_init(w.barrier);
    if (!ONE) copy_init(w.barrier + 8);
    copy_init_fence();
  }
  syncwarp();
  return w;
}

// Waits for the table that the first warp copies, and for the data that all warps store in shared memory. All threads
// of the block call it; `younger` is the first warp's argument of `warp_copy_wait`.
template <class Batch>
DEVICE void wait_for_table(const Batch& batch, u32& parity, u32 younger) {
  // The barriers are made, prepared data is stored, and no thread reads the previous table any more.
  syncthreads();
#if defined(__CUDACC__) && !defined(COPY_BULK)
  if (thread_index() < LANES) warp_copy_wait(batch.barriers, parity, younger);
  syncthreads();
#else
  warp_copy_wait(batch.barriers, parity, 0);
#endif
  parity ^= 1;
}

// The default mapping of a main loop's count: to the chunks of a plane, in their order there. Others (rows.h) map the count
// to a chunk of the plane; the epilogue's state then has
//
//   take(t, number)             called before each chunk
struct InPlane {
  enum : bool { PICKS = false };
  DEVICE_MEMBER u32 operator()(u32 number) const { return number; }
};

// Processes every `step`th chunk of those that `at` counts, from `chunk` to `last`; `held` is the result of
// `load_arrival` for the first, if there is one. Only barriers and buffers of the batch are used.
template <class Tile, class Epilogue, class Batch, class Count = InPlane>
DEVICE void mainloop_of_plane(typename Epilogue::State& state, const Batch& batch, const Tiles& t, Warp& w, u32 chunk, u32 step, u32 last,
                       u32 held, u32 table, u32& table_parity, bool& waited, const Count& at = Count()) {
  constexpr bool SPREADS = Epilogue::COPIES && Tile::COPIES, SMALL = Epilogue::COPIES && Tile::SMALL;
  const bool two = batch.buffers_per_warp == 2;
  // From a warp's chunk to its next one. Kernels with few registers recompute a chunk's position.
  const u32 strips = SMALL ? divide(step, t.by_tiles) : 0, tiles = step - strips * t.tiles;
  Tile tile;
  SpreadTable spread;
  if constexpr (SMALL) {
    if (table == TABLE_SPREAD) spread.begin(t, batch.copies);
  }
  Arrival now = {0, 0};
  bool sound = false;
  Chunk c = {0, 0, 0, 0};
  u32 next = 0;
  u32 which = 0;
  if (chunk < last) {
    now = arrival_of(held);
    sound = start<SMALL>(t, now, w.buffer, w.barrier, w.lane);
    if (chunk + step < last) next = load_arrival(t, at(chunk + step), w.lane);
    c = chunk_at(t, at(chunk));
    // ALL, if there is nothing to wait for before the chunk is decoded.
    tile.template prefetch_side<!Epilogue::WAITS && (SMALL || !Epilogue::PREPARES)>(t, c, w.lane);
  }
  if constexpr (SPREADS && !SMALL) {
    if (table == TABLE_SPREAD) {
      spread.begin(t, batch.copies);
      spread.finish(t, batch.copies);
    }
  }
  if constexpr (Epilogue::PREPARES) state.prepare(t, w.lane);
  if constexpr (SMALL) {
    if (table == TABLE_SPREAD) spread.finish(t, batch.copies);
  }
  if (table == TABLE_COPIED) wait_for_table(batch, table_parity, chunk < last);
  if constexpr (SPREADS) {
    if (table == TABLE_SPREAD) syncthreads();
  }
  if (Epilogue::WAITS && !waited) {
    overlap_wait();
    // Not earlier: the kernel after the next one would start too, and take the place of the next one's blocks.
    overlap_start();
    waited = true;
  }
#pragma unroll 1
  while (chunk < last) {
    const u32 after = chunk + step;
    const bool more = after < last;
    const u32 other = which ^ 1;
    bool sound_then = false;
    if (two && more) sound_then = start<SMALL>(t, arrival_of(next), w.buffer + other * batch.buffer_bytes, w.barrier + other * 8, w.lane);
    u32 later = 0;
    if (more && after + step < last) later = load_arrival(t, at(after + step), w.lane);
    if constexpr (SMALL) small_copy_wait(w.barrier + which * 8, w.parity >> which & 1, two && more);
    else warp_copy_wait(w.barrier + which * 8, w.parity >> which & 1, two && more);
    w.parity ^= 1u << which;
    if constexpr (!SMALL) c = chunk_at(t, at(chunk)), sound = is_sound(t, now);
    Chunk following = c;
    if constexpr (SMALL) {
      if (more) following.move(t, step, strips, tiles);
    } else {
      following = chunk_at(t, at(more ? after : chunk));
    }
    const u32 buffer = w.buffer + which * batch.buffer_bytes;
    if constexpr (Count::PICKS) state.take(t, chunk);
    const bool good = sound && tile.template decode<Epilogue>(state, t, c, now, buffer, 0, w.lane, following, more);
    if (!good) {
      tile.forget();
      state.lost(t, c, w.lane);
      if (w.lane == 0) atomic_min((u32*)t.status, at(chunk));
    }
    // The buffer is read before the next copy into it; no thread has stored to it.
    syncwarp();
    if (!two && more) sound_then = start<SMALL>(t, arrival_of(next), w.buffer, w.barrier, w.lane);
    if (two) which = other;
    sound = sound_then;
    c = following;
    now = arrival_of(next);
    next = later;
    chunk = after;
  }
  // Every plane begins with the first buffer, whose barrier has its own count of phases.
}

// A warp's only chunk, in steps between which the warp does other work.
template <class Tile, class Epilogue>
struct OnlyChunk {
  u32 chunk;
  u32 side;  // address of its side words in shared memory, if they are copied
  bool exists, sound;
  Arrival arrival;
  Chunk place;
  Tile tile;

  // Starts its copy; `held` is the result of `load_arrival`, if the chunk exists.
  DEVICE_MEMBER OnlyChunk(const typename Epilogue::State& state, const Tiles& t, const Warp& w, u32 chunk, bool exists, u32 held)
      : chunk(chunk), side(0), exists(exists), arrival{0, 0}, place{0, 0, 0, 0} {
    if (!exists) return;
    arrival = arrival_of(held);
    place = chunk_at(t, chunk);
    if constexpr (Epilogue::BESIDE && Tile::COPIES) {
      const u32 bytes = Tile::side_bytes(t, place);
      side = state.space_for_side(t, bytes);
      sound = start_beside(t, arrival, w.buffer, side, Tile::side(t, place), bytes, w.barrier, w.lane);
    } else {
      sound = start(t, arrival, w.buffer, w.barrier, w.lane);
      tile.template prefetch_side<true>(t, place, w.lane);
    }
  }
  DEVICE_MEMBER void decode(typename Epilogue::State& state, const Tiles& t, const Warp& w) {
    if (!exists) return;
    warp_copy_wait(w.barrier, 0, 0);
    if (sound && tile.template decode<Epilogue>(state, t, place, arrival, w.buffer, side, w.lane, place, false)) return;
    state.lost(t, place, w.lane);
    if (w.lane == 0) atomic_min((u32*)t.status, chunk);
  }
};

// The whole launch.
template <class Tile, class Epilogue>
DEVICE void mainloop(const TilesBatch& batch, typename Epilogue::State state) {
  if (!table_fits()) {
    // The host does not launch on such devices. Chunks that are not decoded must not pass for valid ones.
    for (u32 i = 0; i < batch.count; i++) atomic_min((u32*)batch.items[i].status, batch.items[i].chunk_begin);
    return;
  }
  const u32 warp = thread_index() / LANES, barriers = batch.barriers;
  Warp w = make_warp<false>(batch);
  u32 table_parity = 0;
  bool waited = false;
  const u32 begin = (u32)((u64)batch.cost * block_index() / grid_blocks());
  const u32 end = (u32)((u64)batch.cost * (block_index() + 1) / grid_blocks());
  u64 table = 0;
#pragma unroll 1
  for (u32 i = 0; i < batch.count; i++) {
    const Tiles& t = batch.items[i];
    if (t.cost_begin >= end) break;
    const u32 chunks = t.chunk_end - t.chunk_begin, warps = block_threads() / LANES;
    if (t.cost_begin + chunks * t.blocks <= begin) continue;
    u32 first, last, step = warps;
    if (t.block_begin <= block_index() && block_index() < t.block_end) {
      // Blocks that process only this item take its chunks in turns, so that the chunks in work at any time are close
      // together.
      first = t.shared_begin + (block_index() - t.block_begin) * warps;
      last = t.shared_end;
      step *= t.block_end - t.block_begin;
    } else {
      // Rounded up at both ends, so that consecutive blocks leave nothing out.
      first = begin > t.cost_begin ? (begin - t.cost_begin + t.blocks - 1) / t.blocks : 0;
      last = (end - t.cost_begin + t.blocks - 1) / t.blocks;
      if (first > chunks) first = chunks;
      if (last > chunks) last = chunks;
      first += t.chunk_begin;
      last += t.chunk_begin;
    }
    if (first >= last) continue;
    const bool new_table = t.table != table;
    if (new_table) {
      if (table != 0) syncthreads();
      if (warp == 0) warp_copy(TABLE_AT, (const u8*)t.table, 4u << t.bits, barriers, w.lane);
      table = t.table;
    }
    const u32 held = first + warp < last ? load_arrival(t, first + warp, w.lane) : 0;
    mainloop_of_plane<Tile, Epilogue>(state, batch, t, w, first + warp, step, last, held, new_table ? TABLE_COPIED : TABLE_READY, table_parity, waited);
  }
}
