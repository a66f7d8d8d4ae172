// The walk of a launch over the chunks of its planes: who decodes which, and how chunks and tables come into shared memory.
//
// A block of threads takes a share of the launch's chunks, measured by cost; within it, warps take the chunks of an item in turn. Each
// warp copies its next chunk into shared memory while it decodes the one it has. Blocks change the table where their share crosses from
// one plane into another.
//
// How a chunk is decoded is Tile's business (tile.h), what becomes of its weights that of Sink (sinks.h); the walk only hands the one to
// the other. A Tile is the state of a warp from one chunk of a plane to the next:
//
//   void expect<ALL>(t, c, lane)
//                             the warp's first chunk of a plane, while its bytes are on their way; ALL: what else is read of it is wanted soon
//   bool decode<Sink>(state, t, c, a, buffer, lane, following, more)
//                             a chunk whose bytes have arrived; `following` is the warp's next one, if there are `more`. Whether it was
//                             valid: the walk reports those that were not in the plane's status
//   enum : bool { SMALL = ... }
//                             whether chunks are small copies, for sinks whose tables may lie in copies
//   enum : bool { COPIES = ... }
//                             whether its table may lie in copies, if the sink's may, and side words beside those of a warp's only chunk
//   void forget()             the chunk before was not valid, or not even decoded
//
// A walk counts the chunks of a plane as they lie there, unless it is told otherwise (`InPlane`).
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

// What to copy for a chunk: whole 16 bytes around it. One that is unsound, or empty, is not copied, but something must complete the barrier's phase: of the
// table, since of the chunks those around it alone may be there.
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

// Asks for a chunk; whether it is sound. SMALL: by `small_copy`.
template <bool SMALL = false>
DEVICE bool start(const Tiles& t, Arrival a, u32 buffer, u32 barrier, u32 lane) {
  const Source s = source_of(t, a);
  if constexpr (SMALL) small_copy(buffer, s.from, s.bytes, barrier, lane);
  else warp_copy(buffer, s.from, s.bytes, barrier, lane);
  return s.sound;
}
// The same, and for `side_bytes` of side words.
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

// What of the table: it is there, is being copied, or is to be spread.
#define TABLE_READY 0u
#define TABLE_COPIED 1u
#define TABLE_SPREAD 2u

// Writes 2^copies copies of a table, four or more, entry by entry, in two steps. All threads of the block call these.
struct SpreadTable {
  u32 first[4];  // of the entries that the thread writes

  static DEVICE_MEMBER u32 entry(const Tiles& t, u32 copies, u32 i) { return ldg32((const u32*)t.table + (i >> (copies - 2))); }
  // Asks for the first ones.
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

// A warp with its barriers made, before its first chunk: two, or ONE. That of the table, before those of all warps, is made by the first warp.
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

// Waits until the table that the first warp has copied is there, and what else all warps have left in shared memory. All threads of the block call it;
// `younger` is what `warp_copy_wait` wants to know of the first warp.
template <class Batch>
DEVICE void wait_for_table(const Batch& batch, u32& parity, u32 younger) {
  // The barriers were made, what was prepared is there, and nobody reads the table that was.
  syncthreads();
#if defined(__CUDACC__) && !defined(COPY_BULK)
  if (thread_index() < LANES) warp_copy_wait(batch.barriers, parity, younger);
  syncthreads();
#else
  warp_copy_wait(batch.barriers, parity, 0);
#endif
  parity ^= 1;
}

// What a walk counts: the chunks of a plane, as they lie there. Others (rows.h) say which chunk of the plane a number stands for; with those the sink's
// state has
//
//   take(t, number)             ahead of each chunk
struct InPlane {
  enum : bool { PICKS = false };
  DEVICE_MEMBER u32 operator()(u32 number) const { return number; }
};

// Every `step`th chunk of those that `at` counts, from `chunk` to `last`; `held` is what `load_arrival` gives for the first, if there is one. Of the batch
// only barriers and buffers count.
template <class Tile, class Sink, class Batch, class Count = InPlane>
DEVICE void walk_plane(typename Sink::State& state, const Batch& batch, const Tiles& t, Warp& w, u32 chunk, u32 step, u32 last,
                       u32 held, u32 table, u32& table_parity, bool& waited, const Count& at = Count()) {
  constexpr bool SPREADS = Sink::COPIES && Tile::COPIES, SMALL = Sink::COPIES && Tile::SMALL;
  const bool two = batch.buffers_per_warp == 2;
  // From a warp's chunk to its next one. Kernels with few registers find out anew where a chunk lies.
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
    // All of it, where nothing is waited for before it is decoded.
    tile.template expect<!Sink::WAITS && (SMALL || !Sink::PREPARES)>(t, c, w.lane);
  }
  if constexpr (SPREADS && !SMALL) {
    if (table == TABLE_SPREAD) {
      spread.begin(t, batch.copies);
      spread.finish(t, batch.copies);
    }
  }
  if constexpr (Sink::PREPARES) state.prepare(t, w.lane);
  if constexpr (SMALL) {
    if (table == TABLE_SPREAD) spread.finish(t, batch.copies);
  }
  if (table == TABLE_COPIED) wait_for_table(batch, table_parity, chunk < last);
  if constexpr (SPREADS) {
    if (table == TABLE_SPREAD) syncthreads();
  }
  if (Sink::WAITS && !waited) {
    overlap_wait();
    // Not before: the kernel after the next one would come too, and take the place of the next one's blocks.
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
    const bool good = sound && tile.template decode<Sink>(state, t, c, now, buffer, 0, w.lane, following, more);
    if (!good) {
      tile.forget();
      state.lost(t, c, w.lane);
      if (w.lane == 0) atomic_min((u32*)t.status, at(chunk));
    }
    // The buffer was read before the next copy into it; nobody has stored to it.
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

// A chunk that is all there is for a warp, in steps between which the warp does something else.
template <class Tile, class Sink>
struct OnlyChunk {
  u32 chunk;
  u32 side;  // where its side words lie in shared memory, if they are copied
  bool there, sound;
  Arrival arrival;
  Chunk place;
  Tile tile;

  // Asks for it; `held` is what `load_arrival` gives, if it is there.
  DEVICE_MEMBER OnlyChunk(const typename Sink::State& state, const Tiles& t, const Warp& w, u32 chunk, bool there, u32 held)
      : chunk(chunk), side(0), there(there), arrival{0, 0} {
    if (!there) return;
    arrival = arrival_of(held);
    place = chunk_at(t, chunk);
    if constexpr (Sink::BESIDE && Tile::COPIES) {
      const u32 bytes = Tile::side_bytes(t, place);
      side = state.side_room(t, bytes);
      sound = start_beside(t, arrival, w.buffer, side, Tile::side(t, place), bytes, w.barrier, w.lane);
    } else {
      sound = start(t, arrival, w.buffer, w.barrier, w.lane);
      tile.template expect<true>(t, place, w.lane);
    }
  }
  DEVICE_MEMBER void decode(typename Sink::State& state, const Tiles& t, const Warp& w) {
    if (!there) return;
    warp_copy_wait(w.barrier, 0, 0);
    if (sound && tile.template decode<Sink>(state, t, place, arrival, w.buffer, side, w.lane, place, false)) return;
    state.lost(t, place, w.lane);
    if (w.lane == 0) atomic_min((u32*)t.status, chunk);
  }
};

// All of the launch.
template <class Tile, class Sink>
DEVICE void walk(const TilesBatch& batch, typename Sink::State state) {
  if (!table_fits()) {
    // The host does not launch on such devices. What nobody decodes must not pass for good.
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
      // Blocks that have nothing but this item share their chunks in turns: what all of them work on at a time lies close together.
      first = t.shared_begin + (block_index() - t.block_begin) * warps;
      last = t.shared_end;
      step *= t.block_end - t.block_begin;
    } else {
      // Rounded up at both ends, so that blocks which follow each other leave nothing out.
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
    walk_plane<Tile, Sink>(state, batch, t, w, first + warp, step, last, held, new_table ? TABLE_COPIED : TABLE_READY, table_parity, waited);
  }
}
